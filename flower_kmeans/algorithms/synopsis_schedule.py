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

NORMS, SLACKS = "norms", "slacks"
FIRST = 1
"""The round of the second moments."""

MOMENT_SHARE = 0.08
"""Share of mu^2 of the second moments."""
MOST_SYNOPSIS, LEAST_SYNOPSIS, FEW_COLUMNS = 0.55, 0.30, 8
"""Share of mu^2 of all synopsis rounds: the most, in at most so many columns, and the least. The
rest is for refinement."""
REFINEMENTS = 4
"""Rounds after the synopsis. Moves are weighed by their noise, so more rounds lose little."""
REFINEMENT_COUNTS = 0.4
"""Of the counts' share of a refinement round, over the one that is best for a single mean."""
GROWTH = 1.5
"""Share of a synopsis round over that of the round before."""
FEWEST_CELLS, MOST_CELLS = 2, 5
"""Cells of a synopsis round, in clusters."""
CELL_COUNT = 1.0
"""Records that a cell should have, in standard deviations of the noise of its count."""
CLEAR_MOMENTS, MOST_COLUMNS = 0.35, 128
"""Noise of the largest eigenvalue, in radii squared, below which second moments are asked for, and
the most columns: eigenvectors of more take seconds where every client computes them."""
MOST_DIRECTIONS, BLIND_DIRECTIONS = 64, 16
"""Directions of the synopsis, with second moments and without."""

RELEASES = (
    MOMENTS,
    NORMS,
    "synopsis",
    "refinement-sums",
    "refinement-counts",
)
"""Names of all releases; those of several rounds stand for all of these rounds."""

_FIELDS = {"moments", "n_directions", "cells", "n_refinements", "count_share"}
_MOST_SYNOPSES, _MOST_REFINEMENTS = 8, 32


@dataclass(frozen=True)
class Schedule:
    """The queries of a run.

    It stands in the run document, so that nothing of it is computed twice: clients read the same
    numbers, which calibration may give on no two processors.

    Attributes
    ----------
    signal : float
        ``mu N / C``, infinite without noise: what the model of the records knows about the noise.
    moments : bool
        Whether the first round asks for second moments, or for the sum of squared norms alone.
    n_directions : int
        p, of the synopsis.
    cells : tuple of int
        M, of each synopsis round.
    n_refinements : int
        Rounds after the synopsis.
    count_share : float
        Part of a synopsis round's mu^2 that goes to counts. The rest is for residuals, and their
        slacks have it, too.
    """

    signal: float
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
        counts = signal / (k * math.sqrt(root))
        clear = math.sqrt(2 * d) < CLEAR_MOMENTS * math.sqrt(MOMENT_SHARE) * signal
        moments = clear and d <= MOST_COLUMNS
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
            for part in _synopsis_shares(n_synopses, d)
        )
        return cls(signal, moments, n_directions, cells, REFINEMENTS, count_share)

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

    def share(self, round_number: int, n_features: int) -> float:
        """Return a round's share of mu^2. The shares of all rounds sum to 1."""
        if round_number == FIRST:
            return MOMENT_SHARE
        synopsis = synopsis_share(n_features)
        if self.is_synopsis(round_number):
            return _synopsis_shares(len(self.cells), n_features)[round_number - FIRST - 1]
        return (1 - MOMENT_SHARE - synopsis) / self.n_refinements

    def parts(self, round_number: int, n_features: int) -> dict[str, float]:
        """Return the part of its round's mu^2 that every block has.

        Those of sums and slacks are the same part: a record changes both together by no more than
        one of them alone (docs/guarantees.md, "SynopsisKMeans").
        """
        if round_number == FIRST:
            return {MOMENTS if self.moments else NORMS: 1.0}
        if self.is_synopsis(round_number):
            residuals = 1 - self.count_share
            return {SUMS: residuals, COUNTS: self.count_share, SLACKS: residuals}
        counts = REFINEMENT_COUNTS / (1 + math.sqrt(4 * n_features))
        return {SUMS: 1 - counts, COUNTS: counts}

    def releases(self, round_number: int, n_features: int) -> tuple[Release, ...]:
        """Return a round's releases, with the noise that they have at mu = 1."""

        def release(name: str, blocks: tuple[str, ...], share: float) -> Release:
            return Release(name, "gaussian", "l2", 1 / math.sqrt(share), blocks)

        share, parts = self.share(round_number, n_features), self.parts(round_number, n_features)
        if self.is_synopsis(round_number):
            return (release("synopsis", tuple(parts), share),)
        prefix = "" if round_number == FIRST else "refinement-"
        return tuple(release(prefix + name, (name,), share * parts[name]) for name in parts)

    def to_config(self) -> dict[str, Any]:
        """Return the schedule for a run document."""
        noisy = self.signal < math.inf
        return {
            **({"signal": real_to_text(self.signal)} if noisy else {}),
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
        if not isinstance(config, Mapping) or set(config) - {"signal"} != _FIELDS:
            raise ConfigurationError("The fields of a schedule are not as expected.")
        moments, cells = config["moments"], config["cells"]
        if not isinstance(moments, bool) or not isinstance(cells, list):
            raise ConfigurationTypeError("A field of a schedule has the wrong type.")
        if not 1 <= len(cells) <= _MOST_SYNOPSES:
            raise ConfigurationError(
                f"Expected between 1 and {_MOST_SYNOPSES} numbers of cells. Got {len(cells)}."
            )
        share = real_from_text(config["count_share"])
        if not 0 < share < 1:
            raise ConfigurationError(f"Expected count_share in (0, 1). Got {share!r} instead.")
        if moments and n_features > MOST_COLUMNS:
            raise ConfigurationError(
                f"Expected moments=false for more than {MOST_COLUMNS} columns. "
                f"Got true for {n_features}."
            )
        return cls(
            real_from_text(config["signal"]) if "signal" in config else math.inf,
            moments,
            integer("n_directions", config["n_directions"], 1, min(n_features, MOST_DIRECTIONS)),
            tuple(integer("cells", m, 1, MAX_WORDS) for m in cells),
            integer("n_refinements", config["n_refinements"], 1, _MOST_REFINEMENTS),
            share,
        )


def synopsis_share(n_features: int) -> float:
    """Return the share of mu^2 of all synopsis rounds: less in many columns."""
    wanted = MOST_SYNOPSIS * math.sqrt(math.sqrt(FEW_COLUMNS / n_features))
    return max(LEAST_SYNOPSIS, min(MOST_SYNOPSIS, wanted))


def _synopsis_shares(n_rounds: int, n_features: int) -> tuple[float, ...]:
    """Return the share of mu^2 of each synopsis round."""
    weights = [GROWTH**t for t in range(n_rounds)]
    share = synopsis_share(n_features)
    return tuple(share * weight / sum(weights) for weight in weights)
