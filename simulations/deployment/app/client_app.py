"""Each node answers with protected, noisy sums of the records in its own file.

The node's operator states its records and its policy in ``--node-config``:

``data``
    The file with the node's records, such as csv or parquet, or a source.toml that
    names a file or database, how to read it, and the column of persons. A cell that is
    not a number, or a line with too many or too few cells, makes a null record. It does
    not stop a run, and nobody else sees it. The node's own log has the number of such
    records.
``header``
    The names of the columns, ``a,b``, for a csv file whose first line is a record. By
    default the source.toml decides, or the first line names the columns.
``domain``
    A domain.toml, which is the same at all nodes and at the server. It declares
    categories, dates and other columns, and values for missing cells. By default all
    columns are numbers.
``policy-file``
    Absolute path of the operator's policy. It states the runs that the node answers,
    and the paths of the node's key, the roster and the ledger. A node without a policy
    answers no private run.
``result``
    The npz file for the node's result. Only this user can read it: it also holds exact
    counts of the node's records, and must stay here. ``flower-kmeans assign --centroids
    FILE`` takes it.
"""

from dataclasses import replace
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.common.logger import log

from flower_kmeans import kmeans_client_app
from flower_kmeans.client import ClientResult
from flower_kmeans.data.declared import DeclaredDomain, domain_from_file
from flower_kmeans.data.tables import column_names, load_persons, load_records


def load_data(context: Context) -> Any:
    """Return the records of the node's file, with the names of its columns, or its query."""
    data = str(context.node_config["data"])
    return load_records(data, domain=domain_of(context), header=header_of(context))


def load_ids(context: Context) -> Any:
    """Return the id of each record's person, for runs with unit = "person". It stays here."""
    return load_persons(str(context.node_config["data"]), header=header_of(context))


def domain_of(context: Context) -> DeclaredDomain | None:
    """Return the declared columns, if the operator names them."""
    path = context.node_config.get("domain")
    return None if path is None else domain_from_file(str(path))


def header_of(context: Context) -> list[str] | None:
    """Return the names of the file's columns, if its first line is a record."""
    names = context.node_config.get("header")
    return None if names is None else str(names).split(",")


def on_result(result: ClientResult, context: Context) -> None:
    """Write the result with its columns to the node's file, whole or not at all."""
    path, declared = Path(str(context.node_config["result"])), domain_of(context)
    if declared is not None:
        result = replace(result, domain=declared)  # centroids in units that people read
    names = result.domain.columns  # of the run, or else of the node's own file
    if names is None:
        names = column_names(str(context.node_config["data"]), header_of(context))
    result.save(path, names)
    log(INFO, "Wrote the result to %s", path)


# the operator's file is the policy
app = kmeans_client_app(load_data, on_result=on_result, load_ids=load_ids)
