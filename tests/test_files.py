"""Files that the library writes: their owner's alone, and no names in them that act."""

import csv
import io
import os
import stat
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import csv_name, open_private, prepare_directory, printable


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


def test_a_directory_in_the_place_of_a_file_is_one_sentence(tmp_path):
    with pytest.raises(ConfigurationError, match="Expected a file that can be written"):
        open_private(tmp_path)


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
        ("", ""),
    ],
)
def test_what_acts_is_escaped(text, name):
    assert csv_name(text) == name
