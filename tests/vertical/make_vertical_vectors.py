"""Make vertical_vectors.json: what key holders and owners of columns send with fixed secrets.

    python tests/vertical/make_vertical_vectors.py        (some minutes)

Written from the definitions with Python's integers, in arrays of objects, so that it shares nothing
with the library but the format. Columns are constants, whose encoded polynomial is a constant on
any processor.
"""

import hashlib
import hmac
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

N = 2**15
SCALE = 0.999 * 2.0**40
LEVELS = 1 + 12 + 0 + 1  # the sum of columns, the sign, no product of memberships, the last product
VALUE = 0.5
DOC_HASH = bytes(range(32))


def integers(values):
    return np.array(list(values), dtype=object)


# ------------------------------------------------------------------------------ streams


def kdf(key, salt, label):
    """HKDF-SHA256 with 32 bytes of output."""
    pseudo_random_key = hmac.digest(salt, key, "sha256")
    return hmac.digest(pseudo_random_key, b"flower-kmeans/2 " + label + b"\1", "sha256")


def own_key(party, label, *hidden):
    if hidden:
        data = b"".join(x.to_bytes(8, "little", signed=x < 0) for row in hidden for x in row)
        label += b" " + hashlib.sha256(data).digest()
    return kdf(bytes([party]) * 32, DOC_HASH, b"vertical " + label)


def u32(number):
    return number.to_bytes(4, "little")


def keystream(key, n_bytes):
    return Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(n_bytes))


def words(key, n_words):
    data = keystream(key, 8 * n_words)
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


def ternary(key):
    return integers([x % 3 - 1 for x in keystream(key, 2 * N) if x < 255][:N])


def errors(key, count):
    """Further errors of one stream."""
    low = 2**21 - 1
    drawn = [(x & low).bit_count() - (x >> 21 & low).bit_count() for x in words(key, count * N)]
    return [integers(drawn[i * N : (i + 1) * N]) for i in range(count)]


def common(seed, name, n_primes):
    return [uniform(kdf(seed, bytes(32), b"vertical common " + name + u32(i)), KEY[i])
            for i in range(n_primes)]  # fmt: skip


def uniform(key, p):
    mask = 2 ** p.bit_length() - 1
    return integers([x & mask for x in words(key, N + N // 8) if x & mask < p][:N])


# ------------------------------------------------------------------------------ moduli


def is_prime(n):
    return all(n % x for x in range(3, 1000, 2)) and all(pow(b, n - 1, n) == 1 for b in (2, 3, 5))


def prime_near(target, used):
    below = int(target) // (2 * N) * (2 * N) + 1
    found = (below + 2 * N * i * sign for i in range(1000) for sign in (1, -1))
    used.append(next(p for p in found if p not in used and is_prime(p)))
    return used[-1]


def primes():
    used, scale, chain = [], SCALE, []
    q0, special = prime_near(0.99 * 2.0**48, used), prime_near(0.99 * 2.0**49, used)
    for _ in range(LEVELS):
        chain.append(prime_near(scale**2 / SCALE, used))
        scale = scale**2 / chain[-1]
    return [q0, *chain[::-1], special]


KEY = primes()
DATA, Q0, SPECIAL = KEY[:-1], KEY[0], KEY[-1]

# ------------------------------------------------------------------------------ polynomials
# A polynomial is a list of its transforms, one for each of the first primes.


def powers(x, count, p):
    out = [1]
    for _ in range(count - 1):
        out.append(out[-1] * x % p)
    return integers(out)


@lru_cache
def roots(p):
    """The powers of the least primitive root of order 2 N."""
    root = next(x for h in range(2, 99) if pow(x := pow(h, (p - 1) // (2 * N), p), N, p) == p - 1)
    return powers(min(powers(root, 2 * N, p)[1::2]), 2 * N, p)


def fourier(x, factors, p):
    """The values at powers of a root of order N, at positions whose bits are reversed."""
    size, x = N, x.copy()
    while size > 1:
        parts, stride = x.reshape(-1, 2, size // 2), N // size
        a, b = parts[:, 0].copy(), parts[:, 1].copy()
        parts[:, 0], parts[:, 1] = (a + b) % p, (a - b) * factors[:: 2 * stride] % p
        size //= 2
    return x


REVERSED = [int(f"{i:015b}"[::-1], 2) for i in range(N)]


def transform(x, p):
    """The values at odd powers of the least root of order 2 N, bits reversed."""
    return fourier(x * roots(p)[:N] % p, roots(p)[:N], p)


def coefficients(values, p):
    inverse = powers(pow(roots(p)[1], -1, p), N, p)
    return fourier(values[REVERSED], inverse, p)[REVERSED] * inverse * pow(N, -1, p) % p


def everywhere(x):
    return [transform(x, p) for p in KEY]


def of_each(function, *polynomials):
    """A function of residues modulo each prime."""
    return [
        function(*x) % p for *x, p in zip(*polynomials, KEY[: len(polynomials[0])], strict=True)
    ]


def packed(rows, moduli):
    """Polynomials, each a list of its residues' words."""
    out = bytearray()
    for row in rows:
        for x, p in zip(row, moduli, strict=True):
            width = (p.bit_length() + 7) // 8
            out += b"".join(c.to_bytes(width, "little") for c in x)
    return bytes(out)


def sha(data):
    return hashlib.sha256(data).hexdigest()


# ------------------------------------------------------------------------------ keys


def masked(a, s, e):
    """-(a s) + e, of an error's coefficients."""
    moduli = KEY[: len(a)]
    return of_each(lambda a, s, e: e - a * s, a, s[: len(a)], [transform(e, p) for p in moduli])


def with_hidden(x, j, hidden):
    """What a digit of a relinearisation key hides is in residue j alone."""
    x[j] = (x[j] + SPECIAL * hidden) % KEY[j]
    return x


class Holder:
    def __init__(self, party):
        self.party = party
        self.s = ternary(own_key(party, b"secret"))
        self.s_words = everywhere(self.s)

    def public_share(self):
        (error,) = errors(own_key(self.party, b"public key"), 1)
        return masked(common(DOC_HASH, b"public key", len(KEY)), self.s_words, error)

    def relin_alone(self):
        for j in range(len(DATA)):
            (error,) = errors(own_key(self.party, b"relin " + u32(j)), 1)
            b = masked(common(DOC_HASH, b"relin " + u32(j), len(KEY)), self.s_words, error)
            yield with_hidden(b, j, self.s_words[j] ** 2)

    def round1(self):
        self.u_words = everywhere(ternary(own_key(self.party, b"round 1 mask")))
        for j in range(len(DATA)):
            a = common(DOC_HASH, b"relin " + u32(j), len(KEY))
            e0, e1 = errors(own_key(self.party, b"round 1 errors " + u32(j)), 2)
            yield with_hidden(masked(a, self.u_words, e0), j, self.s_words[j])
            yield of_each(lambda a, s, e: a * s + e, a, self.s_words, everywhere(e1))

    def round2(self, h):
        for j in range(len(DATA)):
            h0, h1 = h[2 * j], h[2 * j + 1]
            e = everywhere(
                sum(errors(own_key(self.party, b"round 2 errors " + u32(j), *h0, *h1), 2))
            )
            yield of_each(
                lambda h0, h1, s, u, e: s * h0 + (u - s) * h1 + e,
                *(h0, h1, self.s_words, self.u_words, e),
            )


def constant():
    return integers([round(VALUE * SCALE)] + [0] * (N - 1))


def column_alone(holder, number):
    m = constant()
    nonce = own_key(holder.party, b"column nonce " + u32(number), m)
    (e,) = errors(own_key(holder.party, b"column error " + nonce), 1)
    return nonce, masked(common(nonce, b"column", len(DATA)), holder.s_words, e + m)


def column(pk, party, number):
    m = constant()
    u = everywhere(ternary(own_key(party, b"column mask " + u32(number), m)))
    e0, e1 = errors(own_key(party, b"column errors " + u32(number), m), 2)
    return [
        of_each(lambda a, u, e: a * u + e, half[:-1], u[:-1], everywhere(e)[:-1])
        for half, e in zip(pk, (e0 + m, e1), strict=True)
    ]


def randomised(pk, c, party, label):
    u = transform(ternary(own_key(party, b"zero mask " + label, *c)), Q0)
    e0, e1 = errors(own_key(party, b"zero errors " + label, *c), 2)
    out = [
        (coefficients((x + half[0] * u) % Q0, Q0) + e) % Q0
        for half, x, e in zip(pk, c, (e0, e1), strict=True)
    ]
    return out[0][0], out[1]


def share(holder, t, c1):
    """Words of one round under noise that is made of the first words of its stream."""
    key, s = own_key(holder.party, b"noise " + u32(t), *c1), holder.s
    row = integers([s[0], *-s[:0:-1]])
    drawn = words(key, len(c1))
    return [(x @ row + (noise >> 30)) % Q0 for x, noise in zip(c1, drawn, strict=True)]


def made():
    one, two = Holder(1), Holder(2)
    half = one.public_share()
    pk = [half, common(DOC_HASH, b"public key", len(KEY))]
    nonce, column_half = column_alone(one, 3)
    sent = column(pk, 9, 4)
    c0, c1 = randomised(pk, [x[0] for x in sent], 0, b"value 5")
    firsts = [[holder.public_share(), *holder.round1()] for holder in (one, two)]
    sums = [of_each(lambda a, b: a + b, *both) for both in zip(*firsts, strict=True)]
    return {
        "doc_hash": DOC_HASH.hex(),
        "primes": KEY,
        "value": VALUE,
        "public_key": sha(packed([half], KEY)),
        "relin_key": sha(packed(one.relin_alone(), KEY)),
        "column_alone": {"nonce": nonce.hex(), "half": sha(packed([column_half], DATA))},
        "column": sha(packed(sent, DATA)),
        "randomised": {"c0": c0, "c1": sha(packed([[c1]], [Q0]))},
        "share": share(one, 2, [c1, c1[::-1]]),
        "joint": {
            "commitments": [sha(packed(first, KEY)) for first in firsts],
            "digests": [sha(packed(sums[:1], KEY)), sha(packed(sums[2::2], KEY))],
            "round2": sha(packed(one.round2(sums[1:]), KEY)),
        },
    }


if __name__ == "__main__":
    target = Path(__file__).parent.parent / "vertical_vectors.json"
    target.write_text(json.dumps(made(), indent=2) + "\n")
