"""Files of the library: writing them whole or not at all, reading them, and safe names."""

import errno
import io
import json
import os
import shlex
import shutil
import stat
import tempfile
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

from flower_kmeans.errors import ConfigurationError

_FORMULA = ("=", "+", "-", "@")
# Invisible characters that count as letters or symbols.
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
_MINUS = "\u2212"
_DEEPEST = 32  # most nested lists and tables; files of the library have four
_ELSEWHERE = "or name another place"
_CURES = {
    errno.ENOSPC: f"make room there, {_ELSEWHERE}",
    errno.EDQUOT: f"make room within the quota of this user, {_ELSEWHERE}",
    errno.EFBIG: f"let this user write larger files, {_ELSEWHERE}",
    errno.EACCES: f"let this user write there, {_ELSEWHERE}",
    errno.EPERM: f"let this user write there, {_ELSEWHERE}",
    errno.EROFS: "name a place that is not read-only",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "name a place in a directory",
    errno.ENOENT: "make its directory first",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EIO: "look after the disk, which fails",
    errno.EMFILE: "let this user open more files (ulimit -n)",
    errno.ENFILE: "close other programs: the machine has too many open files",
}
"""Cures of the operating system's errors, by error number."""


def reason_and_cure(error: OSError) -> str:
    """Return the reason of an operating system's error and its cure, as ``REASON: CURE``."""
    reason = error.strerror or str(error) or type(error).__name__
    # Without a usable temporary directory, Python's own text lists the places.
    if error.errno == errno.ENOENT and "temporary directory" in reason:
        return f"{reason}: make room in one of these, or name another one in TMPDIR"
    cure = _CURES.get(error.errno or 0)
    return reason if cure is None else f"{reason}: {cure}"


class _Recorded(io.FileIO):
    """A file that remembers the error of a write, which a library above it may hide."""

    failed: OSError | None = None

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            self.failed = error
            raise


class _PrivateFile:
    """A new file beside its place, which is renamed to its place at the end of ``with``.

    After an error the place is unchanged, and there is no new file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            _require_replaceable(path)
            # The file has mode 0600 from the first moment, and a new name.
            number, name = tempfile.mkstemp(".part", f".{path.name[:64]}.", path.parent)
        except OSError as error:
            raise self._error(error) from None
        self._part = Path(name)
        self._raw = _Recorded(number, "w")
        self._file = io.BufferedWriter(self._raw)

    def __enter__(self) -> BinaryIO:
        return cast(BinaryIO, self._file)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._finish()
        except OSError as failed:
            raise self._error(self._raw.failed or failed) from None
        finally:
            # After an error the file is removed. Otherwise it is gone already.
            with suppress(OSError, ValueError):
                self._file.close()
            with suppress(OSError):
                self._raw.close()
            with suppress(OSError):
                self._part.unlink(missing_ok=True)
        # The disk's error replaces a library's error, but not an interrupt.
        if self._raw.failed is not None and isinstance(error, Exception):
            raise self._error(self._raw.failed) from None

    def _finish(self) -> None:
        """Rename the file to its place, after all of it is on the disk."""
        if self._raw.failed is not None:  # a library ignored the error
            raise self._raw.failed
        if not self._file.closed:  # a library may have closed it
            self._file.flush()
            _sync(self._raw.fileno())
            self._file.close()
        # A link at the place is replaced and not followed.
        os.replace(self._part, self._path)

    def _error(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"Expected a file that can be written. Got {self._path}: {reason_and_cure(error)}."
        )


def _require_replaceable(path: Path) -> None:
    """Refuse a path that exists and is neither a file nor a link, such as a directory."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise OSError(errno.EINVAL, "It is not an ordinary file")


def _sync(number: int) -> None:
    """Wait until a file is on its disk. Some systems report a full disk only here."""
    try:
        os.fsync(number)
    except OSError as error:
        # These errors mean that the file system cannot wait.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise


def read_file(
    path: str | os.PathLike[str], name: str, *, is_secret: bool = False
) -> bytes:
    """Return the content of a file that others cannot write, nor read if it is secret.

    ``name`` is the word for the file in errors.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, or others can write it, or read a secret one.
    """
    try:
        # Mode and content are read from the same open file.
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            content = file.read()
    except OSError as error:
        raise ConfigurationError(
            f"The {name} {path} cannot be read: {error.strerror}."
        ) from None
    complaint = access_complaint(path, name, facts, is_secret=is_secret)
    if complaint is not None:
        raise ConfigurationError(complaint)
    return content


def access_complaint(
    path: str | os.PathLike[str], name: str, facts: os.stat_result, *, is_secret: bool
) -> str | None:
    """Return a complaint with its cure if others can write a file, or read a secret one.

    Return ``None`` if nobody else can.
    """
    quoted = shlex.quote(os.fspath(path))
    if not is_own(facts):
        return (
            f"Expected the {name} {path} to belong to this user or to root. "
            f"Got user id {facts.st_uid} instead. As root: chown {os.geteuid()} {quoted}."
        )
    mode = stat.S_IMODE(facts.st_mode)
    if not mode & (0o077 if is_secret else 0o022):
        return None
    if is_secret:
        return (
            f"Expected the {name} {path} with mode 0600. Got {mode:04o} instead: "
            f"chmod 600 {quoted}."
        )
    return (
        f"Expected the {name} {path} writable by its owner alone. Got mode {mode:04o} instead: "
        f"chmod go-w {quoted}."
    )


def is_own(facts: os.stat_result) -> bool:
    """Return whether a file belongs to this user or to root."""
    # Some systems have no user ids.
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    # Root can read everything anyway, and mounted volumes often belong to root.
    return facts.st_uid in (0, user)


def read_toml(content: bytes, what: str) -> dict[str, Any]:
    """Return the values of a TOML file.

    Raises
    ------
    ConfigurationError
        If the content is not TOML. The error calls the file ``what``.
    """
    try:
        return parsed_toml(content.decode("utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"The {what} is not TOML: {error}.") from None


def parsed_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text.

    Raises
    ------
    ValueError
        If the text is not TOML, or is nested too deeply.
    """
    return cast(dict[str, Any], _parsed(tomllib.loads, text))


def parsed_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises
    ------
    ValueError
        If the text is not JSON, or is nested too deeply.
    """
    return _parsed(json.loads, text)


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    """Return the value of a text that others may have written, unless nested too deeply."""
    with suppress(RecursionError):
        value = parse(text)
        if not is_deep(value):
            return value
    raise ValueError(f"lists or tables lie in each other, more than {_DEEPEST} deep")


def is_deep(value: Any) -> bool:
    """Return whether lists and mappings are nested more than 32 levels deep.

    Code that compares or prints such values later could fail half way.
    """
    level = [value]
    for _ in range(_DEEPEST):
        # The loop goes level by level: recursion would fail on such values.
        inner: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                inner.extend(each.values())
            elif isinstance(each, list | tuple):
                inner.extend(each)
        if not inner:
            return False
        level = inner
    return any(isinstance(each, Mapping | list | tuple) for each in level)


def open_private(path: str | os.PathLike[str]) -> _PrivateFile:
    """Open a new binary file, mode 0600, for ``with``. It replaces an existing file.

    The file gets its name at the end of ``with``, after all of it is written. After an
    error the existing file is unchanged.

    Raises
    ------
    ConfigurationError
        If the file cannot be written, for example because the disk is full or a
        directory has this name.
    """
    return _PrivateFile(Path(path))


@contextmanager
def written_together(output: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Yield a directory for one run's files, which are moved to ``output`` at the end.

    Files in ``output`` with one of ``names`` that this run did not write are removed,
    because they are from an earlier run. After an error nothing in ``output`` is
    changed.

    Raises
    ------
    ConfigurationError
        If a file cannot be written.
    """
    try:
        place = Path(tempfile.mkdtemp(".part", ".run.", output))
    except OSError as error:
        raise ConfigurationError(
            f"Expected output to be a directory that can be written to. "
            f"Got {output} instead: {reason_and_cure(error)}."
        ) from None
    try:
        yield place
        for name in names:
            if (place / name).exists():
                os.replace(place / name, output / name)
            else:
                (output / name).unlink(missing_ok=True)
    except ConfigurationError as error:
        # The user knows the final place of the file, and not the place before.
        raise type(error)(str(error).replace(str(place), str(output))) from None
    except OSError as error:
        raise ConfigurationError(
            f"Expected a file that can be written. "
            f"Got {error.filename2 or error.filename or output}: {reason_and_cure(error)}."
        ) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def printable(text: str) -> str:
    r"""Return text with invisible characters escaped, such as ``\x1b``.

    Names of columns come from data files. A terminal would obey control characters in
    them, and other characters change the order of the text.
    """
    shown = []
    for character in text:
        if not character.isprintable():
            character = character.encode("unicode_escape").decode("ascii")
        shown.append(character)
    return "".join(shown)


def csv_name(text: str) -> str:
    """Return a name for a csv file: printable, with ``'`` before any possible formula.

    Some spreadsheets begin a new cell at each semicolon, so each part is treated.
    """
    return ";".join(map(inert, printable(text).split(";")))


def inert(text: str) -> str:
    """Return a text for a cell, with ``'`` before it if it could be a formula."""
    return f"'{text}" if _is_formula(text) else text


def _is_formula(text: str) -> bool:
    """Return whether a text begins with =, +, - or @, or with a similar character.

    Spreadsheets drop invisible characters at the beginning. Some also treat a
    full-width form of a character as the character.
    """
    for character in text:
        for plain in unicodedata.normalize("NFKD", character):
            category = unicodedata.category(plain)
            if category[0] in "ZCM" or plain in _BLANK:
                continue
            return plain in _FORMULA or plain == _MINUS or category == "Pd"
    return False


def prepare_directory(output: Path) -> None:
    """Create the directory for results, and require that it is writable."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe = output / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another command may have removed it
    except OSError as error:
        raise ConfigurationError(
            f"Expected output to be a directory that can be written to. "
            f"Got {output} instead: {reason_and_cure(error)}."
        ) from None
