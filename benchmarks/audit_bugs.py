"""Planted bugs: how each is planted into running code, and the guess that finds it.

A bug replaces one function of the library while the code runs, in recorded runs and in
repetitions. It never changes the package itself. The likelihood ratio, the best guess
under the claimed noise, finds noise that is too small. Noise of another kind is found
by sums that it cannot produce: the score is positive if only one of the neighbours can
have given the sums. The same score on the unchanged code must stay below the claim.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from audit_cells import BELOW, BEYOND, COLUMNS, COST, N_CLIENTS, PAPER, WEIGHTED, Cell
from audit_runs import KNOWN_KEY, Answers, IntArray, Score, Views, log_likelihood
from scipy.special import log_ndtr

from flower_kmeans.algorithms import (
    ConstrainedLloydAlgorithm,
    FastLloydAlgorithm,
    Query,
    Statistic,
    SuLloydAlgorithm,
    client_clipping,
)
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.feddp import FedDPAlgorithm
from flower_kmeans.algorithms.layout import COUNTS, SUMS
from flower_kmeans.algorithms.numerics.assignment import assign
from flower_kmeans.algorithms.numerics.cells import Cells, CellSums, cell_sums
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.privacy.noise import draw, draw_share
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.privacy.release import Release
from flower_kmeans.protocol import noise as round_noise
from flower_kmeans.protocol.phases import sums as round_sums
from flower_kmeans.secagg import primitives
from flower_kmeans.secagg.base import Sharing
from flower_kmeans.secagg.shares import SharedSum

Context = AbstractContextManager[object]
Patch = Callable[[], Context]
Drawer = Callable[[Release, FloatArray, Stream], IntArray]

_ONE = 2**16
"""One record's count on the default grid."""
_CLIP = 2.5
_PUBLIC_KEY = bytes(32)
"""A key that anybody can compute from a public seed."""


@dataclass(frozen=True)
class Bug:
    """A planted bug, with the guess that finds it."""

    name: str
    what: str
    cell: Cell
    patch: Patch  # makes the context that plants it
    guess: str = "likelihood ratio"  # the score in words
    score: Score = log_likelihood
    threshold: float = 0.0  # fixed before any run
    # whether one call for each release can draw the noise of all repetitions
    at_once: bool = True


BUGS: dict[str, Bug] = {}


def planted(
    name: str, cell: Cell, what: str = "", **guess: Any
) -> Callable[[Patch], Patch]:
    """Return a decorator that lists a bug by its patch, with the patch's docstring."""

    def listed(patch: Patch) -> Patch:
        BUGS[name] = Bug(name, what or str(patch.__doc__)[:-1], cell, patch, **guess)
        return patch

    return listed


def drawing(name: str, cell: Cell, **guess: Any) -> Callable[[Drawer], None]:
    """Return a decorator that lists a bug by a replacement of the server's noise."""

    def listed(drawer: Drawer) -> None:
        plant = planted(name, cell, str(drawer.__doc__)[:-1], **guess)
        plant(lambda: mock.patch.object(round_noise, "draw", drawer))

    return listed


# --------------------------------------------------------------------------- guesses


def _neighbours(views: Views) -> Iterator[IntArray]:
    """Yield the noise that the views hold if the target is absent, and if it is there."""
    yield views.residual
    yield views.residual - views.change


def _beyond_the_clip(answers: Answers, views: Views) -> FloatArray:
    """Return 1 where the noise would be beyond its clip if the target were absent, else 0."""
    beyond = [
        (np.abs(views.residual[:, words]) > np.floor(_CLIP * scale)).any(axis=1)
        for _, words, scale in answers.laws
    ]
    return np.any(beyond, axis=0).astype(np.float64)


def _wholeness(answers: Answers, views: Views) -> FloatArray:
    """Return the words with whole noise if the target is there, minus those if it is absent."""
    absent, present = ((noise % _ONE == 0).sum(axis=1) for noise in _neighbours(views))
    return (present - absent).astype(np.float64)


def _truncated_likelihood(answers: Answers, views: Views) -> FloatArray:
    """Return the exact log-likelihood ratio of Gaussian noise that is cut toward zero."""
    absent, present = _neighbours(views)
    total = np.zeros(len(absent))
    for _, words, scale in answers.laws:
        changed = np.broadcast_to(views.change != 0, absent.shape)[:, words]
        difference = _log_cut(present[:, words], scale) - _log_cut(
            absent[:, words], scale
        )
        total += np.where(changed, difference, 0.0).sum(axis=1)
    return total


def _log_cut(noise: IntArray, scale: FloatArray) -> FloatArray:
    size = np.abs(noise).astype(np.float64)
    inner, outer = log_ndtr(-size / scale), log_ndtr(-(size + 1) / scale)
    # Zero is what both sides of it are cut to.
    found: FloatArray = (
        inner + np.log(-np.expm1(outer - inner)) + np.log(2.0) * (size == 0)
    )
    return found


def _disagreement(answers: Answers, views: Views) -> FloatArray:
    """Return how much better counts and sums agree on one noise if the target is there."""
    found = []
    for noise in _neighbours(views):
        total = np.zeros(len(noise))
        for (_, sums, wide), (_, counts, narrow) in zip(
            answers.laws[::2], answers.laws[1::2], strict=True
        ):
            n = len(counts)
            total += np.abs(
                noise[:, sums[:n]] / wide[:n] - noise[:, counts] / narrow
            ).sum(axis=1)
        found.append(total)
    return found[0] - found[1]


def _known(patch: Callable[[], Patch]) -> Score:
    """Return a score of adversaries that compute the noise from a public seed."""

    def score(answers: Answers, views: Views) -> FloatArray:
        with patch()():
            rounds = range(1, answers.algorithm.n_rounds + 1)
            made = np.concatenate(
                [answers.noise(Query(number))[0] for number in rounds]
            )
        # In floats: distances of other noise than the guessed one may overflow
        # integers.
        absent, present = (
            np.abs((noise - made).astype(np.float64)).sum(axis=1)
            for noise in _neighbours(views)
        )
        return np.asarray(absent - present)

    return score


# --------------------------------------------------------------------------- plants

_GLLOYD, _FAST = Cell("GLloyd", "trusted-server"), Cell("FastLloyd", "trusted-server")
_SHARED, _HIDDEN = (
    Cell("GLloyd", "distributed-noise"),
    Cell("FastLloyd", "oblivious-server"),
)
_IN_SHARES = Cell("GLloyd", "clients-only", variant=BELOW)


@drawing("noise halved", _GLLOYD)
def _halved(each: Release, units: FloatArray, stream: Stream) -> IntArray:
    """Half of the planned deviation is drawn by the server."""
    return draw(
        replace(each, noise_multiplier=each.noise_multiplier / 2), units, stream
    )


@planted("shares of all clients", _SHARED)
def _too_many_shares() -> Context:
    """Clients divide the noise by their number, colluders included."""

    def drawer(
        each: Release, units: FloatArray, shares: int, stream: Stream
    ) -> IntArray:
        return draw_share(each, units, N_CLIENTS, stream)

    return mock.patch.object(round_noise, "draw_share", drawer)


@planted(
    "own noise missing",
    replace(_IN_SHARES, variant=BEYOND),
    "The first client adds no noise, and its answers are reconstructed",
    at_once=False,
)
@planted("a share of the noise missing", _SHARED, at_once=False)
def _one_share_missing() -> Context:
    """Others add their noise, the first client adds none."""
    real, calls = round_noise.noise_share, itertools.count()

    def shares(algorithm: Algorithm, *given: Any) -> IntArray:
        drawn = real(algorithm, *given)
        return drawn if next(calls) % N_CLIENTS else np.zeros_like(drawn)

    return mock.patch.object(round_noise, "noise_share", shares)


@planted("share key known", _IN_SHARES)
def _known_share_key() -> Context:
    """Shares are sealed under a key that the server knows."""
    return mock.patch.object(primitives, "share_key", return_value=KNOWN_KEY)


@planted("threshold too small", _IN_SHARES)
def _short_polynomials() -> Context:
    """Polynomials hide an answer from f shares, and not from tau."""

    def short(
        self: SharedSum, n_positions: int, n_corrupt: int, n_present: int
    ) -> Sharing:
        return Sharing(n_positions, n_corrupt, n_corrupt, 1)

    return mock.patch.object(SharedSum, "set_up", short)


@planted("radius of the wrong round", replace(_FAST, variant=PAPER))
def _later_radius() -> Context:
    """Noise of round 1 is made for the radius of later rounds."""
    return mock.patch.object(
        FastLloydAlgorithm,
        "_sum_sensitivity",
        lambda self, number: float(self.radius_of(2)),
    )


def _slacks(of: Callable[[FloatArray], FloatArray]) -> Context:
    """Put a function of the squared length of each offset in place of slacks."""
    sums = Cells.sums

    def unbounded(
        cells: Cells, records: GridRecords, bits: int, weighted: bool
    ) -> CellSums:
        found = sums(cells, records, bits, weighted)
        slacks = np.zeros(len(cells.radii), np.int64)
        for block in records.blocks(2**15):
            labels, d2 = assign(block, cells.centers)
            own = cells.radii.astype(np.float64)[labels]
            more = np.floor(of(d2 / (own * own)) * 2.0**bits).astype(np.int64)
            np.add.at(slacks, labels, more)
        return found._replace(slacks=slacks)

    return mock.patch.object(Cells, "sums", unbounded)


@planted("squares without the joint bound", _FAST)
def _squares() -> Context:
    """Squared offsets stand beside offsets, in place of what they leave of 1."""
    return _slacks(lambda lengths: lengths)


@planted("weights above the budget", replace(_FAST, variant=WEIGHTED))
def _weights() -> Context:
    """Near records weigh more in their nearness, too, and not in the sums alone."""

    def weighted(lengths: FloatArray) -> FloatArray:
        slacks = np.maximum(1 - lengths, 0.0)
        return np.asarray(slacks * np.sqrt(1 + slacks))

    return _slacks(weighted)


@planted("relocation that looks at records", _FAST)
def _far_records_twice() -> Context:
    """Each record beyond the radius is also counted at another centroid, to draw it there."""
    statistic = FastLloydAlgorithm.statistic

    def looking(
        self: FastLloydAlgorithm, query: Query, records: GridRecords
    ) -> Statistic:
        found, centroids = statistic(self, query, records), query.arrays["centroids"]
        points = np.concatenate(
            [np.empty((0, records.shape[1])), *records.blocks(2**16)]
        )
        radii = query.arrays["radius"]
        labels, d2 = assign(points, centroids)
        for j in range(self.n_clusters):
            far = points[(labels == j) & (d2 > float(radii[0]) ** 2)]
            other = (j + 1) % self.n_clusters
            seen = GridRecords.from_grid(far, self.fraction_bits)
            more = cell_sums(seen, centroids[[other]], radii, self.fraction_bits)
            found.blocks[SUMS][other] += more.sums[0]
            found.blocks[COUNTS][other] += more.counts[0] << self.fraction_bits
        return found

    return mock.patch.object(FastLloydAlgorithm, "statistic", looking)


@planted("cost of half the norm", Cell("FedDPKMeans", "trusted-server", variant=COST))
def _short_norms() -> Context:
    """Noise of the cost is made for norms of D/2, not D."""
    units = FedDPAlgorithm.block_sensitivities

    def shorter(self: FedDPAlgorithm, number: int) -> dict[str, float]:
        found = units(self, number)
        return {name: unit / (4 if name == COST else 1) for name, unit in found.items()}

    return mock.patch.object(FedDPAlgorithm, "block_sensitivities", shorter)


@planted("columns not counted", Cell("SuLloyd", "trusted-server", variant=COLUMNS))
def _one_column() -> Context:
    """Sixteen columns of a record's sums are accounted for as one."""
    return mock.patch.object(SuLloydAlgorithm, "_columns", ((1.0, 1),))


@planted("moved records not counted", Cell("ConstrainedLloyd", "trusted-server"))
def _one_record() -> Context:
    """Noise of sums covers the record that comes, and not those that it moves."""

    def of_one(own: ConstrainedLloydAlgorithm, number: int) -> float:
        return own.domain.l2_bound(own.fraction_bits)

    return mock.patch.object(ConstrainedLloydAlgorithm, "_sum_sensitivity", of_one)


@planted(
    "free squares without the joint bound", Cell("SynopsisKMeans", "trusted-server")
)
def _free_squares() -> Context:
    """Each record adds the square of its offset beside the offset, and not what it lacks of 1."""
    return _slacks(lambda lengths: lengths)


@planted("clip forgotten", replace(_GLLOYD, unit="client"))
def _unclipped() -> Context:
    """Each client adds all of its records, not `clip` records' worth."""
    return mock.patch.object(
        client_clipping, "limited", lambda algorithm, statistic, number: statistic
    )


@drawing(
    "noise truncated: tails",
    _GLLOYD,
    guess="sums that only the target's presence can give",
    score=_beyond_the_clip,
)
def _clipped(each: Release, units: FloatArray, stream: Stream) -> IntArray:
    """Noise is clipped to 2.5 standard deviations."""
    most = np.floor(_CLIP * each.noise_multiplier * units).astype(np.int64)
    return np.clip(draw(each, units, stream), -most, most)


@drawing(
    "noise truncated: whole records",
    _FAST,
    guess="which neighbour leaves whole noise",
    score=_wholeness,
)
def _whole(each: Release, units: FloatArray, stream: Stream) -> IntArray:
    """Noise is cut to whole records, sums are not."""
    noise = draw(each, units, stream)
    return np.sign(noise) * (np.abs(noise) // _ONE) * _ONE


@drawing(
    "noise truncated: toward zero",
    replace(_GLLOYD, epsilon=1.0, variant="coarse"),
    guess="likelihood ratio of noise so cut",
    score=_truncated_likelihood,
    threshold=np.log(2.0) / 2,  # zero has twice the mass that it should have
)
def _toward_zero(each: Release, units: FloatArray, stream: Stream) -> IntArray:
    """Noise is cut to grid steps toward zero, on a grid of 2^-1."""
    rng = np.random.default_rng(stream.words(4))
    return np.trunc(rng.normal(size=len(units)) * each.noise_multiplier * units).astype(
        np.int64
    )


@drawing(
    "noise reused",
    _HIDDEN,
    guess="which neighbour leaves the same noise in both",
    score=_disagreement,
    at_once=False,
)
def _reused(each: Release, units: FloatArray, stream: Stream) -> IntArray:
    """One round's sums and counts are given the same draws."""
    return draw(each, units, Stream.from_key(stream._key))


_OF_THE_SEED = "which neighbour leaves the noise of that seed"


@planted(
    "server's seed known",
    _HIDDEN,
    guess=_OF_THE_SEED,
    score=_known(lambda: _public_noise),
    at_once=False,
)
def _public_noise() -> Context:
    """Noise is drawn by the server from a public seed."""

    class Seeded(Stream):
        @classmethod
        def fresh(cls) -> Stream:
            return Stream.from_key(_PUBLIC_KEY)

    return mock.patch.object(round_sums, "Stream", Seeded)


@planted(
    "clients' seed known",
    Cell("FastLloyd", "distributed-noise"),
    guess=_OF_THE_SEED,
    score=_known(lambda: _public_shares),
    at_once=False,
)
def _public_shares() -> Context:
    """Every client draws its share from a public seed."""
    return mock.patch.object(round_noise, "noise_key", return_value=_PUBLIC_KEY)
