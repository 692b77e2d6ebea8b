"""What a run's report says: the guarantee, who sees what, and which clients were missing."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from flower_kmeans.algorithms.released import CostEstimate, SizeReport
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.report.vertical import NEIGHBOURS, VerticalReport

PARTIES = ("passive server", "active server", "server and clients", "clients", "committee")
"""The parties of `Report.protects_against`."""

_NEIGHBOURS = {
    "record": "one record replaced by a null record, which adds nothing; n_records is public",
    "client": (
        "all records of one client replaced by nothing, so that the client adds nothing; "
        "n_records and n_clients are public"
    ),
}
_GROUPS = (2, 10)
_PLAIN = (  # attributes that `Report.to_dict` copies
    *("strategy", "epsilon", "delta", "mu", "unit", "clip", "clips", "trust", "keys"),
    *("n_rounds", "n_clients", "n_slots", "min_clients", "max_colluders", "max_attempts"),
    *("attempts", "repeats", "round_trips", "noise_factor", "added_noise_factor", "levels"),
    *("sampler", "ledger", "seconds", "answers", "lost_rounds", "warnings"),
    *("protects_against", "statements"),
)


class _Trust(Protocol):
    """What a report reads from a trust model (`flower_kmeans.protocol.trust.TrustModel`)."""

    @property
    def name(self) -> str: ...

    @property
    def is_vertical(self) -> bool: ...

    @property
    def is_blind(self) -> bool: ...

    @property
    def is_protected(self) -> bool: ...

    @property
    def has_committee(self) -> bool: ...

    @property
    def shares_noise(self) -> bool: ...

    @property
    def is_private(self) -> bool: ...


Kind = Literal["silent", "refused", "failed", "differs", "skipped", "named", "renewed", "liar"]
"""Why a client is in a list of incidents.

``differs``: its query or its history is another one. ``skipped``: it sent or caused empty shares.
``named``: committee members could not open its shares. ``renewed``: it began a new session.
``liar``: its sum-share was false and was left out.
"""

_FAULTS: dict[Kind, str] = {
    "differs": "Left out because their queries or their history differ",
    "skipped": "Left out because of empty shares",
    "named": "Named because committee members could not open their shares",
    "liar": "Named because their sum-shares were false and were left out",
}


@dataclass(frozen=True)
class Dropped:
    """A client that a round went on without, or that did not reply as it should."""

    client: int  # slot in the cohort; -1 if it never got one
    node_id: int  # Flower's
    round: int  # 0 is the set-up, n_rounds + 1 the delivery
    reason: str  # one of this library's fixed sentences
    kind: Kind = "refused"
    software: str = ""  # versions that it stated, where they may be the reason
    ledger: bool = False  # whether it stated that it keeps a ledger


@dataclass(frozen=True)
class CommitteeReport:
    """The clients that add shares, as the last round had them (docs/protocol.md, section 4)."""

    slots: tuple[int, ...]  # of the m positions
    n_present: int
    n_corrupt: int  # f: positions that may be corrupt
    privacy: int  # tau: any tau shares are independent of an answer
    packing: int  # k: words of an answer in one element of a share
    epoch: int | None = None  # of a committee that was drawn from a roster
    beacon: str = ""  # the roster's public random value, hexadecimal

    @property
    def n_positions(self) -> int:
        """m: positions of the committee."""
        return len(self.slots)

    @property
    def threshold(self) -> int:
        """R: sum-shares that open a sum."""
        return self.privacy + self.packing


@dataclass(kw_only=True)
class Proceedings:
    """What a report takes from the server as it is; nothing here follows from records."""

    n_slots: int = 0  # of the cohort; with a roster one for each name
    committee: CommitteeReport | None = None
    attempts: int = 0  # at all rounds
    repeats: int = 0  # repeated requests for sum-shares
    round_trips: int = 0
    # By round, after noise beyond the plan was removed: its standard deviation over the planned
    # one. Empty where none was removed: then it follows from the answers.
    noise_factors: list[float] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)  # |S| by round; 0 for a lost round
    lost_rounds: list[int] = field(default_factory=list)  # whose sum could not be reconstructed


@dataclass
class Report(Proceedings):
    """Privacy and fault report of one run: ``epsilon``, ``delta``, who sees what, who was missing.

    ``statements`` has what all parties must know in plain sentences, ``to_dict`` all of it as plain
    values.
    """

    strategy: str
    plan: PrivacyPlan
    trust_model: _Trust
    keys: str  # where the clients' public keys came from: "roster", "relayed" or "none"
    min_clients: int
    max_colluders: int = 0  # c: clients that may work together, also with the server
    # With unit="client": how many records' worth of a client count in each release, and by release
    # where releases differ. Where clients add means, it counts those.
    clip: float | None = None
    clips: Mapping[str, float] = field(default_factory=dict)
    n_clients: int = 0  # that took part
    n_rounds: int = 0  # that were completed
    max_attempts: int = 1  # at one round
    levels: tuple[int, ...] = ()  # for how many honest answers parts of the noise are removed
    ledger: bool = False  # whether every client stated that it keeps one
    sampler: str = ""
    seconds: float = 0.0
    dropped: list[Dropped] = field(default_factory=list)  # whom a round went on without
    incidents: list[Dropped] = field(default_factory=list)  # all that was not an orderly reply
    warnings: tuple[str, ...] = ()  # the algorithm's; clients of a blind server log them instead
    cost: CostEstimate | None = None  # released cost of the clustering, if the server knows it
    sizes: SizeReport | None = None  # against their bounds, if the server knows them
    earlier: "Report | None" = None  # of the run whose result were the initial centroids
    vertical: VerticalReport | None = None

    @property
    def trust(self) -> str:
        """Name of the trust model."""
        return self.trust_model.name

    @property
    def is_private(self) -> bool:
        """Whether any noise was planned."""
        return self.plan.is_private

    @property
    def epsilon(self) -> float | None:
        """The epsilon of the run at its delta; ``None`` if the run was not private."""
        return self.plan.epsilon() if self.is_private else None

    @property
    def delta(self) -> float | None:
        """The delta of the run; ``None`` if the run was not private."""
        return self.plan.budget.delta if self.is_private else None

    @property
    def mu(self) -> float | None:
        """The Gaussian-differential-privacy level; ``None`` unless all noise is Gaussian."""
        return self.plan.mu

    @property
    def unit(self) -> str:
        """Who is protected: one record or one client."""
        return self.plan.budget.unit

    @property
    def neighbours(self) -> str:
        """What the guarantee compares a run with, in words."""
        return _NEIGHBOURS[self.unit] if self.vertical is None else NEIGHBOURS

    @property
    def together(self) -> PrivacyPlan | None:
        """The cost of this run and of those before it, each the start of the next one.

        ``None`` if it started from no other run, or one of them was not private.
        """
        # Each run was chosen after the results of those before: a privacy filter, not a plan.
        if self.earlier is None or not (self.is_private and self.earlier.is_private):
            return None
        before = self.earlier.plan if self.earlier.earlier is None else self.earlier.together
        return None if before is None else before.then(self.plan)

    @property
    def noise_shares(self) -> int:
        """M': the fewest honest noise shares, which make the planned noise together."""
        if self.vertical is not None:
            return self.vertical.noise_shares
        return self.min_clients - self.max_colluders

    @property
    def factors(self) -> list[float]:
        """For each round, the standard deviation of the noise in the sum over the planned one."""
        return list(self.noise_factors or self._added())

    @property
    def noise_factor(self) -> float:
        """The largest of all rounds: standard deviation of the noise over the planned one."""
        return max(self.factors, default=1.0)

    @property
    def added_noise_factor(self) -> float:
        """The same of the noise that clients added, before noise beyond the plan was removed."""
        return max(self._added(), default=1.0)

    def _added(self) -> list[float]:
        """Return sqrt(|S| / M') for each round where clients share the noise, else 1."""
        if not self.trust_model.shares_noise:
            return [1.0 for _ in self.answers]
        if self.vertical is not None:
            return [self.vertical.noise_factor for _ in self.answers]
        return [math.sqrt(answers / self.noise_shares) for answers in self.answers]

    @property
    def single_mu(self) -> float | None:
        """The mu of a single answer under the client's own noise share, ``sqrt(M') mu``.

        More than tau committee members reach it; under relayed keys a malicious server does.
        ``None`` where clients do not share the noise.
        """
        if not self.trust_model.shares_noise or self.plan.mu is None:
            return None
        # Noise beyond the plan can be removed from it.
        return self.plan.mu * math.sqrt(max(self.noise_shares, *self.levels, 1))

    def incidents_of(self, kind: Kind) -> list[Dropped]:
        """Return the incidents of one kind."""
        return [entry for entry in self.incidents if entry.kind == kind]

    @property
    def renewed(self) -> dict[int, int]:
        """By round: committee members that began a new session without a ledger.

        Each may have added two sums of that round, and counts among the f corrupt positions.
        """
        if self.committee is None:
            return {}
        members = set(self.committee.slots)
        nodes = {
            (entry.round, entry.node_id)
            for entry in self.incidents_of("renewed")
            if not entry.ledger and entry.client in members
        }
        return dict(sorted(Counter(number for number, _ in nodes).items()))

    @property
    def statements(self) -> tuple[str, ...]:
        """Return what all parties must know, in plain sentences (docs/protocol.md, section 11)."""
        if self.vertical is not None:
            about = self.vertical.statements(self.seconds, self.round_trips)
            return (*about, *self._about_price())
        return (
            *self._who_sees_what(),
            *self._about_keys(),
            *self._about_committee(),
            *self._about_faults(),
            *(() if self.sizes is None else self.sizes.statements),
            *self._about_price(),
        )

    def _who_sees_what(self) -> Iterator[str]:
        model, count = self.trust_model, _clients(self.max_colluders)
        if not model.is_private:
            yield "NOT PRIVATE: nobody adds noise, and the server sees every client's exact sums."
        elif not model.is_protected:
            yield (
                "The server adds the noise and sees every client's exact sums: nobody is protected "
                "from the server. Clients and readers see the noisy sums only."
            )
        elif not model.shares_noise:
            yield (
                "The server sees masked words only, and clients must trust the server to add the "
                "noise: no client can detect that it is missing."
            )
            yield "The server and one client together see every exact answer."
        else:
            together = f"The server and up to {count} together see only the noisy sums"
            if self.keys == "relayed":
                yield (
                    f"{together}, as long as the server is passive. Keys were relayed by the "
                    "server, so a malicious server reads every answer, each under its own noise "
                    f"share{self._single()}."
                )
            else:
                yield f"{together}."
            members = "more than tau" if self.committee is None else f"{self.committee.privacy + 1}"
            yield (
                f"If {members} committee members pool their shares, also without the server, they "
                f"see each answer under its own noise share{self._single()}."
            )
            if self.plan.mu is not None:
                yield (
                    f"If q > {self.max_colluders} clients work together, the noise against them "
                    f"has ({self.min_clients} - q)/{self.noise_shares} of its variance."
                )
        if model.is_blind:
            yield (
                "The server saw no sum, and this report holds no centroid: clients computed the "
                "queries and the result, and have the algorithm's warnings in their logs."
            )
        else:
            yield (
                "The server sent the queries and the result. Clients must trust it with the result."
            )
        yield "Results are not protected against hostile clients."

    def _about_keys(self) -> Iterator[str]:
        model = self.trust_model
        yield f"Trust model: {model.name}. Keys: {self.keys}."
        if model.is_protected:
            if self.keys == "roster":
                yield (
                    "Keys are pinned by a roster: nobody else can assign a client's slot, read its "
                    f"answer or make a sum. {self.n_clients} of {self.n_slots} clients on the "
                    "roster took part. Keys that are stolen after the run open nothing of it."
                )
            elif not model.shares_noise:
                yield (
                    "Keys were relayed by the server, so masks protect against a passive server "
                    "only: a malicious server reads every answer."
                )
        if not model.is_protected:
            yield "TLS is required between clients and server: messages hold exact sums."
        elif not model.has_committee:
            yield (
                "TLS is required between clients and server: a client that can read another "
                "client's messages sees its exact answer."
            )
        elif self.keys == "relayed":
            yield (
                "TLS is required between clients and server: without it, others on the network can "
                "do what a malicious server can."
            )
        else:
            readable = "who takes part" if model.is_blind else "the noisy sums and who takes part"
            yield (
                f"TLS is required between clients and server: without it, others see {readable}. "
                "Answers stay sealed."
            )

    def _about_committee(self) -> Iterator[str]:
        committee = self.committee
        if committee is None:
            return
        yield (
            f"A committee of m = {committee.n_positions} clients, {committee.n_present} of them "
            f"present, added shares. Of them f = {committee.n_corrupt} may be corrupt. "
            f"Any tau = {committee.privacy} shares are independent of an answer. One element of a "
            f"share holds k = {committee.packing} words. From R = {committee.threshold} sum-shares "
            "one sum of a round is reconstructed."
        )
        if committee.epoch is not None:
            yield (
                f"It was drawn from the roster with epoch {committee.epoch} and beacon "
                f"{committee.beacon}. If {_clients(self.max_colluders)} of {self.n_slots} are "
                f"corrupt, more than {committee.n_corrupt} are in it with probability at most "
                "2^-40."
            )
        elif committee.n_positions < self.n_slots:
            yield (
                "It was drawn by the server at random, which protects against a passive server "
                "only."
            )

    def _about_faults(self) -> Iterator[str]:
        if self.answers:
            yield f"Clients behind the sums, by round: {', '.join(map(str, self.answers))}."
        if self.trust_model.shares_noise:
            added = f"{self.added_noise_factor:.4g} times the planned standard deviation"
            formula = f"sqrt(|S|/M') with M' = {self.noise_shares}"
            if math.isclose(self.noise_factor, self.added_noise_factor):
                yield f"The noise has at most {added}, {formula}."
            else:
                yield (
                    f"Clients added noise of at most {added}, {formula}. Noise beyond the plan was "
                    f"removed: {self.noise_factor:.4g} times the planned one is left."
                )
        if self.round_trips:
            yield (
                f"Round trips: {self.round_trips}. Attempts: {self.attempts}. Repeated requests "
                f"for sum-shares: {self.repeats}."
            )
        if self.lost_rounds:
            rounds = ", ".join(map(str, self.lost_rounds))
            yield f"The run went on without the sums of lost rounds: {rounds}."
        for kind, words in _FAULTS.items():
            entries = self.incidents_of(kind)
            if not entries:
                continue
            software = ""
            if kind == "differs":
                stated = sorted({entry.software or "not stated" for entry in entries})
                software = f"; their software: {', '.join(stated)}"
            yield f"{words}: {_clients(len({entry.node_id for entry in entries}))}{software}."
            if kind == "liar" and self.trust_model.is_blind:
                yield "The server and one client together can forge the name of such a client."
        committee, renewed = self.committee, self.renewed
        if committee is not None and renewed:
            rounds = ", ".join(f"{count} in round {number}" for number, count in renewed.items())
            yield (
                "Committee members that lost their memory and keep no ledger can add two sums of a "
                f"round. They count among the {committee.n_corrupt} that may be corrupt: {rounds}."
            )
            if max(renewed.values()) > committee.n_corrupt:
                yield (
                    f"WARNING: more than {committee.n_corrupt} in one round. A malicious server "
                    "can have reconstructed more than one sum of that round."
                )

    def _about_price(self) -> Iterator[str]:
        if not self.is_private:
            yield "No ledger counts this run: without privacy it has no price."
        elif self.ledger:
            yield (
                "Every client states that it keeps a ledger of releases. Such a ledger bounds what "
                "all runs together cost that client. Nobody else can check it."
            )
        else:
            yield (
                "No ledger was kept by the server, and it cannot know whether all clients keep "
                "one: guarantees hold for this run alone."
            )
        if self.clip is not None:
            yield (
                "One client is protected with all of its records. Whatever it holds, "
                f"{self._counts_as(self.clip)}. A client is one node: records of one person at "
                "several nodes have the guarantee of a group of clients."
            )
            if self.cost is not None:
                yield (
                    "The cost is made of what clients added after clipping. Where clipping took "
                    "something away, it is not the cost of their records. Its standard error is "
                    "of the noise alone."
                )
        if self.is_private:
            public = "n_records" if self.clip is None else "n_records, n_clients"
            yield f"Not protected: {public}, participation, timing and message sizes."
        if self.earlier is None:
            return
        origin = (
            f"the result of an earlier run ({self.earlier.strategy}, trust {self.earlier.trust})"
        )
        if (together := self.together) is None:
            yield f"NOT PRIVATE together: the initial centroids are {origin}, which is not private."
        else:
            yield (
                f"The initial centroids are {origin}: both together cost epsilon "
                f"{together.epsilon():.4g} at delta {together.budget.delta:.3g}."
            )

    @property
    def clip_text(self) -> str:
        """How much of a client counted, in a few words; empty without clipping."""
        return "" if self.clip is None else clip_text(self.clip, self.clips)

    @property
    def protects_against(self) -> dict[str, str]:
        """Whether records stay protected against each of `PARTIES` (docs/threat-model.md)."""
        if self.vertical is not None:
            return self.vertical.protects_against
        model = self.trust_model
        if model.shares_noise:
            answers = self._protection_by_shares()
        elif model.is_protected:
            answers = (
                "Yes: it sees masked words only.",
                "No: it can pose as a key distributor and read every exact answer."
                if self.keys == "relayed"
                else "In part: it sees masked words only, but no client can detect that it leaves "
                "the noise out.",
                "No: the server and one client together see every exact answer.",
                "Yes: any number of clients see the noisy sums only, if the server adds the noise.",
                "",
            )
        else:
            exact = "No: it sees every client's exact sums."
            alone = "No: the server alone sees every client's exact sums."
            results = (
                "Yes: they see the noisy sums only."
                if model.is_private
                else "No: the results are exact."
            )
            answers = (exact, exact, alone, results, "")
        return {who: words for who, words in zip(PARTIES, answers, strict=True) if words}

    def _protection_by_shares(self) -> tuple[str, str, str, str, str]:
        model, count, single = self.trust_model, _clients(self.max_colluders), self._single()
        alone = "it sees no sum." if model.is_blind else "it sees one noisy sum in each round."
        corrupt = "f" if self.committee is None else str(self.committee.n_corrupt)
        tau = "tau" if self.committee is None else str(self.committee.privacy)
        together = f"up to {count} and the server together see only the noisy sums"
        if self.keys == "relayed":
            active = (
                "No: it can pose as clients and read every answer under its own noise "
                f"share{single}."
            )
            colluding = f"In part: if the server follows the protocol, {together}."
        else:
            start, twice = "Yes", ""
            if not self.ledger:
                start = "In part"
                twice = (
                    " But a committee member without a ledger that loses its memory can add twice, "
                    f"and counts among the {corrupt} that may be corrupt."
                )
            active = f"Yes: {alone}" if model.is_blind else f"{start}: {alone}{twice}"
            colluding = f"{start}: {together}.{twice}"
        return (
            f"Yes: {alone}",
            active,
            colluding,
            f"Yes: clients without the server, up to {tau} of them in the committee, see only the "
            f"noisy sums. More than {self.max_colluders} know too large a part of the noise.",
            f"No: more than {tau} committee members, also without the server, see each answer "
            f"under its own noise share{single}.",
        )

    def _single(self) -> str:
        """Return the guarantee of a single answer under its own noise share, in brackets."""
        formula = "" if self.levels else "sqrt(M') "
        return "" if self.single_mu is None else f" ({formula}mu = {self.single_mu:.4g})"

    def _counts_as(self, clip: float) -> str:
        if set(self.clips.values()) <= {clip}:
            return f"it counts as {clip:g} records at most in each release"
        return (
            "it adds at most so many times what one record may add to a release (of means, so many "
            f"means): {_listed(self.clips)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, ready for JSON."""
        return {
            **{name: _copy(getattr(self, name)) for name in _PLAIN},
            "private": self.is_private,
            "n_records": self.plan.n_records,
            "planned_clients": self.plan.n_clients,
            **self._further_guarantees(),
            "committee": self._committee_facts(),
            "noise_shares": self.noise_shares if self.trust_model.shares_noise else None,
            "noise_factors": self.factors,
            "dropped": [vars(entry).copy() for entry in self.dropped],
            "incidents": [vars(entry).copy() for entry in self.incidents],
            "result_by": "clients" if self.trust_model.is_blind else "server",
            "cost": None if self.cost is None else vars(self.cost).copy(),
            "sizes": None if self.sizes is None else self.sizes.to_dict(),
            **self._earlier(),
            "vertical": None if self.vertical is None else self.vertical.to_dict(),
            "releases": self._releases(),
        }

    def _committee_facts(self) -> dict[str, Any] | None:
        if self.committee is None:
            return None
        names = ("slots", "n_present", "n_corrupt", "privacy", "packing", "epoch", "beacon")
        return {n: _copy(getattr(self.committee, n)) for n in (*names, "n_positions", "threshold")}

    def _earlier(self) -> dict[str, Any]:
        if self.earlier is None:
            return {"earlier": None, "together": None}
        together, names = self.together, ("strategy", "trust", "epsilon", "delta", "mu")
        return {
            "earlier": {name: getattr(self.earlier, name) for name in names},
            "together": together
            and {
                "epsilon": together.epsilon(),
                "delta": together.budget.delta,
                "mu": together.mu,
            },
        }

    def _further_guarantees(self) -> dict[str, Any]:
        """Return what else the same noise means: for other epsilons, and for several records."""
        epsilon = self.plan.budget.epsilon
        if epsilon is None:
            return {}
        epsilons = [factor * epsilon for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
        return {
            "neighbours": self.neighbours,
            "delta_at_epsilon": [[e, self.plan.delta(e)] for e in epsilons],
            "epsilon_of_groups": {str(size): self.plan.group(size) for size in _GROUPS},
        }

    def _releases(self) -> list[Mapping[str, Any]]:
        return [
            {
                "round": number,
                "name": release.name,
                "mechanism": release.mechanism,
                "norm": release.norm,
                "noise_multiplier": release.noise_multiplier,
                **({"parts": [list(part) for part in release.parts]} if release.parts else {}),
                # What it would cost alone; together they compose to the run's guarantee.
                "mu" if release.mechanism == "gaussian" else "epsilon": (
                    release.cost if self.is_private else None
                ),
            }
            for number, releases in enumerate(self.plan.rounds, 1)
            for release in releases
        ]


def clip_text(clip: float, clips: Mapping[str, float]) -> str:
    """Return how much of a client counts, ``clip`` where ``clips`` does not name a release."""
    if set(clips.values()) <= {clip}:
        return f"{clip:g} records' worth of a client in each release"
    return "by release: " + _listed(clips)


def _copy(value: Any) -> Any:
    """Return a value that JSON has, and that does not change with the report's."""
    if isinstance(value, list | tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _listed(clips: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {clip:.4g}" for name, clip in clips.items())


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"
