"""Hashes, keys and seals (docs/protocol.md, sections 2 and 5).

Every digest and key has a separate label, so that no value for one purpose equals
another's. All functions are deterministic: the caller passes secrets in, 32 random
bytes each. An X25519 secret key is any 32 random bytes, and so is the seed of a lasting
Ed25519 key.
"""

import hashlib
import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from flower_kmeans.arrays import WordArray
from flower_kmeans.errors import MessageError

VERSION = b"flower-kmeans/3 "
DIGEST_BYTES = 32

u32 = struct.Struct("<I").pack  # an integer in [0, 2^32) as four bytes, little-endian
u64 = struct.Struct("<Q").pack  # an integer in [0, 2^64) as eight bytes, little-endian
_SHA256 = hashes.SHA256()
_COUNTER = struct.Struct(">QQ")

KEY_BYTES = 32
CLAIM_BYTES = 64
SEAL_BYTES = 16  # how much longer sealed data is
KEY_ID_BYTES = 16
_SEAL_KEY_BYTES = 64

_P = 2**255 - 19  # the prime of both curves
_SIGN = 2**255  # the top bit of an Ed25519 key: the sign of x
_D = -121665 * pow(121666, -1, _P) % _P  # of the curve -x^2 + y^2 = 1 + d x^2 y^2
_Y_OF_ORDER_8 = int(
    "7a03ac9277fdc74ec6cc392cfa53202a0f67100d760b3cba4fd84d3d706a17c7", 16
)
_SMALL_ORDER = (0, 1, _P - 1, _Y_OF_ORDER_8, _P - _Y_OF_ORDER_8)  # y of 8 points
_PROBE = X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES))

SecretKey = bytes | X25519PrivateKey
"""32 bytes, or what they load to: loading costs as much as an exchange."""


# ------------------------------------------------------------------------ hashes, words


def H(label: bytes, *parts: bytes | memoryview) -> bytes:  # noqa: N802 (the protocol's name)
    """Return the SHA-256 digest of parts, each after its length, for a purpose.

    The label holds no zero byte. A memoryview must be contiguous with one-byte items.
    """
    return begin_hash(label, *parts).digest()


def begin_hash(label: bytes, *parts: bytes | memoryview) -> "hashlib._Hash":
    """Return the hash object of `H`, for further parts, each after its length."""
    digest = hashlib.sha256(VERSION + label + b"\0")
    for part in parts:
        digest.update(u64(len(part)))
        digest.update(part)
    return digest


def kdf(key: bytes, salt: bytes, label: bytes, length: int = DIGEST_BYTES) -> bytes:
    """Return a key derived by HKDF-SHA256 (RFC 5869) for one purpose and salt."""
    info = VERSION + label
    derivation = HKDF(algorithm=_SHA256, length=length, salt=salt, info=info)
    return derivation.derive(key)


def words(key: bytes, stream: int, length: int) -> NDArray[np.uint64]:
    """Return words (length,), uint64, of a stream.

    They are AES-256-CTR from the counter block ``u64be(stream) u64be(0)``.
    """
    return word_drawer(key, length)(stream)


def word_drawer(key: bytes, length: int) -> Callable[[int], NDArray[np.uint64]]:
    """Return a function that draws streams with one cipher, into one memory."""
    # Counter mode turns zeros into the stream itself; within 2^64 blocks no stream
    # reaches another.
    counter_mode = modes.CTR(bytes(16))
    cipher = Cipher(algorithms.AES(key), counter_mode).encryptor()
    zeros = bytes(8 * length)
    # the cipher needs that much room
    buffer = np.empty(8 * length + 15, dtype=np.uint8)
    memory = memoryview(buffer.data)
    vector = buffer[: 8 * length].view("<u8")

    def draw(stream: int) -> WordArray:
        cipher.reset_nonce(_COUNTER.pack(stream, 0))
        cipher.update_into(zeros, memory)
        # a copy on big-endian processors only
        return vector.astype(np.uint64, copy=False)

    return draw


# ------------------------------------------------------------------------------- X25519


def load(secret: bytes) -> X25519PrivateKey:
    """Return a secret key that is loaded, for many exchanges."""
    return X25519PrivateKey.from_private_bytes(secret)


def public_key(secret: bytes) -> bytes:
    """Return the X25519 public key, 32 bytes, of a secret key of 32 bytes."""
    return load(secret).public_key().public_bytes_raw()


@lru_cache(maxsize=1024)  # clients of one process have the same peers
def _load_public(public: bytes) -> X25519PublicKey:
    # X25519 would take 2^255 - 19 + u for u: one key would have two spellings.
    if int.from_bytes(public, "little") >= _P:
        raise ValueError
    return X25519PublicKey.from_public_bytes(public)


def is_acceptable(public: bytes) -> bool:
    """Return whether an ephemeral public key has its one spelling and gives secrets."""
    try:
        agree(_PROBE, public)
    except MessageError:
        return False
    return True


def agree(secret: SecretKey, public: bytes) -> bytes:
    """Return the X25519 secret, 32 bytes, of a secret key and another's public key.

    A `MessageError` if the public key is none, is spelt in another way than the one
    below 2^255 - 19, or is a point that gives zeros with every secret key.
    """
    try:
        own = load(secret) if isinstance(secret, bytes) else secret
        return own.exchange(_load_public(public))
    except ValueError:
        raise MessageError("A public key cannot be accepted.") from None


def pair_secret(
    ephemeral: SecretKey,
    their_ephemeral: bytes,
    static: SecretKey = b"",
    their_static: bytes = b"",
) -> bytes:
    """Return the common secret of two client sessions.

    With a roster it is of lasting keys, too.
    """
    # The ephemeral half protects against a later theft, the lasting half against a
    # swapped key.
    shared = agree(ephemeral, their_ephemeral)
    if static or their_static:
        return shared + agree(static, their_static)
    return shared


# ------------------------------------------------------------------------- lasting keys


def lasting_key(seed: bytes) -> bytes:
    """Return the lasting Ed25519 public key, 32 bytes, of a seed."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def y_of(lasting: bytes) -> int:
    """Return the y coordinate of a lasting public key.

    A `MessageError` if it is not below the prime, or is that of a point of small order:
    such a key would verify signatures that nobody made.
    """
    y = int.from_bytes(lasting, "little") % _SIGN
    if len(lasting) != KEY_BYTES or y >= _P or y in _SMALL_ORDER:
        raise MessageError("A lasting key cannot be accepted.")
    return y


def is_on_curve(lasting: bytes) -> bool:
    """Return whether a lasting public key is a point; others verify no signature."""
    square = y_of(lasting) ** 2 % _P
    # x^2 is the quotient of these two: the product is a square exactly if the quotient
    # is. Euler's criterion says whether it is.
    product = (square - 1) * (_D * square + 1)
    return pow(product, (_P - 1) // 2, _P) == 1


def exchange_secret(seed: bytes) -> bytes:
    """Return the X25519 secret key of a seed, by the usual conversion."""
    return hashlib.sha512(seed).digest()[:KEY_BYTES]


@lru_cache(maxsize=2**14)  # each takes as long as half an exchange
def exchange_key(lasting: bytes) -> bytes:
    """Return the X25519 public key, 32 bytes, of a lasting public key."""
    y = y_of(lasting)
    u = (1 + y) * pow(1 - y, -1, _P) % _P
    return u.to_bytes(KEY_BYTES, "little")


def _claimed(doc_hash: bytes, slot: int, node_id: int, ephemeral: bytes) -> bytes:
    return H(b"claim", doc_hash, u32(slot), u64(node_id), ephemeral)


def claim(
    seed: bytes, doc_hash: bytes, slot: int, node_id: int, ephemeral: bytes
) -> bytes:
    """Return a slot owner's claim, 64 bytes, for a node and an ephemeral key."""
    content = _claimed(doc_hash, slot, node_id, ephemeral)
    return Ed25519PrivateKey.from_private_bytes(seed).sign(content)


def is_claim(
    signature: bytes,
    lasting: bytes,
    doc_hash: bytes,
    slot: int,
    node_id: int,
    ephemeral: bytes,
) -> bool:
    """Return whether a claim is the slot owner's, for this run, node and key."""
    content = _claimed(doc_hash, slot, node_id, ephemeral)
    try:
        Ed25519PublicKey.from_public_bytes(lasting).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


# ------------------------------------------------------------------------- derived keys


def share_key(
    ikm: bytes,
    context: bytes,
    slot: int,
    position: int,
    dealer_public: bytes,
    member_public: bytes,
) -> bytes:
    """Return the key, 64 bytes, that seals a dealer's share for a committee member."""
    label = b"share " + u32(slot) + u32(position) + dealer_public + member_public
    return kdf(ikm, context, label, _SEAL_KEY_BYTES)


def noise_key(session_secret: bytes, context: bytes) -> bytes:
    """Return the key of a client's noise share.

    A repeated request repeats the key, another one has another key.
    """
    return kdf(session_secret, context, b"noise")


def wrap_key(
    ikm: bytes, doc_hash: bytes, distributor_public: bytes, peer_public: bytes
) -> bytes:
    """Return the key, 64 bytes, with which a key distributor seals a group secret."""
    label = b"wrap " + distributor_public + peer_public
    return kdf(ikm, doc_hash, label, _SEAL_KEY_BYTES)


def group_key(secret: bytes, doc_hash: bytes) -> bytes:
    """Return the group key Kg of a run, 32 bytes, from a distributor's secret."""
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


# -------------------------------------------------------------------------------- seals


def seal(key: bytes, data: bytes, associated: bytes) -> bytes:
    """Return encrypted and authenticated data, 16 bytes longer (AES-SIV, RFC 5297).

    There is no nonce that could repeat: equal data under one key of 64 bytes gives
    equal bytes, no more. The associated bytes are authenticated, and do not travel.
    Empty data cannot be sealed.
    """
    return AESSIV(key).encrypt(data, [associated])


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Return the data that `seal` encrypted, or raise a `MessageError`.

    Key and associated bytes must be the same.
    """
    try:
        return AESSIV(key).decrypt(sealed, [associated])
    except (InvalidTag, ValueError):
        raise MessageError("A seal does not open.") from None
