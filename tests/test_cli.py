"""The command: what it writes, what it prints, and that every error is one sentence."""

import csv
import inspect
import itertools
import json
import re
import stat
import sys
from html import escape

import numpy as np
import pytest
from ledger_workers import DELTA, answer_of, charge, gaussian_plan, price
from report_pages import addresses, read, tables
from typer.testing import CliRunner

from flower_kmeans.choice import Keys, StrategyName, Trust
from flower_kmeans.cli import app
from flower_kmeans.clustering import Clustering
from flower_kmeans.datasets import PHOTO_RECORDS
from flower_kmeans.privacy.ledger import Ledger, Limit
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import KEYS
from flower_kmeans.protocol.session import ClientSession, unpack_session
from flower_kmeans.protocol.trust import TRUST_MODELS
from flower_kmeans.protocol.wire import encode
from flower_kmeans.strategies import KMeansStrategy

CENTERS = np.array([[-3.0, 1.0], [3.0, 2.0], [0.0, 9.0]])


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def blobs(tmp_path):
    rng = np.random.default_rng(5)
    kind = np.repeat([0, 1, 2], 400)
    records = CENTERS[kind] + rng.normal(scale=0.2, size=(1200, 2))
    path = tmp_path / "blobs.csv"
    with path.open("w") as file:
        file.write("height,weight,site\n")
        for (height, weight), k in zip(records, kind, strict=True):
            file.write(f"{height},{weight},site-{k}\n")
    return path


@pytest.fixture
def server(tmp_path):
    """Points near the blobs, in a file with the columns in another order and one more."""
    points = np.repeat(CENTERS, 5, axis=0) + np.random.default_rng(6).normal(size=(15, 2))
    path = tmp_path / "server.csv"
    with path.open("w") as file:
        file.write("weight,height,age\n")
        for height, weight in points:
            file.write(f"{weight},{height},999\n")
    return path


PUBLIC = ("--bounds", "height=-5:5", "--bounds", "weight=0:10", "--n-records", 1200)
FEDDP = ("--strategy", "feddp", "--server-data")
SIGHTED = "The server computes the next query, so it must see the sums."
LOCAL = ("--engine", "in-process", "--clusters", 3, "--output", "out", "--columns", "height,weight")


def simulate(run, path, *arguments):
    return run("simulate", "--data", path, *LOCAL, *arguments)


def assert_one_sentence(result, *words):
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)
    for word in words:
        assert word in result.stderr


class TestSimulate:
    def test_lloyd_finds_the_blobs_and_writes_them(self, run, blobs, tmp_path):
        result = simulate(run, blobs, "--strategy", "lloyd", "--clients", 4)
        assert result.exit_code == 0, result.output
        with np.load(tmp_path / "out" / "centroids.npz") as saved:
            centroids, counts, columns = saved["centroids"], saved["counts"], saved["columns"]
        assert columns.tolist() == ["height", "weight"]
        nearest = np.abs(centroids[:, None] - CENTERS).sum(axis=2).argmin(axis=0)
        np.testing.assert_allclose(centroids[nearest], CENTERS, atol=0.1)
        np.testing.assert_allclose(counts.sum(), 1200)
        with (tmp_path / "out" / "centroids.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [float(row["height"]) for row in rows] == centroids[:, 0].tolist()
        assert [float(row["noisy_size"]) for row in rows] == counts.tolist()
        assert "NOT PRIVATE" in result.stdout
        assert " size" in result.stdout
        assert "noisy" not in result.stdout

    @pytest.mark.parametrize("strategy", ["fastlloyd", "glloyd", "sulloyd", "FastLloyd"])
    def test_private_run_reports_its_guarantee(self, run, blobs, tmp_path, strategy):
        result = simulate(
            run, blobs, "--strategy", strategy, "--epsilon", 2, "--delta", 1e-7,
            "--rounds", 3, "--clients", 5, *PUBLIC,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["epsilon"] == pytest.approx(2, rel=1e-4)
        assert report["epsilon"] <= 2
        assert report["delta"] in (0, 1e-7)
        assert report["trust"] == "oblivious-server"
        assert (report["n_rounds"], report["n_clients"]) == (3, 5)
        assert report["n_records"] == 1200
        assert (report["lower"], report["upper"]) == ([-5, 0], [5, 10])
        for number in (1, 2, 3):
            assert f"round {number} of 3: 5 clients answered" in result.stdout
        for word in ("epsilon", "delta", "mu", "trust", "rounds", "clients", "time", "noisy size"):
            assert word in result.stdout

    @pytest.mark.parametrize(
        ("arguments", "strategy", "trust"),
        [
            ((), "SynopsisKMeans", "distributed-noise"),
            (("--trust", "trusted-server"), "SynopsisKMeans", "trusted-server"),
            (("--trust", "oblivious-server"), "SynopsisKMeans", "oblivious-server"),
            (("--trust", "oblivious-server", "--rounds", 2), "FastLloyd", "oblivious-server"),
            (("--rounds", 2), "FastLloyd", "oblivious-server"),
            (("--strategy", "glloyd"), "GLloyd", "oblivious-server"),
        ],
    )
    def test_the_strategy_when_in_doubt(self, run, blobs, tmp_path, arguments, strategy, trust):
        result = simulate(run, blobs, "--clients", 4, *PUBLIC, *arguments)
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert (report["strategy"], report["trust"]) == (strategy, trust)
        planned = run("plan", *arguments)
        assert planned.exit_code == 0, planned.output
        assert trust in planned.stdout

    @pytest.mark.parametrize("keys", Keys)
    @pytest.mark.parametrize("trust", ["clients-only", "distributed-noise", "trusted-server"])
    def test_other_trust_models(self, run, blobs, tmp_path, trust, keys):
        arguments = ("--trust", trust, "--keys", keys, "--rounds", 2, "--clients", 4)
        result = simulate(run, blobs, *arguments, *PUBLIC)
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["trust"] == trust
        assert report["keys"] == (keys if TRUST_MODELS[trust].is_protected else "none")

    def test_more_colluders_cost_noise(self, run, blobs):
        arguments = ("--trust", "distributed-noise", "--rounds", 2, "--clients", 8, *PUBLIC)
        for given, factor in (((), 8 / 6), (("--max-colluders", 3), 8 / 4)):
            result = simulate(run, blobs, *arguments, *given)
            assert result.exit_code == 0, result.output
            stated = re.search(r"│ noise\s+│ (\S+) times", result.stdout)
            before = re.search(r"\((\S+) before removal\)", result.stdout)
            found = float((before or stated)[1])
            assert found == pytest.approx(factor**0.5, rel=1e-3)

    def test_files_are_their_owners_alone_and_names_do_not_act(self, run, tmp_path):
        """Names of columns come from the data file: they are neither formulas nor commands."""
        names = ['=HYPERLINK("http://x","y")', "-b", "\x1b]0;title\x07c", "$\\frac{$", "a\u202eb"]
        rows = np.random.default_rng(0).random((400, len(names)))
        with (tmp_path / "x.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([names, *rows.tolist()])
        arguments = ("--lower", 0, "--upper", 1, "--n-records", 400, "--clients", 5)
        for _ in range(2):  # also over files that are there
            result = run(
                "simulate", "--data", tmp_path / "x.csv", *LOCAL[:-2], *arguments, "--rounds", 2
            )
            assert result.exit_code == 0, result.output
            files = list((tmp_path / "out").iterdir())
            assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
            for path in files:
                path.chmod(0o644)
        assert not {"\x1b", "\u202e"} & set(result.output)
        with (tmp_path / "out" / "centroids.csv").open(newline="") as file:
            _, _, *written = next(csv.reader(file))
        shown = [r"\x1b]0;title\x07c", "$\\frac{$", r"a\u202eb"]
        assert written == [f"'{names[0]}", "'-b", *shown]
        with np.load(tmp_path / "out" / "centroids.npz") as saved:
            assert saved["columns"].tolist() == names

    @pytest.mark.parametrize(("more", "clip"), [((), 300.0), (("--clip", 50), 50.0)])
    def test_whole_clients_are_protected(self, run, blobs, tmp_path, more, clip):
        arguments = ("--unit", "client", "--rounds", 2, "--clients", 4, *PUBLIC, *more)
        result = simulate(run, blobs, "--trust", "distributed-noise", *arguments)
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert (report["unit"], report["clip"], report["planned_clients"]) == ("client", clip, 4)
        assert "per client" in result.stdout
        assert f"{clip:g} records' worth of a client in each release" in result.stdout
        assert "4, at least 4 behind a sum" in result.stdout
        assert f"{(4 / 3) ** 0.5:.4g} times the planned standard deviation" in result.stdout

    @pytest.mark.parametrize("trust", [None, "trusted-server", "plain"])
    def test_feddp_starts_from_the_servers_file(self, run, blobs, server, tmp_path, trust):
        arguments = ("--strategy", "feddp", "--server-data", server, "--rounds", 1, *PUBLIC)
        arguments += () if trust == "plain" else ("--epsilon", 50)
        arguments += () if trust is None else ("--trust", trust)
        result = simulate(run, blobs, *arguments, "--clients", 4)
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["strategy"] == "FedDPKMeans"
        assert report["trust"] == (trust or "distributed-noise")
        assert (report["n_rounds"], report["private"]) == (4, trust != "plain")
        assert "round 4 of 4: 4 clients answered" in result.stdout
        with np.load(tmp_path / "out" / "centroids.npz") as saved:
            centroids = saved["centroids"]
        nearest = np.abs(centroids[:, None] - CENTERS).sum(axis=2).argmin(axis=0)
        assert sorted(nearest) == [0, 1, 2]
        np.testing.assert_allclose(centroids[nearest], CENTERS, atol=1.0)

    @pytest.mark.parametrize("trust", [None, "trusted-server", "plain"])
    def test_synopsis_needs_nothing_but_the_records(self, run, blobs, tmp_path, trust):
        arguments = () if trust == "plain" else ("--epsilon", 50)
        arguments += () if trust is None else ("--trust", trust)
        result = simulate(run, blobs, "--strategy", "synopsis", *PUBLIC, *arguments, "--clients", 4)
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["strategy"] == "SynopsisKMeans"
        assert report["trust"] == (trust or "distributed-noise")
        with np.load(tmp_path / "out" / "centroids.npz") as saved:
            centroids = saved["centroids"]
        nearest = np.abs(centroids[:, None] - CENTERS).sum(axis=2).argmin(axis=0)
        assert sorted(nearest) == [0, 1, 2]
        np.testing.assert_allclose(centroids[nearest], CENTERS, atol=1.0)

    def test_plain_trust_is_not_private_and_needs_no_public_figures(self, run, blobs, tmp_path):
        result = simulate(run, blobs, "--trust", "plain", "--clients", 3)
        assert result.exit_code == 0, result.output
        assert json.loads((tmp_path / "out" / "report.json").read_text())["epsilon"] is None

    def test_picture_of_a_table(self, run, blobs, tmp_path):
        pytest.importorskip("matplotlib")
        result = simulate(run, blobs, "--strategy", "lloyd")
        assert "picture.png" in result.stdout
        assert (tmp_path / "out" / "picture.png").read_bytes().startswith(b"\x89PNG")

    def test_no_picture_without_matplotlib(self, run, blobs, tmp_path, monkeypatch):
        monkeypatch.setattr("flower_kmeans.picture.can_plot", lambda: False)
        result = simulate(run, blobs, "--strategy", "lloyd")
        assert result.exit_code == 0, result.output
        assert "picture.png" not in result.stdout
        assert "flower-kmeans[plots]" in result.stdout
        assert not (tmp_path / "out" / "picture.png").exists()

    @pytest.mark.parametrize(
        ("split", "more", "n_clients"),
        [
            ("iid", (), 20),
            ("column:site", (), 3),
            ("column:site", ("--clients", 2), 2),
            ("column:height", ("--clients", 7), 7),
            ("dirichlet:0.5", ("--label", "site", "--clients", 6), 6),
        ],
    )
    def test_splits(self, run, blobs, tmp_path, split, more, n_clients):
        result = simulate(run, blobs, "--strategy", "lloyd", "--split", split, *more)
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["n_clients"] == n_clients
        assert report["columns"] == ["height", "weight"]

    def test_a_text_column_to_split_by_need_not_be_left_out(self, run, blobs, tmp_path):
        result = run(
            "simulate", "--data", blobs, "--engine", "in-process", "--strategy", "lloyd",
            "--split", "column:site", "--clusters", 3, "--output", "out",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["columns"] == ["height", "weight"]

    def test_one_bound_for_all_columns_and_another_for_one(self, run, blobs, tmp_path):
        result = simulate(
            run, blobs, "--n-records", 1200, "--lower", -10, "--upper", 10,
            "--bounds", "height=-5:5", "--rounds", 2,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert (report["lower"], report["upper"]) == ([-5, -10], [5, 10])

    def test_bounds_from_data_warn_loudly(self, run, blobs, tmp_path):
        result = simulate(run, blobs, "--n-records", 1200, "--bounds-from-data", "--rounds", 2)
        assert result.exit_code == 0, result.output
        assert "NOT private" in result.stderr
        assert "NOT PRIVATE" in result.stdout
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["bounds_from_data"] is True
        assert report["private"] is False
        assert report["statements"][0].startswith("NOT PRIVATE")
        assert len(report["statements"]) > 1

    def test_bounds_that_were_given_are_not_read_off(self, run, blobs, tmp_path):
        result = simulate(run, blobs, "--bounds-from-data", "--rounds", 2, *PUBLIC)
        assert result.exit_code == 0, result.output
        assert "not private" not in result.output.lower()
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["bounds_from_data"] is False
        assert report["private"] is True
        assert report["lower"] == [-5, 0]

    def test_one_client_is_no_clients(self, run, blobs):
        result = simulate(run, blobs, "--strategy", "lloyd", "--clients", 1)
        assert "1,200 records of 1 client, " in result.stdout
        assert "1 client answered" in result.stdout

    def test_the_number_of_records_is_never_counted(self, run, blobs, tmp_path):
        result = simulate(run, blobs, "--rounds", 2, *PUBLIC[:4], "--n-records", 1000)
        assert result.exit_code == 0, result.output
        assert json.loads((tmp_path / "out" / "report.json").read_text())["n_records"] == 1000

    def test_the_report_is_a_page_too(self, run, blobs, tmp_path):
        result = simulate(run, blobs, "--rounds", 2, *PUBLIC[:4], "--n-records", 1300)
        assert result.exit_code == 0, result.output
        assert "report.json, report.html" in result.stdout
        page = (tmp_path / "out" / "report.html").read_text("utf-8")
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert len(read(page).all("section")) == 9
        assert addresses(read(page)) == []
        assert tables(read(page))["Centroids"][0][-2:] == ["height", "weight"]
        for statement in report["statements"]:
            assert escape(statement) in page
        assert "1,300" in page

    def test_the_page_holds_nothing_that_was_counted_in_records(
        self, run, blobs, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(Clustering, "inertia", lambda *_: 1200 * 98_765_432.1)
        arguments = ("--epsilon", 50, "--rounds", 2, *PUBLIC[:4], "--n-records", 1300)
        result = simulate(run, blobs, *arguments)
        assert result.exit_code == 0, result.output
        page = read((tmp_path / "out" / "report.html").read_text("utf-8")).the("body")
        (inertia,) = re.findall(r"inertia +. (\S+) per record", result.stdout)
        assert float(inertia) == pytest.approx(98_765_432.1, rel=1e-3)
        assert "1,200 records" in result.stdout
        words = [text for element in page.all() for text in element.children]
        text = " ".join(word for word in words if isinstance(word, str))
        numbers = re.findall(r"\d[\d,.]*", text)
        assert "1,300" in numbers
        assert not {"1200", "1,200"} & set(numbers)
        assert inertia not in text
        assert "inertia" not in text

    def test_the_page_of_bounds_from_data_says_first_that_it_is_not_private(
        self, run, blobs, tmp_path
    ):
        result = simulate(run, blobs, "--n-records", 1200, "--bounds-from-data", "--rounds", 2)
        assert result.exit_code == 0, result.output
        root = read((tmp_path / "out" / "report.html").read_text("utf-8"))
        assert root.all("li")[0].text.startswith("Privacy NOT PRIVATE: the bounds were read off")
        assert "NOT PRIVATE" in root.the("header").text

    def test_photograph(self, run, tmp_path):
        result = run("simulate", "--engine", "in-process", "--output", "out")
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert (report["n_clients"], report["n_records"]) == (20, PHOTO_RECORDS)
        assert report["epsilon"] == pytest.approx(1)
        assert report["columns"] == ["red", "green", "blue"]
        with np.load(tmp_path / "out" / "centroids.npz") as saved:
            assert saved["centroids"].shape == (16, 3)
            assert saved["centroids"].min() >= 0
            assert saved["centroids"].max() <= 255
        page = read((tmp_path / "out" / "report.html").read_text("utf-8"))
        assert len(page.all("div", "palette")[0].children) == 16
        image = pytest.importorskip("PIL.Image")
        with image.open(tmp_path / "out" / "picture.png") as picture:
            assert picture.size[0] > 2 * 640


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (PUBLIC[:4], ["--n-records"]),
            (("--n-records", 1200), ["'height', 'weight'", "--bounds-from-data"]),
            ((*PUBLIC[:2], *PUBLIC[4:]), ["'weight'", "--bounds"]),
            ((*PUBLIC, "--bounds", "size=0:1"), ["'size'"]),
            ((*PUBLIC, "--bounds", "height"), ["NAME=LOW:HIGH"]),
            ((*PUBLIC, "--bounds", "height=0:tall"), ["'tall'"]),
            ((*PUBLIC, "--bounds", "height=5:-5"), ["'height'", "5:-5"]),
            ((*PUBLIC, "--bounds", "height=nan:5"), ["'nan'"]),
            ((*PUBLIC, "--lower", 0), ["--lower", "--upper"]),
            ((*PUBLIC, "--epsilon", 0), ["epsilon"]),
            ((*PUBLIC, "--epsilon", "nan"), ["epsilon"]),
            ((*PUBLIC, "--delta", 1.5), ["delta"]),
            ((*PUBLIC, "--clusters", 0), ["n_clusters"]),
            ((*PUBLIC, "--clusters", 1201), ["1201"]),
            ((*PUBLIC, "--rounds", 0), ["n_rounds"]),
            ((*PUBLIC, "--n-records", 0), ["n_records"]),
            ((*PUBLIC, "--clients", 0), ["--clients"]),
            ((*PUBLIC, "--clients", 4, "--min-clients", 5), ["min_clients"]),
            ((*PUBLIC, "--seed", -1), ["--seed"]),
            ((*PUBLIC, "--columns", "height,age"), ["'age'"]),
            ((*PUBLIC, "--label", "age"), ["'age'"]),
            ((*PUBLIC, "--split", "random"), ["'random'"]),
            ((*PUBLIC, "--split", "column:age"), ["'age'"]),
            ((*PUBLIC, "--split", "column:site", "--clients", 4), ["3", "4"]),
            ((*PUBLIC, "--split", "column:height"), ["--clients"]),
            ((*PUBLIC, "--split", "dirichlet:1"), ["--label"]),
            ((*PUBLIC, "--split", "dirichlet:x", "--label", "site"), ["'x'"]),
            ((*PUBLIC, "--split", "dirichlet:-1", "--label", "site"), ["alpha"]),
            ((*PUBLIC, "--split", "tiles"), ["photograph"]),
            (("--strategy", "lloyd", "--epsilon", 1), ["lloyd", "--epsilon"]),
            (("--strategy", "lloyd", "--unit", "client"), ["--unit", "--clip"]),
            ((*PUBLIC, "--trust", "plain", "--clip", 5), ["--unit", "--clip"]),
            ((*PUBLIC, "--clip", 5), ["clip=5", "unit='client'"]),
            ((*PUBLIC, "--unit", "client", "--clip", 0), ["clip positive"]),
            ((*PUBLIC, "--trust", "plain", "--epsilon", 1), ["plain", "--epsilon"]),
            ((*PUBLIC, "--trust", "distributed-noise", "--strategy", "sulloyd"), ["trust"]),
            ((*PUBLIC, "--strategy", "feddp"), ["feddp", "--server-data"]),
            ((*PUBLIC, "--strategy", "synopsis", "--rounds", 4), ["n_rounds='auto'"]),
            ((*PUBLIC, "--server-data", "server.csv"), ["synopsis", "--server-data", "feddp"]),
            ((*PUBLIC, *FEDDP, "server.csv", "--trust", "oblivious-server"), [SIGHTED]),
            ((*PUBLIC, *FEDDP, "none.csv"), ["none.csv"]),
            ((*PUBLIC, *FEDDP, "few.csv"), ["server_data", "n_clusters=3", "Got 2"]),
            ((*PUBLIC, *FEDDP, "broken.csv"), ["'height'", "1 of 3"]),
            ((*PUBLIC, *FEDDP, "narrow.csv"), ["'weight'"]),
        ],
    )
    def test_one_sentence_before_anything_is_written(
        self, run, blobs, server, tmp_path, arguments, words
    ):
        (tmp_path / "few.csv").write_text("height,weight\n1,2\n3,4\n1,2\n")
        (tmp_path / "broken.csv").write_text("height,weight\n1,2\n,4\n2,3\n")
        (tmp_path / "narrow.csv").write_text("height,age\n1,2\n3,4\n2,3\n")
        assert_one_sentence(simulate(run, blobs, *arguments), *words)
        assert not (tmp_path / "out").exists()

    def test_missing_file(self, run, tmp_path):
        assert_one_sentence(simulate(run, tmp_path / "none.csv"), "none.csv")

    def test_file_without_records(self, run, tmp_path):
        (tmp_path / "empty.csv").write_text("height,weight\n")
        assert_one_sentence(simulate(run, tmp_path / "empty.csv"), "empty.csv")

    def test_columns_of_the_photograph(self, run):
        assert_one_sentence(run("simulate", "--columns", "red"), "--data")
        assert_one_sentence(run("simulate", "--label", "red"), "--data")

    def test_output_that_cannot_be_written(self, run, blobs, tmp_path):
        (tmp_path / "out").write_text("a file")
        assert_one_sentence(simulate(run, blobs, "--strategy", "lloyd"), "out")

    def test_no_record_is_shown(self, run, tmp_path):
        path = tmp_path / "bad.csv"
        path.write_text("height,weight\n123.456,2\n654.321,nan\n")
        result = simulate(run, path)
        assert_one_sentence(result, "'weight'", "1 of 2")
        assert "123.456" not in result.output
        assert "654.321" not in result.output

    def test_missing_package_names_the_extra(self, run, monkeypatch):
        monkeypatch.setitem(sys.modules, "PIL", None)
        assert_one_sentence(run("simulate"), "Pillow", "flower-kmeans[simulation]")

    def test_missing_ray_names_the_extra_and_the_other_engine(self, run, blobs, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", None)
        result = simulate(run, blobs, *PUBLIC, "--engine", "ray")
        assert_one_sentence(result, "ray", "flower-kmeans[simulation]", "in-process")

    def test_text_and_missing_values_say_what_to_do(self, run, tmp_path):
        path = tmp_path / "people.csv"
        path.write_text("id,age,seen\nP1,31,2024-01-02\nP2,,2024-02-03\n")
        result = run("simulate", "--data", path)
        assert_one_sentence(result, "'id'", "--columns")
        result = run("simulate", "--data", path, "--columns", "seen")
        assert_one_sentence(result, "'seen'", "dates")
        result = run("simulate", "--data", path, "--columns", "age")
        assert_one_sentence(result, "'age'", "1 of 2", "remove")

    def test_a_directory_is_named(self, run):
        assert_one_sentence(run("simulate", "--data", "."), "Got . instead")


class TestPlan:
    def test_prints_the_plan_of_the_photograph(self, run):
        result = run("plan")
        assert result.exit_code == 0, result.output
        assert "epsilon" in result.stdout
        assert "delta" in result.stdout

    def test_curve_goes_through_the_budget(self, run):
        result = run("plan", "--epsilon", 0.5, "--delta", 2.5e-7, "--n-records", 10_000)
        assert result.exit_code == 0, result.output
        rows = [line.split("│") for line in result.stdout.splitlines() if "│" in line]
        curve = {row[1].strip(): float(row[2]) for row in rows if len(row) == 4}
        assert curve["0.5"] == pytest.approx(2.5e-7, rel=0.01)
        assert list(curve.values()) == sorted(curve.values(), reverse=True)

    def test_the_noise_for_clients_is_clip_times_as_large(self, run):
        def stated(*arguments):
            result = run("plan", "--strategy", "glloyd", "--rounds", 2, "--delta", 1e-6, *arguments)
            assert result.exit_code == 0, result.output
            return result.stdout, float(result.stdout.split("up to noise of about ")[1].split()[0])

        records, clients = stated(), stated("--unit", "client", "--clip", 40)
        assert clients[1] == pytest.approx(40 * records[1], rel=0.01)
        assert "for one record" in records[0]
        assert "for one client" in clients[0]
        crowd = "n_clients 20, min_clients 3, max_colluders 1"
        assert f"Trust oblivious-server, {crowd}, noise factor 1." in records[0]
        text = " ".join(clients[0].split())
        clip = "clip 40 records' worth of a client in each release"
        assert f"{crowd}, {clip}, noise factor 1." in text

    def test_every_release_of_feddp_from_parameters_alone(self, run):
        result = run(
            "plan", "--strategy", "feddp", "--server-points", 40, "--features", 8, "--epsilon", 2,
            "--delta", 1e-6, "--rounds", 2,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        lines = [line.split() for line in result.stdout.splitlines()]
        rows = [row for row in lines if len(row) == 7 and row[0].isdigit()]
        assert [(row[0], row[1]) for row in rows] == [
            ("1", "projection"),
            ("2", "weights"),
            ("3", "lift-sums"),
            ("3", "lift-counts"),
            ("4", "lloyd-sums"),
            ("4", "lloyd-counts"),
            ("4", "spread"),
            ("5", "lloyd-sums"),
            ("5", "lloyd-counts"),
        ]
        mu = float(result.stdout.split("All rounds together: mu ")[1].split(",")[0])
        together = np.hypot.reduce([float(row[6]) for row in rows])
        assert together == pytest.approx(mu, rel=1e-3)
        curve = {row[1]: float(row[3]) for row in lines if len(row) == 5 and row[0] == "│"}
        assert curve["2"] == pytest.approx(1e-6, rel=0.01)
        # Of 20 clients' shares 14 make the planned noise; most of the rest is removed.
        crowd = "n_clients 20, min_clients 16, max_colluders 2"
        factor = f"1.054 ({(20 / 14) ** 0.5:.4g} before removal)."
        assert f"Trust distributed-noise, {crowd}, noise factor {factor}" in result.stdout
        # The last size is known up to the noise of the release above.
        stated = float(result.stdout.split("up to noise of about ")[1].split()[0])
        assert stated == pytest.approx(float(rows[-1][4]), rel=0.01)

    def test_every_release_of_synopsis_from_parameters_alone(self, run):
        result = run("plan", "--strategy", "synopsis", "--features", 8, "--epsilon", 2)
        assert result.exit_code == 0, result.output
        lines = [line.split() for line in result.stdout.splitlines()]
        rows = [row for row in lines if len(row) == 7 and row[0].isdigit()]
        refinements = ["refinement-sums", "refinement-counts"] * 4
        assert [row[1] for row in rows] == ["moments", *["synopsis"] * 3, *refinements]
        stated = float(result.stdout.split("up to noise of about ")[1].split()[0])
        assert stated == pytest.approx(float(rows[-1][4]), rel=0.01)

    def test_the_plan_of_feddp_is_that_of_a_run(self, run, blobs, server, tmp_path):
        same = ("--strategy", "feddp", "--epsilon", 3, "--n-records", 1200, "--clusters", 3)
        planned = run("plan", *same, "--features", 2, "--server-points", 15, "--clients", 4)
        options = ("--server-data", server, "--clients", 4, *PUBLIC)
        result = simulate(run, blobs, *same, *options)
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        for release in report["releases"]:
            row = f"{release['name']} gaussian l2 {release['noise_multiplier']:.6g}".split()
            assert row in [line.split()[1:5] for line in planned.stdout.splitlines()]

    def test_not_private(self, run):
        result = run("plan", "--strategy", "lloyd")
        assert result.exit_code == 0, result.output
        assert "not private" in result.stdout.lower()

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (("--features", 0), "--features"),
            (("--strategy", "feddp"), "--server-points"),
            (("--server-points", 50), "--server-points"),
            (("--strategy", "feddp", "--server-points", 0), "--server-points"),
            (("--strategy", "feddp", "--server-points", 2**23), "--server-points"),
            (("--strategy", "feddp", "--server-points", 15), "n_clusters=16"),
            (("--strategy", "feddp", "--server-points", 50, "--unit", "client"), "--clip"),
            (
                ("--strategy", "feddp", "--server-points", 50, "--trust", "oblivious-server"),
                SIGHTED,
            ),
            (("--epsilon", -1), "epsilon"),
            (("--clusters", 0), "n_clusters"),
        ],
    )
    def test_errors_are_one_sentence(self, run, arguments, word):
        assert_one_sentence(run("plan", *arguments), word)


class TestKeygen:
    def test_keys_and_a_roster_are_made(self, run, tmp_path):
        result = run("keygen", "a", "b", "c", "--output", tmp_path / "new")
        assert result.exit_code == 0, result.output
        names = sorted(path.name for path in (tmp_path / "new").iterdir())
        assert names == ["a.key", "b.key", "c.key", "roster.toml"]
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
        assert Roster.from_file(tmp_path / "new" / "roster.toml").names == ("a", "b", "c")
        for name in names:
            assert name in result.stdout
            assert (tmp_path / "new" / name).read_bytes().hex() not in result.stdout
        assert_one_sentence(run("keygen", "a", "--output", tmp_path / "new"), "a.key")

    def test_a_beacon_is_put_on_the_roster(self, run, tmp_path):
        result = run("keygen", "a", "b", "--beacon", "5a" * 32)
        assert result.exit_code == 0, result.output
        assert Roster.from_file(tmp_path / "roster.toml").beacon.hex() == "5a" * 32
        assert_one_sentence(run("keygen", "c", "--beacon", "5a", "--output", "other"), "beacon")
        assert not (tmp_path / "other").exists()

    def test_a_roster_is_checked(self, run, tmp_path):
        run("keygen", "a", "b", "c", "--beacon", "5a" * 32)
        roster = Roster.from_file("roster.toml")
        result = run("keygen", "--check", "roster.toml", "--key", "b.key")
        assert result.exit_code == 0, result.output
        assert "3 clients, each with a valid key." in result.stdout
        assert "The own key is that of b, number 2 of 3." in result.stdout
        assert f"The beacon is {'5a' * 32}. It must have been fixed after all" in result.stdout
        (digest,) = [line for line in result.stdout.splitlines() if line.startswith("Digest: ")]
        assert digest.removeprefix("Digest: ").replace(" ", "") == roster.digest.hex()
        assert (tmp_path / "b.key").read_bytes().hex() not in result.stdout
        alone = run("keygen", "--check", "roster.toml")
        assert alone.exit_code == 0
        assert digest in alone.stdout
        assert "own key" not in alone.stdout

    def test_a_roster_that_cannot_be_used_is_one_sentence(self, run, tmp_path):
        run("keygen", "a", "b")
        run("keygen", "c", "--output", "other")
        stranger = run("keygen", "--check", "roster.toml", "--key", "other/c.key")
        assert_one_sentence(stranger, "a key that is not there")
        text = (tmp_path / "roster.toml").read_text()
        for broken, word in (
            (text.replace('"', '"0', 1), "public key"),
            (text + text.replace("a =", "x =").replace("b =", "y ="), "once"),
            (text + f'c = "{"00" * 32}"\n', "X25519"),
            (text + 'beacon = "5a"\n', "beacon"),
        ):
            (tmp_path / "roster.toml").write_text(broken)
            assert_one_sentence(run("keygen", "--check", "roster.toml"), word)
        assert_one_sentence(run("keygen", "--check", "missing.toml"), "cannot be read")
        names = [f"c{i}" for i in range(65)]
        assert run("keygen", *names, "--output", "many").exit_code == 0
        assert_one_sentence(run("keygen", "--check", "many/roster.toml"), "a beacon", "64 clients")

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            ((), "--check ROSTER"),
            (("--key", "a.key"), "--check ROSTER"),
            (("a", "--key", "a.key"), "--check ROSTER"),
            (("a", "--check", "roster.toml"), "names of clients"),
            (("--check", "roster.toml", "--output", "x"), "--output"),
            (("--check", "roster.toml", "--beacon", "5a" * 32), "--beacon"),
            (("../a",), "../a"),
            (("a", "A"), "case"),
        ],
    )
    def test_options_that_contradict_each_other(self, run, tmp_path, arguments, word):
        assert_one_sentence(run("keygen", *arguments), word)
        assert not list(tmp_path.iterdir())


class TestForget:
    @pytest.fixture
    def state(self, tmp_path):
        """A ledger with one unfinished run, answered once, and one that is over."""
        plan, loose = gaussian_plan(), Limit(100.0, DELTA)
        with Ledger(tmp_path / "state") as ledger:
            for number in (1, 2):
                session = ClientSession(secret=b"SECRET" * 5, commitment=bytes([number]) * 32)
                ledger.charge(answer_of(number), price(plan), loose, 0, encode(session))
                copy = f"records-{bytes([number]).hex() * 32}-{bytes([number]).hex() * 32}.npy"
                (tmp_path / "state" / copy).write_bytes(b"records")
            version, _ = ledger.load(answer_of(2).run)
            ledger.end(answer_of(2).run, version, encode(ClientSession(over=1)))
        return tmp_path / "state"

    @pytest.mark.parametrize("option", ["--state-dir", "--policy-file"])
    def test_unfinished_runs_are_erased_and_stay_charged(self, run, state, tmp_path, option):
        (tmp_path / "policy.toml").write_text('state_dir = "state"')
        named = state if option == "--state-dir" else tmp_path / "policy.toml"
        assert b"SECRET" in (state / FILE_NAME).read_bytes()
        result = run("forget", option, named)
        assert result.exit_code == 0, result.output
        assert "Forgot 1 unfinished run" in result.stdout
        assert b"SECRET" not in (state / FILE_NAME).read_bytes()
        assert [path.name for path in state.iterdir()] == [FILE_NAME]  # no copy of records
        with Ledger(state) as ledger:
            assert unpack_session(ledger.load(answer_of(1).run)[1]).over
            assert unpack_session(ledger.load(answer_of(2).run)[1]).over == 1
            assert ledger.last_answer(answer_of(1).run) is not None
            charge(ledger, answer_of(9), gaussian_plan(rounds=2), Limit(100.0, DELTA))
        assert "Forgot 1 unfinished run" in run("forget", option, named).stdout  # the new one
        assert "Forgot 0 unfinished runs" in run("forget", option, named).stdout

    def test_no_ledger_is_made_and_one_directory_is_needed(self, run, tmp_path):
        (tmp_path / "policy.toml").write_text("max_epsilon = 1.0")
        for arguments, word in (
            ((), "--state-dir"),
            (("--state-dir", "a", "--policy-file", "b"), "--policy-file"),
            (("--policy-file", tmp_path / "policy.toml"), "no state_dir"),
            (("--state-dir", tmp_path / "none"), "no ledger"),
        ):
            assert_one_sentence(run("forget", *arguments), word)
        assert not (tmp_path / "none").exists()


def test_help_lists_the_commands(run):
    result = run("--help")
    assert result.exit_code == 0
    for command in ("simulate", "plan", "keygen", "check", "forget", "bench"):
        assert command in result.stdout


@pytest.mark.parametrize("command", ["simulate", "plan"])
def test_every_trust_model_is_offered_with_who_learns_what(run, command):
    assert set(Trust) == set(TRUST_MODELS)
    assert set(Keys) == set(KEYS)
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", run(command, "--help").stdout).split())
    for trust in Trust:
        assert f"{trust}: {trust.learns}." in shown


def test_every_strategy_can_be_chosen_by_name():
    offered = {name.class_name: name for name in StrategyName}
    direct = KMeansStrategy.__subclasses__()
    found = [*direct, *itertools.chain.from_iterable(cls.__subclasses__() for cls in direct)]
    kinds = {cls.__name__: cls for cls in found if cls.__module__.startswith("flower_kmeans.")}
    assert offered.keys() == kinds.keys()
    for name, choice in offered.items():
        assert choice.is_private == (kinds[name].TRUST != "plain")
        takes = "server_data" in inspect.signature(kinds[name]).parameters
        assert choice.takes_server_data == takes


def test_the_version_is_that_of_the_package():
    import flower_kmeans

    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"flower-kmeans {flower_kmeans.__version__}"


@pytest.mark.parametrize(("strategy", "factor"), [("glloyd", 1.0), ("sulloyd", 2**0.5)])
def test_plan_says_how_large_the_noise_of_a_size_is(strategy, factor):
    arguments = ["plan", "--strategy", strategy, "--clusters", "3", "--n-records", "5000"]
    output = CliRunner().invoke(app, arguments).output
    plan = next(line for line in output.splitlines() if "counts" in line).split()
    stated = float(output.split("up to noise of about ")[1].split()[0])
    assert stated == pytest.approx(float(plan[4]) * factor, rel=0.01)
