"""Whole runs: what the server sees, sessions, late clients, keys, and `simulate` itself."""

import hashlib
import json
import stat
import sys
import tempfile
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import NaturalIdPartitioner
from habits import EMPTY, NAMES, READ, REFUSED, X
from harness import (
    P_VALUE,
    Outcome,
    byte_p_value,
    noise_of_run,
    run_recorded,
    same_law_p_value,
    stock_start,
    write_roster,
)
from msgspec import structs
from scipy import stats
from switches import small_blocks

from flower_kmeans import Box, ClientPolicy, Fault, PrivacyBudget, simulate
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    TooFewClientsError,
)
from flower_kmeans.privacy import randomness
from flower_kmeans.protocol.exchange import CRASHED
from flower_kmeans.protocol.messages import Answer, Ask, Wrapped, decode_request
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.session import DELIVERED, ContextMemory
from flower_kmeans.protocol.wire import encode, from_content
from flower_kmeans.simulation import engines
from flower_kmeans.simulation.faults import FaultyClientApp
from flower_kmeans.strategies import ConstrainedLloyd, FastLloyd, Lloyd, PEMeans

BOX = Box([0.0, -5.0], [10.0, 5.0])
BLIND = ("oblivious-server", "clients-only")
SHARED = ("distributed-noise", "clients-only")
PRIVATE = (*BLIND, "distributed-noise", "trusted-server")
NOT_PRIVATE = PrivacyBudget(epsilon=None)


def blobs(n=240, seed=1, k=3, spread=0.4):
    rng = np.random.default_rng(seed)
    centres = rng.uniform([1, -4], [9, 4], (k, 2))
    return centres[rng.integers(0, k, n)] + rng.normal(0, spread, (n, 2))


def parted(records, n_clients=6):
    return np.array_split(records, n_clients)


def test_records_read_in_place_give_the_result_of_copies():
    """Arrays that cannot be written to, or have gaps, are copied in each pass."""
    parts = parted(blobs())
    gaps = [np.repeat(part, 2, axis=0)[::2] for part in parts]
    fixed = [part.copy() for part in parts]
    for part in fixed:
        part.flags.writeable = False
    assert not gaps[0].flags.c_contiguous

    def found(records):
        strategy = Lloyd(3, BOX, trust="plain", n_rounds=3)
        return simulate(strategy, records).centroids

    before = [part.copy() for part in parts]
    expected = found(parts)
    for part, old in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part, old)
    np.testing.assert_array_equal(found(gaps), expected)
    np.testing.assert_array_equal(found(fixed), expected)


def fast(
    trust="oblivious-server", k=3, n_records=240, epsilon=1.0, domain=BOX, **options
):
    if trust in SHARED:
        options.setdefault("min_clients", 3)
    return FastLloyd(
        k, domain, PrivacyBudget(epsilon), n_records=n_records, trust=trust, **options
    )


# ----------------------------------------------------------------------- a blind server


def _leaks(outcome: Outcome):
    """Return the little-endian words and floats that a server must not find in its view."""
    one, algorithm = outcome.one, outcome.strategy.algorithm
    numbers = [one.centroids, one.counts]
    on_grid = [algorithm.domain.to_unit(one.centroids), one.counts]
    words = [
        np.rint(array * 2**algorithm.fraction_bits).astype("<i8") for array in on_grid
    ]
    arrays = [*(array.astype("<f8") for array in numbers), *words]
    return [item.tobytes() for array in arrays for item in array.reshape(-1) if item]


def _view(outcome: Outcome) -> bytes:
    return b"".join(item.data for item in outcome.grid.received)


def _words(outcome: Outcome) -> bytes:
    """Return all that varies with records in the server's view: the words, or sealed shares."""
    answers = [
        item.message
        for item in outcome.grid.received
        if isinstance(item.message, Answer)
    ]
    return b"".join(
        part for answer in answers for part in (answer.words, answer.sealed)
    )


def _rest(outcome: Outcome) -> bytes:
    """Return the other random bytes: commitments and sealed keys.

    Public keys are left out: their bytes are not uniform, and they are drawn before any
    data.
    """
    messages = [item.message for item in outcome.grid.received]
    commitments = b"".join(
        getattr(message, "commitment", None) or b"" for message in messages
    )
    sealed = [m.envelopes for m in messages if isinstance(m, Answer | Wrapped)]
    return commitments.replace(bytes(32), b"") + b"".join(sealed)


def _shape(outcome: Outcome):
    """Return everything about the view that is not random: kinds, fields, sizes, small values."""

    def shape(value):
        if isinstance(value, bytes | tuple):
            return (
                len(value)
                if isinstance(value, bytes)
                else [shape(item) for item in value]
            )
        return value

    return [
        (
            item.node_id,
            item.kind,
            {k: shape(v) for k, v in structs.asdict(item.message).items()},
        )
        for item in outcome.grid.received
    ]


DATA_A = parted(blobs(60, seed=1), 4)
DATA_B = [
    np.full((5, 2), 9.99),
    np.empty((0, 2)),
    np.zeros((100, 2)),
    np.full((1, 2), np.nan),
]


def _views(trust="oblivious-server", runs=3):
    options = {"n_records": 60, "n_rounds": 3, "min_clients": 3, "k": 20}
    return [
        [run_recorded(fast(trust, **options), data) for _ in range(runs)]
        for data in (DATA_A, DATA_B)
    ]


def _distinguishable(first, second):
    """Whether a server could distinguish two data sets, or words from uniform ones."""
    a, b = (
        b"".join(_words(outcome) for outcome in outcomes)
        for outcomes in (first, second)
    )
    p_values = [byte_p_value(a), byte_p_value(b), same_law_p_value(a, b)]
    return min(p_values) <= P_VALUE or _shape(first[0]) != _shape(second[0])


@pytest.mark.claim("index", "server-noisy-sums-centroids")
@pytest.mark.parametrize("trust", [*BLIND, "distributed-noise"])
def test_a_server_sees_uniform_words_whatever_the_data_are(trust):
    first, second = _views(trust)
    assert not _distinguishable(first, second)
    for outcomes in (first, second):
        rest = b"".join(_rest(outcome) for outcome in outcomes)
        assert (rest == b"") == (trust == "distributed-noise")
        assert not rest or byte_p_value(rest) > P_VALUE


def test_without_masks_the_same_test_distinguishes_data_sets(monkeypatch):
    for name in ("mask", "correction"):
        monkeypatch.setattr(
            f"flower_kmeans.secagg.masks.{name}",
            lambda *_: np.zeros(_[-1], dtype=np.uint64),
        )
    first, second = _views()
    assert _distinguishable(first, second)
    words = [
        b"".join(_words(outcome) for outcome in outcomes)
        for outcomes in (first, second)
    ]
    assert same_law_p_value(*words) <= P_VALUE
    assert min(map(byte_p_value, words)) <= P_VALUE


def test_the_sum_of_all_answers_is_uniform_too():
    """Masks that cancelled by themselves would show the sum."""
    sums = []
    for _ in range(6):
        outcome = run_recorded(
            fast(n_records=60, n_rounds=3, min_clients=3, k=20), DATA_A
        )
        sums += [entry.words for entry in outcome.announced]
    assert byte_p_value(b"".join(sums)) > P_VALUE


@pytest.mark.claim("index", "server-noisy-sums-centroids")
@pytest.mark.parametrize("trust", BLIND)
def test_no_centroid_or_count_is_anywhere_in_what_the_server_sees_or_keeps(trust):
    outcome = run_recorded(fast(trust, n_records=240), parted(blobs()))
    leaks = _leaks(outcome)
    assert len(leaks) >= 12
    server = outcome.server
    kept = b"".join(encode(entry) for entry in outcome.announced)
    assert len(kept) > 1000
    for haystack in (_view(outcome), kept):
        assert not [leak for leak in leaks if leak in haystack]
    assert server.state.round == server.last_sum == 0
    assert not len(outcome.result.arrays)
    # The search itself can find something: the same run where the server may see
    # everything.
    outcome = run_recorded(fast("trusted-server", n_records=240), parted(blobs()))
    states = outcome.server.state.arrays["counts"].astype("<i8").tobytes()
    assert [leak for leak in _leaks(outcome) if leak in states]


# ------------------------------------------------------------------ errors stay at home

MARKER = "MARKER-5f1c"


@pytest.mark.claim("threat-model", "51")
@pytest.mark.parametrize("trust", [*PRIVATE, "plain"])
def test_the_text_of_a_clients_exception_never_reaches_the_server(trust):
    parts = parted(blobs())
    calls = {}

    def load(context):
        place = context.node_config["partition-id"]
        calls[place] = calls.get(place, 0) + 1
        if place == 1:
            raise ValueError(f"{MARKER} {parts[place].tolist()}")
        if place == 3 and calls[place] == 1:
            raise SystemExit(MARKER)
        return parts[place]

    def on_result(result, context):
        raise RuntimeError(f"{MARKER} {result.centroids.tolist()}")

    strategy = (
        Lloyd(3, BOX) if trust == "plain" else fast(trust, n_rounds=3, min_clients=3)
    )
    outcome = run_recorded(strategy, parts, load=load, on_result=on_result)
    assert len(outcome.results) >= 4
    view = _view(outcome)
    assert MARKER.encode() not in view
    texts = [repr(float(x)).encode() for part in parts for x in part.reshape(-1)]
    texts += [repr(float(x)).encode() for x in outcome.one.centroids.reshape(-1)]
    assert not [text for text in texts if text in view]
    if trust in BLIND:
        values = [np.float64(x).tobytes() for part in parts for x in part.reshape(-1)]
        assert not [value for value in values if value in view]
    nodes = sorted(outcome.grid.states)
    assert {nodes[1], nodes[3]} <= {entry.node_id for entry in strategy.report.dropped}
    assert MARKER not in json.dumps(strategy.report.to_dict())


K = 100


@pytest.mark.claim("CONTRIBUTING", "no-seed-reaches-keys")
@pytest.mark.parametrize("trust", PRIVATE)
def test_the_same_public_seed_gives_different_noise(trust):
    """In other runs, and in all rounds and blocks of one: no stream is used twice."""
    parts = parted(blobs())
    options = {"k": K, "n_records": 1000, "n_rounds": 2, "seed": 7}
    noises = [noise_of_run(fast(trust, **options), parts) for _ in range(2)]
    blocks = [
        block
        for noise in noises
        for x in noise
        for block in (x[:K], x[K : 2 * K], x[-K:])
    ]
    for a, b in combinations(blocks, 2):
        assert np.mean(a == b) < 0.05
        assert stats.pearsonr(a, b).pvalue > P_VALUE
    strategy = fast(trust, **options)
    results = [simulate(strategy, parts) for _ in range(2)]  # also of one strategy
    assert not np.array_equal(results[0].counts, results[1].counts)
    initial = [fast(trust, **options).algorithm.initial_state(None) for _ in range(2)]
    np.testing.assert_array_equal(
        initial[0].arrays["centroids"], initial[1].arrays["centroids"]
    )


# ------------------------------------------------------------------ the randomness seam


def fixed_source(monkeypatch):
    """Replace the system's randomness: one repeatable source for the server, one for clients.

    The server's differs because on Ray the clients run in other processes.
    """
    counters = {"server": 0, "client": 0}

    def source(n_bytes):
        frame, who = sys._getframe(1), "client"
        while frame is not None:
            if frame.f_code.co_filename.endswith("client.py"):
                break
            if frame.f_code.co_filename.endswith(
                ("protocol/server.py", "strategies/clustering.py")
            ):
                who = "server"
                break
            frame = frame.f_back
        counters[who] += 1
        seed = f"{who} {counters[who]}".encode()
        return hashlib.shake_256(seed).digest(n_bytes)

    monkeypatch.setattr(randomness, "_os_random", source)


@pytest.mark.claim("reference/strategies", "flowers-stock-strategy-start")
@pytest.mark.parametrize("trust", [*PRIVATE, "plain"])
def test_flowers_own_start_gives_the_same_run(trust, monkeypatch):
    """Byte for byte, as both draw from the one seam of all randomness."""
    found = []
    for start in (None, stock_start):
        fixed_source(monkeypatch)
        strategy = Lloyd(3, BOX) if trust == "plain" else fast(trust)
        outcome = run_recorded(strategy, parted(blobs()), start=start)
        report = strategy.report.to_dict()
        del report["seconds"], report["date"]
        arrays = {name: array.numpy() for name, array in outcome.result.arrays.items()}
        assert trust in BLIND or np.array_equal(
            arrays["centroids"], outcome.one.centroids
        )
        arrays |= {
            "of clients": outcome.one.centroids,
            "counts of clients": outcome.one.counts,
        }
        found.append((arrays, report, _words(outcome), _rest(outcome)))
    np.testing.assert_equal(*found)


# --------------------------------------------------------------- sessions in whole runs


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_everyone_restarting_ends_in_a_clear_error_or_a_renewed_round(max_attempts):
    """All of them lack the document, then begin new sessions, then answer in a second attempt."""
    done = []

    def clear(grid, messages):
        first = decode_request(from_content(messages[0].content))
        if isinstance(first, Ask) and first.t == 2 and not done:
            done.append(True)
            for state in grid.states.values():
                state.clear()

    strategy = fast("distributed-noise", n_rounds=3, max_attempts=max_attempts)
    if max_attempts == 1:
        with pytest.raises(TooFewClientsError, match="new session"):
            run_recorded(strategy, parted(blobs()), on_push=clear)
        return
    outcome = run_recorded(strategy, parted(blobs()), on_push=clear)
    assert (strategy.report.answers, strategy.report.renewed) == ([6, 6, 6], {2: 6})
    assert len(outcome.results) == 6


# ------------------------------------------------------------------------- late clients


class Once(FaultyClientApp):
    """Faults of the enrolment meet the first invitation only."""

    def __call__(self, message, context):
        try:
            return super().__call__(message, context)
        finally:
            self._faults.pop((int(context.node_config["partition-id"]), 0, "ask"), None)


@pytest.mark.parametrize("trust", [*PRIVATE, "plain"])
def test_a_late_client_takes_part_and_has_the_same_result(trust, tmp_path, monkeypatch):
    """Its enrolment is lost, and it is invited again."""
    monkeypatch.setattr("harness.FaultyClientApp", Once)
    roster, policies = write_roster(tmp_path, 6)
    options = (
        {"n_rounds": 5}
        if trust == "plain"
        else {"keys": "roster", "roster_file": roster}
    )
    strategy = (
        Lloyd(3, BOX, **options)
        if trust == "plain"
        else fast(trust, n_rounds=5, **options)
    )
    faults = [Fault(4, 0, "crash")]
    outcome = run_recorded(strategy, parted(blobs()), policy=policies, faults=faults)
    report = outcome.strategy.report
    assert (report.answers[0], report.answers[-1], report.n_clients) == (5, 6, 6)
    assert len(outcome.results) == 6
    assert outcome.one is not None  # and all agree, the late one too
    assert next((e.client, e.round) for e in report.dropped) == (-1, 0)


def test_with_relayed_keys_nobody_comes_late():
    strategy = fast(n_rounds=4)
    outcome = run_recorded(strategy, parted(blobs()), faults=[Fault(4, 0, "crash")])
    assert strategy.report.answers == [5] * 4
    assert set(outcome.results) == {0, 1, 2, 3, 5}


# --------------------------------------------------------------------------- simulate


def test_simulate_leaves_the_strategy_as_it_was():
    strategy = fast()
    seen = []
    simulate(strategy, parted(blobs()), on_round=seen.append)
    assert strategy.on_round is None
    assert strategy.n_clients is None
    assert [info.round for info in seen] == list(range(1, strategy.n_rounds + 1))
    assert {(info.n_clients, info.n_answers, info.dropped) for info in seen} == {
        (6, 6, 0)
    }
    simulate(strategy, parted(blobs(), 4))
    assert strategy.report.n_clients == 4


def policy(**changes):
    return replace(ClientPolicy.for_simulation(), **changes)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ConfigurationTypeError, "strategy", {"strategy": "FastLloyd"}),
        (ConfigurationError, "engine", {"engine": "spark"}),
        (ConfigurationTypeError, "partitions", {"partitions": np.ones((6, 5, 2))}),
        (ConfigurationTypeError, "partitions", {"partitions": 5}),
        (ConfigurationError, "partitions", {"partitions": []}),
        (
            ConfigurationError,
            "min_clients",
            {"strategy": fast(min_clients=3), "partitions": [np.ones((2, 2))] * 2},
        ),
        (
            DataError,
            r"partitions\[1\]",
            {"partitions": [np.ones((2, 2)), [[np.nan, 1]]] * 2},
        ),
        (DataError, r"partitions\[0\]", {"partitions": [np.full((2, 2), np.inf)] * 3}),
        (DataError, "2 columns", {"partitions": [np.ones((2, 3))] * 3}),
        (DataError, "two-dimensional", {"partitions": [np.ones(2)] * 3}),
        (
            ConfigurationTypeError,
            "real numbers",
            {"partitions": [np.array([["a", "b"]])] * 3},
        ),
        (
            ConfigurationTypeError,
            "real numbers",
            {"partitions": [np.array([[None, 1]])] * 3},
        ),
        (ConfigurationTypeError, "faults", {"faults": ["drop"]}),
        (ConfigurationTypeError, "faults", {"faults": Fault(0, 1, "drop")}),
        (ConfigurationTypeError, "faults", {"faults": None}),
        (ConfigurationError, "client=6", {"faults": [Fault(6, 1, "drop")]}),
        (ConfigurationError, "round=99", {"faults": [Fault(0, 99, "drop")]}),
        (ConfigurationError, "timeout", {"timeout": 0}),
        (ConfigurationError, "timeout", {"timeout": float("nan")}),
        (ConfigurationTypeError, "timeout", {"timeout": "soon"}),
        (ConfigurationTypeError, "timeout", {"timeout": [60]}),
        (ConfigurationTypeError, "policy", {"policy": "strict"}),
        (
            ConfigurationError,
            "simulated clients share",
            {"policy": policy(roster_file="a.toml", member_key_file="a.key")},
        ),
        (ConfigurationError, "one node", {"policy": policy(state_dir="state")}),
        (ConfigurationError, "party and work_dir", {"policy": policy(party=1)}),
        (ConfigurationError, "party and work_dir", {"policy": policy(work_dir="here")}),
        (ConfigurationTypeError, "on_round", {"on_round": "print"}),
    ],
)
def test_arguments_that_cannot_be_used_are_one_sentence(
    error, match, arguments, monkeypatch
):
    pushed = []
    monkeypatch.setattr(
        "flower_kmeans.simulation.in_process.InProcessGrid.push_messages",
        lambda self, messages: pushed.append(messages),
    )
    values = {"strategy": fast(), "partitions": parted(blobs()), **arguments}
    with pytest.raises(error, match=match) as caught:
        simulate(values.pop("strategy"), values.pop("partitions"), **values)
    assert not pushed
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_round_trips_of_a_simulation_end_after_ten_minutes(monkeypatch):
    strategy, given = fast(), []
    start = strategy.start
    monkeypatch.setattr(
        strategy, "start", lambda *a, **b: (given.append(b["timeout"]), start(*a, **b))
    )
    simulate(strategy, parted(blobs()))
    assert given == [600.0]


def test_errors_never_hold_record_values():
    records = np.array([[7.654321, np.nan], [1.234567, 3.0]])
    with pytest.raises(DataError) as caught:
        simulate(fast(), [records] * 3)
    assert "7.65" not in str(caught.value)
    assert "nan" not in str(caught.value).replace("NaN", "")


@pytest.mark.claim("own-data", "blocks-read-once-per")
@pytest.mark.claim("reference/simulation", "engine-auto-default-command")
@pytest.mark.parametrize("kind", [Lloyd, PEMeans, ConstrainedLloyd])
def test_partitions_may_be_chunks_files_and_maps(kind, tmp_path, monkeypatch):
    """Wherever a border lies, and in float32 too, the result has the same bits."""
    dataset, parquet = map(pytest.importorskip, ("pyarrow.dataset", "pyarrow.parquet"))
    parts = [part.astype(np.float32) for part in parted(blobs(), 4)]
    names = "xy"
    table = pytest.importorskip("pyarrow").table(
        dict(zip(names, parts[2].T, strict=True))
    )
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=7)
    np.save(tmp_path / "x.npy", parts[3])
    sources_of = [
        parts[0],
        lambda: np.array_split(parts[1], 9),
        dataset.dataset(tmp_path / "x.parquet"),
        np.load(tmp_path / "x.npy", mmap_mode="r"),
    ]

    def run(partitions):
        options = {"min_size": 12, "n_clients": 4} if kind is ConstrainedLloyd else {}
        given = () if kind is Lloyd else (NOT_PRIVATE,)
        strategy = kind(
            3, BOX, *given, n_records=240, n_rounds=3, trust="plain", **options
        )
        return simulate(strategy, partitions)

    whole = run([part.astype(float) for part in parts])
    small_blocks(monkeypatch, 1, 11)
    for found in (run(parts), run(sources_of)):
        np.testing.assert_array_equal(found.centroids, whole.centroids)
        np.testing.assert_array_equal(found.counts, whole.counts)
    with pytest.raises(ConfigurationError, match="partitions as arrays, references"):
        simulate(Lloyd(3, BOX, n_rounds=2), sources_of, engine="ray")
    # However much work it is, "auto" takes the engine that reads them.
    monkeypatch.setattr(engines, "_MUCH_WORK", 0)
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    much = Lloyd(3, BOX, n_records=240, n_rounds=3)
    assert engines.choose_engine(much, "auto") == "ray"
    assert simulate(much, sources_of, engine="auto").report.answers == [4] * 3


@pytest.mark.claim("own-data", "blocks-read-once-per")
@pytest.mark.parametrize(
    ("trust", "more"),
    [("distributed-noise", 0), ("trusted-server", 0), ("oblivious-server", 2)],
)
def test_chunks_are_read_once_per_round(trust, more):
    """Before the run once more, to check them, and by a client that commits to them twice."""
    parts, passes = parted(blobs(), 4), []

    def chunks():
        yield from np.array_split(parts[3], 2)
        passes.append(1)

    simulate(fast(trust, n_rounds=3), [*parts[:3], chunks])
    assert len(passes) == 1 + more + 3


@pytest.mark.claim("own-data", "columns-domain-chooses-columns")
def test_partitions_that_name_their_columns_have_those_of_the_domain():
    """As clients require it: tables in another order would be clustered by the wrong columns."""
    pandas = pytest.importorskip("pandas")
    box = Box([0.0, -5.0], [10.0, 5.0], columns=["x", "y"])
    parts = parted(blobs(), 3)
    named = [pandas.DataFrame(part, columns=["x", "y"]) for part in parts]
    found = simulate(Lloyd(3, box, n_rounds=2), named)
    np.testing.assert_array_equal(
        found.centroids, simulate(Lloyd(3, box, n_rounds=2), parts).centroids
    )
    named[1] = named[1][["y", "x"]]
    with pytest.raises(
        DataError, match=r"Expected partitions\[1\] with the columns \['x', 'y'\]"
    ):
        simulate(Lloyd(3, box, n_rounds=2), named)


def test_a_policy_that_refuses_everything_ends_quickly_and_says_why():
    with pytest.raises(TooFewClientsError, match="policy"):
        simulate(
            fast(),
            parted(blobs()),
            policy=ClientPolicy(max_epsilon=0.1, in_memory=True),
        )
    with pytest.raises(TooFewClientsError, match="ledger"):
        simulate(fast(), parted(blobs()), policy=ClientPolicy())


@pytest.mark.parametrize("trust", BLIND)
def test_a_session_is_erased_from_every_memory_after_a_run(trust):
    outcome = run_recorded(fast(trust), parted(blobs()))
    run_id = outcome.run.doc_hash
    for state in outcome.grid.states.values():
        session = ContextMemory(state).load(run_id)
        assert session.over == DELIVERED
        keys = session.group_secret + session.group_key + session.query_key
        assert not session.secret + session.drawn_secret + keys


# --------------------------------------------------------------------------- keys


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the directory in which temporary ones are made."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


@pytest.mark.claim("reference/simulation", "simulate-makes-keys-rosters")
@pytest.mark.parametrize("trust", [*BLIND, "distributed-noise"])
def test_simulated_clients_are_given_the_keys_that_a_run_asks_for(trust, temporary):
    """Other ones in every run. The roster is in a file for the server, keys are in none."""
    found, keys = [], []

    def look(info):
        (directory,) = temporary.iterdir()
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()
        }
        found.append((stat.S_IMODE(directory.stat().st_mode), modes))
        keys.extend(Roster.from_file(directory / "roster.toml").keys)

    for _ in range(2):
        strategy = fast(trust, keys="roster", n_rounds=2)
        report = simulate(strategy, parted(blobs()), on_round=look).report
        assert (report.keys, report.n_clients, report.n_slots) == ("roster", 6, 6)
        assert (report.answers, report.incidents) == ([6, 6], [])
        assert list(temporary.iterdir()) == []
        assert strategy.roster_file is None
    assert found == [(0o700, {"roster.toml": 0o644})] * 4
    assert (len(keys), len(set(keys))) == (4 * 6, 2 * 6)


@pytest.mark.claim("reference/simulation", "simulate-makes-keys-rosters")
def test_the_roster_is_removed_after_a_run_that_fails(temporary):
    faults = [Fault(i, 2, "crash") for i in range(6)]
    with pytest.raises(TooFewClientsError, match="round 2"):
        simulate(fast(keys="roster"), parted(blobs()), faults=faults)
    assert list(temporary.iterdir()) == []


def test_a_large_roster_has_a_beacon_and_draws_its_committee():
    strategy = FastLloyd(
        3, BOX, PrivacyBudget(1.0), 2000, trust="clients-only", keys="roster", n_rounds=2,
        n_clients=70,
    )  # fmt: skip
    report = simulate(strategy, parted(blobs(2000), 70)).report
    assert report.answers == [70, 70]
    assert (report.max_colluders, report.committee.n_positions, report.n_slots) == (
        7,
        64,
        70,
    )
    assert report.committee.epoch is not None
    assert len(report.committee.beacon) == 64


# --------------------------------------------------------------------------- Ray


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize("trust", ["clients-only", "oblivious-server"])
def test_clients_on_ray_have_faults(trust):
    strategy = fast(trust, keys="roster", n_rounds=2, epsilon=20.0)
    faults = [Fault(1, 2, "crash")]
    clustering = simulate(
        strategy, parted(blobs(), 5), engine="ray", faults=faults, timeout=600
    )
    report = clustering.report
    assert (report.keys, report.n_clients, report.n_slots) == ("roster", 5, 5)
    assert report.answers == [5, 4]
    assert {(entry.round, entry.reason) for entry in report.incidents} == {(2, CRASHED)}


# --------------------------------------------------------------------------- engines


def test_a_function_of_the_partition_id_returns_the_records():
    parts = parted(blobs())
    expected = simulate(Lloyd(3, BOX), parts)
    found = simulate(Lloyd(3, BOX, n_clients=6), lambda partition: parts[partition])
    np.testing.assert_array_equal(found.centroids, expected.centroids)
    np.testing.assert_array_equal(found.counts, expected.counts)


def test_a_function_says_nothing_about_the_number_of_clients():
    with pytest.raises(ConfigurationError, match="with n_clients"):
        simulate(Lloyd(3, BOX), lambda partition: blobs())


@pytest.mark.claim("reference/simulation", "engine-auto-default-command")
@pytest.mark.parametrize(
    ("n_records", "has_ray", "address", "expected"),
    [
        (10**6, True, None, "in-process"),
        (10**9, True, None, "ray"),
        (10**9, False, None, "in-process"),
        (10**6, True, "127.0.0.1:6379", "ray"),
    ],
)
def test_auto_takes_ray_for_much_work(
    n_records, has_ray, address, expected, monkeypatch
):
    monkeypatch.setattr(
        engines, "find_spec", lambda name: object() if has_ray else None
    )
    strategy = fast(n_records=n_records, n_rounds=7)
    assert engines.choose_engine(strategy, "auto", address) == expected


def test_engines_that_there_are_not_are_refused():
    with pytest.raises(ConfigurationError, match="engine in"):
        simulate(fast(), parted(blobs()), engine="dask")
    with pytest.raises(ConfigurationError, match="engine='ray' with ray_address"):
        simulate(fast(), parted(blobs()), ray_address="127.0.0.1:6379")


@pytest.mark.parametrize("n_clients", [2, 3, 5])
def test_min_clients_follows_the_number_of_partitions_where_nothing_was_given(
    n_clients,
):
    strategy = fast(n_rounds=2)
    clustering = simulate(strategy, parted(blobs(), n_clients))
    assert clustering.report.n_clients == n_clients
    assert clustering.report.min_clients == min(3, n_clients)
    assert strategy.n_clients is None
    assert strategy.min_clients == 3


def test_one_client_has_nobody_to_hide_among():
    with pytest.raises(ConfigurationError, match="max_colluders < min_clients=1"):
        simulate(fast(n_rounds=2), parted(blobs(), 1))
    assert simulate(fast("trusted-server"), parted(blobs(), 1)).report.n_clients == 1


def test_without_a_temporary_directory_a_run_with_a_roster_says_what_to_do(monkeypatch):
    def nowhere():
        raise FileNotFoundError(
            2, "No usable temporary directory found in ['/tmp', '/var/tmp']"
        )

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", nowhere)
    with pytest.raises(
        ConfigurationError, match=r"Got none: .* in \['/tmp', .* in TMPDIR\.$"
    ):
        simulate(fast(keys="roster"), parted(blobs()))
    # Others need none.
    assert (
        simulate(Lloyd(3, BOX, n_rounds=2), parted(blobs())).report.answers == [6] * 2
    )


# --------------------------------------------------------------------- habits of tables


TWO = Box([0.0, 0.0], [8.0, 8.0], columns=list(NAMES))


@pytest.fixture
def pushed(monkeypatch):
    """Messages that an in-process run has sent."""
    sent = []
    monkeypatch.setattr(
        "flower_kmeans.simulation.in_process.InProcessGrid.push_messages",
        lambda self, messages: sent.append(messages),
    )
    return sent


@pytest.mark.claim("own-data", "refused-type-one-sentence")
@pytest.mark.parametrize("has_function", [False, True])
def test_partitions_may_be_tables_of_all_kinds(has_function):
    """Each client has another one, and the run has the same bits as one with arrays."""
    parts = [make() for make in (*READ.values(), *EMPTY.values())]
    arrays = [X] * len(READ) + [X[:0]] * len(EMPTY)

    def run(given):
        strategy = Lloyd(2, TWO, n_rounds=2, n_clients=len(parts), seed=1)
        return simulate(strategy, given.__getitem__ if has_function else given)

    expected, found = run(arrays), run(parts)
    assert expected.counts.sum() == len(READ) * len(X)
    np.testing.assert_array_equal(found.counts, expected.counts)
    np.testing.assert_array_equal(found.centroids, expected.centroids)


@pytest.mark.claim("own-data", "refused-type-one-sentence")
@pytest.mark.parametrize("habit", REFUSED)
def test_other_types_are_refused_before_anything_is_sent(habit, pushed):
    make, message = REFUSED[habit]
    strategy = Lloyd(2, TWO, n_rounds=2, n_clients=3)
    errors = DataError, ConfigurationTypeError
    with pytest.raises(errors, match=message):
        simulate(strategy, [X, X, make()])
    with pytest.raises(
        errors, match=rf"records of partition 2 cannot be used\..*{message}"
    ):
        simulate(strategy, lambda partition: X if partition < 2 else make())
    assert not pushed


@pytest.mark.claim("own-data", "simulate-also-stops-if")
def test_a_function_whose_records_are_all_malformed_is_refused_before_anything_is_sent(
    pushed,
):
    """A node could not tell so; one good record among malformed ones is enough."""
    bad = [["n/a", 1.0], [np.nan, 2.0], None]
    strategy = Lloyd(2, TWO, n_rounds=2, n_clients=3)
    for records in (bad, lambda: [bad, bad], {"a": ["?", None], "b": [1, 2]}):
        with pytest.raises(
            DataError, match=r"record of finite numbers in partition 1\. Got none"
        ):
            simulate(
                strategy,
                lambda partition, records=records: records if partition == 1 else X,
            )
    assert not pushed


def test_a_function_may_have_some_malformed_records_and_fail_for_a_client():
    parts = [[*X.tolist(), ["n/a", 1.0]], X, X, X]

    def load(partition):
        if partition == 3:
            raise ValueError("7.891")
        return parts[partition]

    strategy = Lloyd(2, TWO, n_rounds=2, n_clients=4, min_clients=3)
    found = simulate(strategy, load)
    assert found.counts.sum() == 3 * len(X)
    assert {entry.reason for entry in found.report.dropped} != set()
    assert "7.891" not in json.dumps(found.report.to_dict())


def test_a_partitioner_of_flwr_datasets_is_a_function_of_the_partition_id():
    """Its partitions have the label that it divides by, which is no column of the domain."""
    parts = parted(blobs(), 3)
    table = {"site": np.repeat(["r", "s", "t"], [len(part) for part in parts]).tolist()}
    table |= dict(zip("yx", np.concatenate(parts)[:, ::-1].T, strict=True))
    partitioner = NaturalIdPartitioner(partition_by="site")
    partitioner.dataset = Dataset.from_dict(table)
    box = Box(BOX.lower, BOX.upper, columns=["x", "y"])
    strategy = Lloyd(3, box, n_rounds=2, n_clients=3, seed=1)
    found, expected = (
        simulate(strategy, partitioner.load_partition),
        simulate(strategy, parts),
    )
    np.testing.assert_array_equal(found.centroids, expected.centroids)
    np.testing.assert_array_equal(found.counts, expected.counts)
