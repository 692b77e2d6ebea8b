"""The report of a run: guarantee, views of the parties, and missing clients."""

import math
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from flower_kmeans.algorithms.judged import QUALITY
from flower_kmeans.algorithms.layout import COUNTS
from flower_kmeans.algorithms.released import (
    CostEstimate,
    SizeReport,
    size_intervals,
    size_margin,
)
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Ball, Domain, Sphere
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.report.parts import ReportPart, part_names
from flower_kmeans.report.ranges import ColumnRange
from flower_kmeans.report.silhouette import Silhouette
from flower_kmeans.templates import html_summary, lines_of, listed, shown
from flower_kmeans.version import (
    __version__,
    flwr_version,
    installed_version,
    openssl_version,
)

PARTIES = (
    "passive server",
    "active server",
    "server and clients",
    "clients",
    "committee",
)
"""The parties of `Report.protects_against`."""

_NEIGHBOURS = {
    "record": "one record replaced by a null record, which adds nothing; n_records is public",
    "client": (
        "all records of one client replaced by nothing, so that the client adds nothing; "
        "n_records and n_clients are public"
    ),
    "person": (
        "all records of one person replaced by null records, which add nothing; the number of "
        "persons, n_persons, is public"
    ),
}
_PROTECTED = {
    "record": "One record",
    "client": "One client with all its records",
    "person": "One person with all their records",
}
_GROUPS = (2, 10)
_GUARANTEE = ("epsilon", "delta", "mu")
_PLAIN = (  # attributes that `Report.to_dict` copies
    *("strategy", "run", "date", "versions", "bounds", "roster", "parties"),
    *(*_GUARANTEE, "unit", "clip", "clips", "max_clients_per_person", "trust", "keys"),
    *("n_rounds", "n_clients", "n_slots", "min_clients", "max_colluders"),
    *("max_attempts", "attempts", "repeats", "round_trips"),
    *("noise_factor", "added_noise_factor", "levels"),
    *("sampler", "theorems", "ledger", "seconds", "answers", "lost_rounds", "warnings"),
    *("protects_against", "statements", "dropped", "incidents", "restarts", "cost"),
    *("resumptions", "size_noise"),
)

IncidentKind = Literal[
    "silent", "refused", "failed", "differs", "named", "renewed", "liar"
]
"""Reason why a client is in a list of incidents.

``silent``: it did not reply. ``refused``: it refused a request. ``failed``: it crashed, or
its reply was not orderly. ``differs``: its query or its history differs from that of most clients.
``named``: committee members could not unseal its shares. ``renewed``: it began a new
session. ``liar``: its sum-share was false and was left out.
"""


def versions() -> dict[str, str]:
    """Return the versions of protocol, arithmetic and cryptography."""
    found = {"flower-kmeans": __version__, "python": platform.python_version()}
    found["flwr"] = flwr_version()
    for name in ("numpy", "cryptography", "msgspec"):
        found[name] = installed_version(name)
    library, _, number = openssl_version().partition(" ")
    found[library] = number or "unknown"
    # TenSEAL has the SEAL that computes on encrypted columns. Most servers lack it.
    tenseal = installed_version("tenseal")
    if tenseal == "unknown":
        return found
    return {**found, "tenseal": tenseal}


def now() -> str:
    """Return the date and time in UTC, to the second: ``2026-01-31T12:00:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def bounds_of(domain: Domain) -> dict[str, Any]:
    """Return the public bounds of records in the user's units, as plain values."""
    if domain.columns is None:
        names = {}
    else:
        names = {"columns": list(domain.columns)}
    if isinstance(domain, Ball):
        return {
            "kind": "Ball",
            **names,
            "center": list(domain.center),
            "radius": domain.radius,
        }
    if isinstance(domain, Sphere):
        return {"kind": "Sphere", **names, "n_features": domain.n_features}
    bounds: dict[str, Any] = {
        "lower": list(domain.lower),
        "upper": list(domain.upper),
        "scale": domain.scale,
    }
    if domain.is_weighted or domain.categories:
        bounds["weights"] = domain.weights_by_name()
    if domain.tighten is not None:
        bounds["tighten"] = domain.tighten
    return {"kind": "Box", **names, **bounds}


@dataclass(frozen=True)
class Dropped:
    """An incident: a client that was missing in a round, or did not reply in an orderly way."""

    client: int  # slot in the cohort; -1 if it never got one
    node_id: int  # the id that Flower gave its node
    round: int  # 0 is the set-up, n_rounds + 1 the delivery
    reason: str  # one of this library's fixed sentences
    kind: IncidentKind = "refused"
    software: str = ""  # versions that it stated, if they may be the reason
    ledger: bool = False  # whether it stated that it keeps a ledger


@dataclass(frozen=True)
class CommitteeReport:
    """The clients that added shares in the last round (docs/protocol.md, section 4)."""

    slots: tuple[int, ...]  # slots of the m positions
    n_present: int
    n_corrupt: int  # number f of positions that may be corrupt
    privacy: int  # tau: any tau shares are independent of an answer
    packing: int  # k: words of an answer in one element of a share
    epoch: int | None = None  # epoch of a committee drawn from a roster
    beacon: str = ""  # the roster's public random value, hexadecimal

    @property
    def n_positions(self) -> int:
        """Number m of positions of the committee."""
        return len(self.slots)

    @property
    def threshold(self) -> int:
        """Number R of sum-shares that reconstruct a sum."""
        return self.privacy + self.packing

    def to_dict(self) -> dict[str, Any]:
        """Return the committee as plain values."""
        derived = {"n_positions": self.n_positions, "threshold": self.threshold}
        return vars(self) | derived


@dataclass(kw_only=True)
class Proceedings:
    """The server's part of a report. It does not depend on records."""

    n_slots: int = 0  # slots of the cohort; with a roster one for each name
    committee: CommitteeReport | None = None
    attempts: int = 0  # number of attempts at all rounds
    repeats: int = 0  # repeated requests for answers and sum-shares
    round_trips: int = 0
    resumptions: int = 0  # how often the run went on after its server ended
    # By round, after noise beyond the plan was removed: the ratio of the noise's standard
    # deviation to the planned one. It is empty if no noise can be removed, because the
    # ratio then follows from the answers.
    noise_factors: list[float] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)  # |S| by round; 0 for a lost round
    # rounds whose sum could not be reconstructed
    lost_rounds: list[int] = field(default_factory=list)


@dataclass(repr=False)
class Report(Proceedings):
    """Privacy and fault report of one run.

    It has ``epsilon``, ``delta``, the views of the parties, and missing clients.
    ``statements`` are plain sentences for all parties. ``to_dict`` returns the whole
    report as plain values.
    """

    strategy: str
    plan: PrivacyPlan
    # a `flower_kmeans.protocol.trust.TrustModel`, which this module cannot import
    trust_model: Any
    keys: str  # where the clients' public keys came from: "roster", "relayed" or "none"
    min_clients: int
    max_colluders: int = 0  # number c of clients that may collude, also with the server
    # With unit="client": how many records' worth of a client count in each release, and
    # the same by release. If clients add means, the clip is in means.
    clip: float | None = None
    clips: Mapping[str, float] = field(default_factory=dict)
    # With unit="person": number of clients at which one person has records, at most
    max_clients_per_person: int | None = None
    is_open: bool = False  # whether any node that the SuperLink admits could take part
    n_clients: int = 0  # clients that took part
    n_rounds: int = 0  # completed rounds
    max_attempts: int = 1  # most attempts at one round
    # numbers of honest answers for which parts of the noise are removed
    levels: tuple[int, ...] = ()
    ledger: bool = False  # whether every client stated that it keeps one
    sampler: str = ""  # samplers of the noise, by name
    theorems: tuple[int, ...] = ()  # theorems of the strategy's guarantee, by number
    seconds: float = 0.0  # since the start
    dropped: list[Dropped] = field(default_factory=list)  # clients missing in a round
    # replies that were not orderly, and their absence
    incidents: list[Dropped] = field(default_factory=list)
    # Warnings of the algorithm, and about released values that no records explain. With a
    # blind server only the clients have them.
    warnings: tuple[str, ...] = ()
    # released cost of the clustering, if the server knows it
    cost: CostEstimate | None = None
    sizes: SizeReport | None = None  # sizes and bounds, if the server knows them
    # standard deviation of the noise in a cluster's size, in records, where the sizes are
    # counts of the round of the result with that noise alone
    size_noise: float | None = None
    # how well the clusters are apart, with ``quality=True``, if the server knows it
    silhouette: Silhouette | None = None
    # ranges of columns that the first round released, if the server knows them
    ranges: tuple[ColumnRange, ...] = ()
    # the report of the run that gave the initial centroids
    earlier: "Report | None" = None
    part: ReportPart | None = None  # further facts, for some kinds of runs
    # The following fields identify the run.
    run: str = ""  # identity of the run, 32 hexadecimal digits
    date: str = ""  # start of the run, in UTC
    # versions of the server's software
    versions: Mapping[str, str] = field(default_factory=versions)
    bounds: Mapping[str, Any] = field(default_factory=dict)  # `bounds_of` its domain
    # digest of the clients' public keys, hexadecimal; empty without a roster
    roster: str = ""
    parties: tuple[str, ...] = ()  # names on the roster, by slot

    @property
    def restarts(self) -> int:
        """Number of new sessions that clients began during the run."""
        return len(self.incidents_of("renewed"))

    @property
    def trust(self) -> str:
        """Name of the trust model."""
        return str(self.trust_model.name)

    @property
    def is_private(self) -> bool:
        """Whether any noise was planned."""
        return self.plan.is_private

    @property
    def epsilon(self) -> float | None:
        """The epsilon of the run at its delta; ``None`` if the run was not private."""
        if self.is_private:
            return self.plan.epsilon()
        return None

    @property
    def delta(self) -> float | None:
        """The delta of the run; ``None`` if the run was not private."""
        if self.is_private:
            return self.plan.budget.delta
        return None

    @property
    def mu(self) -> float | None:
        """The level of Gaussian DP; ``None`` unless all noise is Gaussian."""
        return self.plan.mu

    @property
    def unit(self) -> str:
        """Unit of privacy: "record", "client" or "person"."""
        return self.plan.budget.unit

    @property
    def counted(self) -> str:
        """Noun for the units in which sizes of clusters are counted: records or persons."""
        return self.plan.budget.counted

    @property
    def protected_text(self) -> str:
        """The protected unit in words, at the beginning of a sentence."""
        return _PROTECTED[self.unit]

    @property
    def neighbours(self) -> str:
        """The neighbours of the guarantee, in words."""
        if self.part is None:
            return _NEIGHBOURS[self.unit]
        return self.part.neighbours

    @property
    def together(self) -> PrivacyPlan | None:
        """Joint privacy plan of this run and of the earlier runs that it started from.

        ``None`` if it started from no other run, or one of them was not private.
        """
        # A run may depend on the results of the runs before, so their composition is a
        # privacy filter.
        if self.earlier is None or not (self.is_private and self.earlier.is_private):
            return None
        before: PrivacyPlan | None
        if self.earlier.earlier is None:
            before = self.earlier.plan
        else:
            before = self.earlier.together
        if before is None:
            return None
        return before.then(self.plan)

    @property
    def range_share(self) -> float | None:
        """Fraction of mu^2 that found the ranges of columns; ``None`` without ranges."""
        return self.bounds.get("tighten")

    @property
    def noise_shares(self) -> int:
        """Number M' of noise shares that make the planned noise: the fewest honest ones."""
        if self.part is not None:
            return self.part.noise_shares
        return self.min_clients - self.max_colluders

    @property
    def factors(self) -> list[float]:
        """Ratio of the noise's standard deviation to the planned one, by round."""
        return list(self.noise_factors or self._added())

    @property
    def noise_factor(self) -> float:
        """Largest ratio of the noise's standard deviation to the planned one, of all rounds."""
        return max(self.factors, default=1.0)

    @property
    def added_noise_factor(self) -> float:
        """`noise_factor` before noise beyond the plan was removed."""
        return max(self._added(), default=1.0)

    def _added(self) -> list[float]:
        """Return sqrt(|S| / M') for each round if clients share the noise, else 1."""
        if not self.trust_model.shares_noise:
            return [1.0 for _ in self.answers]
        if self.part is not None:
            return [self.part.noise_factor for _ in self.answers]
        return [math.sqrt(answers / self.noise_shares) for answers in self.answers]

    @property
    def single_mu(self) -> float | None:
        """The mu of one answer under the client's own noise share, ``sqrt(M') mu``.

        More than tau committee members together can reach it. Under relayed keys a malicious
        server can. ``None`` if clients do not share the noise.
        """
        if not self.trust_model.shares_noise or self.plan.mu is None:
            return None
        # The attackers can also remove noise beyond the plan.
        most_shares = max(self.noise_shares, *self.levels, 1)
        return self.plan.mu * math.sqrt(most_shares)

    def incidents_of(self, kind: IncidentKind) -> list[Dropped]:
        """Return the incidents of one kind."""
        return [entry for entry in self.incidents if entry.kind == kind]

    @property
    def renewed(self) -> dict[int, int]:
        """Number of committee members that began a new session without a ledger, by round.

        Each may have added two sums of that round, and counts as one of the f corrupt
        positions.
        """
        if self.committee is None:
            return {}
        members = set(self.committee.slots)
        nodes = set()
        for entry in self.incidents_of("renewed"):
            if not entry.ledger and entry.client in members:
                nodes.add((entry.round, entry.node_id))
        by_round = Counter(number for number, _ in nodes)
        return dict(sorted(by_round.items()))

    @property
    def statements(self) -> tuple[str, ...]:
        """Statements for all parties, in sentences (docs/protocol.md, section 11)."""
        return lines_of("report/statements.txt.j2", report=self)

    def size_interval(self, counts: FloatArray) -> FloatArray | None:
        """Return the least and largest size of each cluster in the last round, (k, 2).

        ``counts``, (k,), are the noisy sizes. All k intervals hold at once with probability
        0.95 over the noise. ``None`` if its scale is not known.
        """
        margin = self.size_margin(len(counts))
        if margin is None:
            return None
        return size_intervals(counts, margin)

    def size_margin(self, n_clusters: int) -> float | None:
        """Return the half width of the intervals of `size_interval`, in records."""
        if self.size_noise is None:
            return None
        counting = [
            release
            for release in self.plan.releases
            if COUNTS in release.blocks and release.name != QUALITY
        ]
        is_laplace = bool(counting) and counting[-1].mechanism == "laplace"
        return size_margin(self.size_noise, n_clusters, is_laplace)

    @property
    def guarantee_holds(self) -> bool:
        """Whether the run's guarantee holds: none of the statements denies it."""
        return not any(words.startswith("NOT PRIVATE") for words in self.statements)

    @property
    def are_directions(self) -> bool:
        """Whether records are divided by their lengths: the run's domain is a `Sphere`."""
        return self.bounds.get("kind") == "Sphere"

    @property
    def mean_cosine(self) -> CostEstimate | None:
        """Mean cosine similarity of a record to its centroid, from the released cost.

        ``1 - cost / (2 n_records)``, on a `Sphere`. ``None`` elsewhere, and where no
        cost is known here.
        """
        n_records = self.plan.n_records
        if not self.are_directions or self.cost is None or n_records is None:
            return None
        value = 1 - self.cost.value / (2 * n_records)
        error = self.cost.standard_error / (2 * n_records)
        return CostEstimate(value, error, self.cost.users_units)

    @property
    def is_noise_removed(self) -> bool:
        """Whether noise beyond the plan was removed in the round with the most noise."""
        # The factors are computed in two ways, so their last bits can differ without any
        # removal.
        return not math.isclose(self.noise_factor, self.added_noise_factor)

    @property
    def clips_are_equal(self) -> bool:
        """Whether all releases have the same clip."""
        return set(self.clips.values()) <= {self.clip}

    @property
    def clip_text(self) -> str:
        """The clip of a client, in a few words; empty without clipping."""
        if self.clip is None:
            return ""
        return clip_text(self.clip, self.clips)

    @property
    def single_text(self) -> str:
        """The guarantee of a single answer under its own noise share, in brackets.

        See docs/guarantees, Theorem 40.
        """
        formula = "" if self.levels else "sqrt(M') "
        if self.single_mu is None:
            return ""
        return f" ({formula}mu = {self.single_mu:.4g})"

    @property
    def protects_against(self) -> dict[str, str]:
        """Sentences on the protection of records against each of `PARTIES`.

        See docs/threat-model.md.
        """
        if self.part is None:
            words = lines_of("report/protection.txt.j2", report=self)
        else:
            words = self.part.protection(self)
        # The lengths can differ: only runs with shares have a committee, the last party.
        return dict(zip(PARTIES, words, strict=False))

    @property
    def facts(self) -> dict[str, object]:
        """The guarantee and the participants, by names, as text or ``None``."""
        private = self.epsilon is not None and self.delta is not None
        missed = len({entry.node_id for entry in self.dropped})
        return {
            "epsilon": f"{self.epsilon:.4g}" if private else "NOT PRIVATE",
            "delta": f"{self.delta:.3g}" if private else None,
            "protected": f"one {self.unit}" if private else "nobody",
            "trust model": f"{self.trust} (keys: {self.keys})",
            "clients": f"{self.n_clients}, {missed} of them missed a round",
            "rounds": f"{self.n_rounds} of {len(self.plan.rounds)}",
            "noise factor": f"{self.noise_factor:.4g}" if private else None,
        }

    def __repr__(self) -> str:
        names = (
            "strategy",
            "epsilon",
            "delta",
            "unit",
            "trust",
            "n_clients",
            "n_rounds",
        )
        values = [f"{name}={shown(getattr(self, name))}" for name in names]
        return f"Report({', '.join(values)})"

    def _repr_html_(self) -> str:
        tables = self.plan.tables
        notes = [*self.statements, *self.warnings]
        title = f"Report of a {self.strategy} run"
        return html_summary(title, self.facts, tables, notes)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, ready for JSON."""
        committee = self.committee
        earlier = self.earlier
        together = self.together
        noise_shares = self.noise_shares if self.trust_model.shares_noise else None
        joint = None
        if together is not None:
            joint = {
                "epsilon": together.epsilon(),
                "delta": together.budget.delta,
                "mu": together.mu,
            }
        parts: dict[str, Any] = dict.fromkeys(part_names())
        if self.part is not None:
            parts[self.trust_model.kind] = self.part.to_dict()
        values = {name: getattr(self, name) for name in _PLAIN}
        values |= {
            "private": self.is_private,
            "n_records": self.plan.n_records,
            "n_persons": self.plan.n_persons,
            "planned_clients": self.plan.n_clients,
            "committee": committee and committee.to_dict(),
            "noise_shares": noise_shares,
            "noise_factors": self.factors,
            "result_by": "clients" if self.trust_model.is_blind else "server",
            "sizes": self.sizes and self.sizes.to_dict(),
            "silhouette": self.silhouette and self.silhouette.to_dict(),
            "ranges": [each._asdict() for each in self.ranges],
            "earlier": earlier and earlier._origin(),
            "together": joint,
            **parts,
            "releases": self._releases(),
            "plan": self.plan.to_config(),
            "notes": self.plan.notes,
        }
        if self.are_directions:
            values["mean_cosine"] = self.mean_cosine
        if (epsilon := self.plan.budget.epsilon) is not None:
            # The noise also has a delta at other epsilons, and an epsilon for groups.
            epsilons = [factor * epsilon for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
            values["neighbours"] = self.neighbours
            values["delta_at_epsilon"] = [[e, self.plan.delta(e)] for e in epsilons]
            of_groups = {str(size): self.plan.group(size) for size in _GROUPS}
            values["epsilon_of_groups"] = of_groups
        return {name: _plain(value) for name, value in values.items()}

    def _origin(self) -> dict[str, Any]:
        """Return the facts of this run for the report of a run that started from it."""
        names = ("strategy", "run", "date", "trust", *_GUARANTEE, "keys", "min_clients")
        own = {name: getattr(self, name) for name in names}
        own["plan"] = self.plan.to_config()
        return own | {"earlier": self.earlier and self.earlier._origin()}

    def _releases(self) -> list[dict[str, Any]]:
        names = ("name", "mechanism", "norm", "noise_multiplier")
        rows = []
        for number, releases in enumerate(self.plan.rounds, 1):
            for release in releases:
                row: dict[str, Any] = {"round": number}
                row |= {name: getattr(release, name) for name in names}
                if release.parts:
                    row["parts"] = release.parts
                # The cost is that of the release alone. All compose to the guarantee.
                measure = "mu" if release.mechanism == "gaussian" else "epsilon"
                row[measure] = release.cost if self.is_private else None
                rows.append(row)
        return rows


def clip_text(clip: float, clips: Mapping[str, float]) -> str:
    """Return a text of a client's clip: ``clip`` for all releases, or ``clips`` by release."""
    if set(clips.values()) <= {clip}:
        return f"{clip:g} records' worth of a client in each release"
    return f"by release: {listed(clips)}"


def _plain(value: Any) -> Any:
    """Return a copy of a value in types of JSON."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "__dict__"):
        return _plain(vars(value))
    return value
