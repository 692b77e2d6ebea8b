"""What a notebook shows: the values that were given, escaped, and the first of many."""

import pytest

from flower_kmeans.templates import TextTable, html_summary, shown

HOSTILE = "<img src=x onerror=alert(1)>&\u202e\n"


@pytest.mark.claim("tutorial", "notebook-shows-table-strategy")
def test_every_value_is_escaped_and_no_control_character_is_left():
    table = TextTable(HOSTILE, (HOSTILE,), ((HOSTILE,),))
    page = html_summary(
        HOSTILE, {HOSTILE: HOSTILE}, [table], [HOSTILE, f"WARNING {HOSTILE}"]
    )
    assert "<img" not in page
    assert "\u202e" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;&amp;") == 8


def test_facts_that_are_not_known_are_left_out_and_what_denies_a_guarantee_comes_first():
    page = html_summary(
        "Title", {"known": 3, "unknown": None}, (), ["a note", "NOT PRIVATE: why"]
    )
    assert "known</th>" in page
    assert "unknown" not in page
    assert (
        page.index("NOT PRIVATE: why") < page.index("known</th>") < page.index("a note")
    )


@pytest.mark.parametrize(
    ("rows", "columns", "is_cut"), [(50, 20, False), (51, 20, True), (50, 21, True)]
)
def test_of_a_large_table_the_first_rows_and_columns_are_shown(rows, columns, is_cut):
    cells = tuple(tuple(f"[{i} {j}]" for j in range(columns)) for i in range(rows))
    page = html_summary(
        "Title", {}, [TextTable("Caption", [f"<{j}>" for j in range(columns)], cells)]
    )
    assert page.count("<td>[") == 50 * 20
    assert ("Shown: 50 of" in page) == is_cut
    assert (f"of {rows} rows, 20 of {columns} columns" in page) == is_cut


@pytest.mark.parametrize(
    ("value", "text"),
    [(1 / 3, "0.333333"), (1.0, "1"), ("a", "'a'"), (None, "None"), (7, "7")],
)
def test_values_in_few_characters(value, text):
    assert shown(value) == text
