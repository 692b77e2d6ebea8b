"""Keys of vertical runs, made once for a whole test session from fixed secrets.

`ALONE` is one key holder and `JOINT` are three with a joint key, for two clusters.
`SMALL` are moduli for a product of two columns, where nothing depends on how many
primes there are: a key takes a twentieth of the time.
"""

import hashlib
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np

from flower_kmeans.vertical import keys
from flower_kmeans.vertical.engine import SealEngine
from flower_kmeans.vertical.keys import KeyHolder
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.ring import intt

DOC_HASH = bytes(range(32))
MODULI = moduli(2)


def small(moduli):
    """Return moduli of two levels: the first of the others' primes, and their scales."""
    data = (moduli.q0, *moduli.data[-2:])
    key = (*data, moduli.special)
    return replace(moduli, levels=2, scales=moduli.scales[:3], data=data, key=key)


SMALL = small(MODULI)


def secret(party):
    """The secret of a party's client session. Holders are parties 1, 2 and 3."""
    return bytes([party]) * 32


def digest(data):
    return hashlib.sha256(data).digest()


def silent(n_values):
    """No noise."""
    return lambda stream: np.zeros(n_values, np.int64)


class Keys:
    """Keys of so many holders, made when they are used."""

    def __init__(self, n_holders, moduli=MODULI):
        self.n_holders, self.moduli = n_holders, moduli

    @cached_property
    def holders(self):
        return [
            KeyHolder(self.moduli, secret(1 + i), DOC_HASH)
            for i in range(self.n_holders)
        ]

    @cached_property
    def _made(self):
        """Half of the public key, the relinearisation key, and each holder's digests."""
        if self.n_holders == 1:
            (holder,) = self.holders
            b, a = holder.relin_alone(), keys.relin_common(self.moduli, DOC_HASH)
            return holder.public_share(), np.stack([b, a], 1), []
        messages = [holder.first_message() for holder in self.holders]
        commitments = [digest(message) for message in messages]
        digests, b = [], None
        for i, holder in enumerate(self.holders):  # one at a time: they are large
            share = holder.join(*(x[:i] + x[i + 1 :] for x in (commitments, messages)))
            digests.append(share.digests)
            b = (
                share.round2
                if b is None
                else keys.total([b, share.round2], self.moduli.key)
            )
        return share.public, np.stack([b, share.h1], 1), digests

    half = property(lambda self: self._made[0])  # of the public key, (key primes, N)
    relin = property(lambda self: self._made[1])  # (digits, 2, key primes, N)
    digests = property(lambda self: self._made[2])  # each joint holder's

    @cached_property
    def pk(self):
        """The public key, (2, key primes, N)."""
        return keys.public_key(self.moduli, DOC_HASH, self.half)

    @cached_property
    def pk_digest(self):
        """SHA-256 of the packed public key."""
        return keys.pk_digest(self.moduli, self.half)

    @cached_property
    def engine(self):
        return SealEngine(self.moduli, self.relin)

    def encrypt(self, values, number=0, party=9):
        """Numbers under the public key, (2, data primes, N)."""
        return keys.encrypt(
            self.moduli, self.pk, values, secret(party), DOC_HASH, number
        )

    def encrypt_alone(self, values, number=0):
        """Numbers of a sole holder, (2, data primes, N)."""
        return keys.expand(self.moduli, *self.holders[0].encrypt_alone(values, number))

    def open(self, words, holders=None):
        """What some holders (all of them) open of last ciphertexts (..., 2, N), in records."""
        found = []
        for cell in np.ndindex(words.shape[:-2]):
            c0, c1 = (intt(c, self.moduli.q0) for c in words[cell])
            shares = [
                holder.decryption_share(1, c1[None], silent(1))
                for holder in holders or self.holders
            ]
            found.append(keys.opened(self.moduli, c0[:1], shares)[0] / self.moduli.unit)
        return np.reshape(found, words.shape[:-2])


@lru_cache
def keys_of(n_holders, moduli):
    """Keys of so many holders, made once in a process."""
    return Keys(n_holders, moduli)


ALONE, JOINT = keys_of(1, MODULI), keys_of(3, MODULI)
