"""What tests all over the tree share."""

import logging
import math

import pytest
from hypothesis import settings

from flower_kmeans.algorithms.numerics import assignment

settings.register_profile("no stopwatch", deadline=None)
settings.load_profile("no stopwatch")

# NumPy serves all tests but the kernel's own: otherwise what ran before would decide.
assignment._FUSED_WORK = math.inf


@pytest.fixture
def quiet():
    """Keep Flower's log of every round from what a test prints."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)
