"""The client's side of the protocol, by real messages of an honest server, and of others."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cohorts import BLIND, KEYS, PROTECTED, SHARED, Cohort, Node, code, records_of
from documents import BOX, TRUSTS
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.algorithms.pe_means import PEMeansAlgorithm
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm
from flower_kmeans.domain import GridRecords
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.ledger import Ledger, MemoryChangedError
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import checks, client, pairs, removal, replay
from flower_kmeans.protocol.client import Client, ClientResult
from flower_kmeans.protocol.messages import (
    Added,
    Answer,
    Code,
    Enrol,
    Enrolled,
    Entry,
    Finish,
    Finished,
    Keys,
    Peer,
    Refusal,
    Wrap,
    Wrapped,
    decode_reply,
)
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.session import ClientSession, LedgerMemory
from flower_kmeans.protocol.transcript import ZERO, first_hash
from flower_kmeans.protocol.wire import encode, encode_arrays, from_content, to_content
from flower_kmeans.secagg import key_agreement

NOBODY = b"\7" * 32


def statistics(cohort: Cohort, t: int, who: list[int]) -> np.ndarray:
    """Return the exact sum of clients' statistics, where the server's state is known."""
    algorithm = cohort.run.algorithm
    query = algorithm.query(cohort.state)
    total = np.zeros(algorithm.words(t), dtype=np.int64)
    for index in who:
        grid = GridRecords(cohort.nodes[index].records, algorithm.domain, algorithm.fraction_bits)
        total += algorithm.flatten(algorithm.answer(query, grid), t)
    return total


# ------------------------------------------------------------------------------ whole runs


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("ledger", [False, True])
def test_a_run_gives_all_clients_one_result(
    tmp_path: Path, trust: str, keys: str, ledger: bool
) -> None:
    cohort = Cohort(tmp_path, trust, keys, ledger=ledger).play()
    assert not cohort.refusals
    results = [node.results for node in cohort.nodes]
    assert all(len(found) == 1 for found in results)
    assert len({found[0].centroids.tobytes() for found in results}) == 1
    assert {found[0].run for found in results} == {cohort.document.run.hex()}
    rounds = cohort.document.rounds
    trips = {"oblivious-server": rounds + 3, "trusted-server": rounds + 2, "plain": rounds + 2}
    assert cohort.n_round_trips == trips.get(trust, 2 * rounds + 2)


@pytest.mark.parametrize("kind", [SynopsisAlgorithm, PEMeansAlgorithm])
@pytest.mark.parametrize("trust", ["clients-only", "distributed-noise", "oblivious-server"])
def test_algorithms_with_large_queries_run(tmp_path: Path, kind: Any, trust: str) -> None:
    cohort = Cohort(tmp_path, trust, kind=kind, n=4).play()
    assert not cohort.refusals
    assert len({node.results[0].centroids.tobytes() for node in cohort.nodes}) == 1


def test_a_plain_sum_is_the_sum_of_the_statistics(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "plain").set_up()
    for t in (1, 2, 3):
        expected = statistics(cohort, t, [0, 1, 2, 3, 4])
        cohort.round(t)
        np.testing.assert_array_equal(cohort.opened[t], [*expected, 5])


@pytest.mark.parametrize("levels", [(), (4,)])
def test_an_opened_sum_has_one_share_of_noise_of_each_client(
    tmp_path: Path, levels: tuple[int, ...]
) -> None:
    """With a level that is reached, what it removes is not in the sum."""
    cohort = Cohort(tmp_path, levels=levels).set_up()
    expected = statistics(cohort, 1, list(range(5)))
    answers = cohort.deal()
    context = cohort.context(1, 1, answers[0].tag)
    for node in cohort.nodes:
        session = node.session(cohort.doc_hash)
        assert session is not None
        if levels:  # the part that stays
            secret = key_agreement.noise_key(session.secret, context)
            stream = removal.Stream.from_key(secret)
            expected += removal.noise_share(cohort.run.algorithm, cohort.run.plan, 1, 4, stream)
        else:
            expected += removal.client_noise(cohort.run, 1, session.secret, context)
    cohort._add(1, 1, answers)
    np.testing.assert_array_equal(cohort.opened[1], [*expected, 5])


def test_a_committee_drawn_from_a_roster(tmp_path: Path) -> None:
    """Beyond 64 slots most clients make tags for the committee's slots only."""
    cohort = Cohort(tmp_path, "clients-only", n=66, rounds=1).set_up()
    inside = set(cohort.slots)
    assert len(inside) == 64
    for own in cohort.enrolled.values():
        assert len(own.tags) == 16 * (66 if own.slot in inside else 64)
    cohort.round(1)
    cohort.finish()
    assert not cohort.refusals
    assert all(len(node.results) == 1 for node in cohort.nodes)


def test_two_runs_side_by_side_in_one_memory(tmp_path: Path) -> None:
    one = Cohort(tmp_path, "clients-only", ledger=True)
    two = Cohort(tmp_path, "oblivious-server", others=one)
    one.set_up()
    two.set_up()
    for t in (1, 2, 3):
        two.round(t)
        one.round(t)
    two.finish()
    one.finish()
    assert not one.refusals
    assert not two.refusals
    assert all(len(node.results) == 2 for node in one.nodes)


# ------------------------------------------------------------------------------ repeated requests


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("ledger", [False, True])
def test_a_repeated_request_gives_the_same_bytes(tmp_path: Path, trust: str, ledger: bool) -> None:
    cohort = Cohort(tmp_path, trust, ledger=ledger).set_up()
    node = cohort.nodes[0]

    def twice(request: Any) -> bytes:
        first, second = (node.answer(encode(request)) for _ in range(2))
        assert first == second
        assert not isinstance(decode_reply(first), Refusal)
        return first

    twice(Enrol(doc=cohort.run.data))
    if trust == "oblivious-server":
        twice(cohort.keys_of(0))
    twice(cohort.ask_of(0))
    if trust in SHARED:
        answers = cohort.deal()
        if trust == "clients-only":
            peers = cohort.keys_of(0).peers
            replies = cohort.send(0, cohort.ask_of(0, peers=peers))
            cohort.take_envelopes(0, replies.envelopes, range(5))
        twice(cohort.add_of(0, answers))
    elif trust != "oblivious-server":
        cohort.play()
        twice(cohort.finish_of(0))
        assert len(node.results) == 1


def test_another_process_in_between_is_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort = Cohort(tmp_path, ledger=True).set_up()
    real, failures = LedgerMemory.answer, [1, 2, 3]

    def answer(self: LedgerMemory, *args: Any) -> None:
        if failures:
            failures.pop()
            raise MemoryChangedError("Another process was faster.")
        real(self, *args)

    monkeypatch.setattr(LedgerMemory, "answer", answer)
    assert isinstance(cohort.deal(who=[0])[0], Answer)
    failures.extend(range(20))
    assert code(cohort.deal(t=1, attempt=2, who=[0])[0]) == Code.INTERNAL


# ------------------------------------------------------------------------------ refusals


def changed(cohort: Cohort, **document: Any) -> Enrol:
    return Enrol(doc=encode(msgspec.structs.replace(cohort.document, **document)))


def test_version(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path)
    assert code(cohort.send(0, changed(cohort, protocol="flower-kmeans/1"))) == Code.VERSION
    content = RecordDict({"kmeans": ConfigRecord({"v": 1, "m": b""})})
    node = cohort.nodes[0]
    reply = decode_reply(from_content(node.client.handle(content)))
    assert code(reply) == Code.VERSION


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_get_a_code(data: bytes) -> None:
    node = Node(ClientPolicy(), records_of(0))
    assert isinstance(decode_reply(node.answer(data)), Refusal)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"kmeans": ConfigRecord({"v": 2})}),
        RecordDict({"kmeans": ConfigRecord({"v": 2, "m": "text"})}),
        RecordDict({"kmeans": ConfigRecord({"v": 2, "n": 2**30})}),
    ],
)
def test_any_content_gets_a_code(content: RecordDict) -> None:
    reply = from_content(Node(ClientPolicy(), None).client.handle(content))
    assert code(decode_reply(reply)) == Code.BAD_MESSAGE


def test_contents_are_answered_as_bytes_are(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path)
    request = encode(Enrol(doc=cohort.run.data))
    node = cohort.nodes[0]
    assert from_content(node.client.handle(to_content(request))) == node.answer(request)


@pytest.mark.parametrize("trust", PROTECTED)
@pytest.mark.parametrize(
    "limit",
    [
        {"trusts": ("plain",)},
        {"max_epsilon": 0.5},
        {"max_delta": 1e-12},
        {"min_clients": 4},
        {"max_rounds": 2},
        {"max_attempts": 1},
        {"max_colluders": 2},
        {"algorithms": ("synopsis",)},
        {"domain": BOX.__class__([0.0, 0.0], [2.0, 2.0])},
        {"units": ("client",)},
    ],
)
def test_policy(tmp_path: Path, trust: str, limit: dict[str, Any]) -> None:
    cohort = Cohort(tmp_path, trust, "relayed", n=1, policy=limit)
    assert code(cohort.send(0, Enrol(doc=cohort.run.data))) == Code.POLICY
    assert cohort.nodes[0].n_loads == 0


def test_a_policy_that_is_tightened_during_a_run_counts(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "clients-only").play()
    again = Cohort(tmp_path, "clients-only", others=cohort).set_up()
    again.round(1)
    node = again.nodes[1]
    node.policy = _with(node, max_epsilon=0.1)
    assert code(again.deal(t=2, who=[1])[1]) == Code.POLICY
    assert code(again.send(1, again.finish_of(1))) == Code.POLICY


def _with(node: Node, **limits: Any) -> ClientPolicy:
    values = {name: getattr(node.policy, name) for name in node.policy.__dataclass_fields__}
    return ClientPolicy(**{**values, **limits})


def test_another_roster_or_other_keys(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path)
    for fields in ({"roster": NOBODY}, {"keys": "relayed", "roster": None}):
        assert code(cohort.send(0, changed(cohort, **fields))) == Code.POLICY
    relayed = Cohort(tmp_path / "relayed", keys="relayed")
    assert code(relayed.send(0, Enrol(doc=cohort.run.data))) == Code.POLICY


def test_levels_of_noise_that_no_sum_of_the_roster_reaches(tmp_path: Path) -> None:
    """They would leave a client next to no noise before those who open its answer alone."""
    cohort = Cohort(tmp_path)
    for levels in ((3,), (4,), (3, 4)):
        assert isinstance(cohort.send(0, changed(cohort, levels=levels)), Enrolled)
    for levels in ((5,), (4, 5), (10**5,)):
        assert code(cohort.send(0, changed(cohort, levels=levels))) == Code.POLICY


def test_a_document_that_contradicts_itself(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path)
    for fields in (
        {"words": cohort.document.words[:-1]},
        {"share_variance": "1/3"},
        {"max_colluders": 3, "share_variance": "1/0"},
        {"sampler": "other"},
        {"privacy": {**cohort.document.privacy, "n_records": 17}},
    ):
        assert code(cohort.send(0, changed(cohort, **fields))) == Code.POLICY, fields


def test_no_ledger_and_a_ledger_without_room(tmp_path: Path) -> None:
    without = Cohort(tmp_path / "a", keys="relayed", n=1, policy={"in_memory": False})
    assert code(without.send(0, Enrol(doc=without.run.data))) == Code.LEDGER
    assert without.nodes[0].n_loads == 0
    limits = {"max_total_epsilon": 1.2}
    first = Cohort(tmp_path, "plain", "relayed", n=3, ledger=True, policy=limits).play()
    assert not first.refusals  # what costs nothing is not counted
    first = Cohort(tmp_path, others=first, keys="relayed").play()
    assert not first.refusals
    second = Cohort(tmp_path, others=first, keys="relayed")
    for index in range(3):
        assert code(second.send(index, Enrol(doc=second.run.data))) == Code.LEDGER
    open_to_all = tmp_path / "state-client0"
    open_to_all.chmod(0o755)
    assert code(first.send(0, Enrol(doc=first.run.data))) == Code.LEDGER


def test_room_that_another_run_took_in_between(tmp_path: Path) -> None:
    limits = {"max_total_epsilon": 1.2}
    one = Cohort(tmp_path, ledger=True, policy=limits).set_up()
    two = Cohort(tmp_path, others=one).set_up()
    assert isinstance(one.deal(who=[0])[0], Answer)
    assert code(two.deal(who=[0])[0]) == Code.LEDGER
    assert isinstance(one.deal(t=1, attempt=2, who=[0])[0], Answer)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        type("Panic", (BaseException,), {})(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_load_data_raises_is_data(
    tmp_path: Path, trust: str, error: BaseException
) -> None:
    cohort = Cohort(tmp_path, trust, n=4).set_up([1, 2, 3])
    node = cohort.nodes[0]

    def fail() -> None:
        raise error

    node.records = fail
    reply = cohort.send(0, Enrol(doc=cohort.run.data))
    if trust == "oblivious-server":
        assert code(reply) == Code.DATA
        return
    assert isinstance(reply, Enrolled)
    cohort.take(0, reply)
    assert code(cohort.deal(who=[0])[0]) == Code.DATA
    assert node.session(cohort.doc_hash) is not None
    node.records = records_of(0)
    assert isinstance(cohort.deal(who=[0])[0], Answer)


@pytest.mark.parametrize("records", [None, "text", np.zeros((3, 5)), {"a": 1}, object()])
def test_what_is_no_table_is_data(tmp_path: Path, records: Any) -> None:
    cohort = Cohort(tmp_path).set_up()
    cohort.nodes[0].records = records
    assert code(cohort.deal(who=[0])[0]) == Code.DATA


def test_a_fault_of_our_own_is_internal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = Cohort(tmp_path).set_up()

    def fail(*_: object) -> None:
        raise ZeroDivisionError("0.123456")

    monkeypatch.setattr(removal, "client_noise", fail)
    reply = cohort.deal(who=[0])[0]
    assert reply == Refusal(code=Code.INTERNAL, doc_hash=cohort.doc_hash)


def test_keys_that_cannot_be_read(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path).set_up()
    key = Path(str(cohort.nodes[0].policy.member_key_file))
    key.chmod(0o644)
    assert code(cohort.deal(who=[0])[0]) == Code.KEY
    key.unlink()
    assert code(cohort.send(0, Enrol(doc=cohort.run.data))) == Code.KEY
    roster = Path(str(cohort.nodes[1].policy.roster_file))
    roster.write_text("not a roster")
    assert code(cohort.deal(who=[1])[1]) == Code.KEY
    assert cohort.nodes[0].n_loads == cohort.nodes[1].n_loads == 0


def test_a_client_that_knows_nothing_needs_the_document(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "clients-only").set_up()
    node = cohort.nodes[0]
    node.restart()
    assert code(cohort.send(0, cohort.ask_of(0, doc=b""))) == Code.NEED
    assert code(cohort.send(0, cohort.finish_of(0))) == Code.NEED
    assert code(cohort.send(0, cohort.keys_of(0))) == Code.STALE
    assert code(cohort.send(0, cohort.ask_of(0, doc=b"another"))) == Code.BAD_MESSAGE
    assert node.session(cohort.doc_hash) is None


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_query_exactly_where_the_server_asks(tmp_path: Path, trust: str) -> None:
    cohort = Cohort(tmp_path, trust).set_up()
    query = cohort.query_data() if trust in BLIND else None
    assert code(cohort.deal(who=[0], query=query)[0]) == Code.BAD_MESSAGE
    result = encode_arrays({"centroids": np.zeros((2, 2))}) if trust in BLIND else None
    assert code(cohort.send(0, cohort.finish_of(0, result=result))) == Code.BAD_MESSAGE


@pytest.mark.parametrize("trust", [name for name in TRUSTS if name not in BLIND])
def test_queries_and_results_in_range(tmp_path: Path, trust: str) -> None:
    cohort = Cohort(tmp_path, trust).set_up()
    far = np.full((2, 2), 2**40)
    entry = Entry(t=1, attempt=1, n_slots=5, root=ZERO, committee=ZERO, tag=ZERO, survivors=b"\x1f")
    for changes in (
        {"query": encode_arrays({"centroids": far})},
        {"query": encode_arrays({"centroids": far[:1]})},
        {"query": encode_arrays({"others": far})},
        {"query": b"\x80"},
        {"query": b"?"},
        {"entries": (entry,)},
    ):
        assert code(cohort.deal(who=[0], **changes)[0]) == Code.BAD_MESSAGE, changes
    assert isinstance(cohort.deal(who=[0])[0], Answer)
    good = {"centroids": np.full((2, 2), 0.5), "counts": np.zeros(2)}
    for result in (
        {**good, "centroids": np.full((2, 2), 1.5)},
        {**good, "counts": np.zeros(3)},
        {"centroids": good["centroids"]},
        {**good, "counts": np.zeros(2, dtype=np.int64)},
    ):
        data = encode_arrays(result)
        assert code(cohort.send(0, cohort.finish_of(0, result=data))) == Code.BAD_MESSAGE
    assert isinstance(cohort.send(0, cohort.finish_of(0, result=encode_arrays(good))), Finished)


@pytest.mark.parametrize("trust", PROTECTED)
@pytest.mark.parametrize("keys", KEYS)
def test_a_cohort_without_this_session(tmp_path: Path, trust: str, keys: str) -> None:
    """The refusal holds the session's public values, as an enrolment does."""
    cohort = Cohort(tmp_path, trust, keys).set_up()
    for changes in ({"root": NOBODY}, {"path": b""}):
        reply = cohort.deal(who=[0], **changes)[0]
        own = cohort.enrolled[0]
        assert reply == Refusal(
            code=Code.RENEW,
            doc_hash=cohort.doc_hash,
            commitment=own.commitment,
            static=own.static,
            public_key=own.public_key,
            tags=own.tags,
        )
    cohort.enrolled[0].public_key = key_agreement.public_key(NOBODY)
    committee = cohort.committee().encode()
    cohort.enrolled[0].public_key = own.public_key
    assert code(cohort.deal(who=[0], committee=committee)[0]) == Code.RENEW


def test_one_client_at_two_slots(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, keys="relayed").set_up()
    assert isinstance(cohort.deal(who=[0])[0], Answer)
    first, second = cohort.enrolled[0], cohort.enrolled[1]
    first.slot, second.slot = 1, 0
    assert code(cohort.deal(t=1, attempt=2, who=[0])[0]) == Code.CONFLICT


@pytest.mark.parametrize("trust", PROTECTED)
def test_slots_of_the_servers_choice(tmp_path: Path, trust: str) -> None:
    cohort = Cohort(tmp_path, trust).set_up()
    for changes in ({"slot": 1}, {"n_slots": 6}, {"n_slots": 2}, {"t": 4}, {"attempt": 3}):
        assert code(cohort.deal(who=[0], **changes)[0]) == Code.POLICY, changes
    huge = cohort.ask_of(0, n_slots=2**20)
    assert code(cohort.send(0, huge)) in (Code.POLICY, Code.BAD_MESSAGE)


def test_committees(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, n=6).set_up()
    rows = cohort.committee().encode()
    swapped = rows[36:72] + rows[:36] + rows[72:]
    alone = rows[:36] + b"".join(rows[36 * i : 36 * i + 4] + ZERO for i in range(1, 6))
    for committee, expected in (
        (b"", Code.BAD_MESSAGE),
        (rows[:-1], Code.BAD_MESSAGE),
        (swapped, Code.BAD_MESSAGE),
        (rows[:40] + rows[4:36] + rows[72:], Code.BAD_MESSAGE),
        (rows[:-36], Code.POLICY),
        (rows[36:], Code.POLICY),
        (alone, Code.POLICY),
    ):
        assert code(cohort.deal(who=[0], committee=committee)[0]) == expected
    absent = rows[:-32] + ZERO
    assert isinstance(cohort.deal(who=[0], committee=absent)[0], Answer)


def test_tags_of_the_wrong_length(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path).set_up()
    assert code(cohort.deal(who=[0], tags=bytes(79))[0]) == Code.BAD_MESSAGE
    relayed = Cohort(tmp_path / "relayed", keys="relayed").set_up()
    assert code(relayed.deal(who=[0], tags=bytes(80))[0]) == Code.BAD_MESSAGE


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("ledger", [False, True])
def test_old_rounds_and_attempts(tmp_path: Path, trust: str, ledger: bool) -> None:
    cohort = Cohort(tmp_path, trust, ledger=ledger).set_up()
    if trust not in BLIND:
        assert isinstance(cohort.deal(t=2, who=[0])[0], Answer)
        assert code(cohort.deal(t=1, who=[0])[0]) == Code.STALE
        assert code(cohort.deal(t=1, attempt=2, who=[0])[0]) == Code.STALE
        assert isinstance(cohort.deal(t=3, attempt=2, who=[0])[0], Answer)
        assert code(cohort.deal(t=3, attempt=1, who=[0])[0]) == Code.STALE
        return
    assert isinstance(cohort.deal(t=1, attempt=2, who=[0])[0], Answer)
    assert code(cohort.deal(t=1, attempt=1, who=[0])[0]) == Code.STALE
    cohort.deal(t=1, attempt=2)
    cohort.round(1)
    assert code(cohort.deal(t=3, who=[0])[0]) in (Code.NEED, Code.KEY)


@pytest.mark.parametrize("ledger", [False, True])
def test_two_queries_in_one_attempt(tmp_path: Path, ledger: bool) -> None:
    cohort = Cohort(tmp_path, ledger=ledger).set_up()
    cohort.deal(who=[0])
    other = encode_arrays({"centroids": np.ones((2, 2), dtype=np.int64)})
    assert code(cohort.deal(who=[0], query=other)[0]) == Code.CONFLICT
    assert isinstance(cohort.deal(who=[0], attempt=2, query=other)[0], Answer)


# ------------------------------------------------------------------------------ order of checks


def _set(cohort: Cohort, **fields: Any) -> None:
    node = cohort.nodes[0]
    session = node.session(cohort.doc_hash)
    assert session is not None
    for name, value in fields.items():
        setattr(session, name, value)
    node.save(cohort.doc_hash, session)


def _weak_policy(cohort: Cohort) -> None:
    cohort.nodes[0].policy = _with(cohort.nodes[0], max_rounds=1)


def _other_entry(cohort: Cohort) -> dict[str, Any]:
    return {"entries": (msgspec.structs.replace(cohort.entries[0], tag=NOBODY),)}


DEFECTS: list[tuple[str, Code, Callable[[Cohort], dict[str, Any] | None]]] = [
    ("over", Code.STALE, lambda c: _set(c, over=1)),
    ("policy", Code.POLICY, _weak_policy),
    ("leaf", Code.RENEW, lambda c: {"root": NOBODY}),
    ("one slot", Code.CONFLICT, lambda c: _set(c, slot=3)),
    ("committee", Code.BAD_MESSAGE, lambda c: {"committee": b"short"}),
    ("group key", Code.NEED, lambda c: (_set(c, group_secret=b""), {"wrap_for": None})[1]),
    ("entries", Code.CONFLICT, _other_entry),
]
"""Defects of one ask for round 2 of a blind run, in the order in which a client meets them."""


@pytest.mark.parametrize("trust", BLIND)
@pytest.mark.parametrize(
    ("first", "second"),
    [(i, j) for i in range(len(DEFECTS)) for j in range(i, len(DEFECTS))],
    ids=lambda i: DEFECTS[i][0],
)
def test_the_first_defect_counts(tmp_path: Path, trust: str, first: int, second: int) -> None:
    cohort = Cohort(tmp_path, trust).set_up()
    cohort.round(1)
    changes: dict[str, Any] = {}
    for defect in {second, first}:
        changes |= DEFECTS[defect][2](cohort) or {}
    assert code(cohort.deal(t=2, who=[0], **changes)[0]) == DEFECTS[first][1]
    assert cohort.nodes[0].n_loads == 1


# ------------------------------------------------------------------------------ sessions


@pytest.mark.parametrize("trust", PROTECTED)
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("ledger", [False, True])
def test_a_client_that_restarts(tmp_path: Path, trust: str, keys: str, ledger: bool) -> None:
    """With a ledger no round is lost; without, a new session comes back."""
    cohort = Cohort(tmp_path, trust, keys, n=6, rounds=5, ledger=ledger).set_up()
    missed = []
    for t in range(1, 6):
        if t in (2, 3):
            cohort.nodes[4].restart()
        if 4 not in cohort.round(t):
            missed.append(t)
    cohort.finish()
    results = {node.results[0].centroids.tobytes() for node in cohort.nodes}
    assert len(results) == 1
    assert bool(missed) != ledger
    assert len(missed) <= 4


def test_a_session_that_begins_anew_has_another_key_and_the_same_rules(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path).set_up()
    cohort.deal(who=[0], attempt=2)
    node = cohort.nodes[0]
    before = node.session(cohort.doc_hash)
    node.state = RecordDict()
    reply = cohort.deal(who=[0], attempt=2)[0]
    assert code(reply) == Code.RENEW
    after = node.session(cohort.doc_hash)
    assert before is not None
    assert after is not None
    assert after.secret != before.secret
    assert reply.public_key == key_agreement.public_key(after.ephemeral)
    cohort.take(0, reply)
    assert isinstance(cohort.deal(who=[0], attempt=2)[0], Answer)


def test_last_answer_and_vote_outlive_a_session_in_a_ledger(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, ledger=True).set_up()
    answers = cohort.deal(attempt=2)
    assert isinstance(cohort.send(0, cohort.add_of(0, answers, attempt=2)), Added)
    node = cohort.nodes[0]
    with Ledger(str(node.policy.state_dir)) as ledger:  # the session is lost, the rest is not
        found = ledger.load(cohort.doc_hash)
        assert found is not None
        other = ClientSession.begin(cohort.doc_hash, cohort.run.data, 2)
        other.commitment = ZERO
        ledger.save(cohort.doc_hash, found[0], encode(other))
    reply = cohort.deal(who=[0], attempt=2)[0]
    cohort.take(0, reply)
    assert code(cohort.deal(who=[0], attempt=1)[0]) == Code.STALE
    assert code(cohort.deal(who=[0], attempt=2)[0]) == Code.CONFLICT
    answers = cohort.deal(t=1, attempt=2, who=[1, 2, 3, 4])
    answers = {i: a for i, a in answers.items() if isinstance(a, Answer)}
    assert not answers  # another cohort in the same attempt
    again = cohort.deal(t=2)
    assert code(cohort.send(0, cohort.add_of(0, again, t=1))) == Code.CONFLICT
    assert isinstance(cohort.send(0, cohort.add_of(0, again, t=2)), Added)
    assert code(cohort.send(0, cohort.add_of(0, again, t=1))) == Code.STALE


@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize("ledger", [False, True])
def test_under_shares_nothing_shows_that_records_changed(
    tmp_path: Path, trust: str, ledger: bool
) -> None:
    cohort = Cohort(tmp_path, trust, ledger=ledger).set_up()
    node = cohort.nodes[0]
    enrolled, answers = set(), set()
    changes = (node.records, records_of(99), records_of(7, 3), np.zeros((0, 2)), [["n/a", 1.0]])
    for records in (*changes, None):
        node.records = records
        enrolled.add(encode(cohort.send(0, Enrol(doc=cohort.run.data))))
        answers.add(encode(cohort.deal(t=1, who=[0])[0]))
    assert len(enrolled) == len(answers) == 1
    assert node.n_loads == 1
    node.records = records_of(99)
    other = cohort.deal(t=1, attempt=2, who=[0])[0]
    assert len(encode(other)) == len(answers.pop())
    assert node.n_loads == 2


@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_a_refused_query_in_between_shows_no_change_of_records(
    tmp_path: Path, ledger: bool, changed: bool
) -> None:
    """What was answered is kept although another query of the attempt was refused."""
    cohort = Cohort(tmp_path, ledger=ledger).set_up()
    first = cohort.deal(who=[0])[0]
    if changed:
        cohort.nodes[0].records = records_of(99)
    arrays = {k: v.copy() for k, v in cohort.run.algorithm.query(cohort.state).arrays.items()}
    next(iter(arrays.values())).flat[0] -= 1
    assert code(cohort.deal(who=[0], query=encode_arrays(arrays))[0]) == Code.CONFLICT
    assert cohort.deal(who=[0])[0] == first


@pytest.mark.parametrize("ledger", [False, True])
def test_a_client_that_commits_to_its_records_reads_them_once(tmp_path: Path, ledger: bool) -> None:
    """Whatever happens to the records: the run goes on with those of its beginning."""
    cohort = Cohort(tmp_path, "oblivious-server", ledger=ledger).set_up()
    node = cohort.nodes[0]
    first = cohort.deal(who=[0])[0]
    node.records = records_of(99)
    enrolled = cohort.send(0, Enrol(doc=cohort.run.data))
    assert enrolled.commitment == cohort.enrolled[0].commitment
    assert cohort.deal(who=[0])[0] == first
    assert cohort.round(1) == [0, 1, 2, 3, 4]
    node.records = None
    assert cohort.round(2) == [0, 1, 2, 3, 4]
    cohort.round(3)
    cohort.finish()
    assert not cohort.refusals
    assert node.n_loads == 1
    session = node.session(cohort.doc_hash)
    assert session == ClientSession(over=1)
    if ledger:
        assert not list(Path(str(node.policy.state_dir)).glob("records*"))
    else:
        content = b"".join(node.state[f"kmeans.{cohort.doc_hash.hex()}"].values())
        assert len(content) < 200


def test_a_copy_of_records_that_is_lost_is_made_again(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "oblivious-server", ledger=True).set_up()
    node = cohort.nodes[0]
    (path,) = Path(str(node.policy.state_dir)).glob("records*")
    path.unlink()
    assert isinstance(cohort.deal(who=[0])[0], Answer)
    assert path.exists()
    assert node.n_loads == 2
    path.unlink()
    node.records = records_of(99)
    assert code(cohort.deal(who=[0])[0]) == Code.RENEW
    (new,) = Path(str(node.policy.state_dir)).glob("records*")
    assert new != path


@pytest.mark.parametrize("ledger", [False, True])
def test_without_a_copy_a_server_sees_three_changes_of_records(
    tmp_path: Path, ledger: bool
) -> None:
    cohort = Cohort(
        tmp_path, "oblivious-server", ledger=ledger, policy={"copy_records": False}
    ).set_up()
    node = cohort.nodes[0]
    seen = [cohort.enrolled[0].commitment]
    for index in range(90, 100):
        node.records = records_of(index)
        for _ in range(2):
            reply = cohort.send(0, Enrol(doc=cohort.run.data))
            if isinstance(reply, Enrolled):
                seen.append(reply.commitment)
            else:
                assert code(reply) == Code.STALE
    assert len(set(seen)) == checks.MAX_SESSIONS == 3
    assert code(cohort.deal(who=[0])[0]) == Code.STALE
    assert not list(tmp_path.rglob("records-*"))


def test_records_are_loaded_once_per_message_at_most(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "oblivious-server", policy={"copy_records": False}).set_up()
    node = cohort.nodes[1]
    assert node.n_loads == 1
    assert isinstance(cohort.deal(who=[1])[1], Answer)
    assert node.n_loads == 2
    shared = Cohort(tmp_path / "shared").set_up()
    shared.round(1)
    assert [node.n_loads for node in shared.nodes] == [1] * 5


def test_without_a_copy_a_run_goes_on_with_changed_records(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "oblivious-server", rounds=4, policy={"copy_records": False}).set_up()
    sizes = []
    for t in range(1, 5):
        if t == 2:
            cohort.nodes[3].records = records_of(99)
        sizes.append(len(cohort.round(t)))
    cohort.finish()
    assert sizes == [5, 4, 4, 5]
    assert len({node.results[0].centroids.tobytes() for node in cohort.nodes}) == 1


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("ledger", [False, True])
def test_other_software_is_another_commitment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledger: bool, copy: bool
) -> None:
    """Other software may answer with another vector, which the same mask must not cover."""
    cohort = Cohort(
        tmp_path, "oblivious-server", ledger=ledger, policy={"copy_records": copy}
    ).set_up()
    monkeypatch.setattr(client, "SOFTWARE", "flower-kmeans 9.9")
    assert code(cohort.deal(who=[0])[0]) == Code.RENEW


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("ledger", [False, True])
def test_with_a_copy_records_are_hashed_once_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledger: bool, copy: bool
) -> None:
    hashed = []
    digest = client.transcript.data_digest
    monkeypatch.setattr(
        client.transcript, "data_digest", lambda records: hashed.append(1) or digest(records)
    )
    policy = {"copy_records": copy}
    cohort = Cohort(tmp_path, "oblivious-server", ledger=ledger, rounds=3, policy=policy).set_up()
    for t in (1, 2, 3):
        assert len(cohort.round(t)) == 5
    cohort.finish()
    assert len(hashed) == 5 if copy else len(hashed) >= 5 * 4


def test_a_damaged_file_is_no_copy(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "oblivious-server", ledger=True).set_up()
    node = cohort.nodes[0]
    (path,) = Path(str(node.policy.state_dir)).glob("records*")
    copy = path.read_bytes()
    path.write_bytes(copy[:100])
    assert isinstance(cohort.deal(who=[0])[0], Answer)
    assert path.read_bytes() == copy
    assert node.n_loads == 2


# ------------------------------------------------------------------------------ keys


@pytest.mark.parametrize("keys", KEYS)
def test_a_key_distributor_serves_peers_with_the_tags_of_their_owners(
    tmp_path: Path, keys: str
) -> None:
    cohort = Cohort(tmp_path, "oblivious-server", keys).set_up()
    request = cohort.keys_of(0)
    reply = cohort.send(0, request)
    assert [len(envelope) for envelope in reply.envelopes] == [48] * 5
    peers = list(request.peers)
    peers[2] = msgspec.structs.replace(peers[2], tag=bytes(16))
    peers[3] = msgspec.structs.replace(peers[3], public_key=bytes(32))
    changed = cohort.send(0, msgspec.structs.replace(request, peers=tuple(peers)))
    left_out = {2, 3} if keys == "roster" else {3}
    for i, (before, after) in enumerate(zip(reply.envelopes, changed.envelopes, strict=True)):
        assert after == (b"" if i in left_out else before)


def test_a_key_distributor_needs_its_own_key_and_enough_others(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "oblivious-server").set_up()
    request = cohort.keys_of(0)
    peers = request.peers
    wrong = tuple(msgspec.structs.replace(peer, tag=bytes(16)) for peer in peers[:3])
    for some, expected in (
        (peers[1:], Code.POLICY),
        (peers[:2], Code.POLICY),
        ((*peers, peers[1]), Code.POLICY),
        ((*wrong, *peers[3:]), Code.KEY),
    ):
        reply = cohort.send(0, msgspec.structs.replace(request, peers=some))
        assert code(reply) == expected
    sighted = Cohort(tmp_path / "sighted").set_up()
    assert code(sighted.send(0, sighted.keys_of(0))) == Code.POLICY


def test_a_key_distributor_serves_no_more_peers_than_a_cohort_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort = Cohort(tmp_path, "oblivious-server", "relayed", n=4).set_up()
    request = cohort.keys_of(0)
    others = tuple(Peer(slot=i, public_key=token(32)) for i in range(4, 7))
    more = msgspec.structs.replace(request, peers=(*request.peers, *others))
    monkeypatch.setattr(checks, "MAX_SLOTS", 6)
    assert isinstance(cohort.send(0, request), Wrapped)
    assert code(cohort.send(0, more)) == Code.POLICY
    assert code(cohort.deal(who=[0], peers=more.peers)[0]) == Code.POLICY
    monkeypatch.setattr(checks, "MAX_SLOTS", 7)
    assert isinstance(cohort.send(0, more), Wrapped)


def test_who_has_the_group_key_passes_it_on(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "oblivious-server").set_up()
    cohort.round(1)
    reply = cohort.deal(t=2, who=[3], peers=cohort.keys_of(3).peers)[3]
    cohort.take_envelopes(3, reply.envelopes, range(5))
    cohort.nodes[1].restart()
    cohort.take(1, cohort.deal(t=2, who=[1])[1])
    reply = cohort.deal(t=2, who=[3], attempt=2, peers=(cohort.peer(1, 3),))[3]
    cohort.take_envelopes(3, reply.envelopes, [1])
    cohort.have[1] = 0
    assert isinstance(cohort.deal(t=2, who=[1], attempt=2)[1], Answer)
    sessions = [node.session(cohort.doc_hash) for node in cohort.nodes]
    assert len({s.group_secret for s in sessions if s is not None}) == 1


@pytest.mark.parametrize("keys", KEYS)
def test_another_group_key_only_before_the_first_entry(tmp_path: Path, keys: str) -> None:
    cohort = Cohort(tmp_path, "oblivious-server", keys).set_up()
    node = cohort.nodes[0]
    first = cohort.deal(who=[0])[0]
    other = cohort.send(1, cohort.keys_of(1))
    wrap = Wrap(distributor=cohort.peer(1, 0), envelope=other.envelopes[0])
    second = cohort.deal(who=[0], attempt=2, wrap_for=wrap)[0]
    assert isinstance(second, Answer)
    assert second.tag != first.tag
    node.restart()
    cohort.take(0, cohort.send(0, Enrol(doc=cohort.run.data)))
    cohort.take_envelopes(1, cohort.send(1, cohort.keys_of(1)).envelopes, range(5))
    cohort.round(1)
    assert isinstance(cohort.deal(t=2, who=[0])[0], Answer)
    before = node.session(cohort.doc_hash)
    for envelope in (other.envelopes[0], NOBODY + bytes(16)):
        wrap = Wrap(distributor=cohort.peer(1, 0), envelope=envelope)
        assert isinstance(cohort.deal(t=2, who=[0], wrap_for=wrap)[0], Answer)
        assert node.session(cohort.doc_hash) == before


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("trust", BLIND)
def test_envelopes_that_do_not_open(tmp_path: Path, trust: str, keys: str) -> None:
    cohort = Cohort(tmp_path, trust, keys).set_up()
    reply = cohort.deal(who=[1], peers=cohort.keys_of(1).peers)[1] if trust in SHARED else None
    if reply is not None:
        cohort.take_envelopes(1, reply.envelopes, range(5))
    good = cohort.wrap_for(0)
    assert good is not None
    other_envelope = cohort.envelopes[2][1]
    distributor = good.distributor
    for wrap in (
        msgspec.structs.replace(good, envelope=other_envelope),
        msgspec.structs.replace(
            good, distributor=msgspec.structs.replace(distributor, public_key=bytes(32))
        ),
        msgspec.structs.replace(
            good, distributor=msgspec.structs.replace(distributor, public_key=NOBODY)
        ),
    ):
        reply = cohort.deal(who=[0], wrap_for=wrap)[0]
        assert reply == Refusal(code=Code.KEY, doc_hash=cohort.doc_hash)
    wrong_slot = msgspec.structs.replace(distributor, slot=2**31)
    wrap = msgspec.structs.replace(good, distributor=wrong_slot)
    if keys == "roster":
        assert code(cohort.deal(who=[0], wrap_for=wrap)[0]) == Code.KEY
    assert isinstance(cohort.deal(who=[0])[0], Answer)


def test_clients_only_answers_round_one_without_a_group_key(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "clients-only").set_up()
    answers = cohort.deal()
    assert all(isinstance(answer, Answer) for answer in answers.values())
    assert code(cohort.send(0, cohort.add_of(0, answers))) == Code.NEED


def test_entries_without_a_group_key_are_not_followed(tmp_path: Path) -> None:
    """Anybody could seal sum-shares under the key of nothing."""
    cohort = Cohort(tmp_path, "clients-only").set_up()
    cohort.round(1)
    node = cohort.nodes[0]
    node.restart()
    reply = cohort.deal(who=[0], entries=())[0]
    cohort.take(0, reply)
    reply = cohort.deal(who=[0], wrap_for=None, entries=tuple(cohort.entries))[0]
    assert code(reply) == Code.NEED
    session = node.session(cohort.doc_hash)
    assert session is not None
    assert session.head == 0


@pytest.mark.parametrize("keys", KEYS)
def test_a_wrong_tag_or_key_costs_its_owner_a_share_and_nobody_else(
    tmp_path: Path, keys: str
) -> None:
    cohort = Cohort(tmp_path, n=6, keys=keys).set_up()
    cohort.enrolled[3].public_key = bytes([1] + [0] * 31)  # of small order
    cohort.enrolled[4].tags = bytes(len(cohort.enrolled[4].tags))
    cohort.nodes[3].restart()
    reply = cohort.deal(who=[0])[0]
    assert isinstance(reply, Answer)
    empty = {position for position, share in enumerate(reply.sealed) if not share}
    assert empty == ({3, 4} if keys == "roster" else {3})


# ------------------------------------------------------------------------------ entries


def test_an_entry_is_followed_once(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "oblivious-server").set_up()
    cohort.round(1)
    assert isinstance(cohort.deal(t=2, who=[0])[0], Answer)
    before = cohort.nodes[0].session(cohort.doc_hash)
    other = msgspec.structs.replace(cohort.entries[0], words=os.urandom(8 * 7))
    again = cohort.deal(t=2, who=[0], entries=(other, *cohort.entries))[0]
    assert isinstance(again, Answer)
    assert cohort.nodes[0].session(cohort.doc_hash) == before


@pytest.mark.parametrize("trust", BLIND)
def test_a_late_client_follows_all_entries(tmp_path: Path, trust: str) -> None:
    cohort = Cohort(tmp_path, trust, n=6, rounds=4).set_up([0, 1, 2, 3, 4])
    for t in (1, 2):
        cohort.round(t)
    cohort.set_up_late(5)
    assert 5 not in cohort.round(3)
    assert 5 in cohort.round(4)
    cohort.finish()
    assert len({node.results[0].centroids.tobytes() for node in cohort.nodes}) == 1


@pytest.mark.parametrize("trust", BLIND)
def test_entries_that_are_refused_leave_the_head_where_it_is(tmp_path: Path, trust: str) -> None:
    cohort = Cohort(tmp_path, trust, rounds=4).set_up()
    for t in (1, 2):
        cohort.round(t)
    node, (_, two) = cohort.nodes[0], cohort.entries
    replace = msgspec.structs.replace
    refused = [
        ((replace(two, t=3),), Code.NEED),
        ((replace(two, attempt=3),), Code.BAD_MESSAGE),
        ((replace(two, survivors=b"\x1f\x00"),), Code.BAD_MESSAGE),
        ((replace(two, survivors=b"\x3f"),), Code.BAD_MESSAGE),
        ((replace(two, survivors=b"\x03"),), Code.POLICY),
        ((replace(two, tag=NOBODY),), Code.CONFLICT),
        ((replace(two, survivors=b"\x0f"),), Code.GARBAGE),
        ((replace(two, root=NOBODY),), Code.GARBAGE),
        ((replace(two, committee=NOBODY),), Code.GARBAGE),
    ]
    if trust == "oblivious-server":
        refused += [((replace(two, words=b""),), Code.GARBAGE)]
        refused += [((replace(two, words=two.words + bytes(8)),), Code.GARBAGE)]
        refused += [((replace(two, shares=((0, b"0"),)),), Code.BAD_MESSAGE)]
    else:
        refused += [((replace(two, words=b"0"),), Code.BAD_MESSAGE)]
        refused += [((replace(two, packing=0),), Code.BAD_MESSAGE)]
        refused += [((replace(two, packing=6),), Code.BAD_MESSAGE)]
        refused += [((replace(two, packing=2),), Code.GARBAGE)]
        refused += [((replace(two, shares=two.shares[:3]),), Code.GARBAGE)]
        moved = tuple((position + 1, share) for position, share in two.shares)
        refused += [((replace(two, shares=moved),), Code.GARBAGE)]
    session = node.session(cohort.doc_hash)
    assert session is not None
    assert session.head == 1
    for entries, expected in refused:
        reply = cohort.deal(t=3, who=[0], entries=entries)[0]
        assert reply == Refusal(code=expected, doc_hash=cohort.doc_hash), expected
        assert node.session(cohort.doc_hash) == session
    assert isinstance(cohort.deal(t=3, who=[0])[0], Answer)


def test_shares_that_do_not_open_are_left_out_of_an_entry(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "clients-only", n=8).set_up()
    cohort.round(1)
    entry = cohort.entries[0]
    false = (*entry.shares[:-1], (entry.shares[-1][0], bytes(len(entry.shares[-1][1]))))
    strange = (*false, (77, b""), (2**32 - 1, b"x"))
    cohort.entries[0] = msgspec.structs.replace(entry, shares=strange)
    session = cohort.nodes[0].session(cohort.doc_hash)
    assert session is not None
    reply = cohort.deal(t=2, who=[0])[0]
    assert isinstance(reply, Answer)


def test_an_entry_is_opened_once_for_all_clients_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort = Cohort(tmp_path, "clients-only").set_up()
    cohort.round(1)
    calls = []
    kind = type(cohort.run.algorithm)
    real = kind.update
    monkeypatch.setattr(kind, "update", lambda *args: calls.append(1) or real(*args))
    cohort.deal(t=2)
    assert len(calls) == 1
    replay._known.clear()
    cohort.nodes[0].restart()
    cohort.take(0, cohort.deal(t=2, who=[0])[0])
    cohort.have[0] = 0
    reply = cohort.deal(t=2, who=[1], attempt=2, peers=(cohort.peer(0, 1),))[1]
    cohort.take_envelopes(1, reply.envelopes, [0])
    assert isinstance(cohort.deal(t=2, who=[0], attempt=2)[0], Answer)
    assert len(calls) == 2


def test_what_could_not_be_followed_is_not_kept(tmp_path: Path) -> None:
    session = ClientSession(h=first_hash(ZERO))

    def fail() -> bytes:
        raise MessageError("no")

    with pytest.raises(MessageError):
        replay.followed(session, ZERO, b"entry", fail)
    assert replay.followed(session, ZERO, b"entry", lambda: b"state") == b"state"
    assert replay.followed(session, ZERO, b"entry", fail) == b"state"
    for changed in (
        lambda: replay.followed(session, NOBODY, b"entry", fail),
        lambda: replay.followed(session, ZERO, b"entrx", fail),
        lambda: replay.followed(ClientSession(h=NOBODY), ZERO, b"entry", fail),
        lambda: replay.followed(
            msgspec.structs.replace(session, state=b"other"), ZERO, b"entry", fail
        ),
    ):
        with pytest.raises(MessageError):
            changed()


# ------------------------------------------------------------------------------ sum-shares


def test_sums_to_add(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, n=6).set_up()
    answers = cohort.deal()
    good = cohort.add_of(0, answers)
    few = {"sealed": good.sealed[:2], "public_keys": good.public_keys[:64]}
    for changes, expected in (
        ({"survivors": b"\x3f\x00"}, Code.BAD_MESSAGE),
        ({"survivors": b"\x1f"}, Code.BAD_MESSAGE),
        ({"sealed": good.sealed[1:]}, Code.BAD_MESSAGE),
        ({"public_keys": good.public_keys[:-1]}, Code.BAD_MESSAGE),
        ({"h": NOBODY}, Code.BAD_MESSAGE),
        ({**few, "survivors": b"\x03"}, Code.POLICY),
        ({"t": 9}, Code.POLICY),
    ):
        reply = cohort.send(0, msgspec.structs.replace(good, **changes))
        assert code(reply) == expected, changes
    assert isinstance(cohort.send(0, good), Added)
    masked = Cohort(tmp_path / "masked", "oblivious-server").set_up()
    request = masked.add_of(
        0, {i: Answer(doc_hash=ZERO, tag=ZERO, sealed=(b"",) * 5) for i in range(5)}
    )
    assert code(masked.send(0, request)) == Code.POLICY
    assert masked.nodes[0].n_loads == 1


def test_only_committee_members_add(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, n=66, rounds=1).set_up()
    outside = next(i for i, own in cohort.enrolled.items() if own.slot not in cohort.slots)
    inside = cohort.by_slot()[cohort.slots[0]]
    answers = cohort.deal(who=range(4))
    request = cohort.add_of(inside, answers)
    request = msgspec.structs.replace(request, **cohort.at(outside, 1))
    assert code(cohort.send(outside, request)) == Code.POLICY


@pytest.mark.parametrize("ledger", [False, True])
def test_one_sum_of_a_round(tmp_path: Path, ledger: bool) -> None:
    cohort = Cohort(tmp_path, n=6, ledger=ledger).set_up()
    first, second = cohort.deal(), cohort.deal(attempt=2)
    request = cohort.add_of(0, first)
    assert isinstance(cohort.send(0, request), Added)
    fewer = {i: first[i] for i in range(5)}
    for other in (cohort.add_of(0, fewer), cohort.add_of(0, second, attempt=2)):
        assert code(cohort.send(0, other)) == Code.CONFLICT
    assert isinstance(cohort.send(0, request), Added)
    later = cohort.deal(t=2)
    assert isinstance(cohort.send(0, cohort.add_of(0, later, t=2)), Added)
    assert code(cohort.send(0, request)) == Code.STALE


@pytest.mark.parametrize(
    "spoilt",
    [lambda share: os.urandom(len(share)), lambda share: b"", lambda share: share[:-1]],
)
def test_who_names_a_dealer_has_not_voted(tmp_path: Path, spoilt: Callable[[bytes], bytes]) -> None:
    cohort = Cohort(tmp_path, n=6).set_up()
    answers = cohort.deal()
    answers[3] = msgspec.structs.replace(
        answers[3], sealed=tuple(spoilt(share) for share in answers[3].sealed)
    )
    reply = cohort.send(0, cohort.add_of(0, answers))
    assert reply == Refusal(code=Code.KEY, doc_hash=cohort.doc_hash, slot=3)
    del answers[3]
    assert isinstance(cohort.send(0, cohort.add_of(0, answers)), Added)


def test_a_share_of_valid_seal_and_wrong_length_names_its_dealer(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, n=6).set_up()
    answers = cohort.deal()
    context = cohort.context(1, 1, answers[0].tag)
    keys = [Path(str(node.policy.member_key_file)).read_bytes() for node in cohort.nodes]
    dealer = cohort.nodes[3].session(cohort.doc_hash)
    assert dealer is not None
    own = cohort.enrolled[0]
    shared = key_agreement.pair_secret(
        dealer.ephemeral, own.public_key, keys[3], cohort.enrolled[0].static
    )
    key = key_agreement.share_key(
        shared, context, 3, 0, cohort.enrolled[3].public_key, own.public_key
    )
    for share in (bytes(7), b"\xff" * 8 * 7):
        sealed = (key_agreement.seal(key, share, context), *answers[3].sealed[1:])
        answers[3] = msgspec.structs.replace(answers[3], sealed=sealed)
        reply = cohort.send(0, cohort.add_of(0, answers))
        assert reply == Refusal(code=Code.KEY, doc_hash=cohort.doc_hash, slot=3)


def test_an_add_for_another_history(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "clients-only").set_up()
    cohort.round(1)
    answers = cohort.deal(t=2)
    request = cohort.add_of(0, answers, t=2)
    assert code(cohort.send(0, msgspec.structs.replace(request, h=NOBODY))) == Code.CONFLICT
    assert code(cohort.send(0, msgspec.structs.replace(request, t=1))) == Code.STALE
    reply = cohort.send(0, request)
    assert isinstance(reply, Added)
    session = cohort.nodes[0].session(cohort.doc_hash)
    assert session is not None
    group_key = key_agreement.group_key(session.group_secret, cohort.doc_hash)
    assert reply.key_id == key_agreement.key_id(group_key, cohort.doc_hash)


# ------------------------------------------------------------------------------ the end


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_on_result_is_called_again_if_it_failed(
    tmp_path: Path, trust: str, error: BaseException
) -> None:
    cohort = Cohort(tmp_path, trust).set_up()
    for t in (1, 2, 3):
        cohort.round(t)
    node, calls = cohort.nodes[0], []

    def keep(result: ClientResult) -> None:
        calls.append(result)
        if len(calls) == 1:
            raise error

    for expected in (1, 2, 2, 2):
        request = encode(cohort.finish_of(0))
        reply = Client(node.policy, node.state, node.load, keep).answer_bytes(request)
        assert decode_reply(reply) == Finished(doc_hash=cohort.doc_hash)
        assert len(calls) == expected
    assert code(cohort.deal(t=3, who=[0])[0]) == Code.STALE
    assert code(cohort.send(0, Enrol(doc=cohort.run.data))) == Code.STALE
    assert code(cohort.send(0, cohort.keys_of(0))) == Code.STALE


def test_a_result_that_nobody_keeps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cohort = Cohort(tmp_path, "clients-only").set_up()
    for t in (1, 2, 3):
        cohort.round(t)
    node = cohort.nodes[0]
    request = encode(cohort.finish_of(0))
    with caplog.at_level(logging.WARNING):
        reply = Client(node.policy, node.state, node.load).answer_bytes(request)
    assert decode_reply(reply) == Finished(doc_hash=cohort.doc_hash)
    assert "no on_result keeps it" in caplog.text


@pytest.mark.parametrize("trust", BLIND)
def test_an_end_before_the_last_entry(tmp_path: Path, trust: str) -> None:
    cohort = Cohort(tmp_path, trust).set_up()
    for t in (1, 2):
        cohort.round(t)
    assert code(cohort.send(0, cohort.finish_of(0))) == Code.NEED
    assert isinstance(cohort.deal(t=3, who=[0])[0], Answer)


def _opens(key: bytes, sealed: bytes, associated: bytes) -> bool:
    try:
        key_agreement.unseal(key, sealed, associated)
    except MessageError:
        return False
    return True


@pytest.mark.parametrize("trust", PROTECTED)
@pytest.mark.parametrize("ledger", [False, True])
def test_lasting_keys_and_memories_of_afterwards_open_nothing_recorded(
    tmp_path: Path, trust: str, ledger: bool
) -> None:
    """All that is secret while a run goes on is erased with it: in memory and on the disk."""
    cohort = Cohort(tmp_path, trust, ledger=ledger).set_up()
    answers = cohort.deal()
    context = cohort.context(1, 1, answers[0].tag)
    cohort.round(1)
    sessions = [node.session(cohort.doc_hash) for node in cohort.nodes]
    distributor, envelope = cohort.envelopes.get(1, (0, b""))
    found = [
        pairs.Pairs(cohort.doc_hash, session, node.policy.read_identity())
        for node, session in zip(cohort.nodes, sessions, strict=True)
        if session is not None
    ]
    names = [one._name for one in found]
    kept = [value for name in names for value in pairs._cache._values.get(name, {}).values()]
    assert kept
    for t in (2, 3):
        cohort.round(t)
    cohort.finish()

    fields = ("secret", "ephemeral", "group_secret", "drawn_secret")
    secrets = [getattr(session, field) for session in sessions for field in fields]
    secrets = [secret for secret in secrets if secret]
    assert len(secrets) >= 10
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for node in cohort.nodes:
        for record in node.state.values():
            left += b"".join(value for value in record.values() if isinstance(value, bytes))
    for secret in (*secrets, *kept):
        assert secret not in left
    assert not any(name in pairs._cache._values for name in names)

    # A thief of all lasting keys tries every secret that two recorded public keys make.
    statics = [Path(str(node.policy.member_key_file)).read_bytes() for node in cohort.nodes]
    publics = [cohort.enrolled[i].public_key for i in range(5)]
    keys = [*publics, *(own.static for own in cohort.enrolled.values())]
    agreed = {key_agreement.agree(static, key) for static in statics for key in keys}
    stolen = [*agreed, *(one + two for one in agreed for two in agreed)]
    real = key_agreement.pair_secret(
        sessions[0].ephemeral, publics[1], statics[0], cohort.enrolled[1].static
    )
    if cohort.trust.has_committee:

        def opens(shared: bytes) -> bool:
            key = key_agreement.share_key(shared, context, 0, 1, publics[0], publics[1])
            return _opens(key, answers[0].sealed[1], context)

    else:
        assert distributor == 0

        def opens(shared: bytes) -> bool:
            key = key_agreement.wrap_key(shared, cohort.doc_hash, publics[0], publics[1])
            return _opens(key, envelope, cohort.doc_hash)

    assert opens(real)
    assert not any(opens(shared) for shared in stolen)


# ------------------------------------------------------------------------------ what shows


def test_no_repr_and_no_log_shows_a_secret_or_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cohort = Cohort(tmp_path, "clients-only").set_up()
    node = cohort.nodes[0]
    node.records = [[0.123456, 0.5], ["Jane Doe", 0.5]]
    with caplog.at_level(logging.DEBUG):
        cohort.deal()
        cohort.deal(who=[0], root=NOBODY)
        cohort.deal(who=[0], committee=b"x")
    session = node.session(cohort.doc_hash)
    assert session is not None
    identity = node.policy.read_identity()
    found = pairs.Pairs(cohort.doc_hash, session, identity)
    shown = [caplog.text, *map(repr, (session, found, node.client, identity, node.policy))]
    static = Path(str(node.policy.member_key_file)).read_bytes()
    for text in shown:
        for secret in (session.secret, session.ephemeral, static):
            assert secret.hex() not in text
            assert repr(secret) not in text
        assert "0.123456" not in text
        assert "Jane" not in text
    assert "1 records are malformed" in caplog.text
    assert "Refused 'ask' of run" in caplog.text
    assert "(RENEW)" in caplog.text


def test_a_refusal_holds_its_code_alone(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path).set_up()
    cohort.nodes[0].records = None
    for reply in (
        cohort.deal(who=[0])[0],
        cohort.deal(who=[0], n_slots=1)[0],
        cohort.send(0, Finish(doc_hash=cohort.doc_hash)),
        cohort.send(0, Keys(doc_hash=cohort.doc_hash, peers=())),
        cohort.send(0, cohort.ask_of(0, tags=b"")),
    ):
        assert reply == Refusal(code=reply.code, doc_hash=cohort.doc_hash)


# ------------------------------------------------------------------------------ many at once


def test_requests_at_the_same_time_get_one_answer_and_one_vote(tmp_path: Path) -> None:
    """A node starts a process for each message: whatever overlaps, a round has one of each."""
    cohort = Cohort(tmp_path, n=6, ledger=True).set_up()
    answers = cohort.deal(who=[1, 2, 3, 4, 5])
    node = cohort.nodes[0]
    other = encode_arrays({"centroids": np.ones((2, 2), dtype=np.int64)})
    asks = [cohort.ask_of(0), cohort.ask_of(0, query=other)] * 4
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(node.answer, map(encode, asks)))
    sent = {data for data in replies if isinstance(decode_reply(data), Answer)}
    refused = {code(decode_reply(data)) for data in replies if data not in sent}
    assert len(sent) == 1
    assert refused == {Code.CONFLICT}
    four = {i: answers[i] for i in (1, 2, 3, 4)}
    adds = [cohort.add_of(0, answers), cohort.add_of(0, four)] * 4
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(node.answer, map(encode, adds)))
    sent = {data for data in replies if isinstance(decode_reply(data), Added)}
    assert len(sent) == 1
    assert {code(decode_reply(data)) for data in replies if data not in sent} == {Code.CONFLICT}


def test_enrolments_at_the_same_time_begin_one_session(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, "oblivious-server", ledger=True)
    node, request = cohort.nodes[0], encode(Enrol(doc=cohort.run.data))
    with ThreadPoolExecutor(8) as pool:
        replies = set(pool.map(node.answer, [request] * 8))
    assert len(replies) == 1
    assert isinstance(decode_reply(replies.pop()), Enrolled)
    assert len(list(Path(str(node.policy.state_dir)).glob("records-*"))) == 1
