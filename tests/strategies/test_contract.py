"""What holds for every strategy, under every trust model that its algorithm allows."""

import inspect
import math
from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np
import pytest
from asking import Split
from flwr.app import ArrayRecord
from harness import SIMULATED, stock_start, without_noise, write_roster
from rows import (
    BLIND,
    CENTERS,
    ROWS,
    SIGHTED,
    TRUSTS,
    M,
    exact,
    listed,
    make,
    parts_of,
    present,
    queries,
    run,
    runs,
)
from saying import assert_within

from flower_kmeans import Ball, Box, Fault, PrivacyBudget, simulate
from flower_kmeans.algorithms.registry import algorithm_from_config, algorithm_to_config
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    ObliviousServerError,
)
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.protocol import noise as round_noise
from flower_kmeans.protocol.messages import Ask, Finish
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.strategies import (
    BY_NAME,
    GLloyd,
    KMeansStrategy,
    Lloyd,
    meanings_of,
    parameters_of,
)


def cases(*units, **choice):
    return pytest.mark.parametrize(("name", "trust", "unit"), listed(*units, **choice))


@cache
def finished(name, trust, unit):
    """A run for several tests, which only look at it."""
    return run(name, make(name, trust, unit=unit))


# --------------------------------------------------------------------------- runs


@pytest.mark.claim(
    "choosing",
    "feddpkmeans-second-moments-votes",
    "synopsiskmeans-second-moments-then",
    "pemeans-votes-nearest-many",
)
@pytest.mark.claim("how-a-run-works", "where-server-saw-no")
@pytest.mark.claim("protocol", "so-result-one-codeword")
@pytest.mark.claim("guarantees", "17", "22")
@pytest.mark.default_cases("pairs")
@pytest.mark.parametrize(
    ("name", "trust", "unit", "start"),
    [(*case, None) for case in listed("record", "client")]
    + [(*case, stock_start) for case in listed("record")],
)
def test_runs_end_with_one_result(name, trust, unit, start):
    """Of all clients, and of the server where it may see it; Flower's own loop drives them too."""
    if start is None:
        outcome = finished(name, trust, unit)
    else:
        outcome = run(name, make(name, trust, unit=unit), start=start)
    strategy, result = outcome.strategy, outcome.one
    report, rounds = strategy.report, strategy.n_rounds
    assert len(outcome.results) == M
    assert result.centroids.shape == (3, ROWS[name][1])
    assert np.isfinite(result.counts).all()
    assert (
        (result.weights is None)
        == (result.size_report is None)
        == ("bounds" not in name)
    )
    assert (result.synopsis is None) == ("Synopsis" not in name)
    assert (result.silhouette is None) == ("quality" not in name)
    messages = [item.message for item in outcome.grid.sent]
    sent = {m.query for m in messages if isinstance(m, Ask)}
    if trust_model(trust).is_blind:
        assert sent == {m.result for m in messages if isinstance(m, Finish)} == {None}
        assert not outcome.result.arrays
        assert outcome.server.last_sum == 0
        assert (report.warnings, report.cost, report.sizes) == ((), None, None)
        assert report.silhouette is None
        with pytest.raises(ObliviousServerError, match="on_result"):
            _ = strategy.centroids
    else:
        assert None not in sent
        outcome.agreed()
        assert report.silhouette == result.silhouette
    assert report.answers == [M] * rounds
    assert (report.strategy, report.n_rounds) == (type(strategy).__name__, rounds)
    assert (report.trust, report.unit) == (trust, unit)
    assert_within("the run costs an epsilon of", report.epsilon, least=7.9, most=8.0)
    assert not report.incidents
    assert not report.lost_rounds


@pytest.mark.claim("guarantees", "19", "21", "28")
@pytest.mark.default_cases("values")
@cases("record", "client")
def test_the_report_lists_every_release_with_its_cost(name, trust, unit):
    strategy = finished(name, trust, unit).strategy
    report, names = (
        strategy.report.to_dict(),
        [each.name for each in strategy.plan.releases],
    )
    assert [(each["round"], each["name"]) for each in report["releases"]] == [
        (t, each.name)
        for t, found in enumerate(strategy.plan.rounds, start=1)
        for each in found
    ]
    if report["mu"] is not None:
        mus = [each["mu"] for each in report["releases"]]
        assert math.hypot(*mus) == pytest.approx(report["mu"], rel=1e-9)
    assert list(report["clips"]) == (
        list(dict.fromkeys(names)) if unit == "client" else []
    )
    assert report["clips"] == strategy.clips


@pytest.mark.claim("protocol", "party-sees-sums-computes")
@pytest.mark.default_cases(
    "FastLloyd",
    "SuLloyd",
    "FedDPKMeans",
    "PEMeans",
    "HDPEMeans",
    "SynopsisKMeans",
    "Split",
    "constrained, mna",
    "constrained, amn, laplace",
)
@pytest.mark.parametrize("name", ROWS)
def test_without_noise_every_trust_model_gives_the_same_integers(name):
    """Queries that clients compute are those that a server sends; and the clusters are found."""
    *_, off = ROWS[name]
    # The rule of ranges knows how much noise the answers of a trust model have.
    as_planned = mock.patch.object(round_noise, "noise_factor", return_value=1.0)
    with without_noise(), as_planned:
        found = [
            run(name, make(name, trust)).one for trust in TRUSTS if runs(name, trust)
        ]
    for other in found[1:]:
        for array in ("centroids", "counts", "weights"):
            np.testing.assert_array_equal(
                getattr(other, array), getattr(found[0], array)
            )
    plain = run(name, make(name, "plain"))
    report = plain.strategy.report
    assert (report.trust, report.epsilon, report.is_private) == ("plain", None, False)
    assert any("NOT PRIVATE" in statement for statement in report.statements)
    means = np.zeros((3, ROWS[name][1]))
    means[:, :3] = CENTERS
    for one in (found[0], plain.agreed()):
        found = matched_centroid_error(one.centroids, means)
        what = f"without noise {name} is off the true means by"
        assert_within(what, found, most=off, strict=True)


FAULTY = ("PEMeans", "SynopsisKMeans", "Split")


@pytest.mark.claim("choosing", "pemeans-votes-nearest-many")
@pytest.mark.claim("protocol", "clients-replay-entries-ask")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(
    ("name", "trust", "unit", "kind"),
    [(*case, "drop") for case in listed("record")]
    + [(*case, "drop") for case in listed("client", trusts=SIGHTED)]
    + [
        (*case, kind)
        for case in listed("record", names=FAULTY)
        for kind in ("crash", "late", "twice", "shape", "round")
    ],
)
def test_whoever_is_missing_in_a_round_is_missing_in_its_sum_alone(
    name, trust, unit, kind
):
    """Without noise, the sum of each round is exactly that of the clients who answered it."""
    strategy = make(name, trust, unit=unit)
    away = {t: (t - 1) % M for t in range(1, strategy.n_rounds + 1)}
    with without_noise():
        outcome = run(
            name, strategy, faults=[Fault(i, t, kind) for t, i in away.items()]
        )
    report, missing = strategy.report, kind != "twice"
    assert report.answers == [M - missing] * strategy.n_rounds
    dropped = [(entry.round, entry.client) for entry in report.dropped]
    assert dropped == (list(away.items()) if missing else [])
    assert len(outcome.results) == M
    for query in queries(outcome):
        there = present(outcome, query.round, parts_of(name))
        np.testing.assert_array_equal(
            outcome.sums[query.round], exact(outcome, query, there)
        )


@pytest.mark.claim("protocol", "clients-replay-entries-ask")
@pytest.mark.default_cases("values")
@cases("record", names=FAULTY)
def test_late_clients_take_part_and_have_the_result(name, trust, unit, tmp_path):
    """Where clients compute the queries, they replay the transcript."""
    roster, policies = write_roster(tmp_path, M)
    strategy = make(name, trust, keys="roster", roster_file=roster, min_clients=3)
    late = [
        Fault(i, 0, "late") for i in ((1, 4) if trust == "oblivious-server" else (4,))
    ]
    outcome = run(name, strategy, policy=policies, faults=late)
    # They are in round 1 where their reply came before it, and are given the group key
    # there. With shares a vote waits for them where one more absent member could make
    # it fail.
    before = 0 if trust in (*BLIND, "distributed-noise") else 1
    answers = [M - len(late)] * before + [M] * (strategy.n_rounds - before)
    assert strategy.report.answers == answers
    assert len(outcome.results) == M
    assert np.isfinite(outcome.one.counts).all()


@pytest.mark.claim("protocol", "clients-replay-entries-ask")
@pytest.mark.default_cases("values")
@cases("record", names=FAULTY)
def test_clients_with_a_ledger_resume_where_they_were(name, trust, unit, tmp_path):
    """States are written down between all messages, as bytes, and read again."""
    policies = [
        replace(SIMULATED, in_memory=False, state_dir=tmp_path / str(i))
        for i in range(M)
    ]
    strategy = make(name, trust)

    def restart(grid, messages):
        for state in grid.states.values():
            state.clear()

    outcome = run(name, strategy, policy=policies, on_push=restart)
    assert strategy.report.answers == [M] * strategy.n_rounds
    assert strategy.report.ledger
    assert len(outcome.results) == M
    assert np.isfinite(outcome.one.counts).all()
    for policy in policies:
        with Ledger(policy.state_dir) as ledger:
            epsilon = ledger.epsilon(strategy.plan.budget.delta)
            assert epsilon == pytest.approx(strategy.plan.epsilon(), rel=1e-9)


@pytest.mark.claim("reference/simulation", "engines-process-ray-give")
@pytest.mark.default_cases("FedDPKMeans-distributed-noise")
@pytest.mark.ray
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize(
    ("name", "trust"),
    [("FastLloyd", trust) for trust in ("clients-only", "plain")]
    + [
        (name, trust)
        for name in (
            "FastLloyd",
            "FedDPKMeans",
            "PEMeans",
            "HDPEMeans",
            "SynopsisKMeans, bounds",
        )
        for trust in ("distributed-noise", "oblivious-server")
        if runs(name, trust)
    ],
)
def test_ray_gives_the_same_result(name, trust):
    """Node ids differ, and with them the noise, so there is next to none."""
    options = {"epsilon": 1e6, "fraction_bits": 20}
    found = [
        simulate(
            make(name, trust, **options), parts_of(name), engine=engine, timeout=600
        )
        for engine in ("in-process", "ray")
    ]
    # A server's k-means numbers its clusters by chance.
    first, second = (np.argsort(result.centroids[:, 0]) for result in found)
    for array, atol in (("centroids", 0.1), ("counts", 1.0)):
        one, other = getattr(found[0], array)[first], getattr(found[1], array)[second]
        np.testing.assert_allclose(
            one, other, rtol=0, atol=0 if trust == "plain" else atol
        )
    assert found[1].report.answers == [M] * found[1].report.n_rounds
    assert (found[1].weights is None) == ("bounds" not in name)


@pytest.mark.default_cases("values")
@cases("record", trusts=("distributed-noise", "oblivious-server"))
def test_runs_take_keys_from_a_roster(name, trust, unit, tmp_path):
    roster, policies = write_roster(tmp_path, M)
    strategy = make(name, trust, keys="roster", roster_file=roster)
    assert len(run(name, strategy, policy=policies).results) == M
    assert strategy.report.keys == "roster"
    assert strategy.report.answers == [M] * strategy.n_rounds


@pytest.mark.claim("reading-a-report", "warnings-follow-gravest-first")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("records", [0, 200], ids=["none", "equal"])
@cases(
    "record",
    trusts=("oblivious-server", "trusted-server", "plain"),
    names=[name for name in ROWS if not name.startswith("constrained, amn")],
)
def test_clients_without_records_and_equal_records_are_no_error(
    name, trust, unit, records
):
    strategy = make(
        name, trust, domain=Box([-14.0] * ROWS[name][1], [14.0] * ROWS[name][1])
    )
    result = run(name, strategy, [np.full((records, ROWS[name][1]), 1.5)] * M).one
    off = np.abs(result.centroids)
    assert_within("a coordinate of a centroid has the size", off, most=14.0, slack=1e-3)


# --------------------------------------------------------------------------- parameters


def test_every_strategy_has_a_row():
    classes = {cls for cls, *_ in ROWS.values()} | {Lloyd}
    assert classes - {Split} == {
        cls for cls in BY_NAME.values() if issubclass(cls, KMeansStrategy)
    }
    # A case that is refused has no test, so none may be lost.
    assert (len(listed("record")), len(listed("client"))) == (88, 50)


@pytest.mark.parametrize("name", ROWS)
def test_the_default_trust_model_runs_and_plain_means_no_noise(name):
    assert make(name, None).trust == ROWS[name][0].TRUST
    assert make(name, "plain").plan.is_private is False
    for trust in TRUSTS:
        if runs(name, trust):
            assert make(name, trust).trust == trust
        else:
            reason = "so it must see the sums|Laplace noise has no shares"
            with pytest.raises(ConfigurationError, match=f"trust of .*({reason})"):
                make(name, trust)


@pytest.mark.parametrize("name", ROWS)
def test_rows_for_single_records_only_refuse_to_protect_clients(name):
    trust = "trusted-server"
    if runs(name, trust, "client"):
        assert make(name, trust, unit="client").plan.budget.unit == "client"
    else:
        reason = r"unit='record'|min_size=None|its clips follow from server_data"
        with pytest.raises(ConfigurationError, match=reason):
            make(name, trust, unit="client")


@pytest.mark.claim("choosing", "synopsiskmeans-second-moments-then")
@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize(
    "name", [name for name, row in ROWS.items() if "initial" not in row[2]]
)
def test_initial_centroids_are_refused_by_those_that_make_their_own(name, start):
    strategy, initial = make(name, "trusted-server"), np.zeros((3, ROWS[name][1]))
    own = f": {type(strategy).__name__} makes its own"
    with pytest.raises(ConfigurationError, match=f"no initial{own}"):
        make(name, "trusted-server", initial=initial)
    sent = []
    with pytest.raises(ConfigurationError, match=f"no initial_arrays{own}"):
        run(
            name,
            strategy,
            start=start,
            initial_arrays=ArrayRecord([initial]),
            on_push=lambda grid, messages: sent.append(messages),
        )
    assert not sent


@pytest.mark.parametrize("name", ["constrained, mna", "Split"])
def test_whole_clients_are_protected_only_where_they_are_clipped(name):
    with pytest.raises(ConfigurationError, match="unit='record'"):
        make(name, "trusted-server", unit="client")
    with pytest.raises(ConfigurationError, match="clip=None"):
        make(name, "trusted-server", clip=2.0)


@pytest.mark.parametrize("cls", [Lloyd, *{cls: 0 for cls, *_ in ROWS.values()}])
def test_every_parameter_is_documented_and_no_other_is_taken(cls):
    parameters = parameters_of(cls)
    assert list(parameters)[:4] == ["n_clusters", "domain", "privacy", "n_records"]
    assert parameters["n_clients"].kind is inspect.Parameter.KEYWORD_ONLY
    meanings = meanings_of(cls)
    own = {*inspect.signature(cls.__init__).parameters} - {"self", "common"}
    assert all(meanings.get(name) for name in parameters if cls is not Split)
    for line in inspect.getdoc(cls).splitlines():
        name, colon, kind = line.partition(" : ")
        default = parameters[name].default if name in own and colon else None
        if default not in (None, inspect.Parameter.empty):
            assert kind.endswith(f", default: {default!r}".replace("'", '"'))
    with pytest.raises(
        ConfigurationTypeError, match=f"{cls.__name__} takes no parameter 'alfa'"
    ):
        cls(3, Ball(1.0, [0.0]), PrivacyBudget(None), alfa=1)


@pytest.mark.parametrize(
    ("name", "option", "value", "field"),
    [
        ("FastLloyd", "alpha", 0.5, "alpha"),
        ("FastLloyd", "seed", 9, "seed"),
        ("PEMeans", "n_rounds", 2, "n_vote_rounds"),
        ("FedDPKMeans", "n_rounds", 1, "n_lloyd_rounds"),
        ("FedDPKMeans", "sums", "absolute", "sums"),
        ("SynopsisKMeans", "max_size", 500, "max_size"),
        ("constrained, mna", "n_clients", 8, "n_clients"),
        ("constrained, mna", "initial", CENTERS, "initial"),
    ],
)
def test_options_reach_the_algorithm_and_the_run_document(name, option, value, field):
    strategy, usual = make(name, None, **{option: value}), make(name, None)
    np.testing.assert_array_equal(getattr(strategy.algorithm, field), value)
    config = algorithm_to_config(strategy.algorithm)
    assert config[field] != algorithm_to_config(usual.algorithm).get(field)
    seen = algorithm_from_config(config, strategy.domain, strategy.plan.budget)
    np.testing.assert_array_equal(getattr(seen, field), value)


def test_a_strategy_of_ones_own_takes_what_its_constructor_says():
    class Fixed(GLloyd):
        """One round.

        Parameters
        ----------
        rate : float
            Ours.

        Notes
        -----
        None.
        """

        def __init__(
            self, n_clusters, domain, privacy, n_records=None, *, rate, **options
        ):
            super().__init__(
                n_clusters, domain, privacy, n_records, n_rounds=1, **options
            )

    class Closed(GLloyd):
        """Nothing to choose."""

        def __init__(self, domain):
            super().__init__(2, domain, PrivacyBudget(1.0), 100)

    names = list(parameters_of(Fixed))
    assert names[:6] == ["n_clusters", "domain", "privacy", "n_records", "rate", "cost"]
    assert meanings_of(Fixed)["rate"] == "Ours."
    assert meanings_of(Fixed)["privacy"] == meanings_of(KMeansStrategy)["privacy"]
    assert Fixed(2, Ball(1.0, [0.0]), PrivacyBudget(1.0), 100, rate=1.0).n_rounds == 1
    assert list(parameters_of(Closed)) == ["domain"]
    assert Closed(Ball(1.0, [0.0])).n_clusters == 2
