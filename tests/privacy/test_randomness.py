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


@pytest.mark.claim("guarantees", "9")
def test_everything_secret_comes_through_one_name(monkeypatch):
    assert len(token(32)) == 32
    assert token(32) != token(32)
    monkeypatch.setattr(randomness, "_os_random", lambda n: b"\x05" * n)
    assert token(3) == b"\x05" * 3
    expected = Stream.from_key(b"\x05" * 32).words(10)
    np.testing.assert_array_equal(Stream.fresh().words(10), expected)


def test_words_are_aes_in_counter_mode_however_many_are_taken_at_once():
    stream = Stream.from_key(KEY)
    parts = [stream.words(n) for n in (1, 0, 4, 3, 12)]
    assert stream.position == 20
    np.testing.assert_array_equal(np.concatenate(parts), blocks(KEY, range(10)))


@pytest.mark.parametrize("position", [0, 1, 77, 2**63])
def test_branches_have_other_counters_and_leave_the_main_stream_alone(position):
    stream = Stream.from_key(KEY)
    branch = list(itertools.islice(stream.branch(position), 6))
    first = (position + 1) << 64
    assert branch == [int(word) for word in blocks(KEY, range(first, first + 3))]
    assert stream.position == 0
    np.testing.assert_array_equal(stream.words(4), Stream.from_key(KEY).words(4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((lambda n=n: token(n), "'n_bytes'") for n in (0, -1, 1.0, True, None)),
        (lambda: next(Stream.from_key(KEY).branch(-1)), "position"),
        (lambda: next(Stream.from_key(KEY).branch(2**64 - 1)), "position"),
        (lambda: Stream.from_key(bytes(16)), "'key'"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()


def test_a_key_reaches_no_log():
    assert repr(Stream.from_key(KEY)) == "Stream(position=0)"
