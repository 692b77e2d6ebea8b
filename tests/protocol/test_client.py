"""The client's side of the protocol, by real messages of an honest server, and of others.

What an attacker sends is in test_attacks.py.
"""

import gc
import logging
import re
import stat
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import habits
import msgspec
import numpy as np
import pytest
from cohorts import BLIND, KEYS, SHARED, Cohort, Node, code, records_of
from databases import sqlite_script, sqlite_table
from documents import TRUSTS
from flwr.app import ConfigRecord, RecordDict
from habits import EMPTY, NAMES, READ, X
from harness import watched_sums
from hypothesis import given, settings
from hypothesis import strategies as st
from switches import small_blocks

from flower_kmeans.algorithms.lloyd import GLloydAlgorithm, LloydAlgorithm
from flower_kmeans.data.domain import Box
from flower_kmeans.data.sources import as_source
from flower_kmeans.data.sql import SqlQuery
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.ledger import Ledger, MemoryChangedError, spent_epsilon
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import (
    checks,
    client,
    kinds,
    messages,
    noise,
    transcript,
)
from flower_kmeans.protocol import records as own_records
from flower_kmeans.protocol.client import Client
from flower_kmeans.protocol.kinds import USUAL, kind_names, run_kind
from flower_kmeans.protocol.messages import (
    Added,
    Answer,
    Code,
    Enrol,
    Enrolled,
    Finished,
    Refusal,
    Request,
    decode_reply,
)
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.session import ClientSession, LedgerMemory, Pairs
from flower_kmeans.protocol.shared import SharedWork
from flower_kmeans.protocol.wire import encode, encode_arrays, from_content, to_content
from flower_kmeans.secagg import primitives
from flower_kmeans.simulation.clients import Own

pytestmark = pytest.mark.claim("own-data", "under-oblivious-server-client")

NOBODY = b"\7" * 32
OBLIVIOUS = "oblivious-server"
change = msgspec.structs.replace
each_trust = pytest.mark.parametrize("trust", TRUSTS)
each_blind = pytest.mark.parametrize("trust", BLIND)
each_ledger = pytest.mark.parametrize("ledger", [False, True])
each_copy = pytest.mark.parametrize("copy", [False, True])
each_keys = pytest.mark.parametrize("keys", KEYS)


def enrol(cohort, index=0, **document):
    return cohort.send(index, Enrol(doc=encode(change(cohort.document, **document))))


def copies(node):
    return sorted(Path(node.policy.state_dir).glob("records*"))


# --------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("levels", [(), (4,)])
def test_an_opened_sum_has_one_share_of_noise_of_each_client(tmp_path, levels):
    """With a level that is reached, what it removes is not in the sum."""
    cohort = Cohort(tmp_path, levels=levels).set_up()
    context = cohort.context(1, 1, cohort.ask(0).tag)
    expected = sum(cohort.exact(i) for i in range(5))
    for i in range(5):
        if levels:  # the part that stays
            key = primitives.noise_key(cohort.session(i).secret, context)
            stream, run = noise.Stream.from_key(key), cohort.run
            expected += noise.noise_share(run.algorithm, run.plan, 1, 4, stream)
        else:
            expected += cohort.noise(i, context)
    with watched_sums() as sums:
        cohort.round(1)
    np.testing.assert_array_equal(sums[1], expected)


def test_a_committee_drawn_from_a_roster(tmp_path):
    """Whoever is outside deals to it, and only its members add."""
    cohort = Cohort(tmp_path, "clients-only", n=66, rounds=1).set_up()
    inside = cohort.committee.slots
    assert len(inside) == 64
    assert len(cohort.frame.claims) == 64 * 72
    outside = min(set(range(66)) - set(inside))
    answers = cohort.deal(who=[*range(4), outside])
    assert all(
        len(answer.sealed) % 64 == 0 < len(answer.sealed) for answer in answers.values()
    )
    request = cohort.add_of(inside[0], answers)
    assert (
        code(cohort.send(outside, change(request, **cohort.at(outside, 1))))
        == Code.POLICY
    )


def test_another_process_in_between_is_another_try(tmp_path, monkeypatch):
    cohort = Cohort(tmp_path, ledger=True).set_up()
    real, failures = LedgerMemory.answer, iter(range(3))

    def answer(self, *args):
        for _ in failures:
            raise MemoryChangedError("Another process was faster.")
        real(self, *args)

    monkeypatch.setattr(LedgerMemory, "answer", answer)
    assert isinstance(cohort.ask(0), Answer)
    failures = iter(range(20))
    assert code(cohort.ask(0, t=1, attempt=2)) == Code.INTERNAL


# ----------------------------------------------------------------------------- refusals


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_get_a_code(data):
    node = Node(ClientPolicy(), records_of(0))
    assert isinstance(decode_reply(node.answer(data)), Refusal)


@pytest.mark.claim("threat-model", "39")
def test_any_content_gets_a_code(tmp_path):
    for fields, expected in (
        ({"v": 3}, Code.BAD_MESSAGE),
        ({"v": 3, "n": 2**30}, Code.BAD_MESSAGE),
        ({"v": 2, "m": b""}, Code.VERSION),
    ):
        content = RecordDict({"kmeans": ConfigRecord(fields)})
        reply = from_content(Node(ClientPolicy(), None).client.handle(content))
        assert code(decode_reply(reply)) == expected
    cohort = Cohort(tmp_path)
    node, request = cohort.nodes[0], encode(Enrol(doc=cohort.run.data))
    assert from_content(node.client.handle(to_content(request))) == node.answer(request)


def test_every_request_has_a_handler():
    core = set(messages.REQUESTS.kinds.values())
    handled = set(run_kind(USUAL).handlers)
    assert handled == core - {messages.Abort}  # which is answered without a run
    others = [run_kind(name) for name in kind_names() if name != USUAL]
    for kind in others:
        own = {each for each in kind.messages if issubclass(each, Request)}
        assert set(kind.handlers) == {Enrol, *own}


def test_each_kind_has_the_tags_that_it_was_registered_with():
    for name in kind_names():
        kind = run_kind(name)
        assert kind.body.__struct_config__.tag == name
        tags = [each.__struct_config__.tag for each in kind.messages]
        assert tags == list(kinds._REGISTERED[name].tags)
        assert not {*tags} & {*messages.REQUESTS.kinds, *messages.REPLIES.kinds}


def test_a_long_document_is_refused_and_not_kept():
    tracemalloc.start()
    reply = Node(ClientPolicy(), None).send(Enrol(doc=bytes(2**20 + 1)))
    gc.collect()
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert code(reply) == Code.BAD_MESSAGE
    assert left < 2**20


def test_a_document_that_contradicts_itself(tmp_path):
    for changes in ({"share_variance": "1/3"}, {"sampler": "other"}):
        assert code(enrol(Cohort(tmp_path), **changes)) == Code.POLICY
        tmp_path /= "next"


@pytest.mark.claim("guarantees", "7")
@pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])
def test_whatever_load_data_raises_is_data(tmp_path, trust):
    """A client that commits to its records loads them when it enrols, others when they answer."""
    cohort = Cohort(tmp_path, trust, n=6).set_up(range(1, 6))
    panic = type("Panic", (BaseException,), {})
    for error in (ValueError("x"), SystemExit(3), KeyboardInterrupt(), panic()):
        cohort.nodes[0].records = mock.Mock(side_effect=error)
        if trust == "oblivious-server":
            assert code(enrol(cohort)) == Code.DATA
        else:
            cohort.set_up([0])
            assert code(cohort.ask(0)) == Code.DATA


@pytest.mark.claim("guarantees", "7")
def test_what_is_no_table_is_data(tmp_path):
    cohort = Cohort(tmp_path).set_up()
    for records in (None, "text", np.zeros((3, 5)), {"a": 1}, object()):
        cohort.nodes[0].records = records
        assert code(cohort.ask(0)) == Code.DATA
    cohort.nodes[0].records = records_of(0)
    assert isinstance(cohort.ask(0), Answer)


def named_algorithm(trust):
    """Return an algorithm on the records of habits, whose columns have names."""
    kind = LloydAlgorithm if trust == "plain" else GLloydAlgorithm
    budget = PrivacyBudget(None if trust == "plain" else 1.0)
    box = Box([0.0, 0.0], [8.0, 8.0], columns=list(NAMES))
    return kind.planned(2, box, budget, n_records=1000, n_rounds=3)


def answer_of(cohort, records):
    """Return the first client's answer, made of these records by a client without a memory."""
    cohort.nodes[0].restart()
    cohort.nodes[0].records = (lambda: records) if callable(records) else records
    return cohort.set_up([0]).ask(0)


@pytest.mark.claim("own-data", "refused-type-one-sentence")
def test_tables_of_all_kinds_are_the_same_records_at_a_node(tmp_path):
    """In this trust model the words of an answer are a client's exact sums."""
    cohort = Cohort(tmp_path, "plain", algorithm=named_algorithm("plain")).set_up()
    all_of, nothing = answer_of(cohort, X).words, answer_of(cohort, X[:0]).words
    assert all_of != nothing
    for habit, make in READ.items():
        assert answer_of(cohort, make()).words == all_of, habit
    for habit, make in EMPTY.items():
        assert answer_of(cohort, make()).words == nothing, habit


@pytest.mark.claim("own-data", "refused-type-one-sentence")
@pytest.mark.parametrize("trust", ["distributed-noise", "oblivious-server"])
def test_other_types_are_refused_by_a_node_which_says_why_and_spends_nothing(
    tmp_path, trust, caplog
):
    """A client that commits to its records refuses to enrol; others refuse to answer."""
    algorithm = named_algorithm(trust)
    cohort = Cohort(tmp_path, trust, ledger=True, algorithm=algorithm).set_up(
        range(1, 5)
    )
    node = cohort.nodes[0]
    for habit, (make, message) in habits.REFUSED.items():
        records = make()
        node.records = (
            (lambda records=records: records) if callable(records) else records
        )
        caplog.clear()
        reply = enrol(cohort)
        if trust != "oblivious-server":
            cohort.take(0, reply)
            reply = cohort.ask(0)
        assert code(reply) == Code.DATA, habit
        assert re.search(message, caplog.text), habit
        assert spent_epsilon(node.policy.state_dir, 1e-5) == 0, habit
    node.records = X
    assert isinstance(enrol(cohort), Enrolled)
    if trust != "oblivious-server":
        assert isinstance(cohort.ask(0), Answer)
        assert spent_epsilon(node.policy.state_dir, 1e-5) > 0


def test_a_fault_of_our_own_is_internal(tmp_path, monkeypatch):
    cohort = Cohort(tmp_path).set_up()
    monkeypatch.setattr(noise, "client_noise", lambda *_: 1 // 0)
    reply = cohort.ask(0)
    assert reply == Refusal(code=Code.INTERNAL, doc_hash=cohort.doc_hash)


def test_keys_that_cannot_be_read(tmp_path):
    cohort = Cohort(tmp_path).set_up()
    key = Path(cohort.nodes[0].policy.member_key_file)
    key.chmod(0o644)
    assert code(cohort.ask(0)) == Code.KEY
    Path(cohort.nodes[1].policy.roster_file).write_text("not a roster")
    assert code(cohort.ask(1)) == Code.KEY
    assert cohort.nodes[0].n_loads == cohort.nodes[1].n_loads == 0


def test_a_client_that_knows_nothing_needs_the_document(tmp_path):
    cohort = Cohort(tmp_path, "clients-only").set_up()
    node = cohort.nodes[0]
    node.restart()
    assert code(cohort.send(0, cohort.ask_of(0, doc=b""))) == Code.NEED
    assert code(cohort.send(0, cohort.finish_of(0))) == Code.NEED
    assert code(cohort.send(0, cohort.keys_of())) == Code.STALE
    assert node.session(cohort.doc_hash) is None


@each_trust
def test_a_result_exactly_where_the_server_sees_the_sums(tmp_path, trust):
    cohort = Cohort(tmp_path, trust).set_up()
    far = {"centroids": np.full((2, 2), 1.5), "counts": np.zeros(2)}
    results = [encode_arrays({"centroids": np.zeros((2, 2))}), encode_arrays(far)]
    for result in results if trust in BLIND else (None, *results):
        assert (
            code(cohort.send(0, cohort.finish_of(0, result=result))) == Code.BAD_MESSAGE
        )


def test_sizes_of_messages(tmp_path):
    cohort = Cohort(tmp_path).set_up()
    claims = cohort.frame.claims
    for wrong in (b"", claims[:-1], claims[:-72], claims + claims[:72]):
        assert code(cohort.ask(0, claims=wrong)) == Code.KEY
    answers = cohort.deal()
    assert code(cohort.add(0, answers, claims=claims)) == Code.BAD_MESSAGE
    assert isinstance(cohort.add(0, answers), messages.Added)
    relayed = Cohort(tmp_path / "relayed", keys="relayed").set_up()
    assert code(relayed.ask(0, claims=claims)) == Code.KEY
    assert code(relayed.deal(who=[0], n_slots=2**20)[0]) == Code.BAD_MESSAGE
    masks = Cohort(tmp_path / "masks", "oblivious-server").set_up()
    assert code(masks.ask(0, claims=masks.frame.claims)) == Code.BAD_MESSAGE


# ---------------------------------------------------------------------- order of checks


def _set(cohort, **fields):
    cohort.nodes[0].save(cohort.doc_hash, change(cohort.session(0), **fields))


def _tighten(node, **limits):
    node.policy = replace(node.policy, **limits)


DEFECTS = [
    ("over", Code.STALE, lambda c: _set(c, over=1)),
    ("policy", Code.POLICY, lambda c: _tighten(c.nodes[0], max_rounds=1)),
    ("leaf", Code.RENEW, lambda c: {"root": NOBODY}),
    ("one slot", Code.CONFLICT, lambda c: _set(c, slot=3)),
    ("committee", Code.BAD_MESSAGE, lambda c: {"committee": b"short"}),
    (
        "group key",
        Code.NEED,
        lambda c: (_set(c, group_secret=b"", group_key=b""), {"wraps": ()})[1],
    ),
    (
        "entries",
        Code.CONFLICT,
        lambda c: {"entries": (change(c.entries[0], tag=NOBODY),)},
    ),
]
"""Defects of one ask for round 2 of a blind run, in the order in which a client meets them."""


@each_blind
@pytest.mark.parametrize(
    ("first", "second"),
    [(i, j) for i in range(len(DEFECTS)) for j in range(i, len(DEFECTS))],
    ids=lambda i: DEFECTS[i][0],
)
def test_the_first_defect_counts(tmp_path, trust, first, second):
    cohort = Cohort(tmp_path, trust).set_up()
    cohort.round(1)
    changes = {}
    for defect in {second, first}:
        changes |= DEFECTS[defect][2](cohort) or {}
    assert code(cohort.ask(0, t=2, **changes)) == DEFECTS[first][1]
    assert cohort.nodes[0].n_loads == 1


# -------------------------------------------------------------------- sessions, records


@pytest.mark.claim("own-data", "under-oblivious-server-client")
@each_ledger
def test_a_client_that_commits_to_its_records_reads_them_once(tmp_path, ledger):
    """Whatever happens to the records: the run goes on with those of its beginning."""
    cohort = Cohort(tmp_path, "oblivious-server", ledger=ledger).set_up()
    node = cohort.nodes[0]
    first = cohort.ask(0)
    node.records = records_of(99)
    assert enrol(cohort).commitment == cohort.enrolled[0].public.commitment
    assert cohort.ask(0) == first
    for t in (1, 2, 3):
        assert cohort.round(t) == [0, 1, 2, 3, 4]
        node.records = None
    cohort.finish()
    assert not cohort.refusals
    assert node.n_loads == 1
    assert cohort.session(0) == ClientSession(over=1)
    left = (
        copies(node)
        if ledger
        else node.state[f"kmeans.{cohort.doc_hash.hex()}"].values()
    )
    assert len(b"".join(left)) < 200


def test_a_copy_of_records_that_is_lost_or_damaged_is_made_again(tmp_path):
    cohort = Cohort(tmp_path, "oblivious-server", ledger=True).set_up()
    node = cohort.nodes[0]
    (path,) = copies(node)
    copy = path.read_bytes()
    for number, spoil in enumerate(
        (path.unlink, lambda: path.write_bytes(copy[:100])), 2
    ):
        spoil()
        assert isinstance(cohort.ask(0), Answer)
        assert path.read_bytes() == copy
        assert node.n_loads == number
    path.unlink()
    node.records = records_of(99)
    assert code(cohort.ask(0)) == Code.RENEW
    assert copies(node) != [path]


@pytest.mark.parametrize("times", [1, 99])
def test_a_copy_that_vanishes_while_it_is_read_is_made_again(
    tmp_path, monkeypatch, times
):
    """As when another process of the node ends the run; if it goes on, the message fails."""
    cohort = Cohort(tmp_path, "oblivious-server", ledger=True).set_up()
    node, real, left = cohort.nodes[0], own_records.words_of_rows, [None] * times

    def words_of_rows(*args):
        if left:
            left.pop()
            (path,) = copies(node)
            path.unlink()
        return real(*args)

    monkeypatch.setattr(own_records, "words_of_rows", words_of_rows)
    reply = cohort.ask(0)
    if times == 1:
        assert isinstance(reply, Answer)
        assert (len(copies(node)), node.n_loads) == (1, 2)
    else:
        assert code(reply) == Code.INTERNAL


@each_copy
@each_ledger
def test_with_a_copy_records_are_hashed_once_in_a_run(
    tmp_path, monkeypatch, ledger, copy
):
    """Other software is another commitment: its vector may differ, under the same mask."""
    hashed, data_hash = [], transcript.DataHash
    monkeypatch.setattr(
        transcript, "DataHash", lambda *shape: hashed.append(1) or data_hash(*shape)
    )
    policy = {"copy_records": copy}
    cohort = Cohort(
        tmp_path, "oblivious-server", ledger=ledger, rounds=3, policy=policy
    ).set_up()
    before = len(hashed)
    for t in (1, 2):
        assert len(cohort.round(t)) == 5
    assert len(hashed) - before == (0 if copy else 2 * 5)  # in the pass that answers
    assert cohort.nodes[1].n_loads == (1 if copy else 4)  # once per message at most
    monkeypatch.setattr(own_records, "SOFTWARE", "flower-kmeans 9.9")
    assert code(cohort.ask(0, t=3)) == Code.RENEW


def source_of(kind, path, rows):
    """Return records of a kind that are no array, from a file or a folder."""
    if kind == "map":
        np.save(path / "x.npy", rows)
        return np.load(path / "x.npy", mmap_mode="r")
    if kind == "chunks":
        return lambda: iter(np.array_split(rows, 5))
    dataset, parquet = map(pytest.importorskip, ("pyarrow.dataset", "pyarrow.parquet"))
    table = pytest.importorskip("pyarrow").table(dict(zip("ab", rows.T, strict=True)))
    parquet.write_table(table, path / "x.parquet")
    return (dataset.dataset if kind == "data set" else parquet.ParquetFile)(
        path / "x.parquet"
    )


class Loads:
    """A user's function that opens records anew at each call."""

    def __init__(self, kind, path, rows):
        path.mkdir()
        self.kind, self.path, self.rows = kind, path, rows

    def __call__(self):
        return source_of(self.kind, self.path, self.rows)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("kind", ["map", "chunks", "data set", "ParquetFile"])
@pytest.mark.parametrize(
    ("trust", "ledger", "copy"),
    [
        *((trust, True, True) for trust in TRUSTS),
        (OBLIVIOUS, False, True),
        (OBLIVIOUS, True, False),
    ],
)
def test_a_run_is_the_same_wherever_records_come_from(
    tmp_path, monkeypatch, trust, ledger, copy, kind
):
    small_blocks(monkeypatch, 2, 7)
    policy = {"copy_records": copy}
    cohort = Cohort(tmp_path, trust, ledger=ledger, policy=policy)
    digests = [transcript.data_digest(node.records) for node in cohort.nodes]
    for i, node in enumerate(cohort.nodes[:2]):
        bad = np.insert(node.records, [0, 9, len(node.records)], np.nan, axis=0)
        node.records = Loads(kind, tmp_path / f"data-{i}", bad)
    cohort.set_up()
    for t in (1, 2, 3):
        assert cohort.round(t) == [0, 1, 2, 3, 4]
    if trust == "oblivious-server":
        assert [cohort.session(i).digest for i in range(5)] == digests
        assert bool(ledger and copies(cohort.nodes[0])) == bool(ledger and copy)
    cohort.finish()
    assert not cohort.refusals


@pytest.mark.claim("own-data", "under-oblivious-server-client")
@each_ledger
def test_records_that_change_during_the_pass_that_answers_renew_the_session(
    tmp_path, ledger
):
    """Without a copy: what a vector was computed from is what its commitment says."""
    policy = {"copy_records": False}
    cohort = Cohort(tmp_path, "oblivious-server", ledger=ledger, policy=policy).set_up()
    node, rows = cohort.nodes[0], cohort.nodes[0].records
    passes = []

    def chunks():
        passes.append(1)
        yield rows[:20]
        yield rows[20:] if len(passes) > 1 else rows[20:] * 0.5

    node.records = lambda: chunks
    digest = cohort.session(0).digest
    assert code(cohort.ask(0)) == Code.RENEW
    assert len(passes) == 3  # the answer's, a count and a hash
    assert cohort.session(0).digest == digest
    assert isinstance(cohort.ask(0), Answer)
    assert len(passes) == 4


def test_records_that_change_while_they_are_copied_are_refused(tmp_path):
    cohort = Cohort(tmp_path, "oblivious-server", ledger=True)
    node, passes = cohort.nodes[0], []

    def chunks():
        passes.append(1)
        return [np.full((3, 2), len(passes) / 10)]

    node.records = lambda: chunks
    assert code(enrol(cohort)) == Code.DATA
    assert not copies(node)


@pytest.mark.claim("own-data", "maps-data-sets-whose")
@each_trust
@pytest.mark.parametrize("error", [OSError("7.891"), KeyError(7.891), None])
def test_chunks_that_fail_are_data_and_charge_nothing(tmp_path, trust, error):
    cohort = Cohort(tmp_path, trust, ledger=True)
    node, commits = cohort.nodes[0], trust == "oblivious-server"
    if not commits:
        cohort.set_up()

    def chunks():
        yield records_of(0)
        if error is not None:
            raise error
        yield np.zeros((2, 3))

    node.records = lambda: chunks
    reply = enrol(cohort) if commits else cohort.ask(0)
    assert reply == Refusal(code=Code.DATA, doc_hash=cohort.doc_hash)
    session = node.session(cohort.doc_hash)
    assert session is None if commits else not session.answered


# ------------------------------------------------------------------------- live records


def database(node, path):
    """Let a node's records be a query of a database that has them, and a null record."""
    uri = sqlite_table(path, ["x", "y"], [*node.records.tolist(), (None, 0.5)])
    query = SqlQuery(uri, "SELECT * FROM t ORDER BY x")
    node.records = lambda: query
    return query


@pytest.mark.claim("deploy", "records-database-copied-under")
@pytest.mark.default_cases("values")
@each_ledger
@each_trust
def test_a_run_reads_a_database_once(tmp_path, trust, ledger, caplog):
    """Its rounds answer from a private copy, whatever happens to it, and the copy ends with it."""
    cohort = Cohort(tmp_path, trust, ledger=ledger)
    node, rows = cohort.nodes[0], cohort.nodes[0].records
    database(node, tmp_path / "x.db")
    cohort.set_up()
    assert cohort.round(1) == [0, 1, 2, 3, 4]
    (tmp_path / "x.db").unlink()
    if ledger:
        (path,) = copies(node)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        np.testing.assert_array_equal(np.load(path), rows[rows[:, 0].argsort()])
    for t in (2, 3):
        assert cohort.round(t) == [0, 1, 2, 3, 4]
    assert node.n_loads == 1
    cohort.finish()
    assert not cohort.refusals
    left = (
        copies(node)
        if ledger
        else node.state[f"kmeans.{cohort.doc_hash.hex()}"].values()
    )
    assert len(b"".join(left)) < 200
    null = [
        record.getMessage()
        for record in caplog.records
        if "malformed" in record.getMessage()
    ]
    assert null == ["1 records are malformed or not finite; each counts as none."]


@pytest.mark.claim("deploy", "records-database-copied-under")
@each_ledger
def test_a_database_that_changes_between_rounds_changes_no_result(tmp_path, ledger):
    def centroids(name, change, records=None):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "x.db"
        cohort = Cohort(tmp_path / name, "plain", ledger=ledger)
        node = cohort.nodes[0]
        query = database(node, path)
        if records is not None:
            node.records = lambda: partial(records, query)
        cohort.set_up()
        for t in (1, 2, 3):
            assert cohort.round(t) == [0, 1, 2, 3, 4]
            sqlite_script(path, change)
        cohort.finish()
        return node.results[0].centroids

    def anew(query):
        return (np.column_stack(list(block.values())) for block in query.blocks())

    change = "UPDATE t SET x = 1, y = 0"
    expected = centroids("same", "SELECT 1")
    np.testing.assert_array_equal(centroids("changed", change), expected)
    # A function that reads the database anew finds other records.
    np.testing.assert_array_equal(centroids("same anew", "SELECT 1", anew), expected)
    assert not np.array_equal(centroids("changed anew", change, anew), expected)


@pytest.mark.claim("deploy", "records-database-copied-under")
@pytest.mark.default_cases("values")
@each_ledger
@each_trust
def test_a_database_is_refused_where_records_may_not_be_copied(
    tmp_path, trust, ledger, caplog
):
    """Before anything is read, sent or charged."""
    cohort = Cohort(tmp_path, trust, ledger=ledger, policy={"copy_records": False})
    node = cohort.nodes[0]
    database(node, tmp_path / "x.db")
    cohort.set_up()
    with mock.patch.object(
        SqlQuery, "blocks", side_effect=AssertionError("It was read.")
    ):
        if trust == OBLIVIOUS:  # it commits to its records when it enrols
            assert 0 not in cohort.enrolled
        else:
            assert code(cohort.ask(0)) == Code.POLICY
    assert {(i, reply.code) for i, reply in cohort.refusals} == {(0, Code.POLICY)}
    assert "copy_records = true in the policy" in caplog.text
    if ledger:
        assert not copies(node)
        with Ledger(node.policy.state_dir) as opened:
            assert opened.last_answer(cohort.doc_hash) is None


@pytest.mark.claim("deploy", "records-database-copied-under")
@pytest.mark.parametrize("trust", ["distributed-noise", OBLIVIOUS])
def test_a_copy_of_a_database_that_is_lost_or_damaged_is_made_anew(tmp_path, trust):
    """A run that commits to records shows whether they changed, any other one does not."""
    cohort = Cohort(tmp_path, trust, ledger=True)
    node = cohort.nodes[0]
    query = database(node, tmp_path / "x.db")
    cohort.set_up()
    assert cohort.round(1) == [0, 1, 2, 3, 4]
    (path,) = copies(node)
    before = path.read_bytes()
    path.write_bytes(before[:100])
    assert cohort.round(2) == [0, 1, 2, 3, 4]
    assert path.read_bytes() == before
    path.unlink()
    sqlite_script(tmp_path / "x.db", "DELETE FROM t WHERE x < 0.5")
    reply = cohort.ask(0, t=3)
    (path,) = copies(node)
    rows = np.load(path)
    assert len(rows) == len(as_source(query, 2).loaded()) < 40
    if trust == OBLIVIOUS:
        assert code(reply) == Code.RENEW
    else:
        assert isinstance(reply, Answer)


def test_a_database_without_records_is_read_once_too(tmp_path):
    cohort = Cohort(tmp_path, ledger=True)
    node = cohort.nodes[0]
    node.records = np.empty((0, 2))
    database(node, tmp_path / "x.db")
    cohort.set_up()
    for t in (1, 2):
        assert cohort.round(t) == [0, 1, 2, 3, 4]
        sqlite_script(tmp_path / "x.db", "INSERT INTO t VALUES (0.5, 0.5)")
    assert node.n_loads == 1


# ------------------------------------------------------------------------------ keys


def test_a_key_distributor_serves_no_more_peers_than_a_cohort_has(
    tmp_path, monkeypatch
):
    cohort = Cohort(tmp_path, "oblivious-server", "relayed", n=4).set_up()
    request = cohort.keys_of()
    others = [
        messages.Peer(i, primitives.public_key(token(32))).row for i in range(4, 7)
    ]
    more = change(request, peers=request.peers + b"".join(others))
    monkeypatch.setattr(checks, "MAX_SLOTS", 6)
    assert isinstance(cohort.send(0, request), messages.Wrapped)
    assert code(cohort.send(0, more)) == Code.POLICY
    assert code(cohort.ask(0, peers=more.peers)) == Code.POLICY
    monkeypatch.setattr(checks, "MAX_SLOTS", 7)
    assert isinstance(cohort.send(0, more), messages.Wrapped)


def other_key(row, key):
    return row[:4] + key + row[36:]


@each_keys
@each_blind
def test_envelopes_that_do_not_open(tmp_path, trust, keys):
    cohort = Cohort(tmp_path, trust, keys).set_up()
    if trust in SHARED:
        cohort.deal(who=[1])
    (good,) = cohort.wraps(0)
    for wrap in (
        change(good, envelope=cohort.wraps(2)[0].envelope),
        change(good, distributor=other_key(good.distributor, bytes(32))),
        change(good, distributor=other_key(good.distributor, NOBODY)),
    ):
        reply = cohort.ask(0, wraps=(wrap,))
        assert reply == Refusal(code=Code.KEY, doc_hash=cohort.doc_hash)
    assert isinstance(cohort.ask(0), Answer)


def test_a_secret_without_the_key_made_of_it_is_no_group_key(tmp_path):
    cohort = Cohort(tmp_path, "clients-only").set_up()
    cohort.round(1)
    assert isinstance(cohort.ask(0, 2), Answer)
    _set(cohort, group_key=b"", query_key=b"")
    assert cohort.session(0).group_secret
    assert code(cohort.ask(0, 2, 2, wraps=())) == Code.NEED


def test_only_round_one_of_clients_only_needs_no_group_key(tmp_path):
    """Anybody could seal sum-shares under the key of nothing."""
    cohort = Cohort(tmp_path, "clients-only").set_up()
    answers = cohort.deal(peers=b"")
    assert all(isinstance(answer, Answer) for answer in answers.values())
    assert code(cohort.add(0, answers)) == Code.NEED
    cohort.round(1)
    cohort.nodes[0].restart()
    cohort.take(0, cohort.ask(0, entries=()))
    reply = cohort.ask(0, wraps=(), entries=cohort.entries)
    assert code(reply) == Code.NEED
    assert cohort.session(0).head == 0


# ------------------------------------------------------------------------------ entries


REFUSED = [
    ({"t": 3}, Code.NEED),
    ({"attempt": 4}, Code.BAD_MESSAGE),
    ({"survivors": b"\x1f\x00"}, Code.BAD_MESSAGE),
    ({"survivors": b"\x3f"}, Code.BAD_MESSAGE),
    ({"survivors": b"\x03"}, Code.POLICY),
    ({"tag": NOBODY}, Code.CONFLICT),
    ({"survivors": b"\x0f"}, Code.GARBAGE),
    ({"root": NOBODY}, Code.GARBAGE),
    ({"committee": NOBODY}, Code.GARBAGE),
]


@pytest.mark.claim("protocol", "refusal-carries-code-alone")
@each_blind
def test_entries_that_are_refused_leave_the_head_where_it_is(tmp_path, trust):
    cohort = Cohort(tmp_path, trust, rounds=4).set_up()
    for t in (1, 2):
        cohort.round(t)
    two = cohort.entries[1]
    more = [
        ({"words": b""}, Code.GARBAGE),
        ({"words": two.words + bytes(8)}, Code.GARBAGE),
    ]
    if trust == "clients-only":
        shares = messages.read_sum_shares(two)
        moved = {position + 1: share for position, share in shares.items()}
        three = {position: shares[position] for position in range(3)}
        wrong = [
            (b"", two.shares),
            (two.positions, b""),
            (bytes(8), b""),
            (bytes(8), two.shares),
        ]
        wrong += [(two.positions[:1], two.shares), (two.positions, two.shares[1:])]
        more = [({"packing": packing}, Code.BAD_MESSAGE) for packing in (0, 6)]
        more += [({"words": b"0"}, Code.BAD_MESSAGE), ({"packing": 2}, Code.GARBAGE)]
        sums = [(*messages.write_sum_shares(three), Code.GARBAGE)]
        sums += [
            (*pair, Code.BAD_MESSAGE)
            for pair in (*wrong, messages.write_sum_shares(moved))
        ]
        more += [
            ({"positions": bits, "shares": shares}, end) for bits, shares, end in sums
        ]
    else:
        more += [({name: b"0"}, Code.BAD_MESSAGE) for name in ("positions", "shares")]
    session = cohort.session(0)
    assert session.head == 1
    for changes, expected in REFUSED + more:
        reply = cohort.ask(0, t=3, entries=(change(two, **changes),))
        assert reply == Refusal(code=expected, doc_hash=cohort.doc_hash), changes
        assert cohort.session(0) == session
    assert isinstance(cohort.ask(0, t=3), Answer)
    # before the last entry
    assert code(cohort.send(0, cohort.finish_of(0))) == Code.NEED


def test_shares_that_do_not_open_are_left_out_of_an_entry(tmp_path):
    cohort = Cohort(tmp_path, "clients-only", n=8).set_up()
    cohort.round(1)
    entry = cohort.entries[0]
    size = len(entry.shares) // 8
    entry = change(entry, shares=entry.shares[:-size] + bytes(size))
    assert isinstance(cohort.ask(0, t=2, entries=(entry,)), Answer)


def test_an_entry_is_opened_once_for_all_clients_of_a_process(tmp_path, monkeypatch):
    cohort = Cohort(tmp_path, "clients-only").set_up()
    cohort.round(1)
    kind = type(cohort.run.algorithm)
    update = mock.Mock(side_effect=partial(kind.update, cohort.run.algorithm))
    monkeypatch.setattr(kind, "update", update)
    cohort.deal(t=2)
    assert update.call_count == 1


@pytest.mark.parametrize(
    "changes",
    [{"h": NOBODY}, {"group_key": b"other"}, {"state": b"other"}, {}],
)
def test_states_are_shared_by_what_they_follow_from(changes, tmp_path):
    """A sum after other sums, or under another key, is opened by itself."""
    cohort = Cohort(tmp_path, "clients-only").set_up()
    cohort.round(1)
    (entry,) = cohort.entries
    node = cohort.nodes[0]
    node.shared = SharedWork()
    names = []
    node.shared.state = lambda name, follow: names.append(name) or b"state"

    def follow(entry, **fields):
        request = cohort.ask_of(0, t=2)
        conversation = client.Conversation(node.client, None, request)
        conversation.run = cohort.run
        conversation.session = change(node.session(cohort.doc_hash), **fields)
        conversation._state_after(entry, np.ones(5, bool), NOBODY)

    follow(entry)
    follow(entry)
    other = entry if changes else change(entry, attempt=2)
    follow(other, **changes)
    assert names[0] == names[1] != names[2]


# --------------------------------------------------------------------------- sum-shares


def test_sums_to_add(tmp_path):
    cohort = Cohort(tmp_path, n=6).set_up()
    good = cohort.add_of(0, cohort.deal())
    for changes in (
        {"survivors": b"\x3f\x00"},
        {"survivors": b"\x1f"},
        {"sealed": good.sealed[1:]},
        {"sealed": good.sealed[len(good.sealed) // 6 :]},
        {"sealed": good.sealed + bytes(6)},  # equal parts of another length
        {"public_keys": good.public_keys[:-1]},
        {"h": NOBODY},
    ):
        assert code(cohort.send(0, change(good, **changes))) == Code.BAD_MESSAGE, (
            changes
        )
    assert code(cohort.send(0, change(good, t=9))) == Code.POLICY
    assert isinstance(cohort.send(0, good), Added)


# ------------------------------------------------------------------------------ the end


@each_trust
def test_on_result_is_called_again_if_it_failed(tmp_path, trust):
    cohort = Cohort(tmp_path, trust).set_up()
    for t in (1, 2, 3):
        cohort.round(t)
    node, keep = (
        cohort.nodes[0],
        mock.Mock(side_effect=[ValueError("x"), SystemExit(1), None]),
    )
    for expected in (1, 2, 3, 3, 3):
        request = encode(cohort.finish_of(0))
        reply = Client(node.policy, node.state, node.load, keep).answer_bytes(request)
        assert decode_reply(reply) == Finished(doc_hash=cohort.doc_hash)
        assert keep.call_count == expected


def test_a_result_that_nobody_keeps(tmp_path, caplog):
    cohort = Cohort(tmp_path, "plain").set_up()
    node = cohort.nodes[0]
    good = encode_arrays({"centroids": np.full((2, 2), 0.5), "counts": np.zeros(2)})
    request = encode(cohort.finish_of(0, result=good))
    reply = Client(node.policy, node.state, node.load).answer_bytes(request)
    assert decode_reply(reply) == Finished(doc_hash=cohort.doc_hash)
    assert "no on_result keeps it" in caplog.text


def test_no_repr_and_no_log_shows_a_secret_or_a_record(tmp_path, caplog):
    cohort = Cohort(tmp_path, "clients-only").set_up()
    node = cohort.nodes[0]
    node.records = [[0.123456, 0.5], ["Jane Doe", 0.5]]
    with caplog.at_level(logging.DEBUG):
        cohort.deal()
        cohort.deal(who=[0], root=NOBODY)
    session, identity = cohort.session(0), node.policy.read_identity()
    found = Pairs(cohort.doc_hash, session, identity)
    own = Own(node.client.load_records(), session.secret)  # of a simulation
    kept = session, found, node.client, identity, node.policy, own
    shown = caplog.text + "".join(map(repr, kept))
    for secret in (session.secret, session.ephemeral, identity.seed):
        assert secret.hex() not in shown
        assert repr(secret) not in shown
    assert "0.123456" not in shown
    assert "Jane" not in shown
    assert "1 records are malformed" in caplog.text
    assert "Refused 'ask' of run" in caplog.text
    assert "(RENEW)" in caplog.text


# ----------------------------------------------------------------------- values outside


FAR = 3.0 * records_of(0) - 1.0  # of which most are outside of the box
MOVED = np.count_nonzero((FAR < 0) | (FAR > 1), axis=0)


def kept_in(replies, request, reply):
    replies.append(reply)
    return reply


def moved_lines(caplog):
    return [
        each.getMessage()
        for each in caplog.records
        if each.name == "flower_kmeans.data"
    ]


@pytest.mark.claim("deploy", "client-how-many-values")
@each_trust
def test_values_outside_are_logged_once_and_change_no_reply(
    tmp_path, trust, caplog, monkeypatch
):
    cohort = Cohort(tmp_path, trust)
    node = cohort.nodes[0]
    node.records = FAR
    cohort.set_up()
    before = deepcopy(node.state)
    monkeypatch.setattr(client, "token", lambda n: b"\5" * n)  # of a key distributor

    def reply(attempt=1):
        node.state = deepcopy(before)
        return encode(cohort.ask(0, t=1, attempt=attempt))

    counted = [reply(), reply(), reply(attempt=2)]
    assert all(isinstance(decode_reply(each), Answer) for each in counted)
    most_first = np.argsort(-MOVED)
    found = ", ".join(f"{MOVED[i]} of 'column {i}'" for i in most_first)
    run = cohort.doc_hash.hex()[:8]
    line = f"Run {run}: values moved to the bounds, of 40 records: {found}."
    # Each time but for the first, the client had lost that it had answered.
    assert set(moved_lines(caplog)) == {line}
    monkeypatch.setattr(
        own_records, "_counted", lambda part, domain, block: part(block)
    )
    monkeypatch.setattr(
        own_records, "_nobody_outside", lambda domain: np.empty(0, np.int64)
    )
    monkeypatch.setattr(own_records, "_log_outside", lambda *_: None)
    assert [reply(), reply(), reply(attempt=2)] == counted
    if not cohort.trust.commits_to_records:  # which shows that records changed
        node.records = FAR.clip(0, 1)
        assert reply() == counted[0]


@each_trust
def test_values_outside_are_logged_once_for_all_attempts_at_a_round(
    tmp_path, trust, caplog
):
    cohort = Cohort(tmp_path, trust)
    cohort.nodes[0].records = FAR
    cohort.set_up()
    for attempt in (1, 2):
        assert isinstance(cohort.ask(0, t=1, attempt=attempt), Answer)
    assert len(moved_lines(caplog)) == 1
    cohort.round(1)
    cohort.round(2)
    assert len(moved_lines(caplog)) == 1


@pytest.mark.claim("deploy", "client-how-many-values")
@each_trust
def test_values_outside_are_in_no_message(tmp_path, trust, caplog):
    """Also without any, replies are as long; and whoever has none outside logs nothing."""
    lengths = []
    for records in (FAR, FAR.clip(0, 1)):
        cohort = Cohort(tmp_path / str(len(lengths)), trust)
        cohort.nodes[0].records = records
        replies = []
        for node in cohort.nodes:
            node.change = partial(kept_in, replies)
        cohort.play()
        assert not cohort.refusals
        lengths.append([len(encode(each)) for each in replies])
    assert lengths[0] == lengths[1]
    assert len(moved_lines(caplog)) == 1


# ------------------------------------------------------------------------- many at once


def test_requests_at_the_same_time_get_one_answer_and_one_vote(tmp_path):
    """A node starts a process for each message: whatever overlaps, a round has one of each."""
    cohort = Cohort(tmp_path, n=6, ledger=True).set_up()
    answers = cohort.deal(who=[1, 2, 3, 4, 5])
    node = cohort.nodes[0]
    other = encode_arrays({"centroids": np.ones((2, 2), dtype=np.int64)})
    four = {i: answers[i] for i in (1, 2, 3, 4)}
    for kind, requests in (
        (Answer, (cohort.ask_of(0), cohort.ask_of(0, query=other))),
        (Added, (cohort.add_of(0, answers), cohort.add_of(0, four))),
    ):
        with ThreadPoolExecutor(8) as pool:
            replies = set(pool.map(node.answer, map(encode, requests * 4)))
        sent = {data for data in replies if isinstance(decode_reply(data), kind)}
        assert len(sent) == 1
        assert {code(decode_reply(data)) for data in replies - sent} == {Code.CONFLICT}


def test_enrolments_at_the_same_time_begin_one_session(tmp_path):
    cohort = Cohort(tmp_path, "oblivious-server", ledger=True)
    node, request = cohort.nodes[0], encode(Enrol(doc=cohort.run.data))
    with ThreadPoolExecutor(8) as pool:
        (reply,) = set(pool.map(node.answer, [request] * 8))
    assert code(decode_reply(reply)) is None
    assert len(copies(node)) == 1
