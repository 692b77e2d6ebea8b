"""A planned run as a user sees it: in a notebook, and in Flower's log."""

from collections.abc import Iterator
from dataclasses import dataclass

from flower_kmeans.data.domain import Domain
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.protocol.trust import TrustModel
from flower_kmeans.templates import html_summary


@dataclass(frozen=True)
class ShownPlan:
    """Facts of a run before its start, without any result."""

    strategy: str  # name of its class
    clusters: str  # their number, or the fewest and the most
    n_rounds: int
    crowd: str  # a line about the clients
    trust: TrustModel
    keys: str
    unit: str
    domain: Domain
    plan: PrivacyPlan

    def html(self) -> str:
        """Return an HTML table for a notebook."""
        plan = self.plan
        columns = f"{self.domain.n_features}, in a {type(self.domain).__name__}"
        facts = {
            "clusters": self.clusters,
            "columns": columns,
            "epsilon": "NOT PRIVATE",
            "delta": None,
            "protected": "nobody",
            "trust model": f"{self.trust.name} (keys: {self.keys})",
            "rounds": self.n_rounds,
            "who takes part": self.crowd,
            "who learns what": self.trust.learns,
        }
        if plan.is_private:
            facts["epsilon"] = f"{plan.epsilon():.4g}"
            facts["delta"] = f"{plan.budget.delta:.3g}"
            facts["protected"] = f"one {self.unit}"
        return html_summary(self.strategy, facts, plan.tables, plan.notes)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the log that show the plan."""
        yield f"\t├──> Clustering: {self.clusters} clusters, {self.n_rounds} rounds"
        yield f"\t├──> Trust: {self.trust.name} (keys: {self.keys})"
        yield f"\t├──> {self.crowd}"
        if not self.plan.is_private:
            yield "\t└──> Privacy: NOT PRIVATE"
            return
        epsilon = self.plan.epsilon()
        delta = self.plan.budget.delta
        yield f"\t└──> Privacy: ({epsilon:.4g}, {delta:.3g}) per {self.unit}"
