"""What simulate and plan take alike, the strategy that it describes, and how errors are reported.

Types, ranges and defaults are those of the strategies: an option that is left out is not passed on.
Strategies are imported when a command runs, for Flower takes a second to import.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from flower_kmeans.errors import ConfigurationError, KMeansError
from flower_kmeans.files import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flower_kmeans.data.domain import Box
    from flower_kmeans.strategies import KMeansStrategy, VerticalKMeans


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn an error of ours into its sentence and exit code 1."""
    try:
        yield
    except KMeansError as error:
        Console(stderr=True).print(Text(f"Error: {printable(str(error))}"), soft_wrap=True)
        raise typer.Exit(1) from None


class StrategyName(StrEnum):
    """The strategies, by the names of their algorithms; what each takes follows from its class."""

    LLOYD = "lloyd"
    SULLOYD = "sulloyd"
    GLLOYD = "glloyd"
    FASTLLOYD = "fastlloyd"
    SYNOPSIS = "synopsis"
    CONSTRAINED_LLOYD = "constrained-lloyd"
    FEDDP = "feddp"
    PE_MEANS = "pe-means"
    HDPE_MEANS = "hdpe-means"
    VERTICAL = "vertical"

    @property
    def kind(self) -> "type[KMeansStrategy] | type[VerticalKMeans]":
        """The class."""
        from flower_kmeans.strategies import BY_NAME

        return BY_NAME[self.value]

    @property
    def is_private(self) -> bool:
        """Whether it adds noise."""
        return self.kind.TRUST != Trust.PLAIN

    @property
    def is_vertical(self) -> bool:
        """Whether it splits columns."""
        return self.kind.ALGORITHM.vertical

    def takes(self, parameter: str) -> bool:
        """Return whether it has a parameter."""
        return parameter in signature(self.kind).parameters


def _takers(parameter: str) -> str:
    return " or ".join(name for name in StrategyName if name.takes(parameter))


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
    VERTICAL = (
        "vertical",
        "parties hold columns: party 0 sees the noisy sums, every party the result, the server "
        "none; party 0 and all key holders together read every encrypted column",
    )


Keys = StrEnum("Keys", ["RELAYED", "ROSTER"])
Engine = StrEnum("Engine", {"IN_PROCESS": "in-process", "RAY": "ray"})


class Unit(StrEnum):
    """Whom the guarantee protects."""

    RECORD = "record"
    CLIENT = "client"


@dataclass(frozen=True)
class Settings:
    """The options of simulate and plan: each field is one."""

    n_records: Annotated[
        int | None,
        typer.Option(
            help="Public planning figure for the number of records, never counted in them."
        ),
    ] = None
    clients: Annotated[
        int | None,
        typer.Option(help="Number of clients; 20, or one per value of a column to split by."),
    ] = None
    clusters: Annotated[int, typer.Option(help="Number of clusters.")] = 16
    min_size: Annotated[
        int | None,
        typer.Option(
            help="For synopsis: fewest records of a cluster, an aim that cannot be promised; for "
            "constrained-lloyd divided among the clients."
        ),
    ] = None
    max_size: Annotated[
        int | None, typer.Option(help="As --min-size: most records of a cluster.")
    ] = None
    strategy: Annotated[
        StrategyName | None,
        typer.Option(
            case_sensitive=False,
            help="Algorithm. Default: synopsis; fastlloyd with --rounds.",
            show_default=False,
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        typer.Option(help="Privacy budget; 1.0 unless the strategy or the trust is not private."),
    ] = None
    delta: Annotated[
        float | None, typer.Option(help="Privacy budget; min(1e-6, 1/(100 n_records)) by default.")
    ] = None
    unit: Annotated[
        Unit | None,
        typer.Option(help="What epsilon protects: one record (the default), or a client with all."),
    ] = None
    clip: Annotated[
        float | None,
        typer.Option(
            help="With --unit client: how many records' worth of one client count in each release; "
            "by default n_records divided by the number of clients, the root of that for synopsis "
            "and the votes of pe-means; that of feddp follows from the server's points."
        ),
    ] = None
    trust: Annotated[
        Trust | None,
        typer.Option(
            help="Who learns what; by default distributed-noise, oblivious-server for fastlloyd, "
            "glloyd, sulloyd and constrained-lloyd, plain for lloyd.\n\n"
            + "\n\n".join(f"{model}: {model.learns}." for model in Trust)
        ),
    ] = None
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Number of rounds, of feddp after the three of its initialisation; by default the "
            "strategy's rule, 2 to 7, or 1 or 2. Those of synopsis, 6 to 8 and 4 more with bounds "
            "on sizes, follow from the plan: with this option alone the strategy is fastlloyd."
        ),
    ] = None
    min_clients: Annotated[
        int | None,
        typer.Option(help="Fewest clients behind a sum; by default the strategy's rule."),
    ] = None
    max_colluders: Annotated[
        int | None,
        typer.Option(
            help="How many clients may pool what they know, with or without the server; by default "
            "a tenth of them where clients share the noise, else 1."
        ),
    ] = None

    @property
    def name(self) -> StrategyName:
        """The strategy that was named, or else the one to take when in doubt."""
        if self.strategy is not None:
            return self.strategy
        # The smallest losses for records without points of the server (docs/choosing.md). Its
        # rounds follow from the plan: where their number is given, the best of the others.
        return StrategyName.SYNOPSIS if self.rounds is None else StrategyName.FASTLLOYD

    @property
    def is_private(self) -> bool:
        """Whether noise is added."""
        return self.name.is_private and self.trust is not Trust.PLAIN

    def check(self) -> None:
        """Require that the options do not contradict each other."""
        name = self.name
        if not name.is_private and self.epsilon is not None:
            others = [str(other) for other in StrategyName if other.is_private]
            raise ConfigurationError(
                f"The strategy {name} adds no noise: leave out --epsilon, or choose "
                f"{', '.join(others[:-1])} or {others[-1]}."
            )
        if self.trust is Trust.PLAIN and self.epsilon is not None:
            raise ConfigurationError(
                "Nobody adds noise under --trust plain: leave out --epsilon, or choose another "
                "trust."
            )
        if not self.is_private and (self.unit is Unit.CLIENT or self.clip is not None):
            raise ConfigurationError(
                "Nobody is protected in this run: leave out --unit and --clip, or choose another "
                "--strategy or --trust."
            )
        wrong = self._given("min_size", "max_size")
        if wrong and not name.takes("min_size"):
            raise ConfigurationError(
                f"The strategy {name} takes no bounds on the sizes of clusters: leave out "
                f"{wrong}, or choose {_takers('min_size')}."
            )
        trust = () if self.trust is Trust.VERTICAL else ("trust",)
        wrong = self._given("clients", "unit", "clip", "min_clients", *trust)
        if wrong and name.is_vertical:
            raise ConfigurationError(
                "The strategy vertical has parties with columns, not clients with records: leave "
                f"out {wrong}."
            )

    def _given(self, *names: str) -> str:
        """Return those options that were given, in words."""
        given = [name for name in names if getattr(self, name) is not None]
        return " and ".join(f"--{name.replace('_', '-')}" for name in given)

    def check_server(self, option: str, what: str, value: object) -> None:
        """Require the option for the server's points exactly where a strategy takes them."""
        takes = self.name.takes("server_data")
        if takes and value is None:
            raise ConfigurationError(f"The strategy {self.name} needs {option}, {what}.")
        if not takes and value is not None:
            raise ConfigurationError(
                f"The strategy {self.name} takes no server data: leave out {option}, or choose "
                f"{_takers('server_data')}."
            )

    def make(
        self, box: "Box", n_records: int, **parameters: Any
    ) -> "KMeansStrategy | VerticalKMeans":
        """Return the strategy; of the further parameters too, ``None`` takes its default."""
        from flower_kmeans.privacy.budget import PrivacyBudget

        epsilon = 1.0 if self.is_private and self.epsilon is None else self.epsilon
        given = {
            "n_clusters": self.clusters,
            "min_size": self.min_size,
            "max_size": self.max_size,
            "clip": self.clip,
            "trust": None if self.name.is_vertical else self.trust and self.trust.value,
            "n_rounds": self.rounds,
            "min_clients": self.min_clients,
            "max_colluders": self.max_colluders,
            **parameters,
        }
        kind: Callable[..., KMeansStrategy | VerticalKMeans] = self.name.kind
        return kind(
            domain=box,
            privacy=PrivacyBudget(epsilon, self.delta, (self.unit or Unit.RECORD).value),
            n_records=n_records,
            **{name: value for name, value in given.items() if value is not None},
        )


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of `Settings` as options, after its own, and report its errors."""

    @wraps(command)
    def called(**options: Any) -> None:
        with one_sentence():
            settings = Settings(**{each.name: options.pop(each.name) for each in fields(Settings)})
            settings.check()
            command(settings, **options)

    _, *own = signature(command).parameters.values()
    shared = [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in fields(Settings)
    ]
    called.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
    return called


def even_widths(n_features: int, n_parties: int) -> list[int]:
    """Return how many columns each party has in an even split; the first ones have more."""
    if not 2 <= n_parties <= n_features:
        raise ConfigurationError(
            f"Expected from 2 to {n_features} parties, for each has a column. "
            f"Got {n_parties} instead."
        )
    least, more = divmod(n_features, n_parties)
    return [least + 1] * more + [least] * (n_parties - more)


def placeholders(n_points: int, n_features: int) -> "NDArray[np.float64]":
    """Return different points, (m, d) within [-1, 1], that stand for those of a server.

    What releases cost follows from how many points there are, and not from where they lie. Clips
    derived from them do not: a plan for whole clients has to be given one.
    """
    if not 1 <= n_points <= 2**22:
        raise ConfigurationError(
            f"Expected --server-points in [1, {2**22}]. Got {n_points} instead."
        )
    return np.repeat(np.linspace(-1.0, 1.0, n_points)[:, None], n_features, axis=1)
