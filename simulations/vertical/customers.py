"""Customers that a bank and a shop share: made-up ones, and the domain of both parties' columns."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_kmeans import Box, TableDomain

SEED = 15  # public: anybody can make these customers again
WIDTH = 2  # columns of each of the two parties: income and age, visits and basket
# Means and standard deviations of income, age, visits and basket in three groups.
GROUPS = np.array([[28e3, 27, 30, 18], [55e3, 45, 12, 60], [33e3, 68, 22, 35]])
SPREAD = np.array([5e3, 5, 4, 7])


def made_up(n_records: int, party: int) -> NDArray[np.float64]:
    """Return one party's columns of all customers, (n_records, 2), in the same order for both."""
    rng = np.random.default_rng(SEED)
    table = GROUPS[rng.integers(len(GROUPS), size=n_records)]
    table += SPREAD * rng.normal(size=table.shape)
    return table[:, WIDTH * party : WIDTH * (party + 1)]


def read_parties(text: str) -> tuple[Box, list[int]]:
    """Return the Box of ``NAME=LOW:HIGH,.../NAME=LOW:HIGH,...`` and each party's width.

    Parties are parted by ``/``, the one that computes first. Names may be left out, all
    of them.
    """
    parties = [party.split(",") for party in text.split("/")]
    named = [column.rpartition("=") for party in parties for column in party]
    pairs = [pair.split(":") for _, _, pair in named]
    columns = [name.strip() for name, _, _ in named] if "=" in text else None
    lower, upper = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    return Box(lower, upper, columns=columns), [len(party) for party in parties]


def read_domains(text: str) -> tuple[TableDomain, list[int]]:
    """Return the domain of ``FILE,FILE``, a domain.toml for each party, and each party's width."""
    parties = [
        TableDomain.from_file(Path(name).expanduser()) for name in text.split(",")
    ]
    declared = [column for party in parties for column in party.declared]
    from_records = any(party.from_records for party in parties)
    return TableDomain(declared, from_records), [party.n_features for party in parties]
