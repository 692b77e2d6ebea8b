"""The noise in finished sums has the planned scale: of every strategy and in every situation.

Whole runs are recorded. What a sum has beyond the exact answers of the clients in it is
its noise. A sample of it, in units of the planned scale, is accepted as it is, and
rejected at 2/3 and 3/2.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from harness import Outcome, assert_scale
from rows import (
    CENTERS,
    ROWS,
    SIGHTED,
    TRUSTS,
    exact,
    listed,
    make,
    parts_of,
    present,
    queries,
    run,
)
from scipy import stats

from flower_kmeans import Box, Fault
from flower_kmeans.algorithms.sensitivity import sensitivities

RNG = np.random.default_rng
# So many words hold the scale within 6 standard deviations, but for 3 in 10^8 runs, and
# a scale of 2/3 or 3/2 of it within as many for 1 in 10^8.
ENOUGH = {"gaussian": 550, "laplace": 900}
LAWS = {"gaussian": stats.norm, "laplace": stats.laplace}

# --------------------------------------------------------------------------- situations


@dataclass(frozen=True)
class Situation:
    """What is special about a run. Without more it is one of 6 clients, planned for at least 4."""

    options: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    parts: Callable[[str], list[np.ndarray]] = parts_of
    kept: Mapping[str, Mapping[int, int]] = field(
        # One client may collude. Beyond 3 shares, those of 5 honest clients are
        # removed.
        default_factory=lambda: {"clients-only": {6: 3}, "distributed-noise": {6: 5}}
    )
    """By trust model, and by the clients in a sum: how many of their shares are the planned noise.

    It is 1 of 1 where a trust model has no noise shares.
    """
    releases: tuple[str, ...] = ()
    """Releases that need enough words each, and not together with others."""
    check: Callable[[Outcome], None] = lambda outcome: None
    """Whether the situation arose."""


# Of a box with one scale, noise is the same in every column, though they are not
# equally wide.
UNEQUAL = Box([-14.0, -14.0, -7.0], [14.0, 14.0, 7.0], scale="common")


def by_twenty(name):
    return np.array_split(np.concatenate(parts_of(name)), 20)


def removed(shares, *, absent=(), leaves="answer", **options):
    """Return a run of 20 clients that is planned for at least 16 of them."""
    faults = [
        Fault(i, t, "drop", *(["add"] if leaves == "sum" else [])) for i, t in absent
    ]
    options = {"n_clients": 20, "min_clients": 16, "max_colluders": 1, **options}
    return Situation(options, tuple(faults), by_twenty, {"distributed-noise": shares})


def in_a_corner(name):
    """Return records of six clients, of which some have too many and some none."""
    return [np.full((n, ROWS[name][1]), 8.0) for n in (1000, 300, 20, 5, 0, 0)]


def some_are_clipped(outcome):
    assert 5 < outcome.strategy.algorithm.clip < 1000


def alike(name):
    """Return records that are so near to each other that the radius narrows."""
    return [np.zeros((200, 3))] * 6


def the_radius_narrowed(outcome):
    """But sensitivities remain those of the first radius."""
    algorithm = outcome.strategy.algorithm
    assert algorithm.sums == "narrowing"
    assert int(outcome.queries[-1].arrays["factor"][0]) > 4
    places, units = (
        algorithm.layout(algorithm.n_rounds).places,
        sensitivities(algorithm, algorithm.n_rounds),
    )
    assert set(units[places["sums"]]) == {4.0 * algorithm.lloyd_sums.radius}


def sizes_state_their_noise(outcome):
    """That of the last round, where one of six clients was away."""
    strategy = outcome.strategy
    factor = 5 / 4 if strategy.trust == "distributed-noise" else 1.0
    stated = outcome.one.size_report.noise
    assert stated == pytest.approx(strategy.algorithm.sizes.noise * math.sqrt(factor))


SITUATIONS = {
    "usual": Situation(),
    "unequal columns": Situation({"domain": UNEQUAL}),
    # Where nobody knows how many will come, no noise is removed.
    "more come than planned": Situation(
        {"n_clients": None}, kept={"clients-only": {6: 3}, "distributed-noise": {6: 3}}
    ),
    "members are absent": Situation(
        {"n_clients": None},
        (Fault(0, 2, "drop"), Fault(4, 2, "crash")),
        kept={"clients-only": {6: 3, 4: 3}, "distributed-noise": {6: 3, 4: 3}},
    ),
    # Noise beyond the plan is removed up to the next level below the honest answers.
    "all answer": removed({20: 19}),
    "two collude": removed({20: 18}, max_colluders=2),
    "planned for 3 of 20": removed({20: 18}, min_clients=3, max_colluders=2),
    # Levels are 2, 4, 9 and 18 shares: 14 honest clients are between two.
    "between levels": removed(
        {20: 18, 16: 9},
        min_clients=3,
        max_colluders=2,
        absent=[(i, 2) for i in range(4)],
    ),
    "dropouts": removed({18: 17, 20: 19}, absent=[(3, 1), (4, 1), (3, 2), (9, 2)]),
    # Others give shares of the keys of those who are silent when sums are added.
    "silent": removed(
        {20: 19}, absent=[(i, t) for i in (3, 7) for t in (1, 2)], leaves="sum"
    ),
    "nothing is beyond the plan": removed({20: 19}, min_clients=20),
    # Levels are 2, 3 and 5 shares.
    "ever fewer answers": Situation(
        {"n_clients": 6, "min_clients": 2, "n_rounds": 5},
        tuple(Fault(i, t, "drop") for t in range(2, 6) for i in range(t - 1)),
        kept={"distributed-noise": {6: 5, 5: 3, 4: 3, 3: 2, 2: 1}},
    ),
    "clients are clipped": Situation(parts=in_a_corner, check=some_are_clipped),
    "clients are clipped to 7.5": Situation(
        {"clip": 7.5}, parts=in_a_corner, check=some_are_clipped
    ),
    "pure epsilon": Situation({"delta": 0.0}, parts=in_a_corner),
    "the radius narrows": Situation(
        {
            "epsilon": 8.0,
            "n_clusters": 60,
            "server_data": RNG(2).uniform(-8, 8, (80, 3)),
        },
        parts=alike,
        releases=("lloyd-sums", "lloyd-counts"),
        check=the_radius_narrowed,
    ),
    "sizes, and one is absent at last": Situation(
        {"n_clusters": 20, "min_size": 45, "max_size": 75},
        (Fault(4, 16, "drop"),),
        kept={"distributed-noise": {6: 5, 5: 4}},
        releases=("sizes",),
        check=sizes_state_their_noise,
    ),
}


# They differ from rows that run by default in their statistic, not in the noise that it
# has.
SAME_NOISE = {name for name in ROWS if "exclusive" in name} | {
    "constrained, amn",
    "constrained, mna, laplace",
    "FastLloyd, paper",
}


def cases():
    """Return the name of a strategy's row, the trust model, the unit, and the situation."""
    found = [
        pytest.param(
            *case, "usual", marks=[pytest.mark.thorough] * (case[0] in SAME_NOISE)
        )
        for case in listed("record", "client")
    ]
    found.append(("SuLloyd", "trusted-server", "record", "unequal columns"))
    found.append(("SuLloyd", "trusted-server", "client", "pure epsilon"))
    for situation, choice in SITUATIONS.items():
        # those where noise beyond the plan is removed
        if choice.options.get("min_clients"):
            found.append(("FastLloyd", "distributed-noise", "record", situation))
    for trust in ("clients-only", "distributed-noise"):
        for situation in ("more come than planned", "members are absent"):
            found.append(("GLloyd", trust, "record", situation))
    for trust in TRUSTS:
        for situation in ("clients are clipped", "clients are clipped to 7.5"):
            found.append(("GLloyd", trust, "client", situation))
    found += [
        ("FedDPKMeans", trust, "record", "the radius narrows") for trust in SIGHTED
    ]
    sizes = "SynopsisKMeans, bounds", "sizes, and one is absent at last"
    found += [
        pytest.param(sizes[0], trust, "record", sizes[1], marks=pytest.mark.thorough)
        for trust in SIGHTED
    ]
    return found


def wide(name):
    """Return options with many words in a round, so that few rounds are enough."""
    found = {"n_clusters": 24}
    points = np.zeros((24, ROWS[name][1]))
    points[:, :3] = np.repeat(CENTERS, 8, axis=0) + RNG(4).normal(size=(24, 3))
    if "Lloyd" in name or "constrained" in name:
        found["initial"] = points
    if name == "FedDPKMeans":
        found["server_data"] = np.repeat(points, 2, axis=0)
    if "bounds" in name:  # weights of many clusters take seconds
        found |= {"n_clusters": 8, "min_size": 100, "max_size": 200}
    return found


# ------------------------------------------------------------------------- the property


def check_report(outcome, shares):
    """Require that the report states the noise that is added and left."""
    strategy, report = outcome.strategy, outcome.strategy.report
    left = [math.sqrt(n / shares[n]) if shares else 1.0 for n in report.answers]
    stated = (
        f"noise of sums of {report.answers} answers, over the plan's: "
        f"{report.factors} is stated"
    )
    assert report.factors == pytest.approx(left), stated
    assert report.noise_factor == pytest.approx(max(left))
    planned = strategy.min_clients - strategy.max_colluders
    added = max(math.sqrt(n / planned) for n in report.answers) if shares else 1.0
    assert report.added_noise_factor == pytest.approx(added)
    return left


def noise_by_release(outcome, factors, parts):
    """Yield releases of all rounds, each with its noise in units of its scale."""
    algorithm = outcome.strategy.algorithm
    for query in queries(outcome):
        t = query.round
        noise = outcome.sums[t] - exact(outcome, query, present(outcome, t, parts))
        units, places = sensitivities(algorithm, t), algorithm.layout(t).places
        for release in outcome.strategy.plan.rounds[t - 1]:
            words = np.concatenate([places[block] for block in release.blocks])
            scale = units[words] * release.noise_multiplier * factors[t - 1]
            yield release, noise[words] / scale


def has_enough(found, releases, enough):
    """Return whether there are enough words, of each of some releases or of all together."""
    sizes = {name: sum(map(len, samples)) for name, samples in found.items()}
    return min([sizes[name] for name in releases] or [sum(sizes.values())]) >= enough


@pytest.mark.claim("protocol", "party-sees-sums-computes", "m-min-clients-c")
@pytest.mark.claim("guarantees", "2", "34", "20", "17", "22", "24", "28", "43")
@pytest.mark.default_cases("values")
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("name", "trust", "unit", "situation"), cases())
def test_sums_carry_the_planned_noise(name, trust, unit, situation):
    """Of every release, and together with enough words to reject other scales."""
    special = SITUATIONS[situation]
    parts, shares = special.parts(name), special.kept.get(trust)
    options = {"epsilon": 2.0, **wide(name), **special.options}
    found = defaultdict(list)
    for seed in itertools.count():
        strategy = make(name, trust, unit=unit, seed=seed, **options)
        (mechanism,) = {release.mechanism for release in strategy.plan.releases}
        outcome = run(name, strategy, parts, faults=special.faults)
        special.check(outcome)
        factors = check_report(outcome, shares)
        for release, noise in noise_by_release(outcome, factors, parts):
            found[release.name].append(noise)
        if has_enough(found, special.releases, ENOUGH[mechanism]):
            break
    samples = {
        f"release {each!r}": np.concatenate(noises) for each, noises in found.items()
    }
    samples["all releases"] = np.concatenate(list(samples.values()))
    for what, sample in samples.items():
        assert_scale(what, sample, LAWS[mechanism], ENOUGH[mechanism])
