"""Each node answers with protected, noisy sums of the records in its own file.

What a node has and accepts is said by its operator, in ``--node-config``:

``data``
    The file with the node's records, such as csv or parquet, or a source.toml that says
    which file or database it is and how it is written. A cell that is no number, or a
    line with too many or too few cells, makes its record count as none: it neither
    stops a run nor shows, but the node's own log has how many there were.
``header``
    For a csv file whose first line is a record: the names of its columns, ``a,b``.
    Otherwise left out, and the first line names them, or the source.toml says so.
``domain``
    A domain.toml, the same at all nodes and at the server: it declares categories,
    dates and other columns, and what a missing cell counts as. Otherwise left out, and
    all columns are numbers.
``policy-file``
    Absolute path of the operator's policy: which runs are answered, and where the
    node's key, the roster and the ledger are. A node without one answers no private
    run.
``result``
    The npz file that the node writes its result to, for this user alone:
    ``flower-kmeans assign --centroids FILE`` takes it.
"""

from dataclasses import replace
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.common.logger import log

from flower_kmeans import TableDomain, kmeans_client_app
from flower_kmeans.client import ClientResult
from flower_kmeans.data.tables import column_names, load_records


def load_data(context: Context) -> Any:
    """Return the records of the node's file, with the names of its columns, or its query."""
    data = str(context.node_config["data"])
    return load_records(data, domain=domain_of(context), header=header_of(context))


def domain_of(context: Context) -> TableDomain | None:
    """Return the declared columns, if the operator names them."""
    path = context.node_config.get("domain")
    return None if path is None else TableDomain.from_file(str(path))


def header_of(context: Context) -> list[str] | None:
    """Return the names of the file's columns, if its first line is a record."""
    names = context.node_config.get("header")
    return None if names is None else str(names).split(",")


def on_result(result: ClientResult, context: Context) -> None:
    """Write all of the result to the node's file, with its columns, whole or not at all."""
    path, declared = Path(str(context.node_config["result"])), domain_of(context)
    if declared is not None:
        result = replace(result, domain=declared)  # centroids in units that people read
    names = result.domain.columns  # of the run, or else of the node's own file
    if names is None:
        names = column_names(str(context.node_config["data"]), header_of(context))
    result.save(path, names)
    log(INFO, "Wrote the result to %s", path)


# the operator's file is the policy
app = kmeans_client_app(load_data, on_result=on_result)
