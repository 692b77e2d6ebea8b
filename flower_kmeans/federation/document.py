"""The run document: everything that a client must know to take part (docs/protocol.md, section 3).

It is one canonical JSON text. Its hash stands in every key and every context, so clients that were
given different documents cannot add up to anything.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from flower_kmeans.canonical import canonical_bytes, parse_canonical
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.federation.cohort import MAX_MEMBERS

PROTOCOL = "flower-kmeans/1"
NONE = "none"

TRUSTS = ("oblivious-server", "distributed-noise", "trusted-server", "plain")
MASKED_TRUSTS = ("oblivious-server", "distributed-noise")
KEYS = ("file", "roster", "relayed")
OPENINGS = ("deferred", "immediate", "simple")

MAX_LEVELS = 4
MAX_ATTEMPTS = 3
_MAX_ROUNDS = 2**31 - 1
_MAX_WORDS = 2**31 - 1
_RUN_ID = re.compile(r"[0-9a-f]{32}")


class VersionError(MessageError):
    """What was received is written in another version of the protocol."""


@dataclass(frozen=True, kw_only=True)
class RunDocument:
    """The public description of one run.

    Parameters
    ----------
    run : str
        The run's random identity: 16 bytes as 32 lower-case hexadecimal digits.
    trust : str
        "oblivious-server", "distributed-noise", "trusted-server" or "plain".
    keys : str
        Where the group key comes from: "file", "roster" or "relayed"; "none" where nothing is
        masked ("trusted-server" and "plain").
    opening : str
        How a server opens sums: "simple", "deferred" or "immediate" under "distributed-noise",
        otherwise "none".
    algorithm, domain, privacy : mapping
        Configurations with a canonical form. They are read by their own modules only, and must
        not be changed.
    words : int or tuple of int
        Length of a round's vector with its checksum word; one number for all rounds, or one for
        each.
    rounds : int
        Number of rounds, fixed.
    min_clients : int
        Fewest clients behind a sum.
    max_attempts : int
        Tries per round, 1 to 3.
    colluders : int, default: 0
        "distributed-noise" only: number t of clients that may pool their knowledge; noise shares
        are made for ``min_clients - t`` clients. Otherwise 0.
    share_variance : str, default: "none"
        "distributed-noise" only: variance of a client's noise share in units of the plan's, always
        ``f"1/{min_clients - colluders}"``. Otherwise "none".
    levels : tuple of int, default: ()
        "distributed-noise" with questions of the server's: numbers of honest answers, ascending
        from above ``min_clients - colluders``, at each of which one more part of every share of
        the noise is removed. At most 4.
    sampler : str, default: "none"
        Name and version of the noise sampler; "none" in a run without noise.

    Raises
    ------
    ConfigurationError
        If a field is out of range or contradicts another.
    """

    run: str
    trust: str
    keys: str
    opening: str
    algorithm: Mapping[str, Any]
    domain: Mapping[str, Any]
    privacy: Mapping[str, Any]
    words: int | tuple[int, ...]
    rounds: int
    min_clients: int
    max_attempts: int
    colluders: int = 0
    share_variance: str = NONE
    levels: tuple[int, ...] = ()
    sampler: str = NONE

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_noise()

    def __hash__(self) -> int:
        return hash(self.data)

    @property
    def is_masked(self) -> bool:
        """Whether words travel masked."""
        return self.trust in MASKED_TRUSTS

    @property
    def opens_by_quorum(self) -> bool:
        """Whether a majority of the cohort opens sums, together."""
        return self.opening in ("deferred", "immediate")

    @property
    def shares(self) -> int:
        """Number M' of noise shares that make up the planned noise; 1 if the server adds it."""
        return self.min_clients - self.colluders if self.trust == "distributed-noise" else 1

    @property
    def sums_of_a_round(self) -> int:
        """How many sums of a round others may open, each with independent noise.

        Where a client must trust the server about the other members, every attempt at a round can
        end in a sum that others open (docs/threat-model.md, 12); elsewhere a round has one sum.
        """
        is_pinned = self.trust != "distributed-noise" or self.keys == "roster"
        return 1 if is_pinned else self.max_attempts

    def words_of(self, t: int) -> int:
        """Return the length of the vector of round ``t`` (from 1), checksum word included."""
        return self.words if isinstance(self.words, int) else self.words[t - 1]

    @cached_property
    def data(self) -> bytes:
        """The document's canonical bytes."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.words, tuple):
            values["words"] = list(self.words)
        values["levels"] = list(self.levels)
        try:
            return canonical_bytes({"protocol": PROTOCOL, **values})
        except MessageError as error:
            raise ConfigurationError(str(error)) from None

    @cached_property
    def doc_hash(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.data).digest()

    @classmethod
    def parse(cls, data: bytes) -> "RunDocument":
        """Read a document.

        Raises
        ------
        VersionError
            If it is written for another version of the protocol.
        MessageError
            If the bytes are not canonical, or a field is missing, unknown, or not acceptable.
        """
        return _parse(data)

    def _check_choices(self) -> None:
        if type(self.run) is not str or not _RUN_ID.fullmatch(self.run):
            raise ConfigurationError("Expected run to be 32 lower-case hexadecimal digits.")
        _require_choice("trust", self.trust, TRUSTS)
        _require_choice("keys", self.keys, KEYS if self.is_masked else (NONE,))
        shared = self.trust == "distributed-noise"
        _require_choice("opening", self.opening, OPENINGS if shared else (NONE,))
        for name in ("algorithm", "domain", "privacy"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigurationError(f"Expected {name} to be a mapping.")

    def _check_numbers(self) -> None:
        _require_integer("rounds", self.rounds, 1, _MAX_ROUNDS)
        _require_integer("min_clients", self.min_clients, 1, 2**32 - 1)
        _require_integer("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        words = self.words if isinstance(self.words, tuple) else (self.words,)
        if isinstance(self.words, tuple) and len(words) != self.rounds:
            raise ConfigurationError(
                f"Expected words for {self.rounds} rounds. Got {len(words)} numbers instead."
            )
        for length in words:
            _require_integer("words", length, 2, _MAX_WORDS)

    def _check_noise(self) -> None:
        if type(self.sampler) is not str or not self.sampler:
            raise ConfigurationError("Expected sampler to be the name of a sampler.")
        if self.trust != "distributed-noise":
            _require_integer("colluders", self.colluders, 0, 0)
            _require_choice("share_variance", self.share_variance, (NONE,))
            _require_levels(self.levels, 0, 0)
            return
        if self.min_clients < 2:
            raise ConfigurationError(
                'Expected min_clients >= 2 under trust="distributed-noise", where a client knows '
                f"its own share of the noise. Got {self.min_clients} instead."
            )
        _require_integer("colluders", self.colluders, 1, self.min_clients - 1)
        _require_choice("share_variance", self.share_variance, (f"1/{self.shares}",))
        _require_levels(self.levels, self.shares, MAX_LEVELS)
        if self.sampler == NONE:
            raise ConfigurationError(
                'Expected sampler to name a sampler under trust="distributed-noise".'
            )


_NAMES = frozenset(field.name for field in fields(RunDocument))


# Clients of one process are sent the same bytes: they share one parsed document.
@lru_cache(maxsize=8)
def _parse(data: bytes) -> RunDocument:
    values = parse_canonical(data)
    if values.pop("protocol", PROTOCOL) != PROTOCOL:
        raise VersionError("The run document is written for another version of the protocol.")
    if values.keys() != _NAMES:
        raise MessageError("The run document lacks a field, or has one that is not known.")
    if isinstance(values["words"], list):
        values["words"] = tuple(values["words"])
    if isinstance(values["levels"], list):
        values["levels"] = tuple(values["levels"])
    try:
        document = RunDocument(**values)
    except ConfigurationError:
        raise MessageError("The run document has a field that is not acceptable.") from None
    if document.data != data:  # the protocol's name was missing
        raise MessageError("The run document is not complete.")
    return document


def _require_levels(levels: Any, above: int, most: int) -> None:
    if (
        not isinstance(levels, tuple)
        or len(levels) > most
        or any(type(level) is not int for level in levels)
        or any(b <= a for a, b in pairwise((above, *levels)))
        or any(level > MAX_MEMBERS for level in levels)
    ):
        raise ConfigurationError(
            f"Expected levels to be at most {most} ascending integers above {above}. "
            f"Got {levels!r} instead."
        )


def _require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if type(value) is not str or value not in choices:
        raise ConfigurationError(f"Expected {name} in {list(choices)}. Got {value!r} instead.")


def _require_integer(name: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigurationError(f"Expected {name} in [{low}, {high}]. Got {value!r} instead.")
