"""HTML from plain functions: whatever is not markup is text, whatever it holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import addresses, read, tables

from flower_kmeans.webreport.markup import Markup, escaped, facts, join, section, table, tag

PRINTABLE = st.text().map(lambda text: "".join(c for c in text if c.isprintable()))


@given(PRINTABLE, PRINTABLE)
def test_any_text_comes_back_from_an_element_and_from_an_attribute(text, value):
    element = read(tag("p", text, title=value)).the("p")
    assert element.text == text
    assert element.attributes == {"title": value}


@pytest.mark.parametrize("character", ["\u202e", "\u2066", "\x00", "\n", "\x1b", "\u200b"])
def test_characters_that_do_not_print_are_replaced(character):
    assert escaped(f"a{character}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_markup_is_not_escaped_twice():
    inner = tag("b", "<&>")
    assert inner == "<b>&lt;&amp;&gt;</b>"
    assert join([inner, "<"]) == "<b>&lt;&amp;&gt;</b>&lt;"
    assert isinstance(inner + "", str)
    assert not isinstance(inner + "<i>", Markup)  # a sum is text again, and will be escaped


def test_attributes_are_written_as_html_and_svg_call_them():
    made = tag("rect", class_="a", stroke_width=2, viewBox="0 0 1 1", rx=None)
    assert made == '<rect class="a" stroke-width="2" viewBox="0 0 1 1"></rect>'
    assert tag("br") == "<br>"


def test_tables_have_headers_in_both_directions():
    made = table(["n", "m"], [(1, "<x>")], caption="C", right=(1,), foot=("all", 2), wide=True)
    root = read(made)
    assert tables(root) == {"C": [["n", "m"], ["1", "<x>"], ["all", "2"]]}
    scopes = [head.attributes["scope"] for head in root.all("th")]
    assert scopes == ["col", "col", "row", "row"]
    classes = [cell.attributes.get("class") for cell in root.all("td")]
    assert classes == ["num", "num"]
    assert root.the("table").attributes["class"] == "wide"


@given(st.integers(1, 30), st.integers(2, 9))
def test_a_table_of_many_columns_goes_on_with_the_same_headers_of_rows(n_columns, together):
    rows = [[f"{i},{j}" for j in range(n_columns)] for i in range(4)]
    made = table(rows[0], rows[1:3], caption="C", foot=rows[3], together=together)
    parts = tables(read(made))
    assert all(len(row) <= together for part in parts.values() for row in part)
    assert all([row[0] for row in part] == ["0,0", "1,0", "2,0", "3,0"] for part in parts.values())
    for i, row in enumerate(rows):
        assert [row[0]] + [cell for part in parts.values() for cell in part[i][1:]] == row
    assert len(parts) == max(1, -(-(n_columns - 1) // (together - 1)))


def test_sections_and_facts():
    made = section("s", "Title", facts([("a", 1), ("b", "<")]))
    root = read(made)
    assert root.the("section").attributes == {"id": "s", "aria-labelledby": "s-title"}
    assert root.the("h2", id="s-title").text == "Title"
    assert [(dt.text, dd.text) for dt, dd in zip(root.all("dt"), root.all("dd"), strict=True)] == [
        ("a", "1"),
        ("b", "<"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '<p title="x"><img src="a.png"></p>',
        '<a href="https://example.org/">x</a>',
        '<link rel="icon" href="//example.org/i.png">',
        '<p style="background:url(a.png)"></p>',
        "<style>@import 'a.css';</style>",
        '<meta http-equiv="refresh" content="0; refresh">',
        "<script>1</script>",
    ],
)
def test_what_might_be_fetched_is_found(text):
    page = text.replace('<img src="a.png">', '<img src="a.png"></img>')
    assert addresses(read(page))
