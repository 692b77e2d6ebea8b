"""Starting a strategy: what is refused before anything is sent, the hooks, and what comes back."""

from unittest import mock

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from harness import SIMULATED, RecordingGrid, run_recorded, stock_start, without_noise, write_roster

from flower_kmeans import Ball, Box, ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    KMeansError,
    ObliviousServerError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.protocol.in_process import task_identity
from flower_kmeans.protocol.messages import Ask, Enrol
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import parse_document
from flower_kmeans.protocol.trust import TRUST_MODELS, TrustModel
from flower_kmeans.strategies import FastLloyd, GLloyd, KMeansStrategy, Lloyd, SuLloyd

BOX = Box([0.0, 0.0], [10.0, 10.0])
PARTS = [np.random.default_rng(i).uniform(0, 10, (30, 2)) for i in range(5)]
BLIND = ("oblivious-server", "clients-only")
SIGHTED = ("distributed-noise", "trusted-server", "plain")
TRUSTS = (*BLIND, *SIGHTED)


def make(trust="oblivious-server", rounds=3, **options):
    if trust == "plain":
        return Lloyd(2, BOX, n_rounds=rounds, **options)
    options.setdefault("min_clients", 3)
    return FastLloyd(2, BOX, PrivacyBudget(1.0), 150, trust=trust, n_rounds=rounds, **options)


def grid_of(parts=PARTS):
    app = kmeans_client_app(lambda context: parts[context.node_config["partition-id"]], SIMULATED)
    return RecordingGrid(app, len(parts))


def refused(call, grid, error, match):
    """Require one clear sentence and that nothing was sent."""
    with task_identity(), pytest.raises(error, match=match) as caught:
        call(grid)
    assert not grid.sent
    assert not grid.received
    assert isinstance(caught.value, KMeansError)
    assert isinstance(caught.value, ValueError | TypeError)
    text = str(caught.value)
    assert "\n" not in text
    assert 20 < len(text) < 300


# --------------------------------------------------------------------------- start's arguments


@pytest.mark.parametrize(
    ("error", "match", "options"),
    [
        (ConfigurationError, "num_rounds=3", {"num_rounds": 2}),
        (ConfigurationError, "num_rounds=3", {"num_rounds": 4}),
        (ConfigurationError, "num_rounds", {"num_rounds": 0}),
        (ConfigurationError, "train_config", {"train_config": ConfigRecord({"lr": 0.1})}),
        (ConfigurationError, "evaluate_config", {"evaluate_config": ConfigRecord({"x": 1})}),
        (ConfigurationError, "timeout", {"timeout": 0}),
        (ConfigurationError, "timeout", {"timeout": -5.0}),
        (ConfigurationTypeError, "timeout", {"timeout": "1"}),
        (ObliviousServerError, "must never see", {"evaluate_fn": lambda t, arrays: None}),
        (
            ConfigurationError,
            "initial_arrays",
            {"initial_arrays": ArrayRecord([np.ones((2, 2))] * 2)},
        ),
        (ConfigurationError, "initial", {"initial_arrays": ArrayRecord([np.ones((3, 2))])}),
        (DataError, "initial", {"initial_arrays": ArrayRecord([np.ones((2, 3))])}),
        (DataError, "initial", {"initial_arrays": ArrayRecord([np.ones(2)])}),
        (DataError, "initial", {"initial_arrays": ArrayRecord([np.full((2, 2), np.nan)])}),
        (ConfigurationTypeError, "initial", {"initial_arrays": ArrayRecord([np.array(["a"])])}),
        (ConfigurationTypeError, "initial_arrays", {"initial_arrays": np.ones((2, 2))}),
        (ConfigurationTypeError, "evaluate_fn", {"evaluate_fn": 5}),
        (ConfigurationTypeError, "num_rounds", {"num_rounds": 3.0}),
    ],
)
def test_arguments_that_contradict_the_plan_are_refused(error, match, options):
    if "evaluate_fn" in options and error is ConfigurationTypeError:
        strategy = make("trusted-server")
    else:
        strategy = make()
    refused(lambda grid: strategy.start(grid, **options), grid_of(), error, match)


def test_the_planned_number_of_rounds_and_empty_configs_are_accepted():
    outcome = run_recorded(
        make(), PARTS, num_rounds=3, train_config=ConfigRecord(), evaluate_config=ConfigRecord()
    )
    assert len(outcome.results) == 5


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: DifferentialPrivacyServerSideFixedClipping(s, 1.0, 1.0, 5),
        lambda s: DifferentialPrivacyClientSideFixedClipping(s, 1.0, 1.0, 5),
        lambda s: DifferentialPrivacyServerSideAdaptiveClipping(s, 0.5, 100),
        lambda s: DifferentialPrivacyClientSideAdaptiveClipping(s, 0.5, 100),
    ],
)
def test_flowers_own_privacy_wrappers_are_refused(trust, wrap):
    wrapped = wrap(make(trust))
    refused(
        lambda grid: wrapped.start(grid, ArrayRecord([np.ones((2, 2))]), num_rounds=3),
        grid_of(),
        ConfigurationError,
        "wrapped in DifferentialPrivacy",
    )


def test_a_wrapper_that_skips_the_summary_is_refused_too():
    class Quiet(FedAvg):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def summary(self):
            pass

        def configure_train(self, server_round, arrays, config, grid):
            return self.inner.configure_train(server_round, arrays, config, grid)

    refused(
        lambda grid: Quiet(make()).start(grid, ArrayRecord(), num_rounds=3),
        grid_of(),
        ConfigurationError,
        "wrapped in Quiet",
    )


def test_a_non_empty_train_config_is_refused_by_the_hook():
    strategy = make()
    refused(
        lambda grid: stock_start(strategy, grid, train_config=ConfigRecord({"a": 1})),
        grid_of(),
        ConfigurationError,
        "train_config",
    )


def test_hooks_out_of_order_are_refused():
    strategy, grid = make(), grid_of()
    with pytest.raises(RunError, match="not started"):
        strategy.configure_train(2, ArrayRecord(), ConfigRecord(), grid)
    with pytest.raises(RunError, match="not started"):
        strategy.aggregate_train(1, [])
    with pytest.raises(RunError, match="before the run"):
        _ = strategy.report
    with task_identity():
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
        with pytest.raises(ConfigurationError, match="round 1 next"):
            strategy.configure_train(2, ArrayRecord(), ConfigRecord(), grid)


def test_flowers_own_start_with_more_rounds_than_planned_ends_in_an_error():
    with task_identity(), pytest.raises(ConfigurationError, match="rounds 1 to 3"):
        Strategy.start(make(), grid_of(), ArrayRecord(), num_rounds=4)


# --------------------------------------------------------------------------- constructors


def _fast(**changes):
    values = {"n_clusters": 2, "domain": BOX, "privacy": PrivacyBudget(1.0), "n_records": 100}
    return FastLloyd(**{**values, **changes})


def _clients(**changes):
    values = {"privacy": PrivacyBudget(1.0, unit="client"), "n_clients": 5}
    return _fast(**{**values, **changes})


def _wide(n_clients, **options):
    """Return a run whose words make a relay of more than 2 GiB."""
    box = Box(np.zeros(100), np.ones(100))
    return GLloyd(400, box, PrivacyBudget(1.0), 10**6, n_clients=n_clients, **options)


@pytest.mark.parametrize(
    ("match", "make_it"),
    [
        ("n_clusters", lambda: _fast(n_clusters=0)),
        ("n_clusters", lambda: _fast(n_clusters=101)),
        ("n_clusters", lambda: _fast(n_clusters=2.0)),
        ("n_clusters", lambda: _fast(n_clusters=10**7, n_records=10**9)),
        ("n_records", lambda: _fast(n_records=None)),
        ("n_records", lambda: _fast(n_records=0)),
        ("n_records", lambda: _fast(n_records="many")),
        ("domain", lambda: _fast(domain=([0, 0], [1, 1]))),
        ("lower", lambda: Box([1, 0], [0, 1])),
        ("lower", lambda: Box([0, 0], [0, 1])),
        ("upper|bounds|finite", lambda: Box([0, 0], [np.inf, 1])),
        ("radius", lambda: Ball(0.0, [0, 0])),
        ("privacy", lambda: _fast(privacy=1.0)),
        ("epsilon", lambda: PrivacyBudget(0.0)),
        ("epsilon", lambda: PrivacyBudget(-1.0)),
        ("epsilon", lambda: PrivacyBudget(float("inf"))),
        ("epsilon", lambda: PrivacyBudget(float("nan"))),
        ("epsilon", lambda: PrivacyBudget("1")),
        ("delta", lambda: PrivacyBudget(1.0, 1.0)),
        ("delta", lambda: PrivacyBudget(1.0, -1e-9)),
        ("delta", lambda: PrivacyBudget(None, 1e-6)),
        ("delta", lambda: _fast(privacy=PrivacyBudget(1.0, 0.0))),
        ("n_clients", lambda: _fast(privacy=PrivacyBudget(1.0, unit="client"))),
        ("clip", lambda: _fast(clip=5.0)),
        ("clip", lambda: _clients(clip=0.0)),
        ("clip", lambda: _clients(clip="5")),
        ("clip", lambda: _clients(privacy=PrivacyBudget(None, unit="client"), clip=5.0)),
        ("initial", lambda: _fast(initial=[[0.0, 0.0]])),
        ("initial", lambda: _fast(initial=[[0.0, 0.0], [np.nan, 0.0]])),
        ("trust", lambda: _fast(trust="plain")),
        ("trust", lambda: _fast(trust="me")),
        ("trust", lambda: SuLloyd(2, BOX, PrivacyBudget(1.0), 100, trust="distributed-noise")),
        ("trust", lambda: _fast(privacy=PrivacyBudget(None), trust="oblivious-server")),
        ("epsilon=None", lambda: Lloyd(2, BOX, PrivacyBudget(1.0))),
        ("n_rounds", lambda: _fast(n_rounds=0)),
        ("n_rounds", lambda: _fast(n_rounds="some")),
        ("n_rounds", lambda: _fast(n_rounds=2.5)),
        ("min_clients", lambda: _fast(min_clients=0)),
        ("min_clients", lambda: _fast(min_clients=2.5)),
        ("n_clients", lambda: _fast(min_clients=5, n_clients=4)),
        ("n_clients", lambda: _fast(n_clients=0)),
        ("n_clients or min_clients", lambda: _fast(trust="distributed-noise")),
        ("n_clients or min_clients", lambda: _fast(trust="clients-only")),
        ("min_clients", lambda: _fast(trust="distributed-noise", min_clients=1)),
        ("min_clients", lambda: _fast(min_clients=1)),
        ("max_colluders", lambda: _fast(trust="distributed-noise", max_colluders=3, min_clients=3)),
        ("max_colluders", lambda: _fast(max_colluders=3)),
        ("max_colluders", lambda: _fast(max_colluders=0)),
        ("max_colluders", lambda: _fast(max_colluders=1.5)),
        ("MiB", lambda: _wide(1000, trust="clients-only")),
        ("MiB", lambda: _wide(1000, trust="distributed-noise")),
        ("seed", lambda: _fast(seed=-1)),
        ("seed", lambda: _fast(seed=None)),
        ("fraction_bits", lambda: _fast(fraction_bits=0)),
        ("fraction_bits", lambda: _fast(fraction_bits=60)),
        ("keys", lambda: _fast(keys="ring")),
        ("keys", lambda: _fast(keys="file")),
        ("roster_file", lambda: _fast(keys="roster", roster_file=7)),
        ("max_attempts", lambda: _fast(max_attempts=0)),
        ("max_attempts", lambda: _fast(max_attempts=4)),
        ("max_attempts", lambda: _fast(max_attempts=True)),
        ("on_round", lambda: _fast(on_round="print")),
        ("alpha", lambda: _fast(alpha=0.0)),
        ("alpha", lambda: _fast(alpha=float("nan"))),
        ("alpha", lambda: _fast(alpha="0.8")),
        ("radius", lambda: _fast(radius="stairs")),
        ("postprocess", lambda: _fast(postprocess="wrap")),
        ("word|bit|overflow", lambda: _fast(privacy=PrivacyBudget(1e-14, 1e-16))),
        (
            "2\\^|fraction_bits|exact",
            lambda: GLloyd(
                2, Box(np.zeros(5000), np.ones(5000)), PrivacyBudget(1.0), 100, fraction_bits=20
            ),
        ),
    ],
)
def test_parameters_that_cannot_be_used_are_one_sentence(match, make_it):
    errors = (ConfigurationError, ConfigurationTypeError, DataError)
    with pytest.raises(errors, match=match) as caught:
        make_it()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    assert isinstance(caught.value, ValueError | TypeError)


@pytest.mark.parametrize(
    ("strategy", "trusts"),
    [
        (SuLloyd, {"oblivious-server", "trusted-server"}),
        (GLloyd, {*TRUSTS} - {"plain"}),
        (FastLloyd, {*TRUSTS} - {"plain"}),
    ],
)
def test_strategies_run_under_the_trust_models_that_their_algorithm_allows(strategy, trusts):
    assert issubclass(strategy, KMeansStrategy)
    assert issubclass(strategy, Strategy)
    budget = PrivacyBudget(1.0, delta=1e-6)
    for trust in trusts:
        assert strategy(2, BOX, budget, 100, n_clients=5, trust=trust).trust == trust
    for trust in {*TRUSTS} - trusts:
        with pytest.raises(ConfigurationError, match=f"trust of {strategy.__name__}") as caught:
            strategy(2, BOX, budget, 100, n_clients=5, trust=trust)
        assert all(f"'{each}'" in str(caught.value) for each in trusts)
    assert strategy(2, BOX, budget, 100).trust == "oblivious-server"
    assert strategy(2, BOX, PrivacyBudget(None)).trust == "plain"


def test_a_third_trust_model_is_one_registration():
    """What runs under a trust model follows from its properties, not from a list of names."""
    model = TrustModel("test-trust", "server", "plain", "server")
    with mock.patch.dict(TRUST_MODELS, {model.name: model}):
        policy = ClientPolicy.for_simulation()
        outcome = run_recorded(make("test-trust"), PARTS, policy=policy)
    assert outcome.strategy.report.answers == [5, 5, 5]


def test_every_strategy_runs_without_privacy_and_says_so():
    for strategy in (Lloyd, SuLloyd, GLloyd, FastLloyd):
        outcome = run_recorded(strategy(2, BOX, PrivacyBudget(None), n_rounds=2), PARTS)
        report = outcome.strategy.report
        assert (report.trust, report.epsilon, report.is_private) == ("plain", None, False)
        assert any("NOT PRIVATE" in statement for statement in report.statements)


def test_defaults_of_min_clients():
    assert _fast().min_clients == 3
    assert _fast(n_clients=2).min_clients == 2
    assert _fast(n_clients=50).min_clients == 3
    assert _fast(trust="distributed-noise", n_clients=20).min_clients == 16
    assert _fast(trust="clients-only", n_clients=20).min_clients == 16
    assert Lloyd(2, BOX).min_clients == 1


def test_a_tenth_of_the_clients_may_collude_by_default():
    assert _fast().max_colluders == 1
    assert _fast(trust="clients-only", n_clients=19).max_colluders == 1
    assert _fast(trust="clients-only", n_clients=40).max_colluders == 4
    assert _fast(trust="clients-only", min_clients=30).max_colluders == 3
    assert _fast(trust="clients-only", n_clients=40, max_colluders=7).max_colluders == 7
    strategy = _fast(trust="clients-only", min_clients=20)
    with strategy.expecting(60):
        assert strategy.max_colluders == 6
    assert strategy.max_colluders == 2


def test_clients_count_as_the_planned_average_unless_told_otherwise():
    strategy = _clients()
    assert (strategy.clip, strategy.algorithm.n_clients) == (20.0, 5)
    assert strategy.plan.n_clients == 5
    assert _clients(clip=7).clip == 7.0
    assert _clients(n_rounds=3).algorithm.units(1)[-1] == 20 * 2**16
    assert _fast(n_clients=5).clip is None
    assert _fast(n_clients=5).plan.n_clients is None


def test_the_noise_factor_is_known_before_the_run():
    assert _clients().noise_factor == 1.0
    blind = _clients(trust="clients-only", n_clients=20)
    assert blind.noise_factor == (20 / (16 - 2)) ** 0.5
    sighted = _clients(trust="distributed-noise", n_clients=20)  # noise beyond the plan is removed
    assert sighted.noise_factor == (20 / (20 - 2)) ** 0.5
    assert sighted.added_noise_factor == blind.noise_factor
    assert _fast(trust="distributed-noise", min_clients=5).noise_factor == (5 / 4) ** 0.5


# --------------------------------------------------------------------------- initial centroids


INITIAL = [[1.0, 2.0], [8.0, 7.0]]


@pytest.mark.parametrize("cls", [Lloyd, SuLloyd, GLloyd, FastLloyd])
def test_any_strategy_takes_public_initial_centroids(cls):
    budget = PrivacyBudget(None if cls is Lloyd else 1.0)
    options = {"n_rounds": 2, "n_records": 150}
    given = cls(2, BOX, budget, initial=INITIAL, **options)
    started = given.algorithm.centroids(given.algorithm.initial_state(None))
    np.testing.assert_allclose(started, INITIAL, atol=1e-3)
    if cls is Lloyd:  # the result is exact, so both ways of giving them are the same
        outcome = run_recorded(given, PARTS)
        arrays = ArrayRecord([np.array(INITIAL)])
        again = run_recorded(cls(2, BOX, budget, **options), PARTS, initial_arrays=arrays)
        np.testing.assert_array_equal(outcome.one.centroids, again.one.centroids)
        other = run_recorded(cls(2, BOX, budget, initial=PARTS[0][:2], **options), PARTS)
        assert (other.one.centroids != again.one.centroids).any()
    else:
        run_recorded(given, PARTS)
    assert given.algorithm.initial == tuple(map(tuple, INITIAL))


def test_initial_centroids_are_given_once():
    strategy = make(initial=INITIAL)
    arrays = ArrayRecord([np.array(INITIAL)])
    refused(
        lambda grid: strategy.start(grid, initial_arrays=arrays),
        grid_of(),
        ConfigurationError,
        "Got both",
    )
    refused(
        lambda grid: stock_start(strategy, grid, initial_arrays=arrays),
        grid_of(),
        ConfigurationError,
        "Got both",
    )
    run_recorded(strategy, PARTS)


def test_a_start_with_other_centroids_is_forgotten_by_the_next():
    strategy = make()
    planned = strategy.algorithm
    run_recorded(strategy, PARTS, initial_arrays=ArrayRecord([np.array(INITIAL)]))
    assert strategy.algorithm != planned
    run_recorded(strategy, PARTS)
    assert strategy.algorithm == planned


def test_what_becomes_of_an_array_of_initial_centroids_does_not_matter():
    initial = np.array(INITIAL)
    strategy = make(initial=initial)
    initial[:] = 0.0
    run_recorded(strategy, PARTS)
    assert strategy.algorithm.initial == tuple(map(tuple, INITIAL))


# --------------------------------------------------------------------------- centroids


@pytest.mark.parametrize("trust", BLIND)
@pytest.mark.parametrize("start", [None, stock_start])
def test_a_server_that_sees_no_sums_has_no_centroids_and_says_why(trust, start):
    outcome = run_recorded(make(trust), PARTS, start=start)
    with pytest.raises(ObliviousServerError, match=r"on_result") as caught:
        _ = outcome.strategy.centroids
    assert isinstance(caught.value, ConfigurationError)
    assert not len(outcome.result.arrays)
    assert np.isfinite(outcome.one.centroids).all()
    assert len(outcome.results) == 5


@pytest.mark.parametrize("trust", BLIND)
def test_centroids_at_such_a_server_are_refused_before_the_run_too(trust):
    strategy = make(trust)
    with pytest.raises(ObliviousServerError):
        _ = strategy.centroids
    refused(
        lambda grid: strategy.start(grid, evaluate_fn=lambda t, arrays: None),
        grid_of(),
        ObliviousServerError,
        "must never see",
    )


@pytest.mark.parametrize("trust", SIGHTED)
def test_the_server_has_the_clients_result_where_it_may(trust):
    outcome = run_recorded(make(trust), PARTS)
    assert set(outcome.result.arrays) == {"centroids", "counts"}
    np.testing.assert_array_equal(outcome.result.arrays["centroids"].numpy(), outcome.one.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["counts"].numpy(), outcome.one.counts)
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)


def test_there_are_no_centroids_before_a_round():
    with pytest.raises(RunError, match="not started"):
        _ = make("plain").centroids


# --------------------------------------------------------------------------- hooks


@pytest.mark.parametrize("trust", SIGHTED)
@pytest.mark.parametrize("initial", [None, np.array([[1.0, 2.0], [8.0, 7.0]])])
def test_evaluate_fn_sees_every_rounds_centroids(trust, initial):
    seen = {}

    def evaluate(number, arrays):
        assert number not in seen
        seen[number] = [array.numpy() for array in arrays.values()]
        return MetricRecord({"round": number}) if number != 2 else None

    options = {} if initial is None else {"initial_arrays": ArrayRecord([initial])}
    outcome = run_recorded(make(trust), PARTS, evaluate_fn=evaluate, **options)
    rounds = [1, 2, 3] if initial is None else [0, 1, 2, 3]
    assert list(seen) == rounds
    np.testing.assert_array_equal(seen[3][0], outcome.one.centroids)
    assert not np.array_equal(seen[1][0], seen[3][0])
    metrics = outcome.result.evaluate_metrics_serverapp
    assert list(metrics) == [number for number in rounds if number != 2]
    assert metrics[3]["round"] == 3
    if initial is not None:
        np.testing.assert_array_equal(seen[0][0], initial)


def test_evaluate_fn_is_called_with_flowers_own_start():
    seen = {}
    outcome = run_recorded(
        make("plain"),
        PARTS,
        start=stock_start,
        evaluate_fn=lambda number, arrays: seen.update({number: dict(arrays)}),
    )
    assert list(seen) == [0, 1, 2, 3]
    np.testing.assert_array_equal(seen[3]["centroids"].numpy(), outcome.one.centroids)


def test_nothing_is_evaluated_on_clients_before_the_last_round():
    outcome = run_recorded(make(), PARTS)
    kinds = [(item.message_type, item.kind) for item in outcome.grid.sent]
    evaluated = [place for place, kind in enumerate(kinds) if kind[0] == "evaluate.kmeans"]
    assert len(evaluated) == 5
    assert min(evaluated) > max(i for i, kind in enumerate(kinds) if kind[1] == "ask")
    assert {kind for _, kind in kinds[min(evaluated) :]} == {"finish"}


@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize(
    ("trust", "round_trips"),
    [
        ("oblivious-server", 3 + 3),
        ("distributed-noise", 2 * 3 + 2),
        ("clients-only", 2 * 3 + 2),
        ("trusted-server", 3 + 2),
        ("plain", 3 + 2),
    ],
)
def test_a_run_takes_as_many_round_trips_as_planned(trust, round_trips, start):
    pushes = []
    outcome = run_recorded(
        make(trust), PARTS, start=start, on_push=lambda grid, listed: pushes.append(len(listed))
    )
    assert len([size for size in pushes if size]) == round_trips
    assert outcome.strategy.report.round_trips == round_trips


@pytest.mark.parametrize("trust", TRUSTS)
def test_flowers_own_start_drives_a_strategy_to_the_same_result(trust):
    with without_noise():
        first, second = (
            run_recorded(make(trust), PARTS, start=start) for start in (None, stock_start)
        )
    np.testing.assert_array_equal(first.one.centroids, second.one.centroids)
    np.testing.assert_array_equal(first.one.counts, second.one.counts)
    assert first.strategy.report.answers == second.strategy.report.answers == [5, 5, 5]


def test_train_metrics_are_never_reported():
    """A metric of clients would be an unaccounted release."""
    result = run_recorded(make("trusted-server"), PARTS).result
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp


def test_on_round_tells_progress_and_nothing_of_records():
    seen = []
    run_recorded(make(on_round=seen.append), PARTS)
    assert [(info.round, info.n_rounds, info.n_answers, info.n_clients) for info in seen] == [
        (t, 3, 5, 5) for t in (1, 2, 3)
    ]
    assert all(info.seconds >= 0 for info in seen)


def test_a_strategy_can_be_started_again():
    strategy = make()
    first = run_recorded(strategy, PARTS)
    run = strategy._running.run.document.run
    second = run_recorded(strategy, PARTS[:4])
    assert strategy._running.run.document.run != run
    assert strategy.report.n_clients == 4
    assert not np.array_equal(first.one.counts, second.one.counts)


def test_flowers_own_start_works_after_our_start_failed():
    strategy = make("distributed-noise")
    with pytest.raises(TooFewClientsError):
        run_recorded(strategy, PARTS[:2], timeout=0.5)
    outcome = run_recorded(strategy, PARTS, start=stock_start)
    np.testing.assert_array_equal(outcome.result.arrays["centroids"].numpy(), outcome.one.centroids)


@pytest.mark.parametrize("trust", ["distributed-noise", "clients-only"])
def test_the_run_document_holds_what_clients_check(trust):
    outcome = run_recorded(make(trust, min_clients=4, max_colluders=2), PARTS)
    (data,) = {item.message.doc for item in outcome.grid.sent if isinstance(item.message, Enrol)}
    document = parse_document(data)
    assert (document.trust, document.keys, document.roster) == (trust, "relayed", None)
    assert (document.min_clients, document.max_colluders, document.max_attempts) == (4, 2, 2)
    assert (document.share_variance, document.sampler) == ("1/2", "discrete-gaussian/1")
    assert (document.rounds, len(document.run)) == (3, 16)
    assert not document.levels  # unless the number of clients is known


def test_a_roster_run_names_the_roster(tmp_path):
    roster, policies = write_roster(tmp_path, 5)
    strategy = make("clients-only", keys="roster", roster_file=roster)
    outcome = run_recorded(strategy, PARTS, policy=policies)
    document = strategy._running.run.document
    assert document.roster == Roster.from_file(roster).digest
    assert outcome.strategy.report.keys == "roster"
    assert len(outcome.results) == 5
    refused(
        lambda grid: make(keys="roster").start(grid),
        grid_of(),
        ConfigurationError,
        "roster_file with keys='roster'",
    )
    refused(
        lambda grid: make(keys="roster", roster_file=roster, n_clients=6).start(grid),
        grid_of(),
        ConfigurationError,
        "n_clients of at most 5",
    )


def test_only_a_sighted_server_sends_queries():
    for trust in TRUSTS:
        outcome = run_recorded(make(trust), PARTS)
        asked = [item.message for item in outcome.grid.sent if isinstance(item.message, Ask)]
        assert len(asked) == 15
        assert {ask.query is None for ask in asked} == {trust in BLIND}


def test_messages_expire_soon_after_the_timeout():
    lives = []
    run_recorded(
        make(),
        PARTS,
        timeout=25.0,
        on_push=lambda grid, messages: lives.extend(message.metadata.ttl for message in messages),
    )
    assert set(lives) == {35.0}


def test_waiting_for_clients_ends_at_the_timeout():
    strategy = make(n_clients=50)
    with pytest.raises(TooFewClientsError, match="Got 2"):
        run_recorded(strategy, PARTS[:2], timeout=0.6)


def test_a_strategy_shows_what_it_is():
    strategy = FastLloyd(3, BOX, PrivacyBudget(1.0), 1000, n_rounds=4)
    text = repr(strategy)
    assert text.startswith("FastLloyd(n_clusters=3, trust='oblivious-server'")
    assert "epsilon=1.0" in text
    assert "n_rounds=4" in text
