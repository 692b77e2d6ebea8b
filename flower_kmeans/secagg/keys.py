"""The group key: from a file, or sealed for every member (docs/protocol.md, section 5).

All functions are deterministic. The caller passes fresh secrets in, 32 bytes each from the
operating system's source; an X25519 secret key is any 32 random bytes.
"""

from collections.abc import Iterable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from flower_kmeans.errors import MessageError
from flower_kmeans.secagg.hashing import kdf

KEY_BYTES = 32
LEADER_BYTES = 2 * KEY_BYTES
ENVELOPE_BYTES = KEY_BYTES + 16
KEY_ID_BYTES = 8

# Every envelope has a key of its own, so a fixed nonce is never used twice under one key.
_NONCE = bytes(12)
_UNACCEPTABLE = "A public key or an envelope cannot be accepted."


def group_key(secret: bytes, doc_hash: bytes) -> bytes:
    """Return the group key Kg of a run, 32 bytes.

    Parameters
    ----------
    secret : bytes
        The content of the group key file, or what `open_envelope` returned.
    doc_hash : bytes
        Hash of the run document: each run has a key of its own.
    """
    return kdf(secret, doc_hash, b"group")


def key_id(secret: bytes, doc_hash: bytes) -> bytes:
    """Return eight bytes by which a server sees whether clients hold the same key file."""
    return kdf(secret, doc_hash, b"key id", KEY_ID_BYTES)


def public_key(secret: bytes) -> bytes:
    """Return the X25519 public key, 32 bytes, of a secret key of 32 bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def require_public_key(public: bytes) -> None:
    """Require a public key of which no secret key makes the all-zero result.

    Raises
    ------
    MessageError
        If it is one of the few points that do so with every secret key.
    """
    _exchange(X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES)), public)


def make_envelopes(
    group_secret: bytes,
    public_keys: Iterable[bytes],
    doc_hash: bytes,
    ephemeral: bytes,
    static: bytes | None = None,
) -> tuple[bytes, dict[bytes, bytes]]:
    """Seal a group secret for every member.

    Parameters
    ----------
    group_secret : bytes
        32 fresh random bytes, once per life of the leader.
    public_keys : iterable of bytes
        The members' X25519 public keys, 32 bytes each.
    doc_hash : bytes
        Hash of the run document.
    ephemeral : bytes
        32 fresh random bytes, used for this call only.
    static : bytes, optional
        Rosters: the leader's lasting secret key, to which members pin their trust.

    Returns
    -------
    leader : bytes
        Ephemeral public key, then the leader's public key (without a roster: the ephemeral one
        again); 64 bytes.
    envelopes : dict of bytes to bytes
        The envelope of each public key, 48 bytes.

    Raises
    ------
    MessageError
        If a public key is not acceptable.
    """
    ephemeral_key = X25519PrivateKey.from_private_bytes(ephemeral)
    static_key = None if static is None else X25519PrivateKey.from_private_bytes(static)
    ephemeral_public = ephemeral_key.public_key().public_bytes_raw()
    leader = ephemeral_public + (
        ephemeral_public if static_key is None else static_key.public_key().public_bytes_raw()
    )
    envelopes = {}
    for member in public_keys:
        shared = _exchange(ephemeral_key, member)
        if static_key is not None:
            shared += _exchange(static_key, member)
        key = _envelope_key(shared, doc_hash, leader, member, pinned=static_key is not None)
        envelopes[member] = AESGCM(key).encrypt(_NONCE, group_secret, doc_hash)
    return leader, envelopes


def open_envelope(
    envelope: bytes, leader: bytes, secret: bytes, doc_hash: bytes, *, pinned: bool = False
) -> bytes:
    """Return the group secret that an envelope holds.

    Parameters
    ----------
    envelope : bytes
        48 bytes.
    leader : bytes
        Ephemeral and lasting public key of the leader, 64 bytes.
    secret : bytes
        The member's secret key.
    doc_hash : bytes
        Hash of the run document.
    pinned : bool, default: False
        Whether the envelope was made with the leader's lasting key. The caller has found that key
        on its own roster.

    Raises
    ------
    MessageError
        If the envelope was not made for this member, this run and this leader.
    """
    ephemeral_public, leader_public = leader[:KEY_BYTES], leader[KEY_BYTES:]
    if len(leader) != LEADER_BYTES or (not pinned and leader_public != ephemeral_public):
        raise MessageError(_UNACCEPTABLE)
    own_key = X25519PrivateKey.from_private_bytes(secret)
    shared = _exchange(own_key, ephemeral_public)
    if pinned:
        shared += _exchange(own_key, leader_public)
    member = own_key.public_key().public_bytes_raw()
    key = _envelope_key(shared, doc_hash, leader, member, pinned=pinned)
    try:
        return AESGCM(key).decrypt(_NONCE, envelope, doc_hash)
    except (InvalidTag, ValueError):
        raise MessageError(_UNACCEPTABLE) from None


def _exchange(own: X25519PrivateKey, other: bytes) -> bytes:
    try:
        # An all-zero result, which some points force whatever the secret, is an error.
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise MessageError(_UNACCEPTABLE) from None


def _envelope_key(
    shared: bytes, doc_hash: bytes, leader: bytes, member: bytes, *, pinned: bool
) -> bytes:
    kind = b"envelope pinned " if pinned else b"envelope open "
    return kdf(shared, doc_hash, kind + leader + member)
