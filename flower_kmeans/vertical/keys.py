"""CKKS keys of one holder, or of up to three together (docs/protocol.md, section 13).

The secret key is the sum of the holders' ternary secrets. With several holders nobody has
it. Joint keys follow Mouchet et al. 2021 (collective public key; relinearisation key in
two rounds, protocol RKG). The content that messages reveal: docs/guarantees, Theorem 33. Keys
have the form of Microsoft SEAL: digit j of a relinearisation key hides the square of the
secret times the special prime in residue j.

Every secret, error and mask is a stream under a key that is derived from a party's
secret, the run document's hash, a label, and SHA-256 of the words that it hides or
answers. So a repeated request gives the same words, and one mask never hides two
plaintexts: neither after records changed, nor with another processor's words. The label
of a ciphertext contains the public key, so one plaintext under two keys has two masks.
Otherwise their difference would reveal it (docs/threat-model.md, V16).

A party's secret is the secret of its client session. Holders of a joint key add 32 bytes
that no ledger has before they answered the others' shares (`set_up_secret`).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.arrays import FloatArray, IntArray, WordArray
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.secagg.primitives import DIGEST_BYTES, kdf, u32
from flower_kmeans.vertical.moduli import Moduli
from flower_kmeans.vertical.ring import (
    SLOTS,
    addmod,
    column,
    encode,
    intt,
    lift,
    mulmod,
    negmod,
    ntt,
    pack,
    rns,
    small_error,
    ternary,
    uniform,
    unpack,
)

_LOW_BITS = 25

SmudgingNoise = Callable[[Stream], IntArray]
"""Draws one party's noise of a round, in units of the opened integers."""


def secret_key(
    secret: bytes, doc_hash: bytes, label: bytes, hidden: NDArray[Any] | None = None
) -> bytes:
    """Return the key of a stream, 32 bytes.

    ``secret`` is the party's secret. ``hidden`` are eight-byte integers that the stream
    hides or answers.
    """
    if hidden is not None:
        data = np.ascontiguousarray(hidden, dtype=hidden.dtype.newbyteorder("<"))
        label = label + b" " + hashlib.sha256(data.data).digest()
    return kdf(secret, doc_hash, b"vertical " + label)


def set_up_secret(secret: bytes, fresh: bytes, doc_hash: bytes) -> bytes:
    """Return a joint holder's replacement of its session's secret, 32 bytes.

    ``fresh`` are 32 random bytes. A holder that lost them has other keys, so it never
    gives one first message for two lists of commitments (docs/threat-model.md, V4 and
    V5).
    """
    return kdf(secret + fresh, doc_hash, b"vertical set-up")


def pk_digest(moduli: Moduli, half: WordArray) -> bytes:
    """Return SHA-256 of a packed half of a public key, which identifies the key in labels."""
    return hashlib.sha256(pack(half, moduli.key)).digest()


def common(seed: bytes, name: bytes, primes: Iterable[int]) -> WordArray:
    """Return a polynomial (primes, N) that nobody chose: it follows from a public seed.

    The seed is the run document's hash, or a column's nonce. So no party can hide a
    trapdoor in the polynomial.
    """
    rows = []
    for i, p in enumerate(primes):
        label = b"vertical common " + name + u32(i)
        key = kdf(seed, bytes(DIGEST_BYTES), label)
        rows.append(uniform(Stream(key), p))
    return np.stack(rows)


def relin_common(moduli: Moduli, doc_hash: bytes) -> WordArray:
    """Return the common polynomial of each digit, (digits, key primes, N).

    With `KeyHolder.relin_alone`, a sole holder's key is ``np.stack([b, a], 1)``. A
    joint key is ``np.stack([b, h1], 1)``, with the sums of round 2 and of round 1.
    """
    digits = range(len(moduli.data))
    names = [b"relin " + u32(j) for j in digits]
    return np.stack([common(doc_hash, name, moduli.key) for name in names])


def total(shares: Iterable[WordArray], primes: Sequence[int]) -> WordArray:
    """Return the sum of polynomials (..., primes, N) of all holders."""
    rest = iter(shares)
    out = next(rest).copy()
    for share in rest:  # one at a time, because they may be made on demand
        _add_to(out, share, primes)
    return out


def _add_to(out: WordArray, share: WordArray, primes: Sequence[int]) -> None:
    # The sum is in place, a residue at a time: shares of round 1 take 100 MB and more.
    for i, p in enumerate(primes):
        out[..., i, :] = addmod(out[..., i, :], share[..., i, :], p)


def public_key(moduli: Moduli, doc_hash: bytes, half: WordArray) -> WordArray:
    """Return the public key, (2, key primes, N), of the sum of the holders' shares."""
    other_half = common(doc_hash, b"public key", moduli.key)
    return np.stack([half, other_half])


def confirmed_key(
    moduli: Moduli, doc_hash: bytes, public: bytes, digests: Iterable[bytes]
) -> WordArray:
    """Return the public key of a packed half, if all key holders' digests of it agree.

    Raises
    ------
    MessageError
        If they do not: one holder could send a key that it alone decrypts.
    """
    if set(digests) != {hashlib.sha256(public).digest()}:
        raise MessageError("Expected key holders that agree on the public key.")
    return public_key(moduli, doc_hash, unpack(public, moduli.key))


class JointShare(NamedTuple):
    """The state of one holder after the others' first messages."""

    public: WordArray  # (key primes, N): half of the joint public key
    h1: WordArray  # (digits, key primes, N): half of the joint relinearisation key
    round2: WordArray  # the same shape: this holder's share of the other half
    # SHA-256 of packed ``public`` and ``h1``: equal at all holders
    digests: tuple[bytes, bytes]


class KeyHolder:
    """A party that holds the key, or a share of it.

    ``secret`` is a sole holder's session secret, or a joint holder's `set_up_secret`.
    """

    def __init__(self, moduli: Moduli, secret: bytes, doc_hash: bytes) -> None:
        self._moduli = moduli
        self._secret = secret
        self._doc_hash = doc_hash
        self._q = column(moduli.key)
        self._s = ternary(self._stream(b"secret"))
        self._s_ntt = rns(self._s, moduli.key)

    def __repr__(self) -> str:
        # The secret must not reach a log.
        return f"KeyHolder(n_clusters={self._moduli.n_clusters})"

    def public_share(self) -> WordArray:
        """Return this holder's share of a half of the public key, (key primes, N)."""
        a = common(self._doc_hash, b"public key", self._moduli.key)
        error = small_error(self._stream(b"public key"))
        return self._masked(a, self._s_ntt, error)

    # ---------------------------------------------------------------------- one holder

    def relin_alone(self) -> WordArray:
        """Return half of a sole holder's relinearisation key.

        Its shape is (digits, key primes, N).
        """
        square = mulmod(self._s_ntt, self._s_ntt, self._q)
        out = relin_common(self._moduli, self._doc_hash)
        for j, a in enumerate(out):
            error = small_error(self._stream(b"relin " + u32(j)))
            masked = self._masked(a, self._s_ntt, error)
            out[j] = self._hide(masked, j, square)
        return out

    def encrypt_alone(self, values: ArrayLike, number: int) -> tuple[bytes, WordArray]:
        """Return a sole holder's encrypted column: a nonce and half (data primes, N).

        `expand` takes both. ``values`` (m,) are at most 16,384 numbers in [-1, 1];
        others are clipped, and NaN counts as 0. ``number`` counts this party's
        ciphertexts.
        """
        primes = self._moduli.data
        m = _encoded(self._moduli, values)
        # The nonce depends on the values. If it were only the number, a column sent again
        # with other values would reveal the exact difference.
        label = b"column nonce " + u32(number)
        nonce = secret_key(self._secret, self._doc_hash, label, m)
        e = small_error(self._stream(b"column error " + nonce))
        q = column(primes)
        a = common(nonce, b"column", primes)
        product = mulmod(a, self._s_ntt[:-1], q)
        half = addmod(negmod(product, q), rns(e + m, primes), q)
        return nonce, half

    # ---------------------------------------------------------------------- joint keys

    def first_message(self) -> bytes:
        """Return this holder's packed first message.

        It has the share of the public key, and then the shares of round 1.
        """
        primes = self._moduli.key
        public = pack(self.public_share(), primes)
        round1 = pack(self.relin_round1(), primes)
        return public + round1

    def commitment(self) -> bytes:
        """Return SHA-256 of the first message.

        It is sent before the holder sees any first message.
        """
        return hashlib.sha256(self.first_message()).digest()

    def join(
        self, commitments: Sequence[bytes], messages: Iterable[bytes]
    ) -> JointShare:
        """Add up the first messages of all holders, and answer their sum.

        A share that depends on the others' shares, or a sum that somebody else has formed,
        could reveal this holder's secret. So the holder compares the messages with the
        commitments, and adds them up itself. Commitments are those of the other holders,
        from before this one sent its first message. Messages are in the same order. Each is
        read after the one before it is added.

        Raises
        ------
        MessageError
            If a message is malformed, or its holder did not commit to it.
        """
        q = self._moduli.key
        digits = len(self._moduli.data)

        def committed() -> Iterator[WordArray]:
            received = zip(commitments, messages, strict=True)
            for i, (expected, data) in enumerate(received, start=1):
                if hashlib.sha256(data).digest() != expected:
                    raise MessageError(
                        f"The first message of other key holder {i} is not the one that it "
                        "committed to."
                    )
                yield unpack(data, q, (1 + 2 * digits,))

        both = total(committed(), q)
        public = both[0].copy()
        h = both[1:].reshape(digits, 2, *both.shape[1:])
        _add_to(public, self.public_share(), q)
        _add_to(h, self.relin_round1(), q)
        h1 = np.ascontiguousarray(h[:, 1])
        digests = (
            hashlib.sha256(pack(public, q)).digest(),
            hashlib.sha256(pack(h1, q)).digest(),
        )
        return JointShare(public, h1, self.relin_round2(h), digests)

    def relin_round1(self) -> WordArray:
        """Return this holder's share of round 1, (digits, 2, key primes, N)."""
        primes = self._moduli.key
        q = self._q
        out = []
        u = rns(ternary(self._stream(b"round 1 mask")), primes)
        for j, a in enumerate(relin_common(self._moduli, self._doc_hash)):
            errors = self._stream(b"round 1 errors " + u32(j))
            masked = self._masked(a, u, small_error(errors))
            h0 = self._hide(masked, j, self._s_ntt)
            error = rns(small_error(errors), primes)
            h1 = addmod(mulmod(self._s_ntt, a, q), error, q)
            out.append(np.stack([h0, h1]))
        return np.stack(out)

    def relin_round2(self, h: WordArray) -> WordArray:
        """Return this holder's share of round 2, (digits, key primes, N).

        An answer to a chosen sum h (digits, 2, key primes, N) of round 1 would reveal the
        secret, so `join` only adds up committed messages (docs/threat-model.md, V5).
        """
        primes = self._moduli.key
        q = self._q
        out = []
        u = rns(ternary(self._stream(b"round 1 mask")), primes)
        rest = addmod(u, negmod(self._s_ntt, q), q)
        for j, (h0, h1) in enumerate(h):
            x = addmod(mulmod(self._s_ntt, h0, q), mulmod(rest, h1, q), q)
            # Errors depend on h: the difference of two answers with the same errors would
            # depend on the secret only.
            errors = self._stream(b"round 2 errors " + u32(j), h[j])
            error = small_error(errors) + small_error(errors)
            out.append(addmod(x, rns(error, primes), q))
        return np.stack(out)

    # ---------------------------------------------------------------------- rounds

    def decryption_share(
        self, t: int, c1: WordArray, noise: SmudgingNoise
    ) -> WordArray:
        """Return this holder's words (values,) of round t: its shares plus its noise.

        A word is the constant coefficient of c1 times the secret, plus noise, modulo q0.
        ``c1`` (values, N) are coefficients below q0. The same c1 gives the same words, and
        another c1 gives other noise.
        """
        # Noise depends on c1: two ciphertexts under the same noise would reveal their
        # difference.
        own = noise(self._stream(b"noise " + u32(t), c1))
        # X^i times X^(N - i) is -1.
        row = np.concatenate([self._s[:1], -self._s[:0:-1]])
        # Words are split into halves of at most 25 bits, so that sums of 2^15 products with
        # ternary values fit int64.
        low = c1 & np.uint64(2**_LOW_BITS - 1)
        high = c1 >> np.uint64(_LOW_BITS)
        low_products = low.astype(np.int64) @ row
        high_products = high.astype(np.int64) @ row
        # Python's integers hold the sum of both halves.
        words = []
        parts = (high_products.tolist(), low_products.tolist(), own.tolist())
        for h, x, e in zip(*parts, strict=True):
            words.append((h * 2**_LOW_BITS + x + e) % self._moduli.q0)
        return np.array(words, dtype=np.uint64)

    def _stream(self, label: bytes, hidden: WordArray | None = None) -> Stream:
        return Stream(secret_key(self._secret, self._doc_hash, label, hidden))

    def _masked(self, a: WordArray, s: WordArray, error: IntArray) -> WordArray:
        """Return -(a s) + error."""
        q = self._q
        product = mulmod(a, s, q)
        return addmod(negmod(product, q), rns(error, self._moduli.key), q)

    def _hide(self, words: WordArray, j: int, hidden: WordArray) -> WordArray:
        """Add a hidden polynomial times the special prime to residue j."""
        p = self._moduli.key[j]
        factor = np.full(1, self._moduli.special % p, dtype=np.uint64)
        product = mulmod(hidden[j], factor, p)
        words[j] = addmod(words[j], product, p)
        return words


def expand(moduli: Moduli, nonce: bytes, half: WordArray) -> WordArray:
    """Return the ciphertext, (2, data primes, N), of a nonce and a half.

    `KeyHolder.encrypt_alone` returns both.
    """
    return np.stack([half, common(nonce, b"column", moduli.data)])


def encrypt(
    moduli: Moduli,
    pk: WordArray,
    values: ArrayLike,
    secret: bytes,
    doc_hash: bytes,
    number: int,
) -> WordArray:
    """Return numbers, encrypted under a public key.

    Their shapes are (2, data primes, N) and (2, key primes, N). ``values`` and
    ``number`` are as for `KeyHolder.encrypt_alone`.
    """
    primes = moduli.data
    m = _encoded(moduli, values)
    label = u32(number) + pk_digest(moduli, pk[0])
    mask, errors = _streams(secret, doc_hash, b"column", label, m)
    u = rns(ternary(mask), primes)
    q = column(primes)
    hidden = (small_error(errors) + m, small_error(errors))
    out = []
    for half, x in zip(pk[:, :-1], hidden, strict=True):
        masked = mulmod(half, u, q)
        out.append(addmod(masked, rns(x, primes), q))
    return np.stack(out)


def values_of(X: FloatArray, number: int) -> FloatArray:
    """Return the values of a party's ciphertext by its number, from its columns X (n, w).

    Ciphertexts are numbered chunk after chunk, column after column.
    """
    chunk, j = divmod(number, X.shape[1])
    first = chunk * SLOTS
    return X[first : first + SLOTS, j]


def randomise(
    moduli: Moduli,
    pk: WordArray,
    digest: bytes,
    words: WordArray,
    secret: bytes,
    doc_hash: bytes,
    label: bytes,
) -> tuple[int, WordArray]:
    """Return the constant c0[0] and c1 (N,) of a ciphertext plus an encrypted zero.

    ``pk`` (2, 1, N) has the residues of the public key modulo q0, and ``digest`` is the
    `pk_digest` of the whole key. ``words`` (2, N) are transforms modulo q0 of the last
    level; coefficients are returned. ``label`` names the value: values with equal words
    must have different labels, because otherwise c1 would reveal that they are equal.
    """
    q0 = moduli.q0
    mask, errors = _streams(secret, doc_hash, b"zero", label + digest, words)
    u = ntt(lift(ternary(mask), q0), q0)
    out = []
    for half, x in zip(pk, words, strict=True):
        masked = addmod(x, mulmod(half[0], u, q0), q0)
        error = lift(small_error(errors), q0)
        out.append(addmod(intt(masked, q0), error, q0))
    c0, c1 = out
    return int(c0[0]), c1


def _streams(
    secret: bytes, doc_hash: bytes, what: bytes, label: bytes, hidden: NDArray[Any]
) -> tuple[Stream, Stream]:
    """Return the streams of a ciphertext's mask and errors."""
    mask_key = secret_key(secret, doc_hash, what + b" mask " + label, hidden)
    errors_key = secret_key(secret, doc_hash, what + b" errors " + label, hidden)
    return Stream(mask_key), Stream(errors_key)


def opened(
    moduli: Moduli, constants: WordArray, shares: Sequence[WordArray]
) -> IntArray:
    """Return the sums of constants and all shares (values,), as signed integers.

    A party's own noise modulo q0 is a share like the others.
    """
    q0 = moduli.q0
    words = constants.astype(np.uint64)
    for share in shares:
        words = addmod(words, share, q0)
    signed = words.astype(np.int64)
    return np.where(signed > q0 // 2, signed - q0, signed)


def _encoded(moduli: Moduli, values: ArrayLike) -> IntArray:
    numbers = np.asarray(values, dtype=np.float64)
    # Beyond 1 the sign polynomials diverge, and a refusal would depend on records, so values
    # are clipped.
    without_nan = np.nan_to_num(numbers, nan=0.0)
    return encode(np.clip(without_nan, -1.0, 1.0), moduli.scales[0])
