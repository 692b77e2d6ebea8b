"""Runs that protect persons, by real messages: what clients add, commit to, refuse and log."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from cohorts import Cohort, make_run
from documents import TRUSTS, make_document
from harness import without_noise

from flower_kmeans.algorithms import GLloydAlgorithm, SynopsisAlgorithm, registry
from flower_kmeans.algorithms.answers import reconstructed, words_of_rows
from flower_kmeans.data.domain import Box
from flower_kmeans.data.sources import as_source, weighed
from flower_kmeans.data.sql import SqlQuery
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.messages import Code, Refusal
from flower_kmeans.protocol.records import weighing_of
from flower_kmeans.protocol.run import UnacceptableRunError, open_run, verify_plan
from flower_kmeans.protocol.wire import encode

BOX = Box([0.0, 0.0], [1.0, 1.0])
EXACT = "plain", "trusted-server"
RNG = np.random.default_rng


def algorithm_for(trust, kind=GLloydAlgorithm, unit="person", **options):
    budget = PrivacyBudget(None if trust == "plain" else 1.0, unit=unit)
    total = "n_persons" if unit == "person" else "n_records"
    given = {total: 1000, "n_rounds": "auto"}
    if kind is GLloydAlgorithm:
        given["n_rounds"] = 3
    return kind.planned(2, BOX, budget, **given, **options)


def ids_of(i, n=40):
    """Return ids of a client's records: some persons, and one record without an id."""
    ids = [f"patient-{i}-{number}" for number in RNG(i).integers(0, 9, n)]
    ids[-1] = None
    return ids


def persons(tmp_path, trust, algorithm=None, **options):
    cohort = Cohort(
        tmp_path, trust, algorithm=algorithm or algorithm_for(trust), **options
    )
    for i, node in enumerate(cohort.nodes):
        node.records = np.array(node.records)
        node.records[3] = np.nan
        node.ids = ids_of(i)
    return cohort


def exact_result(cohort):
    """Return the state after a run whose sums are computed here, without messages."""
    algorithm = cohort.run.algorithm
    state = algorithm.initial_state(None)
    n = len(cohort.nodes)
    for t in range(1, algorithm.n_rounds + 1):
        query, words = algorithm.query(state), 0
        for node in cohort.nodes:
            source = as_source(node.records, 2)
            rule = weighing_of(algorithm)
            found = weighed(source, rule, node.ids, node.weights, bytes(32)).source
            words += words_of_rows(algorithm, query, found.loaded())
        state = algorithm.update(state, reconstructed(algorithm, t, words, 1.0, n))
    return state


@pytest.mark.claim("guarantees", "46")
@pytest.mark.parametrize("kind", [GLloydAlgorithm, SynopsisAlgorithm])
@pytest.mark.parametrize("trust", TRUSTS)
def test_all_clients_get_the_result_of_the_weighted_sums(tmp_path, trust, kind):
    """The server divides by W where it sees the sums, and the clients where they do."""
    cohort = persons(tmp_path, trust, algorithm_for(trust, kind))
    with without_noise():
        cohort.play()
    assert not cohort.refusals
    expected = exact_result(cohort)
    algorithm = cohort.run.algorithm
    for node in cohort.nodes:
        (result,) = node.results
        np.testing.assert_array_equal(result.centroids, algorithm.centroids(expected))
        np.testing.assert_array_equal(result.counts, algorithm.counts(expected))
    if kind is GLloydAlgorithm:
        n_persons = sum(len(set(ids_of(i))) for i in range(5))
        # A null record may be a person's only one.
        assert n_persons - 5 <= result.counts.sum() <= n_persons


@pytest.mark.claim("guarantees", "46")
@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
def test_one_record_each_gives_the_result_of_records_bit_for_bit(tmp_path, trust):
    found = []
    for unit in ("person", "record"):
        algorithm = algorithm_for(trust, SynopsisAlgorithm, unit)
        cohort = Cohort(tmp_path / unit, trust, algorithm=algorithm)
        for node in cohort.nodes:
            node.ids = range(len(node.records))
        with without_noise():
            cohort.play()
        found.append(cohort.nodes[0].results[0])
    np.testing.assert_array_equal(found[0].centroids, found[1].centroids)
    np.testing.assert_array_equal(found[0].counts, found[1].counts)


@pytest.mark.claim("guarantees", "47")
@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
@pytest.mark.parametrize("unit", ["record", "person"])
def test_records_have_weights_of_their_own(tmp_path, trust, unit):
    algorithm = algorithm_for(trust, unit=unit, weighted=True)
    cohort = persons(tmp_path, trust, algorithm)
    for i, node in enumerate(cohort.nodes):
        node.weights = RNG(i).random(40)
        node.ids = node.ids if unit == "person" else None
    with without_noise():
        cohort.play()
    expected = exact_result(cohort)
    (result,) = cohort.nodes[0].results
    np.testing.assert_array_equal(result.centroids, algorithm.centroids(expected))
    np.testing.assert_array_equal(result.counts, algorithm.counts(expected))


# ------------------------------------------------------------------------- commitments


@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("what", ["ids", "weights"])
def test_a_changed_weight_is_a_changed_record(tmp_path, what, ledger):
    """Also where all records are the same: a session belongs to records and weights."""
    trust = "oblivious-server"
    algorithm = algorithm_for(trust, weighted=True)
    policy = {"copy_records": False}
    cohort = persons(tmp_path, trust, algorithm, ledger=ledger, policy=policy)
    for node in cohort.nodes:
        node.weights = np.full(40, 0.5)
    cohort.set_up()
    node = cohort.nodes[0]
    before = node.session(cohort.doc_hash).commitment
    if what == "ids":
        other = ["someone-else" if one == node.ids[0] else one for one in node.ids]
        # Another name of the same person changes no weight.
        node.ids = other
        assert not isinstance(cohort.ask(0), Refusal)
        node.ids = ["someone-else", *node.ids[1:-1], node.ids[0]]
    else:
        node.weights = node.weights.copy()
        node.weights[5] = 0.25
    reply = cohort.ask(0, attempt=2)
    assert isinstance(reply, Refusal)
    assert reply.code == Code.RENEW
    assert node.session(cohort.doc_hash).commitment != before


@pytest.mark.parametrize("ledger", [False, True])
def test_a_copy_of_records_holds_their_weights_and_no_ids(tmp_path, ledger):
    trust = "oblivious-server"
    cohort = persons(tmp_path, trust, ledger=ledger).set_up()
    for node in cohort.nodes:  # neither is read again
        node.records, node.ids = np.zeros((3, 2)), ["x"]
    before = [ids_of(i) for i in range(5)]
    with without_noise():
        for t in range(1, 4):
            cohort.round(t)
        cohort.finish()
    assert not cohort.refusals
    for i, node in enumerate(cohort.nodes):
        node.records = np.random.default_rng(i).random((40, 2))
        node.records[3] = np.nan
        node.ids = before[i]
    expected = cohort.run.algorithm.counts(exact_result(cohort))
    np.testing.assert_array_equal(cohort.nodes[0].results[0].counts, expected)


# ------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"ids": None},
            "Expected load_ids, because the run protects persons. Got none",
        ),
        ({"weights": None}, "Expected load_weights, because the run weighs records"),
        (
            {"ids": ["a"] * 39},
            "Expected an id for each record, in the same order. Got 39",
        ),
        ({"ids": "patient-0-1"}, "Expected ids as a list or one column"),
        ({"ids": [2.0**60] * 40}, "a float of at least 2^53, which has lost digits"),
        ({"weights": np.full(40, 2.0)}, r"Expected weights in [0, 1]. Got 40 of 40"),
        ({"weights": np.full(41, 0.5)}, "Expected a weight for each record, in the"),
    ],
)
def test_a_client_refuses_other_ids_and_weights(
    tmp_path, trust, change, reason, caplog
):
    """Before anything is charged, and with a reason that holds no id and no weight."""
    algorithm = algorithm_for(trust, weighted=True)
    cohort = persons(tmp_path, trust, algorithm, ledger=True)
    for node in cohort.nodes:
        node.weights = np.full(40, 0.5)
    cohort.set_up()
    fresh = replace(cohort.nodes[0], **change)
    fresh.policy = replace(fresh.policy, state_dir=tmp_path / "other")
    cohort.nodes[0] = fresh
    reply = cohort.send(0, messages.Enrol(doc=cohort.run.data))
    if not isinstance(reply, Refusal):
        cohort.take(0, reply)
        reply = cohort.ask(0)
    assert isinstance(reply, Refusal)
    assert reply.code == Code.DATA
    assert reason in caplog.text
    assert "patient-0" not in caplog.text
    assert fresh.session(cohort.doc_hash) is None or not (
        fresh.session(cohort.doc_hash).answered
    )


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
def test_a_run_of_records_needs_no_ids(tmp_path, trust):
    cohort = Cohort(tmp_path, trust, algorithm=algorithm_for(trust, unit="record"))
    cohort.play()
    assert not cohort.refusals


def test_ids_leave_the_client_in_no_form(tmp_path, caplog):
    """Not in messages, logs, memories or files, with a copy or without."""
    caplog.set_level(logging.DEBUG)
    for trust in ("oblivious-server", "distributed-noise"):
        cohort = persons(tmp_path / trust, trust, ledger=True)
        seen = []

        def heard(request, reply, seen=seen):
            seen.append(encode(reply))
            return reply

        for node in cohort.nodes:
            node.change = heard
        cohort.set_up()
        for t in range(1, 4):
            cohort.round(t)
        paths = [path for path in tmp_path.rglob("*") if path.is_file()]
        files = [path.read_bytes() for path in paths]
        cohort.finish()
        assert len(seen) > 20
        for data in [*seen, *files]:
            assert b"patient-" not in data
    assert "patient-" not in caplog.text


def test_missing_ids_and_heavy_persons_are_said_to_the_client(tmp_path, caplog):
    algorithm = replace(algorithm_for("plain"), full_weight=64)
    cohort = persons(tmp_path, "plain", algorithm)
    cohort.nodes[0].records = np.zeros((140, 2))
    cohort.nodes[0].ids = ["a"] * 70 + [None] * 3 + ["b"] * 67
    cohort.set_up().ask(0)
    assert "3 records have no id of a person; each counts" in caplog.text
    assert "2 persons have more than 64 records; 9 records beyond do" in caplog.text


def test_values_outside_the_bounds_are_counted_without_the_weights(tmp_path, caplog):
    cohort = persons(tmp_path, "plain")
    cohort.nodes[0].records[7, 1] = 9.0
    cohort.set_up().ask(0)
    assert "of 39 records" in caplog.text or "39 values" in caplog.text, caplog.text
    assert "column 2" not in caplog.text


# ---------------------------------------------------------------------------- databases


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
def test_ids_beside_records_of_a_database_are_refused(tmp_path, trust, caplog):
    """Two queries may return rows in two orders."""
    import sqlite3

    path = tmp_path / "visits.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE visits (x REAL, y REAL)")
        rows = [(0.1, 0.2), (0.3, 0.4)]
        db.executemany("INSERT INTO visits VALUES (?, ?)", rows)
    db.close()
    cohort = persons(tmp_path, trust)
    node = cohort.nodes[0]
    node.records = lambda: SqlQuery(f"sqlite:///{path}", "SELECT x, y FROM visits")
    node.ids = ["a", "b"]
    with without_noise():
        cohort.play()
    assert 0 in {slot for slot, _ in cohort.refusals}
    assert "write the query's result to a file" in caplog.text


# ---------------------------------------------------------------------------- documents


def test_documents_without_the_noise_of_a_person_are_refused():
    document = make_document(
        "oblivious-server", algorithm=algorithm_for("", GLloydAlgorithm)
    )
    body = document.body

    def opened(privacy=None, **algorithm):
        config = {**body.algorithm, **algorithm}
        config = {name: each for name, each in config.items() if each is not None}
        changed = type(body)(algorithm=config, domain=body.domain)
        other = type(document)(
            **{
                **{f: getattr(document, f) for f in document.__struct_fields__},
                "body": changed,
                "privacy": privacy or document.privacy,
            }
        )
        run = open_run(encode(other))
        verify_plan(run)
        return run

    assert opened().algorithm.full_weight == 4096
    assert opened(full_weight=64).algorithm.full_weight == 64
    for change in (
        {"full_weight": None},
        {"full_weight": 32},
        {"full_weight": 1},
        {"full_weight": 100},
        {"full_weight": True},
        {"n_persons": None},
        {"n_persons": 999},
        {"n_records": 1000},
        {"max_clients_per_person": 1},  # the default is left out
        {"max_clients_per_person": 0},
        {"weighted": False},
        {"privacy": {**document.privacy, "n_persons": 999}},
        {"privacy": {**document.privacy, "n_records": 1000}},
    ):
        with pytest.raises(UnacceptableRunError):
            opened(**change)


def test_other_runs_have_the_documents_that_they_had():
    names = {"n_persons", "max_clients_per_person", "weighted", "full_weight"}
    for trust in TRUSTS:
        document = make_run(trust, "relayed").document
        assert not names & {*document.body.algorithm, *document.privacy}
    assert "glloyd" in registry._REGISTRY
