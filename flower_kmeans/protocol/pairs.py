"""The secrets that a client session shares with other clients (docs/protocol.md, section 5).

Whatever is wrong with another client's key, claim or envelope is a `MessageError`.
"""

import hashlib
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import checks
from flower_kmeans.protocol.committee import Committee
from flower_kmeans.protocol.messages import Peer, Wrap, read_claims, read_rows
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.protocol.shared import NO_SHARED_WORK, SharedWork
from flower_kmeans.secagg import primitives


class Pairs:
    """Secrets that a client session shares with others.

    Parameters
    ----------
    doc_hash : bytes
        SHA-256 of the run document.
    session : ClientSession
        The client's own session.
    identity : Identity, optional
        The client's lasting key, for keys of a roster.
    shared : SharedWork
        Keeps secrets and verified claims for the clients of a simulation, which meet in
        every round: X25519 and signatures are slow.
    """

    def __init__(
        self,
        doc_hash: bytes,
        session: ClientSession,
        identity: Identity | None,
        shared: SharedWork = NO_SHARED_WORK,
    ) -> None:
        self._doc_hash = doc_hash
        self._identity = identity
        self._shared = shared
        static = checks.static_secret(identity)
        self._secret = session.ephemeral
        self._static = primitives.load(static) if static else b""
        self.static = b"" if identity is None else identity.public
        self._name = hashlib.sha256(doc_hash + session.ephemeral + static).digest()
        self.public_key = shared.secret(
            (self._name, "public key"),
            lambda: primitives.public_key(session.ephemeral),
        )

    @cached_property
    def _ephemeral(self) -> X25519PrivateKey:
        """The session's secret key, which most messages do not need."""
        return primitives.load(self._secret)

    # ------------------------------------------------------------------ claims

    def claim(self, node_id: int) -> bytes:
        """Return the claim of the own slot for a node and the session's key; empty if relayed."""
        if self._identity is None:
            return b""
        return primitives.claim(
            self._identity.seed,
            self._doc_hash,
            self._identity.slot,
            node_id,
            self.public_key,
        )

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
                slot = committee.slots[position]
                public_key = committee.public_keys[position]
                self.require_claim(Peer(slot, public_key, node_id, claim))
            return b"verified"

        # All clients of a round are sent the same list.
        keys = committee.slots, committee.public_keys
        self._shared.secret((self._doc_hash, digest, "claims", *keys, claims), verified)

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

        self._shared.secret((self._doc_hash, roster.digest, "claim", *peer), verified)

    # ------------------------------------------------------------------ secrets

    def secret(self, slot: int, public_key: bytes) -> bytes:
        """Return the secret with the client at a slot that has an ephemeral key."""
        other = b""
        if self._identity is not None:
            keys = self._identity.roster.keys
            if slot >= len(keys):
                raise MessageError("The roster has no such slot.")
            other = primitives.exchange_key(keys[slot]) if self._static else b""
        # Both ends have the same secret. Only who holds a secret key asks by its public
        # key.
        own = primitives.exchange_key(self.static) if other else b""
        own_end = self.public_key + own
        other_end = public_key + other
        ends = (own_end, other_end) if own_end < other_end else (other_end, own_end)

        def agreed() -> bytes:
            return primitives.pair_secret(
                self._ephemeral, public_key, self._static, other
            )

        return self._shared.secret(ends, agreed)

    def wrap(self, secret: bytes, peers: tuple[Peer, ...]) -> bytes:
        """Return a group secret sealed for each peer, all in one piece."""
        envelopes = []
        for peer in peers:
            self.require_claim(peer)
            shared = self.secret(peer.slot, peer.public_key)
            key = primitives.wrap_key(
                shared, self._doc_hash, self.public_key, peer.public_key
            )
            envelopes.append(primitives.seal(key, secret, self._doc_hash))
        return b"".join(envelopes)

    def unwrap(self, wrap: Wrap) -> bytes:
        """Return the group secret that a key distributor sealed for this session."""
        peers = self.peers(wrap.distributor)
        if len(peers) != 1:
            raise MessageError("Expected one key distributor.")
        (by,) = peers
        self.require_claim(by)
        shared = self.secret(by.slot, by.public_key)
        key = primitives.wrap_key(
            shared, self._doc_hash, by.public_key, self.public_key
        )
        return primitives.unseal(key, wrap.envelope, self._doc_hash)
