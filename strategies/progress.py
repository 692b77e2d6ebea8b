"""Progress of a run, as a user sees it after each round."""

from dataclasses import dataclass, replace
from functools import lru_cache

from flwr.app import MetricRecord

from flower_kmeans.privacy.plan import PrivacyPlan


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


@lru_cache(maxsize=256)  # some 20 ms each, and strategies are started again
def epsilon_after(plan: PrivacyPlan, n_rounds: int) -> float | None:
    """Return the epsilon of a plan's first rounds, at its delta; ``None`` if it is not private."""
    if not plan.is_private:
        return None
    rounds = plan.rounds[:n_rounds]
    # A plan of no release is none.
    return replace(plan, rounds=rounds).epsilon() if any(rounds) else 0.0
