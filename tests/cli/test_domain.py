"""A domain.toml on the command line: made, and used by every command that knows columns."""

import csv
import json
import re
import stat

import numpy as np
import pandas as pd
import pytest
from declared import DECLARED
from report_pages import read, tables
from typer.testing import CliRunner

from flower_kmeans import ClientPolicy, TableDomain
from flower_kmeans.cli import inputs
from flower_kmeans.cli.app import app
from flower_kmeans.cli.assign import read_centroids
from flower_kmeans.data.reading import USUAL_READING
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.data.tables import load_table
from flower_kmeans.errors import ConfigurationError

pytestmark = pytest.mark.claim("reference/domains", "flower-kmeans-domain-init")

DOMAIN = (
    """
[[columns]]
kind = "number"
name = "age"
lower = 0
upper = 120
missing = 40
"""
    + DECLARED
)
ANSWERS = [
    "age, income,ward,admitted",
    "number", "0", "120", "", "40",
    "number", "1000", "1000000", "log", "",
    "category", "surgery,medicine, other", "other",
    "date", "2020-01-01", "2024-12-31", "",
]  # fmt: skip
N = 1200


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    (tmp_path / "domain.toml").write_text(DOMAIN, "utf-8")
    (tmp_path / "domain.toml").chmod(0o600)

    def invoke(*arguments, answers=None):
        text = None if answers is None else "".join(f"{answer}\n" for answer in answers)
        return CliRunner().invoke(app, list(map(str, arguments)), input=text)

    return invoke


@pytest.fixture
def visits(tmp_path):
    """Two groups of visits, of which a tenth of the ages and wards are missing."""
    rng = np.random.default_rng(8)
    group = np.repeat([0, 1], N // 2)
    days = np.datetime64("2021-06-01") + (1100 * group + rng.integers(0, 30, N))
    frame = pd.DataFrame(
        {
            "name": [f"p{i}" for i in range(N)],
            "clinic": rng.choice(["north", "south", "east"], N),
            "admitted": days.astype(str),
            "ward": np.where(group == 1, "surgery", "medicine"),
            "income": np.round(10.0 ** rng.normal(3.5 + 1.5 * group, 0.2), 2),
            "age": rng.integers(20, 40, N) + 40 * group,
        }
    ).astype({"age": object})
    frame.loc[::10, "age"] = ""
    frame.loc[5::10, "ward"] = "-"
    frame = frame.iloc[rng.permutation(N)]
    frame.to_csv(tmp_path / "visits.csv", index=False)
    return frame


def failed(result, *words):
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr
    return True


SIMULATE = (
    "simulate",
    "--data",
    "visits.csv",
    "--engine",
    "in-process",
    "--clusters",
    2,
)
SIMULATE += ("--output", "out", "--n-records", N)


class TestInit:
    def test_it_asks_until_answers_are_right_and_reads_nothing(self, run, tmp_path):
        wrong = [
            "age,age", "age,in\u200bcome", "", *ANSWERS[:1],
            # upper below lower: once more
            "numbers", "number", "zero", "9", "3", "", "old", "",
            *ANSWERS[1:15], "2020", *ANSWERS[15:],
        ]  # fmt: skip
        for answers in (ANSWERS, wrong):
            result = run("domain", "init", "--output", "new.toml", answers=answers)
            assert result.exit_code == 0, result.output
            assert "no records are read" in result.output
            assert "4 columns to new.toml" in result.output
            found = TableDomain.from_file(tmp_path / "new.toml")
            assert found == TableDomain.from_toml(DOMAIN)
            (tmp_path / "new.toml").unlink()
        assert "Expected lower below upper in the column 'age'" in result.output

    def test_names_and_categories_with_commas_are_quoted(self, run, tmp_path):
        answers = ['"ward, now"', "category", '"a, b", "5"" pipe", c', '5" pipe']
        assert (
            run("domain", "init", "--output", "new.toml", answers=answers).exit_code
            == 0
        )
        found = TableDomain.from_file(tmp_path / "new.toml")
        assert found.declared == (
            Category("ward, now", ("a, b", '5" pipe', "c"), '5" pipe'),
        )

    def test_an_older_file_stays(self, run, tmp_path):
        failed(run("domain", "init", answers=ANSWERS), "a new file", "Got domain.toml")
        assert (tmp_path / "domain.toml").read_text("utf-8") == DOMAIN
        failed(
            run("domain", "init", "--output", "no/where.toml"),
            "in a directory that exists",
        )
        assert (
            run("domain", "init", "--output", "x.toml", answers=ANSWERS[:7]).exit_code
            == 1
        )
        assert not (tmp_path / "x.toml").exists()

    def test_what_is_read_off_records_says_that_it_is_not_private(
        self, run, visits, tmp_path
    ):
        result = run(
            "domain", "init", "--from-records", "visits.csv", "--output", "off.toml"
        )
        assert result.exit_code == 0, result.output
        assert "NOT private" in result.stderr
        assert f"Left out name: more than 20 categories ({N:,} found)." in result.output
        assert f"age: 120 of {N:,} cells are missing or unreadable." in result.output
        assert (tmp_path / "off.toml").read_text("utf-8").startswith("# NOT PRIVATE")
        found = TableDomain.from_file(tmp_path / "off.toml")
        assert found.from_records
        ages = pd.to_numeric(visits["age"])
        days = pd.to_datetime(visits["admitted"]).dt.date
        assert set(found.declared) == {
            Category("clinic", ("east", "north", "south")),
            Date("admitted", days.min(), days.max()),
            Category("ward", ("-", "medicine", "surgery")),
            Number("income", visits["income"].min(), visits["income"].max()),
            Number("age", ages.min(), ages.max()),
        }
        plan = run("plan", "--domain", "off.toml", "--n-records", N)
        assert (plan.exit_code, "NOT private" in plan.stderr) == (0, True)
        text = (tmp_path / "off.toml").read_text("utf-8").replace('name = "age"', "missing = 30\n"
                                                                  'name = "age"')  # fmt: skip
        (tmp_path / "off.toml").write_text(text, "utf-8")
        result = run(*SIMULATE, "--domain", "off.toml")
        assert result.exit_code == 0, result.output
        assert "NOT private" in result.stderr
        report = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
        assert (report["private"], report["bounds_from_data"]) == (False, True)
        assert report["statements"][0].startswith("NOT PRIVATE")
        assert "NOT PRIVATE" in (tmp_path / "out" / "report.html").read_text("utf-8")
        with pytest.raises(ConfigurationError, match="read off records"):
            ClientPolicy(domain=TableDomain.from_file(tmp_path / "off.toml"))

    def test_truths_are_read_off_as_they_are_read_and_what_has_no_name_is_left_out(
        self, run, tmp_path
    ):
        path = tmp_path / "t.csv"
        path.write_text(",flag,half,one\n0,True,TRUE,x\n1,False,,x\n2,True,false,x\n")
        result = run(
            "domain", "init", "--from-records", "t.csv", "--output", "off.toml"
        )
        assert result.exit_code == 0, result.output
        assert "Left out column 1: no printable name.\n" in result.output
        assert (
            "Left out one: constant: one value in all cells that have one.\n"
            in result.output
        )
        assert stat.S_IMODE((tmp_path / "off.toml").stat().st_mode) == 0o600
        found = TableDomain.from_file(tmp_path / "off.toml")
        assert found.declared == (Number("flag", 0, 1), Number("half", 0, 1))
        records = load_table(path, domain=found, malformed="nan", header=True).records
        np.testing.assert_array_equal(records, [[1, 1], [0, np.nan], [1, 0]])

    @pytest.mark.claim("reference/domains", "init-names-each-column")
    def test_each_column_that_is_left_out_has_its_own_reason(self, run, tmp_path):
        rows = range(30)
        columns = {
            "constant": ["x"] * 30,
            "one": [1] * 30,
            "empty": [""] * 30,
            "nothing": ["n/a"] * 30,
            "names": [f"p{i}" for i in rows],
            "mixed": [*range(25), "?", "!", "2020-01-01", "", "-"],
            "gregorian": [f"{i % 9 + 1}.2.2024" for i in rows],
            "written": [f"Feb {i % 9 + 1}, 2024" for i in rows],
            "\u200b": list(rows),
            "codes": ["1", "A", "n/a"] * 10,
            "age": [*range(28), "n/a", "inf"],
            "day": [f"2024-02-{i % 9 + 10}T10:00" for i in range(29)] + [""],
        }
        pd.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False, encoding="utf-8")
        result = run(
            "domain", "init", "--from-records", "t.csv", "--output", "off.toml"
        )
        assert result.exit_code == 0, result.output
        one = "constant: one value in all cells that have one."
        unknown = "dates in an unknown format (they are read as 2024-02-29)."
        assert [line for line in result.output.splitlines() if "Left out" in line] == [
            f"Left out constant: {one}",
            f"Left out one: {one}",
            "Left out empty: no value at all.",
            "Left out nothing: no value at all.",
            "Left out names: more than 20 categories (30 found).",
            "Left out mixed: mixed kinds: 25 numbers, 1 date, 3 other texts.",
            f"Left out gregorian: {unknown}",
            f"Left out written: {unknown}",
            "Left out column 9: no printable name.",
        ]
        domain = TableDomain.from_file(tmp_path / "off.toml")
        assert domain.describe() == [
            "codes: category 1, A",
            "age: number 0 to 27",
            "day: date 2024-02-10 to 2024-02-18",
        ]
        assert "age: 2 of 30 cells are missing or unreadable." in result.output
        assert "day: 1 of 30 cells are missing or unreadable." in result.output
        assert "such as missing = 2024-02-14." in result.output
        assert "codes: 10 of 30 cells are missing or unreadable." in result.output

    def test_nested_and_typed_columns(self, run, tmp_path):
        frame = pd.DataFrame(
            {
                "lists": [[1], [2], [3]],
                "day": pd.to_datetime(["2024-01-01", None, "2024-02-01"]),
                "flag": [True, None, False],
                "ward": ["a", None, "b"],
                "none": [None, None, None],
            }
        )
        frame.to_parquet(tmp_path / "t.parquet")
        result = run(
            "domain", "init", "--from-records", "t.parquet", "--output", "off.toml"
        )
        assert result.exit_code == 0, result.output
        assert "Left out lists: nested: 3 cells hold several values.\n" in result.output
        assert "Left out none: no value at all.\n" in result.output
        assert TableDomain.from_file(tmp_path / "off.toml").describe() == [
            "day: date 2024-01-01 to 2024-02-01",
            "flag: number 0 to 1",
            "ward: category a, b",
        ]
        assert result.output.count("1 of 3 cells are missing or unreadable.") == 3

    def test_columns_of_one_name_are_left_out(self, run, tmp_path):
        (tmp_path / "t.csv").write_text("a,b,a\n1,2,3\n4,5,6\n", "utf-8")
        result = run(
            "domain", "init", "--from-records", "t.csv", "--output", "off.toml"
        )
        assert result.exit_code == 0, result.output
        assert result.output.count("Left out a: 2 columns have this name.") == 1
        assert TableDomain.from_file(tmp_path / "off.toml").describe() == [
            "b: number 2 to 5"
        ]

    def test_a_file_without_names_is_refused(self, run, tmp_path):
        (tmp_path / "t.csv").write_text("41,2\n3,4\n", "utf-8")
        result = run(
            "domain", "init", "--from-records", "t.csv", "--output", "off.toml"
        )
        failed(result, "Got numbers instead", "first line", "--header")
        assert "41" not in result.stderr
        assert not (tmp_path / "off.toml").exists()
        names = "--from-records", "t.csv", "--header", "a,b", "--output", "off.toml"
        assert run("domain", "init", *names).exit_code == 0

    @pytest.mark.claim("reference/domains", "init-names-each-column")
    def test_the_file_and_a_simulation_say_the_same_of_missing_cells(
        self, run, visits, tmp_path
    ):
        """With the values that the comments name, the file works as it is written."""
        visits.loc[visits.index[:7], "admitted"] = ""
        visits.drop(columns="name").to_csv(tmp_path / "visits.csv", index=False)
        result = run(
            "domain", "init", "--from-records", "visits.csv", "--output", "off.toml"
        )
        rule = "A missing cell drops its record, unless the domain states what it counts as"
        text = (tmp_path / "off.toml").read_text("utf-8")
        assert rule in result.output
        assert text.count(rule) == 2  # beside age and admitted
        assert f"admitted: 7 of {N:,} cells" in result.output
        assert "120" not in text.replace("1200", "")
        result = run(*SIMULATE, "--domain", "off.toml", "--strategy", "lloyd")
        assert (result.exit_code, f"{N - 126:,} records of" in result.output) == (
            0,
            True,
        )
        stated = text.replace("# missing =", "missing =")
        (tmp_path / "off.toml").write_text(stated, "utf-8")
        rules = {
            c.name: c.missing
            for c in TableDomain.from_file(tmp_path / "off.toml").declared
        }
        assert [name for name, rule in rules.items() if rule is not None] == [
            "admitted",
            "age",
        ]
        result = run(*SIMULATE, "--domain", "off.toml", "--strategy", "lloyd")
        assert result.exit_code == 0, result.output
        assert (
            rule
            in run("domain", "init", "--output", "new.toml", answers=ANSWERS).output
        )

    def test_records_without_any_extent_are_one_sentence(self, run, tmp_path):
        lines = [f"p{i},1,2020-01-01,," for i in range(30)]
        (tmp_path / "t.csv").write_text(
            "\n".join(["name,one,day,none", *lines]) + "\n", "utf-8"
        )
        (tmp_path / "t.npz").write_bytes(b"")
        for name, words in (
            ("t.npz", "not a NumPy file"),
            ("no.csv", "does not exist"),
        ):
            failed(
                run("domain", "init", "--from-records", name, "--output", "o.toml"),
                words,
            )
        np.savez(tmp_path / "u.npz", name=[f"p{i}" for i in range(30)], one=np.ones(30),
                 day=np.full(30, "2020", "datetime64[D]"), none=np.full(30, np.nan))  # fmt: skip
        failed(
            run("domain", "init", "--from-records", "u.npz", "--output", "o.toml"),
            "no column",
            "name: more than 20 categories (30 found); one: constant",
            "none: no value at all",
        )
        assert not (tmp_path / "o.toml").exists()


class TestSimulate:
    def test_a_csv_file_with_all_kinds_of_columns(self, run, visits, tmp_path):
        """A category, a missing value, a logarithm and a date, from the file to the page."""
        result = run(*SIMULATE, "--domain", "domain.toml", "--split", "column:clinic",
                     "--epsilon", 8, "--strategy", "glloyd")  # fmt: skip
        assert result.exit_code == 0, result.output
        assert "3 clients, 6 columns" in result.output
        with (tmp_path / "out" / "centroids.csv").open(
            encoding="utf-8", newline=""
        ) as file:
            low, high = sorted(
                csv.DictReader(file), key=lambda row: float(row["income"])
            )
        wards = ["ward=surgery", "ward=medicine", "ward=other"]
        # After some noise, the 60 records without a ward of one group belong to the
        # other group.
        assert list(low)[2:] == ["age", "income", *wards, "admitted"]
        for row, log, shares, year in ((low, 3.5, [0, 0.9, 0.1], 2021), (high, 5, [0.9, 0, 0.1],
                                                                         2024)):  # fmt: skip
            assert np.log10(float(row["income"])) == pytest.approx(log, abs=0.3)
            np.testing.assert_allclose(
                [float(row[w]) for w in wards], shares, atol=0.15
            )
            assert row["admitted"].startswith(f"{year}-")
        assert float(low["age"]) == pytest.approx(0.9 * 29.5 + 4, abs=8)
        report = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
        assert report["columns"] == ["age", "log10(income)", *wards, "days(admitted)"]
        assert report["epsilon"] == pytest.approx(8)
        assert not report["bounds_from_data"]
        page = (tmp_path / "out" / "report.html").read_text("utf-8")
        found = tables(read(page))
        head, *rows = found["Centroids"]
        assert head == ["cluster", "age", "income", "ward", "admitted"]
        of_low, of_high = sorted(rows[:2], key=lambda row: row[4])
        incomes = [float(row[2].replace(",", "")) for row in (of_low, of_high)]
        np.testing.assert_allclose(np.log10(incomes), [3.5, 5], atol=0.3)
        assert of_low[3].startswith("medicine ")
        assert of_high[3].startswith("surgery ")
        assert (of_low[4][:4], of_high[4][:4]) == ("2021", "2024")
        assert rows[-1] == [
            "bounds",
            "0 to 120",
            "1,000 to 1,000,000",
            "",
            "2020-01-01 to 2024-12-31",
        ]
        assert run("report", "out/report.json").exit_code == 0
        assert (tmp_path / "out" / "report.html").read_text("utf-8") == page

    @pytest.mark.parametrize("option", ["columns=age", "bounds=age=0:1", "lower=0", "upper=0",
                                        "bounds-from-data"])  # fmt: skip
    def test_columns_and_bounds_are_said_once(self, run, visits, option):
        result = run(*SIMULATE, "--domain", "domain.toml", f"--{option}")
        failed(result, "--domain, which has columns")

    def test_weights_are_of_declared_columns(self, run, visits, tmp_path):
        result = run(*SIMULATE, "--domain", "domain.toml", "--weight", "ward=0.2",
                     "--weight", "age = 0.9")  # fmt: skip
        assert result.exit_code == 0, result.output
        found = read_centroids(tmp_path / "out" / "centroids.npz")
        assert {c.name: c.weight for c in found.domain.declared} == {
            "age": 0.9, "income": 1, "ward": 0.2, "admitted": 1,
        }  # fmt: skip
        assert found.domain.weights[2:5] == (0.2, 0.2, 0.2)
        report = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
        assert report["bounds"]["weights"]["ward"] == 0.2
        page = (tmp_path / "out" / "report.html").read_text("utf-8")
        assert "Weights of columns in distances: age 0.9, income 1, ward 0.2" in page
        for weight, words in (
            ("wards=1", "columns from ['age', 'income', 'ward', 'admitted']"),
            ("ward", "--weight as NAME=WEIGHT"),
            ("ward=x", "number in --weight"),
            ("ward=-1", "positive"),
        ):
            failed(run(*SIMULATE, "--domain", "domain.toml", "--weight", weight), words)
        twice = ("--weight", "ward=1", "--weight", "ward =2")
        failed(run(*SIMULATE, "--domain", "domain.toml", *twice), "Got two of 'ward'")

    def test_weights_are_of_columns_without_a_domain(self, run, visits, tmp_path):
        result = run(*SIMULATE, "--columns", "age,income", "--bounds", "age=0:120",
                     "--bounds", "income=0:1000000", "--weight", "income=0.3")  # fmt: skip
        assert result.exit_code == 0, result.output
        found = read_centroids(tmp_path / "out" / "centroids.npz")
        assert found.domain.weights == (1, 0.3)

    def test_files_that_do_not_fit_are_one_sentence(self, run, visits, tmp_path):
        failed(run("simulate", "--domain", "domain.toml"), "--data")
        failed(run(*SIMULATE, "--domain", "none.toml"), "none.toml cannot be read")
        (tmp_path / "strict.toml").write_text(
            DOMAIN.replace("missing = 40", ""), "utf-8"
        )
        result = run(*SIMULATE, "--domain", "strict.toml", "--strategy", "lloyd")
        assert (result.exit_code, f"{N - 120:,} records of" in result.output) == (
            0,
            True,
        )
        visits.assign(ward="ICU").to_csv(tmp_path / "visits.csv", index=False)
        failed(
            run(*SIMULATE, "--domain", "domain.toml"),
            "'ward' hold none of its categories",
        )
        (tmp_path / "visits.csv").write_text("age,income,ward\n1,2,3\n", "utf-8")
        failed(run(*SIMULATE, "--domain", "domain.toml"), "'admitted' once")

    def test_parties_hold_declared_columns(self, run, visits, tmp_path):
        domain = TableDomain.from_file(tmp_path / "domain.toml")
        source = inputs.table(
            str(tmp_path / "visits.csv"), USUAL_READING, None, None, None, domain
        )
        assert source.parties("columns") == [("age", "income"), ("ward", "admitted")]
        parties = source.parties("columns:ward,age/admitted,income")
        other = source.ordered([name for party in parties for name in party])
        box, read_off = other.box([], None, None, from_data=False)
        assert [source.width(party) for party in parties] == [4, 2]
        assert not read_off
        assert box.columns == other.columns
        assert box.columns[3:] == ("age", "days(admitted)", "log10(income)")
        np.testing.assert_array_equal(other.records[:, 3], source.records[:, 0])
        np.testing.assert_array_equal(other.records[:, 0], source.records[:, 2])
        with pytest.raises(ConfigurationError, match="each of columns 'age', 'income'"):
            source.parties("columns:age,ward=surgery/admitted,income")

    def test_a_vertical_run(self, is_real, run, visits, tmp_path):
        pytest.importorskip("tenseal")
        result = run("simulate", "--data", "visits.csv", "--engine", "in-process", "--clusters", 2,
                     "--output", "out", "--domain", "domain.toml", "--strategy", "vertical",
                     "--rounds", 1, "--split", "columns:ward,age,admitted/income")  # fmt: skip
        assert result.exit_code == 0, result.output
        found = read_centroids(tmp_path / "out" / "centroids.npz")
        assert found.inputs == ("ward", "age", "admitted", "income")

    def test_the_servers_points_have_the_same_columns(self, run, visits, tmp_path):
        visits.iloc[:20].to_csv(tmp_path / "server.csv", index=False)
        result = run(*SIMULATE, "--domain", "domain.toml", "--strategy", "feddp", "--clients", 3,
                     "--server-data", "server.csv")  # fmt: skip
        assert result.exit_code == 0, result.output


class TestPlan:
    def test_its_columns_are_those_of_the_box(self, run):
        result = run(
            "plan", "--domain", "domain.toml", "--n-records", 5000, "--clusters", 4
        )
        assert result.exit_code == 0, result.output
        same = run("plan", "--features", 6, "--n-records", 5000, "--clusters", 4)
        assert result.output == same.output
        failed(run("plan", "--domain", "domain.toml", "--features", 6), "Got both")
        # not the photograph's
        for option in (("--domain", "domain.toml"), ("--features", 6)):
            failed(run("plan", *option), "Expected --n-records")

    def test_of_feddp_and_of_parties(self, run):
        feddp = ("plan", "--strategy", "feddp", "--server-points", 40, "--clusters", 3)
        feddp += ("--n-records", 5000)
        found = run(*feddp, "--domain", "domain.toml")
        assert found.exit_code == 0, found.output
        assert found.output == run(*feddp, "--features", 6).output


class TestAssign:
    def test_new_records_are_read_as_those_of_the_run(self, run, visits, tmp_path):
        assert (
            run(*SIMULATE, "--domain", "domain.toml", "--strategy", "lloyd").exit_code
            == 0
        )
        new = visits.iloc[:50].reset_index(drop=True).astype(str)
        new.loc[0, ["age", "ward"]] = ["", "unknown"]  # counts as declared
        new.loc[1, "income"] = "none"  # spells that there is none, and has no rule
        new.to_csv(tmp_path / "new.csv", index=False)
        arguments = ("assign", "--data", "new.csv", "--centroids", "out/centroids.npz")
        result = run(*arguments)
        assert result.exit_code == 0, result.output
        assigned = pd.read_csv(tmp_path / "assigned.csv")
        assert pd.isna(assigned.loc[1, ["cluster", "distance"]]).all()
        assert assigned["cluster"].notna().sum() == 49
        by_ward = assigned.iloc[2:].groupby("ward")["cluster"].nunique()
        assert by_ward["surgery"] == by_ward["medicine"] == 1
        assert (
            "50 records in assigned.csv; 1 with missing cells have none."
            in result.output
        )
        assert assigned["distance"].max() < 3  # of scaled records, not of days
        # All wards would count as other, which one line after another does not show.
        new.assign(ward="ICU").to_csv(tmp_path / "wrong.csv", index=False)
        result = run("assign", "--data", "wrong.csv", "--centroids", "out/centroids.npz",
                     "--output", "other.csv")  # fmt: skip
        failed(result, "50 of 50 cells of 'ward' hold none of its categories")
        new.iloc[2:].astype({"income": float}).to_parquet(tmp_path / "new.parquet")
        assert run("assign", "--data", "new.parquet", "--centroids", "out/centroids.npz",
                   "--output", "other.csv").exit_code == 0  # fmt: skip
        other = pd.read_csv(tmp_path / "other.csv")
        assert other["cluster"].tolist() == assigned["cluster"].iloc[2:].tolist()
        # A node may have kept the box alone.
        with np.load(tmp_path / "out" / "centroids.npz") as file:
            arrays = {name: array for name, array in file.items() if name != "declared"}
        np.savez(tmp_path / "out" / "centroids.npz", **arrays)
        failed(
            run(*arguments), "lacks", "log10(income)", "name this file with --domain"
        )
        first = (tmp_path / "assigned.csv").read_text("utf-8")
        assert run(*arguments, "--domain", "domain.toml").exit_code == 0
        assert (tmp_path / "assigned.csv").read_text("utf-8") == first
        for old, other in (
            ("upper = 120", "upper = 130"),
            ('"surgery"', '"surgeries"'),
        ):
            (tmp_path / "other.toml").write_text(DOMAIN.replace(old, other), "utf-8")
            failed(run(*arguments, "--domain", "other.toml"), "Expected the domain")

    def test_declarations_of_another_box_are_refused(self, run, visits, tmp_path):
        assert (
            run(*SIMULATE, "--domain", "domain.toml", "--strategy", "lloyd").exit_code
            == 0
        )
        with np.load(tmp_path / "out" / "centroids.npz") as file:
            arrays = dict(file)
        assert TableDomain.from_toml(str(arrays["declared"])) == TableDomain.from_toml(
            DOMAIN
        )
        for declared in (DOMAIN.replace("upper = 120", "upper = 130"), "nothing"):
            np.savez(
                tmp_path / "out" / "centroids.npz", **{**arrays, "declared": declared}
            )
            result = run(
                "assign", "--data", "visits.csv", "--centroids", "out/centroids.npz"
            )
            failed(result, "Expected the centroids.npz of a run")


POLICY = 'state_dir = "state"\ndomain = "domain.toml"\n'


class TestCheck:
    @pytest.fixture
    def node(self, run, tmp_path):
        (tmp_path / "policy.toml").write_text(POLICY, "utf-8")
        (tmp_path / "policy.toml").chmod(0o600)
        lines = ["age,income,ward,admitted"]
        lines += [
            "41,7132.5891,surgery,2024-02-29",
            "42,20000,medicine,2024-03-01",
        ] * 100

        def check(*arguments, add="42,20000,medicine,2024-03-01", text=None):
            text = "\n".join([*lines, add, ""]) if text is None else text
            (tmp_path / "records.csv").write_text(text, "utf-8")
            (tmp_path / "records.csv").chmod(0o600)
            result = run("check", "--policy-file", "policy.toml", "--data", "records.csv",
                         *arguments)  # fmt: skip
            assert "7132" not in result.output
            assert "Traceback" not in result.output
            rows = (
                [c.strip() for c in line.split("│")]
                for line in result.output.splitlines()
            )
            found = {}
            for row in rows:
                if len(row) == 5 and row[2]:
                    found[row[2]] = row[1:4:2]
                elif len(row) == 5:  # a further line of a finding
                    found[list(found)[-1]][1] += f"\n{row[3]}"
            return result.exit_code, found

        return check

    @pytest.mark.claim("reference/domains", "only-rules-missing-cells")
    def test_the_policys_domain_reads_the_records_and_has_a_digest(
        self, node, tmp_path
    ):
        code, found = node()
        assert code == 0, found
        digest = TableDomain.from_toml(DOMAIN).digest
        groups = re.search(r"digest ([0-9a-f ]{79}),", found["domain"][1])[1]
        assert groups.replace(" ", "") == digest
        assert "4 declared columns, 6 in the box" in found["domain"][1]
        assert (
            "; a missing cell in 'income', 'admitted' drops its record; digest"
            in found["domain"][1]
        )
        assert "'age', 'income', 'ward', 'admitted', as pinned" in found["data"][1]
        assert "columns 'age', 'income', 'ward', 'admitted'" in found["accepts"][1]
        assert found["domain"][1].split("\n")[1:] == [
            "age: number 0 to 120, a missing cell counts as 40",
            "income: number 1000 to 1e6, log scale",
            "ward: category surgery, medicine, other, a missing cell counts as other",
            "admitted: date 2020-01-01 to 2024-12-31",
        ]
        for name in ("accepts", "domain", "data"):
            for encoded in ("log10", "days(", "ward=", "737425"):
                assert encoded not in found[name][1]
        for add in ("no age,1,unlisted,2024-02-29", ",5,,2020-01-01"):
            assert node(add=add)[0] == 0
        (tmp_path / "domain.toml").write_text("columns = 1", "utf-8")
        code, found = node()
        assert (code, found["policy file"][0]) == (1, "no")
        said = found["policy file"][1]
        assert (
            "The key domain in the policy file policy.toml: Expected the domain file"
            in said
        )
        assert "key 'columns': expected a [[columns]] for each column; got 1." in said
        assert said.endswith(
            "docs/reference/domains.md has examples under 'In a policy'."
        )

    @pytest.mark.parametrize(
        "line",
        [
            "1,secret,surgery,2024-02-29",
            "1,5,surgery,29.2.2024",
            "1,2",
            ",,,",
            "secret,,,",
        ],
    )
    def test_what_counts_as_none_is_named_and_not_shown(self, node, line):
        """Records that a run counts as none keep no node from taking part."""
        code, found = node(add=line)
        assert (code, found["data"][0]) == (0, "ok"), found
        assert "under 1 %" in found["data"][1]
        assert "secret" not in found["data"][1]
        assert "of 201" not in found["data"][1]

    def test_a_column_without_any_usable_cell_is_named(self, node):
        text = "age,income,ward,admitted\n41,7132.5891,ICU,2024-02-29\n42,2e4,ICU,2024-03-01\n"
        code, found = node(text=text)  # the ward of both is missing
        assert (code, found["data"][0]) == (1, "no")
        assert (
            "'ward' holds none of its categories in all of its cells"
            in found["data"][1]
        )

    def test_a_file_without_names_of_columns_is_not_shown(self, node):
        text = "41,7132.5891,surgery,2024-02-29\n42,20000,medicine,2024-03-01\n"
        code, found = node(text=text)
        assert (code, found["data"][0]) == (1, "no")
        assert "Expected names in all cells of the first line" in found["data"][1]
        assert node("--header", "age,income,ward,admitted", text=text)[0] == 0

    def test_a_domain_beside_the_policy(self, node, tmp_path):
        (tmp_path / "policy.toml").write_text('state_dir = "state"\n', "utf-8")
        assert node("--domain", "domain.toml")[0] == 0
        assert node()[0] == 1  # text and dates are no numbers
        (tmp_path / "policy.toml").write_text(POLICY, "utf-8")
        texts = {
            "none": "",
            "other": DOMAIN.replace("upper = 120", "upper = 130"),
            "names": DOMAIN.replace('"surgery"', '"surgeries"'),
            "off": "from_records = true\n" + DOMAIN,
        }
        texts["rules"] = DOMAIN.replace("missing = 40", "missing = 41")
        words = [
            "[[columns]]",
            "pins it: age: number 0 to 120, a missing cell counts as 40 (digest",
            "ward: category surgeries, medicine, other, a missing",
            "from public knowledge in the domain file off.toml. Got one that was read off records",
            "in the domain file rules.toml: age: number 0 to 120, a missing cell counts as 41 (dig",
        ]
        for (name, text), word in zip(texts.items(), words, strict=True):
            (tmp_path / f"{name}.toml").write_text(text, "utf-8")
            code, found = node("--domain", f"{name}.toml")
            assert (code, found["domain"][0], word in found["domain"][1]) == (
                1,
                "no",
                True,
            ), found
            assert f"{name}.toml" in found["domain"][1]
            assert "docs/reference/domains.md has examples" in found["domain"][1]
        assert (
            "the key domain in the policy file policy.toml pins" in found["domain"][1]
        )
        box = 'state_dir = "state"\n[domain]\nlower = [0]\nupper = [1]\n'
        (tmp_path / "policy.toml").write_text(box, "utf-8")
        found = node("--domain", "domain.toml")[1]
        assert (
            "pins it: number of columns 1. Got in the domain file" in found["domain"][1]
        )
        (tmp_path / "policy.toml").write_text(
            'state_dir = "state"\ncolumns = ["age"]\n', "utf-8"
        )
        found = node("--domain", "domain.toml")[1]
        assert (
            "the key columns in the policy file policy.toml: 'age'. Got"
            in found["domain"][1]
        )

    def test_long_lists_are_cut_and_counted(self, node, tmp_path):
        values = [f"v{i}" for i in range(30)]
        numbers = [Number(f"n{i}", 0, 1) for i in range(22)]
        declared = TableDomain([Category("c", tuple(values)), *numbers])
        (tmp_path / "domain.toml").write_text(declared.to_toml(), "utf-8")
        lines = node()[1]["domain"][1].split("\n")
        assert lines[1].endswith("v18, v19, and 10 more")
        assert lines[-2:] == ["n18: number 0 to 1", "and 3 more"]
