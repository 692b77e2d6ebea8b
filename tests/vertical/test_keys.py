"""Keys of one holder and of three: what they hide, what they open, and attacks on them.

Keys of few primes show it: each prime and digit is treated like the others. Runs have
all of them (tests/simulation/test_vertical.py), and test vectors
(test_vertical_vectors.py).
"""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from vertical_parties import DOC_HASH, SMALL, digest, keys_of, secret, silent

from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.vertical import keys, ring
from flower_kmeans.vertical.keys import KeyHolder, confirmed_key
from flower_kmeans.vertical.ring import SLOTS, N, pack, packed_bytes, unpack

MODULI = SMALL
ALONE, JOINT = keys_of(1, MODULI), keys_of(3, MODULI)
Q0, PRIMES, DIGITS = MODULI.q0, MODULI.key, len(MODULI.data)
VALUES = np.random.default_rng(8).uniform(-1, 1, 300)
CHANGED = VALUES.copy()
CHANGED[7] = -CHANGED[7]

both = pytest.mark.parametrize("of", [ALONE, JOINT], ids=["alone", "joint"])


def centred(words, p=Q0):
    """The signed coefficients of a transform."""
    x = ring.intt(words, p).astype(np.int64)
    return np.where(x > p // 2, x - p, x)


def secret_sum(holders, i):
    """The transform of what several holders' secrets add up to, modulo one prime."""
    return ring.ntt(
        ring.lift(sum(holder._s for holder in holders), PRIMES[i]), PRIMES[i]
    )


def phase(c, holders, i=0):
    """What a ciphertext (2, ...) hides, with its error, modulo one prime."""
    p = PRIMES[i]
    return centred(
        ring.addmod(c[0], ring.mulmod(c[1], secret_sum(holders, i), p), p), p
    )


def share_no_mask(a, b):
    """Whether two transforms modulo q0 hide under other masks: their difference is not small."""
    return np.abs(centred(ring.addmod(a, ring.negmod(b, Q0), Q0))).max() > Q0 // 4


def c1_of(n_values, seed=0):
    rows = [Stream(bytes([seed, *divmod(i, 256)]).ljust(32)) for i in range(n_values)]
    return np.stack([ring.uniform(row, Q0) for row in rows])


# ------------------------------------------------------------------------ what keys are


def test_common_polynomials_follow_from_a_name_alone():
    a = keys.common(DOC_HASH, b"one", PRIMES[:2])
    assert (a == keys.common(DOC_HASH, b"one", PRIMES)[:2]).all()
    for seed, name in ((DOC_HASH, b"two"), (bytes(32), b"one")):
        assert (a != keys.common(seed, name, PRIMES[:2])).mean() > 0.99


@both
def test_a_public_key_hides_small_errors(of):
    for i in (0, 1, len(PRIMES) - 1):
        error = phase(of.pk[:, i], of.holders, i)
        assert 0 < np.abs(error).max() <= 21 * len(of.holders)


@both
def test_a_relinearisation_key_hides_the_square_in_one_residue_of_each_digit(of):
    """Digit j: the special prime times the square, in residue j alone, and small errors."""
    # Products of ternary polynomials and errors: six standard deviations of their sums.
    n = of.n_holders
    bound = 21 if n == 1 else 6 * 3.24 * n**1.5 * math.sqrt(2 * N)
    for j, key in enumerate(of.relin):
        for i in {j, (j + 3) % len(PRIMES)}:
            p, s = PRIMES[i], secret_sum(of.holders, i)
            factor = np.full(1, MODULI.special % p * (i == j), dtype=np.uint64)
            hidden = ring.mulmod(ring.mulmod(s, s, p), factor, p)
            left = ring.addmod(key[0, i], ring.mulmod(key[1, i], s, p), p)
            assert (
                np.abs(centred(ring.addmod(left, ring.negmod(hidden, p), p), p)).max()
                <= bound
            )


@both
def test_columns_hide_their_values(of):
    """Under the public key, and a sole holder's of half the size."""
    m = ring.encode(VALUES, MODULI.scales[0])
    columns = [(of.encrypt(VALUES), 6 * 3.24 * math.sqrt(of.n_holders * 4 * N / 3))]
    if of is ALONE:
        columns.append((of.encrypt_alone(VALUES), 21))
    for column, bound in columns:
        for i in range(DIGITS):
            error = phase(column[:, i], of.holders, i) - m
            assert 0 < np.abs(error).max() <= bound


@pytest.mark.claim("threat-model", "V9")
@pytest.mark.parametrize("send", [ALONE.encrypt, ALONE.encrypt_alone])
def test_values_are_clipped_and_what_is_no_number_is_the_middle(send):
    """Beyond the box the sign polynomials explode, and a refusal would depend on records."""
    odd = np.array([1.01, -7.0, np.nan, np.inf, -np.inf, 0.25])
    assert (send(odd) == send([1.0, -1.0, 0.0, 1.0, -1.0, 0.25])).all()


def test_ciphertexts_are_numbered_chunk_after_chunk_and_column_after_column():
    X = np.random.default_rng(5).uniform(-1, 1, (SLOTS + 100, 2))
    for number, part in enumerate(
        (X[:SLOTS, 0], X[:SLOTS, 1], X[SLOTS:, 0], X[SLOTS:, 1])
    ):
        assert (keys.values_of(X, number) == part).all()


def test_a_public_key_that_holders_do_not_agree_on_is_refused():
    data = pack(ALONE.half, PRIMES)
    right, wrong = digest(data), digest(b"")
    for digests in ([], [wrong], [right, wrong], [wrong, right, right]):
        with pytest.raises(MessageError, match="that agree on the public key"):
            confirmed_key(MODULI, DOC_HASH, data, digests)
    assert (confirmed_key(MODULI, DOC_HASH, data, [right] * 3) == ALONE.pk).all()
    with pytest.raises(MessageError, match="not below its prime"):
        confirmed_key(
            MODULI, DOC_HASH, b"\xff" * len(data), [digest(b"\xff" * len(data))]
        )


# --------------------------------------------------------------------------- decryption


@pytest.mark.claim("vertical", "party-0-all-holders")
@both
def test_all_holders_multiply_and_open_and_fewer_learn_nothing(of):
    """A product of two columns on SEAL, its sum, and what holders' shares of it add up to."""
    x, y = np.random.default_rng(2).uniform(-1, 1, (2, SLOTS))
    a, b = (of.engine.column(of.encrypt(v, i)) for i, v in enumerate((x, y)))
    product = of.engine.rescale(of.engine.multiply(a, b))
    words = of.engine.words(
        of.engine.rescale(of.engine.times(product, 1.0, MODULI.levels))
    )
    assert of.open(words) == pytest.approx(x @ y, abs=1e-3)
    for left_out in of.holders if of is JOINT else ():
        some = [holder for holder in of.holders if holder is not left_out]
        assert abs(of.open(words, some) - x @ y) > 100


@pytest.mark.claim("vertical", "party-0-all-holders")
def test_two_of_three_secrets_open_no_column():
    column = JOINT.encrypt(VALUES)[:, 0]
    assert np.abs(phase(column, JOINT.holders)).max() < 2**41
    for left_out in JOINT.holders:
        some = [holder for holder in JOINT.holders if holder is not left_out]
        # As wide as q0 allows, and no trace of the values in the constant, which is
        # their mean.
        assert np.abs(phase(column, some)).max() > 0.99 * (Q0 // 2)


def test_shares_are_exact():
    (holder,), c1 = ALONE.holders, c1_of(3)
    c1[2] = Q0 - 1
    noise = np.array([0, -(2**40), 12345])
    shares = holder.decryption_share(1, c1, lambda stream: noise)
    s = holder._s.tolist()
    for row, e, word in zip(c1.tolist(), noise.tolist(), shares.tolist(), strict=True):
        constant = row[0] * s[0] - sum(
            x * y for x, y in zip(row[1:], s[:0:-1], strict=True)
        )
        assert word == (constant + e) % Q0


def test_opened_values_are_signed():
    constants = np.array([0, 5, Q0 - 1, Q0 // 2, Q0 // 2 + 1], dtype=np.uint64)
    assert keys.opened(MODULI, constants, []).tolist() == [
        0,
        5,
        -1,
        Q0 // 2,
        -(Q0 // 2),
    ]
    shares = [np.full(5, x, dtype=np.uint64) for x in (Q0 - 7, 9)]
    values = [2, 7, 1, Q0 // 2 + 2 - Q0, Q0 // 2 + 3 - Q0]
    assert keys.opened(MODULI, constants, shares).tolist() == values


@pytest.mark.claim("threat-model", "V2")
@both
def test_an_encryption_of_zero_changes_every_word_and_not_the_value(of):
    """Without it c1 is a function of the computing party's data: holders confirm guesses."""
    words, c1 = of.encrypt(VALUES)[:, 0], []
    ratio = MODULI.unit / MODULI.scales[0] * SLOTS
    noise = 2**33
    for party, label in ((0, b"value"), (5, b"value"), (0, b"another")):
        c0, mask = keys.randomise(
            MODULI, of.pk, of.pk_digest, words, secret(party), DOC_HASH, label
        )
        shares = [
            holder.decryption_share(1, mask[None], lambda _: np.array([noise]))
            for holder in of.holders
        ]
        opened = keys.opened(MODULI, np.array([c0]), shares)[0] - noise * of.n_holders
        assert opened / MODULI.unit * ratio == pytest.approx(VALUES.sum(), abs=1e-3)
        c1.append(mask)
    c1.append(ring.intt(words[1], Q0))
    assert all((a != b).mean() > 0.99 for i, a in enumerate(c1) for b in c1[:i])


@pytest.mark.claim("guarantees", "32")
@pytest.mark.claim("threat-model", "V6", "V16")
def test_a_share_carries_noise_that_follows_from_round_and_c1():
    (holder,), c1, drawn = ALONE.holders, c1_of(2), []

    def noise(stream):
        drawn.append(stream.words(2) >> np.uint64(30))
        return drawn[-1].astype(np.int64)

    other = c1.copy()
    other[1, -1] ^= np.uint64(1)
    shares = [holder.decryption_share(1, c1, noise) for _ in range(2)]
    shares.append(KeyHolder(MODULI, secret(1), DOC_HASH).decryption_share(1, c1, noise))
    assert (shares[0] == shares[1]).all()
    assert (shares[0] == shares[2]).all()
    without = holder.decryption_share(1, c1, silent(2))
    assert (shares[0] == (without + drawn[0]) % np.uint64(Q0)).all()
    # Another round, c1, party or run: other noise, also for the values that are the
    # same.
    holder.decryption_share(2, c1, noise)
    holder.decryption_share(1, other, noise)
    KeyHolder(MODULI, secret(2), DOC_HASH).decryption_share(1, c1, noise)
    KeyHolder(MODULI, secret(1), bytes(32)).decryption_share(1, c1, noise)
    assert all(len({int(x[i]) for x in drawn}) == 5 for i in (0, 1))


# ------------------------------------------------------------------------- asking again


def test_asking_again_gives_the_same_words():
    """A party that restarts makes nobody see a second answer: averages cancel no error."""
    again = KeyHolder(MODULI, secret(1), DOC_HASH)
    assert (again.public_share() == ALONE.half).all()
    assert (again.relin_alone() == ALONE.relin[:, 0]).all()
    assert (
        keys.expand(MODULI, *again.encrypt_alone(VALUES, 3))
        == ALONE.encrypt_alone(VALUES, 3)
    ).all()
    assert (ALONE.encrypt(VALUES) == ALONE.encrypt(VALUES.tolist())).all()


@pytest.mark.claim("threat-model", "V16")
@pytest.mark.parametrize(
    ("values", "number", "party", "doc_hash"),
    [
        (CHANGED, 0, 9, DOC_HASH),
        (VALUES, 1, 9, DOC_HASH),
        (VALUES, 0, 8, DOC_HASH),
        (VALUES, 0, 9, bytes(32)),
    ],
    ids=["changed data", "another number", "another party", "another run"],
)
def test_no_mask_hides_two_things(values, number, party, doc_hash):
    """Or the difference of two ciphertexts would be the change of one record, exactly."""
    first = ALONE.encrypt(VALUES)
    other = keys.encrypt(MODULI, ALONE.pk, values, secret(party), doc_hash, number)
    assert all(
        share_no_mask(a, b) for a, b in zip(first[:, 0], other[:, 0], strict=True)
    )
    # A sole holder's, whose c1 follows from the nonce.
    first = KeyHolder(MODULI, secret(9), DOC_HASH).encrypt_alone(VALUES, 0)
    other = KeyHolder(MODULI, secret(party), doc_hash).encrypt_alone(values, number)
    assert first[0] != other[0]
    assert share_no_mask(first[1][0], other[1][0])


def without_pk(moduli, half):
    """Labels that do not name the public key."""
    return b""


@pytest.mark.claim("threat-model", "V16")
@pytest.mark.parametrize("is_named", [True, False], ids=["named", "without"])
def test_v16_one_column_under_two_public_keys_is_not_read(is_named, monkeypatch):
    """A ledger was restored, and the server sends another key: it or party 0 has no secret.

    With one mask for both the difference of the ciphertexts would be the mask times the
    keys'.
    """
    if not is_named:
        monkeypatch.setattr(keys, "pk_digest", without_pk)
    first, other = (
        KeyHolder(MODULI, secret(9), DOC_HASH),
        KeyHolder(MODULI, secret(8), DOC_HASH),
    )
    public = [
        keys.public_key(MODULI, DOC_HASH, each.public_share())
        for each in (first, other)
    ]
    columns = [
        keys.encrypt(MODULI, pk, VALUES, secret(0), DOC_HASH, 0) for pk in public
    ]
    between = ring.addmod(public[0][0][0], ring.negmod(public[1][0][0], Q0), Q0)
    inverse = np.array([pow(int(word), -1, Q0) for word in between], dtype=np.uint64)
    apart = ring.addmod(columns[0][0][0], ring.negmod(columns[1][0][0], Q0), Q0)
    mask = ring.mulmod(apart, inverse, Q0)
    hidden = ring.mulmod(public[0][0][0], mask, Q0)
    read = centred(ring.addmod(columns[0][0][0], ring.negmod(hidden, Q0), Q0))
    is_read = np.abs(read - ring.encode(VALUES, MODULI.scales[0])).max() <= 21
    assert is_read == (not is_named)
    is_mask = np.abs(centred(mask)).max() == 1  # ternary
    assert is_mask == (not is_named)


@pytest.mark.claim("threat-model", "V16")
@pytest.mark.parametrize("name", ["mask", "errors"])
def test_v16_each_stream_of_a_ciphertext_names_the_key(name, monkeypatch):
    """Of a column and of an encryption of zero, mask and errors alike."""
    found, derive = {"column": set(), "zero": set()}, keys.secret_key

    def noted(z, doc_hash, label, hidden=None):
        what, kind = label.split(b" ")[:2]
        if what.decode() in found and kind == name.encode():
            found[what.decode()].add(derive(z, doc_hash, label, hidden))
        return derive(z, doc_hash, label, hidden)

    words, _ = ALONE.encrypt(VALUES)[:, 0], JOINT.pk  # made before streams are noted
    monkeypatch.setattr(keys, "secret_key", noted)
    for of in (ALONE, JOINT):
        keys.encrypt(MODULI, of.pk, VALUES, secret(9), DOC_HASH, 0)
        keys.randomise(
            MODULI, of.pk, of.pk_digest, words, secret(9), DOC_HASH, b"value"
        )
    assert {what: len(each) for what, each in found.items()} == {"column": 2, "zero": 2}


@pytest.mark.claim("threat-model", "V16")
def test_v16_a_zero_is_hidden_by_another_mask_under_another_key():
    """The same value of the same round: c1 of both would be equal."""
    words, c1 = ALONE.encrypt(VALUES)[:, 0], []
    for of in (ALONE, JOINT):
        own = of.pk_digest, words, secret(0), DOC_HASH, b"value"
        c1.append(ring.ntt(keys.randomise(MODULI, of.pk, *own)[1], Q0))
    assert share_no_mask(*c1)


@pytest.mark.claim("threat-model", "V5")
def test_v5_secrets_of_joint_holders_follow_from_what_no_ledger_has():
    """Another run, session or r: other keys, and other noise."""
    of = [(b"z" * 32, b"r" * 32, DOC_HASH), (b"z" * 32, b"q" * 32, DOC_HASH)]
    of += [(b"y" * 32, b"r" * 32, DOC_HASH), (b"z" * 32, b"r" * 32, bytes(32))]
    found = {keys.set_up_secret(*each) for each in of}
    assert len(found) == 4
    assert all(len(each) == 32 for each in found)


@pytest.mark.claim("threat-model", "V16")
def test_a_nonce_that_does_not_depend_on_the_data_would_show_their_change(monkeypatch):
    bound = keys.secret_key
    monkeypatch.setattr(
        keys, "secret_key", lambda s, d, label, hidden=None: bound(s, d, label)
    )
    first, other = (
        ALONE.holders[0].encrypt_alone(v, 0)[1][0] for v in (VALUES, CHANGED)
    )
    difference = centred(ring.addmod(other, ring.negmod(first, Q0), Q0))
    encoded = [ring.encode(v, MODULI.scales[0]) for v in (VALUES, CHANGED)]
    assert (difference == encoded[1] - encoded[0]).all()


@pytest.mark.claim("threat-model", "V2")
def test_zeros_are_other_ones_for_other_words():
    hidden = []
    for words in (ALONE.encrypt(v)[:, 0] for v in (VALUES, CHANGED)):
        _, c1 = keys.randomise(
            MODULI, ALONE.pk, ALONE.pk_digest, words, secret(0), DOC_HASH, b"value"
        )
        hidden.append(ring.addmod(ring.ntt(c1, Q0), ring.negmod(words[1], Q0), Q0))
    assert share_no_mask(*hidden)


# --------------------------------------------------------------------------- joint keys


@pytest.fixture(scope="module")
def pair():
    """Two holders of a joint key, and the second one's first message."""
    holders = JOINT.holders[:2]
    return holders, holders[1].first_message()


def test_all_holders_and_the_computing_party_compare_the_same_keys():
    halves = JOINT.half, np.ascontiguousarray(JOINT.relin[:, 1])
    assert JOINT.digests == [tuple(digest(pack(half, PRIMES)) for half in halves)] * 3


def test_a_holder_answers_the_sum_that_it_has_formed_itself(pair):
    holders, message = pair
    share = holders[0].join([digest(message)], [message])
    h = keys.total([holder.relin_round1() for holder in holders], PRIMES)
    publics = [holder.public_share() for holder in holders]
    assert (share.public == keys.total(publics, PRIMES)).all()
    assert (share.h1 == h[:, 1]).all()
    assert (share.round2 == holders[0].relin_round2(h)).all()


def minus_own(words, holder):
    """A first message that cancels a holder's own, with these words added."""
    own = unpack(holder.first_message(), PRIMES, (1 + 2 * DIGITS,))
    for i, p in enumerate(PRIMES):
        words[:, i] = ring.addmod(words[:, i], ring.negmod(own[:, i], p), p)
    return pack(words, PRIMES)


def rogue_share(holder, message):
    """It cancels the others', by one who has committed to an honest share before."""
    return minus_own(unpack(message, PRIMES, (1 + 2 * DIGITS,)), holder)


def of_a_false_sum(holder, message):
    """Round 2 would answer with this holder's secret."""
    words = np.zeros((1 + 2 * DIGITS, len(PRIMES), N), dtype=np.uint64)
    words[1] = false_sum()[0, 0]
    return minus_own(words, holder)


def flipped(position):
    """A message with one other bit."""

    def forge(holder, message):
        forged = bytearray(message)
        forged[position] ^= 1
        return bytes(forged)

    return forge


@pytest.mark.claim("threat-model", "V4", "V5")
@pytest.mark.parametrize(
    "forge", [rogue_share, of_a_false_sum, *map(flipped, (0, packed_bytes(PRIMES), -1))]
)
def test_a_first_message_that_differs_from_its_commitment_is_refused(pair, forge):
    (holder, _), message = pair
    with pytest.raises(MessageError, match=r"other key holder 1 .* committed"):
        holder.join([digest(message)], [forge(holder, message)])


def test_malformed_messages_are_refused_even_if_committed_to(pair):
    holders, message = pair
    for data in (message[:-1], message[:-7] + b"\xff" * 7):
        with pytest.raises(
            MessageError, match=r"Packed words must|not below its prime"
        ):
            holders[0].join([digest(data)], [data])


# ------------------------------------------------------------------------------ attacks


@pytest.mark.claim("threat-model", "V4")
def test_a_share_that_depends_on_the_others_is_a_key_that_one_holder_has():
    """Why holders commit to their shares: the last one cancels what the others sent."""
    honest, rogue = JOINT.holders[:2], KeyHolder(MODULI, secret(66), DOC_HASH)
    shares, chosen = [holder.public_share() for holder in honest], rogue.public_share()
    for share in shares:
        for i, p in enumerate(PRIMES):
            chosen[i] = ring.addmod(chosen[i], ring.negmod(share[i], p), p)
    pk = keys.public_key(MODULI, DOC_HASH, keys.total([*shares, chosen], PRIMES))
    column = keys.encrypt(MODULI, pk, VALUES, secret(9), DOC_HASH, 0)[:, 0]
    constant = phase(column, [rogue])[0] / MODULI.scales[0] * SLOTS
    assert constant == pytest.approx(VALUES.sum(), abs=1e-3)


def false_sum():
    """A sum of round 1 whose first digit is a quarter of q0, so an answer is the secret."""
    h = np.zeros((DIGITS, 2, len(PRIMES), N), dtype=np.uint64)
    # a constant is its own transform
    h[0, 0] = (np.array(PRIMES, dtype=np.uint64) // 4)[:, None]
    return h


@pytest.mark.claim("threat-model", "V5")
def test_an_answer_to_a_false_sum_of_round_1_is_the_secret():
    """Why holders add up the others' committed shares themselves."""
    (victim,) = ALONE.holders
    answer = centred(victim.relin_round2(false_sum())[0, 0])
    assert (np.rint(answer / (Q0 // 4)) == victim._s).all()


def test_answers_to_two_sums_share_no_error():
    """Or their difference would be the secret times the sums' difference, exactly."""
    holder, h, other = JOINT.holders[0], false_sum(), false_sum()
    other[0, 0, 0] = ring.addmod(other[0, 0, 0], other[0, 0, 0], Q0)
    first, second = (centred(holder.relin_round2(x)[0, 0]) for x in (h, other))
    errors = [
        a - x * (Q0 // 4) for a, x in ((first, holder._s), (second, 2 * holder._s))
    ]
    errors = [np.where(np.abs(e) > Q0 // 2, e - np.sign(e) * Q0, e) for e in errors]
    assert np.abs(errors[0]).max() <= 42
    assert (errors[0] != errors[1]).mean() > 0.8


@pytest.mark.claim("threat-model", "V8")
def test_a_share_for_a_chosen_c1_reads_eight_coefficients_of_the_key():
    """A stated limit: the computing party follows the protocol, and opened words are few."""
    (holder,), step = ALONE.holders, Q0 // 3**8
    c1 = np.zeros((1, N), dtype=np.uint64)
    for i in range(8):
        c1[0, -i % N] = Q0 - 3**i * step if i else step
    sigma = 20  # of the noise, in records
    noise = np.rint(np.random.default_rng(0).normal(0, sigma, 1) * MODULI.unit).astype(
        np.int64
    )
    share = holder.decryption_share(1, c1, lambda stream: noise)
    word = keys.opened(MODULI, np.zeros(1, dtype=np.uint64), [share])
    rest, digits = round(int(word[0]) / step), []
    for _ in range(8):
        digits.append((rest + 1) % 3 - 1)
        rest = (rest - digits[-1]) // 3
    assert digits == holder._s[:8].tolist()
    # No word gives more: log2 of how many noises of this width fit into q0.
    assert math.log2(Q0 / (math.sqrt(2 * math.pi * math.e) * sigma * MODULI.unit)) < 16


@pytest.mark.claim("threat-model", "V18")
def test_no_secret_is_shown_or_written_and_holders_need_no_tenseal(tmp_path):
    """Representations, errors and files of a holder's whole part of a run."""
    code = """
import sys
import numpy as np
from flower_kmeans.errors import MessageError
from flower_kmeans.vertical.keys import KeyHolder
from flower_kmeans.vertical.moduli import moduli

written = []
sys.addaudithook(lambda event, args: event == "open" and written.append(args))
key = bytes(range(100, 132))
holder = KeyHolder(moduli(2), key, bytes(32))
shown = [repr(holder), str(holder)]
holder.public_share(), holder.relin_alone()
holder.encrypt_alone(np.zeros(3), 0)
holder.decryption_share(1, np.zeros((1, 2**15), np.uint64), lambda s: np.zeros(1, np.int64))
try:
    holder.join([bytes(32)], [b""])
except MessageError as error:
    shown.append(repr(error))
for text in shown:
    assert repr(key)[2:-1] not in text and key.hex() not in text and "100, 101" not in text, text
ours = [a for a in written if isinstance(a[1], str) and set(a[1]) & set("wax+")]
assert not ours, ours
assert "tenseal" not in sys.modules
print("done")
"""
    assert repr(ALONE.holders[0]) == "KeyHolder(n_clusters=2)"
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "done\n", ran.stderr
    assert not list(tmp_path.iterdir())
