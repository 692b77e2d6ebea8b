"""ConstrainedLloyd: bounds on every client's cluster sizes, with noise that covers re-routing."""

from flower_kmeans.algorithms.constrained import ConstrainedLloydAlgorithm

from ._base import KMeansStrategy


class ConstrainedLloyd(KMeansStrategy):
    """Constrained clustering of Ahmed's thesis, with the noise that it needs, for reproduction.

    Every client assigns its records to clusters at least cost within bounds on the
    sizes of *its* clusters: ``ceil(min_size / n_clients)`` to
    ``floor(max_size / n_clients)``. Clients need the extra ``constrained`` (ortools),
    but for ``assignment="non-exclusive"``.

    Budgets with ``unit="client"`` are refused. The thesis's "Unconstrained Exclusive"
    is `SuLloyd` (Laplace noise) or `GLloyd` (Gaussian noise).

    Notes
    -----
    Formal guarantee (docs/guarantees.md, "Constrained assignment"): a record that comes or goes
    replaces a point of its client's slots, and the noise covers all records that this moves from
    cluster to cluster.

    It is here for reproduction. With this noise it does not reach what `SynopsisKMeans`
    reaches, at any epsilon that was tried, nor do the thesis's figures hold: its noise
    is too small. For groups of bounded size take
    ``SynopsisKMeans(min_size=..., max_size=...)``, whose bounds cost no noise and hold
    for all clients together. Bounds for every client are wrong where clients differ.

    How long a client computes depends on its records (docs/threat-model.md).
    """

    ALGORITHM = ConstrainedLloydAlgorithm
    TRUST = "oblivious-server"
