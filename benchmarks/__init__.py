"""Measurements. ``python -m benchmarks.NAME`` runs a script, as its file does.

The scripts import the modules beside them by their bare names.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
