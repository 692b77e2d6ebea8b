"""Make noise_vectors.json: what every sampler makes of the words of a key.

    python tests/privacy/make_noise_vectors.py

Written from the definitions alone, one number at a time and with 320 bits of every
uniform, so that it shares nothing with the vectorised samplers but the law and the
order of the words.
"""

import json
from fractions import Fraction
from math import floor, sqrt
from pathlib import Path

import mpmath
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

KEY = bytes(range(32))
SCALES = [0.0, 0.25, 1.0, 3.75, 100.0, 65536.0, 2.5e9, 2.0**41, 2.0**54] * 4
EXTRA_WORDS = 4


def keystream(key, number, n_words):
    encryptor = Cipher(
        AES256(key), CTR(number.to_bytes(8, "big") + bytes(8))
    ).encryptor()
    data = encryptor.update(bytes(8 * n_words))
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


def uniform(key, main, position, head_bits):
    """The uniform that begins with the low bits of a word, and goes on in the word's branch."""
    value = main[position] >> (64 - head_bits)
    for word in keystream(key, position + 1, EXTRA_WORDS):
        value = value << 64 | word
    return (mpmath.mpf(value) + mpmath.mpf(0.5)) / mpmath.mpf(2) ** (
        head_bits + 64 * EXTRA_WORDS
    )


def rounded(key, scales, magnitude):
    """Yield rounded noise whose magnitude, at scale 1, is that of the probability of both tails."""
    main = keystream(key, 0, len(scales))
    for i, scale in enumerate(scales):
        size = mpmath.floor(scale * magnitude(uniform(key, main, i, 63)) + 0.5)
        yield int(size) * (-1 if main[i] & 1 else 1)


def gaussian_magnitude(both_tails):
    return mpmath.sqrt(2) * mpmath.erfinv(1 - both_tails)


def laplace_magnitude(both_tails):
    return -mpmath.log(both_tails)


def discrete_gaussian(key, variances):
    main = keystream(key, 0, 64 * len(variances))
    noise = [0] * len(variances)
    pending = [i for i, variance in enumerate(variances) if variance]
    position = 0
    while pending:
        accepted = {}
        for i in pending:
            for _ in range(1 + 64 // len(pending)):
                variance = Fraction(variances[i])
                scale = int(floor(sqrt(variances[i])) + 1.0)
                size = int(
                    mpmath.floor(-scale * mpmath.log(uniform(key, main, position, 63)))
                )
                exponent = (size - variance / scale) ** 2 / (2 * variance)
                chance = mpmath.exp(
                    -mpmath.mpf(exponent.numerator) / exponent.denominator
                )
                negative = main[position] & 1
                if uniform(key, main, position + 1, 64) < chance and not (
                    negative and size == 0
                ):
                    accepted.setdefault(i, -size if negative else size)
                position += 2
        for i, number in accepted.items():
            noise[i] = number
        pending = [i for i in pending if i not in accepted]
    return noise


def main():
    variances = [scale * scale for scale in SCALES]
    with mpmath.workprec(640):
        rows = (
            ("rounded-gaussian/1", SCALES, rounded(KEY, SCALES, gaussian_magnitude)),
            ("rounded-laplace/1", SCALES, rounded(KEY, SCALES, laplace_magnitude)),
            ("discrete-gaussian/2", variances, discrete_gaussian(KEY, variances)),
        )
        vectors = [
            {
                "sampler": name,
                "argument": [x.hex() for x in argument],
                "noise": list(noise),
            }
            for name, argument, noise in rows
        ]
    path = Path(__file__).with_name("noise_vectors.json")
    path.write_text(json.dumps({"key": KEY.hex(), "vectors": vectors}) + "\n")


if __name__ == "__main__":
    main()
