"""How records lie in cells: counts, residuals and slacks over the radius of the cell.

A record's residual is divided by the radius of its nearest cell, moved into the unit ball and put
on the grid. Its slack is what its squared length lacks of 1. So whatever cells a client is asked
about, a record adds u and w with ``|u|^2 + w^2 <= 1`` (docs/guarantees.md, "SynopsisKMeans").
"""

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from scipy.sparse import csc_array

from flower_kmeans.algorithms.numerics.assignment import FEW_NUMBERS, assign, fused_kernel
from flower_kmeans.data.domain import Ball, GridRecords, IntArray
from flower_kmeans.threads import sum_in_parts

_BLOCK_NUMBERS = 2**18
_FEWEST_ROWS = 64
_ROW_WORK = 64  # of a coordinate, in products: reading it, and its residual


class CellSums(NamedTuple):
    """Integers (int64) that the records of each of m cells add up to."""

    sums: IntArray  # (m, p), residuals over the radius, none longer than 1, of exponent q
    counts: IntArray  # (m,), of exponent 0
    slacks: IntArray  # (m,), 1 - squared residual / squared radius, at least 0, of exponent q


def cell_sums(
    records: GridRecords,
    centers: IntArray,
    radii: IntArray,
    fraction_bits: int,
    weighted: bool = False,
    weights: IntArray | None = None,
) -> CellSums:
    """Return counts, residuals toward zero and slacks rounded down, by nearest cell.

    Every number of a record is the same alone and in any block. Records and centres (m, p) are on a
    grid that passes ``assignment.check_exactness``; radii (m,) are in [1, 2**25]. ``weighted``
    residuals are multiplied by the root of 1 plus their slack w, which fills the unit: ``|u|^2 (1 +
    w) + w^2 = 1`` where ``w = 1 - |u|^2`` (docs/guarantees.md, "FastLloyd's relocation").
    ``weights`` (m,) are those of power cells (`assignment.assign`): residuals are from the cell's
    centre all the same.
    """
    m, p = centers.shape
    ball, lengths, one = _unit_ball(p), radii.astype(np.float64), 2.0**fraction_bits
    points = centers.astype(np.float64)

    def part(start: int, stop: int) -> tuple[IntArray, IntArray, IntArray]:
        sums, counts = np.zeros((m, p), dtype=np.int64), np.zeros(m, dtype=np.int64)
        slacks = np.zeros(m, dtype=np.int64)
        for block in records.blocks(max(_FEWEST_ROWS, _BLOCK_NUMBERS // p), start, stop):
            labels, d2 = assign(block, centers, weights)
            block -= points[labels]  # integers, and so are the squared distances: exact
            own = lengths[labels]
            block /= np.maximum(own, np.sqrt(d2))[:, None]
            own *= own  # below 2**53 as d2 is: differences are exact, one quotient is rounded
            shares = np.floor(np.maximum(own - d2, 0.0) / own * one)
            if weighted:
                block *= np.sqrt(1 + shares / one)[:, None]  # the sum is exact
            residuals = ball.quantise(block, fraction_bits)
            counts += np.bincount(labels, minlength=m)
            if block.size < FEW_NUMBERS:
                np.add.at(sums, labels, residuals)
                np.add.at(slacks, labels, shares.astype(np.int64))
                continue
            choice = csc_array(
                (np.ones(len(block)), labels, np.arange(len(block) + 1)), shape=(m, len(block))
            )
            sums += (choice @ residuals).astype(np.int64)  # integers below 2**53: exact
            slacks += (choice @ shares).astype(np.int64)
        return sums, counts, slacks

    n_records = records.shape[0]
    work = n_records * p * (m + _ROW_WORK)
    fused = fused_kernel(work)
    if fused is not None:
        options = centers, radii, fraction_bits, weighted, weights
        return CellSums(*sum_in_parts(n_records, work, partial(fused.cell_sums, records, *options)))
    return CellSums(*sum_in_parts(n_records, work, part))


@lru_cache(maxsize=8)
def _unit_ball(n_features: int) -> Ball:
    return Ball(1.0, np.zeros(n_features))
