"""Leftovers of a vertical run at a node, beside its session, and their removal.

This is apart from `vertical`, because a client looks for it at every message of every
run, and its process starts faster without the modules that compute.
"""

import logging
from contextlib import suppress
from pathlib import Path

from flwr.app import RecordDict

from flower_kmeans import errors
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.messages import Code, Sent, Turn
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.session import ClientSession, unpack_session
from flower_kmeans.protocol.wire import decode
from flower_kmeans.vertical.store import Store

log = logging.getLogger("flower_kmeans.client")


def witness_name(doc_hash: bytes) -> str:
    """Return the name of a joint holder's witness of a run."""
    return f"kmeans.{doc_hash.hex()}.witness"


def forget_witness(state: RecordDict, doc_hash: bytes) -> None:
    """Erase a joint holder's witness of a run from its context's state."""
    state.pop(witness_name(doc_hash), None)


def repeated(request: Turn, former: ClientSession) -> Sent:
    """Return the last reply of a session that ended with its result, for a repeat."""
    reply: Sent = decode(former.vertical, Sent)
    last_step = "close" if reply.parcels else "finish"
    if request.step != last_step:
        raise RefuseError(Code.STALE)
    return reply


# ---------------------------------------------------------------------- party 0's files


def work_dir(policy: ClientPolicy) -> Path | None:
    """Return the directory of the files of vertical runs, or ``None``."""
    if policy.work_dir is not None:
        return Path(policy.work_dir)
    if policy.state_dir is None:
        return None
    return Path(policy.state_dir) / "vertical"


def erase(policy: ClientPolicy, doc_hash: bytes) -> None:
    """Remove the files of a run."""
    directory = work_dir(policy)
    if directory is not None:
        Store(directory / doc_hash.hex()).erase()


def erase_ended(policy: ClientPolicy, ledger: Ledger) -> None:
    """Remove the files of runs that ended in a ledger, or that it dropped.

    In a ``work_dir`` beside the ledger runs of other ledgers may lie, which it does not
    know.
    """
    directory = work_dir(policy)
    if directory is None:
        return
    is_shared = policy.work_dir is not None
    for path in directory.glob("?" * 64):
        with suppress(ValueError, errors.LedgerError):
            doc_hash = bytes.fromhex(path.name)
            found = ledger.load(doc_hash)
            is_over = not is_shared
            if found:
                _, session = found
                is_over = bool(unpack_session(session).over)
            if is_over:
                try:
                    erase(policy, doc_hash)
                except OSError as error:
                    log.warning("%s cannot be removed: %s.", path, error)
