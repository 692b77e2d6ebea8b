"""What a vertical run leaves at a node beside its session, and how it is removed.

This is apart from `vertical`, because a client looks for it at every message of every
run, and its process starts faster without what computes.
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
    """Return under which name a joint holder keeps what it needs of a run."""
    return f"kmeans.{doc_hash.hex()}.witness"


def forget_witness(state: RecordDict, doc_hash: bytes) -> None:
    """Erase what a joint holder keeps of a run in its context's state."""
    state.pop(witness_name(doc_hash), None)


def repeated(request: Turn, former: ClientSession) -> Sent:
    """Return the last reply of a session that ended with its result, if it is requested again."""
    reply: Sent = decode(former.vertical, Sent)
    if request.step != ("close" if reply.parcels else "finish"):
        raise RefuseError(Code.STALE)
    return reply


# ---------------------------------------------------------------------- party 0's files


def work_dir(policy: ClientPolicy) -> Path | None:
    """Return where a policy keeps the files of vertical runs, or ``None``."""
    if policy.work_dir is not None:
        return Path(policy.work_dir)
    return None if policy.state_dir is None else Path(policy.state_dir) / "vertical"


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
    directory, is_shared = work_dir(policy), policy.work_dir is not None
    for path in () if directory is None else directory.glob("?" * 64):
        with suppress(ValueError, errors.LedgerError):
            doc_hash = bytes.fromhex(path.name)
            found = ledger.load(doc_hash)
            if unpack_session(found[1]).over if found else not is_shared:
                try:
                    erase(policy, doc_hash)
                except OSError as error:
                    log.warning("%s cannot be removed: %s.", path, error)
