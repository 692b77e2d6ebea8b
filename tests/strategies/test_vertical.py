"""VerticalKMeans: what it refuses, whom it sends what, and what a party that fails costs."""

import math
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partialmethod

import msgspec
import numpy as np
import pytest
import tenseal
from flwr.app import ArrayRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from report_pages import read, tables
from vertical_runs import blobs, straight_signs

from flower_kmeans import Ball, Box, Fault, PrivacyBudget, html_report, simulate
from flower_kmeans.algorithms.plausibility import FindingKind
from flower_kmeans.client import ClientPolicy
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    ObliviousServerError,
    RunError,
)
from flower_kmeans.protocol.exchange import Exchange
from flower_kmeans.protocol.messages import (
    Abort,
    Enrol,
    Refusal,
    decode_reply,
    decode_request,
)
from flower_kmeans.protocol.shared import SharedWork
from flower_kmeans.protocol.wire import from_content, to_content
from flower_kmeans.secagg.primitives import public_key
from flower_kmeans.simulation import engines
from flower_kmeans.simulation.clients import Loading
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import VerticalKMeans
from flower_kmeans.version import __version__
from flower_kmeans.vertical import engine
from flower_kmeans.vertical.costs import costs
from flower_kmeans.vertical.parties import ComputingParty
from flower_kmeans.vertical.protocol import parcels, relay
from flower_kmeans.vertical.protocol.messages import (
    Joined,
    Parcel,
    Sent,
    Turn,
    write_receivers,
)
from flower_kmeans.vertical.protocol.relay import Relay

pytestmark = pytest.mark.usefixtures("quiet")

N = 400
BOX = Box([0.0, 0.0], [1.0, 2.0], columns=["age", "income"])
START = [[0.3, 0.6], [0.7, 1.4]]
MEANS = [[0.25, 0.5], [0.75, 1.5]]
ONE_WORKER = replace(ClientPolicy.for_simulation(), workers=1)


def made(widths=(1, 1), **options):
    """Return a strategy with little noise for the records of `blobs`."""
    d = sum(widths)
    scale = np.arange(1.0, d + 1)
    given = {
        "parties": widths,
        "n_rounds": 1,
        "radius": False,
        "initial": np.array([[0.3], [0.7]]) * scale,
        "domain": Box([0.0] * d, scale),
        "privacy": PrivacyBudget(8.0, 1e-6),
        "n_records": N,
        **options,
    }
    return VerticalKMeans(2, **given)


def parts_of(widths):
    return np.split(blobs(N, sum(widths)), np.cumsum(widths)[:-1], axis=1)


class Recorder(ClientApp):
    """The parties' app: it keeps every byte that the server sees, and fails where it should."""

    def __init__(self, widths, directory, fails=None, loses=None):
        super().__init__()
        self.parts, self.seen, self.results = parts_of(widths), [], {}
        self.fails, self.loses = (
            each or (lambda slot, request: False) for each in (fails, loses)
        )
        self.app = engines._client_app(
            replace(ONE_WORKER, work_dir=directory),
            (),
            SharedWork(),
            Loading(lambda context: self.parts[context.node_config["partition-id"]]),
            lambda result, context: self.results.update(
                {context.node_config["partition-id"]: result}
            ),
        )
        self.grid = CountingGrid(self, len(widths))

    def __call__(self, message, context):
        slot, data = context.node_config["partition-id"], from_content(message.content)
        request = decode_request(data)
        if self.fails(slot, request):
            self.seen.append((slot, request, data, None))
            raise RuntimeError("The party died.")
        reply = self.app(message, context)
        self.seen.append((slot, request, data, from_content(reply.content)))
        lost = self.loses(slot, request)
        return Message(to_content(b"\xc0"), reply_to=message) if lost else reply


class CountingGrid(InProcessGrid):
    """A grid that counts how often messages are pushed: once in each round trip."""

    pushes = 0

    def push_messages(self, messages):
        self.pushes += 1
        return super().push_messages(messages)


def run(strategy, directory, start=VerticalKMeans.start, options=None, **faults):
    """Run a strategy and return what the parties' app has seen."""
    app = Recorder(strategy.widths, directory, **faults)
    with task_identity():
        app.result = start(strategy, app.grid, **(options or {}))
    return app


def planned_bytes(run):
    """Return how many bytes of parcels the parties of a run send."""
    shape, total = parcels.shape_of(run), 0
    steps = ["keys", "join", "encrypt", "close"] + ["ids"] * shape.check_ids
    turns = [(slot, step, 0) for step in steps for slot in range(4)]
    for t in range(1, shape.n_rounds + 1):
        turns += [(0, "step", t), *((holder, "open", t) for holder in shape.holders)]
    for slot, step, t in turns:
        if slot < shape.n_parties:
            total += sum(
                each.n_bytes + 16 for each in parcels.planned(run, slot, step, t)
            )
    return total


@pytest.fixture(
    scope="module",
    params=["straight", pytest.param("real", marks=pytest.mark.thorough)],
)
def pair(request, tmp_path_factory):
    """A run of two parties, two rounds; by default tests/simulation/ has one with real signs."""
    directory, is_real = tmp_path_factory.mktemp("pair"), request.param == "real"
    with nullcontext() if is_real else straight_signs():
        strategy = made(
            n_rounds=2, domain=BOX, initial=START, parties=[("age",), ("income",)]
        )
        app = run(strategy, directory)
        app.is_real, app.planned_bytes = is_real, planned_bytes(strategy._running.run)
        assert strategy.costs.total_bytes  # which are kept
    return strategy, app


# -------------------------------------------------------------------------- two parties


@pytest.mark.claim("vertical", "every-party-receives-centroids")
def test_two_parties_learn_the_means_and_the_server_nothing(pair):
    strategy, app = pair
    assert set(app.results) == {0, 1}
    for result in app.results.values():
        if app.is_real:
            np.testing.assert_allclose(result.centroids, MEANS, atol=0.1)
            np.testing.assert_allclose(result.counts, [N / 2, N / 2], atol=40)
        np.testing.assert_array_equal(result.centroids, app.results[0].centroids)
        assert result.run == app.results[0].run
    assert len(app.result.arrays) == 0
    with pytest.raises(ObliviousServerError, match="must never see"):
        _ = strategy.centroids
    # All that the server saw: no centroid, no count, no column, in any of the forms
    # they had.
    result = app.results[0]
    seen = b"".join(data + answer for _, _, data, answer in app.seen)
    assert strategy.domain.columns[0].encode() in seen  # what is public can be found
    records = [part[:3].ravel() for part in app.parts]
    values = np.concatenate([result.centroids.ravel(), result.counts, *records])
    assert not [value for value in values if np.float64(value).tobytes() in seen]


@pytest.mark.claim("reference/command", "plan-strategy-vertical-features")
def test_round_trips_and_bytes_are_as_planned(pair):
    strategy, app = pair
    report = strategy.report
    assert (
        app.grid.pushes == report.round_trips == strategy.costs.round_trips == 2 * 2 + 4
    )
    replies = [decode_reply(answer) for _, _, _, answer in app.seen]
    total = sum(
        len(x.data) for each in replies if isinstance(each, Sent) for x in each.parcels
    )
    assert report.part.sent_bytes == total == app.planned_bytes
    assert 0 <= total - strategy.costs.total_bytes < 1000
    assert report.part.delivered_bytes == total  # each has one receiver here
    assert [request.step for _, request, _, _ in app.seen if isinstance(request, Turn)] == [
        "keys", "step", "open", "step", "open", "close", "finish",
    ]  # fmt: skip


@pytest.mark.claim("threat-model", "V14")
@pytest.mark.claim("reading-a-report", "run-lists-parameters-runs")
def test_the_report_states_the_guarantee_and_who_must_collude(pair):
    strategy, _ = pair
    report = strategy.report
    assert (report.trust, report.unit, report.keys) == ("vertical", "record", "relayed")
    assert (report.n_rounds, report.n_clients, report.answers) == (2, 2, [2, 2])
    assert report.epsilon == pytest.approx(8.0)
    assert report.noise_factor == pytest.approx(math.sqrt(2))
    assert not report.incidents
    text = " ".join(report.statements)
    for words in (
        "one record replaced by another; n_records is public",
        "computational",
        "honest but curious",
        "Party 0 and party 1 together can read every encrypted column",
        "1.414 times the planned",
        f"rho = {strategy.algorithm.rho:.5g}",
        "measured and not proved",
        "Row ids were not compared",
        "passive server only",
        "in each of 12 words",
        f"Round trips: {report.round_trips}",
        "This guarantee covers one run",
    ):
        assert words in text, words
    facts = report.to_dict()
    own = f"flower-kmeans {__version__} OpenSSL {facts['versions']['OpenSSL']}"
    assert facts["vertical"]["software"] == [
        f"{own} TenSEAL {tenseal.__version__}",
        own,
    ]
    assert facts["versions"]["tenseal"] == tenseal.__version__
    assert facts["neighbours"] == "one record replaced by another; n_records is public"
    assert facts["vertical"]["columns"] == [["age"], ["income"]]
    who = [row["who"] for row in facts["vertical"]["trust_table"]]
    assert who == [
        "party 0",
        "party 1, the key holder",
        "party 0 and party 1 together",
        "the server",
        "a server that breaks the protocol",
    ]


def test_the_page_shows_the_trust_table_and_the_parties_columns(pair):
    strategy, app = pair
    page = html_report(strategy)
    assert tables(read(page))["Who learns what"][1:] == [
        list(row) for row in strategy.report.part.trust_table
    ]
    assert "columns of party 0" in page
    assert "2 parties hold columns of the records" in page
    assert "with that record and one with another in its place" in page
    assert f"{app.results[0].centroids[0, 0]!r}" not in page


@pytest.mark.claim("guarantees", "33")
@pytest.mark.claim("threat-model", "V8")
def test_one_word_reveals_at_most_what_the_report_says(pair):
    """docs/threat-model.md, V8: 16 bits with a holder's noise of 20 records."""
    strategy, _ = pair
    vertical = strategy.report.part
    assert vertical.n_values == 2 * 2 * 3
    sigma = strategy._share
    assert vertical.bits == pytest.approx(15.6 - math.log2(sigma / 20), abs=0.1)


def test_sums_of_no_records_are_flagged_at_every_party_and_not_at_the_server(
    tmp_path, monkeypatch
):
    """Party 0 opens other sums than those of the records, in both rounds."""
    real = ComputingParty.open
    monkeypatch.setattr(ComputingParty, "open", lambda *args: -5 * real(*args))
    with straight_signs():
        strategy = made(
            n_rounds=2, domain=BOX, initial=START, parties=[("age",), ("income",)]
        )
        app = run(strategy, tmp_path)
        planned = planned_bytes(strategy._running.run)
    first, second = app.results[0], app.results[1]
    assert first.findings == second.findings
    assert first.warnings == second.warnings
    assert {
        each.round for each in first.findings if each.kind == FindingKind.NEGATIVE
    } == {
        1,
        2,
    }
    assert any("further below 0" in words for words in second.warnings)
    assert strategy.report.warnings == ()
    # Of the same size as without findings, which is all that the server sees of it.
    assert strategy.report.part.sent_bytes == planned


# ------------------------------------------------------------------------- more parties


ROSTER = (
    3,
    {"key_holders": 1, "keys": "roster", "check_ids": True, "radius": True},
    7,  # round trips of the set-up
    2,
    ("Party 2 only encrypts", "compares the row ids", "pinned by a roster"),
)
TWO_HOLDERS = (3, {}, 5, 3 / 2, ("party 0 and all key holders but one cannot",))
THREE_HOLDERS = (4, {"max_colluders": 2}, 5, 2, ())


@pytest.mark.claim("vertical", "centroids-those-k-means")
@pytest.mark.parametrize(
    ("n_parties", "options", "trips", "factor", "words", "is_real"),
    [
        (*ROSTER, "straight"),
        (*TWO_HOLDERS, "straight"),
        pytest.param(*THREE_HOLDERS, "straight", marks=pytest.mark.thorough),
        pytest.param(*ROSTER, "real", marks=pytest.mark.thorough),
        pytest.param(*TWO_HOLDERS, "real", marks=pytest.mark.slow),
        pytest.param(*THREE_HOLDERS, "real", marks=pytest.mark.slow),
    ],
    indirect=["is_real"],
)
def test_more_parties_learn_the_means(
    n_parties, options, trips, factor, words, is_real
):
    """With a roster and a party that only encrypts, and with keys of two and three holders.

    By default their signs are straight (`straight_signs`).
    """
    widths = (1,) * n_parties
    strategy = made(widths, **options)
    assert strategy.key_holders == options.get("key_holders", n_parties - 1)
    clustering = simulate(strategy, parts_of(widths), policy=ONE_WORKER)
    if is_real:
        means = clustering.centroids / np.arange(1, n_parties + 1)
        np.testing.assert_allclose(
            means, np.repeat([[0.25], [0.75]], n_parties, 1), atol=0.1
        )
    report = clustering.report
    assert report.round_trips == strategy.costs.round_trips == 2 * 1 + trips
    assert report.part.sent_bytes == planned_bytes(strategy._running.run)
    assert 0 <= report.part.sent_bytes - strategy.costs.total_bytes < 1000
    assert report.noise_factor == pytest.approx(math.sqrt(factor))
    text = " ".join(report.statements)
    assert not [each for each in words if each not in text]
    is_pinned = "keys" in options
    assert report.protects_against["active server"].startswith(
        "Yes" if is_pinned else "No"
    )


# -------------------------------------------------------------------- Flower's own loop


@pytest.mark.claim("reference/strategies", "flowers-stock-strategy-start")
def test_flowers_own_loop_and_replies_that_get_lost(is_real, tmp_path):
    """Each first reply is lost: the same bytes are sent once more, and answered by the same."""
    strategy, lost, again = made(), set(), {}

    def loses(slot, request):
        key = (slot, type(request), getattr(request, "step", ""))
        return key not in lost and not lost.add(key)

    options = {"initial_arrays": ArrayRecord(), "num_rounds": 1, "timeout": 60}
    app = run(strategy, tmp_path, Strategy.start, options, loses=loses)
    assert len(app.result.arrays) == 0
    assert strategy.report.round_trips == app.grid.pushes == 2 * (2 * 1 + 4)
    if is_real:
        np.testing.assert_allclose(app.results[1].centroids, MEANS, atol=0.1)
    assert {entry.kind for entry in strategy.report.incidents} == {"failed"}
    for slot, _, data, answer in app.seen:
        again.setdefault((slot, data), []).append(answer)
    assert all(
        len(answers) == 2 and answers[0] == answers[1] for answers in again.values()
    )


def test_hooks_are_called_in_order():
    strategy, empty = made(), (ArrayRecord(), {}, None)
    for hook, t in ((strategy.configure_train, 2), (strategy.configure_evaluate, 1)):
        with pytest.raises(RunError, match="not started"):
            hook(t, *empty)
    assert made(n_rounds=2).configure_evaluate(1, *empty) == []
    with pytest.raises(ConfigurationError, match="2 clients"), strategy.expecting(3):
        pass
    assert "min_clients=2" in repr(strategy)
    with pytest.raises(RunError, match="no report"):
        _ = strategy.report


# --------------------------------------------------------------------------- faults


@pytest.mark.claim("protocol", "repeated-request-gets-same")
@pytest.mark.claim("threat-model", "V21")
@pytest.mark.parametrize(
    ("slot", "step", "words"),
    [
        (1, "keys", "party 1 to 'keys'"),
        (0, "step", "party 0 to 'step' in round 1"),
        (1, "open", "party 1 to 'open' in round 1"),
    ],
)
def test_a_party_that_dies_ends_the_run_and_is_named(
    is_real, slot, step, words, tmp_path
):
    def fails(who, request):
        return who == slot and getattr(request, "step", "") == step

    strategy = made()
    app = Recorder(strategy.widths, tmp_path, fails=fails)
    with task_identity(), pytest.raises(RunError, match=words) as caught:
        strategy.start(app.grid)
    assert "what it charged stays charged" in str(caught.value)
    tried = [data for who, request, data, _ in app.seen if fails(who, request)]
    assert len(tried) == 2
    assert tried[0] == tried[1]
    assert [who for who, request, _, _ in app.seen if isinstance(request, Abort)] == [
        0,
        1,
    ]
    assert not list(tmp_path.iterdir())  # party 0's files are erased
    assert not app.results
    report = strategy.report
    assert [(entry.client, entry.kind) for entry in report.incidents] == [
        (slot, "failed")
    ] * 2
    assert report.n_rounds == 0


class SilentGrid(CountingGrid):
    """A grid on which one step of a party is never answered."""

    def pull_messages(self, message_ids):
        return super().pull_messages(
            [each for each in message_ids if not self._is_lost(each)]
        )

    def _is_lost(self, message_id):
        message = self._replies.get(message_id)
        request = message and decode_request(from_content(message.content))
        return isinstance(request, Turn) and request.step == "keys"

    def known_lost(self, message_ids):
        return set()


@pytest.mark.claim("protocol", "party-missing-waited-rule")
@pytest.mark.default_cases("0-step")
@pytest.mark.parametrize(
    ("slot", "step"),
    [
        (1, "enrol"),
        (1, "keys"),
        (0, "step"),
        (1, "open"),
        (0, "close"),
        (1, "finish"),
    ],
)
def test_a_party_that_is_away_for_a_minute_is_waited_for_in_every_turn(
    slot, step, tmp_path, monkeypatch
):
    now, gone_at = [0.0], []

    def sleep(seconds):
        now[0] += max(seconds, 0.5)

    def is_away(who, request):
        this = request.step if isinstance(request, Turn) else "enrol"
        if (who, this) == (slot, step):
            gone_at.append(now[0])
        return (who, this) == (slot, step) and now[0] < gone_at[0] + 60

    timed = partialmethod(Exchange.__init__, clock=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(Exchange, "__init__", timed)
    strategy = made()
    app = Recorder(strategy.widths, tmp_path, fails=is_away)
    with task_identity():
        strategy.start(app.grid, patience=600.0)
    assert set(app.results) == {0, 1}
    assert 60 <= now[0] <= 90
    tried = [data for who, request, data, reply in app.seen if reply is None]
    assert 3 <= len(tried) <= 5  # at most every 15 seconds
    assert len(set(tried)) == 1
    assert strategy.report.n_rounds == 1
    report = strategy.report
    assert [entry.kind for entry in report.incidents] == ["failed"]
    assert report.round_trips == 2 * report.n_rounds + 4  # as without it


@pytest.mark.claim("protocol", "repeated-request-gets-same")
def test_a_party_that_is_silent_is_waited_for_twice(tmp_path, monkeypatch):
    """An exchange that knew of the first silence would wait ten seconds for the second."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    timed = partialmethod(Exchange.__init__, clock=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(Exchange, "__init__", timed)
    strategy = made()
    grid = SilentGrid(Recorder(strategy.widths, tmp_path), 2)
    with task_identity(), pytest.raises(RunError, match="party 1 to 'keys'") as caught:
        strategy.start(grid, timeout=100)
    assert "No answer in time" in str(caught.value)
    assert now[0] >= 200
    assert grid.pushes == 4  # enrolment, two requests, abort
    assert [entry.kind for entry in strategy.report.incidents] == ["silent", "silent"]


def test_a_party_that_ends_in_any_turn_and_returns_finishes_the_run(
    tmp_path, monkeypatch
):
    """Each party dies at its first request of each step, and its node comes back: W2."""
    now, failed = [0.0], set()

    def fails(slot, request):
        key = (slot, getattr(request, "step", ""))
        return isinstance(request, Turn) and key not in failed and not failed.add(key)

    def sleep(seconds):
        now[0] += seconds

    timed = partialmethod(Exchange.__init__, clock=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(Exchange, "__init__", timed)
    with straight_signs():
        strategy = made((1, 1, 1))
        app = run(strategy, tmp_path, options={"patience": 120}, fails=fails)
    assert set(app.results) == {0, 1, 2}
    steps = {"keys", "join", "step", "open", "close", "finish"}
    assert {step for _, step in failed} == steps
    again = {}
    for slot, request, data, answer in app.seen:
        if isinstance(request, Turn):
            again.setdefault((slot, data), []).append(answer is None)
    assert all(each == [True, False] for each in again.values())
    assert strategy.report.round_trips == strategy.costs.round_trips
    assert {entry.kind for entry in strategy.report.incidents} == {"failed"}
    assert now[0] < 60 * len(failed)


@pytest.mark.claim("threat-model", "V21")
@pytest.mark.parametrize(
    ("party", "options", "words", "kinds"),
    [
        (
            0,
            {"policy": replace(ONE_WORKER, max_opened=5)},
            "policy accepts",
            {"refused"},
        ),
        (1, {"faults": [Fault(client=1, round=0, kind="drop")]}, "", {"silent"}),
    ],
)
def test_a_party_that_does_not_join_ends_the_run_and_is_named(
    party, options, words, kinds
):
    strategy = made()
    with pytest.raises(RunError, match=f"Expected party {party} to join.*{words}"):
        simulate(strategy, parts_of((1, 1)), **options)
    assert {entry.kind for entry in strategy.report.incidents} == kinds


# ---------------------------------------------------------------------- the relay alone


class Trips:
    """A trip whose nodes answer by a function of the slot and the request; node = 10 + slot."""

    def __init__(self, answer):
        self.answer, self.sent = answer, []

    def __call__(self, kind, requests, has_enough):
        for node, request in requests.items():
            self.sent.append((kind, node, request))
            reply = self.answer(node - 10, request)
            if reply is not None:
                yield node, reply


def answering(server, keys, **changes):
    """Return trips whose parties join, and send what ``keys`` returns of a request for keys.

    ``changes`` are what party 1 joins with.
    """
    named = {"doc_hash": server.run.doc_hash}

    def answer(slot, request):
        if isinstance(request, Enrol):
            fields = {
                "slot": slot,
                "public_key": public_key(bytes([slot]) * 32),
                "has_ids": True,
            }
            other = changes if slot else {}
            return Refusal(code=3) if slot > 1 else Joined(**named | fields | other)
        if not isinstance(request, Turn) or request.step != "keys":
            return Sent(**named)
        parts, plans = keys(request)
        return Sent(**named, parts=parts, parcels=plans)

    return Trips(answer)


@pytest.mark.claim("threat-model", "V14")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"slot": 0}, "has the party's slot"),
        ({"slot": 2}, "malformed"),
        ({"claim": bytes(64)}, "malformed"),
        ({"public_key": bytes(32)}, "malformed"),
        ({"public_key": b"\x09" + bytes(30) + b"\x80"}, "malformed"),
        ({"static": bytes(32)}, "malformed"),
        ({"commitment": bytes(32)}, "malformed"),
        ({"doc_hash": bytes(32)}, "another run"),
        ({"has_ids": False}, "no row ids"),
    ],
)
def test_who_does_not_join_as_planned_takes_no_part(changes, reason):
    server = Relay(made(check_ids=reason == "no row ids")._run(None))
    trips = answering(server, None, **changes)
    nodes = [10, 11, 12]  # the last one is beyond the parties
    with pytest.raises(RunError, match=f"Expected party 1 to join.*{reason}"):
        server.set_up(nodes, trips)
    assert {kind for kind, _, _ in trips.sent} == {"enrol", "abort"}


def parcel_of(plan):
    """Return a planned parcel without any content."""
    return Parcel(
        step=plan.step,
        number=plan.number,
        receivers=write_receivers(plan.receivers),
        keys=bytes(48) * len(plan.receivers),
        data=bytes(plan.n_bytes + 16),
    )


def spoil(**changes):
    """Return how the first parcel is changed; the answer has one part."""
    return lambda first, *rest: (1, (msgspec.structs.replace(first, **changes), *rest))


@pytest.mark.claim("protocol", "message-holds-at-most")
@pytest.mark.parametrize(
    "sent",
    [
        spoil(number=77),
        spoil(receivers=write_receivers([1])),
        spoil(data=b"1"),
        spoil(step="join"),
        spoil(keys=bytes(48) * 2),
        spoil(t=1),
        lambda first, *rest: (1, (first, first)),
        lambda first, *rest: (1, (first,)),
        lambda *all_: (1000, all_),
        # a part for each parcel, the same in each; no party fills the server's memory
        lambda *all_: (len(all_), all_),
    ],
)
def test_only_planned_parcels_are_delivered(sent):
    server = Relay(made()._run(None))
    plans = parcels.planned(server.run, 1, "keys")
    trips = answering(server, lambda request: sent(*map(parcel_of, plans)))
    with pytest.raises(RunError, match=r"party 1 to 'keys'.*malformed"):
        server.set_up([10, 11], trips)
    assert not server._mail.has(0)


@pytest.mark.claim("protocol", "message-holds-at-most")
@pytest.mark.parametrize("in_parts", [False, True])
def test_what_does_not_fit_into_one_message_comes_in_parts(monkeypatch, in_parts):
    """Two parts of party 1, so that one load runs while it sends the second."""
    server = Relay(made()._run(None))
    first, *rest = parcels.planned(server.run, 1, "keys")
    parts = [(first, *rest)]
    if in_parts:
        monkeypatch.setattr(relay, "MAX_MESSAGE", relay._OVERHEAD + 45 * 10**6)
        size = max(first.n_bytes, sum(each.n_bytes for each in rest))
        monkeypatch.setattr(parcels, "_MAX_PART", size)
        parts = [(first,), tuple(rest)]
    trips = answering(
        server,
        lambda request: (len(parts), tuple(map(parcel_of, parts[request.part - 1]))),
    )
    server.set_up([10, 11], trips)
    asked = [
        (node - 10, r.step, r.part) for _, node, r in trips.sent if isinstance(r, Turn)
    ]
    assert asked == [(1, "keys", 1), *[(1, "keys", 2), (0, "load", 1)][: 2 * in_parts]]
    assert server.round_trips == len(asked) + 1 - in_parts
    step = server.request("step")[10]
    found = [(each.number, len(each.data) - 16) for each in step.deliveries]
    assert found == [(each.number, each.n_bytes) for each in parts[-1]]


# --------------------------------------------------------------------------- refusals


@pytest.mark.claim("known-limitations", "vertical-runs-have-further")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("2 to 64 parties", {"parties": [2]}),
        ("at least one column", {"parties": [2, 0]}),
        ("2 columns together", {"parties": [1, 2]}),
        ("columns of the domain", {"parties": [("income",), ("age",)], "domain": BOX}),
        ("columns of the domain", {"parties": [("age",), ("age",)], "domain": BOX}),
        ("columns of the domain", {"parties": [("age",), ("income",)]}),
        (
            "all columns of a category",
            {"domain": Box([0] * 3, [1] * 3, categories=[(0, 2)]), "parties": [1, 2]},
        ),
        ("key_holders", {"key_holders": 0}),
        ("key_holders", {"key_holders": 2}),
        ("key_holders", {"key_holders": True}),
        ("max_colluders", {"max_colluders": 0}),
        ("max_colluders", {"max_colluders": 2}),
        ("keys", {"keys": "none"}),
        (
            "1000 values",
            {"n_clusters": 16, "domain": Box([0] * 64, [1] * 64), "parties": [32, 32]},
        ),
        (
            "noise shares of at least 0.1 records",
            {"privacy": PrivacyBudget(500.0, 1e-6)},
        ),
        ("larger epsilon", {"privacy": PrivacyBudget(1e-6, 1e-9)}),
        ("domain as a Box", {"domain": Ball(1.0, [0, 0])}),
        ("privacy as", {"privacy": 1.0}),
        ("parties as a list", {"parties": 2}),
        ("parties as a list of names", {"parties": ["age", "income"]}),
        ("check_ids as", {"check_ids": 1}),
        ("Expected radius as a bool", {"radius": 1}),
        ("on_round as", {"on_round": 1}),
    ],
)
def test_parameters_out_of_range_are_one_sentence(name, changes):
    given = {
        "n_clusters": 2,
        "domain": Box([0, 0], [1, 2]),
        "privacy": PrivacyBudget(8.0, 1e-6),
    }
    given |= {"n_records": N, "parties": [1, 1], "n_rounds": 1, **changes}
    with pytest.raises(
        (ConfigurationError, ConfigurationTypeError), match=name
    ) as caught:
        VerticalKMeans(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.claim("vertical", "missing-value-becomes-middle")
@pytest.mark.parametrize(
    ("error", "words", "partitions"),
    [
        (ConfigurationError, "2 clients", lambda a, b: [a]),
        (ConfigurationError, "n_records=400", lambda a, b: [a, b[:-1]]),
        (ConfigurationError, "n_records=400", lambda a, b: [a[:-1], b[:-1]]),
        (
            DataError,
            r"partitions\[1\]",
            lambda a, b: [a, np.where(b == b[0], np.nan, b)],
        ),
        (DataError, r"partitions\[0\]", lambda a, b: [np.hstack([a, b]), b]),
    ],
)
def test_simulations_refuse_rows_that_do_not_fit(error, words, partitions):
    with pytest.raises(error, match=words):
        simulate(made(), partitions(*parts_of((1, 1))))


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [(r"flower-kmeans\[vertical\]", "tenseal", None), ("MB of free disk", "disk", 1)],
)
def test_what_party_0_lacks_is_an_error_before_anything_is_sent(
    monkeypatch, words, name, value
):
    strategy = made()
    if name == "tenseal":
        monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
        engine.require_tenseal.cache_clear()
    else:
        usage = shutil.disk_usage("/")._replace(free=strategy.costs.disk - value)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigurationError, match=words):
        simulate(strategy, parts_of((1, 1)))
    with pytest.raises(RunError):
        _ = strategy.report  # nothing was started


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("num_rounds", {"num_rounds": 2}),
        ("timeout", {"timeout": 0}),
        ("train_config", {"train_config": {"a": 1}}),
        ("evaluate_config", {"evaluate_config": {"a": 1}}),
        ("must never see", {"evaluate_fn": lambda t, arrays: None}),
        ("roster_file", {}),
    ],
)
def test_a_start_that_contradicts_the_plan_is_refused(name, changes):
    with (
        task_identity(),
        pytest.raises((ConfigurationError, ObliviousServerError), match=name),
    ):
        made(keys="roster").start(InProcessGrid(None, 2), **changes)


def test_initial_arrays_are_public_and_given_once():
    arrays = ArrayRecord([np.array(START)])
    with task_identity(), pytest.raises(ConfigurationError, match="Got both"):
        made().start(InProcessGrid(None, 2), initial_arrays=arrays)
    strategy = made(initial=None)
    assert strategy._started_with(np.array(START)).initial == tuple(map(tuple, START))


# --------------------------------------------------------------------------- costs


@pytest.mark.claim("protocol", "round-trips-2-t")
def test_costs_are_those_of_the_document():
    """docs/protocol.md, section 13: MB of keys and of rounds, for two columns."""
    for k, keys, in_round in ((2, 43.5, 1.2), (5, 54.8, 2.9), (16, 67.5, 9.4)):
        made = costs(k, [1, 1], 16_384, 1, 1)
        assert made.key_bytes / 1e6 == pytest.approx(keys, abs=0.06)
        assert made.round_bytes / 1e6 == pytest.approx(in_round, abs=0.06)
    whole = costs(5, [1, 1], 100_000, 10, 1)
    assert whole.total_bytes / 1e6 == pytest.approx(104, abs=1)
    assert whole.round_trips == 24


@pytest.mark.claim("reference/command", "plan-strategy-vertical-features")
@pytest.mark.parametrize(
    ("k", "radius", "first", "second", "memory"),
    [
        (2, False, 1.6, 1.7, 0.87), (3, False, 4.8, 5.1, 0.97), (5, False, 17.1, 18.8, 1.13),
        (8, False, 55.8, 63.4, 1.43), (2, True, 4.9, 4.9, 0.98), (3, True, 10.8, 10.8, 1.10),
        (5, True, 30.5, 32.3, 1.28), (8, True, 80.8, 80.8, None),
    ],
)  # fmt: skip
def test_cpu_and_memory_estimates_are_those_that_were_measured(
    k, radius, first, second, memory
):
    """CPU seconds of one step and 16,384 records, GB of party 0 with one worker; and a radius."""
    made = costs(k, [1, 1], 16_384, 1, 1, radius=radius)
    assert made.step_seconds == pytest.approx(first, rel=0.1)
    assert made.step_seconds == pytest.approx(second, rel=0.1)
    assert memory is None or made.memory == pytest.approx(memory, abs=0.01)


def test_the_plan_describes_what_a_run_costs_and_the_timeout_grows_with_it():
    strategy = made()
    text = strategy.plan.describe()
    for words in (
        f"Round trips: {strategy.costs.round_trips}.",
        "Memory of party 0, estimated",
    ):
        assert words in text
    assert "CPU of one core, estimated" in text
    assert "notes" not in strategy.plan.to_config()
    assert strategy.default_timeout == 600
    larger = VerticalKMeans(
        16, Box([0, 0], [1, 1]), PrivacyBudget(1.0), 100_000, parties=[1, 1]
    )
    assert larger.default_timeout == pytest.approx(3 * larger.costs.step_seconds)
    assert larger.default_timeout > 600
