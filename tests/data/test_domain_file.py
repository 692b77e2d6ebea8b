"""Mistakes in a domain.toml: one sentence with the line, the column, the key, and what to write."""

import msgspec
import pytest

from flower_kmeans import TableDomain
from flower_kmeans.data.domain_file import KEYS, line_of
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.errors import ConfigurationError

pytestmark = pytest.mark.claim("reference/domains", "flower-kmeans-domain-init")

FILE = """\
# agreed on by all parties

[[columns]]
kind = "number"
name = "age"
lower = 0
upper = 120
scale = "linear"

[[ columns ]]
  kind = "category"
  name = "ward"
  values = [
    "surgery",
    "lower = 3",
  ]
  missing = "surgery"

["columns"]
"""
FILE = FILE.replace(
    '\n["columns"]\n',
    """
[["columns"]]
"name" = "admitted"
kind = "date"
lower = 2020-01-01
upper = 2024-12-31
""",
)


def said(text):
    with pytest.raises(ConfigurationError) as error:
        TableDomain.from_toml(text, "domain file d.toml")
    sentence = str(error.value)
    begin = "Expected the domain file d.toml as a domain. "
    assert sentence.startswith(begin)
    assert "\n" not in sentence
    return sentence.removeprefix(begin)


def test_the_file_without_a_mistake_is_read():
    assert [type(column) for column in TableDomain.from_toml(FILE).declared] == [
        Number, Category, Date,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("upper = 120", "uper = 120",
         "Line 7, column 'age', key 'uper': expected one of kind, name, lower, upper, scale, "
         "missing, weight; got 'uper' (did you mean 'upper'?)."),
        ("  missing", "  mising", "Line 17, column 'ward', key 'mising': expected one of kind, "
         "name, values, missing, weight; got 'mising' (did you mean 'missing'?)."),
        ('kind = "number"\n', "", "Line 3, column 'age', key 'kind': "
         'expected "number", "category" or "date"; got nothing.'),
        ('kind = "number"', 'kind = "numbers"', "Line 4, column 'age', key 'kind': expected "
         """"number", "category" or "date"; got the text "numbers" (did you mean 'number'?)."""),
        ("upper = 120\n", "", "Line 3, column 'age', key 'upper': expected a number without "
         "quotes; got nothing."),
        ("upper = 120", 'upper = "120"', "Line 7, column 'age', key 'upper': expected a number "
         'without quotes; got the text "120".'),
        ("upper = 120", "upper = true", "Line 7, column 'age', key 'upper': expected a number "
         "without quotes; got true."),
        ("upper = 120", "upper = -1", "Line 6, column 'age', key 'lower': Expected lower below "
         "upper in the column 'age'. Got 0.0 and -1.0 instead."),
        ("upper = 120", "upper = 120\nmissing = 121", "Line 8, column 'age', key 'missing': "
         "Expected missing of the column 'age' within its bounds. Got 121.0 instead."),
        ("upper = 120", "upper = inf", "Line 3, column 'age': Expected upper to be finite (at most "
         "1e+300). Got inf in column 0 instead."),
        ('"linear"', '"logs"', "Line 8, column 'age', key 'scale': expected \"linear\" or "
         "\"log\"; got the text \"logs\" (did you mean 'log'?)."),
        ('"linear"', '"log"', "Line 6, column 'age', key 'lower': Expected lower above 0 in the "
         "column 'age', whose scale is log. Got 0.0 instead."),
        ('missing = "surgery"', 'missing = "x"', "Line 17, column 'ward', key 'missing': Expected "
         "missing of the column 'ward' as one of its values ['surgery', 'lower = 3']. Got 'x' "
         "instead."),
        ('    "lower = 3",\n', "", "Line 13, column 'ward', key 'values': Expected values of the "
         "column 'ward' as two or more, without spaces around them. Got ['surgery'] instead."),
        ('    "lower = 3",\n', "    3,\n", "Line 13, column 'ward', key 'values': expected texts "
         'in quotes, such as ["a", "b"]; got [\'surgery\', 3].'),
        ("lower = 2020-01-01", 'lower = "2020-01-01"', "Line 22, column 'admitted', key 'lower': "
         'expected a date without quotes, such as 2024-02-29; got the text "2020-01-01".'),
        ("lower = 2020-01-01", "lower = 2020-01-01T10:00:00", "Line 22, column 'admitted', key "
         "'lower': expected a date without quotes, such as 2024-02-29; got 2020-01-01 10:00:00."),
        ("lower = 2020-01-01", "lower = 2025-01-01", "Line 22, column 'admitted', key 'lower': "
         "Expected lower below upper in the column 'admitted'. Got 2025-01-01 and 2024-12-31 "
         "instead."),
        ('name = "age"', "name = 7",
         "Line 5, column 7, key 'name': expected text in quotes; got 7."),
        ('name = "age"\n', "",
         "Line 3, column 1, key 'name': expected text in quotes; got nothing."),
        ('name = "age"', 'name = "ward"', "Line 12, column 'ward', key 'name': expected another "
         "name in each column; got 'ward' once more."),
        ("# agreed", "from_record = true\n# agreed", "Line 1, key 'from_record': expected one of "
         "columns, from_records, tighten, persons; got 'from_record' (did you mean "
         "'from_records'?)."),
        ("# agreed", "from_records = 1\n# agreed", "Line 1, key 'from_records': expected true or "
         "false; got 1."),
        ("# agreed", "[column]\n# agreed", "Line 1, key 'column': expected one of columns, "
         "from_records, tighten, persons; got 'column' (did you mean 'columns'?)."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_its_place(old, new, expected):
    assert FILE.count(old) == 1
    assert said(FILE.replace(old, new)) == expected


def test_what_is_not_toml_has_its_line_too():
    text = said(FILE.replace("upper = 120", "upper: 120"))
    assert text.startswith("It is not TOML: ")
    assert "line 7" in text


@pytest.mark.parametrize("german", ["upper = 120,5", "upper = 31.12.2024"])
def test_what_is_not_toml_says_how_values_are_written(german):
    text = said(FILE.replace("upper = 120", german))
    assert text.endswith(
        "Text stands in quotes, a date is 2024-12-31, and a number has a decimal point."
    )


def test_without_a_line_that_is_sure_there_is_none():
    """Tables in one line have no lines of their own, and long texts may hold whatever they like."""
    inline = 'columns = [{kind = "number", name = "a", lower = 1, upper = 0}]'
    assert said(inline).startswith("Column 'a', key 'lower': Expected lower below")
    long = '[[columns]]\nkind = "number"\nname = """\nlower = 3"""\nlower = "1"\nupper = 2\n'
    assert said(long).startswith("Column ")
    assert "key 'lower'" in said(long)
    assert (
        said("columns = []")
        == "Line 1, key 'columns': expected a [[columns]] for each column; got []."
    )
    assert said("columns = [1]") == "Column 1: expected a table [[columns]]; got 1."
    assert (
        said("")
        == "Key 'columns': expected a [[columns]] for each column; got nothing."
    )
    value = "v" * 500
    assert len(said(f'columns = "{value}"')) < 200
    assert line_of(FILE, 3) is None


def test_the_keys_of_each_kind_are_those_of_the_declarations():
    for declaration in (Number, Category, Date):
        config = declaration.__struct_config__
        fields = {
            field.name: field.required for field in msgspec.structs.fields(declaration)
        }
        assert {key: rule.is_needed for key, rule in KEYS[config.tag].items()} == fields
    assert len(KEYS) == 3
