"""Random hostile servers before one real client: what must hold whatever they send.

The server knows the group key, so it can forge sums that open, and it has every message
that was ever sent. The client's operator restarts it, changes its records, or restores
a backup.
"""

import shutil
from collections import Counter, defaultdict
from random import Random

import numpy as np
import pytest
from cohorts import Cohort
from malformed import near_bytes

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import checks, messages, transcript
from flower_kmeans.protocol.messages import (
    Answer,
    Ask,
    Code,
    Refusal,
    decode_reply,
    decode_request,
)
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.protocol.wire import encode
from flower_kmeans.secagg.base import SumContext
from flower_kmeans.secagg.masks import correction, mask_key

STEPS, T = 70, 3


class World:
    """One run, one client (slot 0), and all that was sent and answered."""

    def __init__(self, seed, directory, trust, keys, ledger, rollback):
        self.rng = Random(seed)
        self.scene = Cohort(
            directory,
            trust,
            keys,
            n=5,
            ledger=ledger,
            policy={"copy_records": seed % 2 == 0},
        ).set_up()
        self.node, self.ledger, self.rollback = self.scene.nodes[0], ledger, rollback
        self.directory = self.node.policy.state_dir
        self.backups: list[object] = []
        self.requests: list[bytes] = []
        self.histories: list[tuple[messages.Entry, ...]] = [()]
        self.answers = defaultdict(set)  # by context
        self.votes = defaultdict(set)  # by round
        self.codes = Counter()
        self.dealt = {a: self.scene.deal(attempt=a, who=range(1, 5)) for a in (1, 2)}

    def play(self):
        actions = (
            [self.ask] * 8 + [self.again] * 3 + [self.near] * 3 + [self.operator] * 4
        )
        if self.scene.run.trust.has_committee:
            actions += [self.add] * 6
        for _ in range(STEPS):
            self.rng.choice(actions)()

    # ------------------------------------------------------------------ the operator

    def operator(self):
        kind = self.rng.randrange(6)
        if kind == 0:
            self.node.records = np.random.default_rng(self.rng.randrange(3)).random(
                (9, 2)
            )
        elif kind == 1 and self.ledger:
            self.node.restart()
        elif kind == 2:
            reply = self.send(messages.Enrol(doc=self.scene.run.data))
            if isinstance(reply, messages.Enrolled):
                self.scene.take(0, reply)
        elif kind == 3 and self.rollback and self.directory.exists():
            backup = self.directory.with_name(f"backup-{len(self.backups)}")
            shutil.copytree(self.directory, backup)
            self.backups.append(backup)
        elif kind == 4 and self.backups:
            shutil.rmtree(self.directory)
            shutil.copytree(self.rng.choice(self.backups), self.directory)

    # ------------------------------------------------------------------ the server

    def send(self, request, data=None):
        data = encode(request) if data is None else data
        self.requests.append(data)
        reply = decode_reply(self.node.answer(data))
        self.codes[
            type(reply).__name__ + (Code(reply.code).name if is_refusal(reply) else "")
        ] += 1
        if is_refusal(reply):
            assert reply.code != Code.INTERNAL, request
            if reply.code == Code.RENEW:
                self.scene.take(0, reply)
                if self.scene.trust.is_blind and self.scene.wraps(1):
                    self.scene.wrap_again(0, by=1)
        elif isinstance(request, Ask):
            self.answered(request, reply)
        elif isinstance(request, messages.Add):
            h = b"" if request.committee == b"" else request.h
            variant = (
                request.attempt,
                request.root,
                request.committee,
                request.survivors,
                h,
            )
            parts = (request.tag, request.public_keys, request.sealed)
            self.votes[request.t].add((variant, parts))
        return reply

    def answered(self, request, reply):
        h = ZERO
        if self.scene.trust.is_blind:
            h = self.node.session(self.scene.doc_hash).h
        com = transcript.H(request.committee)
        context = (
            request.t,
            request.attempt,
            request.n_slots,
            request.root,
            com,
            h,
            reply.tag,
        )
        self.answers[context].add(reply.words + reply.sealed)

    def ask(self):
        t = self.rng.choice((1, 1, 2, 3, 4))
        attempt = self.rng.choice((1, 2, 2, 3))
        changes = {}
        if self.scene.trust.is_blind:
            history = self.rng.choice(self.histories)
            t = self.rng.choice((t, len(history) + 1))
            changes["entries"] = history
        if self.rng.random() < 0.2:
            changes["root"] = self.rng.randbytes(32)
        if self.rng.random() < 0.1:
            changes["doc"] = b""
        if self.rng.random() < 0.1:
            changes["slot"] = self.rng.randrange(6)
        reply = self.send(self.scene.ask_of(0, t, attempt, **changes))
        if (
            isinstance(reply, Answer)
            and self.scene.run.trust.commits_to_records
            and t <= T
        ):
            self.forge(changes["entries"], t, attempt, reply)

    def forge(self, history, t, attempt, reply):
        """Make an entry that opens to a sum of the server's choice, with this client in it."""
        s, rng, frame = self.scene, self.rng, self.scene.frame
        if len(history) != t - 1 or rng.random() < 0.5:
            return
        who = [0, *rng.sample(range(1, 5), 2)]
        h = self.node.session(s.doc_hash).h
        cohort = frame.n_slots, frame.tree.root, frame.digest
        digest = transcript.round_context(s.doc_hash, t, attempt, *cohort, h, reply.tag)
        n_words = s.document.words[t - 1]
        key = mask_key(SumContext(digest, n_words, 5, s.group_key(1)))
        words = correction(key, np.isin(np.arange(5), who), n_words)
        words[:-1] += np.frombuffer(rng.randbytes(8 * (n_words - 1)), dtype="<u8")
        words[-1] += np.uint64(3)
        data = words.astype("<u8").tobytes()
        entry = s.entry(t, attempt, tag=reply.tag, survivors=s.bitmap(who), words=data)
        self.histories.append((*history, entry))
        del self.histories[1 : max(1, len(self.histories) - 6)]

    def add(self):
        s, rng = self.scene, self.rng
        attempt = rng.choice((1, 2))
        own = s.ask(0, 1, attempt)
        answers = dict(self.dealt[attempt])
        if isinstance(own, Answer):
            answers[0] = own
        elif rng.random() < 0.3:
            answers |= {
                i: self.dealt[3 - attempt][i] for i in rng.sample(range(1, 5), 2)
            }
        who = rng.sample(sorted(answers), rng.choice((2, 3, 3, len(answers))))
        chosen = {i: answers[i] for i in who}
        self.send(s.add_of(0, chosen, rng.choice((1, 1, 2)), attempt))

    def again(self):
        if self.requests:
            data = self.rng.choice(self.requests)
            self.send(decode_request(data), data)

    def near(self):
        if self.requests:
            data = near_bytes(self.rng, self.rng.choice(self.requests))
            reply = decode_reply(self.node.answer(data))
            assert not is_refusal(reply) or reply.code != Code.INTERNAL
            try:
                request = decode_request(data)
            except MessageError:
                assert is_refusal(reply)
                return
            if isinstance(request, Ask) and isinstance(reply, Answer):
                self.answered(request, reply)


def is_refusal(reply):
    return isinstance(reply, Refusal)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("keys", ["roster", "relayed"])
@pytest.mark.parametrize("ledger", [True, False])
@pytest.mark.parametrize("trust", ["distributed-noise", "clients-only"])
def test_one_sum_of_a_round_and_one_answer_of_a_context(
    tmp_path, seed, keys, ledger, trust
):
    world = World(seed, tmp_path, trust, keys, ledger, rollback=False)
    world.play()
    assert all(len(variants) == 1 for variants in world.votes.values())
    assert all(len(sent) == 1 for sent in world.answers.values())


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("keys", ["roster", "relayed"])
@pytest.mark.parametrize("rollback", [True, False])
def test_no_mask_covers_two_vectors(tmp_path, seed, keys, rollback):
    """Neither after a backup was restored."""
    world = World(
        seed, tmp_path, "oblivious-server", keys, ledger=True, rollback=rollback
    )
    world.play()
    assert all(len(sent) == 1 for sent in world.answers.values())


def test_worlds_reach_what_they_are_for(tmp_path):
    """Otherwise nothing above could fail."""
    seen = Counter()
    voted = answered = 0
    for number, trust in enumerate(
        ("distributed-noise", "clients-only", "oblivious-server") * 3
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        world = World(
            number, directory, trust, "roster", ledger=True, rollback=number > 5
        )
        world.play()
        seen += world.codes
        voted += sum(map(len, world.votes.values()))
        answered += len(world.answers)
    assert {"Answer", "Added", "Enrolled", "RefusalCONFLICT", "RefusalSTALE"} <= set(
        seen
    )
    assert {"RefusalRENEW", "RefusalPOLICY", "RefusalKEY"} <= set(seen)
    assert voted >= 3
    assert answered >= 20


@pytest.mark.parametrize(
    ("trust", "rollback", "missing"),
    [
        ("distributed-noise", False, ["require_one_vote"]),  # two sums of a round
        (  # two vectors under one mask
            "oblivious-server",
            True,
            [
                "is_committed",
                "require_one_answer",
                "require_not_stale",
                "require_attempt_order",
            ],
        ),
    ],
)
def test_worlds_without_checks_have_two_sums_or_two_vectors(
    trust, rollback, missing, tmp_path, monkeypatch
):
    for name in missing:
        monkeypatch.setattr(checks, name, lambda *_: True)

    def is_broken(seed):
        directory = tmp_path / str(seed)
        directory.mkdir()
        world = World(
            seed, directory, trust, "roster", ledger=rollback, rollback=rollback
        )
        world.play()
        return any(
            len(found) > 1 for found in (*world.votes.values(), *world.answers.values())
        )

    # no copies of records, which would hide a change
    assert any(map(is_broken, range(1, 121, 2)))
