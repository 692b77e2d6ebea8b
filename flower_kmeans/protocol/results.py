"""The result of a run at a client, and its encoding by a server that sees the sums."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms import judged, plausibility, tightened
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.plausibility import Finding
from flower_kmeans.algorithms.queries import require_within
from flower_kmeans.algorithms.released import SilhouetteSums, SizeReport
from flower_kmeans.algorithms.state import State
from flower_kmeans.algorithms.tightened import BOX
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain
from flower_kmeans.data.persons import SECRET_BYTES
from flower_kmeans.data.sources import RecordsLike, as_source, weighed
from flower_kmeans.data.table_domain import domain_arrays
from flower_kmeans.data.weights import MOST_WEIGHT, Weighing
from flower_kmeans.errors import ConfigurationError, DataError, MessageError
from flower_kmeans.files import open_private
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.noise import noise_factor
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.wire import MAX_SLOTS, decode_arrays, encode_arrays
from flower_kmeans.report.clustering import Clustering, assigned, centroid_table
from flower_kmeans.report.columns import column_warnings
from flower_kmeans.report.export import sklearn_model
from flower_kmeans.report.names import cluster_names
from flower_kmeans.report.silhouette import Silhouette
from flower_kmeans.report.site_sizes import PRIVATE, SiteSizes, cluster_sizes
from flower_kmeans.report.synopsis import Synopsis
from flower_kmeans.templates import html_summary

_ROUNDING = 1e-9
_RESULT_NAMES = 2**10  # most bytes of a result beside its numbers
_SYNOPSIS = "synopsis_"
_FINDINGS = "findings"
_SILHOUETTE = "silhouette"
_SILHOUETTE_NOISE = "silhouette_noise"
_LARGEST_SUM = 2.0**63
"""No word of a sum is larger, and no number of records."""


@dataclass(frozen=True, repr=False)
class ClientResult:
    """A client's result of a finished run."""

    centroids: FloatArray  # (n_clusters, n_features), in the user's units
    counts: FloatArray  # (n_clusters,): noisy cluster sizes of the last round
    # the public bounds, or the ranges that the run released, with the scaling of the
    # distances between records
    domain: Domain
    run: str  # identity of the run, 32 hexadecimal digits
    # (n_clusters,), as in a `Clustering`; set if sizes have bounds
    weights: FloatArray | None = None
    size_report: SizeReport | None = None  # noisy sizes beside their bounds
    synopsis: Synopsis | None = None  # of `SynopsisKMeans`, for clusterings with any k
    is_private: bool = True  # whether the run added noise
    # findings about released values that no records explain
    findings: tuple[Finding, ...] = ()
    # The findings as sentences. If clients computed the result, the algorithm's warnings
    # come before.
    warnings: tuple[str, ...] = ()
    # how well the clusters are apart; set with ``quality=True``
    silhouette: Silhouette | None = None
    # (d, 2), the released ranges as in the algorithm's state; set if it finds ranges
    box: IntArray | None = None
    counted: str = "records"  # noun for the units of ``counts``, or "persons"
    # This client's own sizes beside the noisy ones, in ``on_result`` of a node: exact,
    # and so private. No server and no other client has them.
    own_sizes: SiteSizes | None = None

    def __repr__(self) -> str:
        # It must not show the values, because it may go to a log.
        k, d = self.centroids.shape
        return f"ClientResult(n_clusters={k}, n_features={d}, run={self.run!r})"

    def _repr_html_(self) -> str:
        table = centroid_table(
            self.centroids, self.counts, self.domain, names=self.names
        )
        title = f"{len(self.centroids)} clusters"
        return html_summary(title, {"run": self.run}, [table], self.warnings)

    @property
    def names(self) -> tuple[str, ...]:
        """A short, unique name for each cluster in words, as `Clustering.names`."""
        return cluster_names(self.centroids, self.counts, self.domain)

    def predict(
        self,
        X: ArrayLike,
        columns: Sequence[str] | Sequence[int] | None = None,
        nearest: bool = False,
    ) -> NDArray[np.int64]:
        """Return the cluster of each record, (n,) int64, as `Clustering.predict` does."""
        return assigned(X, self.centroids, self.domain, self.weights, columns, nearest)

    def sizes_of(
        self, records: RecordsLike, ids: Iterable[object] | None = None
    ) -> SiteSizes:
        """Return the exact sizes of these clusters in records, beside the noisy ones.

        A record belongs to its cluster by `predict`. A null record counts as none. The
        result is as private as the records.

        Parameters
        ----------
        records : RecordsLike
            Of a type that ``load_data`` may return. They are read in blocks.
        ids : iterable of hashable, optional
            One id for each record, exactly if the sizes count persons. The records of a
            person count as one together.

        Raises
        ------
        ConfigurationError, ConfigurationTypeError, DataError
            If ids are missing or not needed, or records or ids cannot be read.
        """
        counts_persons = self.counted == "persons"
        if counts_persons != (ids is not None):
            raise ConfigurationError(
                f"Expected ids exactly for sizes that count persons. These count {self.counted}. "
                f"Got {'no ids' if ids is None else 'ids'}."
            )
        source = as_source(records, self.domain.n_features, self.domain.columns)
        full = 1
        if counts_persons:
            full = MOST_WEIGHT
            weighing = Weighing(full, max_clients_per_person=1)
            key = token(SECRET_BYTES)
            source, _ = weighed(source, weighing, ids, None, key, self.domain.are_null)
        total = np.zeros(len(self.centroids), dtype=np.int64)
        for block in source.blocks():
            own = block
            shares = None
            if counts_persons:
                own = block[:, :-1]
                shares = block[:, -1]
            total += cluster_sizes(
                own, self.centroids, self.domain, self.weights, shares
            )
        return SiteSizes(total / full, self.counts, self.counted)

    def to_sklearn(self) -> Any:
        """Return a fitted model of scikit-learn, as `Clustering.to_sklearn` does."""
        return sklearn_model(self.centroids, self.domain, self.weights)

    def save(
        self,
        path: str | PathLike[str],
        columns: Sequence[str] | None = None,
        *,
        own_sizes: bool = True,
    ) -> None:
        """Write the whole result to an npz file, which only its owner can read.

        ``flower-kmeans assign --centroids FILE`` and ``plot`` read the file. It replaces
        an older one. An error leaves the older one unchanged. With ``quality=True`` the
        array ``silhouette`` has the value and both ends of its interval.

        Parameters
        ----------
        path : path
            Path of the file.
        columns : sequence of str, optional
            Names of the columns, if the domain has none. Default: x0, x1 and so on.
        own_sizes : bool, default: True
            Write this client's own sizes too, if the result has them. The file then holds
            exact counts and says so in its array ``PRIVATE``. A file without them holds
            released values alone.

        Raises
        ------
        ConfigurationError
            If the file cannot be written, or ``columns`` are not the domain's names or
            not as many as its columns.
        """
        d = self.domain.n_features
        own = self.domain.columns
        names = own
        if not names:
            names = tuple(columns or (f"x{i}" for i in range(d)))
        are_others = columns is not None and tuple(columns) != names
        if len(names) != d or are_others:
            raise ConfigurationError(
                f"Expected columns as the names of the result's {d} columns, in its order: "
                f"{own or 'it has none'}. Got {tuple(columns or ())} instead."
            )
        result = self
        if not own_sizes:
            result = replace(self, own_sizes=None)
        arrays = result_arrays(result, names)
        arrays["run"] = np.array(self.run)
        if self.synopsis is not None:
            arrays |= _prefixed(self.synopsis)
        with open_private(path) as file:
            np.savez(file, **arrays)


def result_arrays(
    result: "Clustering | ClientResult", columns: Sequence[str]
) -> dict[str, Any]:
    """Return the arrays of a result for an npz file, without its synopsis.

    With a client's own sizes they hold exact counts, and the mark of these.
    """
    arrays: dict[str, Any] = {
        "centroids": result.centroids,
        "counts": result.counts,
        "columns": np.array(columns),
        **domain_arrays(result.domain),
        "private": np.array(result.is_private),
    }
    if result.weights is not None:
        arrays["weights"] = result.weights
    sizes = result.size_report
    if sizes is not None:
        arrays["sizes"] = np.array(sizes.counts)
        arrays["size_interval"] = sizes.interval
    # Readers take "records" for a file without it.
    if result.counted != "records":
        arrays["counted"] = np.array(result.counted)
    silhouette = _silhouette_of(result)
    if silhouette is not None:
        interval = silhouette.value, silhouette.low, silhouette.high
        arrays["silhouette"] = np.array(interval)
    if isinstance(result, ClientResult) and result.own_sizes is not None:
        arrays["PRIVATE"] = np.array(PRIVATE)
        arrays["own_sizes"] = result.own_sizes.own
    return arrays


def _silhouette_of(result: "Clustering | ClientResult") -> Silhouette | None:
    if isinstance(result, Clustering):
        return result.report.silhouette
    return result.silhouette


def saved_synopsis(arrays: Mapping[str, Any], domain: Domain) -> Synopsis | None:
    """Return the synopsis that `ClientResult.save` wrote; ``None`` if it wrote none.

    Raises
    ------
    DataError
        If the arrays are no synopsis.
    """
    parts = _without_prefix(arrays)
    if not parts:
        return None
    return Synopsis.from_arrays(parts, domain)


def _without_prefix(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a synopsis, by its own names."""
    return {
        name.removeprefix(_SYNOPSIS): array
        for name, array in arrays.items()
        if name.startswith(_SYNOPSIS)
    }


def _prefixed(synopsis: Synopsis) -> dict[str, FloatArray]:
    return {_SYNOPSIS + name: array for name, array in synopsis.arrays.items()}


def result_of(
    run: Run, state: State, noise_factor: float, findings: Iterable[Finding] = ()
) -> ClientResult | None:
    """Return the result of the last state, or ``None`` without centroids.

    ``noise_factor`` is that of the last sum, and ``findings`` are those of all rounds.
    """
    algorithm = run.algorithm
    centroids = algorithm.centroids(state)
    counts = algorithm.counts(state)
    if centroids is None or counts is None:
        return None
    domain = tightened.released_domain(algorithm, state)
    weights = None
    size_report = None
    if algorithm.sizes is not None:
        weights = algorithm.sizes.weights(state)
        size_report = algorithm.sizes.report(state, noise_factor)
    synopsis = None
    if algorithm.mixture is not None:
        mixture = algorithm.mixture.learned(state, noise_factor)
        synopsis = None if mixture is None else Synopsis(mixture, domain)
    sums = judged.sums_of(algorithm, state, noise_factor)
    found = tuple(findings)
    sentences = plausibility.sentences(algorithm, found)
    of_columns = column_warnings(centroids, domain, synopsis)
    return ClientResult(
        centroids,
        counts,
        domain,
        run=run.document.run.hex(),
        weights=weights,
        size_report=size_report,
        synopsis=synopsis,
        is_private=run.trust.is_private,
        findings=found,
        warnings=(*algorithm.warnings(state), *sentences, *of_columns),
        silhouette=None if sums is None else Silhouette(sums),
        box=state.arrays[BOX] if algorithm.finds_ranges else None,
        counted=algorithm.budget.counted,
    )


def longest_result(run: Run) -> int:
    """Return the largest length, in bytes, of a run's encoded result."""
    algorithm = run.algorithm
    k = algorithm.n_clusters
    d = algorithm.domain.n_features
    n_findings = len(plausibility.FindingKind) * run.document.rounds
    n_numbers = k * (d + 2) + 1 + 6 * n_findings
    if algorithm.mixture is not None:
        p = algorithm.mixture.n_directions
        n_numbers += d * p + algorithm.mixture.most_parts * (2 * p + 2)
        n_numbers += 1 + len(algorithm.mixture.noise)
    if algorithm.finds_ranges:
        n_numbers += 2 * d
    if algorithm.judges:
        n_numbers += 2 * k + 1
    return 8 * n_numbers + _RESULT_NAMES


def encode_result(result: ClientResult) -> bytes:
    """Return the encoded result that a server sends, without the run, which the message names."""
    arrays: dict[str, NDArray[Any]] = {
        "centroids": result.centroids,
        "counts": result.counts,
    }
    if result.weights is not None and result.size_report is not None:
        arrays["weights"] = result.weights
        arrays["size_noise"] = np.array([result.size_report.noise])
    if result.synopsis is not None:
        arrays |= _prefixed(result.synopsis)
    if result.findings:
        arrays[_FINDINGS] = plausibility.to_array(result.findings)
    if result.box is not None:
        arrays[BOX] = result.box
    if result.silhouette is not None:
        released = result.silhouette.released
        arrays[_SILHOUETTE] = np.array([released.counts, released.sums])
        arrays[_SILHOUETTE_NOISE] = np.array([released.noise])
    return encode_arrays(arrays)


def read_result(run: Run, data: bytes) -> ClientResult:
    """Return the result that a server sent, after its checks.

    A result must be finite, in the domain, and have possible weights. The noise of sizes
    must be the planned one, or more if more clients can have added noise shares.

    Raises
    ------
    MessageError
        If the run cannot have this result.
    """
    arrays = decode_arrays(data)
    algorithm = run.algorithm
    box = _taken_box(algorithm, arrays)
    domain = algorithm.domain
    if box is not None:
        domain = tightened.released_domain(
            algorithm, State(algorithm.n_rounds, {BOX: box})
        )
    parts = _without_prefix(arrays)
    for name in parts:
        del arrays[_SYNOPSIS + name]
    synopsis = _read_synopsis(run, parts, domain)
    findings = _read_findings(run, arrays.pop(_FINDINGS, None))
    silhouette = _read_silhouette(
        run, arrays.pop(_SILHOUETTE, None), arrays.pop(_SILHOUETTE_NOISE, None)
    )
    _require_shapes(algorithm, arrays)
    _require_clusters(silhouette, arrays["counts"])
    _require_in_domain(arrays["centroids"], algorithm, box)
    sentences = plausibility.sentences(algorithm, findings)
    of_columns = column_warnings(arrays["centroids"], domain, synopsis)
    result = ClientResult(
        arrays["centroids"],
        arrays["counts"],
        domain,
        run.document.run.hex(),
        synopsis=synopsis,
        is_private=run.trust.is_private,
        findings=findings,
        warnings=(*sentences, *of_columns),
        silhouette=silhouette,
        box=box,
        counted=algorithm.budget.counted,
    )
    if algorithm.sizes is None:
        return result
    weights = arrays["weights"]
    noise = float(arrays["size_noise"][0])
    if (np.abs(weights) > largest_weight(domain)).any():
        raise MessageError(
            "The weights of a result are larger than any that change a cluster."
        )
    if not _is_possible(run, noise, algorithm.sizes.noise):
        raise MessageError(
            "The noise of a result's sizes is less or more than any run gives them."
        )
    counts = tuple(result.counts.tolist())
    sizes = SizeReport(counts, noise, *algorithm.sizes.bounds)
    return replace(result, weights=weights, size_report=sizes)


def _require_shapes(algorithm: Algorithm, arrays: Mapping[str, FloatArray]) -> None:
    """Require centroids and counts, with weights and their noise if sizes have bounds.

    If the run chose the number of clusters, counts define it for all arrays.
    """
    k = np.size(arrays.get("counts", ()))
    d = algorithm.domain.n_features
    if not algorithm.fewest_clusters <= k <= algorithm.n_clusters:
        raise MessageError(
            "The result of a run has more or fewer clusters than were planned."
        )
    shapes: dict[str, tuple[int, ...]] = {"centroids": (k, d), "counts": (k,)}
    if algorithm.sizes is not None:
        shapes |= {"weights": (k,), "size_noise": (1,)}
    found = {name: array.shape for name, array in arrays.items()}
    are_floats = all(array.dtype == np.float64 for array in arrays.values())
    if found != shapes or not are_floats:
        raise MessageError("The result of a run has the wrong names, types or sizes.")
    if (np.abs(arrays["counts"]) > _LARGEST_SUM).any():
        raise MessageError("The counts of a result are larger than any sum.")


def _taken_box(algorithm: Algorithm, arrays: dict[str, Any]) -> IntArray | None:
    """Take the ranges out of a result's arrays; ``None`` if its algorithm finds none."""
    if not algorithm.finds_ranges:
        return None
    ranges = algorithm.query_ranges(algorithm.n_rounds)
    box: IntArray | None = arrays.pop(BOX, None)
    # A run's queries have carried the same ranges, within the same limits.
    require_within(box, ranges[BOX])
    return box


def _read_synopsis(
    run: Run, arrays: dict[str, FloatArray], domain: Domain
) -> Synopsis | None:
    """Return the synopsis of a result; ``None`` exactly if its algorithm makes none."""
    expected = run.algorithm.mixture
    if expected is None and not arrays:
        return None
    with suppress(DataError):
        found = Synopsis.from_arrays(arrays, domain)
        if expected is not None:
            m, p = found.mixture.means.shape
            has_noise = all(
                _is_possible(run, noise, planned)
                for noise, planned in zip(
                    found.mixture.noise, expected.noise, strict=True
                )
            )
            has_shape = p <= expected.n_directions and m <= expected.most_parts
            if has_shape and has_noise:
                return found
    raise MessageError("Expected the synopsis of a result as its run could make it.")


def _read_silhouette(
    run: Run, values: FloatArray | None, noise: FloatArray | None
) -> Silhouette | None:
    """Return the silhouette of a result: of its counts and sums, (2, k), and their noise, (1,).

    ``None`` if the run released none, because it has no such round, lost its sum, or chose
    one cluster.
    """
    algorithm = run.algorithm
    if values is None and noise is None:
        may_lack = algorithm.can_miss_sums or algorithm.fewest_clusters < 2
        if not algorithm.judges or may_lack:
            return None
    elif algorithm.judges and values is not None and noise is not None:
        are_floats = values.dtype == noise.dtype == np.float64
        have_shape = values.ndim == 2 and len(values) == 2 and noise.shape == (1,)
        # Sums of larger numbers could overflow in on_result, which would then fail.
        if are_floats and have_shape and (np.abs(values) <= _LARGEST_SUM).all():
            deviation = float(noise[0])
            if _is_possible(run, deviation, judged.noise_of(algorithm)):
                counts, sums = values.tolist()
                is_gaussian = judged.is_gaussian(algorithm)
                return Silhouette(
                    SilhouetteSums(tuple(counts), tuple(sums), deviation, is_gaussian)
                )
    raise MessageError("Expected the silhouette of a result as its run could make it.")


def _require_clusters(silhouette: Silhouette | None, counts: FloatArray) -> None:
    """Require a silhouette of as many clusters as the result has, and of at least two."""
    if silhouette is None:
        return
    k = len(silhouette.released.counts)
    if k != len(counts) or k < 2:
        raise MessageError("The silhouette of a result is of other clusters.")


def _read_findings(run: Run, array: FloatArray | None) -> tuple[Finding, ...]:
    """Return the findings of a result.

    The array is there exactly if there are findings. Some kinds of runs always have it,
    padded with zeros.
    """
    is_padded = run.kind.pads_findings
    wrong = "The findings of a result are not those of a run."
    if array is None and not is_padded:
        return ()
    try:
        if array is None:
            raise ValueError("Expected findings in the result of such a run.")
        if is_padded:
            array = _without_padding(run, array)
        n_words = max(run.document.words)
        found = plausibility.from_array(array, run.document.rounds, n_words)
    except (ValueError, IndexError):
        raise MessageError(wrong) from None
    if not found and not is_padded:
        raise MessageError(wrong)
    return found


def _without_padding(run: Run, array: FloatArray) -> FloatArray:
    """Return the rows of findings before the rows of zeros.

    The padding hides the number of findings from the server.
    """
    n_used = int(array.any(axis=1).sum())
    shape = plausibility.padded(array[:0], run.document.rounds).shape
    if array.shape != shape or array[n_used:].any():
        raise ValueError("Expected findings and then zeros.")
    return array[:n_used]


def _is_possible(run: Run, noise: float, planned: float) -> bool:
    """Return whether a standard deviation is the planned one, or that of more noise shares."""
    # Less noise would contradict the plan.
    most = planned * noise_factor(run, MAX_SLOTS)
    return (1 - _ROUNDING) * planned <= noise <= (1 + _ROUNDING) * most


def largest_weight(domain: Domain) -> float:
    """Return the largest weight of a cluster, in the units of `SizesCapability.weights`.

    It is the squared diagonal of the cube around the domain, 4 d in squared scaled units.
    A larger weight changes no cluster. On the grid it is 4^(q+1) d, the limit of every
    query.
    """
    unit = domain.common_unit or 1.0
    largest = 4 * domain.n_features * unit * unit
    return largest + 4 * math.ulp(largest)  # both sides are rounded


def _require_in_domain(
    points: FloatArray, algorithm: Algorithm, box: IntArray | None
) -> None:
    """Require points in the domain, or at most one grid step outside because of rounding.

    With ranges it is the domain within these.
    """
    if box is not None:
        algorithm = tightened.at(algorithm, State(algorithm.n_rounds, {BOX: box}))
    domain = algorithm.domain
    origin = np.zeros((1, algorithm.domain.n_features))
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = domain.from_unit(domain.place(points))
        beyond = origin + 2.0**-algorithm.fraction_bits
        step = domain.from_unit(beyond) - domain.from_unit(origin)
        largest = np.maximum(np.abs(points), np.abs(nearest))
        rounding = 4 * np.spacing(largest)
        is_inside = np.abs(points - nearest) <= np.abs(step) + rounding
        if not is_inside.all():
            raise MessageError("The result of a run lies outside of its domain.")
