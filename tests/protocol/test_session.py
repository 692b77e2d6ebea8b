"""What a client remembers of a run, in a context's state and in a ledger."""

import os
import stat
from contextlib import ExitStack

import msgspec
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import LedgerError
from flower_kmeans.privacy.ledger import (
    FORGET_AFTER,
    Ledger,
    LifetimeLimit,
    MemoryChangedError,
)
from flower_kmeans.protocol.session import (
    DELIVERED,
    FORGOTTEN,
    ClientSession,
    ContextMemory,
    LastAnswer,
    LastVote,
    LedgerMemory,
    forget_unfinished,
    remove_copies,
    unpack_session,
)
from flower_kmeans.protocol.transcript import first_hash
from flower_kmeans.protocol.wire import encode

RUN, OTHER = b"r" * 32, b"o" * 32
LIMIT = LifetimeLimit(1.0, 1e-6)
RECORDS = np.arange(6.0).reshape(3, 2)
ANSWER = LastAnswer(2, 1, b"c" * 32, b"d" * 32)
VOTE = LastVote(2, b"v" * 32)


def begun(commitment=b"m" * 32):
    session = ClientSession.begin(RUN, b"document", 1)
    session.commitment = commitment
    return session


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "state") as opened:
        yield opened


@pytest.fixture(params=["context", "ledger"])
def memory(request, tmp_path):
    if request.param == "context":
        yield ContextMemory(RecordDict())
    else:
        with Ledger(tmp_path / "state") as opened:
            yield LedgerMemory(opened, LIMIT, tmp_path / "state")


def test_a_new_session_has_secrets_of_its_own():
    first, second = begun(), begun()
    secrets = {first.secret, first.ephemeral, second.secret, second.ephemeral}
    assert list(map(len, secrets)) == [32] * 4
    assert first.h == first_hash(RUN)


FIELDS = dict.fromkeys(ClientSession.__struct_fields__, st.binary(max_size=40))
FIELDS |= {"software": st.text(max_size=9)}
NUMBERS = ("slot", "n_sessions", "head", "n_answers", "n_records", "over")


@settings(deadline=None)
@given(
    st.builds(ClientSession, **FIELDS | dict.fromkeys(NUMBERS, st.integers(-1, 2**17)))
)
def test_a_session_survives_its_encoding_shows_no_bytes_and_ends_with_none(session):
    assert unpack_session(encode(session)) == session
    shown = (
        f"ClientSession(slot={session.slot}, head={session.head}, over={session.over})"
    )
    assert repr(session) == str(session) == shown
    session.end(DELIVERED)
    assert session == ClientSession(over=DELIVERED)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_bytes_that_are_no_session_are_an_error(data):
    try:
        session = unpack_session(data)
    except LedgerError:
        return
    assert encode(session) == data if data else session == ClientSession(over=FORGOTTEN)


def test_an_empty_memory_knows_nothing(memory):
    assert memory.load(RUN) is None
    assert memory.last_answer(RUN) is None
    assert memory.last_vote(RUN) is None
    assert memory.load_records(RUN, begun()) is None


def test_runs_are_kept_apart_and_last_answer_and_last_vote_outlive_sessions(memory):
    first, second = begun(), begun()
    for run, session in ((RUN, first), (OTHER, second)):
        memory.load(run)
        memory.save(run, session)
    memory.answer(RUN, ANSWER, None, first)
    memory.vote(OTHER, VOTE, None, second)
    assert (memory.load(RUN), memory.load(OTHER)) == (first, second)
    memory.save(RUN, begun())
    second.end(DELIVERED)
    memory.save(OTHER, second)
    assert memory.load(OTHER) == ClientSession(over=DELIVERED)
    assert (memory.last_answer(RUN), memory.last_answer(OTHER)) == (ANSWER, None)
    assert (memory.last_vote(RUN), memory.last_vote(OTHER)) == (None, VOTE)


@pytest.mark.parametrize(
    "record",
    [
        ConfigRecord({"session": "text"}),
        ConfigRecord({"session": [b"x"]}),
        ArrayRecord([RECORDS]),
    ],
)
def test_what_others_wrote_into_a_context_is_no_session(record):
    assert ContextMemory(RecordDict({f"kmeans.{RUN.hex()}": record})).load(RUN) is None


def test_another_process_between_reading_and_writing_is_noticed(ledger, tmp_path):
    first, second = (LedgerMemory(ledger, LIMIT, tmp_path / "state") for _ in range(2))
    session = begun()
    first.load(RUN)
    second.load(RUN)
    first.save(RUN, session)
    for write, *what in (
        (second.save,),
        (second.answer, ANSWER, None),
        (second.vote, VOTE, None),
    ):
        with pytest.raises(MemoryChangedError):
            write(RUN, *what, begun())
    assert second.last_answer(RUN) is None
    second.load(RUN)
    first.save(RUN, session)  # it did not change, so it is not written
    second.save(RUN, begun())


def saved(memory, session):
    memory.load(RUN)
    memory.save(RUN, session)
    memory.save_records(RUN, session, [RECORDS[:1], RECORDS[1:]], RECORDS.shape)


def files(tmp_path):
    return sorted((tmp_path / "state").glob("records-*"))


def test_a_copy_of_records_is_kept_as_long_as_its_session(memory, tmp_path):
    session, renewed = begun(), begun(b"n" * 32)
    saved(memory, session)
    np.testing.assert_array_equal(memory.load_records(RUN, session).loaded(), RECORDS)
    assert memory.load_records(OTHER, session) is None
    assert memory.load_records(RUN, renewed) is None
    memory.save(RUN, renewed)
    assert memory.load_records(RUN, session) is None
    assert not files(tmp_path)
    memory.save_records(RUN, renewed, [RECORDS], RECORDS.shape)
    ended = msgspec.structs.replace(renewed)
    ended.end(DELIVERED)
    memory.save(RUN, ended)
    assert memory.load_records(RUN, renewed) is None
    assert not files(tmp_path)
    if isinstance(memory, ContextMemory):
        assert (
            len(b"".join(memory._state[f"kmeans.{RUN.hex()}"].values()))
            < RECORDS.nbytes
        )


@pytest.mark.parametrize("sizes", [(), (0,), (1, 2), (3, 0)])
def test_what_a_live_source_yields_once_is_held_without_a_file_of_a_name(
    memory, tmp_path, sizes
):
    rows = RECORDS[: sum(sizes)]
    block = np.empty((3, 2))  # which blocks of a source share

    def blocks():
        start = 0
        for size in sizes:
            block[:size] = rows[start : start + size]
            start += size
            yield block[:size]

    source = memory.held(blocks(), 2)
    block[:] = 9
    for _ in range(2):
        np.testing.assert_array_equal(source.loaded(), rows)
    assert (source.n_rows, source.n_features) == rows.shape
    if not isinstance(memory, ContextMemory):
        assert {path.name for path in (tmp_path / "state").iterdir()} == {
            "ledger.sqlite3"
        }


def test_records_that_cannot_be_held_are_an_error(ledger, tmp_path):
    with pytest.raises(LedgerError, match="cannot be copied"):
        LedgerMemory(ledger, LIMIT, tmp_path / "no").held([RECORDS], 2)


def test_files_of_records_are_their_owners_and_go_with_their_session(ledger, tmp_path):
    memory, session = LedgerMemory(ledger, LIMIT, tmp_path / "state"), begun()
    before = os.umask(0)
    try:
        saved(memory, session)
    finally:
        os.umask(before)
    (path,) = files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    left = path.with_suffix(".abc.part")
    left.write_bytes(b"half a copy, which a process left behind")
    saved(memory, session)
    assert files(tmp_path) == sorted([path, left])
    for damage in (b"", b"text", b"\x93NUMPY\x01\x00"):
        path.write_bytes(damage)
        assert memory.load_records(RUN, session) is None
    session.end(DELIVERED)
    memory.save(RUN, session)
    assert not files(tmp_path)
    elsewhere = LedgerMemory(ledger, LIMIT, tmp_path / "no")
    with pytest.raises(LedgerError, match="cannot be copied"):
        elsewhere.save_records(RUN, begun(), [RECORDS], RECORDS.shape)


@pytest.mark.claim("threat-model", "24")
def test_copies_of_forgotten_runs_are_removed(ledger, tmp_path):
    memory, session = LedgerMemory(ledger, LIMIT, tmp_path / "state"), begun()
    saved(memory, session)
    memory.answer(RUN, ANSWER, None, session)
    ledger.save(OTHER, 0, b"\xc1 no session")  # what cannot be read is forgotten too
    assert forget_unfinished(ledger) == 2
    remove_copies(tmp_path / "state", ledger)
    assert not files(tmp_path)
    assert memory.load(RUN) == ClientSession(over=FORGOTTEN)
    assert memory.last_answer(RUN) == ANSWER
    assert forget_unfinished(ledger) == 0


@pytest.mark.claim("threat-model", "24")
@pytest.mark.parametrize("answered", [False, True])
def test_the_next_message_removes_copies_of_runs_that_grew_old(tmp_path, answered):
    def memory_after(seconds):
        ledger = opened.enter_context(
            Ledger(state, clock=lambda: 1_000_000.0 + seconds)
        )
        return LedgerMemory(ledger, LIMIT, state)

    state, session = tmp_path / "state", begun()
    with ExitStack() as opened:
        memory = memory_after(0)
        saved(memory, session)
        if answered:
            memory.answer(RUN, ANSWER, None, session)
        memory_after(FORGET_AFTER - 2)
        assert files(tmp_path)
        memory = memory_after(FORGET_AFTER + 2)
        assert not files(tmp_path)
        assert memory.load(RUN) == (ClientSession(over=FORGOTTEN) if answered else None)


def test_other_files_beside_the_ledger_stay(ledger, tmp_path):
    for name in ("records-of-2026.csv", "records--.npy", "notes", "records-zz-yy.npy"):
        (tmp_path / "state" / name).write_text("mine")
    LedgerMemory(ledger, LIMIT, tmp_path / "state")
    assert len(list((tmp_path / "state").glob("*"))) == 5
