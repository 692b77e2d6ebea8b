"""Vertical runs on both engines, and what a simulation's parties are given."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from datasets import Dataset
from seamed import SeamedApp, bytes_of
from vertical_runs import blobs

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, simulate
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    RunError,
)
from flower_kmeans.privacy import randomness
from flower_kmeans.simulation import engines
from flower_kmeans.strategies import VerticalKMeans
from flower_kmeans.vertical.engine import require_tenseal

pytestmark = pytest.mark.usefixtures("quiet")

N = 400
ONE_WORKER = replace(ClientPolicy.for_simulation(), workers=1)
COLUMNS = ("income", "visits", "age")
BOX = Box([0.0] * 3, [1.0, 2.0, 3.0], columns=COLUMNS)
RECORDS = blobs(N, 3)


def made(**options):
    given = {
        "parties": [2, 1],
        "n_rounds": 1,
        "radius": False,
        "initial": [[0.3, 0.6, 0.9], [0.7, 1.4, 2.1]],
        **options,
    }
    return VerticalKMeans(2, BOX, PrivacyBudget(8.0, 1e-6), N, **given)


def seamed(engine, monkeypatch, **options):
    """Simulate with randomness that is the same in every process."""
    require_tenseal()  # whose first call in a process draws keys
    make = engines._client_app
    with monkeypatch.context() as patch:
        patch.setattr(randomness, "_os_random", bytes_of("server"))
        patch.setattr(engines, "_client_app", lambda *parts: SeamedApp(make(*parts)))
        strategy = made(**options)
        parts = [RECORDS[:, :2], RECORDS[:, 2:]]
        clustering = simulate(strategy, parts, engine=engine, policy=ONE_WORKER)
    assert clustering.report.round_trips == 2 * 1 + 4 + 2  # two to compare rows
    return clustering


@pytest.fixture(scope="module")
def here():
    """A run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        return seamed("in-process", patch, check_ids=True)


def test_a_simulation_returns_a_clustering_of_all_columns(here):
    means = np.array([[0.25] * 3, [0.75] * 3]) * [1, 2, 3]
    np.testing.assert_allclose(here.centroids, means, atol=0.15)
    assert here.counts.shape == (2,)
    labels = here.predict(RECORDS)
    assert (labels[::2] == labels[0]).all()
    assert (labels[1::2] == 1 - labels[0]).all()
    assert here.report.part.check_ids


@pytest.mark.claim("vertical", "party-can-compute-nearest")
def test_a_party_predicts_in_its_own_columns(here):
    labels = here.predict(RECORDS)
    for columns, places in (
        (["age"], [2]),
        (["visits", "income"], [1, 0]),
        ([0, 2], [0, 2]),
    ):
        assert (
            here.predict(RECORDS[:, places], columns=columns) == labels
        ).mean() > 0.98
        distances = [
            (
                ((RECORDS[:, places] - centroid[places]) / np.array(BOX.upper)[places])
                ** 2
            ).sum(1)
            for centroid in here.centroids
        ]
        nearest = np.argmin(distances, axis=0)
        np.testing.assert_array_equal(
            here.predict(RECORDS[:, places], columns=columns), nearest
        )
    np.testing.assert_array_equal(here.predict(RECORDS, columns=COLUMNS), labels)


@pytest.mark.parametrize(
    ("error", "match", "width", "columns"),
    [
        (ConfigurationError, "Expected columns", 1, ["height"]),
        (ConfigurationError, "Expected columns", 1, ["age", "age"]),
        (ConfigurationError, "Expected columns", 1, ["age", 2]),
        (ConfigurationError, "Expected columns", 1, [3]),
        (ConfigurationError, "Expected columns", 1, []),
        (ConfigurationTypeError, "Expected columns", 1, "age"),
        (ConfigurationTypeError, "Expected columns", 1, 2),
        (DataError, "X", 3, ["age"]),
    ],
)
def test_columns_that_are_not_there_are_one_sentence(
    here, error, match, width, columns
):
    with pytest.raises(error, match=match):
        here.predict(RECORDS[:, :width], columns=columns)


@pytest.mark.claim("own-data", "columns-domain-chooses-columns")
@pytest.mark.parametrize(
    ("first", "second", "wrong"),
    [(["visits", "income"], ["age"], 0), (["income", "visits"], ["visits"], 1)],
)
def test_parties_name_the_columns_that_are_theirs(first, second, wrong):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(RECORDS, columns=COLUMNS)
    with pytest.raises(
        DataError, match=rf"Expected partitions\[{wrong}\] with the columns"
    ):
        simulate(made(), [table[first], table[second]])


def test_parties_may_have_tables_of_other_kinds(here, monkeypatch):
    """The records are those of arrays, with the party's columns of a data set chosen by name."""
    table = pd.DataFrame(RECORDS, columns=COLUMNS)
    ages = Dataset.from_dict({"label": [0] * N, "age": table["age"].tolist()})
    given = []
    monkeypatch.setattr(
        engines, "_run_in_process", lambda start, clients, own: given.extend(own)
    )
    with pytest.raises(RunError, match="No client reported"):
        simulate(
            made(), [pl.DataFrame(table[["income", "visits"]].to_dict("list")), ages]
        )
    np.testing.assert_array_equal(given[0].records, RECORDS[:, :2])
    np.testing.assert_array_equal(given[1].records, RECORDS[:, 2:])


@pytest.mark.claim("reference/strategies", "flowers-stock-strategy-start")
@pytest.mark.thorough
@pytest.mark.ray
def test_ray_gives_the_same_result(here, monkeypatch):
    """Bit by bit, noise included: the parties' randomness is the same."""
    there = seamed("ray", monkeypatch, check_ids=True)
    np.testing.assert_array_equal(here.centroids, there.centroids)
    np.testing.assert_array_equal(here.counts, there.counts)
    assert here.report.part == there.report.part
