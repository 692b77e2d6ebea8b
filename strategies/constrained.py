"""ConstrainedLloyd: bounds on every client's cluster sizes, with noise that covers re-routing."""

from typing import Unpack

from flower_kmeans.algorithms.constrained import (
    Aggregation,
    Assignment,
    ConstrainedLloydAlgorithm,
)
from flower_kmeans.data.domain import Domain
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.release import Mechanism

from .kmeans import KMeansStrategy
from .options import CommonOptionsAndInitial


class ConstrainedLloyd(KMeansStrategy):
    """Constrained clustering of Ahmed's thesis, with the noise that it needs, for reproduction.

    Every client assigns its records to clusters at least cost. Each cluster gets
    ``ceil(min_size / n_clients)`` to ``floor(max_size / n_clients)`` records of the client.
    Clients need the extra ``constrained`` (ortools), except for
    ``assignment="non-exclusive"``.

    Budgets with ``unit="client"`` are refused. The thesis's "Unconstrained Exclusive"
    is `SuLloyd` (Laplace noise) or `GLloyd` (Gaussian noise).

    Parameters
    ----------
    assignment : {"exclusive", "non-exclusive", "e-exclusive"}, default: "exclusive"
        ``"exclusive"`` puts every record in one cluster. ``"non-exclusive"`` gives every
        cluster its nearest records, so a record can be in several clusters or in none.
        ``"e-exclusive"`` puts every record in 1 to ``max_contribution`` clusters.
    aggregation : {"mna", "amn"}, default: "mna"
        ``"mna"`` (mask, noise, average): clients send sums and counts. ``"amn"``
        (average, mask, noise): clients send means.
    min_size, max_size : int, optional
        Records per cluster, of all clients together. Default: ``ceil(N / 1.5 k)`` and
        ``ceil(3 N / k)``. ``"non-exclusive"`` has no ``max_size``: every cluster has
        exactly its least number of records.
    max_contribution : int, default: 1
        Most clusters of a record with ``"e-exclusive"``, from 1 to k; 1 for the others.
    mechanism : {"gaussian", "laplace"}, default: "gaussian"
        Distribution of the noise.
    n_records, n_clients : int
        Public numbers of records and clients. Both are required, also without privacy.
    n_clusters, domain, privacy, **common
        Options of all strategies: see `KMeansStrategy`. ``n_rounds="auto"`` is the
        thesis's rule for one contribution (sections 6.2.4 and 6.3.3).

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 17): a record that comes or goes replaces the content
    of one slot of its client. The noise covers all records that this moves between clusters.

    The strategy reproduces the thesis. With sufficient noise its loss is above that of
    `SynopsisKMeans` at every epsilon that was tried. The thesis's figures do not hold,
    because its noise is too small. For groups of bounded size use
    ``SynopsisKMeans(min_size=..., max_size=...)``: its bounds apply to all clients
    together. Bounds for every client are wrong where clients differ.

    The time that a client computes depends on its records (docs/threat-model.md).

    On a `Sphere` an empty slot holds no direction, is as near to all centroids, and adds
    nothing to the sums, whose directions are the next centroids.
    """

    ALGORITHM = ConstrainedLloydAlgorithm
    THEOREMS = (17, 18)
    TRUST = "oblivious-server"

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        assignment: Assignment = "exclusive",
        aggregation: Aggregation = "mna",
        min_size: int | None = None,
        max_size: int | None = None,
        max_contribution: int = 1,
        mechanism: Mechanism = "gaussian",
        **common: Unpack[CommonOptionsAndInitial],
    ) -> None:
        super().__init__(
            n_clusters,
            domain,
            privacy,
            n_records,
            assignment=assignment,
            aggregation=aggregation,
            min_size=min_size,
            max_size=max_size,
            max_contribution=max_contribution,
            mechanism=mechanism,
            **common,
        )
