"""Keys of noise that one sum reaches must not serve another sum, with real clients."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol import checks, noise
from flower_kmeans.protocol.messages import Added, Code
from flower_kmeans.protocol.noise import noise_share
from flower_kmeans.secagg.base import SumError
from flower_kmeans.secagg.primitives import noise_key
from tests.support.cohorts import Cohort, code
from tests.support.noise_parts import key_of_words, lengths, noise_of_parts

M = 6
LEVELS = (3, 5)  # with M' = 2 and one colluder: for 4 and 6 answers
LARGE, SMALL = tuple(range(M)), (3, 4, 5)


@pytest.fixture
def cohort(tmp_path: Path) -> Cohort:
    """Return clients of which all were asked for their answers to round 1."""
    return Cohort(tmp_path, n=M, levels=LEVELS).set_up()


def votes(cohort: Cohort, answers: dict, orders):
    """Return each member's replies, if it is asked for sums in these orders."""
    found = {}
    before = [copy.deepcopy(node.state) for node in cohort.nodes]
    for index, order in itertools.product(range(M), orders):
        cohort.nodes[index].state = copy.deepcopy(before[index])
        for chosen in order:
            request = cohort.add_of(index, {i: answers[i] for i in chosen})
            found[index, order, chosen] = cohort.send(index, request)
    return found


def context_of(cohort: Cohort, answers: dict):
    return cohort.sums(1, 1, answers[0].tag)


def opened_keys(cohort, context, replies: dict[int, Added], n_parts: int):
    """Return the keys that open, by their client's place in the sum that was added for."""
    length, size = lengths(cohort.run, context)
    keys = {}
    for client in range(M):
        place = slice(length + size * client, length + size * (client + 1))
        given = {i: reply.share[place] for i, reply in replies.items()}
        try:
            key_context = replace(context, n_words=noise.KEY_WORDS)
            words = cohort.trust.sum.reconstruct(
                given, np.ones(M, bool), key_context
            ).vector
            keys[client] = key_of_words(words)
        except (SumError, OverflowError):
            continue
    return keys


@pytest.mark.claim("guarantees", "43")
def test_every_split_of_the_votes_opens_keys_of_no_larger_sum(cohort: Cohort) -> None:
    """A server asks each member for the large sum or for the small one, and then for the other."""
    answers = cohort.deal()
    orders = ((LARGE, SMALL), (SMALL, LARGE))
    replies = votes(cohort, answers, orders)
    for index, order in itertools.product(range(M), orders):
        first, second = (replies[index, order, chosen] for chosen in order)
        assert isinstance(first, Added)
        assert code(second) == Code.CONFLICT
    context = context_of(cohort, answers)
    length, size = lengths(cohort.run, context)
    for split in itertools.product(orders, repeat=M):
        large = {i: replies[i, o, LARGE] for i, o in enumerate(split) if o == orders[0]}
        small = {i: replies[i, o, SMALL] for i, o in enumerate(split) if o == orders[1]}
        assert {len(reply.share) for reply in large.values()} <= {length + M * size}
        assert {len(reply.share) for reply in small.values()} <= {length}
        if len(small) >= context.sharing.threshold:
            assert not opened_keys(cohort, context, large, 2)


@pytest.mark.claim("guarantees", "43")
def test_without_the_vote_the_attack_would_succeed(cohort: Cohort, monkeypatch) -> None:
    """Both sums: the keys of the large one take noise out of the small one."""
    monkeypatch.setattr(checks, "require_one_vote", lambda last, vote: None)
    answers = cohort.deal()
    order = (LARGE, SMALL)
    replies = votes(cohort, answers, (order,))
    large, small = ({i: replies[i, order, s] for i in range(M)} for s in (LARGE, SMALL))
    context, run = context_of(cohort, answers), cohort.run
    survivors = np.isin(np.arange(M), SMALL)
    shares = {i: reply.share for i, reply in small.items()}
    opened = noise.reconstruct_sum(run, 1, shares, survivors, context)
    assert opened.factor == np.sqrt(3 / 2)
    keys = opened_keys(cohort, context, large, 2)
    assert set(keys) == set(range(M))
    # What is left is three shares made for five: 3/5 of the planned variance, 2/5
    # without one.
    given = run.algorithm, run.plan, 1
    for i in SMALL:
        secret = cohort.nodes[i].session(cohort.doc_hash).secret
        drawn = noise.client_noise(run, 1, secret, context.digest)
        drawn -= noise_of_parts(run, 1, context.digest, keys[i], 2)
        stream = Stream.from_key(noise_key(secret, context.digest))
        np.testing.assert_array_equal(drawn, noise_share(*given, 5, stream))
