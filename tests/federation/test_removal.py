"""Noise beyond the plan is removed, and nothing else: parts of shares, their keys, and attacks."""

import copy
import itertools
import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from asking import CELLS, Split, SplitAlgorithm
from harness import (
    P_VALUE,
    SIMULATED,
    Node,
    Scene,
    exact_statistic,
    key_file,
    make_run,
    roster_policies,
    run_recorded,
)
from scipy import stats

from flower_kmeans import Box, Fault, PrivacyBudget
from flower_kmeans.algorithms.base import Query
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.federation import opening as opening_module
from flower_kmeans.federation.arrays import decode_arrays
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.cohort import MAX_MEMBERS
from flower_kmeans.federation.coordinator import FALSE
from flower_kmeans.federation.document import MAX_LEVELS, RunDocument
from flower_kmeans.federation.enrolment import MALFORMED
from flower_kmeans.federation.messages import Open, OpenReply, RoundReply
from flower_kmeans.federation.opening import Opening
from flower_kmeans.federation.release import noise_part, noise_share
from flower_kmeans.federation.removal import (
    client_noise,
    is_committed,
    levels_up_to,
    part_key,
    reached,
    remove,
    usable,
)
from flower_kmeans.federation.run import UnacceptableRunError, open_run
from flower_kmeans.federation.transcript import (
    Entry,
    next_hash,
    pack_words,
    question_hash,
    unpack_words,
)
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.secagg import sharing
from flower_kmeans.secagg.masks import noise_key
from flower_kmeans.secagg.ring import from_ring
from flower_kmeans.strategies import FastLloyd

M = 6
LEVELS = (2, 3, 5)  # with M' = 1 and one colluder: for 3, 4 and 6 answers
FIRST = Query(1)


def run_of(kind=SplitAlgorithm, levels=LEVELS, **options):
    return make_run("distributed-noise", rounds=2, kind=kind, levels=levels, **options)


def scene_of(tmp_path, keys="file", ledgers=False, **options):
    run, policies = run_of(keys=keys, **options), [SIMULATED] * M
    if keys == "file":
        policies = [replace(SIMULATED, group_key_file=key_file(tmp_path))] * M
    elif keys == "roster":
        policies = roster_policies(tmp_path, M)
    if ledgers:
        policies = [
            replace(policy, in_memory=False, state_dir=tmp_path / f"node-{i}")
            for i, policy in enumerate(policies)
        ]
    rng = np.random.default_rng(5)
    nodes = [Node(2**63 + i, rng.random((40 + i, 2)), policies[i]) for i in range(M)]
    return Scene(run, nodes=nodes)


def exact_sum(scene, survivors, question=FIRST):
    return sum(exact_statistic(scene.run, question, scene.nodes[i].records) for i in survivors)


def noise_in(scene, survivors):
    """Return the noise in the sum of round 1 as the server has it."""
    return from_ring(scene.server.closed[0].opened)[:-1] - exact_sum(scene, survivors)


def kept_noise(scene, survivors, n_parts):
    """Return what members' secrets say is left of their noise if so many parts are removed."""
    context, run = scene.server._context, scene.run
    secrets = [scene.nodes[i].life(run).secret for i in survivors]
    keys = [part_key(secret, context, len(LEVELS), n_parts) for secret in secrets]
    everyone = sum(client_noise(run, FIRST, secret, context) for secret in secrets)
    n = (0, *LEVELS)[n_parts] + 1
    return everyone - remove(run, FIRST, context, n, dict(enumerate(keys)))[0]


# --------------------------------------------------------------------------- the levels


@pytest.mark.parametrize(("shares", "most"), [(15, 19), (1, 19), (799, 999), (3, 3), (79, 99)])
def test_levels_end_where_everybody_answers_and_rise_by_one_ratio(shares, most):
    levels = levels_up_to(shares, most)
    steps = (shares, *levels)
    assert len(levels) <= MAX_LEVELS
    assert steps[-1] == most
    assert list(steps) == sorted(set(steps))
    ratio = (most / shares) ** (1 / MAX_LEVELS)
    for honest in range(shares, most + 1):
        used = max(step for step in steps if step <= honest)
        assert honest < (used + 0.5) * ratio + 0.5
    assert levels_up_to(15, 19) == (16, 17, 18, 19)  # exact for small cohorts
    assert levels_up_to(4, 2) == ()
    assert levels_up_to(2, 10**30)[-1] == MAX_MEMBERS


@pytest.mark.parametrize(
    ("levels", "fits"),
    [
        ((), True),
        ((4, 5), True),
        ((3, 4), False),  # M' is 3
        ((5, 4), False),
        ((4, 4), False),
        ((4, 5, 6, 7, 8), False),
        ((4.0,), False),
        ((True,), False),
        ((4, 2**20 + 1), False),
        ([4], False),
    ],
)
def test_levels_of_a_document_ascend_from_the_planned_shares(levels, fits):
    if fits:
        document = run_of(levels=levels, min_clients=4).document
        assert RunDocument.parse(document.data) == document
        return
    with pytest.raises(ConfigurationError, match="levels"):
        run_of(levels=levels, min_clients=4)


def test_other_trust_models_have_no_levels():
    with pytest.raises(ConfigurationError, match="levels"):
        make_run("trusted-server", levels=(3,))


def test_a_document_with_levels_that_are_no_list_is_refused():
    data = run_of().document.data
    with pytest.raises(MessageError):
        RunDocument.parse(data.replace(b'"levels":[2,3,5]', b'"levels":5'))


def test_clients_that_compute_the_questions_refuse_levels():
    """They go on from the sum as it was announced, and the server would from another one."""
    run = run_of(kind=None, opening="immediate")
    with pytest.raises(UnacceptableRunError, match="server asks"):
        open_run(run.document.data)


def test_parts_are_reached_by_honest_answers():
    document = run_of().document
    found = [reached(document, n) for n in range(2, 9)]
    assert found == [0, 1, 2, 2, 3, 3, 3]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [(2.0**16, (1, 2, 3, 5)), (1, (1, 2, 3, 5)), (0.7, (1, 2, 3)), (0.5, (1, 2)), (0.35, (1,))],
)
def test_no_part_is_narrower_than_two_grid_units(unit, expected):
    """A level that would make one is left out of a round, and its noise is not removed."""
    run = run_of()
    (release,) = run.plan.rounds[0]
    with mock.patch.object(SplitAlgorithm, "units", return_value=np.full(CELLS, float(unit))):
        numbers = usable(run.algorithm, run.plan, FIRST, run.document)
        assert numbers == expected
        variance = (release.noise_multiplier * unit) ** 2
        assert variance / numbers[-1] >= 4
        assert all(variance * (1 / a - 1 / b) >= 4 for a, b in itertools.pairwise(numbers))
        context, secret = bytes(32), bytes(32)
        noise = client_noise(run, FIRST, secret, context)
        keys = {0: part_key(secret, context, len(LEVELS), 3)}
        removed, factor = remove(run, FIRST, context, M, keys)
        assert factor == pytest.approx(math.sqrt(1 / numbers[-1] + 5))
        assert removed.any() == (len(numbers) > 1)
        if not removed.any():
            shares = noise_share(
                run.algorithm, run.plan, FIRST, 1, Stream.from_key(noise_key(secret, context))
            )
            np.testing.assert_array_equal(noise, shares)


# --------------------------------------------------------------------------- noise of sums


@pytest.mark.parametrize("n_survivors", range(2, M + 1))
def test_what_is_left_in_a_sum_is_the_planned_noise_of_the_honest(n_survivors):
    """Every number of answers: the scale is that of the factor, and the honest have the plan's."""
    run = run_of()
    honest, steps = n_survivors - 1, (1, *LEVELS)
    level = max(step for step in steps if step <= honest)
    n_parts = steps.index(level)
    release = run.plan.rounds[0][0]
    std = release.noise_multiplier * run.algorithm.units(1)
    ratios = []
    for number in range(40):
        context = bytes([number]) * 32
        secrets = [bytes([number, i]) * 16 for i in range(n_survivors)]
        total = sum(client_noise(run, FIRST, secret, context) for secret in secrets)
        keys = {i: part_key(s, context, len(LEVELS), n_parts) for i, s in enumerate(secrets)}
        removed, factor = remove(run, FIRST, context, n_survivors, keys)
        assert factor == pytest.approx(math.sqrt(n_survivors / level))
        assert honest / level >= 1  # what is left without the colluder's share
        ratios.append((total - removed) / std)
    squares = np.square(ratios)
    for scale, fits in [(factor, True), (factor * 2 / 3, False), (factor * 3 / 2, False)]:
        sizes = squares.sum() / scale**2, squares.size
        p_value = 2 * min(stats.chi2.cdf(*sizes), stats.chi2.sf(*sizes))
        assert p_value > P_VALUE if fits else p_value < 1e-12


BOX = Box([0.0, 0.0], [10.0, 10.0])
PARTS = [np.random.default_rng(i).uniform(0, 10, (30, 2)) for i in range(20)]


def play(faults=(), seeds=range(12), **options):
    """Run the strategy for 20 clients; return the noise over the plan's, and the last report."""
    ratios = []
    for seed in seeds:
        strategy = Split(
            3, BOX, PrivacyBudget(1.0), 600, trust="distributed-noise", n_clients=20, seed=seed,
            **options,
        )  # fmt: skip
        outcome = run_recorded(strategy, PARTS, timeout=60, faults=faults)
        server = strategy._run_state
        algorithm = server.run.algorithm
        sent = {i.fields["t"]: i.fields["question"] for i in outcome.grid.sent if i.kind == "round"}
        for t, data in sent.items():
            question, closed = Query(t, decode_arrays(data)), server.closed[t - 1]
            answered = np.flatnonzero(closed.entry.survivors)
            exact = sum(exact_statistic(server.run, question, PARTS[i]) for i in answered)
            units, places = algorithm.units(question.round), algorithm.places(t)
            for release in strategy.plan.rounds[t - 1]:
                place = np.concatenate([places[name] for name in release.blocks])
                noise = (from_ring(closed.opened)[:-1] - exact)[place]
                ratios.append(noise / (release.noise_multiplier * units[place]))
    return np.concatenate(ratios), strategy


DROPOUTS = [Fault(i, t, "drop") for i, t in [(3, 1), (4, 1), (3, 2), (9, 2)]]
SILENT = [Fault(i, t, "drop", "open") for i in (3, 7, 8) for t in (1, 2)]


@pytest.mark.parametrize(
    ("faults", "options", "factor", "added"),
    [
        ((), {}, 20 / 19, 20 / 15),
        ((), {"min_clients": 2}, 20 / 19, 20 / 1),
        ((), {"opening": "simple"}, 20 / 19, 20 / 15),
        (DROPOUTS, {}, 18 / 17, 18 / 15),
        # Three give no keys: their shares stay as they were made.
        (SILENT, {}, 17 / 19 + 3 / 15, 20 / 15),
        ((), {"min_clients": 20}, 20 / 19, 20 / 19),  # nothing is beyond the plan
    ],
    ids=["all", "two", "simple", "dropouts", "silent", "none"],
)
def test_finished_runs_carry_the_noise_that_the_report_says(faults, options, factor, added):
    ratios, strategy = play(faults, **options)
    report = strategy.report
    assert report.noise_factor == pytest.approx(math.sqrt(factor))
    assert report.added_noise_factor == pytest.approx(math.sqrt(added))
    assert report.to_dict()["added_noise_factor"] == report.added_noise_factor
    squares = ratios**2
    for wrong in (1.0, 2 / 3, 3 / 2):
        sizes = squares.sum() / (factor * wrong**2), squares.size
        p_value = 2 * min(stats.chi2.cdf(*sizes), stats.chi2.sf(*sizes))
        assert p_value > P_VALUE if wrong == 1.0 else p_value < 1e-9
    if not faults:
        assert strategy.noise_factor == pytest.approx(report.noise_factor)
        assert strategy.added_noise_factor == pytest.approx(report.added_noise_factor)


def test_the_own_share_of_the_report_is_what_removal_may_leave():
    """With the server, a client can have all parts removed: mu of the most honest answers."""
    _, strategy = play(seeds=[0], min_clients=2, max_attempts=1)
    (told,) = [text for text in strategy.report.statements if text.startswith("Against")]
    assert f"mu = {strategy.plan.mu * math.sqrt(19):.4g}" in told


def test_removal_takes_no_hop_and_few_bytes():
    """A commitment and a key for each round; the delivery asks for the last round's once more."""

    def hops(levels):
        counted = []
        with mock.patch.object(Split, "_levels", levels):
            strategy = Split(
                3, BOX, PrivacyBudget(1.0), 600, trust="distributed-noise", n_clients=20
            )
            outcome = run_recorded(
                strategy, PARTS, on_push=lambda _, messages: counted.append(bool(messages))
            )
        sizes = [
            sum(len(value) for value in item.fields.values() if isinstance(value, bytes))
            for item in outcome.grid.received
            if item.kind in ("round", "open")
        ]
        return sum(counted), sum(sizes)

    (with_removal, sent), (without, before) = hops((16, 17, 18, 19)), hops(())
    assert with_removal == without
    assert sent - before == 20 * (2 * (32 + 32) + 32)  # clients, rounds


def test_runs_that_clients_replay_keep_the_noise():
    for opening in ("deferred", "immediate"):
        strategy = FastLloyd(
            2, BOX, PrivacyBudget(1.0), 600, n_clients=20, trust="distributed-noise",
            opening=opening,
        )  # fmt: skip
        assert strategy.noise_factor == strategy.added_noise_factor == math.sqrt(20 / 15)


# --------------------------------------------------------------------------- keys


def test_a_key_gives_those_below_and_none_above():
    secret, context = bytes(32), bytes(range(32))
    keys = [part_key(secret, context, 4, n) for n in range(5)]
    assert len(set(keys)) == 5
    for n, key in enumerate(keys):
        assert is_committed(key, n, keys[0])
        assert not any(is_committed(key, other, keys[0]) for other in range(5) if other != n)
    assert part_key(secret, bytes(32), 4, 4) != keys[4] != part_key(b"1" * 32, context, 4, 4)


def test_a_share_is_made_as_the_protocol_says():
    """A base under the life's key, and parts under keys of a chain, all bound to the context."""
    run, secret, context = run_of(), bytes(range(32)), b"c" * 32
    given = run.algorithm, run.plan, FIRST
    expected = noise_share(*given, 5, Stream.from_key(noise_key(secret, context)))
    for n, (fewer, more) in enumerate(itertools.pairwise((1, *LEVELS)), 1):
        key = part_key(secret, context, len(LEVELS), n)
        expected += noise_part(*given, fewer, more, Stream.from_key(noise_key(key, context)))
    np.testing.assert_array_equal(client_noise(run, FIRST, secret, context), expected)


@pytest.mark.parametrize("keys", ["relayed", "file", "roster"])
def test_keys_come_with_the_help_to_open_and_not_before(keys, tmp_path):
    scene = scene_of(tmp_path, keys)
    scene.round()
    assert all(reply.parts and reply.part_key is None for reply in scene.replies.values())
    assert len({reply.parts for reply in scene.replies.values()}) == M
    answers = scene.open_hop()
    assert all(isinstance(answer, OpenReply) and answer.part_key for answer in answers)
    np.testing.assert_array_equal(noise_in(scene, range(M)), kept_noise(scene, range(M), 3))
    assert scene.server.noise_factors == [pytest.approx(math.sqrt(6 / 5))]


def test_no_key_without_noise_beyond_the_plan_and_none_of_who_is_not_in_the_sum(tmp_path):
    scene = scene_of(tmp_path, levels=(5,))
    scene.round(range(5))  # 4 honest answers
    assert not any(answer.part_key for answer in scene.open_hop())
    scene = scene_of(tmp_path)
    scene.open()
    late = [scene.ask(5)]
    assert isinstance(late[0], RoundReply)  # it answered, but too late
    for i in range(5):
        scene.answer(i)
    scene.server.close_round()
    answers = scene.open_hop(everyone=True)
    assert [bool(answer.part_key) for answer in answers] == [True] * 5 + [False]
    assert answers[5].share  # which is a vote all the same


@pytest.mark.parametrize("ledgers", [False, True])
def test_a_repeated_request_gets_the_same_bytes(ledgers, tmp_path):
    scene = scene_of(tmp_path, ledgers=ledgers)
    scene.open()
    first = scene.ask(2)
    assert scene.ask(2) == first
    for i in range(M):
        scene.answer(i)
    scene.server.close_round()
    request = scene.server.open_requests()[scene.nodes[2].node_id]
    opened = scene.nodes[2].ask(request)
    if ledgers:
        scene.nodes[2].restart()
    assert scene.nodes[2].ask(request) == opened
    assert opened.part_key


def test_a_wrong_key_is_not_used_and_its_sender_is_named(tmp_path):
    scene = scene_of(tmp_path)
    scene.round()
    for node_id, request in scene.server.open_requests().items():
        reply = scene._node(node_id).ask(request)
        if node_id == scene.nodes[4].node_id:
            reply = replace(reply, part_key=bytes(32))
        scene.server.accept_open(node_id, reply)
    scene.server.try_open()
    others = [0, 1, 2, 3, 5]
    expected = kept_noise(scene, others, 3) + kept_noise(scene, [4], 0)
    np.testing.assert_array_equal(noise_in(scene, range(M)), expected)
    assert [(drop.client, drop.reason) for drop in scene.server.incidents] == [(4, FALSE)]
    assert scene.server.noise_factors == [pytest.approx(math.sqrt(5 / 5 + 1))]


def test_a_key_that_was_chosen_after_the_sum_was_seen_is_not_that_of_the_commitment(tmp_path):
    """A member opens the sum too. It cannot pick noise to subtract that suits it."""
    scene = scene_of(tmp_path)
    scene.round()
    opening = scene.server._opening
    for i in range(M):
        opening.take(i, None, None, bytes([i]) * 32)
    opening._secret = bytes(32)
    assert opening.keys_of(3) == {}
    assert opening.false == set(range(M))


@pytest.mark.parametrize("levels", [LEVELS, ()])
def test_an_answer_has_a_commitment_exactly_where_there_are_parts(levels, tmp_path):
    scene = scene_of(tmp_path, levels=levels)
    scene.open()
    reply = scene.ask(0)
    wrong = replace(reply, parts=None if levels else bytes(32))
    scene.server.accept_round(scene.nodes[0].node_id, wrong)
    assert scene.server.incidents[-1].reason == MALFORMED
    assert not scene.server._open.survivors[0]
    scene.server.accept_round(scene.nodes[0].node_id, reply)
    assert scene.server._open.survivors[0]


# --------------------------------------------------------------------------- attacks


class Thief:
    """A server that asks everybody, and announces sums of round 1 as it likes."""

    def __init__(self, tmp_path, keys="file"):
        self.scene = scene_of(tmp_path, keys)
        self.scene.open()
        now = self.scene.server._open
        self.chain, self.context = self.scene.server._chain, now.context
        self.asked, self.root = now.asked.data, now.root
        self.replies = [self.scene.ask(i) for i in range(M)]
        self.before = [copy.deepcopy(node.state) for node in self.scene.nodes]

    def entry(self, survivors):
        words = sum(unpack_words(self.replies[i].words) for i in survivors)
        present = np.isin(np.arange(M), list(survivors))
        digest = question_hash(self.asked)
        return Entry(1, 1, M, self.root, digest, present, words)

    def head(self, entry):
        return next_hash(self.chain, self.context, entry)

    def opening(self, entry):
        parts = {i: self.replies[i].parts for i in range(M)}
        return Opening(entry, self.head(entry), True, parts)

    def tell(self, entries, votes):
        """Announce to each member the sum it is to vote for; return what each sum was given."""
        openings = [self.opening(entry) for entry in entries]
        for i, vote in enumerate(votes):
            for number in (vote, 1 - vote):  # and then the other one, which it must ignore
                place = self.scene.server._place(i, 1, self.scene.server._tree)
                packed = (entries[number].pack(),)
                request = Open(**{**place, "entries": packed, "want_correction": True})
                reply = self.scene.nodes[i].ask(request)
                if isinstance(reply, OpenReply) and reply.share is not None:
                    openings[vote].take(i, reply.share, reply.correction, reply.part_key)
        return openings

    def again(self):
        for node, state in zip(self.scene.nodes, self.before, strict=True):
            node.state = copy.deepcopy(state)


@pytest.mark.parametrize("keys", ["file", "roster"])
def test_keys_for_a_large_sum_do_not_serve_a_small_one(keys, tmp_path):
    """Every split of the votes: keys of the sum that opens are had, and none of the other's.

    Members that are in both sums give the key of many parts for the large one. With the small one
    open, these would leave less noise in it than planned.
    """
    thief = Thief(tmp_path, keys)
    large, small = thief.entry(range(M)), thief.entry([3, 4, 5])
    steps = [3, 1]  # parts beyond the plan
    for votes in np.ndindex(*[2] * M):
        thief.again()
        openings = thief.tell((large, small), votes)
        opened = [each.open() is not None for each in openings]
        assert sum(opened) <= 1
        for number, each in enumerate(openings):
            if not opened[number] and each.shares:  # as if what it has were enough
                each._secret = sharing.Interpolation(each.shares).secret
            keys_had = each.keys_of(steps[number])
            in_sum = each.entry.survivors
            expected = {i for i in range(M) if votes[i] == number and in_sum[i]}
            assert set(keys_had) == (expected if opened[number] else set())


def test_without_the_seal_the_attack_would_succeed(tmp_path):
    """Bare keys: three voters open the small sum, whose members gave the large one's keys."""
    with mock.patch.object(opening_module, "_key_seal", return_value=np.zeros(4, np.uint64)):
        thief = Thief(tmp_path)
        large, small = thief.entry(range(M)), thief.entry([4, 5])
        had, other = thief.tell((large, small), [1, 1, 1, 1, 0, 0])
        opened = other.open()
        assert opened is not None
        stolen = had.keys_of(3)
    assert set(stolen) == {4, 5}
    run = thief.scene.run
    removed, _ = remove(run, FIRST, thief.context, M, stolen)
    left = from_ring(opened)[:-1] - exact_sum(thief.scene, [4, 5]) - removed
    # Two shares made for five: 2/5 of the planned variance, and 1/5 if one of them is known.
    streams = [
        Stream.from_key(noise_key(thief.scene.nodes[i].life(run).secret, thief.context))
        for i in (4, 5)
    ]
    shares = [noise_share(run.algorithm, run.plan, FIRST, 5, stream) for stream in streams]
    np.testing.assert_array_equal(left, sum(shares))


def test_a_sum_that_claims_more_survivors_than_it_has_gets_no_key(tmp_path):
    thief = Thief(tmp_path)
    few = thief.entry([3, 4, 5])
    claimed = replace(few, survivors=np.ones(M, dtype=bool))
    words = claimed.words.copy()
    words[-1] += np.uint64(3)  # the checksum word is masked: this does not make it fit
    for entry in (claimed, replace(claimed, words=words)):
        thief.again()
        place = thief.scene.server._place(0, 1, thief.scene.server._tree)
        reply = thief.scene.nodes[0].ask(Open(**{**place, "entries": (entry.pack(),)}))
        assert reply.code == Code.GARBAGE


def test_each_attempt_has_parts_of_its_own(tmp_path):
    scene = scene_of(tmp_path)
    scene.open(1)
    first = scene.ask(0)
    scene.open(2)
    second = scene.ask(0)
    assert first.parts != second.parts
    secret = scene.nodes[0].life(scene.run).secret
    for reply in (first, second):
        assert part_key(secret, reply.ctx, len(LEVELS), 0) == reply.parts


def test_a_seal_is_used_for_one_key(tmp_path):
    """Members of one sum have seals that differ, and differ from the correction's."""
    scene = scene_of(tmp_path)
    scene.round()
    head, secret = scene.server._chain, bytes(32)
    seals = {pack_words(sharing.open_stream(secret, head, 4, i)) for i in range(M + 1)}
    assert len(seals) == M + 1
    sent = [answer.part_key for answer in scene.open_hop()]
    assert len(set(sent)) == M
