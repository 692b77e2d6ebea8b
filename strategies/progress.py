"""Progress of a run, as a user sees it after each round."""

from dataclasses import dataclass, replace
from functools import lru_cache

from flwr.app import MetricRecord

from flower_kmeans.privacy.plan import PrivacyPlan


@dataclass(frozen=True)
class RoundInfo:
    """Progress of a run, given to ``on_round`` after each round.

    Only the warnings depend on records, through released values.
    """

    round: int
    """Number of the round that ended; rounds count from 1."""
    n_rounds: int
    """Number of planned rounds."""
    n_answers: int
    """Number of clients in the round's sum."""
    n_clients: int
    """Number of clients of the run."""
    dropped: int
    """Number of clients that are not in the round's sum."""
    seconds: float
    """Seconds since the start of the run."""
    warnings: tuple[str, ...] = ()
    """Warnings about released values that no records explain."""
    epsilon: float | None = None
    """Epsilon of the rounds so far, at the run's delta; ``None`` if the run is not private."""

    @property
    def metrics(self) -> MetricRecord:
        """The metrics "round", "answers", "clients" and, for a private run, "epsilon" so far.

        They reveal nothing about records: the first three follow from who answered, and
        epsilon follows from the plan.
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
        """Estimated seconds until the end of the last round, at the pace of the rounds so far."""
        return self.seconds / self.round * (self.n_rounds - self.round)


@lru_cache(maxsize=256)  # a call takes about 20 ms, and strategies are started again
def epsilon_after(plan: PrivacyPlan, n_rounds: int) -> float | None:
    """Return the epsilon of a plan's first rounds, at its delta; ``None`` if it is not private."""
    if not plan.is_private:
        return None
    rounds = plan.rounds[:n_rounds]
    # A plan needs at least one release.
    return replace(plan, rounds=rounds).epsilon() if any(rounds) else 0.0
