"""Our actions beside a project's own, on every way in which Flower apps are made."""

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from cohorts import make_run
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from harness import SIMULATED, RecordingGrid

from flower_kmeans import (
    Box,
    ClientPolicy,
    PrivacyBudget,
    kmeans_client_app,
    register_kmeans,
    simulate,
    with_kmeans,
)
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    TooFewClientsError,
)
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.protocol.client import Client
from flower_kmeans.protocol.messages import (
    Ask,
    Code,
    Enrol,
    Enrolled,
    Refusal,
    decode_reply,
    decode_request,
)
from flower_kmeans.protocol.wire import encode, from_content, to_content
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.strategies import FastLloyd, FedDPKMeans, SynopsisKMeans

PARTS = [np.random.default_rng(i).random((20, 2)) for i in range(4)]


def load(context):
    return PARTS[context.node_config["partition-id"]]


@pytest.fixture(autouse=True)
def _identity():
    with task_identity():
        yield


def context(partition=0, node_id=7, **node_config):
    return Context(
        run_id=1,
        node_id=node_id,
        node_config={"partition-id": partition, **node_config},
        state=RecordDict(),
        run_config={},
    )


def message(kind, content=None):
    return Message(content or RecordDict({"x": ConfigRecord({"a": 1})}), 7, kind)


def decoded(content):
    return decode_reply(from_content(content))


def enrolment(run=None):
    run = make_run("oblivious-server", "relayed") if run is None else run
    return to_content(encode(Enrol(doc=run.data)))


BOX = Box([0, 0], [1, 1])


def run_on(grid, budget=1.0, n_rounds=2, **options):
    """Run FastLloyd and return its strategy."""
    budget = budget if isinstance(budget, PrivacyBudget) else PrivacyBudget(budget)
    strategy = FastLloyd(2, BOX, budget, 80, n_rounds=n_rounds, **options)
    strategy.start(grid, timeout=60)
    return strategy


def run_through(app):
    return run_on(RecordingGrid(app, 4)).report


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
    for category in ("train", "query", "evaluate"):
        reply = app(message(f"{category}.kmeans", enrolment()), context())
        assert isinstance(decoded(reply.content), Enrolled)
    assert run_through(app).answers == [4, 4]


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
    kinds = ["train", "evaluate", "query.other", "train.kmeans2"]
    for kind in (*kinds, "train.kmeans"):
        app(message(kind, enrolment()), context())
    assert calls == kinds


def test_mods_of_the_app_are_refused_unless_listed_or_wrapped():
    seen = []

    def spy(msg, ctx, call_next):
        seen.append(msg.metadata.message_type)
        return call_next(msg, ctx)

    with pytest.raises(ConfigurationError, match="mods"):
        register_kmeans(ClientApp(mods=[spy]), load)
    with_kmeans(ClientApp(mods=[spy]), load, SIMULATED)(
        message("query.kmeans", enrolment()), context()
    )
    assert not seen
    app = ClientApp(mods=[spy])
    register_kmeans(app, load, SIMULATED, mods=[spy])
    app(message("query.kmeans", enrolment()), context())
    assert seen == ["query.kmeans"]


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
        ("load_ids", lambda: kmeans_client_app(load, None, None, ["a", "b"])),
        ("load_ids", lambda: with_kmeans(ClientApp(), load, None, None, "ids.csv")),
    ],
)
def test_arguments_of_wrong_types_are_one_sentence(match, call):
    with pytest.raises(ConfigurationTypeError, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_messages_of_others_get_a_code_and_no_error():
    """And replies have nothing of request or context: one record, known fields."""
    own = context()
    own.state["secret"] = ConfigRecord({"marker": "MARKER"})
    for content, expected in ((None, Refusal), (enrolment(), Enrolled)):
        reply = kmeans_client_app(load, SIMULATED)(
            message("train.kmeans", content), own
        )
        assert not reply.has_error()
        assert isinstance(decoded(reply.content), expected)
        assert list(reply.content) == ["kmeans"]
        assert set(reply.content["kmeans"]) == {"v", "m"}
        assert "MARKER" not in repr(reply.content)
    assert own.state["secret"]["marker"] == "MARKER"


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


# ------------------------------------------------------------------ the operator's file


def enrol_with(policy=None, run=None, /, **node_config):
    """Return the code of a refusal, or None if a client with such an app takes part."""
    reply = kmeans_client_app(load, policy)(
        message("query.kmeans", enrolment(run)), context(**node_config)
    )
    assert not reply.has_error()
    answer = decoded(reply.content)
    return None if isinstance(answer, Enrolled) else answer.code


def policy_file(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    path.chmod(0o644)
    return {"policy-file": str(path)}


def test_a_file_of_the_operators_decides(tmp_path):
    file = policy_file(tmp_path, 'state_dir = "state"')
    assert enrol_with() == Code.LEDGER
    assert enrol_with(**file) is None
    assert (tmp_path / "state").is_dir()
    file = policy_file(tmp_path, 'state_dir = "state"\nmax_epsilon = 0.5')
    assert enrol_with(**file) == Code.POLICY


@pytest.mark.claim("threat-model", "policy-app-code-can")
def test_an_app_can_tighten_the_file_and_no_more(tmp_path):
    file = policy_file(tmp_path, 'state_dir = "state"')
    assert enrol_with(ClientPolicy(), **file) is None
    assert enrol_with(ClientPolicy(min_clients=4), **file) == Code.POLICY
    # What simulations accept is as much as the file accepts.
    assert enrol_with(SIMULATED, **file) is None
    weak = make_run("trusted-server", "none")
    assert enrol_with(SIMULATED, weak) is None
    assert enrol_with(SIMULATED, weak, **file) == Code.POLICY
    file = policy_file(tmp_path, "")  # no ledger: the app's in_memory does not help
    assert enrol_with(SIMULATED, **file) == Code.LEDGER


@pytest.mark.claim("threat-model", "policy-app-code-can")
@pytest.mark.parametrize(
    "text",
    ["max_epsilom = 1", "not toml", 'state_dir = "state"\n[domain]\nradius = 1', None],
)
def test_a_file_that_cannot_be_followed_refuses_every_run(
    text, tmp_path, caplog, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    # a path must be absolute
    (tmp_path / "here.toml").write_text('state_dir = "state"')
    names = ("here.toml", "/missing/policy.toml", "", 5, True)
    if text is not None:
        names = policy_file(tmp_path, text).values()
    for run in (None, make_run("plain", "none")):
        for name in names:
            assert enrol_with(SIMULATED, run, **{"policy-file": name}) == Code.POLICY
    assert "policy" in caplog.text


@pytest.mark.claim("threat-model", "policy-app-code-can")
@pytest.mark.parametrize(
    "key", ["policy", "policy_file", "Policy-File", " policy-file"]
)
@pytest.mark.parametrize("beside", [False, True])
def test_a_misspelt_policy_file_refuses_every_run(key, beside, tmp_path, caplog):
    file = policy_file(tmp_path, 'state_dir = "state"')
    node_config = {key: file["policy-file"], **(file if beside else {})}
    for run in (None, make_run("plain", "none")):
        assert enrol_with(SIMULATED, run, **node_config) == Code.POLICY
        assert enrol_with(None, run, **node_config) == Code.POLICY
    assert key in caplog.text
    assert "policy-file" in caplog.text
    other = {"data": "/policy", "my-policy": "1"}  # what an app may name as it likes
    assert enrol_with(SIMULATED, **other) is None


def test_an_app_with_another_ledger_than_the_files_is_refused(tmp_path):
    file = policy_file(tmp_path, 'state_dir = "state"')
    assert enrol_with(ClientPolicy(state_dir=tmp_path / "other"), **file) == Code.POLICY
    assert enrol_with(ClientPolicy(state_dir=tmp_path / "state"), **file) is None
    assert not (tmp_path / "other").exists()


class OwnFiles(RecordingGrid):
    """A grid whose nodes have policy files and ledgers of their own."""

    def __init__(self, app, directory, n_nodes):
        super().__init__(app, n_nodes)
        for i, node in enumerate(self._contexts.values()):
            own = directory / f"node-{i}"
            own.mkdir()
            node.node_config |= policy_file(
                own, 'state_dir = "state"\nmax_total_epsilon = 1.5'
            )


@pytest.mark.claim("what-epsilon-means", "clients-ledger-adds-up")
def test_nodes_with_files_and_ledgers_run_until_their_budget_is_spent(tmp_path):
    grid = OwnFiles(kmeans_client_app(load), tmp_path, 4)
    for _ in range(2):
        report = run_on(grid).report
        assert report.answers == [4, 4]
        assert report.ledger is True
        assert any(
            "Every client states that it keeps" in text for text in report.statements
        )
    assert not any(len(state) for state in grid.states.values())
    with pytest.raises(TooFewClientsError, match="ledger"):
        run_on(grid)


@pytest.mark.claim("reference/strategies", "initial-also-takes-finished")
def test_ledgers_charge_an_initialisation_and_the_run_that_starts_from_it(tmp_path):
    """What they charge is what the second report says both cost together."""
    grid = OwnFiles(kmeans_client_app(load), tmp_path, 4)
    points = np.random.default_rng(0).random((20, 2))
    options = {"n_clients": 4, "min_clients": 3, "keys": "relayed"}
    first = FedDPKMeans(
        2, BOX, PrivacyBudget(0.6), 80, server_data=points, n_rounds=0, **options
    )
    first.start(grid, timeout=60)
    together = run_on(grid, 0.9, initial=first, **options).report.together
    assert 0.9 < together.epsilon() < 1.5
    for i in range(4):
        with Ledger(tmp_path / f"node-{i}" / "state") as ledger:
            assert ledger.epsilon(together.budget.delta) == pytest.approx(
                together.epsilon()
            )


def test_beside_a_run_for_records_a_run_for_clients_costs_what_one_record_moves(
    tmp_path,
):
    """Of 20 records' worth that count, one is a twentieth."""
    grid = OwnFiles(kmeans_client_app(load), tmp_path, 4)
    first = run_on(grid, PrivacyBudget(0.9, unit="client"), n_clients=4, min_clients=3)
    with Ledger(tmp_path / "node-1" / "state") as ledger:
        assert ledger.epsilon(1e-6) == pytest.approx(0.9, rel=1e-9)  # for clients
    second = run_on(grid, 0.9, min_clients=3)
    assert first.clip == 20
    least = epsilon_of_mu(math.hypot(second.plan.mu, first.plan.mu / 20), 1e-6)
    with Ledger(tmp_path / "node-1" / "state") as ledger:
        assert least < ledger.epsilon(1e-6) < least * 1.001  # for records


@pytest.mark.claim("threat-model", "file-read-every-message")
@pytest.mark.parametrize(
    ("tightened", "code", "expected"),
    [
        ("min_clients = 4", Code.POLICY, "min_clients >= 4"),
        ('trusts = ["distributed-noise"]', Code.POLICY, "trusts=['distributed-noise']"),
        ("max_total_epsilon = 0.9", Code.LEDGER, "epsilon <= 0.9"),
        ('columns = ["age", "income"]', Code.POLICY, "columns=['age', 'income']"),
        ("trusts = []", Code.POLICY, "trusts=[]"),
        ("not a policy", Code.POLICY, "trusts=[]"),
    ],
)
def test_a_file_that_is_tightened_during_a_run_holds_from_the_next_message_on(
    tightened, code, expected, tmp_path, caplog
):
    """The others finish the run without this node."""
    grid = OwnFiles(kmeans_client_app(load), tmp_path, 4)

    def on_push(messages):
        requests = [decode_request(from_content(m.content)) for m in messages]
        if any(isinstance(request, Ask) and request.t == 2 for request in requests):
            policy_file(tmp_path / "node-1", f'state_dir = "state"\n{tightened}')

    grid.on_push = on_push
    report = run_on(grid, n_rounds=3, min_clients=3).report
    assert report.answers == [4, 3, 3]
    (node,) = {entry.node_id for entry in report.dropped}
    assert node == list(grid.states)[1]
    assert code.sentence in {entry.reason for entry in report.dropped}
    assert any(
        expected in record.getMessage()
        for record in caplog.records
        if record.name == "flower_kmeans.client"
    )
    # Of the reason, nothing is in what the server received.
    received = [recorded for recorded in grid.received if recorded.node_id == node]
    assert len(received) > 2
    assert not [recorded for recorded in received if expected.encode() in recorded.data]


ANSWERING = """
import pickle, sys
from pathlib import Path

import flwr.app, flwr.clientapp
before = {*sys.modules}

import flower_kmeans.client
from flower_kmeans.data.tables import load_records
from flower_kmeans.protocol.client import Client
from flower_kmeans.protocol.messages import decode_reply

for policy, state, data, node_id in pickle.loads(Path(sys.argv[1]).read_bytes()):
    records = lambda: load_records(sys.argv[2])
    client = Client(policy, pickle.loads(state), records, node_id=node_id)
    print(type(decode_reply(client.answer_bytes(data))).__name__)
print(*{*sys.modules} - before)
"""
# Packages that take long to load, and a part of the library for other parties.
NOT_NEEDED = {
    *("scipy", "jinja2", "sklearn", "openpyxl"),
    "flower_kmeans.report.report",
}


@pytest.mark.claim("threat-model", "process-loads-neither-scipy")
def test_a_process_that_answers_loads_no_more_than_it_needs(tmp_path, monkeypatch):
    """A node starts a process for each message, so every import is paid for in each of them."""
    records, asked = np.random.default_rng(1).random((3_000, 2)), {}
    answer_bytes = Client.answer_bytes

    def keep_and_answer(self, data):
        state = pickle.dumps(self.state)  # now, because an answer changes it
        asked[strategy, type(decode_request(data))] = (
            self.policy,
            state,
            data,
            self.node_id,
        )
        return answer_bytes(self, data)

    monkeypatch.setattr(Client, "answer_bytes", keep_and_answer)
    for strategy in (FastLloyd, SynopsisKMeans):
        run = strategy(
            3, Box([0, 0], [1, 1]), PrivacyBudget(1.0), n_records=9_000, n_clients=3
        )
        simulate(run, [records] * 3)
    (tmp_path / "asked").write_bytes(pickle.dumps([*asked.values()]))
    np.savetxt(
        tmp_path / "records.csv", records, delimiter=",", header="a,b", comments=""
    )
    command = [
        sys.executable,
        "-c",
        ANSWERING,
        tmp_path / "asked",
        tmp_path / "records.csv",
    ]
    *replies, loaded = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"Enrolled", "Answer", "Added", "Finished"} <= {*replies}
    assert "Refusal" not in replies
    assert "flower_kmeans.client" in loaded.split()
    assert not sorted(NOT_NEEDED & {*loaded.split()})
    assert "flower_kmeans.vertical" not in loaded  # the house of another kind of run
