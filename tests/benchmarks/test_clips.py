"""The script that varies clips: what it varies, what it holds fixed, and going on."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scripts import load_script

from flower_kmeans import Ball
from flower_kmeans.bench.harness import Options
from flower_kmeans.metrics import nicv

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def clips(monkeypatch):
    """The script as a module."""
    return load_script(monkeypatch, "clips", FOLDER)


def case_of(clips, d):
    """Case of 4,000 records in two clusters."""
    labels = np.repeat([0, 1], 2_000)
    return clips.Case(clips.Data("given", np.zeros((4_000, d)), 2), labels, Ball(1.0, [0] * d), 1)


def task_of(clips, method, factor):
    return clips.Task("given", "clients", method, 1.0, factor, 0)


@pytest.mark.parametrize("d", [3, 20])
def test_a_factor_changes_the_clips_of_its_method_and_no_others(clips, d):
    varied = {clips.SYNOPSIS: set(), clips.PE_VOTES: {"votes"}}  # of SynopsisKMeans, all
    if d > 16:
        varied[clips.PE_LIFT] = {"lift-sums", "lift-counts"}
    for method, names in varied.items():
        default, half = (
            clips.algorithm_of(case_of(clips, d), task_of(clips, method, factor))
            for factor in (1.0, 0.5)
        )
        library = type(default)(
            2, case_of(clips, d).domain, default.budget, n_records=4_000, n_clients=1_000
        )
        of = [
            {
                release.name: made.clip_of(release)
                for number in range(1, made.n_rounds + 1)
                for release in made.releases(number)
            }
            for made in (library, default, half)
        ]
        assert of[0] == of[1]
        shared = of[0].keys() & of[2].keys()  # the schedule follows from the clip
        names = names or shared
        assert names
        assert names <= shared
        for name in shared:
            assert of[2][name] == of[0][name] * (0.5 if name in names else 1.0)


def test_the_mixture_is_that_of_the_experiments(clips):
    case = clips.case_of("mixture", Options(1), 1)
    assert case.records.records.shape == (50_000, 100)
    assert case.records.n_clusters == 10
    sys.path.append(str(FOLDER.parent / "simulations" / "feddp"))
    try:
        from populations import Mixture
    finally:
        sys.path.pop()
    drawn = Mixture(1_000, 50).draw("any", 1)
    assert case.domain == drawn.domain
    np.testing.assert_array_equal(case.records.records[:50], drawn.partitions[0])
    # The true means are a little worse than the best clustering, which starts from them.
    at_means = nicv(case.records.records, drawn.means)
    assert 0.99 * at_means < case.optimum < at_means
