"""What must hold after any fault: the right result, one charge per run, fresh keys, no leak."""

import base64
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2
from sklearn.cluster import KMeans

from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.privacy.ledger_file import FILE_NAME

# In squared units of records that lie within 14 of 0. The noise of such a run makes about 2e-4.
CLOSE = 0.01
# A mask used twice leaves the difference of two statistics: sums of some 10,000 records on a grid
# of 2^-16 stay far below 2^48, and a uniform word does so once in 2^15 times.
_SMALL = 1 << 48
_SMALL_WORDS = 3
_CHANCE = 1e-9
_RECORDS = 20
_PLAIN = 8  # characters; a number as plain as 0.0 is found anywhere

Sent = dict[str, Any]


def sent_by(hooks: Path) -> list[Sent]:
    """Return what a node answered, oldest first, as the app of the test kept it."""
    path = hooks / "sent.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def result_complaints(
    results: Sequence[Path], must_have: Iterable[int], partitions: Sequence[NDArray[np.float64]]
) -> list[str]:
    """Return what is wrong with the nodes' results.

    Parameters
    ----------
    results : sequence of Path
        Result file of each node, there or not.
    must_have : iterable of int
        Nodes that must have one.
    partitions : sequence of ndarray of shape (n_i, d)
        All records.
    """
    complaints = [f"node {i} has no result" for i in must_have if not results[i].exists()]
    found = []
    for path in results:
        if path.exists():
            with np.load(path) as result:
                found.append((result["centroids"], result["counts"]))
    if not found:
        return [*complaints, "no node has a result"]
    if any(not all(map(np.array_equal, one, found[0])) for one in found):
        complaints.append("nodes have different results")
    records = np.vstack(partitions)
    solution = KMeans(len(found[0][0]), n_init=5, random_state=0).fit(records).cluster_centers_
    error = matched_centroid_error(found[0][0], solution)
    if not error < CLOSE:
        complaints.append(f"the result is {error:.3g} away from the non-private solution")
    return complaints


def ledger_complaints(
    state_dirs: Sequence[Path], n_runs: int, epsilon: float, delta: float
) -> list[str]:
    """Return what is wrong with the nodes' accounts.

    Parameters
    ----------
    state_dirs : sequence of Path
    n_runs : int
        How many runs each node answered at least once.
    epsilon, delta : float
        Of one run.
    """
    complaints = []
    for i, state_dir in enumerate(state_dirs):
        runs, total = charged(state_dir, delta)
        if runs != n_runs:
            complaints.append(f"node {i} charged {runs} runs instead of {n_runs}")
        # Less where a node missed a round: what the run did not use has come back.
        if n_runs == 1 and not 0 < total <= epsilon * 1.001:
            complaints.append(f"node {i} is charged epsilon {total:.4g} instead of {epsilon:g}")
        if n_runs > 1 and not epsilon < total <= n_runs * epsilon:
            complaints.append(f"node {i} is charged epsilon {total:.4g} for {n_runs} runs")
    return complaints


def charged(state_dir: Path, delta: float) -> tuple[int, float]:
    """Return in how many runs a ledger charged answers, and epsilon of all charges."""
    if not (state_dir / FILE_NAME).exists():
        return 0, 0.0
    with sqlite3.connect(f"file:{state_dir / FILE_NAME}?mode=ro", uri=True) as database:
        (runs,) = database.execute("SELECT COUNT(round) FROM runs").fetchone()
    database.close()
    with Ledger(state_dir) as ledger:
        return runs, ledger.epsilon(delta)


def secrecy_complaints(sent: Iterable[Sent]) -> list[str]:
    """Return what is wrong with the ciphertexts, all that were ever made.

    An attempt at a round has one answer, and a round one sum-share, however often they are sent:
    with two of them the server could subtract. No two different ciphertexts may share a mask.
    """
    by_place: dict[tuple[int, str], set[bytes]] = defaultdict(set)
    for line in sent:
        if line["words"]:
            number = f"{line['attempt']} " if line["kind"] == "ask" else ""
            place = f"{line['kind']} {number}of round {line['t']} of run {line['run'][:8]}"
            by_place[line["node"], place].add(base64.b64decode(line["words"]))
    if not by_place:
        return ["there is no ciphertext"]
    complaints = [
        f"node {node} sent {len(words)} ciphertexts for {place}"
        for (node, place), words in by_place.items()
        if len(words) > 1
    ]
    # Sealed shares may have any length; whole words are compared.
    vectors = [
        np.frombuffer(one, "<u8", len(one) // 8) for words in by_place.values() for one in words
    ]
    for first, second in combinations(vectors, 2):
        length = min(len(first), len(second))
        difference = (first[:length] - second[:length]).astype(np.int64)  # modulo 2^64
        if np.count_nonzero(np.abs(difference) < _SMALL) >= min(_SMALL_WORDS, length):
            complaints.append("two ciphertexts share a mask")
    counts = np.bincount(np.frombuffer(b"".join(map(bytes, vectors)), np.uint8), minlength=256)
    expected = counts.sum() / 256
    if ((counts - expected) ** 2 / expected).sum() > chi2.isf(_CHANCE, 255):
        complaints.append("the bytes of the ciphertexts are not uniform")
    return complaints


def n_ciphertexts(sent: Iterable[Sent]) -> tuple[int, int]:
    """Return how many ciphertexts were made, and how many of them differ."""
    words = [line["words"] for line in sent if line["words"]]
    return len(words), len(set(words))


def leak_complaints(
    files: Iterable[Path],
    results: Sequence[Path],
    partitions: Sequence[NDArray[np.float64]],
    texts: Iterable[str],
) -> list[str]:
    """Return which files of the server's side hold a centroid, a record or a node's error text."""
    values = [part[:_RECORDS] for part in partitions]
    for path in results:
        if path.exists():
            with np.load(path) as result:
                values.append(result["centroids"])
    needles = [text.encode() for text in texts]
    for value in np.concatenate([np.ravel(part) for part in values]):
        digits = repr(float(value)).encode()
        if len(digits) > _PLAIN:
            needles += [np.float64(value).tobytes(), digits]
    complaints = []
    for path in files:
        content = path.read_bytes()
        found = sum(needle in content for needle in needles)
        if found:
            complaints.append(f"{path.name} holds {found} values that it must not hold")
    return complaints


def dropped(report: Mapping[str, Any], nodes: Mapping[int, int]) -> Iterator[tuple[int, int, str]]:
    """Yield (node, round, reason) of a report; ``nodes`` gives our number of Flower's node id."""
    for entry in report["dropped"]:
        yield nodes.get(entry["node_id"], -1), entry["round"], entry["reason"]
