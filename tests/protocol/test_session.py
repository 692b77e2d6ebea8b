"""What a client remembers of a run, in a context's state and in a ledger."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import LedgerError
from flower_kmeans.privacy.ledger import FORGET_AFTER, Ledger, Limit, MemoryChangedError
from flower_kmeans.protocol.session import (
    DELIVERED,
    FORGOTTEN,
    ClientSession,
    ContextMemory,
    LastAnswer,
    LastVote,
    LedgerMemory,
    Memory,
    forget_unfinished,
    remove_copies,
    unpack_session,
)
from flower_kmeans.protocol.transcript import first_hash
from flower_kmeans.protocol.wire import encode

RUN, OTHER = b"r" * 32, b"o" * 32
LIMIT = Limit(1.0, 1e-6)
RECORDS = np.arange(6.0).reshape(3, 2)
ANSWER = LastAnswer(2, 1, b"c" * 32, b"d" * 32)
VOTE = LastVote(2, b"v" * 32)


def begun(commitment: bytes = b"m" * 32) -> ClientSession:
    session = ClientSession.begin(RUN, b"document", 1)
    session.commitment = commitment
    return session


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "state") as opened:
        yield opened


@pytest.fixture(params=["context", "ledger"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    if request.param == "context":
        yield ContextMemory(RecordDict())
    else:
        with Ledger(tmp_path / "state") as opened:
            yield LedgerMemory(opened, LIMIT, tmp_path / "state")


# ------------------------------------------------------------------------------ sessions


def test_a_new_session_has_secrets_of_its_own() -> None:
    first, second = begun(), begun()
    assert len({first.secret, first.ephemeral, second.secret, second.ephemeral}) == 4
    assert {len(first.secret), len(first.ephemeral)} == {32}
    assert (first.slot, first.head, first.over) == (-1, 0, 0)
    assert first.h == first_hash(RUN)


SESSIONS = st.builds(
    ClientSession,
    **{
        name: st.binary(max_size=40)
        for name in (
            *("secret", "ephemeral", "commitment", "document", "group_secret"),
            *("drawn_secret", "h", "state", "answered"),
        )
    },
    slot=st.integers(-1, 2**17),
    n_sessions=st.integers(1, 3),
    head=st.integers(0, 1000),
    over=st.integers(0, 3),
)


@settings(deadline=None)
@given(SESSIONS)
def test_a_session_survives_its_encoding(session: ClientSession) -> None:
    assert unpack_session(encode(session)) == session


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=80))
def test_bytes_that_are_no_session_are_an_error(data: bytes) -> None:
    try:
        session = unpack_session(data)
    except LedgerError:
        return
    assert encode(session) == data


def test_an_erased_session_is_over() -> None:
    assert unpack_session(b"").over == FORGOTTEN


@settings(deadline=None)
@given(SESSIONS)
def test_repr_shows_no_bytes(session: ClientSession) -> None:
    assert repr(session) == (
        f"ClientSession(slot={session.slot}, head={session.head}, over={session.over})"
    )
    assert str(session) == repr(session)


@settings(deadline=None)
@given(SESSIONS)
def test_a_session_that_ended_holds_nothing(session: ClientSession) -> None:
    session.end(DELIVERED)
    assert session == ClientSession(over=DELIVERED)


# ------------------------------------------------------------------------------ memories


def test_an_empty_memory_knows_nothing(memory: Memory) -> None:
    assert memory.load(RUN) is None
    assert memory.last_answer(RUN) is None
    assert memory.last_vote(RUN) is None
    assert memory.load_records(RUN, begun()) is None


def test_runs_are_kept_apart(memory: Memory) -> None:
    first, second = begun(), begun()
    for run, session in ((RUN, first), (OTHER, second)):
        memory.load(run)
        memory.save(run, session)
    memory.answer(RUN, ANSWER, None, first)
    memory.vote(OTHER, VOTE, second)
    assert memory.load(RUN) == first
    assert memory.load(OTHER) == second
    assert memory.last_answer(RUN) == ANSWER
    assert memory.last_answer(OTHER) is None
    assert memory.last_vote(RUN) is None
    assert memory.last_vote(OTHER) == VOTE


def test_last_answer_and_last_vote_outlive_sessions(memory: Memory) -> None:
    session = begun()
    memory.load(RUN)
    memory.save(RUN, session)
    memory.answer(RUN, ANSWER, None, session)
    memory.vote(RUN, VOTE, session)
    memory.save(RUN, begun())
    session.end(DELIVERED)
    memory.save(RUN, session)
    assert memory.load(RUN) == ClientSession(over=DELIVERED)
    assert memory.last_answer(RUN) == ANSWER
    assert memory.last_vote(RUN) == VOTE


@pytest.mark.parametrize(
    "record",
    [
        ConfigRecord({"session": "text"}),
        ConfigRecord({"session": [b"x"]}),
        ConfigRecord({}),
        ArrayRecord([np.zeros(2)]),
    ],
)
def test_what_others_wrote_into_a_context_is_no_session(record: ConfigRecord) -> None:
    assert ContextMemory(RecordDict({f"kmeans.{RUN.hex()}": record})).load(RUN) is None


def test_another_process_between_reading_and_writing_is_noticed(
    ledger: Ledger, tmp_path: Path
) -> None:
    first, second = (LedgerMemory(ledger, LIMIT, tmp_path / "state") for _ in range(2))
    first.load(RUN)
    second.load(RUN)
    first.save(RUN, begun())
    for write in (
        lambda: second.save(RUN, begun()),
        lambda: second.answer(RUN, ANSWER, None, begun()),
        lambda: second.vote(RUN, VOTE, begun()),
    ):
        with pytest.raises(MemoryChangedError):
            write()
    assert second.last_answer(RUN) is None


def test_a_session_that_did_not_change_is_not_written(ledger: Ledger, tmp_path: Path) -> None:
    first, second = (LedgerMemory(ledger, LIMIT, tmp_path / "state") for _ in range(2))
    session = begun()
    first.load(RUN)
    first.save(RUN, session)
    second.load(RUN)
    first.save(RUN, session)
    second.save(RUN, begun())  # no MemoryChangedError


# ------------------------------------------------------------------------------ copies of records


def saved(memory: Memory, session: ClientSession) -> None:
    memory.load(RUN)
    memory.save(RUN, session)
    memory.save_records(RUN, session, RECORDS)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "state").glob("records-*"))


def test_a_copy_of_records_is_kept_as_long_as_its_session(memory: Memory, tmp_path: Path) -> None:
    session = begun()
    saved(memory, session)
    copy = memory.load_records(RUN, session)
    assert copy is not None
    np.testing.assert_array_equal(copy, RECORDS)
    assert memory.load_records(OTHER, session) is None
    assert memory.load_records(RUN, begun(b"n" * 32)) is None
    renewed = begun(b"n" * 32)
    memory.save(RUN, renewed)
    assert memory.load_records(RUN, session) is None
    assert not files(tmp_path)
    memory.save_records(RUN, renewed, RECORDS)
    ended = msgspec.structs.replace(renewed)
    ended.end(DELIVERED)
    memory.save(RUN, ended)
    assert memory.load_records(RUN, renewed) is None
    assert not files(tmp_path)


def test_a_context_holds_no_bytes_of_records_after_the_end() -> None:
    state = RecordDict()
    memory, session = ContextMemory(state), begun()
    saved(memory, session)
    assert RECORDS.tobytes() in b"".join(v for v in state[f"kmeans.{RUN.hex()}"].values())
    session.end(DELIVERED)
    memory.save(RUN, session)
    assert RECORDS.tobytes() not in b"".join(v for v in state[f"kmeans.{RUN.hex()}"].values())


def test_files_of_records_are_their_owners_alone(ledger: Ledger, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        saved(LedgerMemory(ledger, LIMIT, tmp_path / "state"), begun())
    finally:
        os.umask(before)
    (path,) = files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_a_process_left_behind_goes_with_its_session(
    ledger: Ledger, tmp_path: Path
) -> None:
    memory, session = LedgerMemory(ledger, LIMIT, tmp_path / "state"), begun()
    saved(memory, session)
    (path,) = files(tmp_path)
    left = path.with_suffix(".abc.part")
    left.write_bytes(b"half a copy")
    saved(memory, session)
    assert files(tmp_path) == sorted([path, left])
    session.end(DELIVERED)
    memory.save(RUN, session)
    assert not files(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"text", b"\x93NUMPY\x01\x00"])
def test_a_damaged_copy_counts_as_none(ledger: Ledger, tmp_path: Path, damage: bytes) -> None:
    memory, session = LedgerMemory(ledger, LIMIT, tmp_path / "state"), begun()
    saved(memory, session)
    files(tmp_path)[0].write_bytes(damage)
    assert memory.load_records(RUN, session) is None


def test_a_copy_that_cannot_be_written_is_a_ledger_error(ledger: Ledger, tmp_path: Path) -> None:
    memory = LedgerMemory(ledger, LIMIT, tmp_path / "missing")
    with pytest.raises(LedgerError, match="cannot be copied"):
        memory.save_records(RUN, begun(), RECORDS)


def test_copies_of_forgotten_runs_are_removed(ledger: Ledger, tmp_path: Path) -> None:
    memory, session = LedgerMemory(ledger, LIMIT, tmp_path / "state"), begun()
    saved(memory, session)
    memory.answer(RUN, ANSWER, None, session)
    assert forget_unfinished(ledger) == 1
    remove_copies(tmp_path / "state", ledger)
    assert not files(tmp_path)
    assert memory.load(RUN) == ClientSession(over=FORGOTTEN)
    assert memory.last_answer(RUN) == ANSWER
    assert forget_unfinished(ledger) == 0


def test_runs_that_cannot_be_read_are_forgotten_too(ledger: Ledger) -> None:
    ledger.save(RUN, 0, b"\xc1 no session")
    assert forget_unfinished(ledger) == 1


@pytest.mark.parametrize("answered", [False, True])
def test_the_next_message_removes_copies_of_runs_that_grew_old(
    tmp_path: Path, answered: bool
) -> None:
    now = 1_000_000.0
    state = tmp_path / "state"
    with Ledger(state, clock=lambda: now) as ledger:
        memory, session = LedgerMemory(ledger, LIMIT, state), begun()
        saved(memory, session)
        if answered:
            memory.answer(RUN, ANSWER, None, session)
    with Ledger(state, clock=lambda: now + FORGET_AFTER - 2) as ledger:
        LedgerMemory(ledger, LIMIT, state)
        assert files(tmp_path)
    with Ledger(state, clock=lambda: now + FORGET_AFTER + 2) as ledger:
        memory = LedgerMemory(ledger, LIMIT, state)
        assert not files(tmp_path)
        found = memory.load(RUN)
        assert found is None if not answered else found == ClientSession(over=FORGOTTEN)


def test_other_files_beside_the_ledger_stay(ledger: Ledger, tmp_path: Path) -> None:
    for name in ("records-of-2026.csv", "records--.npy", "notes", "records-zz-yy.npy"):
        (tmp_path / "state" / name).write_text("mine")
    LedgerMemory(ledger, LIMIT, tmp_path / "state")
    assert len(list((tmp_path / "state").glob("*"))) == 5
