"""Numbers, dates and missing cells as they are written in different countries."""

from datetime import date, datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.data.spelling import (
    MISSING_TEXTS,
    USUAL,
    Spelling,
    are_missing,
    is_missing,
)
from flower_kmeans.errors import ConfigurationError

GERMAN = Spelling(",", ".")
FRENCH = Spelling(",", " ")
SWISS = Spelling(".", "'")
INDIAN = Spelling(".", ",")
NAN = float("nan")


@pytest.mark.parametrize(
    ("spelling", "text", "number"),
    [
        (GERMAN, "1.234,5", 1234.5),
        (GERMAN, "1234,5", 1234.5),
        (GERMAN, "-1.234.567", -1234567),
        (GERMAN, "1.23", NAN),
        (GERMAN, "1.2345", NAN),
        (GERMAN, "12.34,5", NAN),
        (GERMAN, "1,5e3", 1500),
        (GERMAN, ",5", 0.5),
        (GERMAN, "5,", 5),
        (GERMAN, "1,234,5", NAN),
        (GERMAN, " 7 ", 7),
        (GERMAN, "true", 1),
        (GERMAN, "inf", NAN),
        (GERMAN, "", NAN),
        (GERMAN, b"1,5", 1.5),
        (GERMAN, 1.5, 1.5),
        (Spelling(","), "1.234,5", NAN),
        (Spelling(","), "1.234", NAN),
        (FRENCH, "1 234,5", 1234.5),
        (FRENCH, "1\u202f234,5", 1234.5),
        (FRENCH, "1\u00a0234", 1234),
        (SWISS, "1'234.5", 1234.5),
        (SWISS, "1\u2019234.5", 1234.5),
        (INDIAN, "1,234,567.5", 1234567.5),
        (INDIAN, "1,5", NAN),
        (USUAL, "1.5", 1.5),
        (USUAL, "1,5", NAN),
        (USUAL, "0x10", NAN),
        (USUAL, "1_0", NAN),
    ],
)
def test_a_number_is_read_as_it_is_written_or_not_at_all(spelling, text, number):
    np.testing.assert_equal(spelling.number(text), number)
    np.testing.assert_equal(
        spelling.numbers(np.array([text, "?"], dtype=object))[0], number
    )


@given(st.integers(-(10**12), 10**12), st.integers(0, 99))
def test_what_python_writes_in_a_countrys_way_is_read_again(whole, fraction):
    text = f"{whole:,}.{fraction:02}"
    expected = float(text.replace(",", ""))
    assert INDIAN.number(text) == expected
    for spelling, group, decimal in (
        (GERMAN, ".", ","),
        (FRENCH, " ", ","),
        (SWISS, "'", "."),
    ):
        written = text.replace(",", "_").replace(".", decimal).replace("_", group)
        assert spelling.number(written) == expected


@given(st.text(alphabet="0123456789.,' -+eE", max_size=9))
def test_no_text_raises_or_means_two_numbers(text):
    found = {
        number
        for spelling in (GERMAN, Spelling(","))
        if not np.isnan(number := spelling.number(text))
    }
    assert len(found) <= 1


@pytest.mark.parametrize("text", sorted(MISSING_TEXTS))
def test_texts_of_missing_cells(text):
    for cell in (text, f" {text.upper()} ", text.encode()):
        assert is_missing(cell)


@pytest.mark.parametrize(
    "cell", [None, NAN, pd.NA, pd.NaT, np.datetime64("NaT"), np.float32(NAN)]
)
def test_objects_that_are_missing(cell):
    assert is_missing(cell)
    assert are_missing(np.array([cell, "x"], dtype=object)).tolist() == [True, False]


@pytest.mark.parametrize(
    "cell", [0, "0", "-", ".", "?", False, [], "nano", date(2024, 1, 1)]
)
def test_what_is_not_missing(cell):
    assert not is_missing(cell)


def test_dates_of_another_format():
    spelling = Spelling(date_format="%d.%m.%Y")
    assert spelling.date(" 29.02.2024 ") == datetime(2024, 2, 29)
    for text in ("2024-02-29", "30.02.2024", "29.02.24"):
        with pytest.raises(ValueError, match=r"."):
            spelling.date(text)
    assert USUAL.date("2024-02-29T10:00") == datetime(2024, 2, 29, 10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decimal": ";"}, "decimal as"),
        ({"thousands": "_"}, "thousands as one of"),
        ({"decimal": ",", "thousands": ","}, "other than decimal"),
        *(
            ({"date_format": text}, "day, month and year")
            for text in ("%Y", "%m/%Y", "x", "%")
        ),
    ],
)
def test_what_is_no_spelling_is_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        Spelling(**options)
