"""What a server asks, and the result that it sends, where clients do not compute either.

Under an oblivious server, and for algorithms with cheap updates, clients compute from the sums what
is asked next (`Run.server_asks`). Otherwise they are sent each question, whose hash stands in the
context of the round, and at the end the result (docs/protocol.md, section 6). No word of a sum
decides about what is read here.
"""

from dataclasses import dataclass

import numpy as np

from flower_kmeans.algorithms.base import Algorithm, FloatArray, Query, State
from flower_kmeans.domain import Domain
from flower_kmeans.errors import ConfigurationError, MessageError, RunError
from flower_kmeans.federation.arrays import decode_arrays, encode_arrays
from flower_kmeans.federation.run import Run

Result = tuple[FloatArray, FloatArray]
"""Centroids (k, d) in the user's units, and noisy sizes (k,)."""


@dataclass(frozen=True)
class Asked:
    """The question of a round as the server asks it.

    Attributes
    ----------
    question : Query
    data : bytes
        As it travels: one object for all members. Empty where clients compute the question.
    """

    question: Query
    data: bytes = b""


# --------------------------------------------------------------------------- the server's side


def ask(run: Run, state: State) -> Asked:
    """Return the question of the round after a state.

    Parameters
    ----------
    run : Run
        With the server's own algorithm, which may hold what never travels.
    state : State

    Raises
    ------
    RunError
        If the question has no encoding, or clients would refuse it.
    """
    algorithm = run.algorithm
    question = algorithm.query(state)
    try:
        data = encode_arrays(question.arrays)
        _require_answerable(run, question)
    except (ConfigurationError, MessageError) as error:
        raise RunError(f"Round {question.round} cannot be asked for. {error}") from None
    return Asked(question, data)


def tell(run: Run, state: State) -> bytes:
    """Return the result as it travels.

    Raises
    ------
    RunError
        If there is none, or clients would refuse it.
    """
    centroids, counts = run.algorithm.centroids(state), run.algorithm.counts(state)
    if centroids is None or counts is None:
        raise RunError("Expected centroids and counts after the last round. Got none.")
    try:
        data = encode_arrays({"centroids": centroids, "counts": counts})
        _read_result(run.algorithm, data)
    except MessageError as error:
        raise RunError(f"The result cannot be told to the clients. {error}") from None
    return data


# --------------------------------------------------------------------------- the client's side


def read_question(run: Run, t: int, data: bytes) -> Query | None:
    """Read the question of round ``t``; ``None`` where it follows from the transcript.

    Whether it can be answered is not said yet (`require_answerable`).

    Raises
    ------
    MessageError
        If the bytes are no question, or there are some although clients compute it, or none
        although they do not.
    """
    if run.server_asks != bool(data):
        raise MessageError("Expected a question exactly where clients do not compute it.")
    return Query(t, decode_arrays(data)) if data else None


def require_answerable(run: Run, question: Query) -> None:
    """Require a question that keeps the algorithm's rules, under which its units hold.

    Raises
    ------
    MessageError
        If it breaks one, or its noise cannot be drawn in shares.
    """
    try:
        _require_answerable(run, question)
    except ConfigurationError:
        raise MessageError("The noise of a question cannot be drawn in shares.") from None


def read_result(run: Run, data: bytes) -> Result | None:
    """Read the result that a server tells; ``None`` where it follows from the transcript.

    Raises
    ------
    MessageError
        If the bytes are no result of the run: wrong names, types or sizes, not finite, or outside
        of the domain by more than one step of its grid; or if there are some although clients
        compute the result, or none although they do not.
    """
    if run.server_asks != bool(data):
        raise MessageError("Expected a result exactly where clients do not compute it.")
    return _read_result(run.algorithm, data) if data else None


# --------------------------------------------------------------------------- details


def _require_answerable(run: Run, question: Query) -> None:
    run.algorithm.check_query(question)


def _read_result(algorithm: Algorithm, data: bytes) -> Result:
    arrays = decode_arrays(data)
    k, d = algorithm.n_clusters, algorithm.domain.n_features
    found = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    kind = np.dtype(np.float64)
    if found != {"centroids": (kind, (k, d)), "counts": (kind, (k,))}:
        raise MessageError("The result of a run has the wrong names, types or sizes.")
    if not _lie_within(algorithm.domain, arrays["centroids"], 2.0**-algorithm.fraction_bits):
        raise MessageError("The result of a run lies outside of its domain.")
    return arrays["centroids"], arrays["counts"]


def _lie_within(domain: Domain, points: FloatArray, step: float) -> bool:
    """Return whether points (k, d) are in the domain, up to a step of it and to rounding."""
    origin = np.zeros((1, domain.n_features))
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = domain.from_unit(domain.to_unit(points))
        slack = np.abs(domain.from_unit(origin + step) - domain.from_unit(origin))
        slack = slack + 4 * np.spacing(np.maximum(np.abs(points), np.abs(nearest)))
        return bool((np.abs(points - nearest) <= slack).all())
