"""The same code as other processors would run it: other instructions, BLAS kernels and threads."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_DISPATCHED = """
try:
    from numpy._core._multiarray_umath import __cpu_dispatch__ as found
except ImportError:
    from numpy.core._multiarray_umath import __cpu_dispatch__ as found
print(" ".join(found))
"""


def environments() -> list[dict[str, str]]:
    """Return environment variables that make this processor act as others."""
    # NumPy's own list: it refuses to run without what it was built to need.
    features = printed(_DISPATCHED, {})
    return [
        {"OPENBLAS_NUM_THREADS": "1"},
        {
            "OPENBLAS_NUM_THREADS": "2",
            "OMP_NUM_THREADS": "2",
            "OPENBLAS_CORETYPE": "Haswell",
        },
        {"OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Nehalem"},
        {"NPY_DISABLE_CPU_FEATURES": features, "OPENBLAS_CORETYPE": "Prescott"},
    ]


def printed(code: str, environment: dict[str, str]) -> str:
    """Return what Python code prints in an environment."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    found = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def outputs(code: str) -> list[str]:
    """Return what Python code prints in each of these environments."""
    return [printed(code, environment) for environment in environments()]
