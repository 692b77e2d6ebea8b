"""Bytes that are nearly a message, and other writings of the same message."""

import struct
from collections.abc import Iterator
from random import Random

import msgspec

NESTED = (b"\x91", b"\x81\xa1a", b"\x81\xa4body", b"\x81\x91")
"""Openings of MessagePack values that hold another one."""


def near_bytes(rng: Random, data: bytes) -> bytes:
    """Return bytes with a bit changed, or some lost, added, repeated or exchanged."""
    if not data:
        return b"\0"
    at, kind = rng.randrange(len(data)), rng.randrange(6)
    if kind <= 1:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 2:
        return data[:at]
    if kind == 3:
        return data + rng.randbytes(rng.choice((1, 8, 32)))
    if kind == 4:
        return data[:at] + data
    return data[:at] + rng.randbytes(min(8, len(data) - at)) + data[at + 8 :]


def fields_of(data: bytes) -> dict[str, bytes]:
    """Return the encoded values of a struct's fields by their names."""
    fields = msgspec.msgpack.decode(data, type=dict[str, msgspec.Raw])
    return {name: bytes(value) for name, value in fields.items()}


def write(pairs: list[tuple[str, bytes]], count: int | None = None) -> bytes:
    """Return a mapping of encoded values, repeated names and false counts included."""
    n = len(pairs) if count is None else count
    head = bytes([0x80 | n]) if n < 16 else struct.pack(">BH", 0xDE, n)
    return head + b"".join(
        msgspec.msgpack.encode(name) + value for name, value in pairs
    )


def wider(value: bytes) -> Iterator[bytes]:
    """Return longer ways to write the same MessagePack value, at its outermost level."""
    first = value[0]
    if first < 0x80:
        yield b"\xcc" + value
        yield b"\xd3" + struct.pack(">q", first)
        yield b"\xca" + struct.pack(">f", first)
        yield b"\xcb" + struct.pack(">d", first)
    elif first == 0xCC:
        yield b"\xcd\0" + value[1:]
    elif 0x90 <= first < 0xA0:
        yield b"\xdc" + struct.pack(">H", first & 15) + value[1:]
    elif 0xA0 <= first < 0xC0:
        yield b"\xd9" + bytes([first & 31]) + value[1:]
        yield b"\xc4" + bytes([first & 31]) + value[1:]
    elif 0x80 <= first < 0x90:
        yield b"\xde" + struct.pack(">H", first & 15) + value[1:]
    elif first == 0xC4:
        yield b"\xc5\0" + value[1:]
        yield b"\xc6\0\0\0" + value[1:]
        yield b"\xd9" + value[1:]


def second_encodings(data: bytes) -> Iterator[bytes]:
    """Return other MessagePack texts that a lenient reader takes for the same struct."""
    return (other for other in _encodings(data) if other != data)


def _encodings(data: bytes) -> Iterator[bytes]:
    pairs = list(fields_of(data).items())
    yield write(pairs[::-1])
    yield write([*pairs[1:], pairs[0]])
    yield write([*pairs, pairs[-1]])
    yield write([pairs[0], *pairs])
    yield write(pairs, len(pairs) + 1)
    yield write(pairs, len(pairs) - 1)
    yield write([*pairs, ("num_examples", b"\x05")])
    yield b"\xde" + struct.pack(">H", len(pairs)) + data[1 if len(pairs) < 16 else 3 :]
    yield data + b"\0"
    yield data + data
    yield data[:-1]
    for at, (name, value) in enumerate(pairs):
        for other in (*wider(value), b"\xc0"):
            yield write([*pairs[:at], (name, other), *pairs[at + 1 :]])


def bombs(depth: int) -> Iterator[bytes]:
    """Return short bytes that announce much, or that nest deeply."""
    for head in (b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"):
        for size in (2**32 - 1, 2**27):
            long = head + struct.pack(">I", size) + b"\1"
            yield long
            yield b"\x81\xa1a" + long
    for opening in NESTED:
        yield opening * depth + b"\1"
        yield b"\x81\xa4body" + opening * depth + b"\1"
        yield opening * depth
