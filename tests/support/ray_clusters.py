"""Ray clusters of several nodes on this machine."""


def two_nodes(**options):
    """Return a running cluster of two nodes of one processor each, which other processes ignore."""
    from ray._common.utils import reset_ray_address
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, **options}
    cluster = Cluster(
        initialize_head=True, head_node_args={**options, "include_dashboard": False}
    )
    # Whatever calls ray.init() without an address would run here, until the cluster
    # ends.
    reset_ray_address()
    cluster.add_node(**options)
    return cluster
