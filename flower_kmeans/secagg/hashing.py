"""Hashes and key derivation, separated by purpose (docs/protocol.md, section 2).

Every digest and every key of the protocol comes from here, under a label of its own, so a value
made for one purpose never equals one made for another.
"""

import hashlib
import struct

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION = b"flower-kmeans/1 "
DIGEST_BYTES = 32

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def u32(value: int) -> bytes:
    """Return an integer in [0, 2^32) as four bytes, little-endian."""
    return _U32.pack(value)


def u64(value: int) -> bytes:
    """Return an integer in [0, 2^64) as eight bytes, little-endian."""
    return _U64.pack(value)


def H(label: bytes, *parts: bytes | memoryview) -> bytes:  # noqa: N802 (the protocol's name)
    """Return the SHA-256 digest of labelled parts.

    Each part is preceded by its length, so no two lists of parts give the same input.

    Parameters
    ----------
    label : bytes
        The purpose. Holds no zero byte.
    *parts : bytes or memoryview
        What is hashed. A memoryview must be contiguous with one-byte items; it is not copied.

    Returns
    -------
    bytes
        32 bytes.
    """
    digest = hashlib.sha256(VERSION + label + b"\0")
    for part in parts:
        digest.update(_U64.pack(len(part)))
        digest.update(part)
    return digest.digest()


def kdf(key: bytes, salt: bytes, label: bytes, length: int = DIGEST_BYTES) -> bytes:
    """Return a key derived by HKDF-SHA256 (RFC 5869) for one purpose.

    Parameters
    ----------
    key : bytes
        Input key material.
    salt : bytes
        What the derived key is bound to: a document's or a context's hash.
    label : bytes
        The purpose; the info string of HKDF is the protocol's version and this label.
    length : int, default: 32
        Length of the derived key in bytes.
    """
    info = VERSION + label
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(key)
