"""Starting a strategy: what is refused before anything is sent, the hooks, and what comes back."""

import io
import logging
import math
import re
from dataclasses import replace
from functools import partial
from importlib import metadata
from unittest import mock

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import FedAvg, Strategy
from harness import (
    SIMULATED,
    RecordingGrid,
    run_recorded,
    stock_start,
    without_noise,
    write_roster,
)
from serving import ROUND_TRIPS

from flower_kmeans import (
    Box,
    ClientPolicy,
    PrivacyBudget,
    html_report,
    kmeans_client_app,
)
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    KMeansError,
    ObliviousServerError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.protocol.messages import Enrol
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import parse_document
from flower_kmeans.protocol.trust import TRUST_MODELS, TrustModel
from flower_kmeans.simulation.faults import Fault
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.strategies import FastLloyd, GLloyd, Lloyd, SuLloyd

BOX = Box([0.0, 0.0], [10.0, 10.0])
PARTS = [np.random.default_rng(i).uniform(0, 10, (30, 2)) for i in range(5)]
BLIND = ("oblivious-server", "clients-only")
SIGHTED = ("distributed-noise", "trusted-server", "plain")
TRUSTS = (*BLIND, *SIGHTED)
START = np.array([[1.0, 2.0], [8.0, 7.0]])


def make(trust="oblivious-server", rounds=3, **options):
    if trust == "plain":
        return Lloyd(2, BOX, n_rounds=rounds, **options)
    options.setdefault("min_clients", 3)
    return FastLloyd(
        2, BOX, PrivacyBudget(1.0), 150, trust=trust, n_rounds=rounds, **options
    )


def grid_of():
    app = kmeans_client_app(
        lambda context: PARTS[context.node_config["partition-id"]], SIMULATED
    )
    return RecordingGrid(app, len(PARTS))


def refused(call, match, error=ConfigurationError, grid=None):
    """Require one clear sentence and that nothing was sent."""
    grid = grid_of() if grid is None else grid
    with task_identity(), pytest.raises(error, match=match) as caught:
        call(grid)
    assert not grid.sent
    assert not grid.received
    assert isinstance(caught.value, KMeansError)
    assert isinstance(caught.value, ValueError | TypeError)
    text = str(caught.value)
    assert "\n" not in text
    assert 20 < len(text) < 300


@pytest.mark.parametrize(
    ("error", "match", "options"),
    [
        (ConfigurationError, "num_rounds=3", {"num_rounds": 2}),
        (ConfigurationError, "num_rounds", {"num_rounds": 0}),
        (ConfigurationTypeError, "num_rounds", {"num_rounds": 3.0}),
        (
            ConfigurationError,
            "train_config",
            {"train_config": ConfigRecord({"lr": 0.1})},
        ),
        (
            ConfigurationError,
            "evaluate_config",
            {"evaluate_config": ConfigRecord({"x": 1})},
        ),
        (ConfigurationError, "timeout", {"timeout": 0}),
        (ConfigurationTypeError, "timeout", {"timeout": "1"}),
        (
            ObliviousServerError,
            "must never see",
            {"evaluate_fn": lambda t, arrays: None},
        ),
        (ConfigurationTypeError, "evaluate_fn", {"evaluate_fn": 5}),
        (
            ConfigurationError,
            "initial_arrays",
            {"initial_arrays": ArrayRecord([START] * 2)},
        ),
        (
            ConfigurationError,
            "initial",
            {"initial_arrays": ArrayRecord([np.ones((3, 2))])},
        ),
        (DataError, "initial", {"initial_arrays": ArrayRecord([np.ones((2, 3))])}),
        (DataError, "initial", {"initial_arrays": ArrayRecord([np.ones(2)])}),
        (
            DataError,
            "initial",
            {"initial_arrays": ArrayRecord([np.full((2, 2), np.nan)])},
        ),
        (
            ConfigurationTypeError,
            "initial",
            {"initial_arrays": ArrayRecord([np.array(["a"])])},
        ),
        (ConfigurationTypeError, "initial_arrays", {"initial_arrays": START}),
    ],
)
def test_arguments_that_contradict_the_plan_are_refused(error, match, options):
    refused(lambda grid: make().start(grid, **options), match, error)


def test_the_planned_number_of_rounds_and_empty_configs_are_accepted():
    outcome = run_recorded(
        make(),
        PARTS,
        num_rounds=3,
        train_config=ConfigRecord(),
        evaluate_config=ConfigRecord(),
    )
    assert len(outcome.results) == 5


class Quiet(FedAvg):
    """A wrapper that skips the summary."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def summary(self):
        pass

    def configure_train(self, server_round, arrays, config, grid):
        return self.inner.configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize(
    ("wrapper", "arguments"),
    [
        (flowers.DifferentialPrivacyServerSideFixedClipping, (1.0, 1.0, 5)),
        (flowers.DifferentialPrivacyClientSideFixedClipping, (1.0, 1.0, 5)),
        (flowers.DifferentialPrivacyServerSideAdaptiveClipping, (0.5, 100)),
        (flowers.DifferentialPrivacyClientSideAdaptiveClipping, (0.5, 100)),
        (Quiet, ()),
    ],
)
def test_wrappers_as_flowers_own_for_privacy_are_refused(trust, wrapper, arguments):
    wrapped = wrapper(make(trust), *arguments)
    refused(
        lambda grid: wrapped.start(grid, ArrayRecord([START]), num_rounds=3),
        f"wrapped in {wrapper.__name__}",
    )


def test_hooks_out_of_order_are_refused():
    strategy, grid, empty = make(), grid_of(), (ArrayRecord(), ConfigRecord())
    for early in (
        lambda: strategy.configure_train(2, *empty, grid),
        lambda: strategy.aggregate_train(1, []),
        lambda: strategy.configure_evaluate(3, *empty, grid),
        lambda: make("plain").centroids,
    ):
        with pytest.raises(RunError, match="not started"):
            early()
    with pytest.raises(ObliviousServerError, match="must never see"):
        _ = strategy.centroids
    with pytest.raises(RunError, match="before the run"):
        _ = strategy.report
    config = {"train_config": ConfigRecord({"a": 1})}
    refused(
        lambda grid: stock_start(strategy, grid, **config), "train_config", grid=grid
    )
    with task_identity():
        sighted = make("plain")
        sighted.configure_train(1, *empty, grid_of())
        with pytest.raises(RunError, match="no centroids before a round is finished"):
            _ = sighted.centroids
        strategy.configure_train(1, *empty, grid)
        with pytest.raises(ConfigurationError, match="round 1 next"):
            strategy.configure_train(2, *empty, grid)
        with pytest.raises(ConfigurationError, match="rounds 1 to 3"):
            Strategy.start(make(), grid_of(), ArrayRecord(), num_rounds=4)


def _fast(**changes):
    values = {
        "n_clusters": 2,
        "domain": BOX,
        "privacy": PrivacyBudget(1.0),
        "n_records": 100,
    }
    return FastLloyd(**{**values, **changes})


WIDE = {
    "domain": Box([0.0] * 100, [1.0] * 100),
    "n_clusters": 400,
    "n_records": 10**6,
    "alpha": 1e-3,
}
CLIENTS = PrivacyBudget(1.0, unit="client")
_clients = partial(_fast, privacy=CLIENTS, n_clients=5)


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("domain", {"domain": ([0, 0], [1, 1])}),
        ("privacy", {"privacy": 1.0}),
        ("privacy", {"privacy": None}),
        ("n_clients", {"privacy": CLIENTS}),
        ("n_clients", {"n_clients": 0}),
        ("n_clients", {"n_clients": 2.5}),
        ("clip", {"clip": 5.0}),
        ("clip", {"privacy": CLIENTS, "n_clients": 5, "clip": 0.0}),
        ("initial", {"initial": [[0.0, 0.0]]}),
        ("initial", {"initial": [[0.0, 0.0], [np.nan, 0.0]]}),
        ("trust", {"trust": "plain"}),
        ("trust", {"trust": "me"}),
        ("trust", {"privacy": PrivacyBudget(None), "trust": "oblivious-server"}),
        ("min_clients", {"min_clients": 0}),
        ("min_clients", {"min_clients": 1}),
        ("min_clients <= n_clients=4", {"min_clients": 5, "n_clients": 4}),
        ("n_clients or min_clients", {"trust": "distributed-noise"}),
        ("n_clients or min_clients", {"trust": "clients-only"}),
        ("max_colluders < min", {"trust": "distributed-noise", "min_clients": 1}),
        ("max_colluders < min", {"max_colluders": 3}),
        ("max_colluders", {"max_colluders": 0}),
        ("keys", {"keys": "ring"}),
        ("roster_file", {"keys": "roster", "roster_file": 7}),
        ("max_attempts", {"max_attempts": 0}),
        ("max_attempts", {"max_attempts": 4}),
        ("max_attempts", {"max_attempts": True}),
        ("on_round", {"on_round": "print"}),
        ("word|bit|overflow", {"privacy": PrivacyBudget(1e-14, 1e-16)}),
        ("MiB", {"trust": "clients-only", "n_clients": 1000, "alpha": 1e-3, **WIDE}),
    ],
)
def test_parameters_that_cannot_be_used_are_one_sentence(match, options):
    with pytest.raises(
        (ConfigurationError, ConfigurationTypeError, DataError)
    ) as caught:
        _fast(**options)
    text = str(caught.value)
    assert re.search(match, text)
    assert "\n" not in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("match", "budget", "trust"),
    [("epsilon=None", PrivacyBudget(1.0), None), ("privacy", 1.0, None),
     ("It adds noise", None, "oblivious-server")],
)  # fmt: skip
def test_lloyd_takes_no_private_budget(match, budget, trust):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=match):
        Lloyd(2, BOX, budget, trust=trust)


def test_a_third_trust_model_is_one_registration():
    """What runs under a trust model follows from its properties, not from a list of names."""
    model = TrustModel("test-trust", "server", "plain", "server")
    with mock.patch.dict(TRUST_MODELS, {model.name: model}):
        policy = ClientPolicy.for_simulation()
        outcome = run_recorded(make("test-trust"), PARTS, policy=policy)
    assert outcome.strategy.report.answers == [5, 5, 5]


@pytest.mark.claim("how-a-run-works", "min-clients-fewest-clients")
@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({}, 3, 1),
        ({"n_clients": 2}, 2, 1),
        ({"n_clients": 50}, 3, 1),
        ({"privacy": PrivacyBudget(None)}, 1, 1),
        ({"trust": "distributed-noise", "n_clients": 20}, 16, 2),
        ({"trust": "clients-only", "n_clients": 19}, 16, 1),
        ({"trust": "clients-only", "n_clients": 40}, 32, 4),
        ({"trust": "clients-only", "min_clients": 30}, 30, 3),
        ({"trust": "clients-only", "n_clients": 40, "max_colluders": 7}, 32, 7),
    ],
)
def test_defaults_of_min_clients_and_max_colluders(options, least, most):
    strategy = _fast(**options)
    assert (strategy.min_clients, strategy.max_colluders) == (least, most)


def test_clients_count_as_the_planned_average_by_default():
    strategy = _clients()
    assert (strategy.clip, strategy.algorithm.n_clients) == (20.0, 5)
    assert strategy.plan.n_clients == 5
    assert _clients(clip=7).clip == 7.0
    assert sensitivities(_clients(n_rounds=3).algorithm, 1)[-1] == 20 * 2**16
    assert _fast(n_clients=5).clip is None
    assert _fast(n_clients=5).plan.n_clients is None


def test_the_noise_factor_is_known_before_the_run():
    assert _clients().noise_factor == 1.0
    blind = _clients(trust="clients-only", n_clients=20)
    assert blind.noise_factor == (20 / (16 - 2)) ** 0.5
    # noise beyond the plan is removed
    sighted = _clients(trust="distributed-noise", n_clients=20)
    assert sighted.noise_factor == (20 / (20 - 2)) ** 0.5
    assert sighted.added_noise_factor == blind.noise_factor
    assert (
        _fast(trust="distributed-noise", min_clients=5).noise_factor == (5 / 4) ** 0.5
    )


@pytest.mark.parametrize("cls", [Lloyd, SuLloyd, GLloyd, FastLloyd])
def test_public_initial_centroids_are_an_option_or_an_argument_of_the_start(cls):
    budget, initial = PrivacyBudget(None if cls is Lloyd else 1.0), START.copy()
    given = cls(2, BOX, budget, initial=initial, n_rounds=2, n_records=150)
    initial[:] = 0.0  # what becomes of the array does not matter
    started = given.algorithm.centroids(given.algorithm.initial_state(None))
    np.testing.assert_allclose(started, START, atol=1e-3)
    arrays = {"initial_arrays": ArrayRecord([START])}
    for start in (cls.start, stock_start):
        refused(lambda grid, start=start: start(given, grid, **arrays), "Got both")
    with without_noise():
        outcome = run_recorded(given, PARTS)
        own = cls(2, BOX, budget, n_rounds=2, n_records=150)
        planned = own.algorithm
        again = run_recorded(own, PARTS, **arrays)
        np.testing.assert_array_equal(outcome.one.centroids, again.one.centroids)
        assert own.algorithm == given.algorithm
        other = run_recorded(own, PARTS)  # the next start forgets them
        assert own.algorithm == planned
    assert (other.one.centroids != again.one.centroids).any()


@pytest.mark.parametrize("trust", SIGHTED)
@pytest.mark.parametrize("start", [None, stock_start])
def test_evaluate_fn_sees_every_rounds_centroids(trust, start):
    seen = {}

    def evaluate(number, arrays):
        assert number not in seen
        seen[number] = dict(arrays)
        return MetricRecord({"round": number}) if number != 2 else None

    outcome = run_recorded(
        make(trust),
        PARTS,
        start=start,
        evaluate_fn=evaluate,
        initial_arrays=ArrayRecord({"centroids": Array(START)}),
    )
    assert list(seen) == [0, 1, 2, 3]
    np.testing.assert_array_equal(seen[0]["centroids"].numpy(), START)
    np.testing.assert_array_equal(seen[3]["centroids"].numpy(), outcome.one.centroids)
    assert not np.array_equal(seen[1]["centroids"].numpy(), outcome.one.centroids)
    metrics = outcome.result.evaluate_metrics_serverapp
    assert list(metrics) == [0, 1, 3]
    assert metrics[3]["round"] == 3
    # A metric of clients would be a release without a cost: these are the server's own.
    names = {"round", "answers", "clients"} | (
        {"epsilon"} if trust != "plain" else set()
    )
    metrics = outcome.result.train_metrics_clientapp
    assert [set(each) for each in metrics.values()] == [names] * 3
    assert not outcome.result.evaluate_metrics_clientapp


# ----------------------------------------------------------------------- public metrics


@pytest.mark.claim("threat-model", "metrics-each-round-what")
@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
@pytest.mark.parametrize("start", [None, stock_start])
def test_metrics_of_each_round_are_what_the_plan_and_the_answers_say(trust, start):
    told = []
    strategy = make(trust, on_round=lambda info: told.append(info.metrics))
    # Client 4 takes part in the set-up and does not answer in round 2.
    outcome = run_recorded(strategy, PARTS, start=start, faults=[Fault(4, 2, "drop")])
    metrics = outcome.result.train_metrics_clientapp
    assert list(metrics) == [1, 2, 3]
    assert list(metrics.values()) == told
    assert [each["answers"] for each in told] == strategy.report.answers == [5, 4, 5]
    assert [(each["round"], each["clients"]) for each in told] == [
        (1, 5),
        (2, 5),
        (3, 5),
    ]
    # All rounds are alike: t of them are t times as much in squares of mu.
    plan = strategy.plan
    for t, each in enumerate(told, 1):
        mu = plan.mu * math.sqrt(t / 3)
        assert each["epsilon"] == pytest.approx(
            epsilon_of_mu(mu, plan.budget.delta), rel=1e-6
        )
    assert told[-1]["epsilon"] == strategy.report.epsilon


@pytest.mark.claim("threat-model", "metrics-each-round-what")
def test_metrics_do_not_depend_on_the_records():
    found = []
    for parts in (PARTS, [np.zeros((0, 2)), *([[9.0, 9.0]] for _ in range(4))]):
        found.append(run_recorded(make(), parts).result.train_metrics_clientapp)
    assert found[0] == found[1]


def test_without_privacy_there_is_no_epsilon_so_far():
    metrics = run_recorded(make("plain"), PARTS).result.train_metrics_clientapp
    assert dict(metrics[3]) == {"round": 3, "answers": 5, "clients": 5}


# ----------------------------------------------------------------------- how a run ends


@pytest.mark.claim("known-limitations", "start-accepts-should-stop")
def test_should_stop_is_accepted_and_answered_by_a_sentence(caplog):
    caplog.set_level("WARNING", "flwr")
    outcome = run_recorded(
        make(), PARTS, should_stop=lambda t, result: pytest.fail("asked")
    )
    assert outcome.strategy.report.n_rounds == 3
    (words,) = [
        each.getMessage() for each in caplog.records if "should_stop" in each.msg
    ]
    assert words.endswith("they get the result after the last one.")
    assert "\n" not in words


def logged_as_flower_does(error):
    """Return what Flower's ServerApp writes of an error that ends it."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    try:
        log(logging.ERROR, "%s raised an exception", "ServerApp", exc_info=error)
    finally:
        logger.removeHandler(handler)
    return text.getvalue()


@pytest.mark.claim("deploy", "if-too-few-nodes")
def test_a_refusal_ends_flowers_log_by_one_sentence():
    policy = replace(SIMULATED, max_epsilon=0.5)
    with pytest.raises(TooFewClientsError) as caught:
        run_recorded(make(), PARTS, policy=policy)
    assert logged_as_flower_does(caught.value) == (
        "ServerApp raised an exception: Expected at least min_clients=3 clients to take part. Got "
        "0 of 5 connected nodes instead. Reasons: The run is outside of what the client's policy "
        "accepts.\n"
    )
    # The mistakes of an app keep their traceback.
    with pytest.raises(RunError) as caught:
        make().report  # noqa: B018
    assert "Traceback" in logged_as_flower_does(caught.value)


@pytest.mark.claim("known-limitations", "start-accepts-should-stop")
@pytest.mark.parametrize(
    ("installed", "expected"),
    [({"flwr-nightly": "1.43.0.dev20261026"}, "1.43.0.dev20261026"), ({}, "unknown")],
)
def test_a_run_keeps_its_result_where_flowers_distribution_has_another_name(
    installed, expected
):
    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "version", version)
        outcome = run_recorded(make(), PARTS)
        values, page = outcome.strategy.report.to_dict(), html_report(outcome.strategy)
    assert values["versions"]["flwr"] == expected
    assert expected in page
    assert len(outcome.results) == 5


def test_messages_and_waiting_end_with_the_timeout():
    times = []
    run_recorded(
        make(),
        PARTS,
        timeout=25.0,
        on_push=lambda grid, messages: times.extend(
            each.metadata.ttl for each in messages
        ),
    )
    assert set(times) == {35.0}
    with pytest.raises(TooFewClientsError, match="Got 2"):
        run_recorded(make(n_clients=50), PARTS[:2], timeout=0.6)


@pytest.mark.claim("protocol", "timeout-default-5-minutes")
@pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])
def test_a_request_has_five_minutes_and_a_second_for_each_megabyte(trust):
    times = set()
    strategy = make(trust, n_clients=5)
    outcome = run_recorded(
        strategy,
        PARTS,
        timeout=None,
        on_push=lambda grid, messages: times.update(
            each.metadata.ttl for each in messages
        ),
    )
    assert times == {strategy.default_timeout + 10}
    answers = [item.message for item in outcome.grid.received if item.kind == "answer"]
    size = sum(len(each.words) + len(each.sealed) for each in answers) / 3
    assert 300 + size / 1e6 <= strategy.default_timeout <= 300 + 2 * size / 1e6
    # Two hundred clients, each with shares of a 60 kB vector for 64 members.
    large = FastLloyd(
        200, Box([0] * 30, [1] * 30), PrivacyBudget(1.0), 10**5, n_clients=200
    )
    assert large.default_timeout > 300 + 200 * 200 * 30 * 8 / 1e6


@pytest.mark.claim("protocol", "timeout-default-5-minutes")
def test_clients_accept_the_default_number_of_attempts():
    usual = ClientPolicy()
    strategy = make()
    assert strategy.max_attempts == 3
    run_recorded(
        strategy, PARTS, policy=replace(SIMULATED, max_attempts=usual.max_attempts)
    )
    with pytest.raises(TooFewClientsError, match="policy"):
        run_recorded(
            make(),
            PARTS,
            policy=replace(SIMULATED, max_attempts=usual.max_attempts - 1),
        )


@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize(("trust", "round_trips"), ROUND_TRIPS.items())
def test_a_run_takes_as_many_round_trips_as_planned(trust, round_trips, start):
    """And nothing is evaluated on clients before the last round."""
    pushes = []
    outcome = run_recorded(
        make(trust),
        PARTS,
        start=start,
        on_push=lambda grid, listed: pushes.append(len(listed)),
    )
    assert len([size for size in pushes if size]) == round_trips
    assert outcome.strategy.report.round_trips == round_trips
    sent = [
        (item.message_type == "evaluate.kmeans", item.kind)
        for item in outcome.grid.sent
    ]
    assert sent[-5:] == [(True, "finish")] * 5
    assert not any(
        is_evaluation or kind == "finish" for is_evaluation, kind in sent[:-5]
    )


def test_a_strategy_can_be_started_again():
    """By either loop, also after a start that failed."""
    strategy = make("distributed-noise")
    with pytest.raises(TooFewClientsError):
        run_recorded(strategy, PARTS[:2], timeout=0.5)
    first = run_recorded(strategy, PARTS, start=stock_start)
    np.testing.assert_array_equal(
        first.result.arrays["centroids"].numpy(), first.one.centroids
    )
    second = run_recorded(strategy, PARTS[:4])
    assert second.run.document.run != first.run.document.run
    assert strategy.report.n_clients == 4
    assert not np.array_equal(first.one.counts, second.one.counts)


@pytest.mark.parametrize("trust", ["distributed-noise", "clients-only"])
def test_the_run_document_holds_what_clients_check(trust):
    outcome = run_recorded(make(trust, min_clients=4, max_colluders=2), PARTS)
    (data,) = {
        item.message.doc
        for item in outcome.grid.sent
        if isinstance(item.message, Enrol)
    }
    document = parse_document(data)
    assert (document.trust, document.keys, document.roster) == (trust, "relayed", None)
    assert (document.min_clients, document.max_colluders, document.max_attempts) == (
        4,
        2,
        3,
    )
    assert (document.share_variance, document.sampler) == ("1/2", "discrete-gaussian/2")
    assert (document.rounds, len(document.run)) == (3, 16)
    assert not document.levels  # unless the number of clients is known


def test_a_roster_run_names_the_roster(tmp_path):
    roster, policies = write_roster(tmp_path, 5)
    strategy = make("clients-only", keys="roster", roster_file=roster)
    outcome = run_recorded(strategy, PARTS, policy=policies)
    assert outcome.run.document.roster == Roster.from_file(roster).digest
    assert outcome.strategy.report.keys == "roster"
    assert len(outcome.results) == 5
    refused(make(keys="roster").start, "roster_file with keys='roster'")
    strategy = make(keys="roster", roster_file=roster, n_clients=6)
    refused(strategy.start, "n_clients of at most 5")
