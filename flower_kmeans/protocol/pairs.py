"""The secrets that a client session shares with other clients (docs/protocol.md, section 5).

Whatever is wrong with another client's key, tag or envelope is a `MessageError` here. What it
costs is the caller's to say: a share that is not dealt, an envelope that is left out, or KEY.
"""

import hashlib
from collections.abc import Callable
from threading import Lock

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import checks
from flower_kmeans.protocol.committee import MAX_POSITIONS, drawn
from flower_kmeans.protocol.messages import Peer, Wrap
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.secagg import key_agreement

_MOST = 2**18


class _Cache:
    """Values by session, because they are erased with it; all are dropped when they are too many.

    A simulation needs it: each pair of clients meets in every round, and X25519 is slow.
    """

    def __init__(self) -> None:
        self._values: dict[bytes, dict[tuple[object, ...], bytes]] = {}
        self._n_values = 0
        self._lock = Lock()

    def get(self, session: bytes, key: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        found = self._values.get(session, {}).get(key)
        if found is None:
            found = make()
            with self._lock:
                if self._n_values >= _MOST:
                    self._values, self._n_values = {}, 0
                self._values.setdefault(session, {})[key] = found
                self._n_values += 1
        return found

    def forget(self, session: bytes) -> None:
        with self._lock:
            self._n_values -= len(self._values.pop(session, {}))


_cache = _Cache()


class Pairs:
    """What one client session has in common with each other client.

    ``identity`` says who the client is on its own roster; it is ``None`` where keys are relayed.
    """

    def __init__(self, doc_hash: bytes, session: ClientSession, identity: Identity | None) -> None:
        self._doc_hash = doc_hash
        self._identity = identity
        static = checks.static_secret(identity)
        self._ephemeral = key_agreement.load(session.ephemeral)
        self._static = key_agreement.load(static) if static else b""
        self._lasting = self._static or (identity.secret if identity else b"")  # for tags
        self.static = b"" if identity is None else identity.public
        self.public_key = self._ephemeral.public_key().public_bytes_raw()
        self._name = hashlib.sha256(doc_hash + session.ephemeral + static).digest()

    def tags(self, epoch: int) -> bytes:
        """Return the tags of the session's ephemeral key.

        For all slots of the roster if the client is in the committee, else for the committee's.
        """
        if self._identity is None:
            return b""
        keys, own = self._identity.roster.keys, self._identity.slot
        slots = tuple(range(len(keys)))
        if len(keys) > MAX_POSITIONS:
            committee = drawn(keys, self._identity.roster.beacon, epoch)
            slots = slots if own in committee else committee
        return b"".join(self._tag(own, slot, keys[slot], self.public_key) for slot in slots)

    def _tag(self, from_slot: int, to_slot: int, static: bytes, public_key: bytes) -> bytes:
        """Return the tag that this client, and the one with a lasting key, can make of a key."""
        return key_agreement.ownership_tag(
            self._lasting, static, self._doc_hash, from_slot, to_slot, public_key
        )

    def require_owned(self, slot: int, public_key: bytes, tag: bytes) -> None:
        """Require the tag by which the owner of a slot shows that an ephemeral key is its own.

        Raises
        ------
        MessageError
            If it is another tag, or the roster has no such slot. Relayed keys have no tags.
        """
        if self._identity is None:
            return
        own, static = self._identity.slot, self._static_of(slot)
        expected = _cache.get(
            self._name,
            ("tag", slot, public_key),
            lambda: self._tag(slot, own, static, public_key),
        )
        if not checks.is_owned(tag, expected):
            raise MessageError("The tag of another client's key is not its owner's.")

    def _static_of(self, slot: int) -> bytes:
        if self._identity is None:
            return b""
        if slot >= len(self._identity.roster.keys):
            raise MessageError("The roster has no such slot.")
        return self._identity.roster.keys[slot]

    def secret(self, slot: int, public_key: bytes, tag: bytes | None = None) -> bytes:
        """Return the secret with the client at a slot, of ephemeral and lasting keys.

        Raises
        ------
        MessageError
            If the key is not acceptable, the roster has no such slot, or a tag is given and is not
            the owner's.
        """
        if tag is not None:
            self.require_owned(slot, public_key, tag)
        other = self._static_of(slot) if self._static else b""
        return _cache.get(
            self._name,
            ("secret", public_key, other),
            lambda: key_agreement.pair_secret(self._ephemeral, public_key, self._static, other),
        )

    def wrap(self, secret: bytes, peers: tuple[Peer, ...]) -> tuple[bytes, ...]:
        """Return a group secret sealed for each peer; empty for one whose tag or key is wrong."""
        return tuple(self._wrap(secret, peer) for peer in peers)

    def _wrap(self, secret: bytes, peer: Peer) -> bytes:
        try:
            shared = self.secret(peer.slot, peer.public_key, peer.tag)
        except MessageError:  # it costs that peer its envelope, and nobody else
            return b""
        key = key_agreement.wrap_key(shared, self._doc_hash, self.public_key, peer.public_key)
        return key_agreement.seal(key, secret, self._doc_hash)

    def unwrap(self, wrap: Wrap) -> bytes:
        """Return the group secret that a key distributor sealed for this session.

        Raises
        ------
        MessageError
            If tag, key or envelope are not a key distributor's for this session.
        """
        by = wrap.distributor
        shared = self.secret(by.slot, by.public_key, by.tag)
        key = key_agreement.wrap_key(shared, self._doc_hash, by.public_key, self.public_key)
        return key_agreement.unseal(key, wrap.envelope, self._doc_hash)

    def forget(self) -> None:
        """Erase what this process keeps of the session's secrets."""
        _cache.forget(self._name)
