"""What a run's report says: the guarantee, who sees what, and which clients were missing."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from flower_kmeans.privacy.plan import PrivacyPlan

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


class Trust(Protocol):
    """What a report reads from a trust model (`flower_kmeans.protocol.trust.TrustModel`)."""

    @property
    def name(self) -> str:
        """Name of the trust model."""

    @property
    def is_blind(self) -> bool:
        """Whether the server sees no sum, so clients compute the queries themselves."""

    @property
    def is_protected(self) -> bool:
        """Whether vectors leave a client protected."""

    @property
    def has_committee(self) -> bool:
        """Whether a committee of clients adds the shares."""

    @property
    def shares_noise(self) -> bool:
        """Whether each client adds a share of the noise."""

    @property
    def is_private(self) -> bool:
        """Whether anybody adds noise."""


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
    """A client that a round went on without, or that did not reply as it should.

    Attributes
    ----------
    client : int
        Slot of the client in the cohort; -1 if it never got one.
    node_id : int
        Flower's id of the node.
    round : int
        0 is the set-up, ``n_rounds + 1`` the delivery.
    reason : str
        One of this library's fixed sentences.
    kind : str
        See `Kind`.
    software : str
        Versions of the client's software as it stated them, where they may be the reason.
    ledger : bool
        Whether the client stated that it keeps a ledger.
    """

    client: int
    node_id: int
    round: int
    reason: str
    kind: Kind = "refused"
    software: str = ""
    ledger: bool = False


@dataclass(frozen=True)
class CommitteeReport:
    """The clients that add shares, as the last round had them (docs/protocol.md, section 4).

    Attributes
    ----------
    slots : tuple of int
        Slots of the m positions.
    n_present : int
        Positions whose client was there.
    n_corrupt : int
        f: positions that may be corrupt.
    privacy : int
        tau: any tau shares say nothing about an answer.
    packing : int
        k: words of an answer in one element of a share.
    epoch : int or None
        Of a committee that was drawn from a roster.
    beacon : str
        The roster's public random value in hexadecimal, where the committee was drawn with it.
    """

    slots: tuple[int, ...]
    n_present: int
    n_corrupt: int
    privacy: int
    packing: int
    epoch: int | None = None
    beacon: str = ""

    @property
    def n_positions(self) -> int:
        """m: positions of the committee."""
        return len(self.slots)

    @property
    def threshold(self) -> int:
        """R: sum-shares that open a sum."""
        return self.privacy + self.packing


@dataclass(frozen=True)
class CostEstimate:
    """The cost of a clustering, estimated from released values.

    Attributes
    ----------
    value : float
        Sum of squared distances of the records that counted in the last round, to the new centroid
        of the cluster that they were nearest to before. Noise may make it negative.
    standard_error : float
        Of ``value``, from the noise alone.
    users_units : bool
        Whether it is in squared units of the user's, which needs columns of one scale; otherwise
        it is in squared units of the scaled domain.
    """

    value: float
    standard_error: float
    users_units: bool


@dataclass
class Report:
    """Privacy and fault report of one run.

    Attributes
    ----------
    strategy : str
    plan : PrivacyPlan
        The releases and their composition.
    trust_model : Trust
        Who adds the noise, how the sum is made, and who sees it.
    keys : {"roster", "relayed", "none"}
        Where the clients' public keys came from.
    min_clients : int
        Fewest clients behind a sum.
    max_colluders : int
        c: how many clients may work together, also with the server.
    n_clients, n_slots : int
        Clients that took part; slots of the cohort, with a roster one for each name.
    n_rounds : int
        Rounds that were completed.
    clip : float or None
        With ``unit="client"``: how many records' worth of one client counted in each release, where
        `clips` says nothing else.
    clips : mapping of str to float
        With ``unit="client"``: the same by release, for algorithms whose releases differ; where
        clients add means, it counts those.
    committee : CommitteeReport or None
        Where a committee added shares.
    max_attempts : int
        How often the server may ask for a round.
    attempts, repeats, round_trips : int
        Attempts at all rounds, repeated requests for sum-shares, and all round trips.
    levels : tuple of int
        For how many honest answers parts of the noise are removed; empty where none are.
    noise_factors : list of float
        For each round, the standard deviation of the noise in the sum over the planned one, after
        noise beyond the plan was removed. Empty where none was: then it follows from ``answers``.
    ledger : bool
        Whether every client stated that it keeps a ledger.
    sampler : str
    seconds : float
    answers : list of int
        For each round, the clients behind the sum, |S|; 0 for a lost round.
    lost_rounds : list of int
        Rounds whose sum could not be opened, which the run went on without.
    dropped : list of Dropped
        Which clients a round went on without, when and why.
    incidents : list of Dropped
        Everything that was not an orderly reply, also where the round did not miss it.
    warnings : tuple of str
        The algorithm's warnings; empty where the server saw no sum, whose clients log them.
    cost : CostEstimate or None
        The cost at the final centroids, where the run released it and the server learned it.
    earlier : Report or None
        Of the run whose result were the initial centroids, if the strategy was given one.
    """

    strategy: str
    plan: PrivacyPlan
    trust_model: Trust
    keys: str
    min_clients: int
    max_colluders: int = 0
    clip: float | None = None
    clips: Mapping[str, float] = field(default_factory=dict)
    n_clients: int = 0
    n_slots: int = 0
    n_rounds: int = 0
    committee: CommitteeReport | None = None
    max_attempts: int = 1
    attempts: int = 0
    repeats: int = 0
    round_trips: int = 0
    levels: tuple[int, ...] = ()
    noise_factors: list[float] = field(default_factory=list)
    ledger: bool = False
    sampler: str = ""
    seconds: float = 0.0
    answers: list[int] = field(default_factory=list)
    lost_rounds: list[int] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    incidents: list[Dropped] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    cost: CostEstimate | None = None
    earlier: "Report | None" = None

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
    def together(self) -> PrivacyPlan | None:
        """What this run and those before it, each of which the next one started from, cost.

        Each was chosen after the results of those before, so this is what a filter sums up
        (`PrivacyPlan.then`).

        ``None`` if it started from no other run, or one of them was not private.
        """
        if self.earlier is None or not (self.is_private and self.earlier.is_private):
            return None
        before = self.earlier.plan if self.earlier.earlier is None else self.earlier.together
        return None if before is None else before.then(self.plan)

    @property
    def noise_shares(self) -> int:
        """M': the fewest honest noise shares, which make the planned noise together."""
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
        return (
            *self._who_sees_what(),
            *self._about_keys(),
            *self._about_committee(),
            *self._about_faults(),
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
                    f"{together}, as long as the server is passive: keys were relayed by the "
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
            f"present, added shares: f = {committee.n_corrupt} may be corrupt, any tau = "
            f"{committee.privacy} shares say nothing, k = {committee.packing} words make one "
            f"element of a share, R = {committee.threshold} sum-shares open one sum of a round."
        )
        if committee.epoch is not None:
            yield (
                f"It was drawn from the roster with epoch {committee.epoch} and beacon "
                f"{committee.beacon}: with {_clients(self.max_colluders)} of {self.n_slots} "
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
                f"round, and count among the {committee.n_corrupt} that may be corrupt: {rounds}."
            )
            if max(renewed.values()) > committee.n_corrupt:
                yield (
                    f"WARNING: more than {committee.n_corrupt} in one round. A malicious server "
                    "can have opened more than one sum of that round."
                )

    def _about_price(self) -> Iterator[str]:
        if not self.is_private:
            yield "No ledger counts this run: without privacy it has no price."
        elif self.ledger:
            yield (
                "Every client states that it keeps a ledger of releases; such a ledger bounds what "
                "all runs together cost that client, and nobody else can check it."
            )
        else:
            yield (
                "No ledger was kept by the server, and it cannot know whether all clients keep "
                "one: guarantees hold for this run alone."
            )
        if self.clip is not None:
            yield (
                "One client is protected with all of its records: whatever it holds, "
                f"{self._counts_as(self.clip)}. A client is one node; records of one person at "
                "several nodes have the guarantee of a group of clients."
            )
            if self.cost is not None:
                yield (
                    "The cost is made of what clients added after clipping: where that took "
                    "something away it is not the cost of their records, and its standard error "
                    "is of the noise alone."
                )
        if self.is_private:
            public = "n_records" if self.clip is None else "n_records, n_clients"
            yield f"Not protected: {public}, participation, timing and message sizes."
        if self.earlier is not None:
            yield self._told_of(self.earlier)

    def _told_of(self, earlier: "Report") -> str:
        together = self.together
        start = (
            f"The initial centroids are the result of an earlier run ({earlier.strategy}, trust "
            f"{earlier.trust})"
        )
        if together is None:
            return f"NOT PRIVATE together: {start[0].lower()}{start[1:]}, and one of them is not."
        return (
            f"{start}: both together cost epsilon {together.epsilon():.4g} at delta "
            f"{together.budget.delta:.3g}."
        )

    @property
    def clip_text(self) -> str:
        """How much of a client counted, in a few words; empty without clipping."""
        return "" if self.clip is None else clip_text(self.clip, self.clips)

    @property
    def protects_against(self) -> dict[str, str]:
        """Whether records stay protected against each of `PARTIES` (docs/threat-model.md)."""
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
            f"noisy sums; more than {self.max_colluders} know too large a part of the noise.",
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
            "it adds to a release at most so many times what one record may add, or one mean where "
            f"clients add means: {_listed(self.clips)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, ready for JSON."""
        out: dict[str, Any] = {
            "strategy": self.strategy,
            "private": self.is_private,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "mu": self.mu,
            "unit": self.unit,
            "clip": self.clip,
            "clips": dict(self.clips),
            "n_records": self.plan.n_records,
            "planned_clients": self.plan.n_clients,
            **self._further_guarantees(),
            "trust": self.trust,
            "keys": self.keys,
            "n_rounds": self.n_rounds,
            "n_clients": self.n_clients,
            "n_slots": self.n_slots,
            "min_clients": self.min_clients,
            "max_colluders": self.max_colluders,
            "committee": self._committee_facts(),
            "max_attempts": self.max_attempts,
            "attempts": self.attempts,
            "repeats": self.repeats,
            "round_trips": self.round_trips,
            "noise_shares": self.noise_shares if self.trust_model.shares_noise else None,
            "noise_factors": self.factors,
            "noise_factor": self.noise_factor,
            "added_noise_factor": self.added_noise_factor,
            "levels": list(self.levels),
            "sampler": self.sampler,
            "ledger": self.ledger,
            "seconds": self.seconds,
            "answers": list(self.answers),
            "lost_rounds": list(self.lost_rounds),
            "dropped": [vars(entry).copy() for entry in self.dropped],
            "incidents": [vars(entry).copy() for entry in self.incidents],
            "result_by": "clients" if self.trust_model.is_blind else "server",
            "warnings": list(self.warnings),
            "cost": None if self.cost is None else vars(self.cost).copy(),
            **self._earlier(),
            "releases": self._releases(),
            "protects_against": self.protects_against,
            "statements": list(self.statements),
        }
        return out

    def _committee_facts(self) -> dict[str, Any] | None:
        committee = self.committee
        if committee is None:
            return None
        return {
            **vars(committee),
            "slots": list(committee.slots),
            "n_positions": committee.n_positions,
            "threshold": committee.threshold,
        }

    def _earlier(self) -> dict[str, Any]:
        if self.earlier is None:
            return {"earlier": None, "together": None}
        together, earlier = self.together, self.earlier
        return {
            "earlier": {
                name: getattr(earlier, name)
                for name in ("strategy", "trust", "epsilon", "delta", "mu")
            },
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
            "neighbours": _NEIGHBOURS[self.unit],
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
    """Return how much of a client counts, in a few words.

    Parameters
    ----------
    clip : float
        Of releases that ``clips`` does not name.
    clips : mapping of str to float
        By release.
    """
    if set(clips.values()) <= {clip}:
        return f"{clip:g} records' worth of a client in each release"
    return "by release: " + _listed(clips)


def _listed(clips: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {clip:.4g}" for name, clip in clips.items())


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"
