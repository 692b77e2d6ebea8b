"""Ranges of queries that no algorithm of the library has; those it has are in `test_contract`."""

import numpy as np
import pytest
from asking import SplitAlgorithm

from flower_kmeans.algorithms import Query
from flower_kmeans.algorithms.queries import check_query
from flower_kmeans.data.domain import Box
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.budget import PrivacyBudget

pytestmark = pytest.mark.claim("threat-model", "17")

ALGORITHM = SplitAlgorithm.planned(2, Box([0, 0], [1, 1]), PrivacyBudget(None))


def asked(radius):
    return Query(2, {"thresholds": np.array([0]), "radius": np.array(radius)})


def test_an_array_of_floats_is_accepted_within_its_range_and_refused_beyond():
    most = float(ALGORITHM.domain.l2_bound(16))
    for radius in (1.0, 1.5, most):
        check_query(ALGORITHM, asked(radius))
    for radius in (np.nextafter(1.0, 0), np.nextafter(most, np.inf), 2):
        with pytest.raises(MessageError):
            check_query(ALGORITHM, asked(radius))


def test_an_own_query_of_floats_is_moved_into_its_range():
    state = ALGORITHM.initial_state(np.random.default_rng(0))
    arrays = {"thresholds": np.array([0]), "radius": np.array(0.5)}
    query = ALGORITHM.query(type(state)(1, arrays))
    assert query.arrays["radius"] == 1.0
    check_query(ALGORITHM, query)
