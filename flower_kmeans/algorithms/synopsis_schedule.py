"""What a run of SynopsisKMeans asks for, decided from public figures before any data is seen.

All of it follows from the signal ``mu N / C``, C how many records' worth of one client count (1
where records are protected), and from k and d (docs/guarantees.md, "SynopsisKMeans").
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from flower_kmeans.algorithms.feddp_releases import MOMENTS
from flower_kmeans.algorithms.lloyd import COUNTS, MAX_WORDS, SUMS, integer
from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.plan import Release

NORMS, SQUARES = "norms", "squares"
FIRST = 1
"""The round of the second moments."""

MOMENT_SHARE, SYNOPSIS_SHARE, SQUARE_SHARE = 0.08, 0.55, 0.10
"""Shares of mu^2: of the second moments and of all synopsis rounds, the rest is for refinement; and
of a synopsis round's part, that of the squared residuals."""
GROWTH = 1.5
"""Share of a synopsis round over that of the round before."""
FEWEST_CELLS, MOST_CELLS = 2, 5
"""Cells of a synopsis round, in clusters."""
CELL_COUNT = 2.0
"""Records that a cell should have, in standard deviations of the noise of its count."""
CLEAR_MOMENTS = 0.35
"""Noise of the largest eigenvalue, in radii squared, below which second moments are asked for."""
MOST_DIRECTIONS, BLIND_DIRECTIONS = 64, 16
"""Directions of the synopsis, with second moments and without."""

RELEASES = (
    MOMENTS,
    NORMS,
    "synopsis-sums",
    "synopsis-counts",
    "synopsis-squares",
    "refinement-sums",
    "refinement-counts",
)
"""Names of all releases; those of several rounds stand for all of these rounds."""

_FIELDS = {"moments", "n_directions", "cells", "n_refinements", "count_share"}
_MOST_SYNOPSES, _MOST_REFINEMENTS = 8, 32


@dataclass(frozen=True)
class Schedule:
    """The questions of a run.

    Attributes
    ----------
    moments : bool
        Whether the first round asks for second moments, or for the sum of squared norms alone.
    n_directions : int
        p, of the synopsis.
    cells : tuple of int
        M, of each synopsis round.
    n_refinements : int
        Rounds after the synopsis.
    count_share : float
        Part of a synopsis round's mu^2 that goes to counts.
    """

    moments: bool
    n_directions: int
    cells: tuple[int, ...]
    n_refinements: int
    count_share: float

    @classmethod
    def of(cls, signal: float, n_clusters: int, n_features: int) -> Self:
        """Return the schedule for a signal ``mu N / C``, infinite without noise."""
        k, d = n_clusters, n_features
        root = math.sqrt(d)
        sums, counts = signal / (k * root), signal / (k * math.sqrt(root))
        moments = math.sqrt(2 * d) < CLEAR_MOMENTS * math.sqrt(MOMENT_SHARE) * signal
        n_directions = min(d, MOST_DIRECTIONS if moments else BLIND_DIRECTIONS)
        count_share = 1 / (1 + (n_directions / 4) ** 0.2)
        n_synopses = 1 + (counts > 6) + (counts > 14)
        cells = tuple(
            int(
                min(
                    max(signal * math.sqrt(part * count_share) / CELL_COUNT, FEWEST_CELLS * k),
                    MOST_CELLS * k,
                )
            )
            for part in _synopsis_shares(n_synopses)
        )
        n_refinements = 1 + (sums > 3) + (sums > 8) + (sums > 20)
        return cls(moments, n_directions, cells, n_refinements, count_share)

    @property
    def n_rounds(self) -> int:
        """Number of all rounds."""
        return FIRST + len(self.cells) + self.n_refinements

    def is_synopsis(self, round_number: int) -> bool:
        """Return whether a round (from 1) asks about cells."""
        return FIRST < round_number <= FIRST + len(self.cells)

    def n_cells(self, round_number: int) -> int:
        """Return M of a synopsis round."""
        return self.cells[round_number - FIRST - 1]

    def releases(self, round_number: int, n_features: int) -> tuple[Release, ...]:
        """Return a round's releases, with the noise that they have at mu = 1.

        The shares of all releases sum to 1. Within a round of cells, those of sums, counts and
        squares are in proportion to what a record's (u, 1, |u|^2), |u| <= 1, is scaled by.
        """

        def release(name: str, block: str, share: float) -> Release:
            return Release(name, "gaussian", "l2", 1 / math.sqrt(share), (block,))

        if round_number == FIRST:
            name = MOMENTS if self.moments else NORMS
            return (release(name, name, MOMENT_SHARE),)
        if self.is_synopsis(round_number):
            share = _synopsis_shares(len(self.cells))[round_number - FIRST - 1]
            sums = 1 - self.count_share - SQUARE_SHARE
            return (
                release("synopsis-sums", SUMS, share * sums),
                release("synopsis-counts", COUNTS, share * self.count_share),
                release("synopsis-squares", SQUARES, share * SQUARE_SHARE),
            )
        share = (1 - MOMENT_SHARE - SYNOPSIS_SHARE) / self.n_refinements
        counts = 1 / (1 + math.sqrt(4 * n_features))
        return (
            release("refinement-sums", SUMS, share * (1 - counts)),
            release("refinement-counts", COUNTS, share * counts),
        )

    def to_config(self) -> dict[str, Any]:
        """Return the schedule for a run document."""
        return {
            "moments": self.moments,
            "n_directions": self.n_directions,
            "cells": list(self.cells),
            "n_refinements": self.n_refinements,
            "count_share": real_to_text(self.count_share),
        }

    @classmethod
    def from_config(cls, config: Any, n_features: int) -> Self:
        """Return the schedule that ``to_config`` wrote, if a client may follow it.

        Whatever it is, the plan is calibrated to the budget; here the work is bounded.

        Raises
        ------
        ConfigurationError, ConfigurationTypeError, MessageError
            If a field is missing, unknown or out of range.
        """
        if not isinstance(config, Mapping) or set(config) != _FIELDS:
            raise ConfigurationError("The fields of a schedule are not as expected.")
        moments, cells = config["moments"], config["cells"]
        if not isinstance(moments, bool) or not isinstance(cells, list):
            raise ConfigurationTypeError("A field of a schedule has the wrong type.")
        if not 1 <= len(cells) <= _MOST_SYNOPSES:
            raise ConfigurationError(
                f"Expected between 1 and {_MOST_SYNOPSES} numbers of cells. Got {len(cells)}."
            )
        share = real_from_text(config["count_share"])
        if not 0 < share < 1 - SQUARE_SHARE:
            raise ConfigurationError(
                f"Expected count_share in (0, {1 - SQUARE_SHARE:g}). Got {share!r} instead."
            )
        return cls(
            moments,
            integer("n_directions", config["n_directions"], 1, min(n_features, MOST_DIRECTIONS)),
            tuple(integer("cells", m, 1, MAX_WORDS) for m in cells),
            integer("n_refinements", config["n_refinements"], 1, _MOST_REFINEMENTS),
            share,
        )


def _synopsis_shares(n_rounds: int) -> tuple[float, ...]:
    """Return the share of mu^2 of each synopsis round."""
    weights = [GROWTH**t for t in range(n_rounds)]
    return tuple(SYNOPSIS_SHARE * weight / sum(weights) for weight in weights)
