"""When sums are opened in a run, at how many hops, and what faults change about it."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from harness import SIMULATED, key_file, roster_policies, run_recorded, stock_start

from flower_kmeans import Box, Fault, PrivacyBudget
from flower_kmeans.client import ClientPolicy
from flower_kmeans.errors import ConfigurationError, RunError, TooFewClientsError
from flower_kmeans.faults import FaultKind
from flower_kmeans.federation.coordinator import CRASHED, FALSE, MALFORMED, STRAY
from flower_kmeans.secagg.sharing import SHARE_BYTES
from flower_kmeans.strategies import FastLloyd, GLloyd, Lloyd

BOX = Box([0.0, 0.0], [10.0, 10.0])
PARTS = [np.random.default_rng(i).uniform(0, 10, (30, 2)) for i in range(7)]
OPENINGS = ("deferred", "immediate", "simple")
T = 4


def make(opening="deferred", strategy=FastLloyd, **options):
    options = {"min_clients": 2, "n_rounds": T, "n_clients": 7, **options}
    return strategy(
        2, BOX, PrivacyBudget(1.0), 150, trust="distributed-noise", opening=opening, **options
    )


class Hops:
    """Counts a run's hops by the messages that the server pushes."""

    def __init__(self):
        self.kinds = []
        self.fields = []

    def __call__(self, grid, messages):
        if messages:
            records = [message.content["kmeans"] for message in messages]
            (kind,) = {record["kind"] for record in records}
            self.kinds.append(kind)
            self.fields.append(records)


def run(strategy, tmp_path=None, **options):
    """Run a strategy, with files of keys in a directory where it needs them, and count its hops."""
    hops = Hops()
    if strategy.keys == "file":
        options["policy"] = replace(SIMULATED, group_key_file=key_file(tmp_path))
    elif strategy.keys == "roster":
        options["policy"] = roster_policies(tmp_path, len(PARTS))
    options.setdefault("timeout", 60)
    return run_recorded(strategy, PARTS, on_push=hops, **options), hops


# --------------------------------------------------------------------------- hops


@pytest.mark.parametrize("keys", ["file", "relayed", "roster"])
@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize(
    ("opening", "rounds"),
    [
        ("deferred", ["round"] * T),
        ("simple", ["round"] * T),
        ("immediate", ["round", "open"] * (T - 1) + ["round"]),
    ],
)
def test_hops_of_a_run_without_faults(keys, start, opening, rounds, tmp_path):
    outcome, hops = run(make(opening, keys=keys), tmp_path, start=start)
    setup = ["enrol", "lead"] if keys == "relayed" else ["enrol"]
    # The delivery opens the last sum, but Flower's own start wants it before: one hop more.
    extra = ["open"] if start is stock_start else []
    assert hops.kinds == [*setup, *rounds, *extra, "finish"]
    total = {"immediate": 2 * T}.get(opening, T + 1) + len(setup) + len(extra)
    assert len(hops.kinds) == total
    np.testing.assert_array_equal(outcome.result.arrays["centroids"].numpy(), outcome.one.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["counts"].numpy(), outcome.one.counts)


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("strategy", [FastLloyd, GLloyd])
def test_every_sum_is_opened_as_the_clients_open_it(opening, strategy):
    outcome, _ = run(make(opening, strategy))
    server = outcome.strategy._run_state
    assert server.n_opened == T
    assert all(closed.opened is not None for closed in server.closed)
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)
    assert outcome.strategy.report.opening == opening
    assert not outcome.strategy.report.incidents


@pytest.mark.parametrize("opening", OPENINGS)
def test_few_are_asked_for_corrections_and_all_give_shares(opening):
    outcome, hops = run(make(opening))
    carrier = "open" if opening == "immediate" else "round"
    requests = [
        fields for kind, fields in zip(hops.kinds, hops.fields, strict=True) if kind == carrier
    ]
    for records in requests if opening == "immediate" else requests[1:]:
        assert sum("want_correction" in record for record in records) == 5
    shares = Counter(
        item.fields["share_t"] for item in outcome.grid.received if "share" in item.fields
    )
    assert shares == ({} if opening == "simple" else dict.fromkeys(range(1, T + 1), 7))
    given = [item.fields for item in outcome.grid.received if item.kind == "round"]
    assert any("share_t" in fields for fields in given) == (opening != "immediate")


# --------------------------------------------------------------------------- when the server sees


@pytest.mark.parametrize("opening", OPENINGS)
def test_when_the_server_sees_a_sum(opening):
    """Immediate: before the next question. Otherwise: with the answers to it."""
    log, strategy = [], make(opening)
    strategy.on_round = lambda info: log.append(("round", info.round, strategy._run_state.n_opened))

    def evaluate(number, arrays):
        log.append(("evaluate", number))
        assert arrays["centroids"].numpy().shape == (2, 2)

    def push(grid, messages):
        if messages and messages[0].content["kmeans"]["kind"] == "round":
            log.append(("ask", messages[0].content["kmeans"]["t"]))

    run_recorded(strategy, PARTS, on_push=push, evaluate_fn=evaluate)
    if opening == "immediate":
        expected = []
        for t in range(1, T):
            expected += [("ask", t), ("round", t, t), ("evaluate", t)]
        expected += [("ask", T), ("round", T, T - 1), ("evaluate", T)]
    else:
        expected = [("ask", 1), ("round", 1, 0)]
        for t in range(2, T + 1):
            expected += [("ask", t), ("round", t, t - 1), ("evaluate", t - 1)]
        expected.append(("evaluate", T))
    assert log == expected


@pytest.mark.parametrize("opening", OPENINGS)
def test_flowers_own_start_evaluates_what_it_is_given(opening):
    seen = {}
    outcome, _ = run(
        make(opening),
        start=stock_start,
        evaluate_fn=lambda number, arrays: seen.update({number: dict(arrays)}),
    )
    np.testing.assert_array_equal(seen[T]["centroids"].numpy(), outcome.one.centroids)
    if opening == "immediate":
        assert [len(seen[t]) for t in range(1, T + 1)] == [2] * T
        assert not np.array_equal(seen[1]["counts"].numpy(), seen[T]["counts"].numpy())


# --------------------------------------------------------------------------- dropouts


@pytest.mark.parametrize("opening", ["deferred", "immediate"])
@pytest.mark.parametrize("kind", ["drop", "crash", "late", "type"])
def test_dropouts_between_two_rounds_cost_no_hop(opening, kind):
    """Three of seven are missing, in every round others."""
    faults = [Fault((t + i) % 7, t, kind) for t in range(1, T + 1) for i in range(2)]
    outcome, hops = run(make(opening), faults=faults)
    assert outcome.strategy.report.answers == [5] * T
    assert len(hops.kinds) == (2 + 2 * T if opening == "immediate" else 2 + T + 1)
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)


def test_answers_that_came_too_late_for_the_sum_are_votes_for_it():
    """Only member 3 is in both sums; 0, 1 and 2 answered round 1 too, but not in time."""
    faults = [Fault(i, 1, "late") for i in (0, 1, 2)] + [Fault(i, 2, "drop") for i in (4, 5, 6)]
    outcome, hops = run(make(), faults=faults)
    assert outcome.strategy.report.answers == [4, 4, 7, 7]
    assert "open" not in hops.kinds
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)


@pytest.mark.parametrize("opening", OPENINGS)
def test_missing_shares_take_a_hop(opening):
    """Who answered round 1 is missing in round 2, but for one, and is there again when asked."""
    faults = [Fault(i, 1, "drop") for i in (0, 1, 2)] + [Fault(i, 2, "crash") for i in (4, 5, 6)]
    outcome, hops = run(make(opening), faults=faults)
    assert outcome.strategy.report.answers == [4, 4, 7, 7]
    opens = {"deferred": 1, "immediate": T - 1, "simple": 0}[opening]
    assert hops.kinds.count("open") == opens
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)


def silent(kinds, who):
    """Return a client app wrapper under which some clients give nothing toward opening."""
    import harness

    class Silent(harness.FaultyClientApp):
        def __call__(self, message, context):
            reply = super().__call__(message, context)
            record = reply.content.config_records["kmeans"]
            place = int(context.node_config["partition-id"])
            if place in who and message.content.config_records["kmeans"]["kind"] in kinds:
                for name in ("share_t", "share", "correction"):
                    if name in record:
                        del record[name]
            return reply

    return Silent


@pytest.mark.parametrize(
    ("kinds", "who", "opens"),
    [
        ({"round"}, range(3), 0),  # four shares suffice
        ({"round"}, range(4), 3),  # three do not: one hop more for each round but the last
        ({"round"}, range(7), 3),
    ],
)
def test_silent_members_cost_hops_but_not_the_run(kinds, who, opens, monkeypatch):
    monkeypatch.setattr("harness.FaultyClientApp", silent(kinds, who))
    outcome, hops = run(make(), faults=[Fault(6, 4, "twice")])
    assert hops.kinds.count("open") == opens
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)


def test_everyone_is_asked_if_the_survivors_do_not_open_a_sum(monkeypatch):
    """Four are in the sum of round 1 and one of them is silent; three were only late."""
    monkeypatch.setattr("harness.FaultyClientApp", silent({"open"}, (3,)))
    outcome, hops = run(make("immediate"), faults=[Fault(i, 1, "late") for i in (0, 1, 2)])
    assert outcome.strategy.report.answers[0] == 4
    assert hops.kinds.count("open") == T
    assert [len(records) for records in hops.fields[3:5]] == [4, 7]
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)


# What the server notes of a client, and how many rounds later.
OPEN_FAULTS = {
    "drop": None,
    "late": (MALFORMED, 1),  # it came with the answers to the next question
    "crash": (CRASHED, 0),
    "twice": None,
    "shape": (FALSE, 0),
    "type": (MALFORMED, 0),
    "round": None,  # a share of another round is nobody's, and not worth a line
    "run": (STRAY, 0),
}


def test_every_fault_is_tried_in_the_hop_that_opens():
    assert set(OPEN_FAULTS) == set(FaultKind.__args__)


@pytest.mark.parametrize("kind", OPEN_FAULTS)
def test_who_fails_in_the_hop_that_opens_is_not_needed_there(kind):
    """Three who are asked for the correction fail in every such hop; all their answers count."""
    faults = [Fault(i, t, kind, hop="open") for i in (0, 1, 2) for t in range(1, T)]
    outcome, hops = run(make("immediate"), faults=faults)
    report, noted = outcome.strategy.report, OPEN_FAULTS[kind]
    assert report.answers == [7] * T
    assert report.dropped == []
    assert hops.kinds.count("open") == T - 1
    assert {(e.client, e.round, e.reason) for e in report.incidents} == {
        (fault.client, fault.round + noted[1], noted[0]) for fault in faults if noted
    }
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)


@pytest.mark.parametrize("kind", ["drop", "crash", "type", "round", "run"])
def test_without_a_quorum_in_the_hop_that_opens_there_is_no_next_question(kind):
    strategy = make("immediate")
    faults = [Fault(i, 2, kind, hop="open") for i in (1, 2, 4, 6)]
    with pytest.raises(RunError, match=r"sum of round 2 .* 3 of 4 shares and 3 corrections"):
        run(strategy, faults=faults)
    assert strategy.report.answers == [7]
    assert strategy._run_state.head == 2


def test_what_comes_late_to_the_hop_that_opens_counts_when_it_is_repeated():
    faults = [Fault(i, 2, "late", hop="open") for i in range(7)]
    outcome, hops = run(make("immediate"), faults=faults)
    assert hops.kinds.count("open") == T
    assert outcome.strategy.report.answers == [7] * T
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)


def test_a_hop_that_a_deferred_opening_takes_can_fail_as_well():
    """As in `test_missing_shares_take_a_hop`: four answered round 1, and it takes all of them."""
    faults = [Fault(i, 1, "drop") for i in (0, 1, 2)] + [Fault(i, 2, "crash") for i in (4, 5, 6)]
    with pytest.raises(RunError, match=r"sum of round 1 .* 3 of 4 shares"):
        run(make(), faults=[*faults, Fault(6, 1, "crash", hop="open")])


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_sum_that_nobody_opens_ends_the_run_clearly(opening, monkeypatch):
    monkeypatch.setattr("harness.FaultyClientApp", silent({"round", "open"}, range(7)))
    with pytest.raises(RunError, match="sum of round 1 could not be opened for the server") as e:
        run(make(opening), faults=[Fault(6, 4, "twice")])
    text = str(e.value)
    assert "\n" not in text
    assert ("0 of 4 shares and 0 corrections" in text) == (opening != "simple")


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_last_sum_that_is_not_opened_is_an_error_at_the_server_only(opening, monkeypatch):
    results = []
    monkeypatch.setattr("harness.FaultyClientApp", silent({"finish"}, range(7)))
    with pytest.raises(RunError, match=f"sum of round {T} could not be opened"):
        run(
            make(opening),
            faults=[Fault(6, 4, "twice")],
            on_result=lambda result, context: results.append(result),
        )
    assert len(results) == 7


def lying(field, who, place=None):
    """Return a client app wrapper under which some clients send something false.

    One bit is false where a place is named. Else half of the bytes are, by amounts that no two
    clients share: shares of which several are false by small amounts can still give the secret.
    """
    import harness

    class Lying(harness.FaultyClientApp):
        def __call__(self, message, context):
            reply = super().__call__(message, context)
            record = reply.content.config_records["kmeans"]
            client = int(context.node_config["partition-id"])
            if client in who and field in record:
                data = bytearray(record[field])
                if place is not None:
                    data[place] ^= 1
                else:
                    lies = np.random.default_rng(client).bytes(SHARE_BYTES // 2)
                    data[: len(lies)] = (a ^ b for a, b in zip(data, lies, strict=False))
                record[field] = bytes(data)
            return reply

    return Lying


@pytest.mark.parametrize("opening", ["deferred", "immediate"])
@pytest.mark.parametrize("liars", [(0,), (2, 5)])
def test_false_shares_are_named_and_the_sum_is_right(opening, liars, monkeypatch):
    monkeypatch.setattr("harness.FaultyClientApp", lying("share", liars))
    outcome, hops = run(make(opening), faults=[Fault(6, 4, "twice")])
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)
    named = {(e.client, e.round) for e in outcome.strategy.report.incidents if e.reason == FALSE}
    assert named == {(liar, t) for liar in liars for t in range(1, T + 1)}
    assert len(hops.kinds) == (2 + 2 * T if opening == "immediate" else 2 + T + 1)


@pytest.mark.parametrize("opening", ["deferred", "immediate"])
def test_too_many_false_shares_are_an_error_and_never_a_wrong_sum(opening, monkeypatch):
    monkeypatch.setattr("harness.FaultyClientApp", lying("share", range(4)))
    with pytest.raises(RunError, match="7 of 4 shares"):
        run(make(opening), faults=[Fault(6, 4, "twice")])


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_false_correction_is_an_error_if_nothing_shows_who_lies(opening, monkeypatch):
    monkeypatch.setattr("harness.FaultyClientApp", lying("correction", (1,), place=0))
    with pytest.raises(RunError, match="in 2 ways"):
        run(make(opening), faults=[Fault(6, 4, "twice")])


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_false_checksum_in_a_correction_is_left_out(opening, monkeypatch):
    monkeypatch.setattr("harness.FaultyClientApp", lying("correction", (1,), place=-8))
    outcome, _ = run(make(opening), faults=[Fault(6, 4, "twice")])
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)
    assert {e.client for e in outcome.strategy.report.incidents if e.reason == FALSE} == {1}


# --------------------------------------------------------------------------- late members


@pytest.mark.parametrize("opening", OPENINGS)
def test_late_members_change_the_quorum_from_their_first_round_on(opening, tmp_path):
    """Two of seven join after round 1: four of seven open from then on, three of five before."""
    outcome, _ = run(
        make(opening, keys="file", n_clients=7),
        tmp_path,
        faults=[Fault(i, 0, "late") for i in (1, 4)],
    )
    sizes = [closed.entry.m for closed in outcome.strategy._run_state.closed]
    assert sizes[0] == 5
    assert sizes[-1] == 7
    assert outcome.strategy.report.answers[-1] == 7
    np.testing.assert_array_equal(outcome.strategy.centroids, outcome.one.centroids)
    assert len(outcome.results) == 7


# --------------------------------------------------------------------------- options


@pytest.mark.parametrize("opening", ["simple ", "quorum", "none", "", None, 5, True, ["simple"]])
def test_other_openings_are_refused(opening):
    with pytest.raises(ConfigurationError, match="opening"):
        make(opening)


def test_the_default_is_deferred_and_concerns_distributed_noise_only():
    def of(**options):
        return FastLloyd(2, BOX, PrivacyBudget(1.0), 150, n_clients=5, **options).opening

    assert of(trust="distributed-noise") == "deferred"
    assert of(trust="distributed-noise", opening="immediate") == "immediate"
    assert of() == of(trust="trusted-server", opening="immediate") == "none"
    assert Lloyd(2, BOX, opening="simple").opening == "none"


def test_clients_with_the_default_policy_refuse_simple_opening():
    policy = ClientPolicy(in_memory=True, min_clients=2, max_epsilon=1.5)
    for opening in OPENINGS:
        if opening == "simple":
            with pytest.raises(TooFewClientsError, match="policy"):
                run(make(opening), policy=policy)
        else:
            run(make(opening), policy=policy)
