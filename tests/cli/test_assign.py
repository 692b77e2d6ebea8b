"""New records are assigned to the clusters of a run."""

import stat
from html import unescape

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.cli.app import app
from flower_kmeans.cli.outputs import write_centroids
from flower_kmeans.data import tables
from flower_kmeans.report.site_sizes import PRIVATE
from flower_kmeans.strategies import SynopsisKMeans

pytestmark = pytest.mark.claim("own-data", "assign-gives-new-records")

COLUMNS = ("age", "weight")
RNG = np.random.default_rng(6)
CENTERS = np.array([[20.0, 50.0], [40.0, 90.0], [70.0, 60.0]])
RECORDS = (CENTERS[:, None] + RNG.normal(size=(3, 100, 2))).reshape(-1, 2)


@pytest.fixture(scope="module")
def clustering():
    strategy = SynopsisKMeans(
        3,
        Box([0, 0], [100, 200], columns=COLUMNS),
        PrivacyBudget(None),
        300,
        max_size=120,
    )
    return simulate(strategy, np.array_split(RECORDS, 3))


@pytest.fixture
def run(tmp_path, clustering, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_centroids(tmp_path, clustering, COLUMNS)

    def invoke(*arguments):
        return CliRunner().invoke(
            app, ["assign", "--centroids", "centroids.npz", *arguments]
        )

    return invoke


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("batch_rows", [7, 65_536])
def test_clusters_and_distances_are_those_of_predict(
    run, clustering, monkeypatch, suffix, batch_rows
):
    monkeypatch.setattr(tables, "BLOCK_ROWS", batch_rows)
    table = pd.DataFrame(
        {"weight": RECORDS[:, 1], "name": "somebody", "age": RECORDS[:, 0]}
    )
    write = table.to_parquet if suffix == "parquet" else table.to_csv
    write(f"new.{suffix}", index=False)
    result = run("--data", f"new.{suffix}", "--output", f"out.{suffix}")
    assert (result.exit_code, "300 records" in result.output) == (0, True)
    found = (pd.read_parquet if suffix == "parquet" else pd.read_csv)(f"out.{suffix}")
    assert list(found.columns) == ["weight", "name", "age", "cluster", "distance"]
    np.testing.assert_array_equal(found["cluster"], clustering.predict(RECORDS))
    nearest = np.linalg.norm(RECORDS - clustering.centroids[found["cluster"]], axis=1)
    np.testing.assert_allclose(found["distance"], nearest)
    pd.testing.assert_frame_equal(found[table.columns], table)


def test_other_numbers_of_clusters_come_from_the_synopsis(run, tmp_path, clustering):
    pd.DataFrame(RECORDS, columns=COLUMNS).to_csv("new.csv", index=False)
    for k in (1, 2):
        result = run("--data", "new.csv", "--clusters", str(k))
        assert result.exit_code == 0, result.output
        found, expected = pd.read_csv("assigned.csv"), clustering.synopsis.kmeans(k)
        np.testing.assert_array_equal(found["cluster"], expected.predict(RECORDS))
        distances = np.linalg.norm(
            RECORDS - expected.centroids[found["cluster"]], axis=1
        )
        np.testing.assert_allclose(found["distance"], distances)
    for k, message in (
        (0, "Expected n_clusters in [1, "),
        (10_000, "Got 10000 instead"),
    ):
        assert message in " ".join(
            run("--data", "new.csv", "--clusters", str(k)).output.split()
        )
    (tmp_path / "synopsis.npz").unlink()
    result = run("--data", "new.csv", "--clusters", "2")
    assert (result.exit_code, "Expected synopsis.npz beside" in result.output) == (
        1,
        True,
    )


def test_a_record_with_a_missing_cell_has_no_cluster_and_others_keep_theirs(
    run, tmp_path
):
    (tmp_path / "new.csv").write_text("age,weight\n20,50\n,50\n70,nan\n70,60\n")
    result = run("--data", "new.csv", "--output", "out.csv")
    assert (result.exit_code, "; 2 with missing cells have none." in result.output) == (
        0,
        True,
    )
    found = pd.read_csv("out.csv")
    assert found["cluster"].isna().tolist() == [False, True, True, False]
    assert found["distance"].isna().tolist() == [False, True, True, False]
    assert stat.S_IMODE((tmp_path / "out.csv").stat().st_mode) == 0o600


def test_another_weight_gives_clusters_of_the_synopsis(run, clustering, tmp_path):
    clustering.synopsis.save(tmp_path / "synopsis.npz")
    pd.DataFrame(RECORDS, columns=COLUMNS).to_csv("new.csv", index=False)
    result = run(
        "--data", "new.csv", "--output", "out.csv", "--clusters", "2",
        "--weight", "age=0.01",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = pd.read_csv("out.csv")
    again = clustering.synopsis.kmeans(2, weights={"age": 0.01})
    np.testing.assert_array_equal(found["cluster"], again.predict(RECORDS))
    # 90 of weight is one cluster, 50 and 60 are the other
    is_heavy = found["weight"] > 75
    assert found["cluster"][is_heavy].nunique() == 1
    assert found["cluster"][~is_heavy].nunique() == 1
    nearest = again.centroids[found["cluster"]]
    offsets = (RECORDS - nearest) / again.domain.unit
    np.testing.assert_allclose(found["distance"], np.linalg.norm(offsets, axis=1))
    # without --clusters there are as many as the run has
    same = run("--data", "new.csv", "--output", "same.csv", "--weight", "age=0.5")
    assert same.exit_code == 0, same.output
    assert pd.read_csv("same.csv")["cluster"].nunique() == 3


def test_text_beside_the_numbers_stays_as_it_was(run, tmp_path):
    rows = [f"{i:07},2024-01-0{1 + i % 9},20,50\n" for i in range(5_000)] + [
        "A-1,NA,20,50\n"
    ]
    (tmp_path / "new.csv").write_text("code,day,age,weight\n" + "".join(rows))
    for output, read in (("out.csv", pd.read_csv), ("out.parquet", pd.read_parquet)):
        assert run("--data", "new.csv", "--output", output).exit_code == 0
        options = (
            {"dtype": str, "keep_default_na": False} if output == "out.csv" else {}
        )
        found = read(output, **options)
        assert [
            f"{code},{day},20,50\n"
            for code, day in zip(found.code, found.day, strict=True)
        ] == rows


def test_whole_numbers_beyond_float64_are_rounded(run, clustering):
    table = pd.DataFrame({"age": [2**60 + 1, 20], "weight": [50, 50]})
    table.to_parquet("new.parquet")
    assert run("--data", "new.parquet", "--output", "out.csv").exit_code == 0
    expected = clustering.predict(table.to_numpy(float))
    np.testing.assert_array_equal(pd.read_csv("out.csv")["cluster"], expected)


# ------------------------------------------------------------------------- own sizes


def sizes_in(output):
    """Return the own and the released sizes that the command printed."""
    cells = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in output.splitlines()
        if line.startswith("│")
    ]
    rows = [row for row in cells if row[1]]  # the others go on with a name
    return [(float(row[1]), float(row[3].replace(",", ""))) for row in rows]


@pytest.mark.claim("own-data", "assign-prints-own-sizes")
def test_own_sizes_are_printed_beside_those_of_the_run(
    run, clustering, tmp_path, monkeypatch
):
    monkeypatch.setattr(tables, "BLOCK_ROWS", 7)
    records = RECORDS[:100]
    frame = pd.DataFrame(records, columns=COLUMNS)
    frame.loc[3, "age"] = np.nan
    frame.to_csv("new.csv", index=False)
    result = run("--data", "new.csv", "--page", "sizes.html")
    assert result.exit_code == 0, result.output
    labels = clustering.predict(np.delete(records, 3, axis=0))
    own = np.bincount(labels, minlength=3)
    expected = list(zip(own, np.round(clustering.counts, 1), strict=True))
    assert sizes_in(result.stdout) == expected
    assert "for their holder alone" in result.stdout
    page = tmp_path / "sizes.html"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    text = page.read_text("utf-8")
    assert PRIVATE in unescape(text)
    for size in own:
        assert f'<td class="num">{size}</td>' in text


def test_own_sizes_are_of_the_clusters_that_were_asked_for(run, clustering):
    pd.DataFrame(RECORDS, columns=COLUMNS).to_csv("new.csv", index=False)
    result = run("--data", "new.csv", "--clusters", "2")
    other = clustering.synopsis.kmeans(2)
    own = np.bincount(other.predict(RECORDS), minlength=2)
    expected = list(zip(own, np.round(other.counts, 1), strict=True))
    assert sizes_in(result.stdout) == expected


def counts_persons(path):
    with np.load(path) as file:
        np.savez(path, **{**file, "counted": np.array("persons")})


@pytest.mark.parametrize("batch_rows", [3, 65_536])
def test_persons_count_as_one_together(run, clustering, monkeypatch, batch_rows):
    monkeypatch.setattr(tables, "BLOCK_ROWS", batch_rows)
    counts_persons("centroids.npz")
    rows = [0, 1, 100, 200, 201]  # of the first, second and third cluster
    frame = pd.DataFrame(RECORDS[rows], columns=COLUMNS)
    frame["who"] = ["Ann", "Bob", "Bob", "Bob ", None]
    frame.loc[5] = [np.nan, 1.0, "Ann"]  # in no cluster
    frame.to_csv("new.csv", index=False)
    first, second, third = clustering.predict(RECORDS[[0, 100, 200]])
    expected = np.zeros(3)
    expected[first] += 1 + 1 / 3
    expected[second] += 1 / 3
    expected[third] += 1 / 3 + 1
    result = run("--data", "new.csv", "--person", "who")
    assert result.exit_code == 0, result.output
    own = [size for size, _ in sizes_in(result.stdout)]
    np.testing.assert_allclose(own, expected, atol=0.051)
    assert "own persons" in result.stdout
    # without their column records are counted, and the command says so
    result = run("--data", "new.csv")
    assert sum(size for size, _ in sizes_in(result.stdout)) == 5
    assert "The run counted persons, and these are records." in result.stdout


def test_an_empty_table_of_persons_has_sizes_0(run, tmp_path):
    counts_persons("centroids.npz")
    (tmp_path / "new.csv").write_text("age,weight,who\n")
    result = run("--data", "new.csv", "--person", "who")
    assert result.exit_code == 0, result.output
    assert [size for size, _ in sizes_in(result.stdout)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("sizes.txt", "Expected --page as a file that ends in .html"),
        ("no/sizes.html", "in a directory that exists"),
        ("new.html", "Expected an output beside the data"),
    ],
)
def test_a_page_without_a_place_is_refused_before_anything_is_written(
    run, tmp_path, page, message
):
    (tmp_path / "new.csv").write_text("age,weight\n20,50\n")
    (tmp_path / "new.html").symlink_to("new.csv")
    before = set(tmp_path.iterdir())
    result = run("--data", "new.csv", "--page", page)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_file_of_a_spreadsheet_is_read_as_by_simulate(
    run, tmp_path, clustering, delimiter
):
    lines = ["age, weight ", *(f"{age},{weight}" for age, weight in RECORDS)]
    text = "\n".join(lines).replace(",", delimiter)
    (tmp_path / "new.csv").write_text(text, encoding="utf-8-sig")
    assert run("--data", "new.csv", "--output", "out.csv").exit_code == 0
    found = pd.read_csv("out.csv")
    assert list(found.columns) == ["age", "weight", "cluster", "distance"]
    np.testing.assert_array_equal(found["cluster"], clustering.predict(RECORDS))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_bad_cell_far_down_leaves_an_earlier_output(run, tmp_path, suffix):
    rows = "20,50\n" * 70_000  # beyond the first block
    (tmp_path / "new.csv").write_text(f"age,weight\n{rows}20,heavy\n")
    output = tmp_path / f"out.{suffix}"
    output.write_text("earlier")
    before = set(tmp_path.iterdir())
    assert run("--data", "new.csv", "--output", output.name).exit_code == 1
    assert output.read_text() == "earlier"
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        (("--data", "new.csv"), "age,height\n1,2\n", "lacks ['weight']"),
        (("--data", "new.csv"), "age,weight,cluster\n1,2,3\n", "no columns"),
        (
            ("--data", "new.csv"),
            "age,weight\n1,heavy\n",
            "1 of 1 cells of 'weight' hold no number",
        ),
        (("--data", "new.csv"), "age,weight,age\n1,2,3\n", "Got ['age'] twice"),
        (("--data", "none.csv"), "", "does not exist"),
        (
            ("--data", "new.csv", "--output", "new.csv"),
            "age,weight\n1,2\n",
            "beside the data",
        ),
        (("--data", "new.csv", "--output", "out.txt"), "age,weight\n1,2\n", ".parquet"),
        (
            ("--data", "new.csv", "--output", "no/x.csv"),
            "age,weight\n1,2\n",
            "that exist",
        ),
        (("--data", "new.csv", "--output", "d.csv"), "age,weight\n1,2\n", "Got d.csv"),
        (("--data", "new.csv"), "age,weight,\xe2ge\n1,2,3\n", "in utf-8"),
        (
            ("--data", "new.csv", "--centroids", "new.csv"),
            "age,weight\n1,2\n",
            "centroids.npz",
        ),
    ],
)
def test_what_cannot_be_assigned_is_one_sentence(
    run, tmp_path, arguments, content, message
):
    (tmp_path / "d.csv").mkdir()
    # Each character is a byte, as in files of an older spreadsheet.
    (tmp_path / "new.csv").write_text(content, "latin-1")
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
    assert "heavy" not in result.output
    assert (tmp_path / "new.csv").read_text("latin-1") == content


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("domain", np.array("{}")),
        ("domain", np.array("[]")),
        ("centroids", np.zeros((3, 5))),
        ("centroids", np.full((3, 2), np.nan)),
        ("weights", np.zeros(7)),
        ("columns", np.array(["age"])),
        ("private", np.array("yes")),
        ("counted", np.array("households")),
    ],
)
def test_a_file_that_no_run_wrote_is_refused(run, name, value):
    with np.load("centroids.npz") as file:
        np.savez("centroids.npz", **{**file, name: value})
    result = run("--data", "centroids.npz")
    assert "Expected the centroids.npz of a run" in " ".join(result.output.split())


@pytest.mark.parametrize(
    "name", ["domain", "centroids", "counts", "columns", "private"]
)
def test_a_file_that_lacks_an_array_is_refused(run, name):
    with np.load("centroids.npz") as file:
        np.savez(
            "centroids.npz",
            **{key: value for key, value in file.items() if key != name},
        )
    result = run("--data", "centroids.npz")
    assert "Expected the centroids.npz of a run" in " ".join(result.output.split())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive"])
def test_a_damaged_file_is_refused(run, tmp_path, content):
    (tmp_path / "centroids.npz").write_bytes(content)
    result = run("--data", "centroids.npz")
    assert "Expected the centroids.npz of a run. Got" in " ".join(result.output.split())
    (tmp_path / "centroids.npz").unlink()
    result = run("--data", "new.csv")
    assert "There is no file centroids.npz" in " ".join(result.output.split())
