"""A client's own sizes at the end of a run: for its ``on_result`` alone, whatever happens."""

import hashlib
import logging
import pickle
import sqlite3
from itertools import count

import numpy as np
import pytest
from cohorts import Cohort
from documents import TRUSTS
from harness import RecordingGrid

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.algorithms import GLloydAlgorithm
from flower_kmeans.client import kmeans_client_app, simulated_client_app
from flower_kmeans.data.sources import Source
from flower_kmeans.data.sql import SqlQuery
from flower_kmeans.privacy import randomness
from flower_kmeans.protocol.messages import Finished
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.shared import NO_SHARED_WORK
from flower_kmeans.protocol.wire import encode, encode_arrays
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.strategies import FastLloyd

each_trust = pytest.mark.parametrize("trust", TRUSTS)
SIMULATED = ClientPolicy.for_simulation()
WORDS = "own sizes of clusters are unknown"


def cohort_of(tmp_path, trust, **options):
    cohort = Cohort(tmp_path, trust, **options)
    for node in cohort.nodes:
        node.with_own_sizes = True
    return cohort


def played(cohort):
    """Play all rounds of a run, and return the cohort before its end."""
    cohort.set_up()
    for t in range(1, cohort.document.rounds + 1):
        cohort.round(t)
    return cohort


@pytest.mark.claim("deploy", "result-has-own-sizes")
@each_trust
@pytest.mark.parametrize("ledger", [False, True])
def test_each_client_has_its_own_sizes_beside_the_noisy_ones(tmp_path, trust, ledger):
    cohort = cohort_of(tmp_path, trust, ledger=ledger)
    cohort.nodes[1].records = np.array(cohort.nodes[1].records)
    cohort.nodes[1].records[:5] = np.nan  # null records
    cohort.nodes[2].records = np.array(cohort.nodes[2].records) * 3 - 1  # outside
    played(cohort).finish()
    for node in cohort.nodes:
        (result,) = node.results
        sizes = result.own_sizes
        usable = np.array(node.records)
        usable = usable[np.isfinite(usable).all(axis=1)]
        own = np.bincount(result.predict(usable), minlength=2)
        np.testing.assert_array_equal(sizes.own, own)
        np.testing.assert_array_equal(sizes.noisy, result.counts)
        assert sizes.counted == result.counted == "records"
        again = result.sizes_of(node.records)
        np.testing.assert_array_equal(again.own, own)


@each_trust
def test_persons_count_as_one_together(tmp_path, trust):
    budget = PrivacyBudget(None if trust == "plain" else 1.0, unit="person")
    options = {"n_persons": 1000, "n_rounds": 3, "max_clients_per_person": 2}
    square = Box([0.0, 0.0], [1.0, 1.0])
    algorithm = GLloydAlgorithm.planned(2, square, budget, **options)
    cohort = cohort_of(tmp_path, trust, algorithm=algorithm)
    for i, node in enumerate(cohort.nodes):
        node.records = np.array(node.records)
        node.records[3] = np.nan
        numbers = np.random.default_rng(i).integers(0, 9, len(node.records))
        node.ids = [f"patient-{number}" for number in numbers[:-1]] + [None]
    played(cohort).finish()
    for node in cohort.nodes:
        (result,) = node.results
        usable = np.isfinite(node.records).all(axis=1)
        labels = result.predict(node.records[usable])
        ids = [e or object() for e in np.array(node.ids, dtype=object)[usable]]
        own = np.zeros(2)
        for one, label in zip(ids, labels, strict=True):
            own[label] += 1 / ids.count(one)
        # Weights are rounded down, by less than 2 % of a person.
        np.testing.assert_allclose(result.own_sizes.own, own, rtol=0.02)
        assert result.own_sizes.own.sum() <= len(set(ids))
        assert result.own_sizes.counted == "persons"
        again = result.sizes_of(node.records, node.ids)
        np.testing.assert_allclose(again.own, own, rtol=0.02)


# ------------------------------------------------------------------------ nothing leaves


def fixed_source(monkeypatch):
    """Replace the system's randomness by one that a run repeats."""
    numbers = count()

    def source(n_bytes):
        seed = str(next(numbers)).encode()
        return hashlib.shake_256(seed).digest(n_bytes)

    monkeypatch.setattr(randomness, "_os_random", source)


def run_with(make, unit):
    """Return the contents of all messages of a run, and the results of its clients."""
    rng = np.random.default_rng(8)
    parts = [rng.random((30 + 10 * i, 2)) for i in range(4)]
    results = {}

    def place(context):
        return int(context.node_config["partition-id"])

    def keep(result, context):
        results[place(context)] = result

    app = make(
        lambda context: parts[place(context)],
        SIMULATED,
        keep,
        lambda context: np.arange(len(parts[place(context)])) // 3,
    )
    grid = RecordingGrid(app, len(parts))
    total = {"n_persons" if unit == "person" else "n_records": 180}
    strategy = FastLloyd(
        2,
        Box([0, 0], [1, 1]),
        PrivacyBudget(1.0, unit=unit),
        n_clients=4,
        n_rounds=3,
        **total,
    )
    with task_identity():
        strategy.start(grid)
    exchanged = [
        (each.node_id, each.message_type, encode(each.message))
        for each in (*grid.sent, *grid.received)
    ]
    return exchanged, results


def without_own_sizes(*arguments):
    return simulated_client_app(NO_SHARED_WORK, *arguments)


@pytest.mark.claim("deploy", "result-has-own-sizes")
@pytest.mark.parametrize("unit", ["record", "person"])
def test_no_message_of_a_run_is_another_with_own_sizes(monkeypatch, caplog, unit):
    """Byte for byte, and the log has the same lines."""
    found = []
    lines = []
    for make in (without_own_sizes, kmeans_client_app):
        fixed_source(monkeypatch)
        caplog.clear()
        with caplog.at_level(logging.DEBUG, logger="flower_kmeans"):
            exchanged, results = run_with(make, unit)
        found.append(exchanged)
        ours = [each for each in caplog.records if "flower_kmeans" in each.name]
        lines.append([each.getMessage() for each in ours])
        has_own = [result.own_sizes is not None for result in results.values()]
        assert has_own == [make is kmeans_client_app] * 4
    assert len(found[0]) > 20
    assert found[0] == found[1]
    assert lines[0] == lines[1]


@each_trust
def test_an_error_while_counting_changes_neither_reply_nor_delivery(
    tmp_path, trust, caplog
):
    cohort = played(cohort_of(tmp_path, trust, ledger=True))
    node = cohort.nodes[0]
    usual = cohort.nodes[1]

    def fail():
        raise SystemExit("gone")

    node.records = fail
    cohort.finish()
    assert not cohort.refusals
    (result,) = node.results
    # Records that a run copied are read from the copy.
    if trust == "oblivious-server":
        assert result.own_sizes is not None
    else:
        assert result.own_sizes is None
        assert WORDS in caplog.text
    np.testing.assert_array_equal(result.centroids, usual.results[0].centroids)


def test_changed_records_of_a_commitment_give_no_sizes(tmp_path, caplog):
    cohort = played(
        cohort_of(tmp_path, "oblivious-server", policy={"copy_records": False})
    )
    node = cohort.nodes[0]
    node.records = np.array(node.records) / 2
    cohort.finish()
    assert not cohort.refusals
    assert node.results[0].own_sizes is None
    assert cohort.nodes[1].results[0].own_sizes is not None
    assert WORDS in caplog.text


def test_records_of_a_client_that_answered_no_round_are_not_read(tmp_path):
    cohort = cohort_of(tmp_path, "plain").set_up()
    node = cohort.nodes[0]
    node.n_loads = 0
    good = encode_arrays({"centroids": np.full((2, 2), 0.5), "counts": np.zeros(2)})
    reply = cohort.send(0, cohort.finish_of(0, result=good))
    assert reply == Finished(doc_hash=cohort.doc_hash)
    assert node.n_loads == 0
    assert node.results[0].own_sizes is None


def test_records_are_read_once_at_the_end_and_only_for_a_use(tmp_path):
    cohort = cohort_of(tmp_path, "distributed-noise")
    cohort.nodes[1].with_own_sizes = False  # as in a simulation
    played(cohort)
    for node in cohort.nodes:
        node.n_loads = 0
    cohort.finish()
    assert [node.n_loads for node in cohort.nodes] == [1, 0, 1, 1, 1]
    assert cohort.nodes[1].results[0].own_sizes is None


def test_records_on_other_machines_are_counted_there(tmp_path):
    """Such as a data set of Ray: the function that counts is pickled."""
    rows = np.random.default_rng(0).random((50, 2))

    def sum_in_place(part):
        part = pickle.loads(pickle.dumps(part))  # noqa: S301
        return part(rows[:20]) + part(rows[20:]), 0

    def unused():
        raise AssertionError("Expected no record on this machine.")

    cohort = cohort_of(tmp_path, "distributed-noise")
    node = cohort.nodes[0]
    node.records = lambda: Source(2, rows.dtype, unused, sum_in_place=sum_in_place)
    played(cohort).finish()
    (result,) = node.results
    expected = np.bincount(result.predict(rows), minlength=2)
    np.testing.assert_array_equal(result.own_sizes.own, expected)


def test_a_database_is_not_asked_again_and_no_copy_remains(tmp_path):
    path = tmp_path / "records.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE visits (a REAL, b REAL)")
        rows = np.random.default_rng(0).random((50, 2)).tolist()
        database.executemany("INSERT INTO visits VALUES (?, ?)", rows)
    cohort = cohort_of(tmp_path, "distributed-noise", ledger=True)
    node = cohort.nodes[0]
    node.records = lambda: SqlQuery(f"sqlite:///{path}", "SELECT a, b FROM visits")
    played(cohort)
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM visits")
    cohort.finish()
    (result,) = node.results
    expected = np.bincount(result.predict(rows), minlength=2)
    np.testing.assert_array_equal(result.own_sizes.own, expected)
    assert not list((tmp_path / "state-client0").glob("records-*"))
