"""The array types of the library, each with one name."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
LabelArray = NDArray[np.int32]
"""Numbers of clusters or cells, one for each record."""

WordArray = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]

CellArray = NDArray[Any]
"""Cells of a column, (n,), as its holder wrote them: text, numbers, dates or objects."""
