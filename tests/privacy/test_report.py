"""What a finished run's report says."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from harness import run_recorded, write_roster
from scipy import stats

from flower_kmeans import Box, Fault, PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.release import Release
from flower_kmeans.privacy.report import PARTIES, CommitteeReport, Dropped, Report
from flower_kmeans.protocol.trust import TRUST_MODELS, trust_model
from flower_kmeans.strategies import FastLloyd, GLloyd, Lloyd, SuLloyd

BOX = Box([0.0, 0.0], [1.0, 1.0])
PARTS = [np.random.default_rng(i).random((25, 2)) for i in range(6)]
SHARED = ("clients-only", "distributed-noise")
PRIVATE = (*SHARED, "oblivious-server", "trusted-server")
PLAN = PrivacyPlan(
    PrivacyBudget(1.0, 1e-6), 1000, ((Release("sums", "gaussian", "l2", 5.0, ("sums",)),),)
)
EXACT = PrivacyPlan(
    PrivacyBudget(None), None, ((Release("sums", "gaussian", "l2", 0.0, ("sums",)),),)
)
COMMITTEE = CommitteeReport(tuple(range(10)), 9, n_corrupt=2, privacy=7, packing=1)


def report_of(strategy, **options):
    run_recorded(strategy, PARTS, timeout=60, **options)
    return strategy.report


def fast(trust, **options):
    options.setdefault("min_clients", 4)
    return FastLloyd(
        2, BOX, PrivacyBudget(0.8), 150, trust=trust, n_clients=6, n_rounds=3, **options
    )


def made(trust, keys="roster", **values):
    """Return a report of a run that was not made: 10 clients, of whom 8 must answer."""
    model = trust_model(trust)
    plan = PLAN if model.is_private else EXACT
    defaults = {
        "min_clients": 8,
        "max_colluders": 2,
        "n_slots": 10,
        "committee": COMMITTEE if model.has_committee else None,
    }
    keys = keys if model.is_protected else "none"
    return Report("FastLloyd", plan, model, keys, **defaults | values)


def delta_of(mu, epsilon):
    return stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(
        -epsilon / mu - mu / 2
    )


@pytest.mark.parametrize("trust", PRIVATE)
def test_the_numbers_are_those_of_the_run(trust):
    report = report_of(fast(trust))
    assert report.is_private
    assert report.epsilon == pytest.approx(0.8, rel=1e-9)
    assert report.delta == min(1e-6, 1 / 15000)
    assert delta_of(report.mu, report.epsilon) == pytest.approx(report.delta, rel=1e-6)
    assert (report.unit, report.trust, report.strategy) == ("record", trust, "FastLloyd")
    assert (report.n_clients, report.n_slots, report.min_clients) == (6, 6, 4)
    assert (report.n_rounds, report.answers, report.lost_rounds) == (3, [6, 6, 6], [])
    assert (report.attempts, report.repeats) == (3, 0)
    extra = {"oblivious-server": 3, "trusted-server": 2}.get(trust)
    assert report.round_trips == (2 * 3 + 2 if extra is None else 3 + extra)
    assert report.seconds > 0
    assert not report.ledger


def test_mu_is_that_of_gaussian_runs_only():
    laplace = report_of(SuLloyd(2, BOX, PrivacyBudget(1.0, 0.0), 150, n_rounds=2))
    assert laplace.mu is None
    assert laplace.delta == 0
    assert laplace.epsilon == pytest.approx(1.0)
    gaussian = report_of(GLloyd(2, BOX, PrivacyBudget(1.0), 150, n_rounds=2))
    assert gaussian.mu is not None


def test_a_run_without_privacy_says_so_in_every_place():
    report = report_of(Lloyd(2, BOX))
    assert (report.is_private, report.epsilon, report.delta, report.mu) == (False, None, None, None)
    assert report.statements[0].startswith("NOT PRIVATE")
    assert any("No ledger counts this run" in statement for statement in report.statements)
    assert report.to_dict()["private"] is False


@pytest.mark.parametrize("max_colluders", [1, 2])
def test_shared_noise_grows_with_the_clients_and_the_report_says_by_how_much(max_colluders):
    report = report_of(fast("clients-only", max_colluders=max_colluders))
    shares = 4 - max_colluders
    assert report.noise_factor == report.added_noise_factor == pytest.approx(math.sqrt(6 / shares))
    assert (report.max_colluders, report.noise_shares) == (max_colluders, shares)
    assert report.single_mu == pytest.approx(report.mu * math.sqrt(shares))
    text = " ".join(report.statements)
    assert f"(sqrt(M') mu = {report.single_mu:.4g})" in text
    assert f"sqrt(|S|/M') with M' = {shares}" in text


def test_removed_noise_is_reported_and_weakens_what_a_single_answer_has():
    report = report_of(fast("distributed-noise"))
    assert report.levels[-1] == 5  # answers of honest clients, if all six answer
    assert report.added_noise_factor == pytest.approx(math.sqrt(6 / 3))
    assert report.factors == pytest.approx([math.sqrt(6 / 5)] * 3)
    assert report.noise_factor == pytest.approx(math.sqrt(6 / 5))
    assert report.single_mu == pytest.approx(report.mu * math.sqrt(5))
    text = " ".join(report.statements)
    assert f"(mu = {report.single_mu:.4g})" in text
    assert f"{report.noise_factor:.4g} times the planned one is left" in text


def test_the_noise_factor_is_the_largest_of_all_rounds():
    faults = [Fault(i, 3, "drop") for i in (0, 1)]
    report = report_of(fast("clients-only"), faults=faults)
    assert report.answers == [6, 6, 4]
    assert report.factors == pytest.approx([math.sqrt(2), math.sqrt(2), math.sqrt(4 / 3)])
    assert report.noise_factor == pytest.approx(math.sqrt(6 / 3))


@pytest.mark.parametrize("trust", ["oblivious-server", "trusted-server"])
def test_noise_of_the_server_does_not_grow(trust):
    assert report_of(fast(trust)).noise_factor == 1.0


@pytest.mark.parametrize(
    ("trust", "first", "sentences"),
    [
        (
            "clients-only",
            "The server and up to 2 clients together see only the noisy sums.",
            ("The server saw no sum", "no centroid", "others see who takes part"),
        ),
        (
            "distributed-noise",
            "The server and up to 2 clients together see only the noisy sums.",
            ("The server sent the queries and the result", "Answers stay sealed"),
        ),
        (
            "oblivious-server",
            "clients must trust the server to add the noise",
            ("The server and one client together see every exact answer", "saw no sum"),
        ),
        ("trusted-server", "nobody is protected from the server", ("hold exact sums",)),
        ("plain", "NOT PRIVATE", ("hold exact sums",)),
    ],
)
def test_who_sees_what_comes_first(trust, first, sentences):
    report = made(trust)
    text = " ".join(report.statements)
    assert first in report.statements[0]
    for sentence in sentences:
        assert sentence in text
    assert f"Trust model: {trust}. Keys: {report.keys}." in text
    assert "TLS is required" in text
    assert "Results are not protected against hostile clients." in text
    assert ("every exact answer" in text) == (trust == "oblivious-server")
    assert ("saw no sum" in text) == (trust in ("clients-only", "oblivious-server"))
    if trust != "plain":
        assert "No ledger was kept" in text
        assert "participation, timing" in text


@pytest.mark.parametrize("trust", [*SHARED, "oblivious-server"])
def test_relayed_keys_are_said_to_protect_against_a_passive_server_only(trust):
    relayed, pinned = (" ".join(made(trust, keys).statements) for keys in ("relayed", "roster"))
    assert "a malicious server reads every answer" in relayed
    assert "passive" in relayed
    assert "malicious server reads" not in pinned
    assert "passive" not in pinned
    assert "stolen after the run open nothing" in pinned
    if trust in SHARED:
        assert "as long as the server is passive" in made(trust, "relayed").statements[0]


@pytest.mark.parametrize("trust", SHARED)
def test_a_committee_is_described_with_all_of_its_numbers(trust):
    text = " ".join(made(trust).statements)
    for words in (
        "m = 10 clients, 9 of them present",
        "f = 2 may be corrupt",
        "tau = 7 shares say nothing",
        "k = 1 words",
        "R = 8 sum-shares open",
        "If 8 committee members pool their shares, also without the server",
        "If q > 2 clients work together, the noise against them has (8 - q)/6 of its variance",
    ):
        assert words in text
    assert "2^-40" not in text
    drawn = CommitteeReport(tuple(range(64)), 60, 20, 49, 5, epoch=3, beacon="ab" * 16)
    text = " ".join(made(trust, n_slots=1000, committee=drawn).statements)
    assert f"epoch 3 and beacon {'ab' * 16}" in text
    assert "with 2 clients of 1000 corrupt, more than 20" in text
    assert "2^-40" in text
    of_the_server = replace(drawn, epoch=None, beacon="")
    text = " ".join(made(trust, "relayed", n_slots=1000, committee=of_the_server).statements)
    assert "drawn by the server at random" in text


@pytest.mark.parametrize("trust", SHARED)
def test_clients_that_cost_themselves_are_counted_by_what_they_did(trust):
    incidents = [
        Dropped(1, 11, 1, "It differs.", "differs", "numpy 1"),
        Dropped(2, 12, 1, "It differs.", "differs"),
        Dropped(1, 11, 2, "It differs.", "differs", "numpy 1"),
        Dropped(3, 13, 1, "It was skipped.", "skipped"),
        Dropped(4, 14, 2, "It was named.", "named"),
        Dropped(5, 15, 2, "It lied.", "liar"),
        Dropped(6, 16, 2, "It was silent.", "silent"),
    ]
    text = " ".join(made(trust, incidents=incidents, lost_rounds=[2]).statements)
    assert "history differ: 2 clients; their software: not stated, numpy 1." in text
    assert "empty shares: 1 client." in text
    assert "could not open their shares: 1 client." in text
    assert "sum-shares were false and were left out: 1 client." in text
    assert ("can forge the name" in text) == (trust == "clients-only")
    assert "lost rounds: 2." in text


def test_members_that_may_have_added_twice_count_among_the_corrupt():
    def text(*renewed):
        incidents = [
            Dropped(client, client, number, "New.", "renewed", ledger=ledger)
            for client, number, ledger in renewed
        ]
        report = made("distributed-noise", incidents=incidents)
        return report.renewed, " ".join(report.statements)

    few, words = text((1, 1, False), (1, 1, False), (2, 1, False), (3, 2, False), (4, 1, True))
    assert few == {1: 2, 2: 1}
    assert "count among the 2 that may be corrupt: 2 in round 1, 1 in round 2" in words
    assert "WARNING" not in words
    many, words = text((1, 1, False), (2, 1, False), (3, 1, False))
    assert many == {1: 3}
    assert "WARNING: more than 2 in one round" in words
    outside, words = text((11, 1, False))  # no member of the committee
    assert outside == {}
    assert "lost their memory" not in words


@pytest.mark.parametrize("trust", [*PRIVATE, "plain"])
def test_a_report_is_json_and_back(trust):
    strategy = Lloyd(2, BOX) if trust == "plain" else fast(trust)
    report = report_of(strategy, faults=[Fault(1, 2, "crash"), Fault(2, 1, "shape")])
    data = report.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["trust"] == trust
    assert [(e["client"], e["round"]) for e in data["dropped"]] == [(2, 1), (1, 2)]
    assert {(e["client"], e["round"]) for e in data["incidents"]} == {(1, 2), (2, 1)}
    fields = {"client", "node_id", "round", "reason", "kind", "software", "ledger"}
    assert all(set(e) == fields for e in data["dropped"])
    assert data["protects_against"] == report.protects_against
    assert (data["committee"] is not None) == (trust in SHARED)
    assert data["result_by"] == ("clients" if trust_model(trust).is_blind else "server")
    assert data["statements"] == list(report.statements)
    if trust != "plain":
        assert len(data["releases"]) == 6
        assert all(release["noise_multiplier"] > 0 for release in data["releases"])
        cost = sum(1 / release["noise_multiplier"] ** 2 for release in data["releases"])
        assert math.sqrt(cost) == pytest.approx(report.mu)


def test_a_report_holds_the_curve_and_the_guarantee_of_groups():
    report = report_of(fast("oblivious-server"))
    data = report.to_dict()
    assert "null record" in data["neighbours"]
    assert len(data["delta_at_epsilon"]) >= 3
    for epsilon, delta in data["delta_at_epsilon"]:
        assert delta == pytest.approx(delta_of(report.mu, epsilon), rel=1e-6, abs=1e-15)
    for size, epsilon in data["epsilon_of_groups"].items():
        assert delta_of(int(size) * report.mu, epsilon) == pytest.approx(report.delta, rel=1e-6)
    assert "epsilon_of_groups" not in report_of(Lloyd(2, BOX)).to_dict()


def test_a_report_does_not_change_with_what_is_done_to_its_copy():
    report = report_of(fast("oblivious-server"))
    data = report.to_dict()
    data["answers"].clear()
    data["dropped"].append("x")
    assert report.to_dict()["answers"] == [6, 6, 6]
    assert report.dropped == []


def test_a_report_holds_no_figure_of_the_records():
    """Two federations with very different records have the same report, but for time and nodes."""
    reports = []
    for parts in (PARTS, [np.full((1, 2), 0.5), *[np.empty((0, 2))] * 5]):
        strategy = fast("oblivious-server")
        run_recorded(strategy, parts)
        data = strategy.report.to_dict()
        data.pop("seconds")
        reports.append(data)
    assert reports[0] == reports[1]


def test_a_failed_run_leaves_a_report_of_how_far_it_came():
    from flower_kmeans.errors import TooFewClientsError

    strategy = fast("oblivious-server")
    with pytest.raises(TooFewClientsError):
        report_of(strategy, faults=[Fault(i, 2, "crash") for i in range(4)])
    report = strategy.report
    assert (report.n_rounds, report.answers) == (1, [6])
    assert {entry.client for entry in report.incidents if entry.round == 2} == {0, 1, 2, 3}
    json.dumps(report.to_dict())


@pytest.mark.parametrize("with_ledger", [True, False])
def test_an_active_server_is_kept_out_fully_only_where_clients_keep_ledgers(with_ledger, tmp_path):
    roster, policies = write_roster(tmp_path, len(PARTS))
    if with_ledger:
        policies = [
            replace(policy, in_memory=False, state_dir=tmp_path / f"node-{i}")
            for i, policy in enumerate(policies)
        ]
    strategy = fast("distributed-noise", keys="roster", roster_file=roster)
    report = report_of(strategy, policy=policies)
    assert report.ledger == with_ledger
    assert (report.keys, report.n_slots, report.n_clients) == ("roster", 6, 6)
    for party in ("active server", "server and clients"):
        words = report.protects_against[party]
        assert words.startswith("Yes" if with_ledger else "In part")
        assert ("can add twice" in words) == (not with_ledger)


@pytest.mark.parametrize("trust", sorted(TRUST_MODELS))
@pytest.mark.parametrize("keys", ["relayed", "roster"])
def test_every_party_has_an_answer(trust, keys):
    report = made(trust, keys)
    answers = report.protects_against
    parties = PARTIES if trust in SHARED else PARTIES[:-1]
    assert tuple(answers) == parties
    assert all(words.split(":")[0] in ("Yes", "In part", "No") for words in answers.values())
    alone = answers["server and clients"]
    if trust in SHARED:
        assert "see only the noisy sums" in alone
        assert alone.startswith("In part")  # no ledger, or relayed keys
        for party in ("committee", *(["active server"] if keys == "relayed" else [])):
            assert f"{report.mu * math.sqrt(6):.4g}" in answers[party]
    else:
        assert alone.startswith("No")
