"""Each party holds other columns of the same customers; party 0, the bank, computes.

In a simulation the partition's number is the party, and its customers are made up. What
a deployed node has and accepts is said by its operator, in ``--node-config``:

``data``
    The file with the columns of this party alone, npy, or csv whose first line names
    them: the same rows in the same order as at the other parties.
``domain``
    A domain.toml of this party's columns, the same as the server's: it declares
    categories, dates and other columns, and what a missing cell counts as. Otherwise
    left out: all are numbers.
``ids``
    A text file with the id of each row on a line, in the same order. With it a run can
    compare rows (``check-ids``).
``policy-file``
    Absolute path of the operator's policy: which runs are answered, and where the
    node's key, the roster and the ledger are. A node with ``data`` and without one
    answers no run.
``result``
    The npz file that the node writes its result to, for this user alone:
    ``flower-kmeans assign --centroids FILE`` takes it.
"""

from dataclasses import replace
from logging import INFO
from pathlib import Path
from typing import Any

from customers import made_up
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from flower_kmeans import ClientPolicy, TableDomain, kmeans_client_app
from flower_kmeans.client import ClientResult
from flower_kmeans.data.tables import load_records


def is_deployed(context: Context) -> bool:
    """Return whether a node has data; made-up customers need neither policy nor ledger."""
    return "data" in context.node_config


def party_of(context: Context) -> int:
    """Return which party a simulated node is."""
    return int(context.node_config["partition-id"])


def output_of(context: Context) -> Path:
    """Return the directory of the server's report, where simulated parties write as well."""
    return Path(str(context.run_config["report"])).expanduser().parent


def load_data(context: Context) -> Any:
    """Return this party's columns of all customers."""
    if is_deployed(context):
        domain = context.node_config.get("domain")
        return load_records(
            str(context.node_config["data"]),
            domain=None if domain is None else TableDomain.from_file(str(domain)),
        )
    return made_up(int(context.run_config["n-records"]), party_of(context))


def load_ids(context: Context) -> list[str]:
    """Return the id of each row."""
    if is_deployed(context):
        return Path(str(context.node_config["ids"])).read_text("utf-8").splitlines()
    return [f"customer {row}" for row in range(int(context.run_config["n-records"]))]


def on_result(result: ClientResult, context: Context) -> None:
    """Write all of the result, in all columns, to the result file, whole or not at all."""
    if is_deployed(context):
        path = Path(str(context.node_config["result"]))
    else:
        path = output_of(context) / f"party-{party_of(context)}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
    result.save(path)
    log(INFO, "Wrote the result to %s", path)


class PartyApp(ClientApp):
    """A deployed node follows its operator's file; a simulated one accepts what it is asked."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer as the party of this context."""
        policy, ids = None, load_ids
        if not is_deployed(context):
            policy = replace(
                ClientPolicy.for_simulation(),
                party=party_of(context),
                # party 0's keys and encrypted columns
                work_dir=output_of(context) / "work",
            )
        elif "ids" not in context.node_config:
            ids = None
        return kmeans_client_app(load_data, policy, on_result, ids)(message, context)


app = PartyApp()
