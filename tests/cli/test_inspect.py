"""`flower-kmeans inspect`: each column of a table for its holder, and a draft without a bound."""

import re
import stat
import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

from flower_kmeans import TableDomain
from flower_kmeans.cli.app import app

pytestmark = pytest.mark.claim("own-data", "inspect-shows-holder-table")

N = 120
NAMES = "patient,age,fare,ward,admitted,note,code,empty,same,badge"
DOMAIN = """
[[columns]]
kind = "number"
name = "age"
lower = 0
upper = 60
[[columns]]
kind = "number"
name = "fare"
lower = 0
upper = 1000
missing = 10
[[columns]]
kind = "category"
name = "ward"
values = ["surgery", "medicine"]
"""


def rows():
    """Return the cells of all columns of a table: ages from 21 to 88, fares up to 7654.32."""
    rng = np.random.default_rng(1)
    ages = np.concatenate([[21, 88], rng.integers(22, 88, N - 2)]).astype(str)
    ages[10:22] = ""
    fares = np.where(np.arange(N) % 20, "12,50", "12")
    fares[3] = "7654,32"
    cells = {
        "patient": np.arange(1, N + 1).astype(str),
        "age": ages,
        "fare": fares,
        "ward": np.where(np.arange(N) % 2, "surgery", "medicine"),
        "admitted": np.where(np.arange(N) % 2, "31.01.2024", "01.02.2024"),
        "note": np.array([f"came from place {i // 2}" for i in range(N)]),
        "code": np.array([str(i % 3) for i in range(N)]),
        "empty": np.array([""] * N),
        "same": np.array(["7"] * N),
        "badge": np.array([f"P{i}" for i in rng.permutation(N) + 1000]),
    }
    assert ",".join(cells) == NAMES
    return cells


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    cells = rows()
    lines = [";".join(row) for row in zip(*cells.values(), strict=True)]
    text = "\n".join([NAMES.replace(",", ";"), *lines, "1;2"])
    (tmp_path / "t.csv").write_text(text, "utf-8")
    (tmp_path / "domain.toml").write_text(DOMAIN, "utf-8")

    def invoke(*arguments):
        result = CliRunner().invoke(app, ["inspect", *map(str, arguments)])
        assert isinstance(result.exception, SystemExit | None)
        assert (tmp_path / "t.csv").read_text("utf-8") == text
        return result

    return invoke


def table_of(result):
    """Return the cells that are printed of each column, by its name."""
    assert result.exit_code == 0, result.output
    lines = [
        line.split("│") for line in result.stdout.splitlines() if line.count("│") > 3
    ]
    return {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in lines}


def draft_of(result):
    return result.stdout[result.stdout.index("# A draft") :]


def test_each_column_without_a_domain(run):
    result = run("t.csv")
    assert table_of(result) == {
        "patient": ["number", "none", "none", "looks like a number of rows"],
        "age": ["number", "12 (about 10 %)", "none", ""],
        "fare": [
            "number",
            "none",
            "114 (about 95 %)",
            "looks like a decimal comma: --decimal ,",
        ],
        "ward": ["category", "none", "none", "2 categories"],
        "admitted": ["date", "none", "none", "--date-format %d.%m.%Y"],
        "note": ["free text", "none", "none", ""],
        "code": [
            "number",
            "none",
            "none",
            "a few whole numbers: is it a code of categories?",
        ],
        "empty": ["empty", "120 (all)", "none", ""],
        "same": ["number", "none", "none", "has one value only"],
        "badge": ["id", "none", "none", ""],
    }
    for words in (
        "t.csv: 121 records.",
        "--columns patient,age,fare,code,same.",
        "Rather leave out: patient, same.",
        "Left out: ward (category: declare it in a domain.toml); admitted (date: declare it in",
        "note (free text); empty (empty); badge (id).",
        "Malformed lines: 1; the first is line 122.",
        "116 of 121 records would count as none",
        "'fare' holds no number in about 95 % of its cells, which look like a decimal comma",
        "FACTS ABOUT RECORDS, for their holder alone",
    ):
        assert words in result.stdout


def test_how_the_file_is_written_is_an_option(run):
    result = run("t.csv", "--decimal", ",", "--date-format", "%d.%m.%Y")
    found = table_of(result)
    assert found["fare"] == ["number", "none", "none", ""]
    assert found["admitted"] == ["date", "none", "none", ""]
    assert "13 of 121 records would count as none" in result.stdout
    assert "--date-format" not in result.stdout


def test_with_a_domain_the_bounds_and_what_would_count_as_none(run):
    result = run("t.csv", "--domain", "domain.toml")
    n_old = sum(cell.isdigit() and int(cell) > 60 for cell in rows()["age"])
    found = table_of(result)
    assert list(found) == ["age", "fare", "ward"]
    assert found["age"][:3] == ["number", "12 (about 10 %)", "none"]
    assert found["age"][3].startswith(f"{n_old} (about ")
    assert found["ward"] == ["category", "none", "none", "none", ""]
    assert (
        "4 columns of the box: age, fare, ward=surgery, ward=medicine." in result.stdout
    )
    assert "patient (not declared); admitted (not declared)" in result.stdout
    # Fares that are unreadable have no rule; those that are missing would have.
    assert "116 of 121 records would count as none" in result.stdout
    assert "'age' is outside the bounds with about" in result.stdout
    assert "# A draft" not in result.stdout
    result = run("t.csv", "--domain", "domain.toml", "--decimal", ",")
    assert table_of(result)["fare"] == ["number", "none", "none", "1 (under 1 %)", ""]
    assert "13 of 121 records would count as none" in result.stdout


def test_nothing_that_is_printed_is_an_extreme_or_a_text_of_a_record(run):
    for arguments in (
        (),
        ("--decimal", ","),
        ("--domain", "domain.toml", "--decimal", ","),
    ):
        shown = run("t.csv", *arguments).stdout
        for value in ("88", "7654", "21", "01.02.2024", "2024", "place", "P10", "P11"):
            assert re.search(rf"\b{value}", shown) is None


def test_the_draft_asks_for_each_column_and_has_no_bound(run, tmp_path):
    draft = draft_of(run("t.csv"))
    assert tomllib.loads(draft) == {}
    assert all(line.startswith("#") or not line for line in draft.splitlines())
    assert re.findall(r"# name = (.*)", draft) == [
        '"age"',
        '"fare"',
        '"ward"',
        '"admitted"',
        '"code"',
    ]
    assert set(re.findall(r"# (?:lower|upper|missing|values) = (.*)", draft)) == {
        "?",
        "[?]",
    }
    for words in (
        "NOT FOR OTHERS AS IT IS",
        "# age: numbers.\n# Which bounds does the form, the rule or the device have?",
        '# ward: categories. In the records, not for others: "medicine", "surgery".\n# Which ones',
        "# How are they written? They look like a decimal comma: --decimal ,",
        "# How are they written, days or months first? --date-format %d.%m.%Y",
        '# Is it a code of categories? Then kind = "category", with values.',
        "# Left out: patient, which looks like a number of rows.",
        "# Left out: note, which holds free text.",
        "# Left out: empty, which has no value.",
        "# Left out: same, which has one value only.",
        "# Left out: badge, which looks like an id.",
    ):
        assert words in draft
    # With the answers and without the signs of comments it is a domain.
    block = draft[draft.index("# [[columns]]") :].split("\n\n")[0].replace("# ", "")
    answers = iter(["0", "120", "40"])
    block = re.sub(r"\?", lambda _: next(answers), block)
    assert TableDomain.from_toml(block).digest


def test_a_draft_is_a_new_file_of_its_owner(run, tmp_path):
    result = run("t.csv", "--draw", "draft.toml")
    assert result.exit_code == 0, result.output
    assert "# A draft" not in result.stdout
    path = tmp_path / "draft.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text("utf-8") == draft_of(run("t.csv"))
    before = path.read_bytes()
    result = run("t.csv", "--draw", "draft.toml", "--decimal", ",")
    assert result.exit_code == 1
    assert "Expected --draw as a new file" in result.stderr
    assert path.read_bytes() == before


def test_other_formats_and_types(run, tmp_path):
    rng = np.random.default_rng(2)
    days = np.datetime64("2024-01-01") + rng.integers(0, 9, N)
    np.savez(
        tmp_path / "t.npz",
        age=rng.normal(size=N),
        day=days,
        kind=np.array(["a", "b"] * 60),
    )
    found = table_of(run("t.npz"))
    assert [cells[0] for cells in found.values()] == ["number", "date", "category"]
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    table = {
        "age": [1.5, None] * 60,
        "day": days.tolist(),
        "kind": [None, *["x", "y"] * 59, "x"],
    }
    parquet.write_table(pa.table(table), tmp_path / "t.parquet")
    found = table_of(run("t.parquet"))
    assert [cells[0] for cells in found.values()] == ["number", "date", "category"]
    assert found["age"][1] == "60 (about 50 %)"


def test_a_source_file_names_the_data_and_how_to_read_it(run, tmp_path):
    source = tmp_path / "source.toml"
    source.write_text('data = "t.csv"\ndecimal = ","\nformat = "%d.%m.%Y"\n')
    source.chmod(0o600)
    found = table_of(run("source.toml"))
    assert found == table_of(
        run("t.csv", "--decimal", ",", "--date-format", "%d.%m.%Y")
    )


def test_columns_without_a_name_of_their_own_are_named_by_place(run, tmp_path):
    (tmp_path / "t2.csv").write_text(",age,age,fare\n0,1,2,3\n1,2,3,4\n")
    result = run("t2.csv")
    assert list(table_of(result)) == ["fare"]
    words = "Not read: column 1 has no name; column 2 'age' occurs twice; column 3 'age' occurs"
    assert words in result.stdout
    (tmp_path / "t3.csv").write_text("1,2\n3,4\n")
    result = run("t3.csv")
    assert list(table_of(result)) == ["x0", "x1"]
    assert "The first line is a record" in result.stdout


def test_kinds_are_corrected_by_records_behind_the_first_block(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr("flower_kmeans.data.tables.batched.__defaults__", (60,))
    first = [f"P{i},,w{i % 2}" for i in range(60)]
    later = [f"P{i // 2},5,w{i}" for i in range(60)]
    (tmp_path / "t4.csv").write_text("\n".join(["badge,late,ward", *first, *later]))
    found = table_of(run("t4.csv"))
    assert [cells[0] for cells in found.values()] == [
        "free text",
        "number",
        "free text",
    ]
    assert found["late"][1] == "60 (about 50 %)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.csv"], "none.csv does not exist"),
        (["t.csv", "--domain", "none.toml"], "none.toml cannot be read"),
        (["t.csv", "--domain", "domain.toml", "--draw", "d.toml"], "Got both"),
        (["t.csv", "--draw", "no/where.toml"], "make its directory first"),
        (["t.csv", "--domain", "other.toml"], "'size'"),
    ],
)
def test_errors_are_one_sentence(run, tmp_path, arguments, words):
    (tmp_path / "other.toml").write_text(DOMAIN.replace('"fare"', '"size"'))
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_a_table_without_records(run, tmp_path):
    (tmp_path / "t5.csv").write_text("age,fare\n")
    result = run("t5.csv")
    assert table_of(result) == {
        each: ["empty", "none", "none", ""] for each in ("age", "fare")
    }
    assert "There is no column of numbers to cluster by." in result.stdout


def test_names_and_categories_of_the_file_do_not_act(run, tmp_path):
    cells = "\n".join(["x\u001b[31m,1", "y\u202e,2"] * 30)
    (tmp_path / "t6.csv").write_text(f"ward\u001b[0m,age\n{cells}\n", "utf-8")
    result = run("t6.csv")
    assert result.exit_code == 0, result.output
    assert not any(sign in result.stdout for sign in ("\u001b[31m", "\u202e"))
    assert tomllib.loads(draft_of(result)) == {}


# -------------------------------------------------------------------------- persons


@pytest.fixture
def visits(run, tmp_path):
    """Write a table of visits: 40 patients with three each, one of them under two ids."""
    rng = np.random.default_rng(2)
    ids = [f"P-{i:03}" for i in range(1, 41) for _ in range(3)]
    ids[0] = "p-1"
    ids[5] = ""
    ages = rng.integers(20, 80, len(ids))
    lines = [f"{one};{age}" for one, age in zip(ids, ages, strict=True)]
    (tmp_path / "visits.csv").write_text("\n".join(["patient;age", *lines]))
    return run


@pytest.mark.claim("own-data", "inspect-repeated-ids")
def test_repeated_ids_suggest_to_protect_persons(visits):
    result = visits("visits.csv")
    assert (
        "Values of patient repeat. If they name persons, a run that protects one record protects "
        'no person: take unit="person" (--person patient).'
    ) in result.stdout
    assert "repeat. If" not in visits("t.csv").stdout


@pytest.mark.parametrize("has_domain", [False, True])
def test_persons_are_counted_for_the_holder(visits, tmp_path, has_domain):
    (tmp_path / "domain.toml").write_text(
        '[[columns]]\nkind = "number"\nname = "age"\nlower = 0\nupper = 120\n'
    )
    options = ["--domain", "domain.toml"] if has_domain else []
    result = visits("visits.csv", "--person", "patient", *options)
    assert result.exit_code == 0, result.output
    for words in (
        "42 persons by 'patient': 2.9 records each on average, 3 at most.",
        "1 record without an id: each counts as one person.",
        "2 ids differing from another one only in case, blanks or leading zeros",
        "Left out: patient (ids of persons).",
    ):
        assert words in result.stdout
    assert "P-0" not in result.stdout
    assert "Values of patient repeat" not in result.stdout
    if not has_domain:
        assert "--columns age." in result.stdout
        assert "# Left out: patient, which has the ids of persons." in draft_of(result)


def test_a_domain_that_declares_the_persons_is_refused(visits, tmp_path):
    (tmp_path / "domain.toml").write_text(
        '[[columns]]\nkind = "number"\nname = "patient"\nlower = 0\nupper = 120\n'
    )
    result = visits("visits.csv", "--person", "patient", "--domain", "domain.toml")
    assert result.exit_code == 1
    assert "The column of persons, 'patient'" in result.stderr
