"""What a finished run's report says."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from harness import run_recorded, write_roster
from scipy import stats

from flower_kmeans import Ball, Box, Fault, PrivacyBudget, html_report, simulate
from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.release import Release
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.trust import TRUST_MODELS, trust_model
from flower_kmeans.report import report as reports
from flower_kmeans.report.report import (
    PARTIES,
    CommitteeReport,
    Dropped,
    Report,
    bounds_of,
)
from flower_kmeans.strategies import FastLloyd, Lloyd, SuLloyd
from flower_kmeans.vertical.report import VerticalReport

BOX = Box([0.0, 0.0], [1.0, 1.0])
PARTS = [np.random.default_rng(i).random((25, 2)) for i in range(6)]
SHARED = ("clients-only", "distributed-noise")
PRIVATE = (*SHARED, "oblivious-server", "trusted-server")
PLAN = PrivacyPlan(
    PrivacyBudget(1.0, 1e-6),
    1000,
    ((Release("sums", "gaussian", "l2", 5.0, ("sums",)),),),
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


def vertical_of(keys="relayed", key_holders=1, n_parties=3, **values):
    """Return the facts of a vertical run."""
    defaults = {
        "columns": tuple((f"column {i}",) for i in range(n_parties)),
        "max_colluders": 1,
        "rho": 1.03,
        "soft": 1.0016,
        "check_ids": False,
        "n_values": 75,
        "bits": 16.0,
    }
    return VerticalReport(keys=keys, key_holders=key_holders, **defaults | values)


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
    if model.is_homomorphic:
        defaults |= {
            "min_clients": 3,
            "max_colluders": 1,
            "part": vertical_of(keys),
        }
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
    assert (report.unit, report.trust, report.strategy) == (
        "record",
        trust,
        "FastLloyd",
    )
    assert (report.n_clients, report.n_slots, report.min_clients) == (6, 6, 4)
    assert (report.n_rounds, report.answers, report.lost_rounds) == (3, [6, 6, 6], [])
    assert (report.attempts, report.repeats) == (3, 0)
    extra = {"oblivious-server": 3, "trusted-server": 2}.get(trust)
    assert report.round_trips == (2 * 3 + 2 if extra is None else 3 + extra)
    assert report.seconds > 0
    assert (report.noise_factor == 1.0) == (trust not in SHARED)
    assert not report.ledger


@pytest.mark.parametrize("max_colluders", [1, 2])
def test_shared_noise_grows_with_the_clients_and_the_report_says_by_how_much(
    max_colluders,
):
    faults = [Fault(i, 3, "drop") for i in (0, 1)]
    report = report_of(fast("clients-only", max_colluders=max_colluders), faults=faults)
    shares = 4 - max_colluders
    assert report.answers == [6, 6, 4]
    assert report.factors == pytest.approx([math.sqrt(n / shares) for n in (6, 6, 4)])
    assert report.noise_factor == report.added_noise_factor == max(report.factors)
    assert (report.max_colluders, report.noise_shares) == (max_colluders, shares)
    assert report.single_mu == pytest.approx(report.mu * math.sqrt(shares))
    text = " ".join(report.statements)
    assert f"(sqrt(M') mu = {report.single_mu:.4g})" in text
    assert f"sqrt(|S|/M') with M' = {shares}" in text


@pytest.mark.claim("guarantees", "40")
def test_removed_noise_is_reported_and_weakens_what_a_single_answer_has():
    report = report_of(fast("distributed-noise"))
    assert report.levels[-1] == 5  # answers of honest clients, if all six answer
    assert report.added_noise_factor == pytest.approx(math.sqrt(6 / 3))
    assert report.factors == pytest.approx([math.sqrt(6 / 5)] * 3)
    assert report.noise_factor == pytest.approx(math.sqrt(6 / 5))
    assert report.single_mu == pytest.approx(report.mu * math.sqrt(5))
    text = " ".join(report.statements)
    assert f"(mu = {report.single_mu:.4g})" in text
    assert f"{report.noise_factor:.4g} times the planned noise remains" in text


@pytest.mark.parametrize(
    ("trust", "first", "sentence"),
    [
        ("clients-only", "see only the noisy sums.", "others see who takes part"),
        (
            "distributed-noise",
            "see only the noisy sums.",
            "The server sent the queries and the",
        ),
        (
            "oblivious-server",
            "clients must trust the server",
            "together see every exact answer",
        ),
        (
            "trusted-server",
            "nobody is protected from the server",
            "messages contain exact sums",
        ),
        ("plain", "NOT PRIVATE", "No ledger counts this run"),
    ],
)
def test_who_sees_what_comes_first(trust, first, sentence):
    report = made(trust)
    text = " ".join(report.statements)
    assert first in report.statements[0]
    assert sentence in text
    assert (
        "stolen after the run decrypt none" in text
    ) == report.trust_model.is_protected
    assert ("participation, timing" in text) == report.is_private
    if trust in SHARED:
        assert (
            "as long as the server is passive" in made(trust, "relayed").statements[0]
        )


@pytest.mark.parametrize("trust", SHARED)
def test_a_committee_is_described_with_all_of_its_numbers(trust):
    text = " ".join(made(trust).statements)
    for words in (
        "m = 10 clients, 9 of them present",
        "f = 2 of them may be corrupt",
        "tau = 7 shares reveal nothing",
        "k = 1 words",
        "R = 8 sum-shares",
        "If 8 committee members pool their shares, even without the server",
        "If q > 2 clients collude, the noise against them has (8 - q)/6 of the planned variance",
    ):
        assert words in text
    assert "2^-40" not in text
    drawn = CommitteeReport(tuple(range(64)), 60, 20, 49, 5, epoch=3, beacon="ab" * 16)
    text = " ".join(made(trust, n_slots=1000, committee=drawn).statements)
    assert f"epoch 3 and beacon {'ab' * 16}" in text
    assert "If 2 clients of 1000 are corrupt, more than 20" in text
    assert "2^-40" in text
    of_the_server = replace(drawn, epoch=None, beacon="")
    text = " ".join(
        made(trust, "relayed", n_slots=1000, committee=of_the_server).statements
    )
    assert "The server sampled it at random" in text


@pytest.mark.parametrize("trust", SHARED)
def test_clients_that_cost_themselves_are_counted_by_what_they_did(trust):
    incidents = [
        Dropped(1, 11, 1, "It differs.", "differs", "numpy 1"),
        Dropped(2, 12, 1, "It differs.", "differs"),
        Dropped(1, 11, 2, "It differs.", "differs", "numpy 1"),
        Dropped(4, 14, 2, "It was named.", "named"),
        Dropped(5, 15, 2, "It lied.", "liar"),
        Dropped(6, 16, 2, "It was silent.", "silent"),
    ]
    text = " ".join(made(trust, incidents=incidents, lost_rounds=[2]).statements)
    assert "history differ: 2 clients; their software: not stated, numpy 1." in text
    assert "could not unseal their shares: 1 client." in text
    assert "sum-shares were false and were left out: 1 client." in text
    assert ("can forge the name" in text) == (trust == "clients-only")
    assert "lost rounds: 2." in text


@pytest.mark.parametrize(
    ("renewed", "counts", "words"),
    [
        (
            [(1, 1, False), (1, 1, False), (2, 1, False), (3, 2, False), (4, 1, True)],
            {1: 2, 2: 1},
            "count among the 2 that may be corrupt: 2 in round 1, 1 in round 2",
        ),
        (
            [(1, 1, False), (2, 1, False), (3, 1, False)],
            {1: 3},
            "WARNING: more than 2 in one",
        ),
        ([(11, 1, False)], {}, ""),  # no member of the committee
    ],
)
def test_members_that_may_have_added_twice_count_among_the_corrupt(
    renewed, counts, words
):
    incidents = [
        Dropped(client, client, number, "New.", "renewed", ledger=ledger)
        for client, number, ledger in renewed
    ]
    report = made("distributed-noise", incidents=incidents)
    text = " ".join(report.statements)
    assert report.renewed == counts
    assert words in text
    assert ("lost their memory" in text) == bool(counts)
    assert ("WARNING" in text) == ("WARNING" in words)


@pytest.mark.parametrize("trust", [*PRIVATE, "plain"])
def test_a_report_is_json_and_back(trust):
    strategy = Lloyd(2, BOX) if trust == "plain" else fast(trust)
    report = report_of(strategy, faults=[Fault(1, 2, "crash"), Fault(2, 1, "shape")])
    data = report.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["trust"] == trust
    assert [(e["client"], e["round"]) for e in data["dropped"]] == [(2, 1), (1, 2)]
    assert {(e["client"], e["round"]) for e in data["incidents"]} == {(1, 2), (2, 1)}
    assert data["protects_against"] == report.protects_against
    assert (data["committee"] is not None) == (trust in SHARED)
    assert data["result_by"] == ("clients" if trust_model(trust).is_blind else "server")
    assert data["statements"] == list(report.statements)
    for changed in ("answers", "dropped", "releases"):  # of the copy
        report.to_dict()[changed].clear()
    assert report.to_dict() == data
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
        assert delta_of(int(size) * report.mu, epsilon) == pytest.approx(
            report.delta, rel=1e-6
        )
    assert "epsilon_of_groups" not in made("plain").to_dict()
    laplace = report_of(SuLloyd(2, BOX, PrivacyBudget(1.0, 0.0), 150, n_rounds=2))
    assert (laplace.mu, laplace.delta) == (None, 0)
    assert laplace.epsilon == pytest.approx(1.0)


def test_sizes_stand_beside_their_bounds_where_the_server_has_them():
    sizes = SizeReport((100.0, 86.0, 300.0), 2.0, 90, 110)
    report = made("trusted-server", sizes=sizes)
    data = json.loads(json.dumps(report.to_dict()))["sizes"]
    assert data["bounds_kept"] == ["kept", "open", "missed"]
    assert data["interval"][0] == pytest.approx(
        [100 - sizes.margin, 100 + sizes.margin]
    )
    assert (data["noise"], data["margin"]) == (2.0, sizes.margin)
    text = " ".join(report.statements)
    assert "90 to 110 records" in text
    assert "1 of 3 clusters kept them, 1 missed them, and 1 is open" in text
    assert "Exact sizes cannot be promised" in text
    report.to_dict()["sizes"]["counts"].clear()
    assert report.sizes == sizes
    assert made("trusted-server").to_dict()["sizes"] is None


def test_a_report_names_the_theorems_of_its_guarantee():
    text = " ".join(report_of(fast("trusted-server")).statements)
    assert "FastLloyd is proved in docs/guarantees, Theorems 13, 14." in text
    clients = " ".join(made("trusted-server", theorems=(28,), clip=10.0).statements)
    assert "Theorem 28, and for clients in Theorems 34 and 35." in clients
    assert "is proved in" not in " ".join(made("plain", theorems=(13,)).statements)
    assert "is proved in" not in " ".join(made("trusted-server").statements)


def persons_of(**options):
    """Return the result of a run that protects persons, with three records each."""
    budget = PrivacyBudget(2.0, unit="person")
    strategy = FastLloyd(2, BOX, budget, n_clients=6, n_persons=50, **options)
    persons = [
        [f"{i}-{j // 3}" for j in range(len(part))] for i, part in enumerate(PARTS)
    ]
    return simulate(strategy, PARTS, persons=persons)


@pytest.mark.claim("reading-a-report", "sizes-of-persons")
@pytest.mark.parametrize("most", [1, 3])
def test_a_run_for_persons_says_so(most):
    clustering = persons_of(max_clients_per_person=most)
    report = clustering.report
    assert report.unit == "person"
    assert report.neighbours == (
        "all records of one person replaced by null records, which add nothing; the number of "
        "persons, n_persons, is public"
    )
    text = " ".join(report.statements)
    for words in (
        "sizes of clusters are numbers of persons, also fractions",
        "One person with all their records is protected, and groups are groups of persons.",
        "ids are never compared between clients",
        f"has records at {'1 client' if most == 1 else '3 clients'} at most",
        f"A person at h > {most} clients has the guarantee of a group of",
        "Theorems 13, 14, and for persons in Theorem 46.",
        "Not protected: n_persons, participation, timing",
    ):
        assert words in text
    too_small = (
        f"A person with records at one client alone counts as 1/{most}, so sizes may be up "
        f"to {most} times too small."
    )
    assert (too_small in report.statements) == (most > 1)
    assert (too_small in report.plan.notes) == (most > 1)
    values = report.to_dict()
    assert (values["n_records"], values["n_persons"]) == (None, 50)
    assert values["max_clients_per_person"] == most
    assert report.facts["protected"] == "one person"
    page = html_report(clustering)
    for words in (
        "One person with all their records is protected.",
        "epsilon for a group of 10 persons",
        "Sizes are numbers of persons, also fractions",
        "n_persons, public planning value",
    ):
        assert words in page
    assert (too_small in page) == (most > 1)
    assert "n_records, public planning value" not in page


def test_a_run_for_records_says_nothing_of_persons():
    report = report_of(fast("trusted-server"))
    assert "person" not in " ".join(report.statements)
    assert report.to_dict()["max_clients_per_person"] is None
    assert report.to_dict()["n_persons"] is None


@pytest.mark.claim("reading-a-report", "plan-warns-of-few-persons")
def test_the_plan_and_the_page_warn_of_too_few_persons():
    few = persons_of()
    (note,) = few.report.to_dict()["notes"]
    assert note.startswith("WARNING: noise may hide many of the clusters")
    assert note in html_report(few)
    assert note in few.report.plan.describe()
    budget = PrivacyBudget(2.0, unit="person")
    many = FastLloyd(2, BOX, budget, n_clients=6, n_persons=5_000)
    assert many.plan.notes == ()


@pytest.mark.claim("reading-a-report", "run-lists-parameters-runs")
def test_a_report_has_what_one_must_know_to_sign_it(tmp_path, monkeypatch):
    software = {"flower-kmeans": "0.3", "cryptography": "1.2.3"}
    monkeypatch.setattr(reports, "now", lambda: "2026-01-31T12:00:00Z")
    monkeypatch.setattr(reports, "versions", lambda: dict(software))
    roster, policies = write_roster(tmp_path, len(PARTS))
    domain = Box([0.0, -1.0], [1.0, 2.0], columns=["height", "weight"])
    strategy = FastLloyd(
        *(2, domain, PrivacyBudget(0.8), 150),
        trust="distributed-noise",
        keys="roster",
        roster_file=roster,
        n_clients=6,
        n_rounds=2,
    )
    outcome = run_recorded(strategy, PARTS, policy=policies)
    found = json.loads(json.dumps(strategy.report.to_dict()))
    assert found["run"] == outcome.results[0].run
    assert found["date"] == "2026-01-31T12:00:00Z"
    assert found["versions"] == software
    assert found["bounds"] == {
        "kind": "Box",
        "columns": ["height", "weight"],
        "lower": [0.0, -1.0],
        "upper": [1.0, 2.0],
        "scale": "column",
    }
    assert found["roster"] == Roster.from_file(roster).digest.hex()
    assert found["parties"] == [f"c-{i}" for i in range(6)]
    assert (found["attempts"], found["repeats"], found["restarts"]) == (2, 0, 0)
    page = html_report(strategy, outcome.result)
    for words in (
        found["run"],
        found["date"],
        found["roster"],
        "c-0, c-1, c-2",
        "1.2.3",
    ):
        assert words in page


@pytest.mark.claim("reading-a-report", "run-lists-parameters-runs")
def test_without_a_roster_nobody_has_a_name():
    report = report_of(fast("trusted-server"))
    assert (report.roster, report.parties) == ("", ())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report.date)
    names = {"flower-kmeans", "flwr", "numpy", "cryptography", "OpenSSL", "tenseal"}
    assert names <= report.versions.keys()
    assert bounds_of(Ball(2.0, [0.0, 1.0])) == {
        "kind": "Ball",
        "center": [0.0, 1.0],
        "radius": 2.0,
    }


@pytest.mark.claim("reading-a-report", "run-lists-parameters-runs")
def test_restarts_are_the_sessions_that_clients_began_again():
    renewed = [Dropped(0, 7, 2, "", "renewed"), Dropped(1, 8, 2, "", "renewed")]
    report = made("distributed-noise", incidents=[*renewed, Dropped(2, 9, 1, "")])
    assert report.restarts == report.to_dict()["restarts"] == 2


def test_a_report_holds_no_number_of_the_records():
    """Two federations with very different records have the same report, but for time and name."""
    reports = []
    for parts in (PARTS, [np.full((1, 2), 0.5), *[np.empty((0, 2))] * 5]):
        data = run_recorded(fast("oblivious-server"), parts).strategy.report.to_dict()
        reports.append(data | {"seconds": 0, "date": "", "run": ""})
    assert reports[0] == reports[1]


@pytest.mark.parametrize("with_ledger", [True, False])
def test_an_active_server_is_kept_out_fully_only_where_clients_keep_ledgers(
    with_ledger, tmp_path
):
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


@pytest.mark.claim("what-epsilon-means", "who-depends-on-trust")
@pytest.mark.parametrize("trust", sorted(TRUST_MODELS))
@pytest.mark.parametrize("keys", ["relayed", "roster"])
def test_every_party_has_an_answer(trust, keys):
    report = made(trust, keys)
    answers = report.protects_against
    assert tuple(answers) == (PARTIES if trust in SHARED else PARTIES[:-1])
    assert all(
        words.split(":")[0] in ("Yes", "In part", "No") for words in answers.values()
    )
    together, in_part = answers["server and clients"], (*SHARED, "vertical")
    # without ledgers
    assert together.startswith("In part" if trust in in_part else "No")
    if trust in SHARED:
        for party in ("committee", *(["active server"] if keys == "relayed" else [])):
            assert f"{report.mu * math.sqrt(6):.4g}" in answers[party]
    elif trust == "vertical":
        assert (
            "party 0 and party 1 together can read every encrypted column" in together
        )
        assert answers["active server"].startswith("No" if keys == "relayed" else "Yes")


# ------------------------------------------------------------------------ vertical runs


@pytest.mark.parametrize(
    ("key_holders", "max_colluders", "factor"),
    [(1, 1, 1.414), (2, 1, 1.225), (3, 1, 1.155), (3, 3, 2)],
)
def test_noise_of_vertical_runs_follows_from_the_parties_that_add_it(
    key_holders, max_colluders, factor
):
    """docs/vertical.md, "Privacy": sqrt((H + 1) / (H + 1 - t))."""
    facts = vertical_of(
        key_holders=key_holders, max_colluders=max_colluders, n_parties=4
    )
    report = made("vertical", part=facts, max_colluders=max_colluders, answers=[4, 4])
    assert (
        report.noise_factor
        == report.added_noise_factor
        == pytest.approx(factor, abs=1e-3)
    )
    assert report.noise_shares == key_holders + 1 - max_colluders
    assert f"{report.noise_factor:.4g} times the planned" in " ".join(report.statements)


def test_the_trust_table_of_a_vertical_run_names_its_parties():
    rows = {
        who: learns
        for who, _, learns in vertical_of(key_holders=1, n_parties=4).trust_table
    }
    assert rows["party 0 and party 1 together"].startswith("every encrypted column")
    assert rows["parties 2 and 3"] == "the result, under all noise"
    assert (
        "columns of parties that only encrypt"
        in rows["a server that breaks the protocol"]
    )
    assert "all key holders together" not in rows
    joint = vertical_of("roster", key_holders=3, n_parties=4)
    rows = {who: learns for who, _, learns in joint.trust_table}
    assert rows["party 0 and parties 1, 2 and 3 together"].startswith(
        "every encrypted column"
    )
    assert "mu is 1.732 times the planned one" in rows["all key holders together"]
    assert "less than planned" in rows["party 0 and all key holders but one"]
    assert "a server that breaks the protocol" not in rows
    trusting = vertical_of("roster", key_holders=3, n_parties=4, max_colluders=3)
    rows = {who: learns for who, _, learns in trusting.trust_table}
    assert (
        rows["all key holders together"]
        == "the result, under the noise of party 0 alone"
    )
    assert "less than planned" not in rows["party 0 and all key holders but one"]


def test_a_vertical_report_states_what_is_measured_and_what_a_malicious_party_learns():
    report = made("vertical")
    text = " ".join(report.statements)
    assert "1.0016 for soft memberships, which is proved" in text
    assert (
        "0.028 for errors of the encryption, which is measured and not proved" in text
    )
    assert "16 bits in each of 75 words, 1,200 bits in the run" in text
    facts = report.to_dict()["vertical"]
    assert facts["measured"] == pytest.approx(0.0284)
    assert (facts["n_parties"], facts["key_holders"]) == (3, 1)
    assert made("clients-only").to_dict()["vertical"] is None
