"""What all strategies share: set-up, rounds, delivery, and the report.

The hooks are Flower's. Set-up happens in ``configure_train`` of round 1 and delivery in
``configure_evaluate`` of the last round, so Flower's stock ``Strategy.start`` drives a strategy to
the same result as our own ``start``, which also takes replies as they arrive, does not wait for
silent clients, and invites late ones.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from logging import INFO
from os import PathLike
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.domain import Ball, Box, Domain
from flower_kmeans.errors import ConfigurationError, ObliviousServerError, RunError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.randomness import token
from flower_kmeans.privacy.report import Report
from flower_kmeans.protocol.exchange import Exchange
from flower_kmeans.protocol.noise import NONE, check_shares, sampler_of
from flower_kmeans.protocol.removal import levels_up_to
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import KEYS, MAX_ATTEMPTS, PROTOCOL, Horizontal, Run, RunDocument
from flower_kmeans.protocol.server import Replies, Server, require_sizes
from flower_kmeans.protocol.trust import PLAIN, TrustModel, trust_model
from flower_kmeans.strategies._checks import (
    FinishedRun,
    checked_count,
    initial_centroids,
    no_clip,
    require_clip,
    require_count,
    require_empty,
    require_trust,
    require_type,
    result_of,
)
from flower_kmeans.strategies._reporting import update

Keys = Literal["roster", "relayed", "none"]

_DEFAULT_TIMEOUT = 3600.0
_FRACTION_OF_CLIENTS = 0.8
_MIN_CLIENTS = 3
_CLIENTS_PER_COLLUDER = 10


@dataclass(frozen=True)
class RoundInfo:
    """Progress of a run, given to ``on_round`` after each round. Nothing here is from records."""

    round: int
    n_rounds: int
    n_answers: int
    n_clients: int
    dropped: int
    seconds: float


class CommonOptions(TypedDict, total=False):
    """Options that all strategies share; see `KMeansStrategy`."""

    n_clients: int | None
    trust: str | None
    n_rounds: int | Literal["auto"]
    min_clients: int | None
    seed: int
    fraction_bits: int
    clip: float | None
    initial: ArrayLike | FinishedRun | None
    keys: Literal["relayed", "roster"]
    roster_file: str | PathLike[str] | None
    max_attempts: int
    max_colluders: int | None
    on_round: Callable[[RoundInfo], None] | None


class KMeansStrategy(Strategy):
    """Base of the library's strategies.

    A strategy names its default trust model (``TRUST``), and whether it takes initial centroids.
    Under which trust models it runs follows from its algorithm (`TrustModel.objection`). Where the
    server sees the sums, it sends the queries and the result, and computes each from the sum
    before, with its own algorithm object: what that holds beside the parameters of its
    ``to_config`` never leaves the server.

    Parameters
    ----------
    algorithm : callable
        Makes the strategy's algorithm from the parameters that concern it.
    n_clusters : int
    domain : Box or Ball
        Public bounds of the records, in the user's units. Records outside are clipped.
    privacy : PrivacyBudget
        Of the whole run. ``PrivacyBudget(epsilon=None)`` runs without privacy. With
        ``unit="client"`` each client is protected with all of its records, and ``n_clients`` is
        required: delta is chosen from it.
    n_records : int, optional
        Public planning figure for the number of records of all clients together, never counted
        from the data. Private strategies require it.
    n_clients : int, optional
        Public number of clients; the start waits for them.
    trust : {"clients-only", "distributed-noise", "oblivious-server", "trusted-server", "plain"}, \
optional
        Trust model: who adds the noise and who sees the sums (docs/threat-model.md). Default: the
        strategy's ``TRUST``, ``"plain"`` without privacy.
    n_rounds : int or "auto", default: "auto"
        Number of rounds; "auto" follows the papers' rules from public figures.
    min_clients : int, optional
        Fewest clients behind a sum. Default: 3 (or ``n_clients`` if that is less), 1 without
        privacy, and 0.8 ``n_clients`` where clients share the noise.
    seed : int, default: 0
        Public randomness only (the initial centroids, or what the server draws to compute its
        queries); noise and keys never depend on it.
    fraction_bits : int, default: 16
        Records are rounded to multiples of ``2**-fraction_bits`` of the scaled domain.
    clip : float, optional
        With ``unit="client"`` only: how many records' worth of one client count in each release;
        what a record is worth follows from the domain. The noise grows with it. Default:
        ``n_records / n_clients``.
    initial : array-like of shape (n_clusters, n_features) or a finished run, optional
        Public initial centroids in the user's units, instead of those that the algorithm makes. Of
        an earlier run (a `Clustering`, or a strategy after its start) they are its centroids, and
        the report adds what it cost: ``report.together``.
    keys : {"relayed", "roster"}, default: "relayed"
        Where the clients' keys come from: relayed by the server, which protects against a passive
        server only, or pinned in a roster that every client holds.
    roster_file : path, optional
        The roster, which holds public keys only; required to start with ``keys="roster"``.
    max_attempts : int, default: 2
        How often a round with too few answers is asked for, 1 to 3. One sum of a round opens,
        whatever the number of attempts.
    max_colluders : int, optional
        How many clients may work together, also with the server, and learn the noisy sums alone.
        Under ``"oblivious-server"`` the server and one client together see every answer. Default:
        where a committee adds the sums, a tenth of ``n_clients``, at least 1; otherwise 1.
    on_round : callable, optional
        Called with a `RoundInfo` after each round.

    Raises
    ------
    ConfigurationError
        If a parameter is out of range, or parameters contradict each other.
    """

    TRUST: ClassVar[str]
    TAKES_INITIAL: ClassVar[bool] = True

    def __init__(
        self,
        algorithm: Callable[..., Algorithm],
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None,
        *,
        n_clients: int | None = None,
        trust: str | None = None,
        n_rounds: int | Literal["auto"] = "auto",
        min_clients: int | None = None,
        seed: int = 0,
        fraction_bits: int = 16,
        clip: float | None = None,
        initial: ArrayLike | FinishedRun | None = None,
        keys: Literal["relayed", "roster"] = "relayed",
        roster_file: str | PathLike[str] | None = None,
        max_attempts: int = 2,
        max_colluders: int | None = None,
        on_round: Callable[[RoundInfo], None] | None = None,
    ) -> None:
        require_type("domain", domain, Box | Ball, "a Box or a Ball")
        require_type("privacy", privacy, PrivacyBudget, "a PrivacyBudget")
        if keys not in KEYS:
            raise ConfigurationError(f"Expected keys in {KEYS}. Got {keys!r} instead.")
        require_type("roster_file", roster_file, str | PathLike | None, "a path")
        require_type("on_round", on_round, Callable | None, "a callable")
        self.n_clusters = n_clusters
        self.n_records = n_records
        self.domain = domain
        self.privacy = privacy
        default = self.TRUST if privacy.is_private else PLAIN.name
        self.trust_model: TrustModel = trust_model(default if trust is None else trust)
        self.n_clients = checked_count("n_clients", n_clients)
        self._given = min_clients, max_colluders
        self.min_clients, self.max_colluders = self._checked_crowd()
        self.keys: Keys = keys if self.trust_model.is_protected else "none"
        self.roster_file = roster_file
        require_count("max_attempts", max_attempts, MAX_ATTEMPTS)
        self.max_attempts = max_attempts
        self.seed = seed
        self.on_round = on_round
        if initial is not None:
            self._check_initial("initial")
        initial, self._earlier = result_of(initial, privacy)
        self._given_initial = initial
        # Only what was asked for: an algorithm need not have these parameters.
        further: dict[str, Any] = {} if initial is None else {"initial": initial}
        if privacy.protects_clients or clip is not None:
            require_clip(algorithm, type(self).__name__, privacy, clip)
            further |= {"n_clients": self.n_clients, "clip": clip}
        self._make_algorithm = partial(
            algorithm,
            n_clusters=n_clusters,
            domain=domain,
            budget=privacy,
            n_records=n_records,
            n_rounds=n_rounds,
            seed=seed,
            fraction_bits=fraction_bits,
            **further,
        )
        self.algorithm = self._planned = self._make_algorithm()
        if privacy.protects_clients and getattr(self.algorithm, "clip", None) is None:
            raise no_clip(type(self).__name__)
        self.plan = self.algorithm.plan()
        require_trust(self.trust_model, self.algorithm, self.plan, type(self).__name__)
        if self.trust_model.shares_noise:
            check_shares(self.algorithm, self.plan, self.min_clients - self.max_colluders)
        self.algorithm.require_capacity(self.added_noise_factor, self.trust_model.sum.limit)
        if self.n_clients is not None:
            require_sizes(self._run(self.algorithm, None), self.n_clients)
        self._timeout = _DEFAULT_TIMEOUT
        self._exchange: Exchange | None = None
        self._server: Server | None = None
        self._sent: list[Message] = []
        self._report: Report | None = None
        self._started = 0.0

    @contextmanager
    def expecting(self, n_clients: int) -> Iterator[None]:
        """Run with a known number of clients where none was given, and its default min_clients.

        Parameters
        ----------
        n_clients : int
            Ignored if the strategy was made for a number of clients.
        """
        before = self.n_clients, self.min_clients, self.max_colluders
        self.n_clients = self.n_clients or n_clients
        try:
            self.min_clients, self.max_colluders = self._checked_crowd()
            yield
        finally:
            self.n_clients, self.min_clients, self.max_colluders = before

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(n_clusters={self.n_clusters}, trust={self.trust!r}, "
            f"privacy={self.plan.budget}, n_rounds={self.n_rounds}, "
            f"min_clients={self.min_clients})"
        )

    # ------------------------------------------------------------------ parameters

    def _checked_crowd(self) -> tuple[int, int]:
        """Return ``min_clients`` and ``max_colluders``, as they were given or by default."""
        min_clients, max_colluders = self._given
        least = checked_count("min_clients", min_clients) or self._default_min_clients()
        if self.n_clients is not None and least > self.n_clients:
            raise ConfigurationError(
                f"Expected min_clients <= n_clients={self.n_clients}. Got {least} instead."
            )
        # Masks protect against clients alone, whatever their number: there it is only announced.
        clients = (self.n_clients or least) if self.trust_model.has_committee else 1
        default = max(1, clients // _CLIENTS_PER_COLLUDER)
        most = checked_count("max_colluders", max_colluders) or default
        if self.trust_model.is_protected and most >= least:
            raise ConfigurationError(
                f"Expected max_colluders < min_clients={least} under trust={self.trust!r}: a sum "
                f"of so few clients protects nobody. Got {most} instead."
            )
        return least, most

    def _default_min_clients(self) -> int:
        if not self.trust_model.is_private:
            return 1
        if self.trust_model.shares_noise:
            if self.n_clients is None:
                raise ConfigurationError(
                    f"Expected n_clients or min_clients under trust={self.trust!r}, where the "
                    "noise is shared among min_clients. Got neither."
                )
            return max(2, math.ceil(_FRACTION_OF_CLIENTS * self.n_clients))
        return _MIN_CLIENTS if self.n_clients is None else min(_MIN_CLIENTS, self.n_clients)

    def _run(self, algorithm: Algorithm, roster: Roster | None) -> Run:
        """Return a new run; without a roster, one that has the size of the run to come."""
        rounds = range(1, algorithm.n_rounds + 1)
        shared = self.trust_model.shares_noise
        digest = bytes(32) if roster is None else roster.digest
        document = RunDocument(
            protocol=PROTOCOL,
            run=token(16),
            trust=self.trust,
            keys=self.keys,
            roster=digest if self.keys == "roster" else None,
            max_colluders=self.max_colluders,
            min_clients=self.min_clients,
            max_attempts=self.max_attempts,
            words=tuple(algorithm.words(t) + 1 for t in rounds),
            privacy=self.plan.to_config(),
            share_variance=f"1/{self.min_clients - self.max_colluders}" if shared else NONE,
            levels=self._levels,
            sampler=sampler_of(self.plan, shared),
            body=Horizontal(algorithm=algorithm.to_config(), domain=self.domain.to_config()),
        )
        return Run(document, algorithm, self.plan, self.trust_model)

    # ------------------------------------------------------------------ Flower's hooks

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = _DEFAULT_TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the whole clustering.

        Parameters
        ----------
        grid : Grid
            From the ServerApp.
        initial_arrays : ArrayRecord, optional
            Public initial centroids in the user's units, one array of shape
            (n_clusters, n_features); without them the algorithm makes its own. An error where it
            always does.
        num_rounds : int, optional
            Must be the planned number of rounds if given: the plan is fixed before data is seen.
        timeout : float, default: 3600
            Seconds after which a round trip ends in any case. It ends earlier when all clients
            have replied, or at the end of the grace time after enough of them have.
        train_config, evaluate_config : ConfigRecord, optional
            Must be empty: everything that clients need is in the run document.
        evaluate_fn : callable, optional
            Called with the round and the centroids, where the server may see them and there are
            some.

        Returns
        -------
        Result
            With ``arrays["centroids"]`` and ``arrays["counts"]`` where the trust model lets the
            server see them, and no arrays otherwise.

        Raises
        ------
        ConfigurationError
            If an argument contradicts the plan, or asks an oblivious server for centroids.
        TooFewClientsError
            If fewer than ``min_clients`` clients answered a round in all attempts.
        RunError
            If the run ended otherwise.
        """
        require_type("initial_arrays", initial_arrays, ArrayRecord | None, "an ArrayRecord")
        self._check_start(num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
        self._timeout, self._exchange, self._server = timeout, None, None
        log(INFO, "Starting %s strategy:", type(self).__name__)
        result = Result()
        evaluated = 0
        if evaluate_fn is not None and initial_arrays is not None:
            _keep(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, initial_arrays))
        self._set_up(grid, ArrayRecord() if initial_arrays is None else initial_arrays)
        exchange, server = self._talk, self._running
        for t in range(1, self.n_rounds + 1):
            if t > 1:
                invited = set(exchange.invited)
                late = [node for node in sorted(grid.get_node_ids()) if node not in invited]
                exchange.invite(server.join(late))
            self._close_round(t, exchange.trip("ask", server.ask(), server.has_enough))
            if evaluate_fn is not None and server.n_opened != evaluated:
                evaluated, visible = server.n_opened, self._visible_arrays()
                if visible is not None:  # an algorithm may have no centroids in its first rounds
                    metrics = evaluate_fn(evaluated, visible)
                    _keep(result.evaluate_metrics_serverapp, evaluated, metrics)
        requests = server.finish_requests()
        self._close_run(exchange.trip("finish", requests, lambda: bool(server.delivered)))
        result.arrays = self._visible_arrays() or ArrayRecord()
        log(INFO, "Finished in %.1f s.", time.monotonic() - self._started)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of one round; in round 1, set up the cohort first."""
        self._refuse_wrapper()
        require_empty("train_config", config)
        if server_round == 1:
            self._set_up(grid, arrays)
        due = self._running.head + 1
        if server_round != due or server_round > self.n_rounds:
            raise ConfigurationError(
                f"Expected rounds 1 to {self.n_rounds} in their order, round "
                f"{min(due, self.n_rounds)} next. Got {server_round} instead."
            )
        self._sent = self._talk.messages("ask", self._running.ask())
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the answers up, with further round trips as the trust model needs them.

        Returns
        -------
        tuple
            The centroids after this round where the server knows them, else ``None``; and always
            ``None`` for metrics.
        """
        server = self._running
        self._close_round(server_round, self._talk.replies(replies, self._sent))
        return (self._visible_arrays() if server.n_opened == server_round else None), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the delivery of the result after the last round, and nothing before."""
        self._refuse_wrapper()
        if server_round != self.n_rounds:
            return []
        self._sent = self._talk.messages("finish", self._running.finish_requests())
        return self._sent

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Take the acknowledgements of the delivery and finish the report."""
        if server_round == self.n_rounds:
            self._close_run(self._talk.replies(replies, self._sent))
        return None

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        self._refuse_wrapper()
        log(INFO, "\t├──> Clustering: %s clusters, %s rounds", self.n_clusters, self.n_rounds)
        log(INFO, "\t├──> Trust: %s (keys: %s)", self.trust, self.keys)
        log(INFO, "\t├──> Clients: at least %s", self.min_clients)
        if self.plan.is_private:
            epsilon, delta = self.plan.epsilon(), self.plan.budget.delta
            log(INFO, "\t└──> Privacy: (%.4g, %.3g) per %s", epsilon, delta, self.privacy.unit)
        else:
            log(INFO, "\t└──> Privacy: NOT PRIVATE")

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
    def clip(self) -> float | None:
        """How many records' worth of one client count in a release; ``None`` without clipping."""
        return self.algorithm.clip if self.privacy.protects_clients else None

    @property
    def clips(self) -> dict[str, float]:
        """The clip of every release by its name; empty without clipping."""
        if not self.privacy.protects_clients:
            return {}
        return {release.name: self.algorithm.clip_of(release) for release in self.plan.releases}

    @property
    def noise_factor(self) -> float:
        """By how much the noise will exceed the planned one if all clients answer every round.

        Above 1 only where clients share the noise, and ``n_clients`` (or, if it was not given,
        ``min_clients``) add a share. Where the server sees the sums, noise beyond the plan is
        removed but for the shares of ``max_colluders`` (docs/guarantees.md, "Distributed noise").
        """
        if not self._levels:
            return self.added_noise_factor
        return math.sqrt((self.n_clients or self.min_clients) / self._levels[-1])

    @property
    def added_noise_factor(self) -> float:
        """The same of the noise that clients add, before what is beyond the plan is removed."""
        if not self.trust_model.shares_noise:
            return 1.0
        clients = self.n_clients or self.min_clients
        return math.sqrt(clients / (self.min_clients - self.max_colluders))

    @property
    def _levels(self) -> tuple[int, ...]:
        """For how many honest answers noise beyond the plan is removed."""
        if not self.trust_model.removes_noise:
            return ()
        clients = self.n_clients or self.min_clients
        most = clients - self.max_colluders
        return levels_up_to(self.min_clients - self.max_colluders, most)

    @property
    def report(self) -> Report:
        """Privacy and fault report of the run, complete after it."""
        if self._report is None:
            raise RunError("There is no report before the run has started.")
        return self._report

    @property
    def centroids(self) -> NDArray[np.float64]:
        """Centroids in the user's units, (n_clusters, n_features), where the server may see them.

        Raises
        ------
        ObliviousServerError
            Where clients open the sums: the server must never see them.
        """
        self._require_sight()
        arrays = self._visible_arrays()
        if arrays is None:
            raise RunError("There are no centroids before a round is finished.")
        return arrays["centroids"].numpy()

    # ------------------------------------------------------------------ inside

    @property
    def _running(self) -> Server:
        if self._server is None:
            raise RunError("The run has not started: round 1 must be configured first.")
        return self._server

    @property
    def _talk(self) -> Exchange:
        if self._exchange is None:
            raise RunError("The run has not started: round 1 must be configured first.")
        return self._exchange

    def _require_sight(self) -> None:
        """Refuse what only a server that sees the sums could give."""
        if self.trust_model.is_blind:
            raise ObliviousServerError(
                f"Expected no request for centroids at the server under trust={self.trust!r}: the "
                "server must never see the result. Take them from a client's on_result."
            )

    def _check_start(
        self,
        num_rounds: int | None,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: object,
    ) -> None:
        self._refuse_wrapper()
        require_type("num_rounds", num_rounds, int | None, "an integer")
        require_type("evaluate_fn", evaluate_fn, Callable | None, "a callable")
        if num_rounds is not None and num_rounds != self.algorithm.n_rounds:
            raise ConfigurationError(
                f"Expected num_rounds={self.algorithm.n_rounds} as planned, or None. "
                f"Got {num_rounds} instead."
            )
        require_type("timeout", timeout, int | float, "a number of seconds")
        if not timeout > 0:
            raise ConfigurationError(f"Expected timeout > 0 seconds. Got {timeout} instead.")
        require_empty("train_config", train_config)
        require_empty("evaluate_config", evaluate_config)
        if evaluate_fn is not None:
            self._require_sight()

    def _set_up(self, grid: Grid, arrays: ArrayRecord) -> None:
        """Enrol the clients, and give them slots and keys."""
        self._started = time.monotonic()
        self.algorithm = self._started_with(initial_centroids(arrays))
        roster = self._roster()
        run = self._run(self.algorithm, roster)
        require_sizes(run, max(self.n_clients or 0, self.min_clients, len(roster or ())))
        server = self._server = Server(run, seed=self.seed, roster=roster)
        exchange = self._exchange = Exchange(grid, self._timeout)
        self._report = Report(
            strategy=type(self).__name__,
            plan=self.plan,
            clip=self.clip,
            clips=self.clips,
            trust_model=self.trust_model,
            keys=self.keys,
            min_clients=self.min_clients,
            max_colluders=self.max_colluders,
            max_attempts=self.max_attempts,
            levels=run.document.levels,
            sampler=run.document.sampler,
            earlier=self._earlier,
        )
        self.summary()
        nodes = exchange.wait_for_nodes(self.n_clients or self.min_clients)
        with self._reporting():
            server.set_up(nodes, exchange.trip)

    def _roster(self) -> Roster | None:
        if self.keys != "roster":
            return None
        if self.roster_file is None:
            raise ConfigurationError(
                "Expected roster_file with keys='roster': the file of the clients' public keys. "
                "Got None."
            )
        roster = Roster.from_file(self.roster_file)
        if self.n_clients is not None and self.n_clients > len(roster):
            raise ConfigurationError(
                f"Expected n_clients of at most {len(roster)}, the clients in roster_file. "
                f"Got {self.n_clients} instead."
            )
        return roster

    def _started_with(self, initial: NDArray[Any] | None) -> Algorithm:
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
        if not self.TAKES_INITIAL:
            raise ConfigurationError(
                f"Expected no {name}: {type(self).__name__} makes its own initial centroids. "
                "Got some."
            )

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Bring the report up to date, also if the run ends here."""
        try:
            yield
        finally:
            update(self.report, self._running, time.monotonic() - self._started)

    def _close_round(self, t: int, replies: Replies) -> None:
        server, report = self._running, self.report
        with self._reporting():
            server.take_answers(replies, self._talk.trip)
        answers = report.answers[-1]
        missing = report.n_clients - answers
        info = RoundInfo(t, self.n_rounds, answers, report.n_clients, missing, report.seconds)
        log(INFO, "Round %s/%s: %s of %s clients", t, self.n_rounds, answers, info.n_clients)
        if self.on_round is not None:
            self.on_round(info)

    def _close_run(self, replies: Replies) -> None:
        server = self._running
        with self._reporting():
            server.take_finished(replies, self._talk.trip)
        if not server.delivered:
            raise RunError("No client confirmed the delivery of the result.")

    def _visible_arrays(self) -> ArrayRecord | None:
        server = self._running
        if self.trust_model.is_blind or not server.n_opened:
            return None
        state = server.state
        centroids, counts = self.algorithm.centroids(state), self.algorithm.counts(state)
        if centroids is None or counts is None:
            return None
        record = ArrayRecord([centroids, counts])
        return ArrayRecord(dict(zip(("centroids", "counts"), record.values(), strict=True)))

    def _refuse_wrapper(self) -> None:
        """Refuse to be wrapped, as Flower's own privacy wrappers would do.

        They clip and noise arrays that this strategy never sends, and would report a guarantee
        that nobody gives. A wrapper is known by its calling the hooks of the strategy it holds.
        """
        frame = sys._getframe(2)
        caller = frame.f_locals.get("self")
        if caller is not self and isinstance(caller, Strategy):
            raise ConfigurationError(
                f"Expected {type(self).__name__} to be driven directly. Got it wrapped in "
                f"{type(caller).__name__}, whose privacy does not apply to it."
            )


def _keep(metrics: dict[int, MetricRecord], number: int, record: MetricRecord | None) -> None:
    if record is not None:
        metrics[number] = record
