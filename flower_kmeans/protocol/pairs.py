"""The secrets that a client session shares with other clients (docs/protocol.md, section 5).

Whatever is wrong with another client's key, claim or envelope is a `MessageError`.
"""

import hashlib
from collections.abc import Callable
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import checks
from flower_kmeans.protocol.committee import Committee
from flower_kmeans.protocol.messages import Peer, Wrap, read_claims, read_rows
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.secagg import key_agreement

_MOST = 2**18
_kept: dict[tuple[object, ...], bytes] = {}


def _once(key: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
    """Return what is made once: clients of a simulation meet in every round, and have one list.

    X25519 and signatures are slow. What fails is not kept.
    """
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

    def __init__(
        self, doc_hash: bytes, session: ClientSession, identity: Identity | None
    ) -> None:
        self._doc_hash, self._identity = doc_hash, identity
        static = checks.static_secret(identity)
        self._secret = session.ephemeral
        self._static = key_agreement.load(static) if static else b""
        self.static = b"" if identity is None else identity.public
        self._name = hashlib.sha256(doc_hash + session.ephemeral + static).digest()
        self.public_key = _once(
            (self._name, "public key"),
            lambda: key_agreement.public_key(session.ephemeral),
        )

    @cached_property
    def _ephemeral(self) -> X25519PrivateKey:
        """The session's secret key, which most messages do not need."""
        return key_agreement.load(self._secret)

    # ------------------------------------------------------------------ claims

    def claim(self, node_id: int) -> bytes:
        """Return the claim of the own slot for a node and the session's key; empty if relayed."""
        if self._identity is None:
            return b""
        seed, slot = self._identity.seed, self._identity.slot
        return key_agreement.claim(seed, self._doc_hash, slot, node_id, self.public_key)

    def peers(self, rows: bytes) -> tuple[Peer, ...]:
        """Return other clients as they are named, whether their claims are right or not."""
        return read_rows(rows, self._identity is not None)

    def require_claims(self, committee: Committee, claims: bytes) -> None:
        """Require that the owners of all present positions made the committee's keys."""
        if self._identity is None:
            if claims:
                raise MessageError("Expected no claims under relayed keys.")
            return
        digest = self._identity.roster.digest

        def verified() -> bytes:
            made = read_claims(claims, len(committee.present))
            for position, (node_id, claim) in zip(committee.present, made, strict=True):
                slot, public_key = (
                    committee.slots[position],
                    committee.public_keys[position],
                )
                self.require_claim(Peer(slot, public_key, node_id, claim))
            return b"verified"

        # Clients of one process are sent the same list.
        _once(
            (
                self._doc_hash,
                digest,
                "claims",
                committee.slots,
                committee.public_keys,
                claims,
            ),
            verified,
        )

    def require_claim(self, peer: Peer) -> None:
        """Require that the owner of a slot made its key; relayed keys have no owners."""
        if self._identity is None:
            return
        roster = self._identity.roster

        def verified() -> bytes:
            if not checks.is_claimed(roster, self._doc_hash, peer):
                raise MessageError(
                    "The claim of another client's key is not its owner's."
                )
            return b"verified"

        _once((self._doc_hash, roster.digest, "claim", *peer), verified)

    # ------------------------------------------------------------------ secrets

    def secret(self, slot: int, public_key: bytes) -> bytes:
        """Return the secret with the client at a slot that has an ephemeral key."""
        other = b""
        if self._identity is not None:
            keys = self._identity.roster.keys
            if slot >= len(keys):
                raise MessageError("The roster has no such slot.")
            other = key_agreement.exchange_key(keys[slot]) if self._static else b""
        # Both ends have the same secret. Only who holds a secret key asks by its public
        # key.
        own = key_agreement.exchange_key(self.static) if other else b""
        own_end, other_end = self.public_key + own, public_key + other
        return _once(
            (own_end, other_end) if own_end < other_end else (other_end, own_end),
            lambda: key_agreement.pair_secret(
                self._ephemeral, public_key, self._static, other
            ),
        )

    def wrap(self, secret: bytes, peers: tuple[Peer, ...]) -> bytes:
        """Return a group secret sealed for each peer, all in one piece."""
        envelopes = []
        for peer in peers:
            self.require_claim(peer)
            shared = self.secret(peer.slot, peer.public_key)
            key = key_agreement.wrap_key(
                shared, self._doc_hash, self.public_key, peer.public_key
            )
            envelopes.append(key_agreement.seal(key, secret, self._doc_hash))
        return b"".join(envelopes)

    def unwrap(self, wrap: Wrap) -> bytes:
        """Return the group secret that a key distributor sealed for this session."""
        peers = self.peers(wrap.distributor)
        if len(peers) != 1:
            raise MessageError("Expected one key distributor.")
        (by,) = peers
        self.require_claim(by)
        shared = self.secret(by.slot, by.public_key)
        key = key_agreement.wrap_key(
            shared, self._doc_hash, by.public_key, self.public_key
        )
        return key_agreement.unseal(key, wrap.envelope, self._doc_hash)
