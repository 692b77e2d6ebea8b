"""VerticalKMeans: k-means between parties that hold different columns of the same records."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from logging import INFO
from os import PathLike
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms.base import COUNTS
from flower_kmeans.algorithms.vertical import MAX_HOLDERS, SOFT, VerticalAlgorithm
from flower_kmeans.data.domain import Box, Domain
from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.parameters import integer, require_type
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.exchange import Exchange
from flower_kmeans.protocol.messages import Reply, Request
from flower_kmeans.protocol.noise import check_shares, sampler_of
from flower_kmeans.protocol.relay import Relay
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import (
    KEYS,
    MAX_PARTIES,
    MAX_VALUES,
    PROTOCOL,
    Run,
    RunDocument,
    Vertical,
)
from flower_kmeans.protocol.server import Kind, Replies
from flower_kmeans.protocol.trust import VERTICAL, TrustModel
from flower_kmeans.report.report import Report
from flower_kmeans.report.vertical import VerticalReport
from flower_kmeans.strategies._base import RoundInfo
from flower_kmeans.strategies._checks import (
    initial_centroids,
    read_roster,
    refuse_wrapper,
    require_empty,
    require_round,
    require_start,
    unseen,
)
from flower_kmeans.vertical.costs import Costs, costs
from flower_kmeans.vertical.moduli import moduli

LEAST_TIMEOUT = 600.0
_OPENED_BITS = math.log2(math.sqrt(2 * math.pi * math.e))  # entropy of a Gaussian, over log2 sigma


class VerticalKMeans(Strategy):
    """k-means between parties that hold different columns of the same records.

    The rows of all parties must be the same records in the same order (`align_rows`). Party 0
    computes on the columns of the others, which these encrypt; parties 1 to ``key_holders`` hold
    the key; further parties only encrypt. The server relays sealed messages. What every party
    learns are noisy centroids and sizes, in all columns. Nobody learns the cluster of a single
    record, which would be no private release: `Clustering.predict` with ``columns`` gives the
    nearest centroid in a party's own columns.

    Parameters
    ----------
    n_clusters : int
        2 to 16.
    domain : Box
        Public bounds of all columns, those of party 0 first. Values outside are clipped.
    privacy : PrivacyBudget
        Of the whole run, for one record replaced by another.
    n_records : int
        Public number of rows, the same at every party; at most 2^20.
    parties : sequence of sequences of str, or of int
        The columns of each party, by name in the order of the domain, or how many each has.
    n_rounds : int or "auto", default: "auto"
        Number of rounds; "auto" takes 2 to 5 from public numbers.
    initial : array-like of shape (n_clusters, n_features), optional
        Public initial centroids in the user's units, instead of those of a sphere packing.
    key_holders : int, optional
        How many parties hold the key together, 1 to 3 and all but party 0 at most; by default as
        many as can.
    max_colluders : int, default: 1
        How many of party 0 and the key holders may pool their noise, at most ``key_holders``.
    keys : {"relayed", "roster"}, default: "relayed"
        Where the parties' keys come from: relayed by the server, which protects against a passive
        server only, or pinned in a roster with one line for each party, by slot.
    roster_file : path, optional
        The roster, which holds public keys only; required to start with ``keys="roster"``.
    seed : int, default: 0
        Public randomness of the initial centroids only.
    fraction_bits : int, default: 16
        Records are rounded to multiples of ``2**-fraction_bits`` of the scaled domain.
    radius : bool, default: True
        Whether only records near a centroid count in its cluster: less noise, for one more
        comparison for each cluster.
    check_ids : bool, default: False
        Whether party 0 compares row ids before it computes; every party then needs ``load_ids``.
    on_round : callable, optional
        Called with a `RoundInfo` after each round.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If a parameter is out of range, or parameters contradict each other.

    Notes
    -----
    Formal guarantee (docs/vertical.md): one Gaussian release of all sums and counts in each round,
    for one record replaced by another. It is computational, and holds against parties that follow
    the protocol and a passive server, with a roster any server.

    Examples
    --------
    >>> from flower_kmeans import Box, PrivacyBudget
    >>> from flower_kmeans.strategies import VerticalKMeans
    >>> box = Box([18, 0, 0], [100, 1e5, 52], columns=["age", "income", "visits"])
    >>> strategy = VerticalKMeans(
    ...     5, box, PrivacyBudget(1.0), 30_000, parties=[("age", "income"), ("visits",)]
    ... )
    >>> strategy.trust, strategy.widths, strategy.costs.round_trips
    ('vertical', (2, 1), 14)
    """

    ALGORITHM = VerticalAlgorithm
    TRUST: ClassVar[str] = VERTICAL.name

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int,
        *,
        parties: Sequence[Sequence[str]] | Sequence[int],
        n_rounds: int | Literal["auto"] = "auto",
        initial: ArrayLike | None = None,
        key_holders: int | None = None,
        max_colluders: int = 1,
        keys: Literal["relayed", "roster"] = "relayed",
        roster_file: str | PathLike[str] | None = None,
        seed: int = 0,
        fraction_bits: int = 16,
        radius: bool = True,
        check_ids: bool = False,
        on_round: Callable[[RoundInfo], None] | None = None,
    ) -> None:
        require_type("domain", domain, Box, "a Box, for each party clips its columns alone")
        require_type("privacy", privacy, PrivacyBudget, "a PrivacyBudget")
        require_type("check_ids", check_ids, bool, "a bool")
        require_type("roster_file", roster_file, str | PathLike | None, "a path")
        require_type("on_round", on_round, Callable | None, "a callable")
        if keys not in KEYS:
            raise ConfigurationError(f"Expected keys in {KEYS}. Got {keys!r} instead.")
        self.trust_model: TrustModel = VERTICAL
        self.n_clusters, self.domain, self.privacy = n_clusters, domain, privacy
        self.n_records, self.seed, self.check_ids = n_records, seed, check_ids
        self.keys: Literal["roster", "relayed"] = keys
        self.roster_file, self.on_round = roster_file, on_round
        self.widths = _widths(parties, domain)
        self.n_clients = self.min_clients = len(self.widths)
        most = min(self.n_clients - 1, MAX_HOLDERS)
        holders = most if key_holders is None else key_holders
        self.key_holders = integer("key_holders", holders, 1, most)
        self.max_colluders = integer("max_colluders", max_colluders, 1, holders)
        self._given_initial = initial
        kind: Any = VerticalAlgorithm  # its constructor takes more than its attributes hold
        self._make_algorithm: Callable[..., VerticalAlgorithm] = partial(
            kind,
            n_clusters,
            domain,
            privacy,
            n_records=n_records,
            n_rounds=n_rounds,
            seed=seed,
            fraction_bits=fraction_bits,
            n_parties=self.n_clients,
            key_holders=self.key_holders,
            radius=radius,
        )
        self._planned: VerticalAlgorithm = self._make_algorithm(initial=initial)
        self.algorithm: VerticalAlgorithm = self._planned
        plan = self.algorithm.plan()
        self.costs: Costs = costs(
            n_clusters,
            self.widths,
            n_records,
            self.algorithm.n_rounds,
            self.key_holders,
            radius=radius,
        )
        self.plan: PrivacyPlan = replace(plan, notes=self.costs.describe())
        self._check_noise()
        self._timeout = self.default_timeout
        self._relay: Relay | None = None
        self._report: Report | None = None
        self._grid: Grid | None = None
        self._request: Mapping[int, Request] = {}
        self._sent: list[Message] = []
        self._started = 0.0

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(n_clusters={self.n_clusters}, widths={self.widths}, "
            f"key_holders={self.key_holders}, privacy={self.plan.budget}, n_rounds={self.n_rounds})"
        )

    def _check_noise(self) -> None:
        """Require values that fit into a message, and noise shares that do not wrap."""
        if self.algorithm.words(1) > MAX_VALUES:
            raise ConfigurationError(
                f"Expected n_clusters and columns with k (d + 1) <= {MAX_VALUES} values. "
                f"Got {self.algorithm.words(1)} instead."
            )
        check_shares(self.algorithm, self.plan, self._noise_shares)
        self.algorithm.require_capacity(self.noise_factor)

    @property
    def _noise_shares(self) -> int:
        return self.key_holders + 1 - self.max_colluders

    @property
    def _share(self) -> float:
        """Standard deviation of one party's share of a count's noise, in records."""
        algorithm = self.algorithm
        unit = float(algorithm.sensitivities(1)[algorithm.places(1)[COUNTS]].max())
        multiplier = self.plan.rounds[0][0].noise_multiplier
        return multiplier * unit * 2.0**-algorithm.fraction_bits / math.sqrt(self._noise_shares)

    # ------------------------------------------------------------------ Flower's interface

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the whole clustering; arguments are those of `KMeansStrategy.start`.

        ``timeout`` is `default_timeout` unless it is given, and ``evaluate_fn`` must be ``None``:
        the server sees no centroids, and the result has no arrays.

        Raises
        ------
        ConfigurationError
            If an argument contradicts the plan.
        RunError
            If a party did not take part, or did not do its step; it is named.
        """
        require_type("initial_arrays", initial_arrays, ArrayRecord | None, "an ArrayRecord")
        seconds = self.default_timeout if timeout is None else timeout
        require_start(self.n_rounds, num_rounds, seconds, train_config, evaluate_config)
        if evaluate_fn is not None:
            raise unseen(self.trust)
        self._timeout = seconds
        log(INFO, "Starting %s strategy:", type(self).__name__)
        self._set_up(grid, initial_arrays)
        for t in range(1, self.n_rounds + 1):
            request = self._running.round_request()
            self._close_round(t, request, self._trip("step", request, lambda: False))
        request = self._running.close_request()
        self._close_run(request, self._trip("close", request, lambda: False))
        log(INFO, "Finished in %.1f s.", time.monotonic() - self._started)
        return Result()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the message to party 0 in one round; in round 1, set up the run first."""
        refuse_wrapper(self)
        require_empty("train_config", config)
        if server_round == 1:
            self._set_up(grid, arrays)
        require_round(server_round, self._running.head, self.n_rounds)
        return self._messages("step", self._running.round_request())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the key holders open the values of a round; the server sees none of them."""
        self._close_round(server_round, self._request, self._replies(replies))
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the message to party 0 after the last round, and nothing before."""
        refuse_wrapper(self)
        if server_round != self.n_rounds:
            return []
        return self._messages("close", self._running.close_request())

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Deliver party 0's sealed result to all other parties."""
        if server_round == self.n_rounds:
            self._close_run(self._request, self._replies(replies))
        return None

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        refuse_wrapper(self)
        log(INFO, "\t├──> Clustering: %s clusters, %s rounds", self.n_clusters, self.n_rounds)
        log(INFO, "\t├──> Trust: %s (keys: %s)", self.trust, self.keys)
        log(INFO, "\t├──> Parties: %s, %s with the key", self.n_clients, self.key_holders)
        epsilon, delta = self.plan.epsilon(), self.plan.budget.delta
        log(INFO, "\t└──> Privacy: (%.4g, %.3g) per %s", epsilon, delta, self.privacy.unit)

    # ------------------------------------------------------------------ results

    @property
    def trust(self) -> str:
        """Name of the trust model."""
        return self.trust_model.name

    @property
    def n_rounds(self) -> int:
        """Number of planned rounds."""
        return self.algorithm.n_rounds

    @property
    def noise_factor(self) -> float:
        """By how much the noise exceeds the planned one, ``sqrt((H + 1) / (H + 1 - t))``."""
        return math.sqrt((self.key_holders + 1) / self._noise_shares)

    added_noise_factor = noise_factor  # nothing of the noise is removed

    @property
    def default_timeout(self) -> float:
        """Seconds for a round trip: 600, or three times a round's CPU time on one core."""
        return max(LEAST_TIMEOUT, 3 * self.costs.step_seconds)

    @property
    def columns(self) -> tuple[tuple[str, ...], ...]:
        """The names of each party's columns, by slot; numbers where the domain names none."""
        d = self.domain.n_features
        names = self.domain.columns or tuple(f"column {i + 1}" for i in range(d))
        ends = np.cumsum(self.widths).tolist()
        return tuple(names[end - width : end] for width, end in zip(self.widths, ends, strict=True))

    @property
    def report(self) -> Report:
        """Privacy and fault report of the run, complete after it."""
        if self._report is None:
            raise RunError("There is no report before the run has started.")
        return self._report

    @property
    def centroids(self) -> NDArray[np.float64]:
        """None that the server may see: an `ObliviousServerError`. Parties have the result."""
        raise unseen(self.trust)

    @contextmanager
    def expecting(self, n_clients: int) -> Iterator[None]:
        """Run with a known number of clients, which must be that of the parties."""
        if n_clients != self.n_clients:
            raise ConfigurationError(
                f"Expected {self.n_clients} clients, the parties. Got {n_clients} instead."
            )
        yield

    # ------------------------------------------------------------------ inside

    @property
    def _running(self) -> Relay:
        if self._relay is None:
            raise RunError("The run has not started: round 1 must be configured first.")
        return self._relay

    def _set_up(self, grid: Grid, arrays: ArrayRecord | None) -> None:
        """Let the parties join, make the keys, and encrypt their columns."""
        self._started, self._grid = time.monotonic(), grid
        self.algorithm = self._started_with(initial_centroids(arrays or ArrayRecord()))
        roster = read_roster(self.keys, self.roster_file)
        run = self._run(roster)
        relay = self._relay = Relay(run, roster)
        words = sum(run.document.words)
        m = moduli(self.n_clusters, self.algorithm.radius)
        self._report = Report(
            strategy=type(self).__name__,
            plan=self.plan,
            trust_model=self.trust_model,
            keys=self.keys,
            min_clients=self.n_clients,
            max_colluders=self.max_colluders,
            n_slots=self.n_clients,
            sampler=run.document.sampler,
            vertical=VerticalReport(
                columns=self.columns,
                key_holders=self.key_holders,
                max_colluders=self.max_colluders,
                keys=self.keys,
                rho=self.algorithm.rho,
                soft=SOFT,
                check_ids=self.check_ids,
                n_values=words,
                bits=math.log2(m.q0 / (self._share * m.unit)) - _OPENED_BITS,
            ),
        )
        self.summary()
        nodes = self._exchange().wait_for_nodes(self.n_clients)
        with self._reporting():
            relay.set_up(nodes, self._trip)

    def _started_with(self, initial: NDArray[Any] | None) -> VerticalAlgorithm:
        """Return the algorithm with the start's public initial centroids, if it was given any."""
        if initial is None:
            return self._planned
        if self._given_initial is not None:
            raise ConfigurationError(
                "Expected either initial_arrays of start or the option initial. Got both."
            )
        found: VerticalAlgorithm = self._make_algorithm(initial=initial)
        return found

    def _run(self, roster: Roster | None) -> Run:
        algorithm = self.algorithm
        document = RunDocument(
            protocol=PROTOCOL,
            run=token(16),
            trust=self.trust,
            keys=self.keys,
            roster=None if roster is None else roster.digest,
            max_colluders=self.max_colluders,
            min_clients=self.n_clients,
            max_attempts=1,
            words=tuple(algorithm.words(t) for t in range(1, algorithm.n_rounds + 1)),
            privacy=self.plan.to_config(),
            share_variance=f"1/{self._noise_shares}",
            sampler=sampler_of(self.plan, shared=True),
            body=Vertical(
                algorithm=algorithm.to_config(),
                domain=self.domain.to_config(),
                widths=self.widths,
                check_ids=self.check_ids,
            ),
        )
        return Run(document, algorithm, self.plan, self.trust_model)

    def _exchange(self) -> Exchange:
        """Return a new exchange: a party that was silent once is waited for all the same."""
        if self._grid is None:
            raise RunError("The run has not started: round 1 must be configured first.")
        return Exchange(self._grid, self._timeout)

    def _trip(
        self, kind: Kind, requests: Mapping[int, Request], has_enough: Callable[[], bool]
    ) -> Iterator[tuple[int, Reply | str]]:
        return self._exchange().trip(kind, requests, has_enough)

    def _messages(self, kind: Kind, request: Mapping[int, Request]) -> list[Message]:
        """Return a request as messages that Flower's own loop sends."""
        self._request, self._sent = request, self._exchange().messages(kind, request)
        return self._sent

    def _replies(self, messages: Iterable[Message]) -> Replies:
        return self._exchange().replies(messages, self._sent)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Bring the report up to date, also if the run ends here."""
        try:
            yield
        finally:
            report, relay = self.report, self._running
            report.seconds = time.monotonic() - self._started
            report.n_clients, report.n_rounds = len(relay.parties), relay.head
            report.ledger, report.incidents = relay.all_keep_ledgers, list(relay.incidents)
            report.attempts, report.round_trips = relay.head, relay.round_trips
            report.answers = [self.n_clients] * relay.head
            if report.vertical is not None:
                report.vertical.sent_bytes = relay.sent_bytes
                report.vertical.delivered_bytes = relay.delivered_bytes

    def _close_round(self, t: int, request: Mapping[int, Request], replies: Replies) -> None:
        with self._reporting():
            self._running.take_round(request, replies, self._trip)
        n, seconds = self.n_clients, self.report.seconds
        log(INFO, "Round %s/%s", t, self.n_rounds)
        if self.on_round is not None:
            self.on_round(RoundInfo(t, self.n_rounds, n, n, 0, seconds))

    def _close_run(self, request: Mapping[int, Request], replies: Replies) -> None:
        with self._reporting():
            self._running.take_close(request, replies, self._trip)


def _widths(parties: Any, domain: Domain) -> tuple[int, ...]:
    """Return how many columns each party has, from their numbers or names."""
    require_type("parties", parties, list | tuple, "a list with the columns of each party")
    if not 2 <= len(parties) <= MAX_PARTIES:
        raise ConfigurationError(
            f"Expected parties as 2 to {MAX_PARTIES} parties. Got {len(parties)} instead."
        )
    if all(isinstance(each, int) and not isinstance(each, bool) for each in parties):
        widths = tuple(int(each) for each in parties)
    else:
        for each in parties:
            require_type("parties", each, list | tuple, "a list of names for each party")
        names = tuple(name for each in parties for name in each)
        if names != domain.columns:
            raise ConfigurationError(
                "Expected parties to name the columns of the domain, each once and in their order: "
                f"{domain.columns}. Got {names} instead."
            )
        widths = tuple(len(each) for each in parties)
    if min(widths) < 1:
        raise ConfigurationError(
            f"Expected parties with at least one column each. Got {widths} instead."
        )
    if sum(widths) != domain.n_features:
        raise ConfigurationError(
            f"Expected parties with {domain.n_features} columns together, those of the domain. "
            f"Got {widths} instead."
        )
    return widths
