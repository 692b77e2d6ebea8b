"""What all strategies share: set-up, rounds with retries, delivery, and the report.

The hooks are Flower's. Set-up happens in ``configure_train`` of round 1 and delivery in
``configure_evaluate`` of the last round, so Flower's stock ``Strategy.start`` drives a strategy to
the same result as our own ``start``, which adds folding of replies as they arrive and one hop less.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from logging import INFO
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
from flower_kmeans.federation.coordinator import Coordinator
from flower_kmeans.federation.document import KEYS, MASKED_TRUSTS, NONE, OPENINGS, RunDocument
from flower_kmeans.federation.release import check_shares, sampler_of
from flower_kmeans.federation.removal import levels_up_to
from flower_kmeans.federation.run import Run, server_asks
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.randomness import token
from flower_kmeans.privacy.report import Report
from flower_kmeans.strategies._checks import (
    FinishedRun,
    checked_count,
    initial_centroids,
    no_clip,
    require_clip,
    require_type,
    result_of,
)
from flower_kmeans.strategies._conversation import Conversation

_DEFAULT_TIMEOUT = 3600.0
_SHARE_OF_CLIENTS = 0.8
_MIN_CLIENTS = 3
_OPENINGS = ("auto", *OPENINGS)


@dataclass(frozen=True)
class RoundInfo:
    """Progress of a run, given to ``on_round`` after each round. Nothing here is from records."""

    round: int
    n_rounds: int
    n_answers: int
    n_clients: int
    dropped: int
    seconds: float


Opening = Literal["auto", "deferred", "immediate", "simple"]


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
    keys: Literal["relayed", "file", "roster"]
    max_attempts: int
    colluders: int
    opening: Opening
    on_round: Callable[[RoundInfo], None] | None


class KMeansStrategy(Strategy):
    """Base of the library's strategies.

    A strategy names the trust models of its algorithm (``TRUSTS``, the default first), and whether
    it takes initial centroids. Where the server sends the questions (`federation.run.server_asks`),
    it computes each from the sum before, with its own algorithm object: what that holds beside the
    parameters of its ``to_config`` never leaves the server. A strategy whose algorithm is not
    replayable lists no ``"oblivious-server"``.

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
    trust : str, optional
        Trust model. Default: the first of the strategy's ``TRUSTS``, ``"plain"`` without privacy.
    n_rounds : int or "auto", default: "auto"
        Number of rounds; "auto" follows the papers' rules from public figures.
    min_clients : int, optional
        Fewest clients behind a sum. Default: 3 (or ``n_clients`` if that is less), 1 without
        privacy, and 0.8 ``n_clients`` under distributed noise.
    seed : int, default: 0
        Public randomness only (the initial centroids, or what the server draws to compute its
        questions); noise and keys never depend on it.
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
    keys : {"relayed", "file", "roster"}, default: "relayed"
        Where the clients' group key comes from: relayed by the server, which withstands a passive
        server only; a file that they share; or one of them, for all whose keys are pinned.
    max_attempts : int, default: 2
        How often a round with too few answers is asked for, 1 to 3.
    colluders : int, default: 1
        Distributed noise: how many clients may pool what they know of their noise.
    opening : {"auto", "deferred", "immediate", "simple"}, default: "auto"
        Distributed noise: when a majority of the clients opens a round's sum for the server: with
        the answers to the next round, or in a hop of its own, before ``on_round`` and
        ``evaluate_fn`` are called and the next question is asked. ``"simple"`` lets single clients
        open sums, which withstands a passive server only; clients refuse it by default. ``"auto"``
        is deferred, and immediate where the server sends the questions, which needs each sum
        before the next round.
    on_round : callable, optional
        Called with a `RoundInfo` after each round.

    Raises
    ------
    ConfigurationError
        If a parameter is out of range, or parameters contradict each other.
    """

    TRUSTS: ClassVar[tuple[str, ...]]
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
        keys: Literal["relayed", "file", "roster"] = "relayed",
        max_attempts: int = 2,
        colluders: int = 1,
        opening: Opening = "auto",
        on_round: Callable[[RoundInfo], None] | None = None,
    ) -> None:
        require_type("domain", domain, Box | Ball, "a Box or a Ball")
        require_type("privacy", privacy, PrivacyBudget, "a PrivacyBudget")
        if keys not in KEYS:
            raise ConfigurationError(f"Expected keys in {KEYS}. Got {keys!r} instead.")
        if opening not in _OPENINGS:
            raise ConfigurationError(f"Expected opening in {_OPENINGS}. Got {opening!r} instead.")
        if on_round is not None:
            require_type("on_round", on_round, Callable, "a callable")
        self.n_clusters = n_clusters
        self.n_records = n_records
        self.domain = domain
        self.privacy = privacy
        self.trust = self._checked_trust(trust, privacy)
        self.n_clients = checked_count("n_clients", n_clients)
        self._given_min_clients = min_clients
        self.min_clients = self._checked_min_clients(min_clients)
        self.keys = keys if self.trust in MASKED_TRUSTS else NONE
        self.max_attempts = max_attempts
        self.colluders = colluders if self.trust == "distributed-noise" else 0
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
        self.opening = self._checked_opening(opening)
        self.plan = self.algorithm.plan()
        document = self._document()  # fails now if its parameters do not fit each other
        if self.trust == "distributed-noise":
            check_shares(self.algorithm, self.plan, document.shares)
            self.algorithm.require_capacity(self.added_noise_factor)
        self._timeout = _DEFAULT_TIMEOUT
        self._own_start = False
        self._conversation: Conversation | None = None
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
        before = self.n_clients, self.min_clients
        self.n_clients = self.n_clients or n_clients
        try:
            self.min_clients = self._checked_min_clients(self._given_min_clients)
            yield
        finally:
            self.n_clients, self.min_clients = before

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(n_clusters={self.n_clusters}, trust={self.trust!r}, "
            f"privacy={self.plan.budget}, n_rounds={self.n_rounds}, "
            f"min_clients={self.min_clients})"
        )

    # ------------------------------------------------------------------ parameters

    def _checked_trust(self, trust: str | None, privacy: PrivacyBudget) -> str:
        if trust is None:
            trust = self.TRUSTS[0] if privacy.is_private else "plain"
        accepted = self.TRUSTS if privacy.is_private else ("plain",)
        if trust not in accepted:
            name, epsilon = type(self).__name__, privacy.epsilon
            asks = trust == "oblivious-server" and trust not in self.TRUSTS and privacy.is_private
            reason = " The server computes the next question, so it cannot be oblivious."
            raise ConfigurationError(
                f"Expected trust of {name} with epsilon={epsilon} in {accepted}. "
                f"Got {trust!r} instead.{reason if asks else ''}"
            )
        return trust

    def _checked_opening(self, opening: Opening) -> str:
        if self.trust != "distributed-noise":
            return NONE
        if not self._server_asks:
            return "deferred" if opening == "auto" else opening
        if opening == "deferred":
            raise ConfigurationError(
                "Expected opening in ('immediate', 'simple'): the server needs the sum of each "
                f"round to compute the next question of {type(self).__name__}. "
                "Got 'deferred' instead."
            )
        return "immediate" if opening == "auto" else opening

    def _checked_min_clients(self, min_clients: int | None) -> int:
        if min_clients is not None:
            least = checked_count("min_clients", min_clients) or 1
            if self.n_clients is not None and least > self.n_clients:
                raise ConfigurationError(
                    f"Expected min_clients <= n_clients={self.n_clients}. Got {least} instead."
                )
            return least
        if self.trust == "plain":
            return 1
        if self.trust == "distributed-noise":
            if self.n_clients is None:
                raise ConfigurationError(
                    "Expected n_clients or min_clients under trust='distributed-noise', where the "
                    "noise is shared among min_clients. Got neither."
                )
            return max(2, math.ceil(_SHARE_OF_CLIENTS * self.n_clients))
        return _MIN_CLIENTS if self.n_clients is None else min(_MIN_CLIENTS, self.n_clients)

    def _document(self) -> RunDocument:
        algorithm = self.algorithm
        words = [algorithm.words(t) + 1 for t in range(1, algorithm.n_rounds + 1)]
        shared = self.trust == "distributed-noise"
        return RunDocument(
            run=token(16).hex(),
            trust=self.trust,
            keys=self.keys,
            opening=self.opening,
            algorithm=algorithm.to_config(),
            domain=self.domain.to_config(),
            privacy=self.plan.to_config(),
            words=words[0] if len(set(words)) == 1 else tuple(words),
            rounds=algorithm.n_rounds,
            min_clients=self.min_clients,
            max_attempts=self.max_attempts,
            colluders=self.colluders,
            share_variance=f"1/{self.min_clients - self.colluders}" if shared else NONE,
            levels=self._levels,
            sampler=sampler_of(self.plan, shared),
        )

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
            Seconds to wait for the answers of one hop.
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
        if initial_arrays is not None:
            require_type("initial_arrays", initial_arrays, ArrayRecord, "an ArrayRecord")
        self._check_start(num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
        self._timeout, self._own_start, self._conversation = timeout, True, None
        log(INFO, "Starting %s strategy:", type(self).__name__)
        result = Result()
        arrays = ArrayRecord() if initial_arrays is None else initial_arrays
        evaluated = 0
        if evaluate_fn is not None and initial_arrays is not None:
            _keep(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, initial_arrays))

        def evaluate() -> None:
            nonlocal evaluated
            opened = self._run_state.n_opened
            if evaluate_fn is None or opened == evaluated:
                return
            evaluated, visible = opened, self._visible_arrays()
            if visible is not None:  # an algorithm may have no centroids in its first rounds
                _keep(result.evaluate_metrics_serverapp, opened, evaluate_fn(opened, visible))

        last = self.algorithm.n_rounds
        try:
            for t in range(1, last + 1):
                messages = self.configure_train(t, arrays, ConfigRecord(), grid)
                invitations = self._talk.invitations() if t > 1 else []
                self.aggregate_train(t, self._talk.exchange(messages, invitations))
                evaluate()
            messages = self.configure_evaluate(last, arrays, ConfigRecord(), grid)
            self.aggregate_evaluate(last, self._talk.exchange(messages))
            evaluate()  # where clients open the sums, the last round's is known only now
        finally:
            self._own_start = False
        result.arrays = self._visible_arrays() or ArrayRecord()
        log(INFO, "Finished in %.1f s.", time.monotonic() - self._started)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of one round; in round 1, set up the cohort first."""
        self._refuse_wrapper()
        if len(config):
            raise ConfigurationError(
                "Expected an empty train_config: what clients need is in the run document. "
                f"Got {len(config)} entries instead."
            )
        if server_round == 1:
            self._set_up(grid, arrays)
        run = self._run_state
        if server_round != run.head + 1 or server_round > self.algorithm.n_rounds:
            raise ConfigurationError(
                f"Expected rounds 1 to {self.algorithm.n_rounds} in their order, round "
                f"{min(run.head + 1, self.algorithm.n_rounds)} next. Got {server_round} instead."
            )
        return self._talk.ask_round(server_round, 1)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the answers up, ask again if too few came, and announce the sum.

        Returns
        -------
        tuple
            The centroids after this round where the server already knows them, else ``None``;
            and always ``None`` for metrics.
        """
        talk, run, attempt = self._talk, self._run_state, 1
        talk.take_answers(server_round, replies)
        while not run.has_enough:
            if attempt == self.max_attempts:
                raise run.too_few()
            attempt += 1
            log(INFO, "Round %s: too few answers, attempt %s", server_round, attempt)
            talk.take_answers(server_round, talk.exchange(talk.ask_round(server_round, attempt)))
        if run.unopened:  # what came with the answers did not open the round before
            talk.open_sum(server_round)
        run.close_round()
        if run.unopened and self._opens_now(server_round):
            talk.open_sum(server_round)
        self._tell_round(server_round)
        return (self._visible_arrays() if run.n_opened == server_round else None), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the delivery of the result after the last round, and nothing before."""
        self._refuse_wrapper()
        if server_round != self.algorithm.n_rounds:
            return []
        return self._talk.ask_finish()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Take the acknowledgements of the delivery and finish the report."""
        if server_round != self.algorithm.n_rounds:
            return None
        run = self._run_state
        self._talk.take_delivery(replies)
        self._finish_report()
        self.report.n_clients, self.report.n_places = run.n_members, run.n_places
        self.report.ledger = run.all_keep_ledgers
        if run.unopened:
            raise run.not_opened()
        if not run.delivered:
            raise RunError("No client confirmed the delivery of the result.")
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

        Above 1 only under distributed noise, where ``n_clients`` (or, if it was not given,
        ``min_clients``) add a share. Where the server computes the questions, what is beyond the
        plan is removed but for the shares of ``colluders`` (docs/guarantees.md, "Distributed
        noise").
        """
        if not self._levels:
            return self.added_noise_factor
        return math.sqrt((self.n_clients or self.min_clients) / self._levels[-1])

    @property
    def added_noise_factor(self) -> float:
        """The same of the noise that clients add, before what is beyond the plan is removed."""
        if self.trust != "distributed-noise":
            return 1.0
        return math.sqrt((self.n_clients or self.min_clients) / (self.min_clients - self.colluders))

    @property
    def _levels(self) -> tuple[int, ...]:
        """For how many honest answers noise beyond the plan is removed."""
        # Clients that compute the questions need the sum at once, and cannot wait for keys.
        if self.trust != "distributed-noise" or not self._server_asks:
            return ()
        clients, shares = self.n_clients or self.min_clients, self.min_clients - self.colluders
        return levels_up_to(shares, clients - self.colluders) if shares > 0 else ()

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
            Under ``trust="oblivious-server"``: the party that adds the noise must never see them.
        """
        if self.trust == "oblivious-server":
            raise ObliviousServerError(_OBLIVIOUS)
        arrays = self._visible_arrays()
        if arrays is None:
            raise RunError("There are no centroids before a round is finished.")
        return arrays["centroids"].numpy()

    # ------------------------------------------------------------------ inside

    @property
    def _server_asks(self) -> bool:
        return server_asks(self.algorithm, self.trust)

    @property
    def _run_state(self) -> Coordinator:
        return self._talk.run

    @property
    def _talk(self) -> Conversation:
        if self._conversation is None:
            raise RunError("The run has not started: round 1 must be configured first.")
        return self._conversation

    def _check_start(
        self,
        num_rounds: int | None,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: object,
    ) -> None:
        self._refuse_wrapper()
        if num_rounds is not None:
            require_type("num_rounds", num_rounds, int, "an integer")
        if evaluate_fn is not None:
            require_type("evaluate_fn", evaluate_fn, Callable, "a callable")
        if num_rounds is not None and num_rounds != self.algorithm.n_rounds:
            raise ConfigurationError(
                f"Expected num_rounds={self.algorithm.n_rounds} as planned, or None. "
                f"Got {num_rounds} instead."
            )
        require_type("timeout", timeout, int | float, "a number of seconds")
        if not timeout > 0:
            raise ConfigurationError(f"Expected timeout > 0 seconds. Got {timeout} instead.")
        for name, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if config is not None and len(config):
                raise ConfigurationError(
                    f"Expected an empty {name}: what clients need is in the run document. "
                    f"Got {len(config)} entries instead."
                )
        if evaluate_fn is not None and self.trust == "oblivious-server":
            raise ObliviousServerError(_OBLIVIOUS)

    def _opens_now(self, t: int) -> bool:
        """Whether a round's sum is opened in a hop of its own as soon as it is announced."""
        if self._server_asks:
            return True  # for the next question, or for the result that the delivery tells
        if t < self.algorithm.n_rounds:
            return self.opening == "immediate"
        # The delivery opens the last sum, but the stock start takes its arrays before that.
        return not self._own_start

    def _set_up(self, grid: Grid, arrays: ArrayRecord) -> None:
        """Enrol the clients and, where keys are relayed, let one of them make the group key."""
        self._started = time.monotonic()
        self.algorithm = self._started_with(initial_centroids(arrays))
        document = self._document()
        run = Coordinator(Run(document, self.algorithm, self.plan), seed=self.seed)
        self._conversation = Conversation(run, grid, self._timeout)
        self._report = Report(
            strategy=type(self).__name__,
            plan=self.plan,
            clip=self.clip,
            clips=self.clips,
            trust=self.trust,
            keys=self.keys,
            opening=self.opening,
            min_clients=self.min_clients,
            colluders=self.colluders,
            max_attempts=self.max_attempts,
            levels=document.levels,
            sampler=document.sampler,
            dropped=run.dropped,
            incidents=run.incidents,
            server_asks=self._server_asks,
            earlier=self._earlier,
        )
        self.summary()
        self._conversation.set_up(self.n_clients or self.min_clients)
        self._report.n_clients, self._report.n_places = run.n_members, run.n_places
        self._report.ledger = run.all_keep_ledgers

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

    def _tell_round(self, t: int) -> None:
        run, report = self._run_state, self.report
        answers = run.closed[-1].entry.n_survivors
        report.n_rounds = t
        report.answers.append(answers)
        report.seconds = time.monotonic() - self._started
        self._take_notes()
        info = RoundInfo(
            t, self.n_rounds, answers, run.n_members, run.n_members - answers, report.seconds
        )
        log(INFO, "Round %s/%s: %s of %s clients", t, self.n_rounds, answers, info.n_clients)
        if self.on_round is not None:
            self.on_round(info)

    def _finish_report(self) -> None:
        report = self.report
        report.seconds = time.monotonic() - self._started
        self._take_notes()
        run = self._run_state
        if self.trust == "distributed-noise":
            shares = self.min_clients - self.colluders
            report.added_noise_factor = math.sqrt(max(report.answers) / shares)
            report.noise_factor = max(run.noise_factors, default=report.added_noise_factor)
        if run.n_opened == self.algorithm.n_rounds:
            last = run.noise_factors[-1] if run.noise_factors else 1.0
            report.cost = self.algorithm.cost_estimate(run.state, last)

    def _take_notes(self) -> None:
        """Let the report say what the algorithm says of the rounds that the server has opened."""
        run = self._run_state
        if run.n_opened:
            self.report.notes = tuple(self.algorithm.notes(run.state))

    def _visible_arrays(self) -> ArrayRecord | None:
        run = self._run_state
        if self.trust == "oblivious-server" or not run.n_opened:
            return None
        centroids, counts = self.algorithm.centroids(run.state), self.algorithm.counts(run.state)
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


_OBLIVIOUS = (
    "Expected no request for centroids at the server under trust='oblivious-server': the party "
    "that adds the noise must never see the result. Take them from a client's on_result."
)


def _keep(metrics: dict[int, MetricRecord], number: int, record: MetricRecord | None) -> None:
    if record is not None:
        metrics[number] = record
