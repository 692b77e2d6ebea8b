"""What the privacy audit looks at: strategies, trust models, units, data, and who attacks.

A cell is a strategy with a trust model and a unit of privacy. Its two neighbours differ in one
record, or in all records of one client, that changes every release by as much as the plan allows,
in every round or nearly: a record in a corner or on the sphere for sums and second moments; a
record at the radius of the round from a centroid that many others hold in place (FastLloyd), or far
from the cells that these hold (SynopsisKMeans); a client with so many equal records that it is
clipped in every release.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans import Ball, Box, PrivacyBudget, strategies
from flower_kmeans.strategies import KMeansStrategy

FloatArray = NDArray[np.float64]

DELTA = 1e-5
N_CLIENTS, COLLUDERS = 3, 1
CLIENT_RECORDS = 10
"""Planned records of a client, which is what one counts at most where clients are protected."""
MANY = 60
"""Records of the client that is attacked."""

WITH_SERVER = "server and client"
"""Variant in which the server is one of those who attack: it opens every client's answer."""

SEES = {
    "oblivious-server": "a client or reader of results: opens every sum with the group key, does "
    "not know the server's noise",
    "trusted-server": "a client or outsider: sees every noisy sum",
    "distributed-noise": f"whoever sees every sum, and {COLLUDERS} of {N_CLIENTS} clients, whose "
    "share of the noise it subtracts",
    WITH_SERVER: "the server together with a client, under `distributed-noise`: opens the attacked "
    "client's own answers, which its own share of the noise covers; the claim is √M' μ",
}


@dataclass(frozen=True)
class Cell:
    """What is attacked.

    Attributes
    ----------
    strategy, trust, unit : str
    epsilon : float
        Of the whole run, at `DELTA`.
    variant : str
        Beside the usual setting of the strategy.
    """

    strategy: str
    trust: str
    unit: str = "record"
    epsilon: float = 4.0
    variant: str = ""

    @property
    def sees(self) -> str:
        """Who attacks."""
        return SEES.get(self.variant, SEES[self.trust])


@dataclass(frozen=True)
class Setting:
    """A cell's run and its two neighbours.

    Attributes
    ----------
    strategy : KMeansStrategy
    background : list of ndarrays of shape (n_i, d)
        The clients' records without what is attacked, in the user's units.
    target : ndarray of shape (n, d)
        What the first client holds beside them, or not.
    alone : bool
        Whether the first client's own answers are seen, and not the sums.
    """

    strategy: KMeansStrategy
    background: list[FloatArray]
    target: FloatArray
    alone: bool = False

    def partitions(self, present: bool) -> list[FloatArray]:
        """Return the clients' records, with the target or without."""
        first, *others = self.background
        return [np.concatenate([first, self.target]) if present else first, *others]

    @property
    def shared(self) -> bool:
        """Whether the clients add the noise."""
        return self.strategy.trust == "distributed-noise"


def cells(epsilons: tuple[float, ...] = (4.0,)) -> list[Cell]:
    """Return every strategy under every trust model that it allows, for both units."""
    private = ("FastLloyd", "GLloyd", "SuLloyd", "FedDPKMeans", "PEMeans", "HDPEMeans")
    found = []
    for epsilon in epsilons:
        for unit in ("record", "client"):
            for strategy in (*private, "SynopsisKMeans"):
                for trust in getattr(strategies, strategy).TRUSTS:
                    found.append(Cell(strategy, trust, unit, epsilon))
            found.append(Cell("FedDPKMeans", "trusted-server", unit, epsilon, "laplace"))
            for strategy in ("GLloyd", "FedDPKMeans"):
                found.append(Cell(strategy, "distributed-noise", unit, epsilon, WITH_SERVER))
    return found


def setting_of(cell: Cell) -> Setting:
    """Return the run of a cell and its neighbours."""
    options: dict[str, Any] = {
        "n_clients": N_CLIENTS,
        "min_clients": N_CLIENTS,
        "trust": cell.trust,
    }
    if cell.trust == "distributed-noise":
        options["colluders"] = COLLUDERS
    budget = PrivacyBudget(cell.epsilon, DELTA, cell.unit)
    setting: Setting = _SETTINGS[cell.strategy](cell, budget, options)
    return replace(setting, alone=cell.variant == WITH_SERVER)


# --------------------------------------------------------------------------- strategies


def _few(d: int, n: int = 12, spread: float = 0.3) -> FloatArray:
    """Return records within the unit ball, always the same."""
    points = np.random.default_rng(17).normal(size=(n, d))
    return spread * points / np.linalg.norm(points, axis=1).max()


def _setting(
    cell: Cell, strategy: KMeansStrategy, records: FloatArray, target: FloatArray
) -> Setting:
    """Spread records over the clients; a client that is attacked has no others."""
    if cell.unit == "client":
        first = records[:0]
        others = np.array_split(records, N_CLIENTS - 1)
        return Setting(strategy, [first, *others], np.repeat(target, MANY, axis=0))
    return Setting(strategy, np.array_split(records, N_CLIENTS), target)


def _figure(cell: Cell, n_records: int) -> int:
    """Return the planning figure: small for clients, of which one is to be clipped."""
    return N_CLIENTS * CLIENT_RECORDS if cell.unit == "client" else n_records


def _box(d: int) -> Box:
    return Box([-1.0] * d, [1.0] * d)


def _ball(d: int) -> Ball:
    return Ball(1.0, [0.0] * d)


def _sphere(d: int) -> FloatArray:
    return np.eye(1, d)


def _fastlloyd(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    if cell.unit == "client":
        # A radius as wide as the domain: the client's many records count wherever centroids go.
        strategy = strategies.FastLloyd(
            2,
            _box(2),
            budget,
            _figure(cell, 0),
            alpha=4.0,
            n_rounds=3,
            initial=[[0.3, 0.3], [-0.5, -0.5]],
            **options,
        )
        return _setting(cell, strategy, _few(2), np.ones((1, 2)))
    # Round 1: the record is almost the first radius, sqrt 2, away from the first centroid. From
    # round 2 on that lies among 20,000 records which are almost the later radius, 0.8, away from
    # it; the noise moves it by less than what is missing.
    away = 0.8 * (1 - 2e-3) / np.sqrt(2)
    held = np.repeat([[1.0 - away, 1.0 - away], [-0.8, -0.8]], 20_000, axis=0)
    strategy = strategies.FastLloyd(
        2,
        _box(2),
        budget,
        len(held),
        n_rounds=2 if cell.variant == "two rounds" else 3,
        initial=[[5e-4, 5e-4], [-0.8, -0.8]],
        **options,
    )
    held = held[np.random.default_rng(3).permutation(len(held))]
    return _setting(cell, strategy, held, np.ones((1, 2)))


def _lloyd(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    # A corner has the largest norm in l1 and l2. Laplace noise: few words, or none is decisive.
    gaussian = cell.strategy == "GLloyd"
    d, n_rounds = (2, 3) if gaussian else (1, 2)
    if cell.variant == "coarse":
        d, n_rounds, options = 1, 7, {**options, "fraction_bits": 1}
    strategy = getattr(strategies, cell.strategy)(
        2, _box(d), budget, _figure(cell, 1000), n_rounds=n_rounds, **options
    )
    return _setting(cell, strategy, _few(d), np.ones((1, d)))


def _feddp(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    if cell.unit == "client":
        options = {**options, "clip": float(CLIENT_RECORDS)}
    if cell.variant == "laplace":
        options = {**options, "mechanisms": "laplace"}
    strategy = strategies.FedDPKMeans(
        2,
        _ball(3),
        budget,
        _figure(cell, 1000),
        server_data=_few(3, 6, 0.8),
        sums="absolute",
        n_rounds=2,
        **options,
    )
    return _setting(cell, strategy, _few(3), _sphere(3))


def _pe_means(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    d, kind = (2, strategies.PEMeans) if cell.strategy == "PEMeans" else (17, strategies.HDPEMeans)
    strategy = kind(
        2, _ball(d), budget, _figure(cell, 1000), n_rounds=4, max_candidates=16, **options
    )
    return _setting(cell, strategy, _few(d), _sphere(d))


def _synopsis(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    # All others are near one point, and so are the cells: the record is a radius away, or more.
    records = _few(3, 2_000, 0.02)
    if cell.unit == "client":
        options = {**options, "clip": 1.0}
    strategy = strategies.SynopsisKMeans(2, _ball(3), budget, len(records), **options)
    return _setting(cell, strategy, records, np.full((1, 3), 3**-0.5))


_SETTINGS: dict[str, Any] = {
    "FastLloyd": _fastlloyd,
    "GLloyd": _lloyd,
    "SuLloyd": _lloyd,
    "FedDPKMeans": _feddp,
    "PEMeans": _pe_means,
    "HDPEMeans": _pe_means,
    "SynopsisKMeans": _synopsis,
}
