"""The attack on a cell: runs, guesses, bounds and the verdict."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
from audit_bounds import epsilon_lower_bound, mu_lower_bound
from audit_cells import DELTA, Cell, setting_of
from audit_runs import Answers, Score, Views, log_likelihood, recorded, repeated

from flower_kmeans.arrays import FloatArray
from flower_kmeans.privacy.calibration import epsilon_of_mu

BELOW, ABOVE, DIFFERENT = "below", "ABOVE THE CLAIM", "RECORDED RUNS DIFFER"
FEWEST_SIGMAS = 7.0
"""Beyond it, scores of recorded runs are not those of the repetitions by chance."""
LEAST_ATTAINED = 0.8
"""Neighbours that attain less of the plan's cost test less than the claim."""


@dataclass(frozen=True)
class Line:
    """The results of an attack: the columns of runs.csv that do not identify the attack.

    Claims are claims against this adversary. NaN means that a number does not exist: mu
    unless all noise is Gaussian, and sigmas if scores are infinite, constant, or not
    likelihood ratios.
    """

    delta: float
    mu: float
    claimed_epsilon: float
    recorded: int  # runs through strategy and client code, half of them with the target
    recorded_right: int  # of these, those that were guessed right
    sigmas: float  # how far the recorded scores lie from those of the repetitions
    # part of the plan's cost that the neighbours attain in the recorded runs
    attained: float
    threshold: float  # a score above it is the guess that the target is there
    tpr: float  # of the counted runs
    fpr: float
    confidence: float
    mu_bound: float  # lower bounds of that confidence
    epsilon_bound: float
    ratio: float  # of the bound on epsilon over the claim
    verdict: str
    seconds: float
    adversary: str  # who attacks


@dataclass(frozen=True)
class Effort:
    """The numbers of runs of an attack, and the confidence of its bounds."""

    # of answers and noise, each scored with the target and without
    repetitions: int = 5_000
    recorded: int = 5  # whole runs of each neighbour
    confidence: float = 0.95


def attack(
    cell: Cell,
    effort: Effort,
    *,
    score: Score = log_likelihood,
    threshold: float = 0.0,
    patch: Callable[[], AbstractContextManager[object]] = nullcontext,
    at_once: bool = True,
) -> Line:
    """Run a cell's attack in the context of a patch, and return its results.

    Where not all noise is Gaussian the threshold is the best one of as many other
    repetitions, which are not counted. ``at_once`` draws the noise of all repetitions
    by one call for each release, and not by what makes a round's noise in a run.
    """
    began = time.monotonic()
    with patch():
        setting = setting_of(cell)
        answers = Answers(setting)
        turns = [False, True] * effort.recorded
        whole = [(present, recorded(setting, present)) for present in turns]
        queries = whole[0][1][0]
        gaussian = answers.mu is not None
        if not gaussian:
            pilot = repeated(answers, queries, effort.repetitions, at_once)
            threshold = _chosen(answers, effort, score, pilot)
        absent, present = repeated(answers, queries, effort.repetitions, at_once)
        low, high = score(answers, absent), score(answers, present)
        marks = [
            (there, float(score(answers, views)[0])) for there, (_, views) in whole
        ]
        attained = float(np.mean([answers.attained(views) for _, (_, views) in whole]))
    # Other scores may be counts of what is rare, whose spread says nothing of single
    # runs.
    sigmas = float(_sigmas(marks, low, high)) if score is log_likelihood else math.nan
    line = _line(cell, answers, (low, high), threshold, effort.confidence)
    return replace(
        line,
        recorded=len(marks),
        recorded_right=sum(bool(mark > threshold) == there for there, mark in marks),
        sigmas=sigmas,
        attained=attained,
        verdict=DIFFERENT if sigmas > FEWEST_SIGMAS else line.verdict,
        seconds=time.monotonic() - began,
    )


def attack_whole(
    cell: Cell,
    runs: int,
    confidence: float = Effort().confidence,
    *,
    pilot: int = 2_000,
    patch: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Line:
    """Run the strategy ``runs`` times with the target and as often without, and guess each run.

    Every guess is of a whole run with its queries, by the exact likelihood ratio. Where
    not all noise is Gaussian the threshold is the best one of ``pilot`` repetitions of
    answers and noise.
    """
    began = time.monotonic()
    threshold = 0.0
    with patch():
        setting = setting_of(cell)
        answers = Answers(setting)
        if answers.mu is None:
            queries, _ = recorded(setting, False)
            tried = repeated(answers, queries, pilot, at_once=True)
            effort = Effort(runs, confidence=confidence)
            threshold = _chosen(answers, effort, log_likelihood, tried)
        marks = {False: np.empty(runs), True: np.empty(runs)}
        attained = []
        for turn in range(runs):
            # Both take turns, so whatever changes with time is the same for both.
            for present, scores in marks.items():
                _, views = recorded(setting, present, replay=turn == 0)
                scores[turn] = log_likelihood(answers, views)[0]
                attained.append(answers.attained(views))
    low = marks[False]
    high = marks[True]
    line = _line(cell, answers, (low, high), threshold, confidence)
    right = int((high > threshold).sum()) + int((low <= threshold).sum())
    return replace(
        line,
        recorded=2 * runs,
        recorded_right=right,
        attained=float(np.mean(attained)),
        seconds=time.monotonic() - began,
    )


def _line(
    cell: Cell,
    answers: Answers,
    scores: tuple[FloatArray, FloatArray],
    threshold: float,
    confidence: float,
) -> Line:
    """Return the bounds that follow from the scores without the target, and with it."""
    low, high = scores
    n = len(low)
    true = int((high > threshold).sum())
    false = int((low > threshold).sum())
    counts = (true, n, false, n)
    if answers.mu is None:
        mu_bound = math.nan
        bound = epsilon_lower_bound(*counts, DELTA, confidence)
    else:
        mu_bound = float(mu_lower_bound(*counts, confidence))
        bound = epsilon_of_mu(mu_bound, DELTA)
    claimed = answers.epsilon
    return Line(
        delta=DELTA,
        mu=math.nan if answers.mu is None else answers.mu,
        claimed_epsilon=claimed,
        recorded=0,
        recorded_right=0,
        sigmas=math.nan,
        attained=math.nan,
        threshold=float(threshold),
        tpr=true / n,
        fpr=false / n,
        confidence=confidence,
        mu_bound=mu_bound,
        epsilon_bound=bound,
        ratio=bound / claimed if claimed else math.nan,
        verdict=ABOVE if bound > claimed else BELOW,
        seconds=0.0,
        adversary=cell.sees,
    )


def _chosen(
    answers: Answers, effort: Effort, score: Score, views: tuple[Views, Views]
) -> float:
    """Return the threshold that gives the best bound on epsilon to so many repetitions."""
    low, high = (score(answers, each) for each in views)
    n = effort.repetitions
    # Noise that is not Gaussian puts many scores on a few values: thresholds lie just
    # below.
    candidates = np.unique(np.quantile(high, np.linspace(0.3, 0.98, 69))) - 1e-6

    def bound(threshold: float) -> float:
        true = round(n * (high > threshold).mean())
        false = round(n * (low > threshold).mean())
        return epsilon_lower_bound(true, n, false, n, DELTA, effort.confidence)

    return float(max(candidates, key=bound))


def _sigmas(
    marks: list[tuple[bool, float]], low: FloatArray, high: FloatArray
) -> float:
    """Return the joint deviation of recorded runs' scores, in standard deviations.

    It is the larger of two tests: both neighbours' scores are farther out than those of
    the repetitions, or both are shifted.
    """
    if not marks or not np.isfinite([*low, *high, *(mark for _, mark in marks)]).all():
        return math.nan
    laws = {
        there: (law.mean(), law.std()) for there, law in ((True, high), (False, low))
    }
    if any(spread == 0 for _, spread in laws.values()):
        return math.nan
    away = [(there, (mark - laws[there][0]) / laws[there][1]) for there, mark in marks]
    outward, shifted = (
        sum(a if there else -a for there, a in away),
        sum(a for _, a in away),
    )
    return float(max(abs(outward), abs(shifted)) / math.sqrt(len(marks)))
