"""What is found of cells: how they look, what that means, and which columns nobody would use."""

import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.cli.limits import LIMITS, judge, limits_in_words, share_text
from flower_kmeans.data.domain import Ball, Box
from flower_kmeans.data.findings import ColumnFindings, Findings, named_counts, shape_of
from flower_kmeans.data.guesses import Guess, guess
from flower_kmeans.data.spelling import USUAL, Spelling, are_missing
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.data.tables import load_table
from flower_kmeans.errors import DataError

DOMAIN = """
[[columns]]
kind = "number"
name = "age"
lower = 0
upper = 100
[[columns]]
kind = "category"
name = "ward"
values = ["surgery", "medicine"]
missing = "medicine"
[[columns]]
kind = "date"
name = "day"
lower = 2020-01-01
upper = 2020-12-31
"""


def objects(cells):
    return np.fromiter(cells, dtype=object, count=len(cells))


def numbers_found(cells, name="x", blocks=1, bounds=None, spelling=USUAL):
    """Return findings on a column of numbers that comes in blocks."""
    found = ColumnFindings(name)
    for own in np.array_split(objects(list(cells)), blocks):
        values = spelling.numbers(own)
        values = np.where(np.isfinite(values), values, np.nan)
        found.add(own, values, are_missing(own), bounds)
    return found


@pytest.mark.parametrize(
    ("cell", "shape"),
    [
        ("12,5", "99,9"),
        ("Jane Doe", "aaaa aaa"),
        ("Žofie", "aaaaa"),
        (" 1.234,50 €", "9.999,99 ?"),
        ("\u2665", "?"),
        ("x" * 99, "a" * 24),
        ("Infinity", "inf"),
        ("0xFF", "0x99"),
        (b"12", "99"),
        (b"\xe4", "\ufffd"),
        ("a\ufffdb", "\ufffd"),
        ([1, 2], "<list>"),
    ],
)
def test_a_cell_looks_like_its_digits_letters_and_punctuation(cell, shape):
    assert shape_of(cell) == shape


@pytest.mark.claim("own-data", "cell-unreadable-if-neither")
@pytest.mark.parametrize(
    ("cell", "cause"),
    [
        ("12,5", "a decimal comma: --decimal ,"),
        ("1,234", "a decimal comma, or one between thousands"),
        ("1,234,567", "commas between thousands"),
        ("1.234,5", "points between thousands and a decimal comma"),
        ("1.234.567", "points between thousands"),
        ("1 234 567,5", "spaces between thousands"),
        ("1'234", "apostrophes between thousands"),
        ("0x1F", "hexadecimal"),
        ("12.5 %", "percentages"),
        ("29.02.2024", "dates as days and months"),
        ("2024-02-29", "dates: declare"),
        ("12 kg", "a unit or a currency"),
        ("$ 12", "a unit or a currency"),
        ("1;2", "another delimiter"),
        ("inf", "infinite"),
        (b"\xe4", "another encoding"),
        ("< 0,5", "below or above a limit"),
        (">=200", "below or above a limit"),
        ("k. A.", "signs for a missing cell"),
        ("-", "signs for a missing cell"),
        ("surgery", None),
    ],
)
def test_why_cells_are_unreadable(cell, cause):
    found = numbers_found([cell, 1])
    assert (found.n_unreadable, found.n_read) == (1, 1)
    assert found.cause is None if cause is None else cause in found.cause


def test_amounts_with_and_without_points_between_thousands_have_one_cause():
    found = numbers_found(["999,99", "12,50", "1.234,50", 1])
    assert found.cause == (
        "points between thousands and a decimal comma: --thousands . with --decimal ,"
    )
    assert numbers_found(["999,99", "12,50", 1]).cause == "a decimal comma: --decimal ,"


@pytest.mark.claim("own-data", "cell-unreadable-if-neither")
def test_two_causes_of_one_column_are_named_and_rare_ones_are_not():
    found = numbers_found(["1,5"] * 60 + ["<0,5"] * 30 + ["k. A."] * 20 + ["12 kg", 1])
    assert found.cause == (
        "a decimal comma: --decimal , (some like numbers below or above a limit: write one number "
        "in place of them)"
    )
    assert (
        numbers_found(["1,5"] * 99 + ["12 kg"]).cause == "a decimal comma: --decimal ,"
    )
    assert numbers_found(["surgery"] * 2 + ["12 kg"]).cause is None


def test_signs_for_a_missing_cell_are_named_in_categories_too():
    found = ColumnFindings("ward", "category")
    cells = objects(["k. A.", "k. A.", "12 kg", "surgery"])
    found.add(cells, np.array([np.nan, np.nan, np.nan, 1.0]), are_missing(cells))
    assert found.cause == "signs for a missing cell: leave the cell empty"


def test_what_helps_is_said_of_cells_and_of_lines():
    def said(*, unreadable, malformed):
        column = numbers_found(["12 kg", 1] if unreadable else [2, 1])
        findings = Findings((column,), column.n_records)
        if malformed:
            findings.add_malformed(1, 7)
        with pytest.raises(DataError) as error:
            findings.require_readable("FILE")
        return "Correct these cells" in str(error.value), "these lines;" in str(
            error.value
        )

    for unreadable, malformed in ((True, False), (False, True), (True, True)):
        assert said(unreadable=unreadable, malformed=malformed) == (
            unreadable,
            malformed,
        )


LETTERS = "\u03b1\u03b2\u03b3\u03b4"  # in no sentence of ours


@pytest.mark.claim("own-data", "findings-show-no-text")
@given(
    st.lists(st.text(LETTERS, min_size=1, max_size=9), min_size=1, max_size=5),
    st.lists(
        st.integers(123_456, 876_543).filter(lambda n: "9" not in str(n)), max_size=5
    ),
    st.sampled_from(["age", "ward", "day"]),
)
def test_findings_show_no_text_and_no_number_of_a_cell(words, values, name):
    domain = TableDomain.from_toml(DOMAIN)
    cells = [
        *words,
        *(f"{value}" for value in values),
        *(f"{value}?" for value in values),
    ]
    table = {"age": ["1"] * len(cells), "ward": ["surgery"] * len(cells)}
    table |= {"day": ["2020-02-03"] * len(cells), name: cells}
    findings = domain.findings()
    domain.examine(table, findings)
    assert findings.n_records == len(cells)
    assert any(column.n_unreadable for column in findings.columns)
    judged = judge(findings, {})
    shown = [repr(findings), *findings.lines(), *judged.refused, *judged.notes]
    for require in (findings.require_readable, findings.require_present):
        with suppress(DataError):
            require("the table")
            continue
        shown.append(error_of(require))
    for cell in (*words, *map(str, values)):
        assert cell not in "\n".join(shown)


def error_of(require):
    with pytest.raises(DataError) as error:
        require("the table")
    return str(error.value)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.integers(1, 7))
def test_blocks_change_no_finding(cells, blocks):
    cells = [*cells, "", "x"]
    for each in (cells, range(len(cells) + 50), [4] * len(cells)):
        whole = numbers_found(each, bounds=(-1, 1))
        assert numbers_found(each, bounds=(-1, 1), blocks=blocks) == whole


class TestSuspicion:
    @pytest.mark.parametrize("start", [0, 1, 7_001])
    def test_numbers_of_rows(self, start):
        assert numbers_found(range(start, start + 50)).looks_like_row_numbers
        assert not numbers_found(range(start, start + 49)).looks_like_row_numbers
        assert not numbers_found(range(start, start + 100, 2)).looks_like_row_numbers

    def test_ids_are_whole_numbers_that_differ_although_chance_would_make_some_equal(
        self,
    ):
        rng = np.random.default_rng(3)
        ids = rng.permutation(200) + 70_000
        assert numbers_found(ids).looks_like_id
        # an export repeats some lines
        assert numbers_found([*ids, *ids[:5]]).looks_like_id
        assert not numbers_found([*ids, *ids[:20]]).looks_like_id
        assert not numbers_found(ids + 0.5).looks_like_id
        # Amounts differ as well, since there are many.
        amounts = rng.choice(90_000, 60, replace=False)
        assert not numbers_found(amounts).looks_like_id
        assert numbers_found(amounts, name="key").looks_like_id

    @pytest.mark.parametrize(
        "name", ["id", "ID", "patient_id", "patientId", "PatientID", "id.2"]
    )
    def test_a_name_says_that_values_are_ids_also_if_some_are_equal(self, name):
        assert numbers_found([10**6, 10**6 + 77] * 30, name=name).looks_like_id
        assert not numbers_found([1.5, 2.5] * 30, name=name).looks_like_id

    @pytest.mark.parametrize("name", ["paid", "width", "idea", "nocturnal"])
    def test_other_names_do_not(self, name):
        assert not numbers_found(np.arange(60) ** 3, name=name).looks_like_id

    def test_points_may_stand_between_thousands(self):
        prices = ["1.234", "12.500", "950", "-2.000"]
        assert "three digits" in numbers_found(prices * 10).doubt
        assert "three digits" in Findings((numbers_found(prices * 10),)).lines()[0]
        assert numbers_found(prices * 5).doubt is None  # too few
        for other in ("0.234", "1.25", "1.2345"):  # which no group is
            assert numbers_found([*prices * 10, other]).doubt is None
        assert numbers_found(["1234"] * 40).doubt is None

    def test_one_value_and_none(self):
        assert numbers_found([2, "", 2.0]).is_constant
        assert not numbers_found([2, ""]).is_constant
        assert numbers_found(["", "NA"]).is_empty
        assert not numbers_found([]).is_empty
        assert not numbers_found(["", "x"]).is_empty

    def test_codes(self):
        assert numbers_found([1, 2, 3] * 20).looks_like_a_code
        assert not numbers_found([1, 2, 3]).looks_like_a_code
        assert not numbers_found(list(range(11)) * 9).looks_like_a_code


class TestLines:
    def test_two_lines_at_most_with_counts_by_column(self):
        found = Findings(
            (
                numbers_found(range(60), name="patient", bounds=(0, 9)),
                numbers_found(
                    [*[""] * 3, *["1,5"] * 2, *[0.5] * 55], name="age", bounds=(1, 2)
                ),
            ),
            n_records=61,
            n_void=6,
        )
        found.n_malformed, found.first_malformed = 1, 17
        first, second = found.lines()
        assert first == (
            "6 of 61 records count as none; malformed lines: 1, the first is line 17; missing "
            "cells: 3 of 'age'; unreadable cells: 2 of 'age' (they look like a decimal comma: "
            "--decimal ,); values moved to the bounds, of 61 records: 55 of 'age', 50 of 'patient'."
        )
        assert second == (
            "Look at the columns: 'patient' looks like a number of rows; 'age' has one value only."
        )

    def test_no_line_where_all_is_as_expected(self):
        assert Findings((numbers_found([1, 2, 3]),), n_records=3).lines() == []

    def test_many_columns_stay_one_line(self):
        text = named_counts([(f"c{i}", i) for i in range(100)])
        assert text.startswith("99 of 'c99', 98 of 'c98'")
        assert text.endswith("and some of 91 further columns")


class TestLimits:
    @pytest.mark.claim("deploy", "shares-rounded-neither-value")
    @pytest.mark.parametrize(
        ("cells", "bounds", "words"),
        [
            (["x"] * 5 + [1, 2] * 47 + [3], None, "under no limit"),
            (["x"] * 6 + [1, 2] * 47, None, "no number in about 6 %"),
            ([""] * 20 + [1, 2] * 40, None, "under no limit"),
            ([""] * 21 + [1, 2] * 39 + [3], None, "no value in about 21 %"),
            ([9] * 5 + [1, 2] * 47 + [1], (0, 2), "under no limit"),
            ([9] * 6 + [1, 2] * 47, (0, 2), "outside the bounds with about 6 %"),
            (["NA"] * 100, None, "a column without a value"),
            ([7] * 100, None, "one value only"),
            (range(100), None, "a number of rows"),
            (np.random.default_rng(0).permutation(100), None, "looks like an id"),
            # As of an export that repeats two lines.
            ([*range(50), 49, *range(50, 99)], None, "a number of rows"),
            ([*np.random.default_rng(0).permutation(99), 7], None, "looks like an id"),
        ],
    )
    def test_a_column_is_refused_above_them_and_accepted_with_a_reason(
        self, cells, bounds, words
    ):
        findings = Findings((numbers_found(cells, bounds=bounds),), n_records=100)
        judged = judge(findings, {})
        if words == "under no limit":
            assert judged.refused == []
            assert len(judged.notes) == 1
            return
        (refused,) = judged.refused
        assert refused.startswith("'x' ")
        assert words in refused
        assert any(limit.why in refused for limit in LIMITS)
        judged = judge(findings, {"x": "the study is so"})
        assert (judged.refused, judged.notes) == ([], [])
        (accepted,) = judged.accepted
        assert words in accepted
        assert accepted.endswith(", accepted because: the study is so")

    def test_lines_and_records_are_accepted_for_all_columns(self):
        findings = Findings(
            (numbers_found([1, 2]),), n_records=100, n_malformed=2, n_void=51
        )
        judged = judge(findings, {}, share_outside_ball=0.06)
        assert len(judged.refused) == 3
        judged = judge(
            findings, {"lines": "a", "records": "b"}, share_outside_ball=0.06
        )
        assert [text[-1] for text in judged.accepted] == ["a", "b", "b"]
        findings.n_malformed, findings.n_void = 1, 50
        assert len(judge(findings, {}, share_outside_ball=0.05).notes) == 3
        for n in (0, 100):  # neither an empty table nor one without a usable record
            findings = Findings((ColumnFindings("x"),), n_records=n, n_void=n)
            (refused,) = judge(findings, {"records": "a", "x": "a"}).refused
            assert refused.startswith("no usable record")

    @pytest.mark.parametrize(
        ("share", "text"),
        [
            (0, "none"),
            (1e-9, "under 1 %"),
            (0.0099, "under 1 %"),
            (0.01, "about 1 %"),
            (0.954, "about 95 %"),
            (0.995, "over 99 %"),
            (1, "all"),
        ],
    )
    def test_shares_are_rounded(self, share, text):
        assert share_text(share) == text

    def test_all_limits_are_in_one_sentence(self):
        words = limits_in_words()
        assert all(limit.what in words for limit in LIMITS)
        assert re.findall(r"\d+ %", words) == ["5 %", "20 %", "5 %", "1 %", "50 %"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["", None, "NA"], Guess("empty")),
        (["1", "", "x", "2.5"], Guess("number")),
        (["1.234,5", "7,25", "1"], Guess("number")),
        (["2024-02-29", "x", "2024-01-01"], Guess("date")),
        (["29.02.2024", "01.02.2024"], Guess("date", ("%d.%m.%Y",))),
        (["01/02/2024"], Guess("date", ("%d/%m/%Y", "%m/%d/%Y"))),
        (["31/01/2024", "01/02/2024"], Guess("date", ("%d/%m/%Y",))),
        (["a", "b", "a", "b"], Guess("category")),
        (["a", "b"], Guess("free text")),
        ([f"P{i}" for i in range(50)], Guess("id")),
        ([f"P{i}" for i in range(49)], Guess("free text")),
        ([f"v{i}" for i in range(21)] * 4, Guess("free text")),
        ([f"v{i}" for i in range(20)] * 4, Guess("category")),
        (["10.0.0.1", "10.0.0.2"], Guess("free text")),
        (["2.371,50 €", "12,00 €"], Guess("number")),
        (["12 kg", "7,5 kg"], Guess("number")),
        (["< 0,5", ">200"], Guess("number")),
        (["I10", "E11.9"], Guess("free text")),
        (["12 mg taken", "3 mg taken"], Guess("free text")),
        (["11.02.2023 14:06", "1.2.2023 4:06"], Guess("date", ("%d.%m.%Y %H:%M",))),
    ],
)
def test_a_column_is_guessed_by_what_most_of_its_cells_are(cells, expected):
    assert guess(objects(cells), USUAL) == expected


def test_typed_columns_are_what_their_type_says():
    assert guess(np.array([1, 2]), USUAL) == Guess("number")
    assert guess(np.array([1.5, np.nan]), USUAL) == Guess("number")
    assert guess(np.array(["2024-01-01", "NaT"], "datetime64[D]"), USUAL) == Guess(
        "date"
    )
    assert guess(np.array([np.nan]), USUAL) == Guess("empty")
    comma = Spelling(decimal=",", date_format="%d/%m/%Y")
    assert guess(objects(["1,5", "2"]), comma) == Guess("number")
    assert guess(objects(["01/02/2024"]), comma) == Guess("date")


RECORDS = np.random.default_rng(4).normal(scale=3.0, size=(500, 2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_outside_are_those_that_the_bounds_move(dtype):
    records = RECORDS.astype(dtype)
    box = Box([-1.0, 0.0], [2.0, 5.0])
    moved = np.abs(box.from_unit(box.to_unit(records.astype(float))) - records) > 1e-6
    assert moved.any(axis=0).all()
    assert box.outside(records).tolist() == moved.sum(axis=0).tolist()
    ball = Ball(2.0, [1.0, 0.0])
    moved = np.abs(ball.from_unit(ball.to_unit(records.astype(float))) - records) > 1e-6
    assert ball.outside(records).tolist() == [moved.any(axis=1).sum()]
    assert ball.outside(np.array([[1e300, -1e300]])).tolist() == [1]
    for domain, zeros in ((box, [0, 0]), (ball, [0])):
        assert domain.outside(np.empty((0, 2))).tolist() == zeros


def test_a_source_file_says_how_cells_are_written(tmp_path, caplog):
    """And what is found of a load is logged once, without a cell."""
    (tmp_path / "t.csv").write_text("age;fare\n41;1,5\n42;\n43;x\n44;2,5;3\n")
    source = tmp_path / "source.toml"
    source.write_text('data = "t.csv"\ndelimiter = ";"\ndecimal = ","\n')
    source.chmod(0o600)
    with caplog.at_level("WARNING", "flower_kmeans.data"):
        table = load_table(source, malformed="nan", header=True)
    np.testing.assert_array_equal(table.records[0], [41.0, 1.5])
    assert np.isnan(table.records[1:]).any(axis=1).all()
    assert [record.getMessage() for record in caplog.records] == [
        "source.toml: 3 of 4 records count as none; malformed lines: 1, the first is line 5; "
        "missing cells: 1 of 'fare'; unreadable cells: 1 of 'fare'."
    ]
