"""VerticalKMeans: k-means between parties that hold different columns of the same records."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from flower_kmeans.algorithms.feasibility import require_capacity
from flower_kmeans.algorithms.layout import COUNTS
from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.data.domain import Box, Domain, keeps_categories
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import (
    check_arguments,
    instance,
    integer,
    require_type,
    whole,
)
from flower_kmeans.protocol.messages import Request
from flower_kmeans.protocol.noise import check_shares
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.trips import HasEnough, Replies, RequestKind
from flower_kmeans.protocol.trust import VERTICAL
from flower_kmeans.report.report import Report
from flower_kmeans.vertical.algorithm import MAX_HOLDERS, SOFT, VerticalAlgorithm
from flower_kmeans.vertical.costs import RunCosts, costs
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.protocol.body import MAX_PARTIES, MAX_VALUES, Vertical
from flower_kmeans.vertical.protocol.messages import VerticalStep
from flower_kmeans.vertical.protocol.relay import Relay
from flower_kmeans.vertical.report import VerticalReport

from .clustering import ClusteringStrategy, checked_nodes
from .options import KeyDistribution, Nodes, OnRound, Privacy, RosterFile

LEAST_TIMEOUT = 600.0
_STEPS: tuple[VerticalStep, VerticalStep] = (
    "step",
    "close",
)  # the request of a round, and that after the last one
# entropy, in bits, of a Gaussian with sigma 1
_OPENED_BITS = math.log2(math.sqrt(2 * math.pi * math.e))


class VerticalKMeans(ClusteringStrategy[Relay]):
    """k-means between parties that hold different columns of the same records.

    The rows of all parties must be the same records in the same order (`align_rows`).
    Party 0 computes on the columns of the others, which these encrypt; parties 1 to
    ``key_holders`` hold the key; further parties only encrypt. The server relays sealed
    messages. Every party learns noisy centroids and sizes, in all columns. Nobody learns
    the cluster of a single record, because it would not be a private release.
    `Clustering.predict` with ``columns`` gives the nearest centroid in a party's own
    columns.

    Parameters
    ----------
    n_clusters : int
        Number of clusters, 2 to 16.
    domain : Box
        Public bounds of all columns, in the user's units, party 0's columns first.
        Values outside are clipped. Not a `Ball` or a `Sphere`: a party alone knows no
        length of a record.
    privacy : PrivacyBudget
        Budget of the whole run, for one record replaced by another.
    n_records : int
        Public number of rows, the same at every party; at most 2^20.
    parties : sequence of sequences of str, or of int
        Column names of each party in the order of the domain, or the number of columns of
        each party.
    n_rounds : int or "auto", default: "auto"
        Number of rounds; "auto" takes 2 to 5 from public numbers.
    initial : array-like of shape (n_clusters, n_features), optional
        Public initial centroids in the user's units, in place of a sphere packing.
    key_holders : int, optional
        Number of parties, besides party 0, that hold the key together: 1 to 3. Default:
        as many as possible.
    max_colluders : int, default: 1
        Most parties of party 0 and the key holders that can pool their noise without
        harm, 1 to ``key_holders``.
    keys : {"relayed", "roster"}, default: "relayed"
        Source of the parties' keys. ``"relayed"``: the server passes them on, which
        protects against a passive server only. ``"roster"``: a file with one line for
        each party, by slot, pins them.
    roster_file : path, optional
        Path of the roster, which holds public keys only. A start with ``keys="roster"``
        requires it.
    nodes : list of int, optional
        Ids of the parties' nodes, by slot. No other node can take part. A start with
        relayed keys requires them, except in a simulation.
    seed : int, default: 0
        Seed for the initial centroids, which are public. Noise and keys never use it.
    fraction_bits : int, default: 16
        Records are rounded to multiples of ``2**-fraction_bits`` of the scaled domain.
    on_round : callable, optional
        Called with a `RoundInfo` after each round.
    radius : bool, default: True
        Whether only records near a centroid count in its cluster. It means less noise,
        and one more comparison for each cluster.
    check_ids : bool, default: False
        Whether party 0 compares row ids before keys and columns travel. Every party then
        needs ``load_ids``. The check takes two round trips.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If a parameter is out of range, or parameters contradict each other.

    Notes
    -----
    Formal guarantee (docs/vertical.md): each round is one Gaussian release of all sums and counts,
    for one record replaced by another. The guarantee is computational. It holds against parties
    that follow the protocol and a passive server; with a roster, against any server.

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
    _AWAITS_ALL = True
    TRUST: ClassVar[str] = VERTICAL.name

    def __init__(
        self,
        n_clusters: int,
        domain: Annotated[
            Domain, instance(Box, "a Box, for each party clips its columns alone")
        ],
        privacy: Privacy,
        n_records: int,
        *,
        parties: Sequence[Sequence[str]] | Sequence[int],
        n_rounds: int | Literal["auto"] = "auto",
        initial: ArrayLike | None = None,
        key_holders: int | None = None,
        max_colluders: Annotated[int, whole(1)] = 1,
        keys: KeyDistribution = "relayed",
        roster_file: RosterFile = None,
        nodes: Nodes = None,
        seed: int = 0,
        fraction_bits: int = 16,
        radius: bool = True,
        check_ids: Annotated[bool, instance(bool, "a bool")] = False,
        on_round: OnRound = None,
    ) -> None:
        check_arguments(VerticalKMeans.__init__, locals())
        self.trust_model = VERTICAL
        self.keys = keys
        self.n_clusters = n_clusters
        self.domain = domain
        self.privacy = privacy
        self.n_records = n_records
        self.check_ids = check_ids
        self.roster_file = roster_file
        self.on_round = on_round
        self.widths = _widths(parties, domain)
        self.nodes = checked_nodes(nodes)
        self.n_clients = self.min_clients = len(self.widths)
        most = min(self.n_clients - 1, MAX_HOLDERS)
        holders = most if key_holders is None else key_holders
        self.key_holders = integer("key_holders", holders, 1, most)
        self.max_colluders = integer("max_colluders", max_colluders, 1, holders)
        self._given_initial = initial
        self._make_algorithm = partial(
            VerticalAlgorithm.planned,
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
        self.algorithm: VerticalAlgorithm = self._make_algorithm(initial=initial)
        self._planned = self.algorithm
        run = self.widths, n_records, self.algorithm.n_rounds, self.key_holders
        self.costs: RunCosts = costs(
            n_clusters, *run, radius=radius, check_ids=check_ids
        )
        self.plan = replace(self.algorithm.plan(), notes=self.costs.describe())
        if self.algorithm.layout(1).n_words > MAX_VALUES:
            raise ConfigurationError(
                f"Expected n_clusters and columns with k (d + 1) <= {MAX_VALUES} values. "
                f"Got {self.algorithm.layout(1).n_words} instead."
            )
        check_shares(self.algorithm, self.plan, self._noise_shares)
        require_capacity(self.algorithm, self.noise_factor)
        self.algorithm.require_room(self.noise_factor)
        self._requests: Mapping[int, Request] = {}

    @property
    def _noise_shares(self) -> int:
        return self.key_holders + 1 - self.max_colluders

    @property
    def _share(self) -> float:
        """Standard deviation of one party's noise share of a count, in records."""
        algorithm = self.algorithm
        unit = float(
            sensitivities(algorithm, 1)[algorithm.layout(1).places[COUNTS]].max()
        )
        multiplier = self.plan.rounds[0][0].noise_multiplier
        return (
            multiplier
            * unit
            * 2.0**-algorithm.fraction_bits
            / math.sqrt(self._noise_shares)
        )

    # ------------------------------------------------------------------ results

    @property
    def noise_factor(self) -> float:
        """Ratio of the noise's standard deviation to the planned one.

        It is ``sqrt((H + 1) / (H + 1 - t))``, with H ``key_holders`` and t ``max_colluders``.
        """
        return math.sqrt((self.key_holders + 1) / self._noise_shares)

    added_noise_factor = noise_factor  # nobody removes noise beyond the plan

    @property
    def default_timeout(self) -> float:
        """Seconds for a request if ``start`` is given no timeout.

        600, or three times a round's CPU time on one core if that is more.
        """
        return max(LEAST_TIMEOUT, 3 * self.costs.step_seconds)

    @property
    def columns(self) -> tuple[tuple[str, ...], ...]:
        """Column names of each party, by slot; "column 1" and so on if the domain has no names."""
        d = self.domain.n_features
        names = self.domain.columns or tuple(f"column {i + 1}" for i in range(d))
        ends = np.cumsum(self.widths).tolist()
        return tuple(
            names[end - width : end]
            for width, end in zip(self.widths, ends, strict=True)
        )

    @contextmanager
    def expecting(self, n_clients: int) -> Iterator[None]:
        """Require that the number of clients is the number of parties; it changes nothing."""
        if n_clients != self.n_clients:
            raise ConfigurationError(
                f"Expected {self.n_clients} clients, the parties. Got {n_clients} instead."
            )
        yield

    # ------------------------------------------------------------------ the run

    def _timeout_for(self, run: Run, n_clients: int) -> float:
        return self.default_timeout

    def _run(self, roster: Roster | None) -> Run:
        config = {
            "algorithm": algorithm_to_config(self.algorithm),
            "domain": self.domain.to_config(),
        }
        body = Vertical(**config, widths=self.widths, check_ids=self.check_ids)
        return self._described(roster, body, self._noise_shares)

    def _begin(self, roster: Roster | None) -> tuple[Relay, dict[str, Any]]:
        run = self._run(roster)
        m = moduli(self.n_clusters, self.algorithm.radius)
        report = VerticalReport(
            columns=self.columns,
            key_holders=self.key_holders,
            max_colluders=self.max_colluders,
            keys=self.keys,
            rho=self.algorithm.rho,
            soft=SOFT,
            check_ids=self.check_ids,
            n_values=sum(run.document.words),
            bits=math.log2(m.q0 / (self._share * m.unit)) - _OPENED_BITS,
        )
        relay = Relay(run, roster, self.nodes, self._journal)
        return relay, {"n_slots": self.n_clients, "part": report}

    def _require_names(self) -> None:
        if self._is_open:
            raise ConfigurationError(
                "Expected keys='roster', or nodes, the ids of the parties' nodes in order of slot: "
                "otherwise any node that the SuperLink admits could take a party's place. Got "
                "neither."
            )

    def _crowd(self) -> str:
        return f"Parties: {self.n_clients}, {self.key_holders} with the key"

    def _next(
        self, is_last: bool
    ) -> tuple[RequestKind, Mapping[int, Request], HasEnough]:
        self._requests = self._running.request(_STEPS[is_last])
        # Replies are never enough before all have come: no party may be missing.
        return _STEPS[is_last], self._requests, lambda: False

    def _take(self, replies: Replies, is_last: bool) -> None:
        self._running.take(_STEPS[is_last], self._requests, replies, self._trip)

    def _update(self, report: Report) -> None:
        relay = self._running
        report.n_clients = len(relay.parties)
        report.attempts = relay.head
        report.answers = [len(self.widths)] * relay.head
        report.round_trips = relay.round_trips
        report.resumptions = relay.resumptions
        part = report.part
        if isinstance(part, VerticalReport):
            part.sent_bytes = relay.sent_bytes
            part.delivered_bytes = relay.delivered_bytes
            parties = (relay.parties[slot] for slot in sorted(relay.parties))
            part.software = tuple(each.public.software for each in parties)


def _widths(parties: Any, domain: Domain) -> tuple[int, ...]:
    """Return the number of columns of each party, from numbers or names."""
    require_type(
        "parties", parties, list | tuple, "a list with the columns of each party"
    )
    if not 2 <= len(parties) <= MAX_PARTIES:
        raise ConfigurationError(
            f"Expected parties as 2 to {MAX_PARTIES} parties. Got {len(parties)} instead."
        )
    if all(isinstance(each, int) and not isinstance(each, bool) for each in parties):
        widths = tuple(int(each) for each in parties)
    else:
        for each in parties:
            require_type(
                "parties", each, list | tuple, "a list of names for each party"
            )
        names = tuple(name for each in parties for name in each)
        if names != domain.columns:
            raise ConfigurationError(
                "Expected parties to name the columns of the domain, each once and in their order: "
                f"{domain.columns}. Got {names} instead."
            )
        widths = tuple(len(each) for each in parties)
    if min(widths) < 1 or sum(widths) != domain.n_features:
        raise ConfigurationError(
            f"Expected parties with at least one column each and {domain.n_features} columns "
            f"together, those of the domain. Got {widths} instead."
        )
    if not keeps_categories(domain, widths):
        raise ConfigurationError(
            "Expected parties that hold all columns of a category, or none. "
            f"Got {widths} columns by party."
        )
    return widths
