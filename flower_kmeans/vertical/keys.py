"""CKKS keys that one holder has, or that up to three have together (docs/protocol.md, section 13).

The secret key is the sum of the holders' ternary secrets, and exists nowhere unless
there is one holder. Joint keys follow Mouchet et al. 2021 (collective public key;
relinearisation key in two rounds, protocol RKG). Keys are those of Microsoft SEAL:
digit j of a relinearisation key hides the square of the secret times the special prime
in residue j.

Every secret, error and mask is a stream under a key that is derived from a party's
secret, the run document's hash, a label, and SHA-256 of what it hides or answers. So a
repeated request gives the same words, and two plaintexts are not hidden by one mask:
neither after records changed, nor with another processor's words. The label of a
ciphertext contains the public key: one plaintext under two keys has two masks, or their
difference would give it (docs/threat-model.md, V16).

A party's secret is that of its client session. Holders of a joint key add 32 bytes that
no ledger has before they answered the others' shares (`set_up_secret`).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.secagg.hashing import DIGEST_BYTES, kdf, u32
from flower_kmeans.vertical.moduli import Moduli
from flower_kmeans.vertical.ring import (
    SLOTS,
    Floats,
    Integers,
    Words,
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

Noise = Callable[[Stream], Integers]
"""Draws one party's noise of a round, in units of the opened integers."""


def secret_key(
    secret: bytes, doc_hash: bytes, label: bytes, hidden: NDArray[Any] | None = None
) -> bytes:
    """Return the key of a stream, 32 bytes; ``hidden``, of eight-byte integers, is what it hides.

    ``secret`` is the party's. A stream may also answer what is ``hidden``.
    """
    if hidden is not None:
        data = np.ascontiguousarray(hidden, dtype=hidden.dtype.newbyteorder("<"))
        label = label + b" " + hashlib.sha256(data.data).digest()
    return kdf(secret, doc_hash, b"vertical " + label)


def set_up_secret(secret: bytes, fresh: bytes, doc_hash: bytes) -> bytes:
    """Return what a joint holder has in place of its session's secret, 32 bytes.

    ``fresh`` are 32 random bytes. A holder that lost them has other keys, so it never
    gives one first message for two lists of commitments (docs/threat-model.md, V4 and
    V5).
    """
    return kdf(secret + fresh, doc_hash, b"vertical set-up")


def pk_digest(moduli: Moduli, half: Words) -> bytes:
    """Return SHA-256 of a packed half of a public key, by which labels name the key."""
    return hashlib.sha256(pack(half, moduli.key)).digest()


def common(seed: bytes, name: bytes, primes: Iterable[int]) -> Words:
    """Return a polynomial (primes, N) that nobody chose: it follows from a public seed.

    The seed is the run document's hash, or a column's nonce. So no party can hide a
    trapdoor in it.
    """
    keys = (
        (kdf(seed, bytes(DIGEST_BYTES), b"vertical common " + name + u32(i)), p)
        for i, p in enumerate(primes)
    )
    return np.stack([uniform(Stream(key), p) for key, p in keys])


def relin_common(moduli: Moduli, doc_hash: bytes) -> Words:
    """Return the common polynomial of each digit, (digits, key primes, N).

    With `KeyHolder.relin_alone`, a sole holder's key is ``np.stack([b, a], 1)``. A
    joint key is ``np.stack([b, h1], 1)``, with the sums of round 2 and of round 1.
    """
    names = (b"relin " + u32(j) for j in range(len(moduli.data)))
    return np.stack([common(doc_hash, name, moduli.key) for name in names])


def total(shares: Iterable[Words], primes: Sequence[int]) -> Words:
    """Return the sum of polynomials (..., primes, N) of all holders."""
    rest = iter(shares)
    out = next(rest).copy()
    for share in rest:  # one at a time, as they may be made on demand
        _add_to(out, share, primes)
    return out


def _add_to(out: Words, share: Words, primes: Sequence[int]) -> None:
    # In place, and a residue at a time: shares of round 1 take 100 MB and more.
    for i, p in enumerate(primes):
        out[..., i, :] = addmod(out[..., i, :], share[..., i, :], p)


def public_key(moduli: Moduli, doc_hash: bytes, half: Words) -> Words:
    """Return the public key, (2, key primes, N), that holders' shares add up to one half of."""
    return np.stack([half, common(doc_hash, b"public key", moduli.key)])


def confirmed_key(
    moduli: Moduli, doc_hash: bytes, public: bytes, digests: Iterable[bytes]
) -> Words:
    """Return the public key of a packed half, if all key holders' digests of it are right.

    Else it is a `MessageError`: one holder could send a key that it alone decrypts.
    """
    if set(digests) != {hashlib.sha256(public).digest()}:
        raise MessageError("The key holders do not agree on the public key.")
    return public_key(moduli, doc_hash, unpack(public, moduli.key))


class JointShare(NamedTuple):
    """What one holder has after the others' first messages."""

    public: Words  # (key primes, N): half of the joint public key
    h1: Words  # (digits, key primes, N): half of the joint relinearisation key
    round2: Words  # the same shape: this holder's share of the other half
    # SHA-256 of packed ``public`` and ``h1``: equal at all holders
    digests: tuple[bytes, bytes]


class KeyHolder:
    """A party that holds the key, or a share of it.

    ``secret`` is a sole holder's session secret, or a joint holder's `set_up_secret`.
    """

    def __init__(self, moduli: Moduli, secret: bytes, doc_hash: bytes) -> None:
        self._moduli, self._secret, self._doc_hash = moduli, secret, doc_hash
        self._q = column(moduli.key)
        self._s = ternary(self._stream(b"secret"))
        self._s_ntt = rns(self._s, moduli.key)

    def __repr__(self) -> str:
        # The secret must not reach a log.
        return f"KeyHolder(n_clusters={self._moduli.n_clusters})"

    def public_share(self) -> Words:
        """Return this holder's share of a half of the public key, (key primes, N)."""
        a = common(self._doc_hash, b"public key", self._moduli.key)
        return self._masked(a, self._s_ntt, small_error(self._stream(b"public key")))

    # ---------------------------------------------------------------------- one holder

    def relin_alone(self) -> Words:
        """Return a half of a sole holder's relinearisation key, (digits, key primes, N)."""
        square = mulmod(self._s_ntt, self._s_ntt, self._q)
        out = relin_common(self._moduli, self._doc_hash)
        for j, a in enumerate(out):
            error = small_error(self._stream(b"relin " + u32(j)))
            out[j] = self._hide(self._masked(a, self._s_ntt, error), j, square)
        return out

    def encrypt_alone(self, values: ArrayLike, number: int) -> tuple[bytes, Words]:
        """Return a sole holder's encrypted column: a nonce, and half (data primes, N) for `expand`.

        ``values`` (m,) are at most 16,384 numbers in [-1, 1]; others are clipped, and
        NaN counts as
        0. ``number`` is which one of this party's ciphertexts it is.
        """
        primes, m = self._moduli.data, _encoded(self._moduli, values)
        # The nonce depends on the values. If it were the number alone, a column sent
        # again with other values would reveal the difference, without any error.
        nonce = secret_key(
            self._secret, self._doc_hash, b"column nonce " + u32(number), m
        )
        e = small_error(self._stream(b"column error " + nonce))
        q, a = column(primes), common(nonce, b"column", primes)
        return nonce, addmod(
            negmod(mulmod(a, self._s_ntt[:-1], q), q), rns(e + m, primes), q
        )

    # ---------------------------------------------------------------------- joint keys

    def first_message(self) -> bytes:
        """Return this holder's packed first message: public share, then the shares of round 1."""
        parts = (self.public_share(), self.relin_round1())
        return b"".join(pack(part, self._moduli.key) for part in parts)

    def commitment(self) -> bytes:
        """Return SHA-256 of the first message, which is sent before any first message is seen."""
        return hashlib.sha256(self.first_message()).digest()

    def join(
        self, commitments: Sequence[bytes], messages: Iterable[bytes]
    ) -> JointShare:
        """Add up the first messages of all holders, and answer their sum.

        A share that depends on the others', or a sum that somebody else has formed,
        would read this holder's secret: so it compares them with the commitments, and
        adds them up itself. Commitments are of the other holders, from before this one
        sent its first message. Messages are in the same order; each is taken when the
        one before it is added. One that its holder did not commit to, or that is
        malformed, is a `MessageError`.
        """
        q, digits = self._moduli.key, len(self._moduli.data)

        def committed() -> Iterator[Words]:
            for i, (expected, data) in enumerate(
                zip(commitments, messages, strict=True), start=1
            ):
                if hashlib.sha256(data).digest() != expected:
                    raise MessageError(
                        f"The first message of other key holder {i} is not the one that it "
                        "committed to."
                    )
                yield unpack(data, q, (1 + 2 * digits,))

        both = total(committed(), q)
        public, h = both[0].copy(), both[1:].reshape(digits, 2, *both.shape[1:])
        _add_to(public, self.public_share(), q)
        _add_to(h, self.relin_round1(), q)
        h1 = np.ascontiguousarray(h[:, 1])
        first, second = (
            hashlib.sha256(pack(words, q)).digest() for words in (public, h1)
        )
        return JointShare(public, h1, self.relin_round2(h), (first, second))

    def relin_round1(self) -> Words:
        """Return this holder's share of round 1, (digits, 2, key primes, N)."""
        primes, q, out = self._moduli.key, self._q, []
        u = rns(ternary(self._stream(b"round 1 mask")), primes)
        for j, a in enumerate(relin_common(self._moduli, self._doc_hash)):
            errors = self._stream(b"round 1 errors " + u32(j))
            h0 = self._hide(self._masked(a, u, small_error(errors)), j, self._s_ntt)
            h1 = addmod(mulmod(self._s_ntt, a, q), rns(small_error(errors), primes), q)
            out.append(np.stack([h0, h1]))
        return np.stack(out)

    def relin_round2(self, h: Words) -> Words:
        """Return this holder's share of round 2, (digits, key primes, N).

        One answer to a sum h (digits, 2, key primes, N) of round 1 that somebody chose
        is the secret: `join` adds up what was committed to (docs/threat-model.md, V5).
        """
        primes, q, out = self._moduli.key, self._q, []
        u = rns(ternary(self._stream(b"round 1 mask")), primes)
        rest = addmod(u, negmod(self._s_ntt, q), q)
        for j, (h0, h1) in enumerate(h):
            x = addmod(mulmod(self._s_ntt, h0, q), mulmod(rest, h1, q), q)
            # Errors depend on h: two answers under the same errors would differ by the
            # secret's part alone.
            errors = self._stream(b"round 2 errors " + u32(j), h[j])
            out.append(
                addmod(x, rns(small_error(errors) + small_error(errors), primes), q)
            )
        return np.stack(out)

    # ---------------------------------------------------------------------- rounds

    def decryption_share(self, t: int, c1: Words, noise: Noise) -> Words:
        """Return this holder's words (values,) of round t: its share of each value plus its noise.

        A word is the constant coefficient of c1 times the secret, plus noise, modulo
        q0; ``c1`` (values, N) are coefficients below q0. The same c1 gives the same
        words, another one gives other noise.
        """
        # Noise depends on c1: two ciphertexts under the same noise would reveal their
        # difference.
        own = noise(self._stream(b"noise " + u32(t), c1))
        # X^i meets X^(N - i) with a minus
        row = np.concatenate([self._s[:1], -self._s[:0:-1]])
        # In two halves of at most 25 bits, whose products with 2^15 ternary values fit
        # int64.
        low = (c1 & np.uint64(2**_LOW_BITS - 1)).astype(np.int64) @ row
        high = (c1 >> np.uint64(_LOW_BITS)).astype(np.int64) @ row
        parts = zip(high.tolist(), low.tolist(), own.tolist(), strict=True)
        words = [(h * 2**_LOW_BITS + x + e) % self._moduli.q0 for h, x, e in parts]
        return np.array(words, dtype=np.uint64)

    def _stream(self, label: bytes, hidden: Words | None = None) -> Stream:
        return Stream(secret_key(self._secret, self._doc_hash, label, hidden))

    def _masked(self, a: Words, s: Words, error: Integers) -> Words:
        """Return -(a s) + error."""
        product = mulmod(a, s, self._q)
        return addmod(negmod(product, self._q), rns(error, self._moduli.key), self._q)

    def _hide(self, words: Words, j: int, hidden: Words) -> Words:
        """Add what digit j hides to residue j."""
        p = self._moduli.key[j]
        factor = np.full(1, self._moduli.special % p, dtype=np.uint64)
        words[j] = addmod(words[j], mulmod(hidden[j], factor, p), p)
        return words


def expand(moduli: Moduli, nonce: bytes, half: Words) -> Words:
    """Return the ciphertext, (2, data primes, N), of what `KeyHolder.encrypt_alone` returned."""
    return np.stack([half, common(nonce, b"column", moduli.data)])


def encrypt(
    moduli: Moduli,
    pk: Words,
    values: ArrayLike,
    secret: bytes,
    doc_hash: bytes,
    number: int,
) -> Words:
    """Return numbers encrypted under a public key (2, key primes, N): (2, data primes, N).

    ``values`` and ``number`` are as for `KeyHolder.encrypt_alone`.
    """
    primes, m = moduli.data, _encoded(moduli, values)
    label = u32(number) + pk_digest(moduli, pk[0])
    mask, errors = _streams(secret, doc_hash, b"column", label, m)
    u, q = rns(ternary(mask), primes), column(primes)
    hidden = (small_error(errors) + m, small_error(errors))
    halves = zip(pk[:, :-1], hidden, strict=True)
    return np.stack(
        [addmod(mulmod(half, u, q), rns(x, primes), q) for half, x in halves]
    )


def values_of(X: Floats, number: int) -> Floats:
    """Return the values that a party's ciphertext of a number holds, of its columns X (n, w).

    Ciphertexts are numbered chunk after chunk, column after column.
    """
    chunk, j = divmod(number, X.shape[1])
    return X[chunk * SLOTS : (chunk + 1) * SLOTS, j]


def randomise(
    moduli: Moduli,
    pk: Words,
    digest: bytes,
    words: Words,
    secret: bytes,
    doc_hash: bytes,
    label: bytes,
) -> tuple[int, Words]:
    """Return a last ciphertext plus an encryption of zero: its constant c0[0], and c1 (N,).

    Of the public key only residues modulo q0 are needed, ``pk`` (2, 1, N); ``digest``
    is the `pk_digest` of the whole key. ``words`` (2, N) are transforms modulo q0; what
    is returned are coefficients. ``label`` says which value it is: two values of equal
    words have other labels, or their c1 would show it.
    """
    q0, (mask, errors) = (
        moduli.q0,
        _streams(secret, doc_hash, b"zero", label + digest, words),
    )
    u = ntt(lift(ternary(mask), q0), q0)
    c0, c1 = (
        addmod(
            intt(addmod(x, mulmod(half[0], u, q0), q0), q0),
            lift(small_error(errors), q0),
            q0,
        )
        for half, x in zip(pk, words, strict=True)
    )
    return int(c0[0]), c1


def _streams(
    secret: bytes, doc_hash: bytes, what: bytes, label: bytes, hidden: NDArray[Any]
) -> tuple[Stream, Stream]:
    """Return the streams of a ciphertext's mask and errors."""
    mask, errors = (
        Stream(secret_key(secret, doc_hash, what + name + label, hidden))
        for name in (b" mask ", b" errors ")
    )
    return mask, errors


def opened(moduli: Moduli, constants: Words, shares: Sequence[Words]) -> Integers:
    """Return the signed integers that constants and all shares (values,) of them add up to.

    A party's own noise modulo q0 is a share like the others.
    """
    q0, words = moduli.q0, constants.astype(np.uint64)
    for share in shares:
        words = addmod(words, share, q0)
    signed = words.astype(np.int64)
    return np.where(signed > q0 // 2, signed - q0, signed)


def _encoded(moduli: Moduli, values: ArrayLike) -> Integers:
    numbers = np.asarray(values, dtype=np.float64)
    # Beyond 1 the sign polynomials explode, and a refusal would depend on records.
    return encode(np.clip(np.nan_to_num(numbers, nan=0.0), -1.0, 1.0), moduli.scales[0])
