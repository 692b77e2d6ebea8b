"""Files that the library writes: their owner's alone, and no names in them that act."""

import csv
import errno
import io
import os
import re
import resource
import stat
import unicodedata
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import (
    csv_name,
    open_private,
    parsed_json,
    parsed_toml,
    prepare_directory,
    printable,
    read_toml,
    reason_and_cure,
    written_together,
)


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("before", [None, 0o666, 0o444, "link"])
def test_a_private_file_is_its_owners_alone_whatever_was_there(umask, before, tmp_path):
    path, target = tmp_path / "file", tmp_path / "target"
    target.write_bytes(b"a longer content than the new one")
    if before == "link":
        path.symlink_to(target)
    elif before is not None:
        path.write_bytes(target.read_bytes())
        path.chmod(before)
    old = os.umask(umask)
    try:
        with open_private(path) as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
            file.write(b"new")
    finally:
        os.umask(old)
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()
    assert len(target.read_bytes()) > 3  # a link is replaced and not followed


def test_what_is_no_file_is_left_and_one_sentence(tmp_path):
    with pytest.raises(ConfigurationError, match="Expected a file that can be written"):
        open_private(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match=r"pipe: It is not an ordinary file\."):
        open_private(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with pytest.raises(
        ConfigurationError, match="No such file or directory: make its directory"
    ):
        open_private(tmp_path / "none" / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
FULL_WORDS = "No space left on device: make room there, or name another place"
LARGE_WORDS = "File too large: let this user write larger files, or name another place"
LIMIT = 10_000


@contextmanager
def failing(at):
    """Let the machine refuse to write on; return the words that say so.

    At "write" it is the operating system itself, by a limit on the size of files.
    """
    if at == "write":
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
        try:
            yield LARGE_WORDS
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return
    with pytest.MonkeyPatch.context() as patch:

        def fail(*args, **kwargs):
            raise FULL

        patch.setattr(os, at, fail)
        yield FULL_WORDS


def save(path, content, error=None):
    with open_private(path) as file:
        file.write(content)
        if error is not None:
            raise error


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
@pytest.mark.parametrize("before", [None, b"an earlier result"])
def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(tmp_path, at, before):
    path = tmp_path / "result.npz"
    if before is not None:
        path.write_bytes(before)
    with (
        failing(at) as words,
        pytest.raises(ConfigurationError, match=f"result.npz: {words}"),
        open_private(path) as file,
    ):
        np.savez(file, values=np.arange(LIMIT))
    assert names_in(tmp_path) == ([] if before is None else ["result.npz"])
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_full_disk_is_the_cause_whatever_a_library_makes_of_it(tmp_path, goes_on):
    def save_by_a_library(file):
        try:
            file.write(bytes(10 * LIMIT))
        except OSError:
            if not goes_on:
                raise ValueError("the library's own") from None

    with (
        failing("write") as words,
        pytest.raises(ConfigurationError, match=words),
        open_private(tmp_path / "a") as file,
    ):
        save_by_a_library(file)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_another_error_is_its_callers_and_leaves_what_was_there(tmp_path, error):
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(type(error)):
        save(tmp_path / "a", b"half", error)
    assert names_in(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"before"


def test_a_file_has_its_name_when_it_is_whole(tmp_path):
    with open_private(tmp_path / "a") as file:
        file.write(b"half")
        file.flush()
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_bytes() == b"half"


@pytest.mark.claim("own-data", "on-error-such-full")
def test_files_of_one_run_take_their_places_together(tmp_path):
    names = ("report.json", "centroids.npz", "picture.png")

    def write(content, chosen, output=tmp_path):
        with written_together(output, names) as place:
            for name in chosen:
                save(place / name, content)

    (tmp_path / "notes.txt").touch()
    write(b"1", names)
    assert names_in(tmp_path) == sorted([*names, "notes.txt"])
    # a run without a picture: that of the run before is no longer right
    write(b"2", names[:2])
    assert names_in(tmp_path) == sorted([*names[:2], "notes.txt"])
    for at in ("write", "fsync"):
        with failing(at) as words, pytest.raises(ConfigurationError) as caught:
            write(bytes(10 * LIMIT), names)
        assert f"Got {tmp_path / 'report.json'}: {words}" in str(caught.value)
    assert names_in(tmp_path) == sorted([*names[:2], "notes.txt"])
    assert {(tmp_path / name).read_bytes() for name in names[:2]} == {b"2"}
    with pytest.raises(ConfigurationError, match="output to be a directory"):
        write(b"5", names, tmp_path / "none")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FULL, FULL_WORDS),
        (
            PermissionError(errno.EACCES, "Permission denied"),
            "let this user write there",
        ),
        (
            OSError(errno.EROFS, "Read-only file system"),
            "name a place that is not read-only",
        ),
        (
            FileNotFoundError(
                errno.ENOENT, "No usable temporary directory found in ['/tmp']"
            ),
            r"found in \['/tmp'\]: make room in one of these, or name another one in TMPDIR",
        ),
        (
            OSError(errno.EXDEV, "Invalid cross-device link"),
            "^Invalid cross-device link$",
        ),
        (OSError("in words alone"), "^in words alone$"),
        (OSError(), "^OSError$"),
    ],
)
def test_an_error_of_the_machine_has_its_reason_and_a_cure(error, words):
    assert re.search(words, reason_and_cure(error))


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path):
    prepare_directory(tmp_path / "new" / "output")
    assert not list((tmp_path / "new" / "output").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="output to be a directory"):
        prepare_directory(tmp_path / "file")


@given(st.text())
def test_nothing_invisible_is_left(text):
    shown = printable(text)
    assert shown.isprintable()
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in shown)
    if text.isprintable():
        assert shown == text


@given(st.text(st.characters() | st.sampled_from("=+-@'\t\r ")))
def test_no_name_is_a_formula(text):
    name = csv_name(text)
    assert not name.lstrip().startswith(("=", "+", "-", "@"))
    assert name.isprintable()
    row = io.StringIO(newline="")
    csv.writer(row).writerow([name, "next"])
    assert next(csv.reader(io.StringIO(row.getvalue(), newline=""))) == [name, "next"]


# What NFKC makes a sign of, and the minus sign, which it leaves as it is.
SIGNS = [
    chr(code)
    for code in range(0x110000)
    if chr(code) == "\u2212"
    or unicodedata.normalize("NFKC", chr(code)) in ("=", "+", "-", "@")
]
HIDDEN = [
    "\t",
    "\r",
    "\n",
    "\0",
    " ",
    "\xa0",
    "\u200b",
    "\u2060",
    "\ufeff",
    "\u034f",
    "\u3164",
]


@pytest.mark.claim("threat-model", "no-name-no-category")
@pytest.mark.parametrize("hidden", ["", *HIDDEN])
def test_no_other_form_of_a_sign_begins_a_cell(hidden):
    """A cell begins with a sign after what shows nothing, or at a semicolon."""
    assert {"=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\ufe66"} < {
        *SIGNS
    }
    for sign in SIGNS:
        text = f"{hidden}{sign}1+1"
        for name in (csv_name(text), csv_name(f"a;{text}").removeprefix("a;")):
            # An escape, as of a tab, begins with a backslash.
            assert name[0] in "'\\", (hidden, sign)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\u202eb", r"a\u202eb"),
        ("größe (m²)", "größe (m²)"),
        ('=HYPERLINK("http://x","y")', '\'=HYPERLINK("http://x","y")'),
        ("  =1", "'  =1"),
        ("-income", "'-income"),
        ("\t=1", r"\t=1"),
        ("a=b", "a=b"),
        ("\uff1dcmd|' /C calc'!A0", "'\uff1dcmd|' /C calc'!A0"),
        ("\u034f=1", "'\u034f=1"),
        ("\u3164@SUM(1)", "'\u3164@SUM(1)"),
        ("a;=1+1", "a;'=1+1"),
        ("a;b", "a;b"),
        ("\u2260 1", "'\u2260 1"),
        ("", ""),
    ],
)
def test_what_acts_is_escaped(text, name):
    assert csv_name(text) == name


@pytest.mark.claim("threat-model", "files-run-documents-nested")
@pytest.mark.parametrize("depth", [33, 900, 100_000])
@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parsed_toml, lambda n: f"x={'[' * n}{']' * n}"),
        (parsed_toml, lambda n: f"x={'{a=' * n}1{'}' * n}"),
        (parsed_toml, lambda n: ".".join("a" * min(n, 2_000)) + "=1"),
        (parsed_json, lambda n: f"{'[' * n}{']' * n}"),
        (parsed_json, lambda n: '{"a":' * n + "1" + "}" * n),
    ],
)
def test_what_lies_too_deep_is_a_value_error(parse, text, depth):
    with pytest.raises(ValueError, match="more than 32 deep"):
        parse(text(depth))


def test_what_lies_less_deep_is_read():
    assert (
        parsed_json("[" * 30 + "]" * 30) == parsed_toml(f"x={'[' * 30}{']' * 30}")["x"]
    )
    with pytest.raises(
        ConfigurationError, match="The file of x is not TOML: lists or tables"
    ):
        read_toml(b"x=" + b"[" * 5_000, "file of x")
