"""The library's files: written whole or not at all, their readers, and names."""

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
# Characters that show nothing, although they count as letters or symbols.
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
_MINUS = "\u2212"
_DEEPEST = 32  # lists and tables in each other; files of the library have four
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
"""Cures of the machine's errors, by number."""


def reason_and_cure(error: OSError) -> str:
    """Return the reason of the machine's refusal and its cure, as ``REASON: CURE``."""
    reason = error.strerror or str(error) or type(error).__name__
    # Of Python's own error where no temporary directory can be used: its text is the
    # reason.
    if error.errno == errno.ENOENT and "temporary directory" in reason:
        return f"{reason}: make room in one of these, or name another one in TMPDIR"
    cure = _CURES.get(error.errno or 0)
    return reason if cure is None else f"{reason}: {cure}"


class _Recorded(io.FileIO):
    """A file that remembers the error of a write, which writers above it may hide."""

    failed: OSError | None = None

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            self.failed = error
            raise


class _PrivateFile:
    """A new file beside its place, to which it is renamed at the end of ``with``.

    An error leaves what was there before, and no new file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            _require_replaceable(path)
            # Mode 0600 from the first moment, and a name that nobody has.
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
            # After an error; there is none left otherwise.
            with suppress(OSError, ValueError):
                self._file.close()
            with suppress(OSError):
                self._raw.close()
            with suppress(OSError):
                self._part.unlink(missing_ok=True)
        # Whatever a library made of it. An interrupt stays one.
        if self._raw.failed is not None and isinstance(error, Exception):
            raise self._error(self._raw.failed) from None

    def _finish(self) -> None:
        """Give the file its name, once all of it is on the disk."""
        if self._raw.failed is not None:  # and a library went on
            raise self._raw.failed
        if not self._file.closed:  # a library may have closed it
            self._file.flush()
            _sync(self._raw.fileno())
            self._file.close()
        # A link is replaced, and not followed.
        os.replace(self._part, self._path)

    def _error(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"Expected a file that can be written. Got {self._path}: {reason_and_cure(error)}."
        )


def _require_replaceable(path: Path) -> None:
    """Refuse an existing thing that is neither file nor link, such as a directory."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise OSError(errno.EINVAL, "It is not an ordinary file")


def _sync(number: int) -> None:
    """Wait until a file is on its disk: some systems report a full disk only here."""
    try:
        os.fsync(number)
    except OSError as error:
        # it cannot wait
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise


def read_file(
    path: str | os.PathLike[str], name: str, *, is_secret: bool = False
) -> bytes:
    """Return the content of a file that others may not write, nor read if secret."""
    try:
        # mode and content are those of one and the same file
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
    """Return why others can change a file, or read a secret one, and the cure."""
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
    """Return whether a file is this user's or root's."""
    # not on every system
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    # Root reads everything anyway, and mounted volumes often are root's.
    return facts.st_uid in (0, user)


def read_toml(content: bytes, what: str) -> dict[str, Any]:
    """Return the values of a TOML file.

    A `ConfigurationError` names it as ``what``.
    """
    try:
        return parsed_toml(content.decode("utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"The {what} is not TOML: {error}.") from None


def parsed_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text.

    A ValueError if it is none, or nested too deeply.
    """
    return cast(dict[str, Any], _parsed(tomllib.loads, text))


def parsed_json(text: str) -> Any:
    """Return the value of a JSON text.

    A ValueError if it is none, or nested too deeply.
    """
    return _parsed(json.loads, text)


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    """Return a parser's value of a text that others may have written."""
    with suppress(RecursionError):
        value = parse(text)
        if not is_deep(value):
            return value
    raise ValueError(f"lists or tables lie in each other, more than {_DEEPEST} deep")


def is_deep(value: Any) -> bool:
    """Return whether lists and mappings are nested deeper than in the library's files.

    Code that walks through such values later, to compare or to print them, could fail
    half way.
    """
    level = [value]
    for _ in range(_DEEPEST):
        # One level after the other: a function that calls itself would fail here
        # already.
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
    """Open a new binary file, its owner's alone, in place of an existing one.

    It has its name from the end of ``with`` on, when all of it is written. After an
    error, what was there before is still there. A `ConfigurationError` if that cannot
    be, as where a directory has the name or the disk is full.
    """
    return _PrivateFile(Path(path))


@contextmanager
def written_together(output: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Yield a directory for one run's files, which move to ``output`` at the end.

    Of these names, those that the run did not write are removed there: they are of a
    run before. After an error nothing in ``output`` is changed.
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
        # The user knows the place where the file would be, and not the one where it was
        # written.
        raise type(error)(str(error).replace(str(place), str(output))) from None
    except OSError as error:
        raise ConfigurationError(
            f"Expected a file that can be written. "
            f"Got {error.filename2 or error.filename or output}: {reason_and_cure(error)}."
        ) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def printable(text: str) -> str:
    r"""Return text in which all that cannot be seen is escaped, as ``\x1b``.

    Names of columns come from data files. A terminal would obey control characters in
    them, and others change the order of what is read.
    """
    shown = []
    for character in text:
        if not character.isprintable():
            character = character.encode("unicode_escape").decode("ascii")
        shown.append(character)
    return "".join(shown)


def csv_name(text: str) -> str:
    """Return a name for a csv file: `printable`, after ``'`` if it could be a formula.

    Some spreadsheets begin a new cell at each semicolon.
    """
    return ";".join(map(inert, printable(text).split(";")))


def inert(text: str) -> str:
    """Return a text for a cell, after ``'`` if it could be a formula."""
    return f"'{text}" if _is_formula(text) else text


def _is_formula(text: str) -> bool:
    """Return whether a text begins with =, +, - or @, or a look-alike.

    Spreadsheets drop what shows nothing, and some of them take full-width and other
    forms of a character for the character.
    """
    for character in text:
        for plain in unicodedata.normalize("NFKD", character):
            category = unicodedata.category(plain)
            if category[0] in "ZCM" or plain in _BLANK:
                continue
            return plain in _FORMULA or plain == _MINUS or category == "Pd"
    return False


def prepare_directory(output: Path) -> None:
    """Create the directory for results, and require that it can be written to."""
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
