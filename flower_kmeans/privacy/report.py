"""What a finished run tells its user: the guarantee, who is trusted with what, who was missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flower_kmeans.privacy.plan import PrivacyPlan

_TRUST = {
    "oblivious-server": (
        "The server adds the noise and sees masked words only; clients see the noisy results.",
        "The noise is as good as the server's word: a server that leaves it out is not detected.",
        "The server and any one client together see everything.",
    ),
    "distributed-noise": (
        "Every client adds a share of the noise; everyone sees the noisy results.",
        "The server and any one client together see everything: every client's statistic, under "
        "that client's own share of the noise only.",
    ),
    "trusted-server": (
        "The server adds the noise and sees every client's exact statistic; so the server and any "
        "one client together see everything.",
        "Clients and outsiders are protected from each other, nobody is protected from the server.",
        "TLS is required between clients and server: messages hold exact statistics.",
    ),
    "plain": (
        "NOT PRIVATE: nobody adds noise and the server sees every client's statistic; so the "
        "server and any one client together see everything.",
        "TLS is required between clients and server: messages hold exact statistics.",
    ),
}
_KEYS = {
    "relayed": (
        "Keys were relayed by the server: a malicious server, or one that adds its own nodes, "
        "reads everything."
    ),
    "file": (
        "Keys come from a file that the server must not have: stolen later, it opens the answers "
        "of all members in recorded runs."
    ),
    "roster": (
        "Keys come from a roster of pinned public keys: a member's place is its own on the roster, "
        "and nodes that are not on it can neither read nor make a sum. A member's key that is "
        "stolen later opens the answers of all members in recorded runs that sealed an envelope "
        "for it."
    ),
}
_NEIGHBOURS = {
    "record": "one record replaced by a null record, which adds nothing; n_records is public",
    "client": (
        "all records of one client replaced by nothing, so that the client adds nothing; "
        "n_records and n_clients are public"
    ),
}
_GROUPS = (2, 10)
_QUORUM = "Sums were opened by more than half of the clients together"
_OPENING = {
    "simple": "Sums were opened by single clients, which protects against a passive server only.",
    "deferred": f"{_QUORUM}; the server saw each sum with the answers to the next round.",
    "immediate": f"{_QUORUM}; the server saw each sum before it asked for the next round.",
}
_MASKED = ("oblivious-server", "distributed-noise")


def _against(passive: str, active: str, together: str) -> dict[str, str]:
    return {
        "passive server": passive,
        "active server": active,
        "one client and the server together": together,
    }


@dataclass(frozen=True)
class Dropped:
    """A client that a round went on without.

    Attributes
    ----------
    client : int
        Place of the client in the cohort (its rank by node id); -1 if it never got one.
    node_id : int
        Flower's id of the node.
    round : int
        0 is the enrolment, ``n_rounds + 1`` the delivery.
    reason : str
        One of this library's fixed sentences.
    """

    client: int
    node_id: int
    round: int
    reason: str


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
    plan : PrivacyPlan
        The releases and their composition.
    trust, keys, opening : str
        Trust model, where the group key came from, and how sums were opened.
    n_clients, min_clients, n_rounds : int
        Members of the cohort, fewest clients behind a sum, rounds that were completed.
    clip : float or None
        With ``unit="client"``: how many records' worth of one client counted in each release, where
        `clips` says nothing else.
    clips : mapping of str to float
        With ``unit="client"``: the same by release, for algorithms whose releases differ; where
        clients add means, it counts those.
    n_places : int
        Places of the cohort: with a roster as many as names on it, whether they came or not.
    noise_factor : float
        Standard deviation of the noise that the results carry over the planned one; above 1
        only under distributed noise, where more clients add a share than had to.
    added_noise_factor : float
        The same of the noise that clients added, before what was beyond the plan was removed.
    levels : tuple of int
        For how many honest answers parts of the noise are removed; empty where none are.
    max_attempts : int
        How often the server may ask for a round.
    ledger : bool
        Whether every client said that it keeps a ledger.
    dropped : list of Dropped
        Whom a round went on without, when and why.
    incidents : list of Dropped
        Everything that was not an orderly answer, also where the round did not miss it.
    server_asks : bool
        Whether the server sent the questions and the result, and not every client computed them.
    notes : tuple of str
        What the algorithm says of how the run went; empty under ``"oblivious-server"``, whose
        clients log it.
    cost : CostEstimate or None
        The cost at the final centroids, where the run released what tells it and the server
        learned that.
    earlier : Report or None
        Of the run whose result were the initial centroids, if the strategy was told of one.
    """

    strategy: str
    plan: PrivacyPlan
    trust: str
    keys: str
    opening: str
    min_clients: int
    clip: float | None = None
    clips: Mapping[str, float] = field(default_factory=dict)
    n_clients: int = 0
    n_places: int = 0
    n_rounds: int = 0
    colluders: int = 0
    max_attempts: int = 1
    noise_factor: float = 1.0
    added_noise_factor: float = 1.0
    levels: tuple[int, ...] = ()
    ledger: bool = False
    sampler: str = ""
    seconds: float = 0.0
    answers: list[int] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    incidents: list[Dropped] = field(default_factory=list)
    server_asks: bool = False
    notes: tuple[str, ...] = ()
    cost: CostEstimate | None = None
    earlier: "Report | None" = None

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
    def statements(self) -> tuple[str, ...]:
        """What the user must be told, in plain sentences (docs/protocol.md, section 11)."""
        told = list(_TRUST[self.trust])
        told.append(f"Trust model: {self.trust}. Keys: {self.keys}.")
        if self.trust in _MASKED:
            told.append(_KEYS[self.keys])
            if self.keys == "roster":
                told.append(f"{self.n_clients} of {self.n_places} members on the roster took part.")
            told.append(
                "TLS is required between clients and server: a client that can read another "
                "client's messages can unmask them."
            )
        if self.opening in _OPENING:
            told.append(_OPENING[self.opening])
        own = self._own_share()
        if own:
            told.append(
                "Against the server together with one client, a client's own share of the noise "
                f"alone gives {own}."
            )
        if not self.is_private:
            told.append("No ledger counts this run: without privacy it has no price.")
        elif self.ledger:
            told.append(
                "Every client says that it keeps a ledger of releases; such a ledger bounds what "
                "all runs together cost that client, and nobody else can check it."
            )
        else:
            told.append(
                "No ledger was kept by the server, and it cannot know whether clients keep one: "
                "guarantees hold for this run alone."
            )
        if self.clip is not None:
            told.append(
                "One client is protected with all of its records: whatever it holds, "
                f"{self._counts_as(self.clip)}. A client is one node; who has records at several "
                "nodes has the guarantee of a group of clients."
            )
            if self.cost is not None:
                told.append(
                    "The cost is made of what clients added after clipping: where that took "
                    "something away it is not the cost of their records, and its standard error "
                    "is of the noise alone."
                )
        if self.is_private:
            figures = "n_records" if self.clip is None else "n_records, n_clients"
            told.append(f"Not protected: {figures}, participation, timing and message sizes.")
        if self.earlier is not None:
            told.append(self._told_of(self.earlier))
        if self.server_asks:
            told.append(
                "The result that clients were told is the server's word, like its questions."
            )
        if self.trust == "oblivious-server":
            told.append(
                "The server does not see how the clustering went: clients have the algorithm's "
                "warnings in their logs."
            )
        told.append("Results are not protected against a hostile server or client.")
        return tuple(told)

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
    def withstands(self) -> dict[str, str]:
        """Whether records stay protected against whom (docs/threat-model.md), a sentence each."""
        if self.trust not in _MASKED:
            exact = "No: it sees every client's exact statistic."
            together = "No: the server alone sees everything."
            return _against(exact, exact, together)
        if self.trust == "oblivious-server":
            return _against(
                "Yes: it sees masked words only.",
                "No: it can play the leader and read everything."
                if self.keys == "relayed"
                else "In part: it sees masked words only, but can leave the noise out, unseen.",
                "No: together they see everything.",
            )
        own = self._own_share()
        share = f"each client's own share of the noise alone protects it{own and f' ({own})'}."
        if self.keys == "relayed":
            active = f"No: it can play the leader and remove the masks; {share}"
        elif self.opening == "simple":
            active = f"No: it can collect two openings of one round; {share}"
        elif self.keys == "roster" and self.ledger:
            active = "Yes: more than half of the roster open one sum of a round and no other."
        elif self.keys == "roster":
            active = (
                "In part: more than half of the roster open one sum of a round and no other, but "
                "a node without a ledger that is asked twice at the same time can vote twice."
            )
        else:
            active = (
                "In part: the cohort is its word, so it can have up to "
                f"{self.max_attempts} sums of each round opened, each with noise of its own"
            )
            if self.plan.mu is not None:
                active += f" (mu = {self.plan.mu * self.max_attempts**0.5:.4g})"
            active += "."
        return _against(
            "Yes: it sees masked words, and sums with the planned noise.",
            active,
            f"No: {share}",
        )

    def _counts_as(self, clip: float) -> str:
        if set(self.clips.values()) <= {clip}:
            return f"it counts as {clip:g} records at most in each release"
        return (
            "it adds to a release at most so many times what one record may add, or one mean where "
            f"clients add means: {_listed(self.clips)}"
        )

    def _own_share(self) -> str:
        """Return what a client's own share of the noise gives, in words; empty if not Gaussian."""
        if self.trust != "distributed-noise" or self.plan.mu is None:
            return ""
        # What is beyond the plan can be removed from it.
        shares = max(self.min_clients - self.colluders, *self.levels, 1)
        own = self.plan.mu * shares**0.5
        if self.max_attempts == 1:
            return f"mu = {own:.4g}"
        # Every attempt at a round has the same answer under another share.
        return (
            f"mu = {own:.4g}, or {own * self.max_attempts**0.5:.4g} if the server asks "
            f"{self.max_attempts} times for every round"
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
            "opening": self.opening,
            "n_rounds": self.n_rounds,
            "n_clients": self.n_clients,
            "n_places": self.n_places,
            "min_clients": self.min_clients,
            "colluders": self.colluders,
            "max_attempts": self.max_attempts,
            "noise_factor": self.noise_factor,
            "added_noise_factor": self.added_noise_factor,
            "levels": list(self.levels),
            "sampler": self.sampler,
            "ledger": self.ledger,
            "seconds": self.seconds,
            "answers": list(self.answers),
            "dropped": [vars(entry).copy() for entry in self.dropped],
            "incidents": [vars(entry).copy() for entry in self.incidents],
            "server_asks": self.server_asks,
            "notes": list(self.notes),
            "cost": None if self.cost is None else vars(self.cost).copy(),
            **self._earlier(),
            "releases": self._releases(),
            "withstands": self.withstands,
            "statements": list(self.statements),
        }
        return out

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
