"""Whole runs that protect clients: what they carry, what a client counts as, who accepts them."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from asking import Split, SplitAlgorithm
from harness import run_recorded
from msgspec import structs

from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.canonical import real_to_text
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.protocol.run import UnacceptableRunError, open_run, verify_plan
from flower_kmeans.protocol.wire import encode
from flower_kmeans.strategies import FastLloyd, GLloyd, SuLloyd

BOX = Box([-1.0, -1.0], [1.0, 1.0])
K, Q = 120, 16
TRUSTS = ("oblivious-server", "clients-only", "distributed-noise", "trusted-server")
# Four clients of a corner, with up to a thousand records, and one without any.
CORNER = [np.full((n, 2), 1.0) for n in (1000, 300, 20, 5)] + [np.empty((0, 2))]


def strategy(
    cls=GLloyd, trust="trusted-server", k=K, epsilon=1.0, delta=None, **options
):
    options = {
        "n_records": 500,
        "n_clients": 5,
        "n_rounds": 2,
        "min_clients": 3,
        **options,
    }
    return cls(k, BOX, PrivacyBudget(epsilon, delta, "client"), trust=trust, **options)


# ------------------------------------------------------------------------ planned noise


def gaussian_scales(clip, rounds, shares_grow_by=1.0):
    """Standard deviations of GLloyd for records (docs/guarantees, Theorem 15), times clip."""
    spread, root = 2 * 0.225 + math.sqrt(2), math.sqrt(2)
    wide = clip * shares_grow_by * math.sqrt(rounds) / mu_of_budget(1.0, 1e-6) * 2**Q
    return wide * root * math.sqrt(spread / root), wide * math.sqrt(
        spread / (2 * 0.225)
    )


def laplace_scales(clip, rounds):
    """Scales of SuLloyd for records at delta 0, times clip."""
    share = (4 * 2 * 0.225**2) ** (1 / 3)
    wide = clip * rounds * (2 + share) * 2**Q
    return wide, wide / share


def planned_scales(made):
    """Return the scale that a plan gives to the noise of sums, and to that of counts."""
    algorithm, found = made.algorithm, []
    units, places = sensitivities(algorithm, 1), algorithm.layout(1).places
    for release in made.plan.rounds[0]:
        (block,) = release.blocks
        (unit,) = set(units[places[block]])
        found.append(unit * release.noise_multiplier * made.noise_factor)
    return found


# That finished sums have this noise is tested with all strategies
# (test_noise_of_sums.py).
@pytest.mark.claim("guarantees", "34")
@pytest.mark.parametrize("clip", [None, 7.5])
@pytest.mark.parametrize("trust", TRUSTS)
def test_noise_for_clients_is_clip_times_the_noise_for_records(trust, clip):
    made = strategy(trust=trust, clip=clip)
    # Five clients share noise for two; where the server sees the sums, four honest ones
    # keep it.
    shared = {"clients-only": math.sqrt(5 / 2), "distributed-noise": math.sqrt(5 / 4)}
    factor = shared.get(trust, 1.0)
    assert made.noise_factor == factor
    expected = gaussian_scales(100.0 if clip is None else clip, 2, factor)
    assert planned_scales(made) == pytest.approx(expected, rel=1e-6)


@pytest.mark.claim("guarantees", "34")
def test_laplace_noise_for_clients_is_clip_times_that_for_records():
    expected = laplace_scales(100.0, 2)
    assert planned_scales(strategy(SuLloyd, delta=0.0)) == pytest.approx(
        expected, rel=1e-6
    )


# ----------------------------------------------------------------- what a client counts


@pytest.mark.parametrize("cls", [FastLloyd, GLloyd, SuLloyd])
def test_a_client_counts_as_clip_records_at_most(cls):
    """At a huge epsilon the noise is small, and sizes show what each client added."""
    made = strategy(
        cls, k=2, epsilon=4000.0, n_rounds=1, initial=[[1.0, 1.0], [-1.0, -1.0]]
    )
    clustering = simulate(made, CORNER)
    expected = min(100, 1000) + min(100, 300) + 20 + 5
    np.testing.assert_allclose(clustering.counts, [expected, 0], atol=20)
    np.testing.assert_allclose(clustering.centroids[0], [1.0, 1.0], atol=0.1)
    report = clustering.report
    assert (report.unit, report.clip) == ("client", 100.0)
    assert report.epsilon == pytest.approx(4000.0, rel=1e-3)


# --------------------------------------------------------------------------- documents


def test_a_document_must_mean_one_number_of_clients():
    run = run_recorded(strategy(k=2), CORNER).run
    document = run.document

    def changed(privacy=None, **algorithm):
        body = structs.replace(
            document.body, algorithm=document.body.algorithm | algorithm
        )
        privacy = document.privacy | (privacy or {})
        return encode(structs.replace(document, privacy=privacy, body=body))

    verify_plan(open_run(run.data))
    for false in (
        changed({"n_clients": 6}),
        *(changed(n_clients=number) for number in (6, 0)),
        *(changed(clip=clip) for clip in (real_to_text(-1.0), 100)),
    ):
        with pytest.raises(UnacceptableRunError):
            verify_plan(open_run(false))
    # The bound is the server's choice: the noise is made for it, and the client clips
    # to it.
    wider = changed(clip=real_to_text(250.0))
    verify_plan(open_run(wider))
    assert open_run(wider).algorithm.clip == 250.0


# --------------------------------------------------------------------------- reports


@pytest.mark.claim("guarantees", "34")
def test_the_report_says_what_one_client_is():
    made = strategy(trust="distributed-noise", k=2, min_clients=4)
    report = run_recorded(made, CORNER).strategy.report
    data = report.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert (data["unit"], data["clip"], data["planned_clients"]) == ("client", 100.0, 5)
    assert data["clips"] == {"sums": 100.0, "counts": 100.0}
    assert report.clip_text == "100 records' worth of a client in each release"
    assert (data["n_clients"], data["min_clients"], data["n_records"]) == (5, 4, 500)
    assert data["noise_factor"] == pytest.approx(math.sqrt(5 / 4))
    assert data["delta"] == 1e-6
    assert "all records of one client" in data["neighbours"]
    text = " ".join(data["statements"])
    assert "It counts as at most 100 records in each release" in text
    assert "Not protected: n_records, n_clients," in text
    records = GLloyd(2, BOX, PrivacyBudget(1.0), n_records=500, n_rounds=2)
    data = run_recorded(records, CORNER).strategy.report.to_dict()
    assert (data["unit"], data["clip"], data["planned_clients"]) == (
        "record",
        None,
        None,
    )
    assert data["clips"] == {}
    assert "one record" in data["neighbours"]
    assert "counts as" not in " ".join(data["statements"])


def test_a_report_shows_nothing_of_how_much_was_clipped():
    # Names of runs and dates always differ. Warnings follow from released values, noise
    # included.
    others = {"seconds": 0, "run": "", "date": "", "warnings": []}
    reports = [
        run_recorded(strategy(k=2), parts).strategy.report.to_dict() | others
        for parts in (CORNER, [np.empty((0, 2))] * 5)
    ]
    assert reports[0] == reports[1]


# ---------------------------------------------------------------- algorithms without it


@dataclass(frozen=True, kw_only=True)
class Careless(SplitAlgorithm):
    """It takes the parameters of an algorithm that clips, and forgets them."""

    name = "test-careless"
    n_clients: int | None = None
    clip: float | None = None


class CarelessSplit(Split):
    ALGORITHM = Careless


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server"])
@pytest.mark.parametrize(
    ("cls", "named"), [(Split, "Split"), (CarelessSplit, "Careless")]
)
def test_an_algorithm_without_a_clip_is_refused_when_its_strategy_is_made(
    cls, named, trust
):
    """Before a plan is made, whose noise would be that for records."""
    options = {"n_records": 500, "n_clients": 5, "trust": trust}
    cls(3, BOX, PrivacyBudget(1.0), **options)
    with pytest.raises(
        ConfigurationError, match=f"unit='record' for {named}.*unit='client'"
    ):
        cls(3, BOX, PrivacyBudget(1.0, 1e-6, "client"), **options)
    if cls is Split:
        with pytest.raises(
            ConfigurationError, match="clip=None for Split, whose algorithm does"
        ):
            cls(3, BOX, PrivacyBudget(1.0), clip=7.0, **options)
