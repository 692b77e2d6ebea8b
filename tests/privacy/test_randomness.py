import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy import randomness
from flower_kmeans.privacy.randomness import Stream, token

KEY = bytes(range(32))


def blocks(key, counters):
    encryptor = Cipher(AES256(key), ECB()).encryptor()  # noqa: S305
    data = b"".join(encryptor.update(c.to_bytes(16, "big")) for c in counters)
    return np.frombuffer(data, dtype="<u8")


def test_tokens_are_fresh_and_of_the_asked_length():
    assert len(token(16)) == 16
    assert token(32) != token(32)


@pytest.mark.parametrize("n_bytes", [0, -1, 1.0, True, None])
def test_token_refuses(n_bytes):
    with pytest.raises(ConfigurationError, match="'n_bytes'"):
        token(n_bytes)


def test_everything_secret_comes_through_one_name(monkeypatch):
    monkeypatch.setattr(randomness, "_os_random", lambda n: b"\x05" * n)
    assert token(3) == b"\x05" * 3
    expected = Stream.from_key(b"\x05" * 32).words(10)
    np.testing.assert_array_equal(Stream.fresh().words(10), expected)


def test_words_are_aes_in_counter_mode_from_zero():
    np.testing.assert_array_equal(Stream.from_key(KEY).words(20), blocks(KEY, range(10)))


def test_words_do_not_depend_on_how_they_are_asked_for():
    stream = Stream.from_key(KEY)
    parts = [stream.words(n) for n in (1, 0, 4, 3, 12)]
    assert stream.position == 20
    np.testing.assert_array_equal(np.concatenate(parts), Stream.from_key(KEY).words(20))


@pytest.mark.parametrize("position", [0, 1, 77, 2**63])
def test_branches_have_counters_of_their_own_and_leave_the_main_stream_alone(position):
    stream = Stream.from_key(KEY)
    branch = list(itertools.islice(stream.branch(position), 6))
    first = (position + 1) << 64
    assert branch == [int(word) for word in blocks(KEY, range(first, first + 3))]
    assert stream.position == 0
    np.testing.assert_array_equal(stream.words(4), Stream.from_key(KEY).words(4))


@pytest.mark.parametrize("position", [-1, 2**64 - 1])
def test_branch_refuses(position):
    with pytest.raises(ConfigurationError, match="position"):
        next(Stream.from_key(KEY).branch(position))


def test_fresh_streams_differ():
    assert not np.array_equal(Stream.fresh().words(4), Stream.fresh().words(4))


def test_key_length_and_secrecy():
    with pytest.raises(ConfigurationError, match="'key'"):
        Stream.from_key(bytes(16))
    assert KEY.hex()[:8] not in repr(Stream.from_key(KEY))
    assert repr(Stream.from_key(KEY)) == "Stream(position=0)"
