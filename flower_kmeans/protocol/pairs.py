"""The secrets that a client session shares with other clients (docs/protocol.md, section 5).

Whatever is wrong with another client's key, tag or envelope is a `MessageError`.
"""

import hashlib
from collections.abc import Callable
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import checks
from flower_kmeans.protocol.committee import MAX_POSITIONS, drawn
from flower_kmeans.protocol.messages import Peer, Wrap
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.secagg import key_agreement

_MOST = 2**18
_kept: dict[tuple[object, ...], bytes] = {}


def _once(key: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
    """Return what is made once: X25519 is slow, and pairs of a simulation meet in every round."""
    found = _kept.get(key)
    if found is None:
        found = make()
        if len(_kept) >= _MOST:
            _kept.clear()
        _kept[key] = found
    return found


def forget() -> None:
    """Erase what this process keeps of the secrets of all sessions, because one of them is over."""
    _kept.clear()


class Pairs:
    """What a client session has in common with others; ``identity`` is for keys of a roster."""

    def __init__(self, doc_hash: bytes, session: ClientSession, identity: Identity | None) -> None:
        self._doc_hash, self._identity = doc_hash, identity
        static = checks.static_secret(identity)
        self._secret = session.ephemeral
        self._static = key_agreement.load(static) if static else b""
        self.static = b"" if identity is None else identity.public
        self._name = hashlib.sha256(doc_hash + session.ephemeral + static).digest()
        self.public_key = _once(
            (self._name, "public key"), lambda: key_agreement.public_key(session.ephemeral)
        )

    @cached_property
    def _ephemeral(self) -> X25519PrivateKey:
        """The session's secret key, which most messages do not need."""
        return key_agreement.load(self._secret)

    def tags(self, epoch: int) -> bytes:
        """Return the tags of the session's ephemeral key, for all slots that section 5 names."""
        if self._identity is None:
            return b""
        roster, own = self._identity.roster, self._identity.slot
        slots = tuple(range(len(roster)))
        if len(roster) > MAX_POSITIONS:
            committee = drawn(roster.keys, roster.beacon, epoch)
            slots = slots if own in committee else committee
        return b"".join(self._tag(own, slot, roster.keys[slot], self.public_key) for slot in slots)

    def _tag(self, owner: int, reader: int, static: bytes, public_key: bytes) -> bytes:
        """Return the tag that this client, and the one with a lasting key, can make of a key."""
        own = self._static or (self._identity.secret if self._identity else b"")
        return key_agreement.ownership_tag(own, static, self._doc_hash, owner, reader, public_key)

    def secret(self, slot: int, public_key: bytes, tag: bytes | None = None) -> bytes:
        """Return the secret with the client at a slot; a tag, if there is one, must be its own."""
        other = b""
        if self._identity is not None:  # relayed keys have no tags
            own, keys = self._identity.slot, self._identity.roster.keys
            if slot >= len(keys):
                raise MessageError("The roster has no such slot.")
            other = keys[slot] if self._static else b""
            if tag is not None:
                expected = _once(
                    (self._name, "tag", slot, public_key),
                    lambda: self._tag(slot, own, keys[slot], public_key),
                )
                if not checks.is_owned(tag, expected):
                    raise MessageError("The tag of another client's key is not its owner's.")
        # Both ends have the same secret. Only who holds a secret key asks by its public key.
        own_end, other_end = self.public_key + (self.static if other else b""), public_key + other
        return _once(
            (own_end, other_end) if own_end < other_end else (other_end, own_end),
            lambda: key_agreement.pair_secret(self._ephemeral, public_key, self._static, other),
        )

    def secret_or_empty(self, slot: int, public_key: bytes, tag: bytes) -> bytes:
        """Return the secret; empty if the other's tag or key is wrong: that costs it alone."""
        try:
            return self.secret(slot, public_key, tag)
        except MessageError:
            return b""

    def wrap(self, secret: bytes, peers: tuple[Peer, ...]) -> tuple[bytes, ...]:
        """Return a group secret sealed for each peer; empty for one whose tag or key is wrong."""
        envelopes = []
        for peer in peers:
            shared = self.secret_or_empty(peer.slot, peer.public_key, peer.tag)
            key = key_agreement.wrap_key(shared, self._doc_hash, self.public_key, peer.public_key)
            envelopes.append(key_agreement.seal(key, secret, self._doc_hash) if shared else b"")
        return tuple(envelopes)

    def unwrap(self, wrap: Wrap) -> bytes:
        """Return the group secret that a key distributor sealed for this session."""
        by = wrap.distributor
        shared = self.secret(by.slot, by.public_key, by.tag)
        key = key_agreement.wrap_key(shared, self._doc_hash, by.public_key, self.public_key)
        return key_agreement.unseal(key, wrap.envelope, self._doc_hash)
