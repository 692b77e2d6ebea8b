"""Removal of the leftovers of a run at a node, beside its session.

Some kinds of runs keep files in a directory that is named by the hash of the run
document, and records in the context's state. A client looks for them at every message of
every run, without the modules of these kinds.
"""

import logging
import shutil
from contextlib import suppress
from pathlib import Path

from flwr.app import RecordDict

from flower_kmeans import errors
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.protocol.kinds import kind_names
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.session import unpack_session

log = logging.getLogger("flower_kmeans.client")


# ----------------------------------------------------------------- in the context's state


def record_name(doc_hash: bytes, name: str) -> str:
    """Return the name of a run's record in the context's state, beside its session."""
    return f"kmeans.{doc_hash.hex()}.{name}"


def forget_records(state: RecordDict, doc_hash: bytes) -> None:
    """Erase the records of a run beside its session."""
    first = record_name(doc_hash, "")
    for name in [name for name in state if name.startswith(first)]:
        state.pop(name)


# ------------------------------------------------------------------------------- files


def work_dir(policy: ClientPolicy, kind: str) -> Path | None:
    """Return the directory for files of a kind's runs, or ``None`` if the policy has none."""
    if policy.work_dir is not None:
        return Path(policy.work_dir)
    if policy.state_dir is None:
        return None
    return Path(policy.state_dir) / kind


def _work_dirs(policy: ClientPolicy) -> set[Path]:
    found = {work_dir(policy, kind) for kind in kind_names()}
    return {directory for directory in found if directory is not None}


def _erase(directory: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)


def erase(policy: ClientPolicy, doc_hash: bytes) -> None:
    """Remove the files of a run."""
    for directory in _work_dirs(policy):
        _erase(directory / doc_hash.hex())


def erase_ended(policy: ClientPolicy, ledger: Ledger) -> None:
    """Remove the files of runs that ended, or that the ledger forgot.

    A ``work_dir`` can also hold runs of other ledgers: there, only runs in the ledger are
    removed.
    """
    is_shared = policy.work_dir is not None
    for directory in _work_dirs(policy):
        for path in directory.glob("?" * 64):
            with suppress(ValueError, errors.LedgerError):
                found = ledger.load(bytes.fromhex(path.name))
                is_over = not is_shared
                if found:
                    _, session = found
                    is_over = bool(unpack_session(session).over)
                if is_over:
                    try:
                        _erase(path)
                    except OSError as error:
                        log.warning("%s cannot be removed: %s.", path, error)
