"""Checks of a run before anything is sent: sizes, clips and room in sums.

A client computes the run that a document describes, so no document may demand hours of
work or gigabytes. `Algorithm.require_feasible` calls these checks.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from flower_kmeans.algorithms.weights import (
    AnyAlgorithm,
    planned_total,
    total_name,
    with_room,
)
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.release import Mechanism

if TYPE_CHECKING:
    from flower_kmeans.algorithms.base import Algorithm

LIMIT = 2**63  # sums of 64-bit words with smaller absolute values are exact
# words of a round: 32 MiB of a message, and a few times as much of a client's memory
MAX_WORDS = 2**22
MAX_RUN_WORDS = 2**27  # words of all rounds: each client sends a gigabyte
OVERFLOW_PROBABILITY = 1e-9
# parameters that determine the numbers of words
_SIZES = "n_clusters", "n_server_points", "n_rounds"


def require_sizes(algorithm: "Algorithm") -> None:
    """Require that messages and answers of a run are within their limits."""
    total = 0
    for number in range(1, algorithm.n_rounds + 1):
        # A query may be longer than the answers to it.
        ranges = algorithm.query_ranges(number).values()
        asked = sum(math.prod(each.shape) for each in ranges)
        answered = algorithm.layout(number).n_words
        words = max(answered, asked)
        total = total + answered
        if words > MAX_WORDS or total > MAX_RUN_WORDS:
            sizes = [
                f"{name}={getattr(algorithm, name)}"
                for name in _SIZES
                if hasattr(algorithm, name)
            ]
            raise ConfigurationError(
                f"Expected at most {MAX_WORDS} words in a message, and {MAX_RUN_WORDS} in all "
                f"answers of a client. Got {words} in round {number}, and {total} up to it, "
                f"with {algorithm.domain.n_features} columns, {', '.join(sizes)}."
            )


def require_visible_clips(algorithm: "Algorithm") -> None:
    """Require that a clipped client can still change every word by a step of the grid."""
    if algorithm.clip is None:
        return
    for number in range(1, algorithm.n_rounds + 1):
        sensitivities = algorithm.block_sensitivities(number)
        for release in algorithm.releases(number):
            least = min(sensitivities[name] for name in release.blocks)
            clip = algorithm.clipping.of(release)
            if least > 0 and clip * least < 1:
                raise ConfigurationError(
                    f"Expected a clip of the release {release.name!r} of at least "
                    f"{1 / least:.3g}, one step of the grid. "
                    f"Got {clip!r} instead."
                )


def require_capacity(
    algorithm: "Algorithm", noise_factor: float = 1.0, limit: int = LIMIT
) -> None:
    """Require that words of sums stay below the limit, except with probability 1e-9.

    ``noise_factor`` is the largest ratio of the noise's standard deviation to the planned
    one, if more clients add noise shares than planned (docs/guarantees, Theorems 10 and
    41). Below the limit the secure sum is exact.

    Raises
    ------
    ConfigurationError
        If a word could reach the limit.
    """
    total = planned_total(algorithm)
    if total is None:
        return
    # A client that adds means adds as much as one record, and there may be more clients
    # than records. With weights, a record or a person counts as the full weight.
    most = max(total, algorithm.n_clients or 0)
    weight = algorithm.full_weight or 1
    tails = _tails(algorithm)
    for number, releases in enumerate(algorithm.plan().rounds, start=1):
        sensitivities = algorithm.block_sensitivities(number)
        if not releases:
            # Without noise a word is only a sum over records.
            unit = max(sensitivities.values()) * weight
            _require_room(algorithm, "sums", most * unit, 0.0, limit)
        for release in releases:
            # A word of one record is at most the sensitivity of its block.
            unit = max(sensitivities[name] for name in release.blocks) * weight
            noise = release.noise_multiplier * unit * tails[release.mechanism]
            noise = noise * noise_factor * algorithm.clipping.of(release)
            _require_room(algorithm, release.name, most * unit + noise, noise, limit)


def with_capacity(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """Return the algorithm with the largest full weight whose sums keep their limit."""

    def remade(full_weight: int) -> AnyAlgorithm:
        return replace(algorithm, full_weight=full_weight)

    return with_room(algorithm, require_capacity, remade)


def _tails(algorithm: "Algorithm") -> dict[Mechanism, float]:
    """Return the largest noise of a word by mechanism, in units of its scale."""
    # The bound is a union bound over both tails of all words of the run.
    rounds = range(1, algorithm.n_rounds + 1)
    n_words = sum(algorithm.layout(number).n_words for number in rounds)
    logarithm = math.log(2 * n_words / OVERFLOW_PROBABILITY)
    return {"gaussian": math.sqrt(2 * logarithm), "laplace": logarithm}


def _require_room(
    algorithm: "Algorithm", name: str, bound: float, noise: float, limit: int
) -> None:
    """Require that the bound of a release's words, with noise, is below the limit."""
    require_below(
        bound,
        limit,
        f"They come from {total_name(algorithm.budget)}={planned_total(algorithm)} and noise of "
        f"up to {noise:.3g} units in the release {name!r} at fraction_bits="
        f"{algorithm.fraction_bits}: take fewer fraction_bits or a larger epsilon.",
    )


def require_below(bound: float, limit: int = LIMIT, explanation: str = "") -> None:
    """Require that a sum with words up to ``bound``, with noise, stays below ``limit``.

    The error's message ends with ``explanation``.

    Raises
    ------
    ConfigurationError
        If the bound reaches the limit, is negative or is NaN.
    """
    # A comparison with NaN is false, so NaN is refused too.
    if 0 <= bound < limit:
        return
    shown = f"2^{math.log2(bound):.1f}" if 0 < bound < math.inf else f"{bound}"
    message = (
        f"Expected sums below 2^{math.log2(limit):g}, so that they fit into the words of a sum. "
        f"Got sums up to {shown} instead."
    )
    raise ConfigurationError(f"{message} {explanation}".rstrip())
