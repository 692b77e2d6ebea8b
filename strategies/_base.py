"""What all strategies share: set-up, rounds, delivery, and the report.

Set-up happens in ``configure_train`` of round 1 and delivery in ``configure_evaluate``
of the last round, so Flower's stock ``Strategy.start`` drives a strategy to the same
result as our own. Ours also takes replies as they arrive, does not wait for silent
clients, and invites late ones.
"""

import inspect
import math
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from inspect import Signature
from logging import INFO, WARNING
from os import PathLike
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.plausibility import sentences
from flower_kmeans.algorithms.released import note_on_noise
from flower_kmeans.data.domain import Ball, Box, Domain
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    ObliviousServerError,
    RunError,
)
from flower_kmeans.parameters import (
    check_arguments,
    choice,
    instance,
    integer,
    require_type,
    whole,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.exchange import Exchange, Newcomers
from flower_kmeans.protocol.limits import reply_limit
from flower_kmeans.protocol.messages import Request
from flower_kmeans.protocol.noise import NONE, check_shares, sampler_of
from flower_kmeans.protocol.relay import Relay
from flower_kmeans.protocol.removal import levels_up_to
from flower_kmeans.protocol.resume import Journal, continued
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import (
    KEYS,
    MAX_ATTEMPTS,
    PROTOCOL,
    Horizontal,
    Run,
    RunDocument,
    Vertical,
)
from flower_kmeans.protocol.server import (
    HasEnough,
    Kind,
    Replies,
    Server,
    answers_bytes,
    require_sizes,
)
from flower_kmeans.protocol.trust import PLAIN, TRUST_MODELS, TrustModel, trust_model
from flower_kmeans.report import report as reports
from flower_kmeans.report.clustering import FinishedRun
from flower_kmeans.report.report import Report
from flower_kmeans.report.synopsis import Synopsis
from flower_kmeans.templates import html_summary

from ._declared import describe, own_parameters
from ._ending import end_in_one_sentence

# With fewer, the noise of all clients exceeds the planned one by more: its deviation
# grows by sqrt(|S| / M') (docs/guarantees.md, "Distributed noise").
_FRACTION_OF_CLIENTS = 0.8
_MIN_CLIENTS = 3
_LEAST_TIMEOUT = 300.0  # seconds
_BYTES_PER_SECOND = 1e6  # of what all clients send in a round
_CLIENTS_PER_COLLUDER = 10
_NO_STOP = (
    "should_stop is never asked: the number of rounds is part of the plan that clients accept, and "
    "they get the result after the last one."
)


@dataclass(frozen=True)
class RoundInfo:
    """Progress of a run, given to ``on_round`` after each round.

    Nothing here is from records, but for warnings, which follow from released values.
    """

    round: int
    n_rounds: int
    n_answers: int
    n_clients: int
    dropped: int
    seconds: float
    warnings: tuple[str, ...] = ()  # of released values that no records explain
    # of the rounds so far, at the run's delta; None: not private
    epsilon: float | None = None

    @property
    def metrics(self) -> MetricRecord:
        """The round, answers, clients and epsilon so far, by these names; no epsilon: not private.

        The server knows all of them without a record: the first three from who
        answered, and the last from the plan.
        """
        values: dict[str, int | float | list[int] | list[float]] = {
            "round": self.round,
            "answers": self.n_answers,
            "clients": self.n_clients,
        }
        if self.epsilon is not None:
            values["epsilon"] = self.epsilon
        return MetricRecord(values)

    @property
    def seconds_left(self) -> float:
        """Estimated seconds until the end of the last round, if others take as long as these."""
        return self.seconds / self.round * (self.n_rounds - self.round)


Privacy = Annotated[PrivacyBudget, instance(PrivacyBudget, "a PrivacyBudget")]
Keys = Annotated[Literal["relayed", "roster"], choice(*KEYS)]
RosterFile = Annotated[str | PathLike[str] | None, instance(str | PathLike, "a path")]
Nodes = Annotated[Sequence[int] | None, instance(list | tuple, "a list of node ids")]
OnRound = Annotated[
    Callable[[RoundInfo], None] | None, instance(Callable, "a callable")
]
S = TypeVar("S", bound=Server | Relay)


@lru_cache(maxsize=256)  # some 20 ms each, and strategies are started again
def _epsilon_after(plan: PrivacyPlan, n_rounds: int) -> float | None:
    """Return the epsilon of a plan's first rounds, at its delta; ``None`` if it is not private."""
    if not plan.is_private:
        return None
    rounds = plan.rounds[:n_rounds]
    # A plan of no release is none.
    return replace(plan, rounds=rounds).epsilon() if any(rounds) else 0.0


def checked_nodes(nodes: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the ids of named nodes, each of which Flower could give, and each once."""
    if nodes is None:
        return None
    found = tuple(integer("nodes", node, 0, 2**64 - 1) for node in nodes)
    if not found or len(set(found)) != len(found):
        raise ConfigurationError(
            f"Expected nodes as different node ids, one at least. Got {list(nodes)} instead."
        )
    return found


def _require_empty(name: str, config: ConfigRecord | None) -> None:
    if config:
        raise ConfigurationError(
            f"Expected an empty {name}: what clients need is in the run document. "
            f"Got {len(config)} entries instead."
        )


class ClusteringStrategy(Strategy, Generic[S]):
    """Flower's hooks, for clients with different records as for parties with different columns.

    A subclass sets the attributes below, and fills in what is abstract.
    """

    ALGORITHM: ClassVar[type[Algorithm]]
    n_clusters: int
    domain: Domain
    privacy: PrivacyBudget
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
    _cautions: tuple[str, ...] = ()  # what the summary warns of
    _AWAITS_ALL: ClassVar[bool] = False  # whether no client may be missing
    _timeout: float | None = None
    _patience: float | None = None
    _n_expected = 0  # clients that the set-up waits for
    _n_said = 0  # incidents of the set-up that are logged
    _talk: Exchange
    _server: S | None = None
    _journal: Journal | None = None
    _report: Report | None = None
    _sent: Sequence[Message] = ()
    _started = 0.0

    # ------------------------------------------------------------- what a subclass does

    @abstractmethod
    def _begin(self, roster: Roster | None) -> tuple[S, dict[str, Any]]:
        """Return the server of a new run, and what its report has beside what all reports have."""

    @abstractmethod
    def _next(self, is_last: bool) -> tuple[Kind, Mapping[int, Request], HasEnough]:
        """Return the requests of the next round, or those after the last one, and their kind."""

    @abstractmethod
    def _take(self, replies: Replies, is_last: bool) -> None:
        """Take the replies to them."""

    @abstractmethod
    def _update(self, report: Report) -> None:
        """Bring the report up to date."""

    @abstractmethod
    def _crowd(self) -> str:
        """Return a line about the clients."""

    @abstractmethod
    def _run(self, roster: Roster | None) -> Run:
        """Return a new run."""

    @abstractmethod
    def _timeout_for(self, run: Run, n_clients: int) -> float:
        """Return the default timeout of a request of a run of so many clients."""

    def _warnings_of(self, t: int) -> tuple[str, ...]:
        """Return what is wrong with the released values of a round, as far as the server sees."""
        return ()

    def _invite(self, grid: Grid) -> None:
        """Let nodes take part that connected after the start."""

    @property
    def _is_open(self) -> bool:
        """Whether any node that the SuperLink admits can take part."""
        return (
            self.keys == "relayed"
            and self.nodes is None
            and not self._talk.is_simulation
        )

    def _require_names(self) -> None:
        """Refuse to begin where a node that nobody named must not take part."""

    def _visible_arrays(self, t: int | None = None) -> ArrayRecord | None:
        """Return the result so far, where the server may see it; of round ``t`` alone if given."""
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
            One array (n_clusters, n_features), as ``initial`` of the strategies that
            take it.
        num_rounds : int, optional
            The planned number of rounds, if given: the plan is fixed before data is
            seen.
        timeout : float, optional
            Seconds in which a client must reply to a request. Default:
            `default_timeout`. A round trip ends earlier when all clients have replied,
            or at the end of the grace time after enough of them have.
        train_config, evaluate_config : ConfigRecord, optional
            Empty: everything that clients need is in the run document.
        evaluate_fn : callable, optional
            Called with the round and the centroids, once the server sees some.
        should_stop : callable, optional
            Never called, which a warning says: the number of rounds is part of the
            plan, and clients get the result after the last one.
        patience : float, optional
            Seconds for which a round trip with too few replies stays open for clients
            that are missing. A node that comes back is sent the same request again.
            Default: 600, and 0 in simulations, where no node comes back.
        resume : path, optional
            The server's own directory, mode 0700, which is made if it is missing. The
            run is kept there. If this process ends before the run does, a start with
            the same options and directory goes on after the last released round
            (docs/deploy.md, "A server that ends").

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
        require_type(
            "initial_arrays", initial_arrays, ArrayRecord | None, "an ArrayRecord"
        )
        require_type("evaluate_fn", evaluate_fn, Callable | None, "a callable")
        require_type("should_stop", should_stop, Callable | None, "a callable")
        require_type("num_rounds", num_rounds, int | None, "an integer")
        if num_rounds not in (None, self.n_rounds):
            raise ConfigurationError(
                f"Expected num_rounds={self.n_rounds} as planned, or None. "
                f"Got {num_rounds} instead."
            )
        require_type("timeout", timeout, int | float | None, "a number of seconds")
        if timeout is not None and not timeout > 0:
            raise ConfigurationError(
                f"Expected timeout > 0 seconds. Got {timeout} instead."
            )
        require_type("patience", patience, int | float | None, "a number of seconds")
        if patience is not None and not patience >= 0:
            raise ConfigurationError(
                f"Expected patience >= 0 seconds. Got {patience} instead."
            )
        _require_empty("train_config", train_config)
        _require_empty("evaluate_config", evaluate_config)
        if evaluate_fn is not None:
            self._require_sight()
        # A strategy can be started again; a new server is a new run with new keys.
        self._timeout, self._patience = timeout, patience
        self._server, result = None, Result()
        with ExitStack() as stack:
            self._journal = (
                None if resume is None else stack.enter_context(Journal(resume))
            )
            log(INFO, "Starting %s strategy:", type(self).__name__)
            if should_stop is not None:
                log(WARNING, _NO_STOP)
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
        """Run all rounds, or those that a kept run lacks, and fill in the result."""

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

    # Flower's own loop calls these four.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of one round; in round 1, set up the run first."""
        self._refuse_wrapper()
        _require_empty("train_config", config)
        if server_round == 1:
            self._set_up(grid, arrays)
        due, n_rounds = self._running.head + 1, self.n_rounds
        if server_round != due or server_round > n_rounds:
            raise ConfigurationError(
                f"Expected rounds 1 to {n_rounds} in their order, round {min(due, n_rounds)} next. "
                f"Got {server_round} instead."
            )
        return self._messages(is_last=False)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the answers up; return the centroids where the server knows them, and the metrics."""
        info = self._close_round(server_round, self._received(replies))
        return self._visible_arrays(server_round), info.metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the delivery of the result after the last round, and nothing before."""
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
        fewest, most = self.algorithm.fewest_clusters, self.n_clusters
        return (
            f"{type(self).__name__}(n_clusters={most if fewest == most else (fewest, most)}, "
            f"trust={self.trust!r}, privacy={self.plan.budget}, n_rounds={self.n_rounds}, "
            f"min_clients={self.min_clients})"
        )

    def _repr_html_(self) -> str:
        # What was planned, and no result: that of a blind server is not the server's to
        # see.
        plan, domain = self.plan, self.domain
        private = plan.is_private
        facts = {
            "clusters": self._clusters,
            "columns": f"{domain.n_features}, in a {type(domain).__name__}",
            "epsilon": f"{plan.epsilon():.4g}" if private else "NOT PRIVATE",
            "delta": f"{plan.budget.delta:.3g}" if private else None,
            "protected": f"one {self.privacy.unit}" if private else "nobody",
            "trust model": f"{self.trust} (keys: {self.keys})",
            "rounds": self.n_rounds,
            "who takes part": self._crowd(),
            "who learns what": self.trust_model.learns,
        }
        return html_summary(type(self).__name__, facts, plan.tables, plan.notes)

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        self._refuse_wrapper()
        log(
            INFO,
            "\t├──> Clustering: %s clusters, %s rounds",
            self._clusters,
            self.n_rounds,
        )
        log(INFO, "\t├──> Trust: %s (keys: %s)", self.trust, self.keys)
        log(INFO, "\t├──> %s", self._crowd())
        if self.plan.is_private:
            epsilon, delta = self.plan.epsilon(), self.plan.budget.delta
            log(
                INFO,
                "\t└──> Privacy: (%.4g, %.3g) per %s",
                epsilon,
                delta,
                self.privacy.unit,
            )
        else:
            log(INFO, "\t└──> Privacy: NOT PRIVATE")
        for caution in self._cautions:
            log(WARNING, caution)

    @property
    def _clusters(self) -> str:
        """The number of clusters of the result, or the fewest and the most."""
        fewest = self.algorithm.fewest_clusters
        most = self.n_clusters
        return str(most) if fewest == most else f"{fewest} to {most}"

    def _refuse_wrapper(self) -> None:
        """Refuse a call by another strategy, as by Flower's own privacy wrappers."""
        # They clip arrays that this strategy never sends, and would report a guarantee
        # that nobody gives. A wrapper calls the hooks of the strategy that it holds,
        # which call this. Two frames up: the hook that called this, and its caller.
        caller = sys._getframe(2).f_locals.get("self")
        if caller is not self and isinstance(caller, Strategy):
            raise ConfigurationError(
                f"Expected {type(self).__name__} to be driven directly. Got it wrapped in "
                f"{type(caller).__name__}, whose privacy does not apply to it."
            )

    # ------------------------------------------------------------------ results

    @property
    def default_timeout(self) -> float:
        """Seconds for a request where ``start`` is given no timeout.

        300, and one more for each MB that all clients send in a round.
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
        """Privacy and fault report of the run, complete after it."""
        if self._report is None:
            raise RunError("There is no report before the run has started.")
        return self._report

    @property
    def centroids(self) -> NDArray[np.float64]:
        """Centroids in the user's units, (n_clusters, n_features).

        Where the server must never see them, it is an `ObliviousServerError`.
        """
        return self._visible("centroids")["centroids"].numpy()

    def _visible(self, name: str) -> ArrayRecord:
        """Return the result so far for a caller that asks for one of its arrays."""
        self._require_sight()
        arrays = self._visible_arrays()
        if arrays is None:
            raise RunError(f"There are no {name} before a round is finished.")
        return arrays

    def _require_sight(self) -> None:
        """Refuse what only a server that sees the sums could give."""
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
        self._n_expected = (
            self.n_clients or len(roster or self.nodes or ()) or self.min_clients
        )
        self._n_said = 0
        server, details = self._begin(roster)
        self._talk = Exchange(
            grid,
            self._timeout
            or self._timeout_for(server.run, max(fewest, self._n_expected)),
            limit_of=self._limit_of,
            patience=self._patience,
            awaits_all=self._AWAITS_ALL,
        )
        self._require_names()
        self._server = server
        # Before clients are asked: a run that fails in its set-up has a report too.
        self._report = Report(
            strategy=type(self).__name__,
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
        """Return the algorithm with the start's public initial centroids, if it was given any."""
        if initial is None:
            return self._planned
        self._check_initial("initial_arrays")
        if self._given_initial is not None:
            raise ConfigurationError(
                "Expected either initial_arrays of start or the option initial. Got both."
            )
        return self._make_algorithm(initial=initial)

    def _check_initial(self, name: str) -> None:
        """Refuse initial centroids where the algorithm always makes its own."""
        if "initial" not in inspect.signature(self.ALGORITHM).parameters:
            raise ConfigurationError(
                f"Expected no {name}: {type(self).__name__} makes its own initial centroids. "
                "Got some."
            )

    def _described(
        self,
        roster: Roster | None,
        body: Horizontal | Vertical,
        noise_shares: int,
        levels: tuple[int, ...] = (),
    ) -> Run:
        """Return a new run; without a roster, one that has the size of the run to come."""
        trust, algorithm = self.trust_model, self.algorithm
        digest = bytes(32) if roster is None else roster.digest
        # a word that counts the vectors in a sum
        checksum = 0 if trust.is_vertical else 1
        document = RunDocument(
            protocol=PROTOCOL,
            # From the system, not the seed: to clients, equal documents are one and the
            # same run.
            run=token(16),
            trust=self.trust,
            keys=self.keys,
            roster=digest if self.keys == "roster" else None,
            max_colluders=self.max_colluders,
            min_clients=self.min_clients,
            max_attempts=self.max_attempts,
            words=tuple(
                algorithm.words(t) + checksum for t in range(1, algorithm.n_rounds + 1)
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
        self, kind: Kind, requests: Mapping[int, Request], has_enough: HasEnough
    ) -> Replies:
        server, newcomers = self._running, None
        if kind == "enrol" and self._talk.has_newcomers:
            newcomers = Newcomers(
                self._join, lambda: server.n_claims >= self._n_expected
            )
        return self._talk.trip(kind, requests, has_enough, newcomers)

    def _join(self, node_ids: Iterable[int]) -> Mapping[int, Request]:
        """Return enrolments for nodes that connect during the set-up."""
        server = self._running
        # The wait may be long, so its reasons are said now.
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
        # A list: Flower's grid goes through the messages twice.
        self._sent = self._talk.messages(kind, requests)
        return self._sent

    def _received(self, replies: Iterable[Message]) -> Replies:
        """Return the replies to these messages, which Flower's own loop received."""
        return self._talk.replies(replies, self._sent) if self._running else ()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Bring the report up to date, also if the run ends here."""
        try:
            yield
        except RunError as error:
            end_in_one_sentence(error)
            raise
        finally:
            server, report = self._running, self.report
            report.seconds, report.n_rounds = (
                time.monotonic() - self._started,
                server.head,
            )
            report.ledger, report.incidents = (
                server.all_keep_ledgers,
                list(server.incidents),
            )
            # Enrolments may have changed the document, but a run keeps its name.
            report.run = server.run.document.run.hex()
            self._update(report)

    def _close_round(self, t: int, replies: Replies) -> RoundInfo:
        with self._reporting():
            self._take(replies, is_last=False)
        report, n_rounds = self.report, self.n_rounds
        answers, clients = report.answers[-1], report.n_clients
        warnings = self._warnings_of(t)
        missing = clients - answers
        epsilon = _epsilon_after(self.plan, t)
        info = RoundInfo(
            t, n_rounds, answers, clients, missing, report.seconds, warnings, epsilon
        )
        left = f", about {info.seconds_left:.0f} s left" if t < n_rounds else ""
        log(
            INFO, "Round %s/%s: %s of %s clients%s", t, n_rounds, answers, clients, left
        )
        for words in warnings:
            log(WARNING, words)
        if self.on_round is not None:
            self.on_round(info)
        return info

    def _close_run(self, replies: Replies) -> None:
        with self._reporting():
            self._take(replies, is_last=True)


class KMeansStrategy(ClusteringStrategy[Server]):
    """Base of the library's strategies.

    A strategy names the class of its algorithm (``ALGORITHM``) and its default trust
    model (``TRUST``); it takes the algorithm's parameters beside those that all
    strategies share. Under which trust models it runs follows from the algorithm
    (`TrustModel.objection`). Where the server sees the sums, it computes each query and
    the result from the sum before, with its own algorithm object: what that holds
    beside the parameters of its ``to_config`` never leaves the server.

    Parameters
    ----------
    n_clusters : int
        Number of clusters.
    domain : Box or Ball
        Public bounds of the records, in the user's units. Records outside are clipped.
    privacy : PrivacyBudget
        Of the whole run. ``PrivacyBudget(epsilon=None)`` runs without privacy. With
        ``unit="client"`` each client is protected with all of its records, and
        ``n_clients`` is required: delta is chosen from it.
    n_records : int, optional
        Planned number of records of all clients together: public, and never counted
        from the data. Private strategies require it.
    n_clients : int, optional
        Public number of clients; the start waits for them.
    trust : {"clients-only", "distributed-noise", "oblivious-server", "trusted-server", "plain"}, \
optional
        Trust model: who adds the noise and who sees the sums (docs/threat-model.md).
        Default: the strategy's ``TRUST``, ``"plain"`` without privacy.
    n_rounds : int or "auto"
        Number of rounds; "auto" derives it from public numbers.
    min_clients : int, optional
        Fewest clients behind a sum. Default: 3 (or ``n_clients`` if that is less), 1
        without privacy, and 0.8 ``n_clients`` where clients share the noise.
    seed : int
        Public randomness only (the initial centroids, or what the server draws to
        compute its queries); noise and keys never depend on it.
    fraction_bits : int
        Records are rounded to multiples of ``2**-fraction_bits`` of the scaled domain.
    clip : float, optional
        With ``unit="client"`` only: how many records' worth of one client count in each
        release; what a record is worth follows from the domain. The noise grows with
        it. Default: ``n_records / n_clients``; of `SynopsisKMeans`, and of votes, the
        root of it.
    initial : array-like of shape (n_clusters, n_features) or a finished run, optional
        Public initial centroids in the user's units, instead of those that the
        algorithm makes. Of an earlier run (a `Clustering`, or a strategy after its
        start) they are its centroids, and the report adds what it cost:
        ``report.together``.
    keys : {"relayed", "roster"}
        Where the clients' keys come from: relayed by the server, which protects against
        a passive server only, or pinned in a roster that every client holds.
    roster_file : path, optional
        The roster, which holds public keys only; required to start with
        ``keys="roster"``.
    nodes : list of int, optional
        The ids of the only nodes that may take part. Without a roster their order gives
        the slots, and named clients may come late. Without either, any node that the
        SuperLink admits can join.
    max_attempts : int
        Most attempts at a round with too few answers, 1 to 3. Only one sum of a round
        is unmasked or reconstructed, whatever their number.
    max_colluders : int, optional
        How many clients may work together, also with the server, and learn the noisy
        sums alone. Under ``"oblivious-server"`` the server and one client together see
        every answer. Default: a tenth of ``n_clients`` where a committee adds the sums,
        but at least 1; otherwise 1.
    on_round : callable, optional
        Called with a `RoundInfo` after each round.

    Raises
    ------
    ConfigurationError
        If a parameter is out of range, or parameters contradict each other.
    """

    TRUST: ClassVar[str]
    ROUNDS: ClassVar[str] = "n_rounds"
    """The algorithm's parameter that ``n_rounds`` is."""
    OMITS: ClassVar[tuple[str, ...]] = ()
    """Parameters of the algorithm that only run documents hold, or that it always refuses."""
    __signature__: ClassVar[Signature]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if hasattr(cls, "ALGORITHM"):
            describe(cls, KMeansStrategy)

    def __init__(
        self,
        n_clusters: int,
        domain: Annotated[Domain, instance(Box | Ball, "a Box or a Ball")],
        privacy: Privacy,
        n_records: int | None = None,
        *,
        n_clients: Annotated[int | None, whole(1)] = None,
        trust: str | None = None,
        n_rounds: int | Literal["auto"] = "auto",
        min_clients: Annotated[int | None, whole(1)] = None,
        seed: int = 0,
        fraction_bits: int = 16,
        clip: float | None = None,
        initial: ArrayLike | FinishedRun | None = None,
        keys: Keys = "relayed",
        roster_file: RosterFile = None,
        nodes: Nodes = None,
        max_attempts: Annotated[int, whole(1, MAX_ATTEMPTS)] = 3,
        max_colluders: Annotated[int | None, whole(1)] = None,
        on_round: OnRound = None,
        **parameters: Any,
    ) -> None:
        checked = check_arguments(KMeansStrategy.__init__, locals())
        unknown = parameters.keys() - own_parameters(type(self)).keys()
        if unknown:
            raise ConfigurationTypeError(
                f"{type(self).__name__} takes no parameter {min(unknown)!r}. "
                f"It takes {', '.join(self.__signature__.parameters)}."
            )
        self.n_records, self.domain = n_records, domain
        self.privacy, self.roster_file, self.on_round = privacy, roster_file, on_round
        self.seed, self.max_attempts = seed, checked["max_attempts"]
        self.nodes = checked_nodes(nodes)
        default = self.TRUST if privacy.is_private else PLAIN.name
        self.trust_model = trust_model(default if trust is None else trust)
        self.n_clients = checked["n_clients"]
        # As given: defaults follow from a number of clients that may come later
        # (`expecting`).
        self._given_crowd = checked["min_clients"], checked["max_colluders"]
        self.min_clients, self.max_colluders = self._checked_crowd()
        self.keys = keys if self.trust_model.is_protected else "none"
        parameters[self.ROUNDS] = n_rounds
        # Only what was given: an algorithm need not have these parameters.
        self._earlier: Report | None = None
        if initial is not None:
            self._check_initial("initial")
            initial = parameters["initial"] = self._centroids_of(initial)
        if privacy.protects_clients or clip is not None:
            if (
                not {"n_clients", "clip"}
                <= inspect.signature(self.ALGORITHM).parameters.keys()
            ):
                wanted, got = "clip=None", f"clip={clip!r}"
                if privacy.protects_clients:
                    wanted, got = "a budget with unit='record'", "unit='client'"
                raise ConfigurationError(
                    f"Expected {wanted} for {type(self).__name__}, whose algorithm does not clip "
                    f"what a client adds. Got {got} instead."
                )
            parameters |= {"n_clients": self.n_clients, "clip": clip}
        elif self.ALGORITHM.bounds_clients:
            parameters["n_clients"] = self.n_clients
        self._given_initial = initial
        self._make_algorithm = partial(
            self.ALGORITHM,
            n_clusters=n_clusters,
            domain=domain,
            budget=privacy,
            n_records=n_records,
            seed=seed,
            fraction_bits=fraction_bits,
            **parameters,
        )
        self.algorithm = self._planned = self._make_algorithm()
        # the most, where the run is to choose
        self.n_clusters = self.algorithm.n_clusters
        self.plan = self.algorithm.plan()
        self._require_trust()
        # Otherwise the release would cost privacy and nobody would report it.
        if parameters.get("cost", False) and self.trust_model.is_blind:
            raise ObliviousServerError(
                f"Expected cost=False under trust={self.trust!r}: the report that states the cost "
                "is the server's, which must not see it. Got cost=True; choose another trust."
            )
        if self.trust_model.shares_noise:
            check_shares(self.algorithm, self.plan, self._noise_shares)
        self.algorithm.require_capacity(
            self.added_noise_factor, self.trust_model.sum.limit
        )
        # else the messages' sizes are known at the start
        if self.n_clients is not None:
            require_sizes(self._run(None), self.n_clients)
        self._note()

    @contextmanager
    def expecting(self, n_clients: int) -> Iterator[None]:
        """Run with this number of clients where none was given, and its default min_clients."""
        before = self.n_clients, self.min_clients, self.max_colluders
        self.n_clients = self.n_clients or n_clients
        try:
            self.min_clients, self.max_colluders = self._checked_crowd()
            yield
        finally:
            self.n_clients, self.min_clients, self.max_colluders = before

    # ------------------------------------------------------------------ parameters

    def _require_trust(self) -> None:
        """Require that the algorithm runs under the trust model, or name those that would do."""
        objections = {
            name: model.objection(self.algorithm, self.plan)
            for name, model in TRUST_MODELS.items()
        }
        objection = objections[self.trust]
        if objection is not None:
            fitting = [name for name, each in objections.items() if each is None]
            raise ConfigurationError(
                f"Expected trust of {type(self).__name__} with epsilon={self.plan.budget.epsilon} "
                f"in {fitting}. Got {self.trust!r} instead. {objection}"
            )

    def _centroids_of(self, initial: Any) -> Any:
        """Return initial centroids, and keep the report of the run that they come from, if any."""
        report = getattr(initial, "report", None)
        if not isinstance(report, Report):
            return initial
        # Initial centroids are public: with them, a blind server could solve for the
        # noise.
        if trust_model(report.trust).is_blind:
            raise ObliviousServerError(
                "Expected initial centroids that the server may see. Got the result of a run under "
                f"trust={report.trust!r}, whose server must never see it."
            )
        unit = self.privacy.unit
        if report.is_private and self.privacy.is_private and report.unit != unit:
            raise ConfigurationError(
                f"Expected initial centroids of a run with unit={unit!r}, so that the costs of "
                f"both runs can be added. Got those of one with unit={report.unit!r}."
            )
        self._earlier = report
        return initial.centroids

    @property
    def _noise_shares(self) -> int:
        """Among how many clients the planned noise is divided: those that are surely honest."""
        return self.min_clients - self.max_colluders

    def _checked_crowd(self) -> tuple[int, int]:
        """Return ``min_clients`` and ``max_colluders``, as they were given or by default."""
        min_clients, max_colluders = self._given_crowd
        least = min_clients or self._default_min_clients()
        if self.n_clients is not None and least > self.n_clients:
            raise ConfigurationError(
                f"Expected min_clients <= n_clients={self.n_clients}. Got {least} instead."
            )
        # Masks protect against clients alone, whatever their number: there it is only
        # announced.
        clients = (self.n_clients or least) if self.trust_model.has_committee else 1
        default = max(1, clients // _CLIENTS_PER_COLLUDER)
        most = max_colluders or default
        if self.trust_model.is_protected and most >= least:
            raise ConfigurationError(
                f"Expected max_colluders < min_clients={least} under trust={self.trust!r}: a sum "
                f"of so few clients protects nobody. Got {most} instead."
            )
        return least, most

    def _default_min_clients(self) -> int:
        if not self.trust_model.is_private:
            return 1
        if not self.trust_model.shares_noise:
            return min(_MIN_CLIENTS, self.n_clients or _MIN_CLIENTS)
        if self.n_clients is None:
            raise ConfigurationError(
                f"Expected n_clients or min_clients under trust={self.trust!r}, where the noise "
                "is shared among min_clients. Got neither."
            )
        # Beside a client that colludes, one at least must add noise.
        return max(2, math.ceil(_FRACTION_OF_CLIENTS * self.n_clients))

    # ------------------------------------------------------------------ results

    @property
    def clip(self) -> float | None:
        """How many records' worth of one client count in a release; ``None`` without clipping."""
        return self.algorithm.clip if self.privacy.protects_clients else None

    @property
    def clips(self) -> dict[str, float]:
        """The clip of every release by its name; empty without clipping."""
        if not self.privacy.protects_clients:
            return {}
        return {
            release.name: self.algorithm.clip_of(release)
            for release in self.plan.releases
        }

    @property
    def noise_factor(self) -> float:
        """Standard deviation of the noise over the planned one, if all clients always answer.

        Above 1 only where clients share the noise. Where the server sees the sums,
        noise beyond the plan is removed but for the shares of ``max_colluders``
        (docs/guarantees.md, "Distributed noise").
        """
        if not self._levels:
            return self.added_noise_factor
        return math.sqrt((self.n_clients or self.min_clients) / self._levels[-1])

    @property
    def added_noise_factor(self) -> float:
        """The same before noise beyond the plan is removed."""
        if not self.trust_model.shares_noise:
            return 1.0
        return math.sqrt((self.n_clients or self.min_clients) / self._noise_shares)

    @property
    def _levels(self) -> tuple[int, ...]:
        """For how many honest answers noise beyond the plan is removed."""
        if not self.trust_model.removes_noise:
            return ()
        most = (self.n_clients or self.min_clients) - self.max_colluders
        return levels_up_to(self._noise_shares, most)

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """Weights of the clusters, (n_clusters,), as in a `Clustering`; ``None`` without bounds.

        Where the server must never see them, it is an `ObliviousServerError`.
        """
        arrays = self._visible("weights")
        return arrays["weights"].numpy() if "weights" in arrays else None

    @property
    def synopsis(self) -> Synopsis | None:
        """What `SynopsisKMeans` released, for any number of clusters; ``None`` of other strategies.

        Where the server must never see it, it is an `ObliviousServerError`.
        """
        self._require_sight()
        server = self._running
        mixture = self.algorithm.mixture(server.state, server.noise_factor)
        return None if mixture is None else Synopsis(mixture, self.domain)

    # ------------------------------------------------------------------ inside

    def _note(self) -> None:
        """Write into the plan what its reader should know before a run of so many clients."""
        if self.algorithm.size_bounds is not None and self.n_records is not None:
            noise = (self.algorithm.size_noise or 0.0) * self.noise_factor
            note = note_on_noise(noise, self.n_records, self.n_clusters)
            self.plan = replace(self.plan, notes=() if note is None else (note,))
        self._cautions = self.plan.notes

    def _run(self, roster: Roster | None) -> Run:
        body = Horizontal(
            algorithm=self.algorithm.to_config(), domain=self.domain.to_config()
        )
        return self._described(roster, body, self._noise_shares, self._levels)

    def _begin(self, roster: Roster | None) -> tuple[Server, dict[str, Any]]:
        if roster is not None and (self.n_clients or 0) > len(roster):
            raise ConfigurationError(
                f"Expected n_clients of at most {len(roster)}, the clients in roster_file. "
                f"Got {self.n_clients} instead."
            )
        named = len(self.nodes or ())
        if named and max(self.n_clients or 0, self.min_clients) > named:
            raise ConfigurationError(
                f"Expected n_clients and min_clients of at most {named}, the number of nodes. "
                f"Got n_clients={self.n_clients} and min_clients={self.min_clients} instead."
            )
        self._note()
        run = self._run(roster)
        crowd = max(self.n_clients or 0, self.min_clients, len(roster or ()), named)
        require_sizes(run, crowd)
        server = Server(
            run, seed=self.seed, roster=roster, nodes=self.nodes, journal=self._journal
        )
        return server, {
            "clip": self.clip,
            "clips": self.clips,
            "levels": self._levels,
            "earlier": self._earlier,
        }

    def _timeout_for(self, run: Run, n_clients: int) -> float:
        return _LEAST_TIMEOUT + answers_bytes(run, n_clients) / _BYTES_PER_SECOND

    def _crowd(self) -> str:
        return f"Clients: at least {self.min_clients}"

    def _warnings_of(self, t: int) -> tuple[str, ...]:
        server = self._running
        found = [finding for finding in server.findings if finding.round == t]
        return sentences(server.run.algorithm, found)

    def _invite(self, grid: Grid) -> None:
        invited = set(self._talk.invited)
        late = [node for node in sorted(grid.get_node_ids()) if node not in invited]
        self._talk.invite(self._running.join(late))

    def _next(self, is_last: bool) -> tuple[Kind, Mapping[int, Request], HasEnough]:
        server = self._running
        if is_last:
            return "finish", server.finish_requests(), server.has_enough
        return "ask", server.ask(), server.has_enough

    def _take(self, replies: Replies, is_last: bool) -> None:
        server = self._running
        if is_last:
            server.take_finished(replies, self._trip)
            if not server.delivered:
                raise RunError("No client confirmed the delivery of the result.")
        else:
            server.take_answers(replies, self._trip)

    def _update(self, report: Report) -> None:
        server = self._running
        # Copies: a report that a user keeps must not change when the server goes on.
        for name, value in vars(server.proceedings).items():
            setattr(report, name, copy(value))
        report.n_clients, report.dropped = server.n_clients, list(server.dropped)
        algorithm = server.run.algorithm
        if server.n_opened:
            of_values = sentences(algorithm, server.findings)
            report.warnings = (*algorithm.warnings(server.state), *of_values)
        if server.n_opened == server.run.document.rounds:
            report.cost = algorithm.cost_estimate(server.state, server.noise_factor)
            report.sizes = algorithm.sizes(server.state, server.noise_factor)

    def _visible_arrays(self, t: int | None = None) -> ArrayRecord | None:
        server = self._running
        if (
            self.trust_model.is_blind
            or not server.n_opened
            or t not in (None, server.n_opened)
        ):
            return None
        state = server.state
        arrays = {
            name: Array(array)
            for name in ("centroids", "counts", "weights")
            if (array := getattr(self.algorithm, name)(state)) is not None
        }
        return ArrayRecord(arrays) if {"centroids", "counts"} <= arrays.keys() else None
