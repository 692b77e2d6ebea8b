"""Keys between clients, and the group key (docs/protocol.md, section 5).

All functions are deterministic: the caller passes secrets in, 32 random bytes each. An X25519
secret key is any 32 random bytes. There is one key for each purpose and direction.
"""

import hmac
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from flower_kmeans.errors import MessageError
from flower_kmeans.secagg.hashing import DIGEST_BYTES, kdf, u32

KEY_BYTES = 32
TAG_BYTES = 16
SEAL_BYTES = 16  # how much longer sealed data is
KEY_ID_BYTES = 16
_SEAL_KEY_BYTES = 64

SecretKey = bytes | X25519PrivateKey
"""32 bytes, or what they load to: loading costs as much as an exchange."""


def load(secret: bytes) -> X25519PrivateKey:
    """Return a secret key that is loaded, for many exchanges."""
    return X25519PrivateKey.from_private_bytes(secret)


def public_key(secret: bytes) -> bytes:
    """Return the X25519 public key, 32 bytes, of a secret key of 32 bytes."""
    return load(secret).public_key().public_bytes_raw()


# Clients of one process have the same peers.
_load_public = lru_cache(maxsize=1024)(X25519PublicKey.from_public_bytes)


def agree(secret: SecretKey, public: bytes) -> bytes:
    """Return the X25519 secret, 32 bytes, that a secret key and another's public key make.

    A `MessageError` if the public key is none, or a point that gives zeros with every secret key.
    """
    try:
        own = load(secret) if isinstance(secret, bytes) else secret
        return own.exchange(_load_public(public))
    except ValueError:
        raise MessageError("A public key cannot be accepted.") from None


def pair_secret(
    ephemeral: SecretKey, their_ephemeral: bytes, static: SecretKey = b"", their_static: bytes = b""
) -> bytes:
    """Return what two client sessions have in common; with a roster, of lasting keys too."""
    # The ephemeral half protects against a later theft, the lasting half against a swapped key.
    shared = agree(ephemeral, their_ephemeral)
    return shared + agree(static, their_static) if static or their_static else shared


def ownership_tag(
    secret: SecretKey, public: bytes, doc_hash: bytes, from_slot: int, to_slot: int, vouched: bytes
) -> bytes:
    """Return the tag, 16 bytes, by which an owner of a lasting key vouches for an ephemeral one.

    Both clients compute the same tag from their lasting keys: the owner, at ``from_slot``, makes
    it; the one at ``to_slot`` compares.
    """
    key = kdf(agree(secret, public), doc_hash, b"ephemeral")
    content = u32(from_slot) + u32(to_slot) + vouched
    return hmac.digest(key, content, "sha256")[:TAG_BYTES]


def share_key(
    ikm: bytes, context: bytes, slot: int, position: int, dealer_public: bytes, member_public: bytes
) -> bytes:
    """Return the key, 64 bytes, under which a dealer's share travels to a committee member."""
    label = b"share " + u32(slot) + u32(position) + dealer_public + member_public
    return kdf(ikm, context, label, _SEAL_KEY_BYTES)


def noise_key(session_secret: bytes, context: bytes) -> bytes:
    """Return the key of a client's noise share: repeated requests repeat it, others renew it."""
    return kdf(session_secret, context, b"noise")


def wrap_key(ikm: bytes, doc_hash: bytes, distributor_public: bytes, peer_public: bytes) -> bytes:
    """Return the key, 64 bytes, under which a key distributor seals a group secret for a peer."""
    return kdf(ikm, doc_hash, b"wrap " + distributor_public + peer_public, _SEAL_KEY_BYTES)


def group_key(secret: bytes, doc_hash: bytes) -> bytes:
    """Return the group key Kg of a run, 32 bytes, given a key distributor's group secret."""
    return kdf(secret, doc_hash, b"group")


def query_key(group_key: bytes) -> bytes:
    """Return the key of the tags of queries that clients compute."""
    return kdf(group_key, bytes(DIGEST_BYTES), b"query")


def key_id(group_key: bytes, doc_hash: bytes) -> bytes:
    """Return 16 bytes by which a server sees which clients have the same group key."""
    return kdf(group_key, doc_hash, b"key id", KEY_ID_BYTES)


def sum_share_key(
    group_key: bytes, context: bytes, position: int, survivors_bitmap: bytes
) -> bytes:
    """Return the key, 64 bytes, that hides a sum-share from a blind server."""
    label = b"sum-share " + u32(position) + survivors_bitmap
    return kdf(group_key, context, label, _SEAL_KEY_BYTES)


def seal(key: bytes, data: bytes, associated: bytes) -> bytes:
    """Return encrypted and authenticated data, 16 bytes longer (AES-SIV, RFC 5297).

    There is no nonce that could repeat: equal data under one key of 64 bytes gives equal bytes, no
    more. The associated bytes are authenticated, and do not travel. Empty data cannot be sealed.
    """
    return AESSIV(key).encrypt(data, [associated])


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Return what `seal` encrypted under this key for this purpose, or raise a `MessageError`."""
    try:
        return AESSIV(key).decrypt(sealed, [associated])
    except (InvalidTag, ValueError):
        raise MessageError("A seal does not open.") from None
