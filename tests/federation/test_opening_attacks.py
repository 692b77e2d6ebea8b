"""An active server under distributed-noise: it lies to clients and keeps all that they give it.

Numbers in names are those of the threat model's table. The clients hold a key file, or keys on a
roster, which the server has not.
"""

import copy
import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from harness import (
    P_VALUE,
    SIMULATED,
    Node,
    Scene,
    byte_p_value,
    exact_statistic,
    key_file,
    make_run,
    roster_policies,
)

from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.cohort import Tree, leaf
from flower_kmeans.federation.messages import Finish, Open, OpenReply, Refusal, Round, RoundReply
from flower_kmeans.federation.opening import Opening
from flower_kmeans.federation.transcript import (
    EMPTY_QUESTION_HASH,
    Entry,
    first_hash,
    next_hash,
    pack_words,
    unpack_words,
)
from flower_kmeans.secagg import masks, sharing
from flower_kmeans.secagg.ring import from_ring

QUORUM = ("deferred", "immediate")


def file_policy(tmp_path):
    return replace(SIMULATED, group_key_file=key_file(tmp_path))


class Thief:
    """A server that asks, tells and keeps what it likes, in round 1 of a run."""

    def __init__(self, tmp_path, m, opening="deferred", keys="file", **options):
        run = make_run("distributed-noise", keys=keys, opening=opening, **options)
        policies = [file_policy(tmp_path)] * m
        if keys == "roster":
            policies = roster_policies(tmp_path, m)
        rng = np.random.default_rng(5)
        nodes = [Node(2**63 + i, rng.random((6 + i, 2)), policies[i]) for i in range(m)]
        self.scene = Scene(run, nodes=nodes)
        self.nodes, self.doc_hash = self.scene.nodes, run.document.doc_hash
        self.chain = first_hash(self.doc_hash)
        self.words = defaultdict(dict)  # answers by attempt and member
        self.heads = {}
        self.shares, self.corrections = defaultdict(dict), defaultdict(dict)
        self.before = None

    def ask(self, attempt=1, members=None):
        """Collect answers."""
        self.scene.open(attempt)
        for i in range(len(self.nodes)) if members is None else members:
            reply = self.scene.ask(i)
            assert isinstance(reply, RoundReply)
            self.words[attempt][i] = unpack_words(reply.words)

    def entry(self, survivors, attempt=1, offset=0, words=None):
        """Return a sum that it might announce."""
        m = len(self.nodes)
        total = sum(self.words[attempt][i] for i in survivors) if words is None else words
        total = total.copy()
        total[:-1] += np.uint64(offset)
        present = np.isin(np.arange(m), list(survivors))
        root = self.scene.server._tree.root
        entry = Entry(1, attempt, m, root, EMPTY_QUESTION_HASH, present, total)
        context = entry.context(self.doc_hash, self.chain)
        self.heads[entry.pack()] = next_hash(self.chain, context, entry)
        return entry

    def remember(self):
        self.before = [copy.deepcopy(node.state) for node in self.nodes]

    def forget(self):
        """Let all clients, and the server, forget what happened since `remember`."""
        for node, state in zip(self.nodes, self.before, strict=True):
            node.state = copy.deepcopy(state)
        self.shares.clear()
        self.corrections.clear()

    def place(self, i, entry):
        place = self.scene.server._place(i, entry.t, self.scene.server._tree)
        return {**place, "entries": (entry.pack(),), "want_correction": True}

    def tell(self, i, entry, kind=Open):
        """Announce a sum to one client and keep what it gives."""
        place = self.place(i, entry)
        if kind is Round:
            place.update(t=entry.t + 1, attempt=1)
        reply = self.nodes[i].ask(kind(**place))
        if not isinstance(reply, Refusal) and reply.share_t is not None:
            # Whatever was announced now, the client's vote is for the entry that it follows.
            followed = self.nodes[i].life(self.scene.run).chain
            self.shares[followed][i] = reply.share
            if reply.correction is not None:
                self.corrections[followed][i] = reply.correction
        return reply

    def opening(self, entry, shares=None):
        head = self.heads[entry.pack()]
        opening = Opening(entry, head, by_quorum=True)
        for i, share in (self.shares[head] if shares is None else shares).items():
            opening.take(i, share, None)
        for i, correction in self.corrections[head].items():
            opening.take(i, None, correction)
        return opening

    def open(self, entry):
        return self.opening(entry).open()

    def exact(self, survivors):
        return np.sum([self.scene.plain(i) for i in survivors], axis=0)


def split(m, at):
    return list(range(at)), list(range(at, m))


# --------------------------------------------------------------------------- 11


@pytest.mark.parametrize("opening", QUORUM)
@pytest.mark.parametrize("keys", ["file", "roster"])
@pytest.mark.parametrize("at", range(7))
def test_11_a_pretended_dropout_opens_one_of_two_sums_at_most(opening, keys, at, tmp_path):
    m, dropped = 6, 2
    thief = Thief(tmp_path, m, opening, keys)
    thief.ask()
    everyone = thief.entry(range(m))
    fewer = thief.entry([i for i in range(m) if i != dropped])
    for members, entry in zip(split(m, at), (everyone, fewer), strict=True):
        for i in members:
            assert isinstance(thief.tell(i, entry), OpenReply)
            thief.tell(i, fewer if entry is everyone else everyone)  # and the other one after it
            if opening == "deferred":
                thief.tell(i, entry, Round)
    opened = [thief.open(entry) is not None for entry in (everyone, fewer)]
    assert opened == [at >= 4, m - at >= 4]
    assert sum(map(len, thief.shares.values())) == m


def test_11_every_way_to_split_the_votes(tmp_path):
    m = 4
    thief = Thief(tmp_path, m, max_attempts=1)
    thief.ask()
    entries = [
        thief.entry(survivors)
        for size in (2, 3, 4)
        for survivors in itertools.combinations(range(m), size)
    ]
    thief.remember()
    rng = np.random.default_rng(7)
    for _ in range(40):
        for i in range(m):
            thief.tell(i, entries[rng.choice([0, 4, len(entries) - 1])])
        assert sum(thief.open(entry) is not None for entry in entries) <= 1
        thief.forget()


def test_11_what_is_left_of_the_other_sum_is_uniform(tmp_path):
    """Also the difference of both sums, which is one client's words."""
    m, seen = 6, defaultdict(bytes)
    thief = Thief(tmp_path, m, rounds=2, n_clusters=40)
    thief.ask()
    everyone = thief.entry(range(m))
    thief.remember()
    for dropped in range(m):
        fewer = thief.entry([i for i in range(m) if i != dropped])
        voters = [i for i in range(m) if i != dropped][:4]
        for i in range(m):
            thief.tell(i, everyone if i in voters else fewer)
        opened = thief.open(everyone)
        assert from_ring(opened)[-1] == m
        assert thief.open(fewer) is None
        head = thief.heads[fewer.pack()]
        assert len(thief.shares[head]) == 2 < sharing.quorum(m)
        (sealed,) = {unpack_words(sent).tobytes() for sent in thief.corrections[head].values()}
        rest = fewer.words - unpack_words(sealed)
        found = sharing.Interpolation(thief.shares[head]).secret  # as if it had a quorum
        guess = rest + sharing.open_stream(found, head, len(rest))
        for name, words in {
            "the other sum": rest,
            "one client's words": opened - rest,
            "the other sum, unsealed with what it has": guess,
            "one client's words, unsealed with what it has": opened - guess,
        }.items():
            seen[name] += pack_words(words)
        thief.forget()
    for name, data in seen.items():
        assert byte_p_value(data) > P_VALUE, name
    # The test itself can find something: the sum that did open.
    assert byte_p_value(pack_words(opened)) <= P_VALUE


def test_11_single_clients_would_open_both_sums(tmp_path):
    """Under simple opening the same server has one client's words with that client's noise only."""
    m, dropped = 6, 5
    thief = Thief(tmp_path, m, "simple")
    thief.ask()
    everyone, fewer = thief.entry(range(m)), thief.entry(range(m - 1))
    opened = []
    for i, entry in ((0, everyone), (1, fewer)):
        reply = thief.nodes[i].ask(Open(**thief.place(i, entry)))
        opened.append(from_ring(entry.words - unpack_words(reply.correction)))
    noise = (opened[0] - opened[1])[:-1] - thief.scene.plain(dropped)
    # The grid has 2^15 units or more, so words that had stayed masked would be far larger.
    assert np.abs(noise).max() < 2**40


# --------------------------------------------------------------------------- 12


@pytest.mark.parametrize("opening", QUORUM)
@pytest.mark.parametrize("keys", ["file", "roster"])
@pytest.mark.parametrize("at", range(6))
def test_12_one_of_two_attempts_opens_at_most(opening, keys, at, tmp_path):
    m = 5
    thief = Thief(tmp_path, m, opening, keys)
    thief.ask(1)
    thief.ask(2)
    entries = [thief.entry(range(m), attempt) for attempt in (1, 2)]
    for members, entry in zip(split(m, at), entries, strict=True):
        for i in members:
            assert isinstance(thief.tell(i, entry), OpenReply)
            for other in entries:
                thief.tell(i, other, Finish)
    assert [thief.open(entry) is not None for entry in entries] == [at >= 3, m - at >= 3]


def test_a_majority_of_another_context_does_not_help(tmp_path):
    m = 6
    thief = Thief(tmp_path, m)
    thief.ask(1)
    thief.ask(2)
    first, second = (thief.entry(range(m), attempt) for attempt in (1, 2))
    for i in range(m):
        thief.tell(i, first if i < 4 else second)
    assert thief.open(first) is not None
    assert thief.open(second) is None
    votes = [thief.shares[thief.heads[entry.pack()]] for entry in (first, second)]
    for mixed in (votes[0], {**votes[0], **votes[1]}, {**votes[1], **votes[0]}):
        assert thief.opening(second, mixed).open() is None
    # Nor does the secret of one unseal the other.
    secret = sharing.Interpolation(votes[0]).secret
    head = thief.heads[second.pack()]
    sealed = unpack_words(thief.corrections[head][5])
    for name in (head, thief.heads[first.pack()]):
        opened = second.words - (sealed - sharing.open_stream(secret, name, len(sealed)))
        assert int(opened[-1]) != m


@pytest.mark.parametrize("opening", QUORUM)
def test_no_vote_for_an_attempt_that_this_life_did_not_answer(opening, tmp_path):
    m = 5
    thief = Thief(tmp_path, m, opening)
    thief.ask(1, [0, 1, 2])
    thief.ask(2, [2, 3, 4])
    first = thief.entry([0, 1, 2], 1)
    second = thief.entry([2, 3, 4], 2)
    thief.remember()
    for entry, voters in ((first, {0, 1, 2}), (second, {2, 3, 4})):
        thief.forget()
        for i in range(m):
            assert isinstance(thief.tell(i, entry), OpenReply)  # it follows all the same
        assert thief.shares[thief.heads[entry.pack()]].keys() == voters
        assert thief.corrections[thief.heads[entry.pack()]].keys() == voters
        assert thief.open(entry) is not None


# --------------------------------------------------------------------------- 4, 5, 2


@pytest.mark.parametrize("opening", QUORUM)
def test_4_different_sums_for_different_clients_get_one_quorum_and_fork_the_rest(opening, tmp_path):
    m = 5
    thief = Thief(tmp_path, m, opening)
    thief.ask()
    entries = [thief.entry(range(m), offset=offset) for offset in (0, 1)]
    halves = split(m, 3)
    for members, entry in zip(halves, entries, strict=True):
        for i in members:
            thief.tell(i, entry)
    assert [thief.open(entry) is not None for entry in entries] == [True, False]
    # From here on there are two worlds, and the smaller one never has a quorum.
    second, chain = [], thief.heads[entries[1].pack()]
    for i in halves[1]:
        place = thief.place(i, entries[1])
        reply = thief.nodes[i].ask(Round(**{**place, "t": 2}, attempt=1))
        assert isinstance(reply, RoundReply)
        second.append(unpack_words(reply.words))
    entry = replace(thief.entry(halves[1], words=sum(second)), t=2)
    votes = {}
    for i in halves[1]:
        place = {**thief.place(i, entry), "entries": (entry.pack(),)}
        reply = thief.nodes[i].ask(Open(**place))
        assert isinstance(reply, OpenReply)
        votes[i] = reply.share
    opened = Opening(
        entry, next_hash(chain, entry.context(thief.doc_hash, chain), entry), by_quorum=True
    )
    for i, share in votes.items():
        opened.take(i, share, reply.correction)
    assert len(votes) == 2 < opened.quorum
    assert opened.open() is None
    # The other world's clients cannot be made to vote for it.
    for i in halves[0]:
        place = {**thief.place(i, entry), "entries": (entries[0].pack(), entry.pack())}
        assert thief.nodes[i].ask(Open(**place)).code == Code.GARBAGE


@pytest.mark.parametrize("opening", QUORUM)
def test_5_a_second_broadcast_gets_no_vote(opening, tmp_path):
    m = 4
    thief = Thief(tmp_path, m, opening)
    thief.ask()
    first, second = thief.entry(range(m)), thief.entry(range(3))
    for i in range(m):
        before = thief.tell(i, first)
        for kind in (Open, Finish):
            again = thief.tell(i, second, kind)
            assert (again.share, again.correction) == (before.share, before.correction)
    assert thief.open(first) is not None
    assert not thief.shares[thief.heads[second.pack()]]
    assert thief.open(second) is None


@pytest.mark.parametrize("opening", QUORUM)
def test_2_a_lie_about_the_survivors_gets_no_vote(opening, tmp_path):
    m = 5
    thief = Thief(tmp_path, m, opening, min_clients=3)
    thief.ask()
    answers = thief.words[1]
    total = sum(answers[i] for i in range(m))
    lies = [
        (thief.entry(range(4), words=total), Code.GARBAGE),
        (thief.entry(range(m), words=total - answers[2]), Code.GARBAGE),
        (thief.entry([1, 2, 3], words=answers[1]), Code.GARBAGE),
        (thief.entry([1, 2, 3], words=3 * answers[1]), Code.GARBAGE),
        (thief.entry([1]), Code.POLICY),
        (thief.entry([1, 4]), Code.POLICY),
    ]
    for entry, code in lies:
        for i in range(m):
            for kind in (Open, Finish, Round):
                refusal = thief.tell(i, entry, kind)
                assert isinstance(refusal, Refusal)
                assert refusal.code == code
    assert not thief.shares
    truth = thief.entry(range(m))
    for i in range(m):
        thief.tell(i, truth)
    assert thief.open(truth) is not None


@pytest.mark.parametrize("seed", range(25))
def test_a_server_that_tries_at_random_opens_one_sum_of_a_round_at_most(seed, tmp_path):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(3, 8))
    thief = Thief(tmp_path, m, QUORUM[seed % 2], max_attempts=3)
    for attempt in (1, 2, 3):
        present = [i for i in range(m) if rng.random() < 0.9]
        thief.ask(attempt, present)
    entries = []
    for _ in range(4):
        attempt = int(rng.integers(1, 4))
        answered = list(thief.words[attempt])
        if len(answered) >= 2:
            size = int(rng.integers(2, len(answered) + 1))
            chosen = sorted(rng.choice(answered, size, replace=False).tolist())
            entries.append(thief.entry(chosen, attempt, int(rng.integers(2))))
    for _ in range(6 * m):
        entry = entries[int(rng.integers(len(entries)))]
        kind = (Open, Finish, Round)[int(rng.integers(3))]
        thief.tell(int(rng.integers(m)), entry, kind)
    unique = {entry.pack(): entry for entry in entries}.values()
    assert sum(thief.open(entry) is not None for entry in unique) <= 1
    quorums = [votes for votes in thief.shares.values() if len(votes) >= sharing.quorum(m)]
    assert len(quorums) <= 1
    voters = [i for votes in thief.shares.values() for i in votes]
    assert len(voters) == len(set(voters))


# --------------------------------------------------------------------------- the limit


def test_with_a_key_file_two_cohorts_of_one_round_open_each_with_noise_of_its_own(tmp_path):
    """What the documents concede: who is in the cohort is the server's word.

    Members 0 and 1 are in both attempts, with other members around them. Each sum has its quorum,
    and each carries a fresh share of every member's noise.
    """
    run = make_run("distributed-noise", keys="file", opening="deferred")
    rng = np.random.default_rng(5)
    policy = file_policy(tmp_path)
    nodes = [Node(100 + i, rng.random((6 + i, 2)), policy) for i in range(8)]
    Scene(run, nodes=nodes)  # everyone enrols
    chain, opened, entries = first_hash(run.document.doc_hash), [], []
    cohorts = {1: [0, 1, 2, 3, 4], 2: [0, 1, 5, 6, 7]}
    places, totals, trees, answers = {}, {}, {}, {}
    for attempt, members in cohorts.items():
        trees[attempt] = tree = Tree(
            leaf(place, nodes[n].node_id, nodes[n].life(run).commitment)
            for place, n in enumerate(members)
        )
        for place, n in enumerate(members):
            places[attempt, n] = {
                "doc_hash": run.document.doc_hash,
                "m": len(members),
                "index": place,
                "root": tree.root,
                "path": tree.path(place),
            }
            reply = nodes[n].ask(Round(**places[attempt, n], t=1, attempt=attempt))
            assert isinstance(reply, RoundReply)
            answers.setdefault(attempt, unpack_words(reply.words))  # member 0 comes first
            totals[attempt] = totals.get(attempt, 0) + unpack_words(reply.words)
    voters = {1: [2, 3, 4], 2: [5, 6, 7]}
    for attempt, members in cohorts.items():
        everyone = np.ones(5, dtype=bool)
        root = trees[attempt].root
        entry = Entry(1, attempt, 5, root, EMPTY_QUESTION_HASH, everyone, totals[attempt])
        head = next_hash(chain, entry.context(run.document.doc_hash, chain), entry)
        opening = Opening(entry, head, by_quorum=True)
        for n in voters[attempt]:
            request = Open(**places[attempt, n], t=1, entries=(entry.pack(),), want_correction=True)
            reply = nodes[n].ask(request)
            opening.take(members.index(n), reply.share, reply.correction)
        opened.append(opening.open())
        entries.append(entry)
    assert all(int(words[-1]) == 5 for words in opened)
    noises = []
    for attempt, entry in enumerate(entries, 1):
        key = masks.mask_key(
            nodes[0].life(run).group_key, entry.context(run.document.doc_hash, chain)
        )
        words = answers[attempt] - masks.mask(key, 0, 5, len(answers[attempt]))
        question = run.algorithm.query(run.algorithm.initial_state(None))
        noises.append(from_ring(words)[:-1] - exact_statistic(run, question, nodes[0].records))
    assert (noises[0] != noises[1]).any()
    # 0 and 1 vote once: for whichever of the two sums they are told first.
    votes = [
        nodes[0].ask(Open(**places[attempt, 0], t=1, entries=(entry.pack(),))).share
        for attempt, entry in enumerate(entries, 1)
    ]
    assert votes[0] == votes[1] is not None
