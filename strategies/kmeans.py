"""Base of strategies for clients with different records: options, crowd and results."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flower_kmeans.algorithms import (
    judged,
    pe_means,
    synopsis_cautions,
    tightened,
)
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.feasibility import require_capacity
from flower_kmeans.algorithms.plausibility import sentences
from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.algorithms.released import note_on_noise
from flower_kmeans.algorithms.weights import (
    note_on_persons,
    note_on_shares,
    with_room,
)
from flower_kmeans.data.domain import Ball, Box, Domain, Sphere
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    ObliviousServerError,
    RunError,
)
from flower_kmeans.parameters import check_arguments, instance
from flower_kmeans.protocol.messages import Request
from flower_kmeans.protocol.noise import check_shares, levels_up_to
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import Horizontal, Run
from flower_kmeans.protocol.server import Server
from flower_kmeans.protocol.sizes import answers_bytes, most_words, require_sizes
from flower_kmeans.protocol.trips import HasEnough, Replies, RequestKind
from flower_kmeans.protocol.trust import PLAIN, trust_model
from flower_kmeans.report.columns import column_warnings
from flower_kmeans.report.ranges import column_ranges
from flower_kmeans.report.report import Report
from flower_kmeans.report.silhouette import Silhouette
from flower_kmeans.report.synopsis import Synopsis

from .clustering import ClusteringStrategy, checked_nodes
from .crowd import Crowd, require_trust
from .options import (
    Attempts,
    Initial,
    KeyDistribution,
    Nodes,
    OnRound,
    PositiveCount,
    Privacy,
    Quality,
    RosterFile,
    own_options,
    parameters_of,
)

_LEAST_TIMEOUT = 300.0  # seconds
_BYTES_PER_SECOND = 1e6  # of the answers of all clients to a round together


class KMeansStrategy(ClusteringStrategy[Server]):
    """Base of the library's strategies.

    A strategy names the class of its algorithm (``ALGORITHM``) and its default trust
    model (``TRUST``). Its ``__init__`` has the options of its algorithm, and passes on
    those of all strategies. The algorithm decides under which trust models the strategy
    runs (`TrustModel.objection`). Where the server sees the sums, it computes each query
    and the result from the sum before, with its own algorithm object. That object's
    undeclared fields never leave the server. The class is long because it documents the
    options that all strategies share.

    Parameters
    ----------
    n_clusters : int
        Number of clusters.
    domain : Box, Ball or Sphere
        Public bounds of the records, in the user's units. Records outside are clipped.
        On a `Sphere` records are divided by their length, and centroids have length 1:
        spherical k-means. A cluster without a direction takes that of the first column.
    privacy : PrivacyBudget
        Budget of the whole run. ``PrivacyBudget(epsilon=None)`` runs without privacy.
        With ``unit="client"`` each client is protected with all of its records, and
        ``n_clients`` is required: the default delta follows from it. With
        ``unit="person"`` each person is protected with all records of its id, and
        ``n_persons`` is required.
    n_records : int, optional
        Planned number of records of all clients together. It is public and never counted
        from the data. Private strategies require it, unless ``n_persons`` replaces it.
    n_clients : int, optional
        Public number of clients. The start waits for all of them.
    n_persons : int, optional
        With ``unit="person"`` only: planned number of persons of all clients together,
        in place of ``n_records``. It is public and never counted from the data. The
        default delta follows from it. Every count is then a number of persons, of whom
        each counts as 1 at all of its clients together.
    max_clients_per_person : int
        With ``unit="person"`` only: the most clients that hold records of one person. It
        is an assumption, because ids are never compared between clients: a person with
        records at h times as many clients has the guarantee of a group of h persons.
    weighted : bool
        Whether each record has a weight in [0, 1] by a public rule, such as a survey's,
        which clients load by ``load_weights``. Counts are then sums of weights, and
        ``n_records`` is the planned total of all weights. A record of weight 1 decides
        the noise. The option stands in the run document, because every client must add
        noise for it.
    trust : {"clients-only", "distributed-noise", "oblivious-server", "trusted-server", "plain"}, \
optional
        Trust model: who adds the noise and who sees the sums (docs/threat-model.md).
        Default: the strategy's ``TRUST``, or ``"plain"`` without privacy.
    n_rounds : int or "auto"
        Number of rounds; "auto" derives it from public numbers.
    min_clients : int, optional
        Fewest clients behind a sum. Default: 0.8 ``n_clients`` and at least 2 where
        clients share the noise, 1 under ``"plain"``, otherwise 3 (or ``n_clients`` if
        that is less).
    seed : int
        Seed for public randomness: initial centroids, and the server's draws for its
        queries. Noise and keys never use it.
    fraction_bits : int
        Records are rounded to multiples of ``2**-fraction_bits`` of the scaled domain.
    clip : float, optional
        With ``unit="client"`` only: how many records' worth of one client count in each
        release. The domain determines the worth of a record. The noise grows with the
        clip. Default: ``n_records / n_clients``; for `SynopsisKMeans`, and for votes, its
        square root.
    initial : array-like of shape (n_clusters, n_features) or a finished run, optional
        Public initial centroids in the user's units, in place of the algorithm's. An
        earlier run (a `Clustering`, or a strategy after its start) gives its centroids,
        and ``report.together`` adds the privacy cost of both runs.
    keys : {"relayed", "roster"}
        Source of the clients' keys. ``"relayed"``: the server passes them on, which
        protects against a passive server only. ``"roster"``: a file that every client
        holds pins them.
    roster_file : path, optional
        Path of the roster, which holds public keys only. A start with ``keys="roster"``
        requires it.
    nodes : list of int, optional
        Ids of the only nodes that can take part. Without a roster their order gives the
        slots, and named clients can come late. Without roster and nodes, any node that
        the SuperLink admits can join.
    max_attempts : int
        Most attempts at a round with too few answers, 1 to 3. Only one sum of a round
        is unmasked or reconstructed, whatever the number of attempts.
    max_colluders : int, optional
        Most clients that can work together, also with the server, and still learn only
        the noisy sums. Under ``"oblivious-server"`` the server and one client together
        see every answer. Default: a tenth of ``n_clients`` where a committee adds the
        sums, but at least 1; otherwise 1.
    quality : bool
        Whether a last round measures how well the clusters are apart, for
        ``report.silhouette``: the silhouette with an interval. It has a twentieth of
        mu^2, and the other rounds have the rest. The plan says whether the interval will
        mean anything.
    on_round : callable, optional
        Called with a `RoundInfo` after each round.

    Raises
    ------
    ConfigurationError
        If a parameter is out of range, or parameters contradict each other.
    """

    TRUST: ClassVar[str]
    ROUNDS: ClassVar[str] = "n_rounds"
    """Name of the algorithm's parameter that takes ``n_rounds``."""
    OMITS: ClassVar[tuple[str, ...]] = ()
    """Parameters of the algorithm that are no options: documents hold them, or it refuses them."""

    def __init__(
        self,
        n_clusters: int | tuple[int, int] | None,
        domain: Annotated[
            Domain, instance(Box | Ball | Sphere, "a Box, a Ball or a Sphere")
        ],
        privacy: Privacy,
        n_records: int | None = None,
        *,
        n_clients: PositiveCount = None,
        n_persons: PositiveCount = None,
        max_clients_per_person: int = 1,
        weighted: bool = False,
        trust: str | None = None,
        n_rounds: int | Literal["auto"] = "auto",
        min_clients: PositiveCount = None,
        seed: int = 0,
        fraction_bits: int = 16,
        clip: float | None = None,
        initial: Initial = None,
        keys: KeyDistribution = "relayed",
        roster_file: RosterFile = None,
        nodes: Nodes = None,
        max_attempts: Attempts = 3,
        max_colluders: PositiveCount = None,
        quality: Quality = False,
        on_round: OnRound = None,
        **parameters: Any,
    ) -> None:
        checked = check_arguments(KMeansStrategy.__init__, locals())
        unknown = parameters.keys() - own_options(type(self))
        if unknown:
            raise ConfigurationTypeError(
                f"{type(self).__name__} takes no parameter {min(unknown)!r}. "
                f"It takes {', '.join(parameters_of(type(self)))}."
            )
        self.domain = domain
        self.privacy = privacy
        self.n_records = n_records
        self.n_persons = n_persons
        self.max_clients_per_person = max_clients_per_person
        self.weighted = weighted
        self.quality = checked["quality"]
        self.roster_file = roster_file
        self.on_round = on_round
        self.seed = seed
        self.max_attempts = checked["max_attempts"]
        self.nodes = checked_nodes(nodes)
        default = self.TRUST if privacy.is_private else PLAIN.name
        self.trust_model = trust_model(default if trust is None else trust)
        # The numbers as given: their defaults follow from a number of clients that may be
        # known only later (`expecting`).
        self._given_crowd = checked["min_clients"], checked["max_colluders"]
        self._take_crowd(checked["n_clients"])
        self.keys = keys if self.trust_model.is_protected else "none"
        self._earlier: Report | None = None
        self._given_initial: Any = None
        if initial is not None:
            self._check_initial("initial")
            self._given_initial = self._centroids_of(initial)
            parameters["initial"] = self._given_initial
        make = partial(
            tightened.planned,
            self.ALGORITHM,
            n_clusters,
            domain,
            privacy,
            n_records=n_records,
            seed=seed,
            fraction_bits=fraction_bits,
            quality=self.quality,
            **{self.ROUNDS: n_rounds},
            **self._clipping(clip),
            **self._weighing(),
            **self._room_of_messages(),
            **parameters,
        )
        self._make_algorithm = partial(self._with_room, make)
        self.algorithm = self._planned = self._make_algorithm()
        # the most clusters, if the run chooses their number
        self.n_clusters = self.algorithm.n_clusters
        self.plan = self.algorithm.plan()
        name = type(self).__name__
        require_trust(self.trust_model, self.algorithm, self.plan, name)
        # The release of the cost would spend privacy, and nobody could report the cost.
        if parameters.get("cost", False) and self.trust_model.is_blind:
            raise ObliviousServerError(
                f"Expected cost=False under trust={self.trust!r}: the server's report would state "
                "the cost, which the server must not see. Got cost=True; choose another trust."
            )
        self._require_room(self.algorithm)
        # Without a number of clients, `start` checks the messages' sizes.
        if self.n_clients is not None:
            require_sizes(self._run(None), self.n_clients)
        self._note()

    @contextmanager
    def expecting(self, n_clients: int) -> Iterator[None]:
        """Plan for this number of clients inside the context, where none was given."""
        before = self.n_clients
        try:
            self._take_crowd(before or n_clients)
            yield
        finally:
            self._take_crowd(before)

    # ------------------------------------------------------------------ parameters

    def _take_crowd(self, n_clients: int | None) -> None:
        """Set the number of clients, and the numbers that follow from it."""
        crowd = Crowd.of(self.trust_model, n_clients, *self._given_crowd)
        self.n_clients = crowd.n_clients
        self.min_clients = crowd.min_clients
        self.max_colluders = crowd.max_colluders

    def _clipping(self, clip: float | None) -> dict[str, Any]:
        """Return the parameters of an algorithm that clip or bound a client's contribution."""
        if self.privacy.protects_clients or clip is not None:
            taken = inspect.signature(self.ALGORITHM).parameters.keys()
            if {"n_clients", "clip"} <= taken:
                return {"n_clients": self.n_clients, "clip": clip}
            wanted = "clip=None"
            got = f"clip={clip!r}"
            if self.privacy.protects_clients:
                wanted = "a budget with unit='record'"
                got = "unit='client'"
            raise ConfigurationError(
                f"Expected {wanted} for {type(self).__name__}, whose algorithm does not clip "
                f"what a client adds. Got {got} instead."
            )
        if self.ALGORITHM.bounds_clients:
            return {"n_clients": self.n_clients}
        return {}

    def _room_of_messages(self) -> dict[str, Any]:
        """Return how many words of a round messages can carry, where the algorithm adapts."""
        if "most_words" not in inspect.signature(self.ALGORITHM.planned).parameters:
            return {}
        n_levels = len(self._levels)
        most = most_words(
            self.trust_model, self._planned_crowd, self.max_colluders, n_levels
        )
        return {"most_words": most}

    @property
    def _planned_crowd(self) -> int:
        """The most clients of a run, as far as they are known before it."""
        return max(self.n_clients or 0, self.min_clients, len(self.nodes or ()))

    def _weighing(self) -> dict[str, Any]:
        """Return the parameters of persons and of weights of records that are given."""
        given = {
            "n_persons": self.n_persons,
            "max_clients_per_person": self.max_clients_per_person,
            "weighted": self.weighted,
        }
        defaults = {"n_persons": None, "max_clients_per_person": 1, "weighted": False}
        return {name: each for name, each in given.items() if each != defaults[name]}

    def _with_room(self, make: Callable[..., Algorithm], **changes: Any) -> Algorithm:
        """Return the algorithm with the largest full weight for sums and noise shares."""

        def remade(full_weight: int) -> Algorithm:
            return make(**{**changes, "full_weight": full_weight})

        return with_room(make(**changes), self._require_room, remade)

    def _require_room(self, algorithm: Algorithm) -> None:
        """Require noise that clients can share, and sums within the limit of the secure sum."""
        if self.trust_model.shares_noise:
            check_shares(algorithm, algorithm.plan(), self._noise_shares)
        require_capacity(algorithm, self.added_noise_factor, self.trust_model.sum.limit)

    def _centroids_of(self, initial: Any) -> Any:
        """Return initial centroids, and keep the report of the run that they come from, if any."""
        report = getattr(initial, "report", None)
        if not isinstance(report, Report):
            return initial
        # Initial centroids are public. From them a blind server could compute the noise of
        # the earlier run.
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
        """Number of clients that share the planned noise: the fewest honest ones behind a sum."""
        return self.min_clients - self.max_colluders

    # ------------------------------------------------------------------ results

    @property
    def _clients_of_a_person(self) -> int | None:
        """The most clients with records of one person; ``None`` unless each counts as one."""
        if self.privacy.counts_persons:
            return self.max_clients_per_person
        return None

    @property
    def clip(self) -> float | None:
        """How many records' worth of one client count in a release; ``None`` without clipping."""
        return self.algorithm.clip if self.privacy.protects_clients else None

    @property
    def clips(self) -> dict[str, float]:
        """Clip of each release by name, in records; empty without clipping."""
        if not self.privacy.protects_clients:
            return {}
        return {
            release.name: self.algorithm.clipping.of(release)
            for release in self.plan.releases
        }

    @property
    def noise_factor(self) -> float:
        """Ratio of the noise's standard deviation to the planned one, if all clients answer.

        It is above 1 only where clients share the noise. Where the server sees the sums, it
        removes noise beyond the plan, except the noise shares of ``max_colluders``
        clients (docs/guarantees, Theorem 43).
        """
        if not self._levels:
            return self.added_noise_factor
        return math.sqrt((self.n_clients or self.min_clients) / self._levels[-1])

    @property
    def added_noise_factor(self) -> float:
        """`noise_factor` before the server removes noise beyond the plan."""
        if not self.trust_model.shares_noise:
            return 1.0
        return math.sqrt((self.n_clients or self.min_clients) / self._noise_shares)

    @property
    def _levels(self) -> tuple[int, ...]:
        """Numbers of honest answers for which the server removes noise beyond the plan."""
        if not self.trust_model.removes_noise:
            return ()
        most = (self.n_clients or self.min_clients) - self.max_colluders
        return levels_up_to(self._noise_shares, most)

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """Weights of the clusters, (n_clusters,) float64; ``None`` without bounds on sizes.

        A record x is in the cluster with the least ``|x - c_j|^2 - w_j``.

        Raises
        ------
        ObliviousServerError
            If the server must never see them.
        RunError
            If no round is finished.
        """
        arrays = self._visible("weights")
        return arrays["weights"].numpy() if "weights" in arrays else None

    @property
    def released_domain(self) -> Domain:
        """The domain of the result: with ``tighten`` the ranges that the run found.

        Raises
        ------
        ObliviousServerError
            If the server must never see them.
        RunError
            If no run has started.
        """
        self._require_sight()
        return tightened.released_domain(self.algorithm, self._running.state)

    @property
    def synopsis(self) -> Synopsis | None:
        """The synopsis that `SynopsisKMeans` released, for any number of clusters.

        ``None`` before it is released, and for other strategies.

        Raises
        ------
        ObliviousServerError
            If the server must never see it.
        RunError
            If no run has started.
        """
        self._require_sight()
        server = self._running
        if self.algorithm.mixture is None:
            return None
        mixture = self.algorithm.mixture.learned(server.state, server.noise_factor)
        return None if mixture is None else Synopsis(mixture, self.released_domain)

    # ------------------------------------------------------------------ inside

    def _note(self) -> None:
        """Add the notes of the algorithm, and warnings about sizes and persons, to the plan."""
        cautions = list(tightened.cautions(self.algorithm))
        cautions += judged.cautions(self.algorithm, self.noise_factor)
        cautions += pe_means.cautions(self.algorithm)
        cautions += synopsis_cautions.cautions(self.algorithm)
        of_persons = note_on_persons(self.algorithm)
        if of_persons is not None:
            cautions.append(of_persons)
        if self.algorithm.sizes is not None and self.n_records is not None:
            noise = self.algorithm.sizes.noise * self.noise_factor
            note = note_on_noise(noise, self.n_records, self.n_clusters)
            if note is not None:
                cautions.append(note)
        self._cautions = tuple(cautions)
        notes = list(tightened.notes(self.algorithm))
        notes += judged.notes(self.algorithm, self.noise_factor)
        of_shares = note_on_shares(self.algorithm)
        if of_shares is not None:
            notes.append(of_shares)
        notes += cautions
        if tuple(notes) != self.plan.notes:
            self.plan = replace(self.plan, notes=tuple(notes))

    def _run(self, roster: Roster | None) -> Run:
        body = Horizontal(
            algorithm=algorithm_to_config(self.algorithm),
            domain=self.domain.to_config(),
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
        crowd = max(self._planned_crowd, len(roster or ()))
        require_sizes(run, crowd)
        server = Server(
            run, seed=self.seed, roster=roster, nodes=self.nodes, journal=self._journal
        )
        return server, {
            "clip": self.clip,
            "clips": self.clips,
            "max_clients_per_person": self._clients_of_a_person,
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

    def _next(
        self, is_last: bool
    ) -> tuple[RequestKind, Mapping[int, Request], HasEnough]:
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
        # Values are copied: a report that a user keeps must not change later.
        for name, value in vars(server.proceedings).items():
            setattr(report, name, copy(value))
        report.n_clients = server.n_clients
        report.dropped = list(server.dropped)
        algorithm = server.run.algorithm
        report.size_noise = self._size_noise(report)
        if server.last_sum:
            of_values = sentences(algorithm, server.findings)
            report.warnings = (*algorithm.warnings(server.state), *of_values)
            report.ranges = column_ranges(self.released_domain, self.domain)
        if server.last_sum >= judged.result_round(algorithm):
            report.warnings += self._warnings_of_columns()
            factor = server.noise_factor
            if algorithm.last_cost is not None:
                report.cost = algorithm.last_cost.estimate(server.state, factor)
            if algorithm.sizes is not None:
                report.sizes = algorithm.sizes.report(server.state, factor)
            sums = judged.sums_of(algorithm, server.state, factor)
            if sums is not None:
                report.silhouette = Silhouette(sums)

    def _size_noise(self, report: Report) -> float | None:
        """Return the standard deviation of the noise in a cluster's size, in records.

        ``None`` before the round of the result, and if it is not known.
        """
        place = judged.result_round(self.algorithm) - 1
        if len(report.answers) <= place or not report.answers[place]:
            return None
        all_answered = report.answers[place] == report.n_slots
        planned = self.algorithm.size_noise(all_answered)
        if planned is None:
            return None
        return planned * report.factors[place]

    def _warnings_of_columns(self) -> tuple[str, ...]:
        """Return warnings about columns that decide too much or nothing."""
        server = self._running
        algorithm = server.run.algorithm
        centroids = algorithm.centroids(server.state)
        if centroids is None:
            return ()
        return column_warnings(centroids, self.released_domain, self.synopsis)

    def _visible_arrays(self, t: int | None = None) -> ArrayRecord | None:
        server = self._running
        if (
            self.trust_model.is_blind
            or not server.last_sum
            or t not in (None, server.last_sum)
        ):
            return None
        state = server.state
        found = {
            "centroids": self.algorithm.centroids(state),
            "counts": self.algorithm.counts(state),
        }
        if self.algorithm.sizes is not None:
            found["weights"] = self.algorithm.sizes.weights(state)
        arrays = {
            name: Array(array) for name, array in found.items() if array is not None
        }
        return ArrayRecord(arrays) if {"centroids", "counts"} <= arrays.keys() else None
