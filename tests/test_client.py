"""Our actions beside a project's own, on every way in which Flower apps are made."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from harness import SIMULATED, RecordingGrid, decoded, make_run

from flower_kmeans import (
    Box,
    ClientPolicy,
    PrivacyBudget,
    kmeans_client_app,
    register_kmeans,
    with_kmeans,
)
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, TooFewClientsError
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.in_process import task_identity
from flower_kmeans.federation.messages import Enrol, EnrolReply, Refusal, to_content
from flower_kmeans.strategies import FastLloyd

PARTS = [np.random.default_rng(i).random((20, 2)) for i in range(4)]


def load(context):
    return PARTS[context.node_config["partition-id"]]


@pytest.fixture(autouse=True)
def _identity():
    with task_identity():
        yield


def context(partition=0, node_id=7):
    return Context(
        run_id=1,
        node_id=node_id,
        node_config={"partition-id": partition},
        state=RecordDict(),
        run_config={},
    )


def message(kind, content=None):
    return Message(content or RecordDict({"x": ConfigRecord({"a": 1})}), 7, kind)


def enrolment():
    document = make_run().document
    return to_content(Enrol(doc_hash=document.doc_hash, doc=document.data, lead=False))


def run_through(app):
    strategy = FastLloyd(2, Box([0, 0], [1, 1]), PrivacyBudget(1.0), 80, n_rounds=2)
    strategy.start(RecordingGrid(app, 4), timeout=60)
    return strategy.report


def own_app():
    app = ClientApp()

    @app.train()
    def train(msg, ctx):
        return Message(RecordDict({"own": ConfigRecord({"train": 1})}), reply_to=msg)

    @app.query("other")
    def query(msg, ctx):
        return Message(RecordDict({"own": ConfigRecord({"query": 1})}), reply_to=msg)

    return app


def test_actions_stand_beside_those_of_the_app():
    app = own_app()
    register_kmeans(app, load, SIMULATED)
    assert app(message("train"), context()).content["own"]["train"] == 1
    assert app(message("query.other"), context()).content["own"]["query"] == 1
    reply = decoded(app(message("query.kmeans", enrolment()), context()).content)
    assert isinstance(reply, EnrolReply)
    assert run_through(app).answers == [4, 4]


@pytest.mark.parametrize("category", ["train", "query", "evaluate"])
def test_every_category_is_registered(category):
    app = kmeans_client_app(load, SIMULATED)
    reply = app(message(f"{category}.kmeans", enrolment()), context())
    assert isinstance(decoded(reply.content), EnrolReply)


def test_an_app_of_client_fn_is_wrapped():
    class Client(NumPyClient):
        def get_parameters(self, config):
            return []

    app = ClientApp(client_fn=lambda ctx: Client().to_client())
    with pytest.raises(ConfigurationError, match="with_kmeans"):
        register_kmeans(app, load)
    assert run_through(with_kmeans(app, load, SIMULATED)).answers == [4, 4]


def test_a_wrapped_app_keeps_answering_everything_else():
    calls = []

    class Own(ClientApp):
        def __call__(self, msg, ctx):
            calls.append(msg.metadata.message_type)
            return Message(RecordDict(), reply_to=msg)

    app = with_kmeans(Own(), load, SIMULATED)
    for kind in ("train", "evaluate", "query.other", "train.kmeans2"):
        app(message(kind), context())
    assert calls == ["train", "evaluate", "query.other", "train.kmeans2"]
    app(message("train.kmeans", enrolment()), context())
    assert len(calls) == 4


def spy(msg, ctx, call_next):
    SEEN.append(msg.metadata.message_type)
    return call_next(msg, ctx)


SEEN = []


def test_mods_of_the_app_are_refused_unless_listed():
    with pytest.raises(ConfigurationError, match="mods"):
        register_kmeans(ClientApp(mods=[spy]), load)
    app = ClientApp(mods=[spy])
    register_kmeans(app, load, SIMULATED, mods=[spy])
    SEEN.clear()
    app(message("query.kmeans", enrolment()), context())
    assert SEEN == ["query.kmeans"]


def test_mods_of_a_wrapped_app_do_not_see_our_messages():
    app = with_kmeans(ClientApp(mods=[spy]), load, SIMULATED)
    SEEN.clear()
    app(message("query.kmeans", enrolment()), context())
    assert not SEEN


def test_a_second_registration_is_refused():
    app = kmeans_client_app(load)
    with pytest.raises(ConfigurationError, match="'kmeans' actions"):
        register_kmeans(app, load)


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("app", lambda: register_kmeans("app", load)),
        ("app", lambda: with_kmeans(None, load)),
        ("load_data", lambda: kmeans_client_app(PARTS)),
        ("load_data", lambda: kmeans_client_app(None)),
        ("policy", lambda: kmeans_client_app(load, "strict")),
        ("policy", lambda: with_kmeans(ClientApp(), load, {"max_epsilon": 1})),
        ("on_result", lambda: kmeans_client_app(load, None, "result.npz")),
    ],
)
def test_arguments_of_wrong_types_are_one_sentence(match, call):
    with pytest.raises(ConfigurationTypeError, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_without_a_policy_private_runs_are_refused():
    with pytest.raises(TooFewClientsError, match="ledger"):
        run_through(kmeans_client_app(load))


@pytest.mark.parametrize("policy", [None, SIMULATED, ClientPolicy(max_epsilon=0.5)])
@pytest.mark.parametrize("kind", ["train.kmeans", "query.kmeans", "evaluate.kmeans"])
def test_messages_of_others_get_a_code_and_no_error(policy, kind):
    app = kmeans_client_app(load, policy)
    reply = app(message(kind), context())
    assert not reply.has_error()
    assert decoded(reply.content) == Refusal(code=Code.BAD_MESSAGE)


def test_the_result_comes_with_the_clients_context():
    results = {}

    def keep(result, ctx):
        results[ctx.node_config["partition-id"]] = (result, ctx.node_id)

    run_through(kmeans_client_app(load, SIMULATED, keep))
    assert sorted(results) == [0, 1, 2, 3]
    centroids = [result.centroids for result, _ in results.values()]
    assert all(np.array_equal(centroids[0], other) for other in centroids)
    assert centroids[0].shape == (2, 2)
    assert len({node for _, node in results.values()}) == 4


def test_a_reply_is_built_from_nothing():
    """Nothing of the request or the context comes back: one record, known fields."""
    content = enrolment()
    own = context()
    own.state["secret"] = ConfigRecord({"marker": "MARKER"})
    reply = kmeans_client_app(load, SIMULATED)(message("query.kmeans", content), own)
    assert list(reply.content) == ["kmeans"]
    assert set(reply.content["kmeans"]) == {
        "v",
        "kind",
        "code",
        "doc_hash",
        "commitment",
        "versions",
        "public_key",
    }
    assert "MARKER" not in repr(reply.content)
    assert own.state["secret"]["marker"] == "MARKER"
