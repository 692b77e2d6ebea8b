"""What the command line offers to choose from, and the strategy that a choice makes."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_kmeans.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flower_kmeans.domain import Box
    from flower_kmeans.strategies import KMeansStrategy


class StrategyName(StrEnum):
    """The strategies: the name of the class, whether it adds noise, whether it takes server data.

    A strategy of one's own needs a line here, and nothing else of the command line.
    """

    class_name: str
    is_private: bool
    takes_server_data: bool

    def __new__(
        cls, name: str, class_name: str, is_private: bool = True, takes_server_data: bool = False
    ) -> "StrategyName":
        """Make a member of a line below; its value is its name on the command line."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.class_name = class_name
        member.is_private = is_private
        member.takes_server_data = takes_server_data
        return member

    LLOYD = "lloyd", "Lloyd", False
    SULLOYD = "sulloyd", "SuLloyd"
    GLLOYD = "glloyd", "GLloyd"
    FASTLLOYD = "fastlloyd", "FastLloyd"
    SYNOPSIS = "synopsis", "SynopsisKMeans"
    FEDDP = "feddp", "FedDPKMeans", True, True
    PE_MEANS = "pe-means", "PEMeans"
    HDPE_MEANS = "hdpe-means", "HDPEMeans"


class Trust(StrEnum):
    """The trust models, each with a line on who learns what."""

    learns: str

    def __new__(cls, name: str, learns: str) -> "Trust":
        """Make a member of a line below; its value is its name on the command line."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.learns = learns
        return member

    CLIENTS_ONLY = (
        "clients-only",
        "only clients see the noisy sums and the result; the server sees them with a client's help",
    )
    DISTRIBUTED_NOISE = (
        "distributed-noise",
        "the server sees the noisy sums, and no more together with --max-colluders clients",
    )
    OBLIVIOUS_SERVER = (
        "oblivious-server",
        "the server adds the noise and sees no sum; with one client it sees every exact answer",
    )
    TRUSTED_SERVER = (
        "trusted-server",
        "the server sees every client's exact answer and adds the noise",
    )
    PLAIN = "plain", "the server sees every client's exact answer, and nobody adds noise"


class Keys(StrEnum):
    """Where the clients' keys come from, where vectors leave them protected."""

    RELAYED = "relayed"
    ROSTER = "roster"


class Unit(StrEnum):
    """Whom the guarantee protects."""

    RECORD = "record"
    CLIENT = "client"


class Engine(StrEnum):
    """Where the clients run."""

    IN_PROCESS = "in-process"
    RAY = "ray"


def chosen_or_default(name: StrategyName | None, n_rounds: int | None) -> StrategyName:
    """Return the strategy that was named, or else the one to take when in doubt.

    That is the one with the smallest losses for records of those that need no points of the
    server (docs/choosing.md). Its number of rounds follows from the plan: where another number is
    given, the best of the others.
    """
    if name is not None:
        return name
    return StrategyName.SYNOPSIS if n_rounds is None else StrategyName.FASTLLOYD


def is_private(name: StrategyName, epsilon: float | None, trust: Trust | None) -> bool:
    """Return whether noise is added.

    Raises
    ------
    ConfigurationError
        If there is an epsilon although nobody adds noise.
    """
    if not name.is_private and epsilon is not None:
        others = [str(other) for other in StrategyName if other.is_private]
        raise ConfigurationError(
            f"The strategy {name} adds no noise: leave out --epsilon, or choose "
            f"{', '.join(others[:-1])} or {others[-1]}."
        )
    if trust is Trust.PLAIN and epsilon is not None:
        raise ConfigurationError(
            "Nobody adds noise under --trust plain: leave out --epsilon, or choose another trust."
        )
    return name.is_private and trust is not Trust.PLAIN


def make_strategy(
    name: StrategyName,
    box: "Box",
    epsilon: float | None,
    trust: Trust | None,
    *,
    delta: float | None,
    unit: Unit | None,
    clip: float | None,
    n_rounds: int | None,
    max_colluders: int | None,
    server_data: "NDArray[np.float64] | None",
    **parameters: Any,
) -> "KMeansStrategy":
    """Return the strategy that the options describe.

    Parameters
    ----------
    name, box, epsilon, trust, delta, unit, clip, n_rounds, max_colluders
        As given on the command line; ``None`` takes the strategy's default, and epsilon 1.
    server_data : ndarray of shape (m, d), optional
        Only for a strategy that takes it; see `read_server_points` and `placeholders`.
    **parameters
        Passed on.

    Raises
    ------
    ConfigurationError
        If options contradict each other, or the strategy refuses them.
    """
    from flower_kmeans import strategies
    from flower_kmeans.privacy.budget import PrivacyBudget

    private = is_private(name, epsilon, trust)
    if private and epsilon is None:
        epsilon = 1.0
    if not private and (unit is Unit.CLIENT or clip is not None):
        raise ConfigurationError(
            "Nobody is protected in this run: leave out --unit and --clip, or choose another "
            "--strategy or --trust."
        )
    if server_data is not None:
        parameters["server_data"] = server_data
    made: KMeansStrategy = getattr(strategies, name.class_name)(
        domain=box,
        privacy=PrivacyBudget(epsilon, delta, "record" if unit is None else unit.value),
        clip=clip,
        trust=None if trust is None else trust.value,
        n_rounds="auto" if n_rounds is None else n_rounds,
        max_colluders=max_colluders,
        **parameters,
    )
    return made


def read_server_points(
    name: StrategyName, path: Path | None, columns: tuple[str, ...]
) -> "NDArray[np.float64] | None":
    """Return the server's own points, (m, d), from its file: the columns of the records.

    Raises
    ------
    ConfigurationError, DataError
        If the strategy takes none, or needs some, or the file cannot be used.
    """
    from flower_kmeans.datasets import load_table

    _require_where_taken(name, "--server-data", "a file with points of the server's own", path)
    return None if path is None else load_table(path, features=list(columns)).records


def placeholders(
    name: StrategyName, n_points: int | None, n_features: int
) -> "NDArray[np.float64] | None":
    """Return different points, (m, d) within [-1, 1], that stand for those of a server.

    What releases cost follows from how many points there are, and not from where they lie. Clips
    derived from them do not: a plan for whole clients has to be given one.

    Raises
    ------
    ConfigurationError
        If the strategy takes none, or needs some, or their number is out of range.
    """
    _require_where_taken(name, "--server-points", "the number of points of the server", n_points)
    if n_points is None:
        return None
    if not 1 <= n_points <= 2**22:
        raise ConfigurationError(
            f"Expected --server-points in [1, {2**22}]. Got {n_points} instead."
        )
    return np.repeat(np.linspace(-1.0, 1.0, n_points)[:, None], n_features, axis=1)


def _require_where_taken(name: StrategyName, option: str, what: str, given: object) -> None:
    if name.takes_server_data and given is None:
        raise ConfigurationError(f"The strategy {name} needs {option}, {what}.")
    if not name.takes_server_data and given is not None:
        takers = " or ".join(other for other in StrategyName if other.takes_server_data)
        raise ConfigurationError(
            f"The strategy {name} takes no server data: leave out {option}, or choose {takers}."
        )
