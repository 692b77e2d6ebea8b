"""Files that the library writes: their owner's alone, and no names in them that act."""

import csv
import io
import os
import stat
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.files import csv_name, open_private, printable


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("before", [None, 0o666, 0o444])
def test_a_private_file_is_its_owners_alone_whatever_was_there(umask, before, tmp_path):
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(b"a longer content than the new one")
        path.chmod(before)
    old = os.umask(umask)
    try:
        with open_private(path) as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
            file.write(b"new")
    finally:
        os.umask(old)
    assert path.read_bytes() == b"new"


def test_a_link_is_replaced_and_not_followed(tmp_path):
    target, path = tmp_path / "target", tmp_path / "file"
    target.write_bytes(b"kept")
    path.symlink_to(target)
    with open_private(path) as file:
        file.write(b"new")
    assert target.read_bytes() == b"kept"
    assert not path.is_symlink()


@given(st.text())
def test_nothing_invisible_is_left(text):
    shown = printable(text)
    assert shown.isprintable()
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in shown)
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\u202eb", r"a\u202eb"),
        ("two\nlines\t", r"two\nlines\t"),
        ("größe (m²)", "größe (m²)"),
    ],
)
def test_what_is_escaped(text, shown):
    assert printable(text) == shown


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
        ('=HYPERLINK("http://x","y")', '\'=HYPERLINK("http://x","y")'),
        ("  =1", "'  =1"),
        ("-income", "'-income"),
        ("@sum", "'@sum"),
        ("\t=1", r"\t=1"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_what_could_be_a_formula_is_text(text, name):
    assert csv_name(text) == name
