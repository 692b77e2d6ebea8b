"""What tests all over the tree share."""

import logging

import pytest
from hypothesis import settings

settings.register_profile("no stopwatch", deadline=None)
settings.load_profile("no stopwatch")


@pytest.fixture
def quiet():
    """Keep Flower's log of every round from what a test prints."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)
