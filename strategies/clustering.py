"""Base of all strategies: set-up, rounds, delivery, and the report.

Set-up happens in ``configure_train`` of round 1 and delivery in ``configure_evaluate``
of the last round, so Flower's stock ``Strategy.start`` drives a strategy to the same
result as `ClusteringStrategy.start`. The latter also takes replies as they arrive, does
not wait for silent clients, and invites late ones.
"""

import inspect
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from logging import INFO, WARNING
from os import PathLike
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.data.domain import Domain
from flower_kmeans.errors import ConfigurationError, ObliviousServerError, RunError
from flower_kmeans.parameters import integer
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.exchange import Exchange, Newcomers
from flower_kmeans.protocol.kinds import Body
from flower_kmeans.protocol.limits import reply_limit
from flower_kmeans.protocol.messages import Request
from flower_kmeans.protocol.noise import NONE, sampler_of
from flower_kmeans.protocol.resume import Journal, continued
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import PROTOCOL, Run, RunDocument
from flower_kmeans.protocol.trips import HasEnough, Replies, RequestKind, Trip
from flower_kmeans.protocol.trust import TrustModel
from flower_kmeans.report import report as reports
from flower_kmeans.report.report import Dropped, Report

from .ending import end_in_one_sentence
from .options import OnRound, RosterFile
from .progress import RoundInfo, epsilon_after
from .showing import ShownPlan
from .starting import NO_STOP, require_empty, require_start


class RunServer(Protocol):
    """The members that all strategies need of a run's server, of any kind of run."""

    @property
    def run(self) -> Run:
        """The run that the server computes: its document, algorithm, plan and trust model."""

    @property
    def head(self) -> int:
        """Number of rounds that are complete."""

    @property
    def incidents(self) -> Sequence[Dropped]:
        """Errors, silence, refusals and losses of nodes so far, in order."""

    @property
    def n_claims(self) -> int:
        """Number of clients that enrolled."""

    @property
    def all_keep_ledgers(self) -> bool:
        """Whether every client of the run stated that it keeps a ledger."""

    def set_up(self, nodes: Iterable[int], trip: Trip, /) -> None:
        """Enrol the clients, and prepare them for the first round."""

    def join(self, node_ids: Iterable[int], /) -> Mapping[int, Request]:
        """Return enrolments for nodes that connect during the set-up."""


S = TypeVar("S", bound=RunServer)
RANGES_THEOREM = 45  # of a domain with `tighten`
QUALITY_THEOREM = 48  # of a last round that judges the result


def checked_nodes(nodes: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the node ids of the option ``nodes``, checked: different 64-bit numbers, one at least.

    ``None`` stands for any nodes.
    """
    if nodes is None:
        return None
    found = tuple(integer("nodes", node, 0, 2**64 - 1) for node in nodes)
    if not found or len(set(found)) != len(found):
        raise ConfigurationError(
            f"Expected nodes as different node ids, one at least. Got {list(nodes)} instead."
        )
    return found


class ClusteringStrategy(Strategy, Generic[S]):
    """Base of strategies for clients with other records and for parties with other columns.

    It implements Flower's hooks. A subclass sets the attributes below, and implements the
    abstract methods. The class is long because Flower's interface is one class: ``start``
    and the four hooks that Flower's own loop calls share a run's state.
    """

    ALGORITHM: ClassVar[type[Algorithm]]
    THEOREMS: ClassVar[tuple[int, ...]] = ()
    """Numbers of the theorems that the guarantee rests on. A report cites them."""
    n_clusters: int
    domain: Domain
    privacy: PrivacyBudget
    n_records: int | None
    n_clients: int | None
    min_clients: int
    max_attempts: int = 1
    max_colluders: int
    trust_model: TrustModel
    keys: Literal["roster", "relayed", "none"]
    roster_file: RosterFile
    nodes: tuple[int, ...] | None
    on_round: OnRound
    algorithm: Algorithm
    plan: PrivacyPlan
    _make_algorithm: Callable[..., Algorithm]
    _planned: Algorithm  # `algorithm`, unless a start was given initial centroids
    _given_initial: Any
    _cautions: tuple[str, ...] = ()  # warnings that the summary logs
    _AWAITS_ALL: ClassVar[bool] = False  # whether every request waits for all clients
    _timeout: float | None = None
    _patience: float | None = None
    _n_expected = 0  # clients that the set-up waits for
    _n_said = 0  # incidents of the set-up that have been logged
    _talk: Exchange
    _server: S | None = None
    _journal: Journal | None = None
    _report: Report | None = None
    _sent: Sequence[Message] = ()
    _started = 0.0

    # ------------------------------------------------------------- a subclass implements

    @property
    @abstractmethod
    def noise_factor(self) -> float:
        """Ratio of the noise's standard deviation to the planned one, in the released sums."""

    @property
    @abstractmethod
    def added_noise_factor(self) -> float:
        """`noise_factor` before the server removes noise beyond the plan."""

    @abstractmethod
    def expecting(self, n_clients: int) -> AbstractContextManager[None]:
        """Plan for this number of clients inside the context, where none was given."""

    @abstractmethod
    def _begin(self, roster: Roster | None) -> tuple[S, dict[str, Any]]:
        """Return the server of a new run, and the further fields of its report."""

    @abstractmethod
    def _next(
        self, is_last: bool
    ) -> tuple[RequestKind, Mapping[int, Request], HasEnough]:
        """Return the kind of the next requests, the requests by node, and when replies are enough.

        The requests are those of the next round, or with ``is_last`` those after the last
        round.
        """

    @abstractmethod
    def _take(self, replies: Replies, is_last: bool) -> None:
        """Take the replies to the requests of `_next`."""

    @abstractmethod
    def _update(self, report: Report) -> None:
        """Copy the server's proceedings into the report."""

    @abstractmethod
    def _crowd(self) -> str:
        """Return the summary's line about the clients."""

    @abstractmethod
    def _run(self, roster: Roster | None) -> Run:
        """Return a new run; with ``keys="roster"`` and no roster, one to compute sizes from."""

    @abstractmethod
    def _timeout_for(self, run: Run, n_clients: int) -> float:
        """Return the default timeout, in seconds, of a request in a run of so many clients."""

    def _warnings_of(self, t: int) -> tuple[str, ...]:
        """Return warnings about the released values of a round that the server sees."""
        return ()

    def _invite(self, grid: Grid) -> None:
        """Invite nodes that connected after the start, where the run allows late clients."""

    @property
    def _theorems(self) -> tuple[int, ...]:
        """Numbers of the theorems that the guarantee of this run rests on."""
        found = self.THEOREMS
        if self.algorithm.finds_ranges:
            found = (*found, RANGES_THEOREM)
        if self.algorithm.judges:
            found = (*found, QUALITY_THEOREM)
        return found

    @property
    def _is_open(self) -> bool:
        """Whether any node that the SuperLink admits can take part."""
        return (
            self.keys == "relayed"
            and self.nodes is None
            and not self._talk.is_simulation
        )

    def _require_names(self) -> None:
        """Raise if the run is open to any node, where clients must be named."""

    def _visible_arrays(self, t: int | None = None) -> ArrayRecord | None:
        """Return the released result, or ``None`` if there is none or the server must not see it.

        With ``t``, the result must be that of round ``t``.
        """
        return None

    # ------------------------------------------------------------------ Flower's hooks

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        should_stop: Callable[[int, Result], bool] | None = None,
        patience: float | None = None,
        *,
        resume: str | PathLike[str] | None = None,
    ) -> Result:
        """Run the whole clustering.

        Parameters
        ----------
        grid : Grid
        initial_arrays : ArrayRecord, optional
            One array (n_clusters, n_features): the public initial centroids, for
            strategies with the option ``initial``.
        num_rounds : int, optional
            If given, it must be the planned number of rounds, because the plan is fixed
            before the run.
        timeout : float, optional
            Seconds in which a client must reply to a request. Default:
            `default_timeout`. A round trip ends earlier when all clients have replied,
            or at the end of the grace time after enough of them have.
        train_config, evaluate_config : ConfigRecord, optional
            Must be empty: the run document has everything that clients need.
        evaluate_fn : callable, optional
            Called with the number and the result of each round in which the server sees
            centroids, and with round 0 and ``initial_arrays``, if given.
        should_stop : callable, optional
            Never called, because the number of rounds is part of the plan and clients get
            the result after the last one. The log has a warning.
        patience : float, optional
            Seconds for which a round trip with too few replies waits for missing clients.
            A node that comes back gets the same request again. Default: 600, and 0 in
            simulations, where no node comes back.
        resume : path, optional
            The server's own directory, created with mode 0700 if it is missing. It keeps
            the run. If this process ends before the run does, a start with the same
            options and directory goes on after the last released round (docs/deploy.md,
            "A server that ends").

        Returns
        -------
        Result
            "centroids", "counts" and, where sizes have bounds, "weights", if the trust
            model lets the server see them; no arrays otherwise.
            ``train_metrics_clientapp`` has the `metrics` of each round that this
            process closed.

        Raises
        ------
        ConfigurationError
            If an argument contradicts the plan, an oblivious server would see
            centroids, or ``resume`` cannot be used or holds a run of other options.
        TooFewClientsError
            If fewer than ``min_clients`` clients answered a round in all attempts.
        RunError
            If the run ended otherwise.
        """
        require_start(
            self.n_rounds,
            initial_arrays=initial_arrays,
            evaluate_fn=evaluate_fn,
            should_stop=should_stop,
            num_rounds=num_rounds,
            timeout=timeout,
            patience=patience,
            train_config=train_config,
            evaluate_config=evaluate_config,
        )
        if evaluate_fn is not None:
            self._require_sight()
        # A strategy can be started again; a new server is a new run with new keys.
        self._timeout = timeout
        self._patience = patience
        self._server = None
        result = Result()
        with ExitStack() as stack:
            if resume is not None:
                self._journal = stack.enter_context(Journal(resume))
            log(INFO, "Starting %s strategy:", type(self).__name__)
            if should_stop is not None:
                log(WARNING, NO_STOP)
            try:
                self._play(grid, initial_arrays, evaluate_fn, result)
            finally:
                self._journal = None
        return result

    def _play(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        result: Result,
    ) -> None:
        """Run all rounds, or the rounds that a kept run lacks, and fill in the result."""

        def evaluate(t: int) -> None:
            arrays = initial_arrays if t == 0 else self._visible_arrays(t)
            # An algorithm may have no centroids in its first rounds.
            if evaluate_fn is not None and arrays is not None:
                metrics = evaluate_fn(t, arrays)
                if metrics is not None:
                    result.evaluate_metrics_serverapp[t] = metrics

        evaluate(0)
        self._set_up(grid, ArrayRecord() if initial_arrays is None else initial_arrays)
        first = self._running.head + 1
        for t in range(first, self.n_rounds + 1):
            if t > first:
                self._invite(grid)
            info = self._close_round(t, self._trip(*self._next(is_last=False)))
            result.train_metrics_clientapp[t] = info.metrics
            evaluate(t)
        self._close_run(self._trip(*self._next(is_last=True)))
        result.arrays = self._visible_arrays() or ArrayRecord()
        log(INFO, "Finished in %.1f s.", time.monotonic() - self._started)

    # Flower's own loop calls these four hooks.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of one round; in round 1, set up the run first."""
        self._refuse_wrapper()
        require_empty("train_config", config)
        if server_round == 1:
            self._set_up(grid, arrays)
        due = self._running.head + 1
        n_rounds = self.n_rounds
        if server_round != due or server_round > n_rounds:
            raise ConfigurationError(
                f"Expected rounds 1 to {n_rounds} in their order, round {min(due, n_rounds)} next. "
                f"Got {server_round} instead."
            )
        return self._messages(is_last=False)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Release the sum of the answers; return the result, if the server sees it, and metrics."""
        info = self._close_round(server_round, self._received(replies))
        return self._visible_arrays(server_round), info.metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that deliver the result after the last round; none before it."""
        self._refuse_wrapper()
        return self._messages(is_last=True) if server_round == self.n_rounds else []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Take the replies to the delivery and finish the report."""
        if server_round == self.n_rounds:
            self._close_run(self._received(replies))
        return None

    def __repr__(self) -> str:
        fewest = self.algorithm.fewest_clusters
        most = self.n_clusters
        n_clusters = most if fewest == most else (fewest, most)
        return (
            f"{type(self).__name__}(n_clusters={n_clusters}, "
            f"trust={self.trust!r}, privacy={self.plan.budget}, n_rounds={self.n_rounds}, "
            f"min_clients={self.min_clients})"
        )

    def _repr_html_(self) -> str:
        return self._shown.html()

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        self._refuse_wrapper()
        for line in self._shown.lines():
            log(INFO, line)
        for caution in self._cautions:
            log(WARNING, caution)

    @property
    def _shown(self) -> ShownPlan:
        """The plan as a user sees it. It holds no result: a blind server must not see one."""
        return ShownPlan(
            strategy=type(self).__name__,
            clusters=self._clusters,
            n_rounds=self.n_rounds,
            crowd=self._crowd(),
            trust=self.trust_model,
            keys=self.keys,
            unit=self.privacy.unit,
            domain=self.domain,
            plan=self.plan,
        )

    @property
    def _clusters(self) -> str:
        """The number of clusters of the result, or the fewest and the most."""
        fewest = self.algorithm.fewest_clusters
        most = self.n_clusters
        return str(most) if fewest == most else f"{fewest} to {most}"

    def _refuse_wrapper(self) -> None:
        """Raise if another strategy called, such as one of Flower's privacy wrappers."""
        # A wrapper clips arrays that this strategy never sends, and would report a
        # guarantee that nobody gives. It calls the hooks of the strategy that it holds,
        # and a hook calls this method: the wrapper is two frames up.
        caller = sys._getframe(2).f_locals.get("self")
        if caller is not self and isinstance(caller, Strategy):
            raise ConfigurationError(
                f"Expected {type(self).__name__} to be driven directly. Got it wrapped in "
                f"{type(caller).__name__}, whose privacy does not apply to it."
            )

    # ------------------------------------------------------------------ results

    @property
    def default_timeout(self) -> float:
        """Seconds for a request if ``start`` is given no timeout.

        For clients with different records it is 300, and one more for each MB that all
        clients send in a round.
        """
        n_clients = max(self.n_clients or 0, self.min_clients, len(self.nodes or ()))
        return self._timeout_for(self._run(None), n_clients)

    @property
    def trust(self) -> str:
        """Name of the trust model."""
        return self.trust_model.name

    @property
    def n_rounds(self) -> int:
        """Number of planned rounds."""
        return self.algorithm.n_rounds

    @property
    def report(self) -> Report:
        """Privacy and fault report of the run, complete after the run.

        Raises
        ------
        RunError
            If no run has started.
        """
        if self._report is None:
            raise RunError("There is no report before the run has started.")
        return self._report

    @property
    def centroids(self) -> NDArray[np.float64]:
        """Centroids in the user's units, (n_clusters, n_features) float64.

        Raises
        ------
        ObliviousServerError
            If the server must never see them.
        RunError
            If no round is finished.
        """
        return self._visible("centroids")["centroids"].numpy()

    def _visible(self, name: str) -> ArrayRecord:
        """Return the released result, or raise if the caller cannot have its array ``name``."""
        self._require_sight()
        arrays = self._visible_arrays()
        if arrays is None:
            raise RunError(f"There are no {name} before a round is finished.")
        return arrays

    def _require_sight(self) -> None:
        """Raise unless the server may see results."""
        if self.trust_model.is_blind:
            raise ObliviousServerError(
                f"Expected no request for the result at the server under trust={self.trust!r}: "
                "the server must never see it. Take it from a client's on_result."
            )

    # ------------------------------------------------------------------ the run

    @property
    def _running(self) -> S:
        if self._server is None:
            raise RunError("The run has not started: round 1 must be configured first.")
        return self._server

    def _set_up(self, grid: Grid, arrays: ArrayRecord) -> None:
        """Enrol the clients, and give them slots and keys."""
        self._started = time.monotonic()
        if len(arrays) > 1:
            raise ConfigurationError(
                "Expected initial_arrays with one array of shape (n_clusters, n_features). "
                f"Got {len(arrays)} arrays instead."
            )
        self.algorithm = self._started_with(
            *(array.numpy() for array in arrays.values())
        )
        roster = None
        if self.keys == "roster":
            if self.roster_file is None:
                raise ConfigurationError(
                    "Expected roster_file with keys='roster': the file of the clients' public "
                    "keys. Got None."
                )
            roster = Roster.from_file(self.roster_file)
            roster.require_points()
        fewest = max(self.n_clients or 0, self.min_clients)
        named = len(roster or self.nodes or ())
        self._n_expected = self.n_clients or named or self.min_clients
        self._n_said = 0
        server, details = self._begin(roster)
        n_clients = max(fewest, self._n_expected)
        self._talk = Exchange(
            grid,
            self._timeout or self._timeout_for(server.run, n_clients),
            limit_of=self._limit_of,
            kinds=(server.run.document.body.kind,),
            patience=self._patience,
            awaits_all=self._AWAITS_ALL,
        )
        self._require_names()
        self._server = server
        # The report exists before clients are asked: a run that fails in its set-up has
        # one too.
        self._report = Report(
            strategy=type(self).__name__,
            theorems=self._theorems,
            plan=self.plan,
            trust_model=self.trust_model,
            keys=self.keys,
            min_clients=self.min_clients,
            max_colluders=self.max_colluders,
            max_attempts=self.max_attempts,
            sampler=self._running.run.document.sampler,
            date=reports.now(),
            versions=reports.versions(),
            bounds=reports.bounds_of(self.domain),
            roster="" if roster is None else roster.digest.hex(),
            parties=() if roster is None else roster.names,
            is_open=self._is_open,
            **details,
        )
        self.summary()
        # Others may connect while these enrol, unless all nodes of a simulation are
        # here.
        least = self.min_clients if self._talk.has_newcomers else fewest
        nodes = self._talk.wait_for_nodes(least, self.nodes)
        with self._reporting():
            self._running.set_up(nodes, self._trip)

    def _started_with(self, initial: NDArray[Any] | None = None) -> Algorithm:
        """Return the algorithm, with the public initial centroids of ``start`` if there are any."""
        if initial is None:
            return self._planned
        self._check_initial("initial_arrays")
        if self._given_initial is not None:
            raise ConfigurationError(
                "Expected either initial_arrays of start or the option initial. Got both."
            )
        return self._make_algorithm(initial=initial)

    def _check_initial(self, name: str) -> None:
        """Raise if the algorithm always makes its own initial centroids."""
        if "initial" not in inspect.signature(self.ALGORITHM).parameters:
            raise ConfigurationError(
                f"Expected no {name}: {type(self).__name__} makes its own initial centroids. "
                "Got some."
            )

    def _described(
        self,
        roster: Roster | None,
        body: Body,
        noise_shares: int,
        levels: tuple[int, ...] = (),
    ) -> Run:
        """Return a new run.

        With ``keys="roster"`` and no roster, its document has the length of the real one,
        to compute sizes from.
        """
        trust = self.trust_model
        algorithm = self.algorithm
        digest = bytes(32) if roster is None else roster.digest
        document = RunDocument(
            protocol=PROTOCOL,
            # The name is from the system's randomness, not from the seed: for clients, equal
            # documents are the same run.
            run=token(16),
            trust=self.trust,
            keys=self.keys,
            roster=digest if self.keys == "roster" else None,
            max_colluders=self.max_colluders,
            min_clients=self.min_clients,
            max_attempts=self.max_attempts,
            words=tuple(
                algorithm.layout(t).n_words + trust.checksum_words
                for t in range(1, algorithm.n_rounds + 1)
            ),
            privacy=self.plan.to_config(),
            share_variance=f"1/{noise_shares}" if trust.shares_noise else NONE,
            levels=levels,
            sampler=sampler_of(self.plan, trust.shares_noise),
            body=body,
        )
        kept = None if self._journal is None else self._journal.document()
        if kept is not None:
            document = continued(document, kept)
        return Run(document, algorithm, self.plan, trust)

    def _limit_of(self, request: Request) -> int:
        return reply_limit(self._running.run, request)

    def _trip(
        self, kind: RequestKind, requests: Mapping[int, Request], has_enough: HasEnough
    ) -> Replies:
        server = self._running
        newcomers = None
        if kind == "enrol" and self._talk.has_newcomers:
            newcomers = Newcomers(
                self._join, lambda: server.n_claims >= self._n_expected
            )
        return self._talk.trip(kind, requests, has_enough, newcomers)

    def _join(self, node_ids: Iterable[int]) -> Mapping[int, Request]:
        """Return enrolments for nodes that connect during the set-up."""
        server = self._running
        # The wait may be long, so the reasons for it are logged now.
        for incident in server.incidents[self._n_said :]:
            log(
                WARNING,
                "Node %s does not take part: %s",
                incident.node_id,
                incident.reason,
            )
        self._n_said = len(server.incidents)
        return server.join(node_ids)

    def _messages(self, is_last: bool) -> Sequence[Message]:
        """Return the next requests as messages that Flower's own loop sends."""
        kind, requests, _ = self._next(is_last)
        # It must be a list, because Flower's grid goes through the messages twice.
        self._sent = self._talk.messages(kind, requests)
        return self._sent

    def _received(self, replies: Iterable[Message]) -> Replies:
        """Return the replies that Flower's own loop received to the messages of `_messages`."""
        return self._talk.replies(replies, self._sent) if self._running else ()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Bring the report up to date on leaving the context, also by an error."""
        try:
            yield
        except RunError as error:
            end_in_one_sentence(error)
            raise
        finally:
            server = self._running
            report = self.report
            report.seconds = time.monotonic() - self._started
            report.n_rounds = server.head
            report.ledger = server.all_keep_ledgers
            report.incidents = list(server.incidents)
            # Enrolments may have changed the document, but a run keeps its name.
            report.run = server.run.document.run.hex()
            self._update(report)

    def _close_round(self, t: int, replies: Replies) -> RoundInfo:
        with self._reporting():
            self._take(replies, is_last=False)
        n_rounds = self.n_rounds
        answers = self.report.answers[-1]
        clients = self.report.n_clients
        warnings = self._warnings_of(t)
        info = RoundInfo(
            round=t,
            n_rounds=n_rounds,
            n_answers=answers,
            n_clients=clients,
            dropped=clients - answers,
            seconds=self.report.seconds,
            warnings=warnings,
            epsilon=epsilon_after(self.plan, t),
        )
        left = f", about {info.seconds_left:.0f} s left" if t < n_rounds else ""
        shown = (t, n_rounds, answers, clients, left)
        log(INFO, "Round %s/%s: %s of %s clients%s", *shown)
        for words in warnings:
            log(WARNING, words)
        if self.on_round is not None:
            self.on_round(info)
        return info

    def _close_run(self, replies: Replies) -> None:
        with self._reporting():
            self._take(replies, is_last=True)
