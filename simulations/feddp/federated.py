"""Populations of the shape of Folktables and of Stack Overflow, from files or made up.

The paper's text was not at hand, so columns, clients and sizes are choices of this
module. Without a file there is a stand-in of the same shape, whose name says so: its
numbers are made up, and show only that the experiment works.

folktables     persons of the American Community Survey (PUMS, ``psam_p36.csv``), as
               `folktables` downloads it. A client is a PUMA, an area of 100,000 persons
stackoverflow  embedded questions: a NAME.npz with ``X`` (n, d), of l2 norm 1, and
               ``client`` (n,), the user of each question
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from populations import Population

from flower_kmeans import Ball, Box
from flower_kmeans.arrays import FloatArray
from flower_kmeans.errors import DataError

FOLKTABLES = "folktables"
STACKOVERFLOW = "stackoverflow"
STAND_IN = "stand-in, not its data"
CLIENT = "PUMA"
BOUNDS = {
    "AGEP": (0.0, 99.0),
    "SCHL": (0.0, 24.0),
    "WKHP": (0.0, 99.0),
    "JWMNP": (0.0, 200.0),
    "POVPIP": (0.0, 501.0),
    "PINCP": (-20_000.0, 500_000.0),
}
"""Columns of the survey and their public bounds, from its dictionary. The income's are chosen."""
N_CLUSTERS = 10
SERVER_PART = 10
"""One client of so many is the server's own, and takes no part."""
CENSUS_CLIENTS = 51
QUESTIONS_CLIENTS = 300
QUESTIONS_EACH = 20
QUESTIONS_COLUMNS = 32
TOPICS = 3
"""Topics of a made-up user."""


class Rows(NamedTuple):
    """Records (n, d), and the client of each, (n,)."""

    records: FloatArray
    clients: np.ndarray


def population_of(kind: str, path: Path | None, run: int) -> Population:
    """Return the population of a kind, from its file or made up for a run.

    Raises
    ------
    DataError
        If the file has another form.
    """
    rows = made(kind, run) if path is None else READERS[kind](path)
    names = np.unique(rows.clients)
    if len(names) < 2:
        raise DataError(f"Expected two clients of {kind} or more. Got {len(names)}.")
    n_own = max(1, len(names) // SERVER_PART)
    own = np.isin(rows.clients, names[:n_own])
    parts = [rows.records[rows.clients == each] for each in names[n_own:]]
    d = rows.records.shape[1]
    domain: Ball | Box = Ball(1.0, np.zeros(d))
    if kind == FOLKTABLES:
        domain = Box(np.zeros(d), np.ones(d))
    return Population(
        name_of(kind, path), parts, None, rows.records[own], domain, N_CLUSTERS
    )


def name_of(kind: str, path: Path | None) -> str:
    """Return the name of a population in tables."""
    if path is None:
        return f"{kind} ({STAND_IN})"
    return path.stem


def read_folktables(path: Path) -> Rows:
    """Return the survey's persons, columns scaled to [0, 1] by `BOUNDS`.

    A person without a number in one of the columns is left out, and their number is
    printed. Numbers outside the bounds are moved to them.
    """
    try:
        frame = pd.read_csv(path, usecols=[CLIENT, *BOUNDS])
    except ValueError as error:
        raise DataError(
            f"Expected a survey file with {CLIENT}, {', '.join(BOUNDS)}. Got {error}."
        ) from error
    whole = frame.dropna()
    print(f"{len(frame) - len(whole):,} of {len(frame):,} persons lack a column.")
    columns = []
    for name, (low, high) in BOUNDS.items():
        column = whole[name].to_numpy(np.float64).clip(low, high)
        columns.append((column - low) / (high - low))
    return Rows(np.column_stack(columns), whole[CLIENT].to_numpy())


def read_questions(path: Path) -> Rows:
    """Return embedded questions and their users."""
    with np.load(path, allow_pickle=False) as stored:
        if not {"X", "client"} <= set(stored.files):
            raise DataError(f"Expected arrays X and client in {path.name}. Got others.")
        records = stored["X"].astype(np.float64)
        clients = stored["client"]
    if records.ndim != 2 or clients.shape != (len(records),):
        raise DataError(
            f"Expected X (n, d) and client (n,) in {path.name}. Got the shapes "
            f"{records.shape} and {clients.shape}."
        )
    return Rows(records, clients)


READERS: dict[str, Callable[[Path], Rows]] = {
    FOLKTABLES: read_folktables,
    STACKOVERFLOW: read_questions,
}


def made(kind: str, run: int) -> Rows:
    """Return made-up rows of a kind's shape."""
    rng = np.random.default_rng([run, len(kind)])
    if kind == FOLKTABLES:
        sizes = rng.integers(200, 2_000, CENSUS_CLIENTS)
        clients = np.repeat(np.arange(CENSUS_CLIENTS), sizes)
        centers = rng.uniform(0.2, 0.8, (N_CLUSTERS, len(BOUNDS)))
        groups = rng.integers(N_CLUSTERS, size=len(clients))
        spread = rng.normal(scale=0.08, size=(len(clients), len(BOUNDS)))
        return Rows(np.clip(centers[groups] + spread, 0, 1), clients)
    topics = rng.normal(size=(N_CLUSTERS, QUESTIONS_COLUMNS))
    clients = np.repeat(np.arange(QUESTIONS_CLIENTS), QUESTIONS_EACH)
    # A user asks about few topics, so clients differ.
    own = rng.integers(N_CLUSTERS, size=(QUESTIONS_CLIENTS, TOPICS))
    groups = own[clients, rng.integers(TOPICS, size=len(clients))]
    vectors = topics[groups] + rng.normal(size=(len(clients), QUESTIONS_COLUMNS))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return Rows(vectors / lengths, clients)
