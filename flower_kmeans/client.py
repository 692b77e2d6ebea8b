"""The client's side for a Flower project: three lines in an existing app."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from numpy.typing import ArrayLike

from flower_kmeans.data.sources import RecordsLike
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import require_type
from flower_kmeans.protocol.client import Client
from flower_kmeans.protocol.policy import ClientPolicy, tightest
from flower_kmeans.protocol.results import ClientResult
from flower_kmeans.protocol.shared import NO_SHARED_WORK, SharedWork

LoadData = Callable[[Context], RecordsLike]
LoadIds = Callable[[Context], Iterable[object]]
LoadWeights = Callable[[Context], ArrayLike]
OnResult = Callable[[ClientResult, Context], None]

ACTION = "kmeans"
POLICY_FILE = "policy-file"
_TYPES = frozenset(
    f"{category}.{ACTION}" for category in ("train", "query", "evaluate")
)

log = logging.getLogger("flower_kmeans.client")

__all__ = [
    "ClientPolicy",
    "ClientResult",
    "kmeans_client_app",
    "register_kmeans",
    "with_kmeans",
]


def kmeans_client_app(
    load_data: LoadData,
    policy: ClientPolicy | None = None,
    on_result: OnResult | None = None,
    load_ids: LoadIds | None = None,
    load_weights: LoadWeights | None = None,
) -> ClientApp:
    """Return a ClientApp that takes part in private clustering and does nothing else.

    See `register_kmeans` for the parameters.
    """
    app = ClientApp()
    register_kmeans(app, load_data, policy, on_result, load_ids, load_weights)
    return app


def register_kmeans(
    app: ClientApp,
    load_data: LoadData,
    policy: ClientPolicy | None = None,
    on_result: OnResult | None = None,
    load_ids: LoadIds | None = None,
    load_weights: LoadWeights | None = None,
    mods: Sequence[Mod] = (),
) -> None:
    """Add private clustering to a ClientApp, beside the actions that it has.

    Parameters
    ----------
    app : ClientApp
        Built with decorators. For an app made from ``client_fn`` use `with_kmeans`.
    load_data : callable
        ``load_data(context)`` returns the client's records: an array of shape (n, d) in
        the user's units, with NaN for missing values, or a table of another type
        (docs/own-data.md, "What load_data may return"). Any other type is refused. It
        must not raise an error because of a record, because a refusal would reveal that
        record: read files with ``load_records(path)``. It is called once per answer,
        and with ``on_result`` once at the end of a run, so it must be cheap. If clients
        commit to their records (``oblivious-server``), it is called once per run. If the
        policy also forbids a copy, it is called for every message, and must return the
        same records in the same order throughout a run.

        Records that do not fit into memory may be a memory map, a
        ``pyarrow.dataset.Dataset``, a ``pyarrow.parquet.ParquetFile``, a
        ``ray.data.Dataset``, or a function without arguments that returns a new
        iterable of such tables at each call. They are read in blocks, once per pass,
        and not copied into memory. With a ``state_dir``, a run that commits to records
        copies them to a file there, unless the policy forbids it. Of a file the columns
        that the domain names are read, or all columns if it names none. A
        `flower_kmeans.data.sql.SqlQuery` of a database is executed once in a run, which
        then uses such a copy.
    policy : ClientPolicy, optional
        The requests that this client accepts. The default accepts no private run,
        because it names no ledger. If the node's operator names a policy file
        (``--node-config 'policy-file="/..."'``), this policy can only tighten that one
        (`tightest`). Any other key of the node's configuration that begins with
        ``policy`` counts as a misspelling, and every run is refused.
    on_result : callable, optional
        ``on_result(result, context)`` is called once per finished run with a
        `ClientResult`. Its ``own_sizes`` has this client's own sizes of the clusters,
        computed here from the records: exact, never sent, and not to be sent. It is
        ``None`` if they could not be computed. If ``on_result`` failed or was
        interrupted, a repeated ``finish`` calls it again.
    load_ids : callable, optional
        ``load_ids(context)`` returns one id for each record, in order, also for null
        records. A run that protects persons (``unit="person"``) weighs records by
        the person that their id names, and no id leaves the client. An id is its text
        without blanks around it; ``None``, NaN and empty text are missing ids, and each
        such record counts as one person. Read ids as text: a float of 2^53 or
        more has lost digits and is refused. For a ``ray.data.Dataset`` it may return
        the name of the column of ids. Runs over parties that hold different columns
        compare digests of ids with those of party 0. Other runs use no ids.
    load_weights : callable, optional
        ``load_weights(context)`` returns one weight in [0, 1] for each record, in order,
        also for null records, by a public rule such as a survey's. Only runs with
        ``weighted=True`` use weights. For a ``ray.data.Dataset`` it may return the name
        of a column.
    mods : sequence of Mod
        App-level mods of ``app`` that may see the messages of private runs. Any other
        mod is refused, because it could change or copy them.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If the app was made from ``client_fn``, has other mods that would see our
        messages, or has actions of this name already. Also if an argument has the wrong
        type.
    """
    require_type("app", app, ClientApp, "a ClientApp")
    # Flower has no public list of an app's mods, which also wrap actions that are
    # registered later.
    unlisted = [mod for mod in getattr(app, "_mods", None) or () if mod not in mods]
    if unlisted:
        raise ConfigurationError(
            "Expected a ClientApp without app-level mods that are not listed in mods=: they would "
            "see, and could change, the messages of a private run. "
            f"Got {len(unlisted)} of them; give them to single actions instead."
        )
    handler = _handler(load_data, policy, on_result, load_ids, load_weights)
    try:
        # The server sends rounds as "train", the end as "evaluate" and all else as
        # "query", as Flower's own loop does (`protocol.exchange`).
        for register in (app.train, app.query, app.evaluate):
            register(ACTION)(handler)
    except ValueError as error:
        raise ConfigurationError(
            "Expected a ClientApp built with decorators and without 'kmeans' actions; an app made "
            f"from client_fn is extended by with_kmeans(app, load_data). Flower says: {error}"
        ) from None


def with_kmeans(
    app: ClientApp,
    load_data: LoadData,
    policy: ClientPolicy | None = None,
    on_result: OnResult | None = None,
    load_ids: LoadIds | None = None,
    load_weights: LoadWeights | None = None,
) -> ClientApp:
    """Return a ClientApp that clusters privately and passes all other messages to ``app``.

    It is for apps that refuse decorators: apps made from ``client_fn``, as with every
    NumPyClient. See `register_kmeans` for the other parameters.
    """
    require_type("app", app, ClientApp, "a ClientApp")
    return _RoutingClientApp(
        app, kmeans_client_app(load_data, policy, on_result, load_ids, load_weights)
    )


def simulated_client_app(
    shared: SharedWork,
    load_data: LoadData,
    policy: ClientPolicy | None = None,
    on_result: OnResult | None = None,
    load_ids: LoadIds | None = None,
    load_weights: LoadWeights | None = None,
) -> Callable[[Message, Context], Message]:
    """Return a function that answers messages for all clients of a simulation.

    The clients share the work in ``shared``. See `register_kmeans` for the other
    parameters.
    """
    return _handler(
        load_data,
        policy,
        on_result,
        load_ids,
        load_weights,
        shared,
        with_own_sizes=False,
    )


class _RoutingClientApp(ClientApp):
    """One app in front of two: the second answers our types of messages, the first all others."""

    def __init__(self, app: ClientApp, kmeans_app: ClientApp) -> None:
        # Flower loads only instances of ClientApp.
        super().__init__()
        self._app, self._kmeans_app = app, kmeans_app

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the answer of the app that the message's type belongs to."""
        # The other app's mods run later, so they see no message of a private run.
        ours = message.metadata.message_type in _TYPES
        return (self._kmeans_app if ours else self._app)(message, context)


def _handler(
    load_data: LoadData,
    policy: ClientPolicy | None,
    on_result: OnResult | None,
    load_ids: LoadIds | None,
    load_weights: LoadWeights | None,
    shared: SharedWork = NO_SHARED_WORK,
    with_own_sizes: bool = True,
) -> Callable[[Message, Context], Message]:
    require_type("policy", policy, ClientPolicy | None, "a ClientPolicy")
    require_type("load_data", load_data, Callable, "a callable")
    require_type("on_result", on_result, Callable | None, "a callable")
    require_type("load_ids", load_ids, Callable | None, "a callable")
    require_type("load_weights", load_weights, Callable | None, "a callable")

    def handle(message: Message, context: Context) -> Message:
        client = Client(
            _policy_at(context, policy),
            context.state,
            lambda: load_data(context),
            None if on_result is None else lambda result: on_result(result, context),
            None if load_ids is None else lambda: load_ids(context),
            context.node_id,
            shared,
            None if load_weights is None else lambda: load_weights(context),
            with_own_sizes,
        )
        # A message without content is refused like any malformed message.
        content = message.content if message.has_content() else RecordDict()
        return Message(client.handle(content), reply_to=message)

    return handle


def _policy_at(context: Context, own: ClientPolicy | None) -> ClientPolicy:
    """Return the node's policy: its operator's file, tightened by the app.

    After any error the policy accepts no run.
    """
    name = context.node_config.get(POLICY_FILE)
    # With a misspelt key the app's policy alone would decide.
    begun = sorted(
        k for k in context.node_config if k.strip().lower().startswith("policy")
    )
    misspelt = [key for key in begun if key != POLICY_FILE]
    if name is None and not misspelt:
        return ClientPolicy() if own is None else own
    try:
        if misspelt:
            raise ConfigurationError(
                f"Expected the policy file under {POLICY_FILE} in --node-config. Got {misspelt}."
            )
        if not isinstance(name, str) or not Path(name).is_absolute():
            raise ConfigurationError(
                f"Expected {POLICY_FILE} as an absolute path in text."
            )
        operators = ClientPolicy.from_file(name)
        # The app came over the network, and the file is the operator's. So the app may
        # only tighten it.
        return operators if own is None else tightest(operators, own)
    # After any error: an unreadable policy must not become the default policy.
    except Exception as error:
        log.error(
            "Every run is refused, for the policy file cannot be followed: %s", error
        )
        return ClientPolicy(trusts=())
