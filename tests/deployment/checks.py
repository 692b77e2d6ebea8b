"""What must hold after any run: the right result, one charge per run, fresh keys, no leak.

After an undisturbed one also: one good result at all nodes, none of it at the server.
"""

import base64
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import ROOT, Deployment, deployment
from numpy.typing import NDArray
from scipy.stats import chi2
from sklearn.cluster import KMeans

from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.strategies import FastLloyd

# In squared units of records that lie within 14 of 0. The noise of such a run makes
# about 2e-4; this is ten standard deviations of it and more.
CLOSE = 0.01
# A mask used twice leaves the difference of two statistics: sums of some 10,000 records
# on a grid of 2^-16 stay far below 2^48, and a uniform word does so once in 2^15 times.
_SMALL = 1 << 48
_SMALL_WORDS = 3
_CHANCE = 1e-9
_PLAIN = 8  # characters; a number as plain as 0.0 is found anywhere

PAGE = (ROOT / "docs" / "deploy.md").read_text("utf-8")
ROUNDS = 3
BLIND = {"strategy": "fastlloyd", "trust": "oblivious-server", "n-rounds": ROUNDS}

NEVER_SEEN = "Clients have the centroids."  # in a page of an oblivious server

Sent = dict[str, Any]


def sent_by(hooks: Path) -> list[Sent]:
    """Return what a node answered, oldest first, as the app of the test kept it."""
    path = hooks / "sent.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def read_result(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return centroids and noisy sizes of a node's result file."""
    with np.load(path) as result:
        return result["centroids"], result["counts"]


def distance_to_solution(
    centroids: NDArray[np.float64], partitions: Sequence[NDArray[np.float64]]
) -> float:
    """Return how far centroids are from those that k-means finds in all records."""
    means = KMeans(len(centroids), n_init=5, random_state=0).fit(np.vstack(partitions))
    return matched_centroid_error(centroids, means.cluster_centers_)


def result_complaints(
    results: Sequence[Path],
    must_have: Iterable[int],
    partitions: Sequence[NDArray[np.float64]],
) -> list[str]:
    """Return what is wrong with the nodes' results."""
    complaints = [
        f"node {i} has no result" for i in must_have if not results[i].exists()
    ]
    found = [read_result(path) for path in results if path.exists()]
    if not found:
        return [*complaints, "no node has a result"]
    if any(not all(map(np.array_equal, one, found[0])) for one in found):
        complaints.append("nodes have different results")
    error = distance_to_solution(found[0][0], partitions)
    if not error < CLOSE:
        complaints.append(
            f"the result is {error:.3g} away from the non-private solution"
        )
    return complaints


def ledger_complaints(
    state_dirs: Sequence[Path], n_runs: int, epsilon: float, delta: float
) -> list[str]:
    """Return what is wrong with the nodes' accounts."""
    complaints = []
    for i, state_dir in enumerate(state_dirs):
        runs, total = charged(state_dir, delta)
        if runs != n_runs:
            complaints.append(f"node {i} charged {runs} runs instead of {n_runs}")
        # Less where a node missed a round: what the run did not use has come back.
        if n_runs == 1 and not 0 < total <= epsilon * 1.001:
            complaints.append(
                f"node {i} is charged epsilon {total:.4g} instead of {epsilon:g}"
            )
        if n_runs > 1 and not epsilon < total <= n_runs * epsilon:
            complaints.append(
                f"node {i} is charged epsilon {total:.4g} for {n_runs} runs"
            )
    return complaints


def charged(state_dir: Path, delta: float) -> tuple[int, float]:
    """Return in how many runs a ledger charged answers, and epsilon of all charges."""
    if not (state_dir / FILE_NAME).exists():
        return 0, 0.0
    with closing(
        sqlite3.connect(f"file:{state_dir / FILE_NAME}?mode=ro", uri=True)
    ) as database:
        (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if not tables:  # its disk was full before anything could be written
            return 0, 0.0
        (runs,) = database.execute("SELECT COUNT(round) FROM runs").fetchone()
    with Ledger(state_dir) as ledger:
        return runs, ledger.epsilon(delta)


def secrecy_complaints(sent: Iterable[Sent]) -> list[str]:
    """Return what is wrong with the ciphertexts, all that were ever made.

    An attempt at a round has one answer, and a round one sum-share, however often they
    are sent: with two of them the server could subtract. No two different ciphertexts
    may share a mask.
    """
    by_place: dict[tuple[int, str], set[bytes]] = defaultdict(set)
    for line in sent:
        if line["words"]:
            number = f"{line['attempt']} " if line["kind"] == "ask" else ""
            place = (
                f"{line['kind']} {number}of round {line['t']} of run {line['run'][:8]}"
            )
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
        np.frombuffer(one, "<u8", len(one) // 8)
        for words in by_place.values()
        for one in words
    ]
    for first, second in combinations(vectors, 2):
        length = min(len(first), len(second))
        difference = (first[:length] - second[:length]).astype(np.int64)  # modulo 2^64
        if np.count_nonzero(np.abs(difference) < _SMALL) >= min(_SMALL_WORDS, length):
            complaints.append("two ciphertexts share a mask")
    counts = np.bincount(
        np.frombuffer(b"".join(map(bytes, vectors)), np.uint8), minlength=256
    )
    expected = counts.sum() / 256
    if ((counts - expected) ** 2 / expected).sum() > chi2.isf(_CHANCE, 255):
        complaints.append("the bytes of the ciphertexts are not uniform")
    return complaints


def n_ciphertexts(sent: Iterable[Sent]) -> tuple[int, int]:
    """Return how many ciphertexts were made, and how many of them differ."""
    words = [line["words"] for line in sent if line["words"]]
    return len(words), len(set(words))


def server_files(running: Deployment) -> list[Path]:
    """Return all that server and SuperLink left in files, and the logs of all processes."""
    database = running.directory / "link" / "superlink.db"
    if not database.exists():
        raise FileNotFoundError(database)
    return [
        *running.directory.glob("report*"),  # each as JSON and as a page
        *running.processes.logs.glob("*.log"),
        *database.parent.glob("superlink.db*"),
    ]


def leak_complaints(
    files: Iterable[Path],
    arrays: Iterable[NDArray[np.float64]],
    texts: Iterable[str] = (),
) -> list[str]:
    """Return which files hold a text or what is in an array, as bytes or as digits.

    A single number may be as plain as 0.0, which is found anywhere, so its bytes and
    digits are looked for if it has many digits. The bytes of whole rows and columns are
    in any case.
    """
    needles = {text.encode() for text in texts}
    for array in arrays:
        lines = [*array, *array.T] if array.ndim > 1 else [array]
        needles |= {line.tobytes() for line in lines if line.size > 1}
        for value in array.ravel():
            digits = repr(float(value)).encode()
            if len(digits) > _PLAIN:
                needles |= {value.tobytes(), digits}
    complaints = []
    for path in files:
        content = path.read_bytes()
        if found := sum(needle in content for needle in needles):
            complaints.append(f"{path.name} holds {found} values that it must not hold")
    return complaints


# ------------------------------------------------------------------- an undisturbed run


def run_once(directory, partitions, config=None, policy=None, settings=None):
    """Set a deployment up, run its app once and take it down; return what it left."""
    with deployment(directory, partitions, policy=policy, settings=settings) as running:
        # A busy machine takes a minute to start the processes of all nodes for one
        # message.
        running.run({"timeout": 300, **(config or {})}, timeout=1_800)
    assert running.processes.left() == []
    return running


def one_result(running):
    """Return the result of all nodes, which must be the same."""
    results = [read_result(path) for path in running.results]
    for centroids, counts in results:
        np.testing.assert_array_equal(centroids, results[0][0])
        np.testing.assert_array_equal(counts, results[0][1])
    return results[0]


def check_blind_outcome(running, partitions, trust="oblivious-server"):
    """Check that all nodes learnt the same, what they should, and the server nothing."""
    n_nodes = len(partitions)
    assert result_complaints(running.results, range(n_nodes), partitions) == []
    report = json.loads(running.report.read_text("utf-8"))
    assert report["arrays_at_the_server"] == []
    assert NEVER_SEEN in running.report.with_suffix(".html").read_text("utf-8")
    assert (report["trust"], report["keys"]) == (trust, "roster")
    assert (report["n_clients"], report["n_rounds"]) == (n_nodes, ROUNDS)
    assert report["answers"] == [n_nodes] * ROUNDS
    assert report["round_trips"] == (
        ROUNDS + 3 if trust == "oblivious-server" else 2 * ROUNDS + 2
    )
    assert report["dropped"] == []
    assert report["epsilon"] == pytest.approx(1)
    centroids, _ = read_result(running.results[0])
    assert centroids.shape == (3, 2)
    assert leak_complaints(server_files(running), [centroids]) == []
    strategy = FastLloyd(
        3,
        Box([-14.0] * 2, [14.0] * 2),
        PrivacyBudget(epsilon=1.0),
        n_records=30_000,
        n_clients=n_nodes,
        n_rounds=ROUNDS,
    )
    simulated = simulate(strategy, partitions, engine="in-process").centroids
    assert distance_to_solution(simulated, partitions) < CLOSE


def check_shared_outcome(running, partitions, strategy, n_rounds):
    """Check that nodes and server have one good result of a strategy; return its report."""
    assert result_complaints(running.results, range(3), partitions) == []
    report = json.loads(running.report.read_text("utf-8"))
    assert (report["strategy"], report["trust"]) == (strategy, "distributed-noise")
    assert report["arrays_at_the_server"] == ["centroids", "counts"]
    assert report["answers"] == [3] * n_rounds
    assert report["dropped"] == []
    assert report["epsilon"] == pytest.approx(1)
    _, counts = read_result(running.results[0])
    assert np.abs(counts - 10_000).max() < 1000
    return report


def server_points():
    """Return points of the server's own: some near the records' clusters, most anywhere."""
    rng = np.random.default_rng(6)
    near = np.array([[-6.0, -6.0], [6.0, -7.0], [1.0, 7.0]])
    return np.vstack([near + rng.normal(size=(3, 2)), rng.uniform(-12, 12, (20, 2))])
