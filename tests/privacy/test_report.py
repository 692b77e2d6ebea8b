"""What a finished run tells its user."""

import json
import math

import numpy as np
import pytest
from harness import run_recorded
from scipy import stats

from flower_kmeans import Box, Fault, PrivacyBudget
from flower_kmeans.strategies import FastLloyd, GLloyd, Lloyd, SuLloyd

BOX = Box([0.0, 0.0], [1.0, 1.0])
PARTS = [np.random.default_rng(i).random((25, 2)) for i in range(6)]


def report_of(strategy, **options):
    run_recorded(strategy, PARTS, timeout=60, **options)
    return strategy.report


def fast(trust, **options):
    options.setdefault("min_clients", 4)
    return FastLloyd(2, BOX, PrivacyBudget(0.8), 150, trust=trust, n_rounds=3, **options)


def delta_of(mu, epsilon):
    return stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(
        -epsilon / mu - mu / 2
    )


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise", "trusted-server"])
def test_the_numbers_are_those_of_the_run(trust):
    report = report_of(fast(trust))
    assert report.is_private
    assert report.epsilon == pytest.approx(0.8, rel=1e-9)
    assert report.delta == min(1e-6, 1 / 15000)
    assert delta_of(report.mu, report.epsilon) == pytest.approx(report.delta, rel=1e-6)
    assert (report.unit, report.trust, report.strategy) == ("record", trust, "FastLloyd")
    assert (report.n_clients, report.min_clients, report.n_rounds) == (6, 4, 3)
    assert report.answers == [6, 6, 6]
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


@pytest.mark.parametrize("colluders", [1, 2])
def test_shared_noise_grows_with_the_clients_and_the_report_says_by_how_much(colluders):
    report = report_of(fast("distributed-noise", colluders=colluders))
    assert report.noise_factor == pytest.approx(math.sqrt(6 / (4 - colluders)))
    assert report.colluders == colluders
    own = report.mu * math.sqrt(4 - colluders)
    (statement,) = [text for text in report.statements if "own share" in text and "mu =" in text]
    assert f"mu = {own:.4g}" in statement
    assert report.max_attempts == 2
    assert f"{own * math.sqrt(2):.4g} if the server asks 2 times" in statement


def test_the_noise_factor_is_the_largest_of_all_rounds():
    faults = [Fault(i, 3, "drop") for i in (0, 1)]
    report = report_of(fast("distributed-noise"), faults=faults)
    assert report.answers == [6, 6, 4]
    assert report.noise_factor == pytest.approx(math.sqrt(6 / 3))


@pytest.mark.parametrize("trust", ["oblivious-server", "trusted-server"])
def test_noise_of_the_server_does_not_grow(trust):
    assert report_of(fast(trust)).noise_factor == 1.0


@pytest.mark.parametrize(
    ("trust", "sentences"),
    [
        ("oblivious-server", ("as good as the server's word", "any one client together", "TLS")),
        ("distributed-noise", ("any one client together", "own share", "more than half", "TLS")),
        ("trusted-server", ("nobody is protected from the server", "TLS")),
        ("plain", ("NOT PRIVATE",)),
    ],
)
def test_users_are_told_what_the_protocol_says_they_must(trust, sentences):
    strategy = Lloyd(2, BOX) if trust == "plain" else fast(trust)
    report = report_of(strategy)
    text = " ".join(report.statements)
    for sentence in sentences:
        assert sentence in text
    assert "hostile server or client" in text
    relayed = "malicious server, or one that adds its own nodes, reads everything" in text
    assert relayed == (trust in ("oblivious-server", "distributed-noise"))
    if trust != "plain":
        assert "No ledger was kept" in text
        assert "participation, timing" in text


@pytest.mark.parametrize("opening", ["deferred", "immediate", "simple"])
@pytest.mark.parametrize("keys", ["file", "relayed"])
def test_users_are_told_how_sums_were_opened(opening, keys, tmp_path):
    from dataclasses import replace

    from harness import SIMULATED, key_file

    policy = replace(SIMULATED, group_key_file=key_file(tmp_path) if keys == "file" else None)
    strategy = fast("distributed-noise", opening=opening, keys=keys)
    report = report_of(strategy, policy=policy)
    assert report.opening == report.to_dict()["opening"] == opening
    text = " ".join(report.statements)
    assert ("single clients" in text) == (opening == "simple")
    assert ("more than half of the clients" in text) == (opening != "simple")
    assert ("with the answers to the next round" in text) == (opening == "deferred")
    assert ("before it asked for the next round" in text) == (opening == "immediate")


def test_key_files_are_named_as_such(tmp_path):
    from dataclasses import replace

    from harness import SIMULATED, key_file

    policy = replace(SIMULATED, group_key_file=key_file(tmp_path))
    report = report_of(fast("oblivious-server", keys="file"), policy=policy)
    text = " ".join(report.statements)
    assert report.keys == "file"
    assert "file that the server must not have" in text
    assert "relayed" not in text


@pytest.mark.parametrize(
    "trust", ["oblivious-server", "distributed-noise", "trusted-server", "plain"]
)
def test_a_report_is_json_and_back(trust):
    strategy = Lloyd(2, BOX) if trust == "plain" else fast(trust)
    report = report_of(strategy, faults=[Fault(1, 2, "crash"), Fault(2, 1, "twice")])
    data = report.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["trust"] == trust
    assert [(e["client"], e["round"]) for e in data["dropped"]] == [(1, 2)]
    assert {(e["client"], e["round"]) for e in data["incidents"]} == {(1, 2), (2, 1)}
    assert all(set(e) == {"client", "node_id", "round", "reason"} for e in data["dropped"])
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
def test_a_roster_withstands_an_active_server_only_where_nodes_keep_ledgers(with_ledger, tmp_path):
    from dataclasses import replace

    from harness import roster_policies

    policies = roster_policies(tmp_path, len(PARTS))
    if with_ledger:
        policies = [
            replace(policy, in_memory=False, state_dir=tmp_path / f"node-{i}")
            for i, policy in enumerate(policies)
        ]
    strategy = fast("distributed-noise", keys="roster")
    report = report_of(strategy, policy=policies)
    (active,) = (text for who, text in report.withstands.items() if "active" in who)
    assert report.ledger == with_ledger
    assert active.startswith("Yes" if with_ledger else "In part")
    assert ("vote twice" in active) == (not with_ledger)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("file", "stolen later, it opens the answers of all members"),
        ("roster", "key that is stolen later opens the answers of all members"),
        ("relayed", None),
    ],
)
def test_users_are_told_what_a_stolen_key_opens(keys, told):
    from dataclasses import replace

    text = " ".join(replace(report_of(fast("oblivious-server")), keys=keys).statements)
    assert ("stolen" in text) == (told is not None)
    assert told is None or told in text
