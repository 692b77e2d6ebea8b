"""Each node answers with protected, noisy sums of the records in its own file.

What a node has and accepts is said by its operator, in ``--node-config``:

``data``
    The file with the node's records, such as csv or parquet, or a source.toml that says which file
    or database it is and how it is written. A cell that is no number, or a line with too many or
    too few cells, makes its record count as none: it neither stops a run nor shows, but the node's
    own log has how many there were.
``header``
    For a csv file whose first line is a record: the names of its columns, ``a,b``. Otherwise left
    out, and the first line names them, or the source.toml says so.
``domain``
    A domain.toml, the same at all nodes and at the server: it declares categories, dates and other
    columns, and what a missing cell counts as. Otherwise left out, and all columns are numbers.
``policy-file``
    Absolute path of the operator's policy: which runs are answered, and where the node's key, the
    roster and the ledger are. A node without one answers no private run.
``result``
    The npz file that the node writes its result to.
"""

import os
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.common.logger import log

from flower_kmeans import TableDomain, kmeans_client_app
from flower_kmeans.client import ClientResult
from flower_kmeans.data.tables import load_records


def load_data(context: Context) -> Any:
    """Return the records of the node's file, with the names of its columns, or its query."""
    names, domain = (context.node_config.get(name) for name in ("header", "domain"))
    return load_records(
        str(context.node_config["data"]),
        domain=None if domain is None else TableDomain.from_file(str(domain)),
        header=None if names is None else str(names).split(","),
    )


def on_result(result: ClientResult, context: Context) -> None:
    """Write the centroids and noisy sizes to the node's result file, whole or not at all."""
    path = Path(str(context.node_config["result"]))
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        np.savez(file, centroids=result.centroids, counts=result.counts)
    os.replace(partial, path)
    log(INFO, "Wrote the result to %s", path)


app = kmeans_client_app(load_data, on_result=on_result)  # the operator's file is the policy
