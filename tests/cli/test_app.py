"""The command: what it writes, what it prints, and that every error is one sentence."""

import csv
import errno
import json
import os
import re
import resource
import stat
import subprocess
import sys
import types
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import pytest
from ledger_workers import DELTA, answer_of, charge, gaussian_plan, price
from report_pages import addresses, finished, read, tables
from rich.console import Console
from typer.testing import CliRunner

import flower_kmeans
from flower_kmeans import Box, strategies
from flower_kmeans.algorithms import FastLloydAlgorithm
from flower_kmeans.cli import inputs, preview
from flower_kmeans.cli.app import app
from flower_kmeans.cli.options import options_by_strategy
from flower_kmeans.cli.outputs import print_warnings
from flower_kmeans.data.datasets import PHOTO_RECORDS
from flower_kmeans.data.reading import Reading
from flower_kmeans.data.table_domain import Number, TableDomain, domain_of
from flower_kmeans.parameters import real
from flower_kmeans.privacy.filter import COVERED_UNITS, price_of
from flower_kmeans.privacy.ledger import Ledger, LifetimeLimit
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.session import ClientSession, unpack_session
from flower_kmeans.protocol.wire import encode
from flower_kmeans.report.clustering import Clustering
from flower_kmeans.report.comparison import Comparison
from flower_kmeans.report.names import cluster_names
from flower_kmeans.report.report import Dropped
from flower_kmeans.strategies import BY_NAME, options_of

pytestmark = pytest.mark.claim("README", "bounds-n-records-number")

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
    points = np.repeat(CENTERS, 5, axis=0) + np.random.default_rng(6).normal(
        size=(15, 2)
    )
    path = tmp_path / "server.csv"
    with path.open("w") as file:
        file.write("weight,height,age\n")
        for height, weight in points:
            file.write(f"{weight},{height},999\n")
    return path


PUBLIC = ("--bounds", "height=-5:5", "--bounds", "weight=0:10", "--n-records", 1200)
FEDDP = ("--strategy", "feddp", "--server-data")
SIGHTED = "The server computes the next query, so it must see the sums."
LOCAL = (
    "--engine",
    "in-process",
    "--clusters",
    3,
    "--output",
    "out",
    "--columns",
    "height,weight",
)


def simulate(run, path, *arguments):
    return run("simulate", "--data", path, *LOCAL, *arguments)


@pytest.fixture
def simulated(run, blobs, tmp_path):
    """Run the command with success; return what it printed, its report and its arrays."""

    def invoke(*arguments, path=blobs):
        result = simulate(run, path, *arguments)
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        with np.load(tmp_path / "out" / "centroids.npz") as saved:
            return result, report, dict(saved)

    return invoke


def page_of(directory):
    return read((directory / "out" / "report.html").read_text("utf-8"))


def assert_near_the_blobs(centroids, tolerance):
    nearest = np.abs(centroids[:, None] - CENTERS).sum(axis=2).argmin(axis=0)
    assert sorted(nearest) == [0, 1, 2]
    np.testing.assert_allclose(centroids[nearest], CENTERS, atol=tolerance)


def facts_of(text):
    """Return the last lines by the name in front."""
    names = ("Found", "Cost", "Run", "Files", "Picture", "Verdict")
    lines = text.rstrip().splitlines()[-len(names) :]
    assert tuple(line.split()[0] for line in lines) == names
    return dict(line.split(maxsplit=1) for line in lines)


def assert_one_sentence(result, *words):
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)
    for word in words:
        assert word in result.stderr


class TestSimulate:
    @pytest.mark.parametrize(
        "arguments", [("--strategy", "lloyd"), ("--trust", "plain")]
    )
    def test_runs_without_privacy_find_the_blobs_and_say_so(
        self, simulated, tmp_path, arguments
    ):
        result, report, saved = simulated("--clients", 4, *arguments)
        assert sorted(saved) == ["centroids", "columns", "counts", "domain", "private"]
        assert not saved["private"]
        assert saved["columns"].tolist() == report["columns"] == ["height", "weight"]
        assert_near_the_blobs(saved["centroids"], 0.1)
        np.testing.assert_allclose(saved["counts"].sum(), 1200)
        with (tmp_path / "out" / "centroids.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == ["cluster", "noisy_size", "height", "weight"]
        assert [float(row["height"]) for row in rows] == saved["centroids"][
            :, 0
        ].tolist()
        assert [float(row["noisy_size"]) for row in rows] == saved["counts"].tolist()
        assert result.stdout.count("NOT PRIVATE: nobody adds noise") == 1
        assert facts_of(result.stdout)["Cost"].startswith("NOT PRIVATE")
        assert report["epsilon"] is None

    @pytest.mark.default_cases("2-6-2 to 6")
    @pytest.mark.parametrize(
        ("clusters", "words"), [("2-6", "2 to 6"), ("any", "1 to 20")]
    )
    def test_a_run_that_chooses_finds_the_blobs_and_says_how_many(
        self, simulated, clusters, words
    ):
        options = ("--clusters", clusters, "--clients", 4)
        result, report, saved = simulated(*options, "--trust", "plain")
        assert f"SynopsisKMeans, {words} clusters" in result.stdout.splitlines()[0]
        assert facts_of(result.stdout)["Found"].startswith(
            "3 clusters in 1,200 records"
        )
        assert report["n_clusters"] == report["elbow"]["suggested"] == 3
        assert_near_the_blobs(saved["centroids"], 0.1)
        _, report, saved = simulated(*options, *PUBLIC)  # its noise may mislead it
        assert 1 <= report["n_clusters"] == len(saved["centroids"]) <= 20
        assert {each["name"] for each in report["releases"]} == {"moments", "synopsis"}

    def test_the_last_lines_are_the_facts_and_those_that_matter_come_first(
        self, simulated
    ):
        result, report, _ = simulated(
            "--strategy", "FastLloyd", "--epsilon", 2, "--delta", 1e-7, "--rounds", 3,
            "--clients", 1, "--trust", "trusted-server", *PUBLIC[:4], "--n-records", 1000,
        )  # fmt: skip
        assert report["epsilon"] == pytest.approx(2, rel=1e-4)
        assert (report["delta"], report["trust"]) == (1e-7, "trusted-server")
        assert (report["n_rounds"], report["n_clients"], report["n_records"]) == (
            3,
            1,
            1000,
        )
        assert (report["lower"], report["upper"]) == ([-5, 0], [5, 10])
        first, *rest, found, cost, run, files, _, verdict = result.stdout.splitlines()
        rounds = rest[:-3]  # before the clusters
        assert first.startswith(
            "blobs.csv: 1,200 records of 1 client, 2 columns; FastLloyd"
        )
        assert rounds == [
            f"round {number} of 3: 1 client answered" for number in (1, 2, 3)
        ]
        assert found == "Found    3 clusters in 1,200 records"
        unit = "per record, trust model trusted-server"
        assert cost == f"Cost     epsilon {report['epsilon']:.4g}, delta 1e-07 {unit}"
        assert run.startswith("Run      3 rounds in ")
        names = "report.html, report.json, centroids.npz, centroids.csv"
        assert files == f"Files    out: {names}"
        assert verdict.startswith("Verdict  The clusters are ")
        assert "This is exact: only a simulation can compute it." in verdict
        assert verdict.endswith("It does not judge columns, bounds and weights.")

    def test_the_clusters_are_listed_by_name_the_largest_first(self, simulated):
        for options, about in ((("--trust", "plain"), ""), (PUBLIC, "about ")):
            result, _, saved = simulated("--clients", 4, *options)
            lines = result.stdout.splitlines()
            end = next(i for i, line in enumerate(lines) if line.startswith("Found"))
            listed = lines[end - 3 : end]
            order = np.argsort(-saved["counts"], kind="stable").tolist()
            names = cluster_names(
                saved["centroids"],
                saved["counts"],
                domain_of(saved),
                ["height", "weight"],
            )
            assert [line[:9].strip() for line in listed] == ["Clusters", "", ""]
            assert [line[9:] for line in listed] == [
                f"{j}  {names[j]}: {about}{saved['counts'][j]:,.0f} records"
                for j in order
            ]
        result, _, _ = simulated("--clusters", 12, "--trust", "plain")
        assert f"\n{'':9}and 2 smaller clusters\n" in result.stdout

    @pytest.mark.claim("reading-a-report", "simulation-verdict")
    @pytest.mark.parametrize(
        ("epsilon", "verdicts"),
        [
            (8, {"as good as without privacy"}),
            (0.002, {"mostly noise", "worse than one cluster"}),
        ],
    )
    def test_the_last_line_is_the_verdict(self, simulated, blobs, epsilon, verdicts):
        options = ("--epsilon", epsilon, "--clients", 4)
        result, report, saved = simulated(*PUBLIC, *options)
        found = report["comparison"]
        last = result.stdout.rstrip().splitlines()[-1]
        assert last.startswith(f"Verdict  {found['text']}")
        assert found["verdict"] in verdicts
        assert found["n_records"] == 1200
        records = np.loadtxt(blobs, delimiter=",", skiprows=1, usecols=(0, 1))
        box = Box([-5, 0], [5, 10])
        result = Clustering(saved["centroids"], saved["counts"], box, None)
        assert result.compare(records).to_dict() == found
        assert found["cost"] == pytest.approx(result.cost(records))

    @pytest.mark.claim("reading-a-report", "verdict-of-cut-columns")
    @pytest.mark.parametrize("upper", [5, 1])
    def test_the_verdict_says_that_declared_bounds_cut_a_column(
        self, run, blobs, tmp_path, upper
    ):
        domain = tmp_path / "cut.toml"
        domain.write_text(
            f'[[columns]]\nkind = "number"\nname = "height"\nlower = -5\nupper = {upper}\n'
            '[[columns]]\nkind = "number"\nname = "weight"\nlower = 0\nupper = 10\n'
        )
        out = tmp_path / "out"
        sizes = ("--n-records", 1200, "--clusters", 3, "--clients", 4)
        options = ("--data", blobs, "--domain", domain, "--output", out, *sizes)
        result = run("simulate", *options)
        assert result.exit_code == 0, result.output
        text = json.loads((out / "report.json").read_text())["comparison"]["text"]
        note = "The bounds are too narrow: 'height' is outside the bounds with about "
        assert (note in text) == (upper == 1)
        assert "'weight' is outside" not in text

    def test_a_file_without_the_groups_has_another_verdict(self, simulated, blobs):
        """Columns that were shuffled apart look the same in sizes, bounds and cost."""
        _, right, saved = simulated(*PUBLIC, "--clients", 4)
        _, *lines = blobs.read_text().splitlines()
        cells = [line.split(",") for line in lines]
        other = np.random.default_rng(0).permutation([row[1] for row in cells])
        records = np.array([[row[0], y] for row, y in zip(cells, other, strict=True)])
        box = Box([-5, 0], [5, 10])
        result = Clustering(saved["centroids"], saved["counts"], box, None)
        wrong = result.compare(records.astype(float))
        assert right["comparison"]["verdict"] == "as good as without privacy"
        assert wrong.verdict in ("mostly noise", "worse than one cluster")

    @pytest.mark.claim("own-data", "strategy-trust-which-ones")
    @pytest.mark.parametrize(
        ("arguments", "strategy", "trust"),
        [
            ((), "SynopsisKMeans", "distributed-noise"),
            (("--trust", "trusted-server"), "SynopsisKMeans", "trusted-server"),
            (
                ("--trust", "oblivious-server", "--rounds", 2),
                "FastLloyd",
                "oblivious-server",
            ),
            (("--strategy", "glloyd"), "GLloyd", "oblivious-server"),
        ],
    )
    def test_the_strategy_when_in_doubt(
        self, run, simulated, arguments, strategy, trust
    ):
        _, report, _ = simulated("--clients", 4, *PUBLIC, *arguments)
        assert (report["strategy"], report["trust"]) == (strategy, trust)
        planned = run("plan", *arguments)
        assert planned.exit_code == 0, planned.output
        assert f"trust model {trust}." in planned.stdout

    @pytest.mark.claim("own-data", "strategy-trust-which-ones")
    @pytest.mark.parametrize("command", ["simulate", "plan"])
    @pytest.mark.parametrize(
        ("arguments", "strategy"),
        [((), "SynopsisKMeans"), (("--rounds", 2), "FastLloyd")],
    )
    def test_no_other_strategy_is_taken_for_a_trust_under_which_it_does_not_run(
        self, run, blobs, command, arguments, strategy
    ):
        data = ("--data", blobs, *PUBLIC, *LOCAL) if command == "simulate" else ()
        result = run(command, *data, "--trust", "vertical", *arguments)
        assert result.exit_code == 1
        assert f"Error: Expected trust of {strategy} " in result.output
        assert "Got 'vertical' instead." in result.output

    @pytest.mark.parametrize(
        ("trust", "keys", "colluders"),
        [("clients-only", "roster", None), ("distributed-noise", "relayed", 3)],
    )
    def test_trust_models_keys_and_colluders(self, simulated, trust, keys, colluders):
        given = () if colluders is None else ("--max-colluders", colluders)
        arguments = ("--trust", trust, "--keys", keys, "--rounds", 2, "--clients", 8)
        _, report, _ = simulated(*arguments, *PUBLIC, *given)
        assert (report["trust"], report["keys"]) == (trust, keys)
        assert report["max_colluders"] == (colluders or 1)
        shares = report["min_clients"] - report["max_colluders"]
        assert report["added_noise_factor"] == pytest.approx((8 / shares) ** 0.5)

    def test_files_are_their_owners_alone_and_names_do_not_act(self, run, tmp_path):
        """Names of columns come from the data file: they are neither formulas nor commands."""
        names = [
            '=HYPERLINK("http://x","y")',
            "-b",
            "\x1b]0;title\x07c",
            "$\\frac{$",
            "a\u202eb",
        ]
        names += ["\uff1dcmd|' /C calc'!A0", "\u200b@SUM(1)", "a;=1+1"]
        rows = np.random.default_rng(0).random((400, len(names)))
        with (tmp_path / "x.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([names, *rows.tolist()])
        arguments = (
            "--lower",
            0,
            "--upper",
            1,
            "--n-records",
            400,
            "--clients",
            5,
            "--rounds",
            2,
        )
        for _ in range(2):  # also over files that are there
            result = run(
                "simulate", "--data", tmp_path / "x.csv", *LOCAL[:-2], *arguments
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
        shown += ["'\uff1dcmd|' /C calc'!A0", r"\u200b@SUM(1)", "a;'=1+1"]
        assert written == [f"'{names[0]}", "'-b", *shown]
        with np.load(tmp_path / "out" / "centroids.npz") as saved:
            assert saved["columns"].tolist() == names

    def test_whole_clients_are_protected(self, simulated):
        arguments = (
            "--unit",
            "client",
            "--rounds",
            2,
            "--clients",
            4,
            "--clip",
            50,
            *PUBLIC,
        )
        result, report, _ = simulated("--trust", "distributed-noise", *arguments)
        assert (report["unit"], report["clip"], report["planned_clients"]) == (
            "client",
            50,
            4,
        )
        assert " per client, trust model" in result.stdout
        assert report["noise_factor"] == pytest.approx((4 / 3) ** 0.5)

    @pytest.mark.claim("own-data", "server-data-file-servers")
    def test_feddp_starts_from_the_servers_file(self, simulated, server):
        arguments = (
            "--epsilon",
            50,
            *FEDDP,
            server,
            "--rounds",
            1,
            *PUBLIC,
            "--clients",
            4,
        )
        result, report, saved = simulated(*arguments)
        assert (report["strategy"], report["trust"]) == (
            "FedDPKMeans",
            "distributed-noise",
        )
        assert (report["n_rounds"], report["private"]) == (4, True)
        assert "round 4 of 4: 4 clients answered" in result.stdout
        assert_near_the_blobs(saved["centroids"], 1.0)

    @pytest.mark.claim("equal-groups", "flower-kmeans-simulate-takes")
    @pytest.mark.default_cases("distributed-noise")
    @pytest.mark.parametrize("trust", ["distributed-noise", "clients-only"])
    def test_bounds_on_sizes_give_weights_and_intervals(
        self, simulated, tmp_path, trust
    ):
        arguments = (
            "--min-size",
            350,
            "--max-size",
            500,
            "--epsilon",
            2,
            "--trust",
            trust,
        )
        _, report, saved = simulated(*PUBLIC, *arguments, "--clients", 4)
        weights, sizes, interval = (
            saved[name] for name in ("weights", "sizes", "size_interval")
        )
        assert (weights.shape, sizes.shape, interval.shape) == ((3,), (3,), (3, 2))
        np.testing.assert_allclose(interval.mean(axis=1), sizes)
        assert (np.abs(sizes - 400) < 2 * (sizes - interval[:, 0])).all()
        with (tmp_path / "out" / "centroids.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [float(row["cell_weight"]) for row in rows] == weights.tolist()
        assert [float(row["noisy_size"]) for row in rows] == sizes.tolist()
        ends = [
            [float(row["size_at_least"]), float(row["size_at_most"])] for row in rows
        ]
        assert ends == interval.tolist()
        statements = " ".join(report["statements"])
        # the server does not know the sizes, the clients do
        if trust == "clients-only":
            assert report["sizes"] is None
        else:
            assert report["sizes"]["counts"] == sizes.tolist()
            assert report["sizes"]["bounds_kept"] == [row["bounds"] for row in rows]
            assert statements.count("Exact sizes cannot be promised") == 1
        assert len(page_of(tmp_path).the("div", id="sizes").all("g", "span")) == 3

    @pytest.mark.claim("equal-groups", "plan-log-have-warning")
    def test_too_much_noise_for_bounds_is_said_before_the_run(
        self, simulated, tmp_path
    ):
        arguments = ("--epsilon", 0.1, "--min-size", 100, "--clients", 4)
        result, _, _ = simulated(*PUBLIC, *arguments)
        warned = result.stdout.index("bounds on sizes mean little")
        assert warned < result.stdout.index("round 1 of")
        assert (
            "bounds on sizes mean little"
            in page_of(tmp_path).the("section", id="first").text
        )

    @pytest.mark.claim("equal-groups", "flower-kmeans-simulate-takes")
    @pytest.mark.parametrize(
        "strategy", sorted({*BY_NAME} - {"synopsis", "constrained-lloyd"})
    )
    def test_bounds_that_a_strategy_does_not_take_are_refused(
        self, run, blobs, strategy
    ):
        given = ("--strategy", strategy, "--min-size", 400, "--max-size", 400)
        words = (
            f"The strategy {strategy} does not take --min-size and --max-size: leave out",
        )
        words += ("choose constrained-lloyd or synopsis.",)
        for result in (run("plan", *given), simulate(run, blobs, *given)):
            assert_one_sentence(result, *words)

    @pytest.mark.claim("equal-groups", "flower-kmeans-simulate-takes")
    @pytest.mark.parametrize("bounds", [("--min-size", 401), ("--max-size", 399)])
    def test_bounds_that_cannot_be_kept_are_refused_before_the_run(
        self, run, blobs, bounds
    ):
        result = simulate(run, blobs, *PUBLIC, *bounds)
        assert_one_sentence(result, str(bounds[1]), "n_records=1200", "n_clusters=3")
        assert "round" not in result.stdout

    @pytest.mark.parametrize("has_matplotlib", [True, False])
    def test_picture_of_a_table(self, simulated, tmp_path, monkeypatch, has_matplotlib):
        if has_matplotlib:
            pytest.importorskip("matplotlib")
        else:
            monkeypatch.setattr("flower_kmeans.cli.inputs.find_spec", lambda name: None)
        result, _, _ = simulated("--strategy", "lloyd")
        words = "picture.png, which" if has_matplotlib else "flower-kmeans[plots]"
        assert words in facts_of(result.stdout)["Picture"]
        assert (tmp_path / "out" / "picture.png").exists() == has_matplotlib

    @pytest.mark.default_cases(
        "iid-more0-20",
        "column:site-more1-3",
        "dirichlet:0.5-more3-6",
        "SizePartitioner(partition_sizes=[700, 500])-more7-2",
    )
    @pytest.mark.parametrize(
        ("split", "more", "n_clients"),
        [
            ("iid", (), 20),
            ("column:site", (), 3),
            ("column:site", ("--clients", 2), 2),
            ("dirichlet:0.5", ("--label", "site", "--clients", 6), 6),
            ("IidPartitioner()", ("--columns", "height,weight", "--clients", 7), 7),
            ("NaturalIdPartitioner(partition_by='site')", (), 3),
            (
                "ContinuousPartitioner(partition_by='weight', strictness=1)",
                LOCAL[-2:],
                20,
            ),
            ("SizePartitioner(partition_sizes=[700, 500])", LOCAL[-2:], 2),
        ],
    )
    def test_splits(self, run, blobs, tmp_path, split, more, n_clients):
        """A text column to split by need not be left out: no --columns are given."""
        arguments = (
            "--data",
            blobs,
            *LOCAL[:-2],
            "--strategy",
            "lloyd",
            "--split",
            split,
            *more,
        )
        if split == "iid":
            arguments += LOCAL[-2:]
        result = run("simulate", *arguments)
        assert result.exit_code == 0, result.output
        assert f"{n_clients} clients, 2 columns" in result.stdout
        assert tables(page_of(tmp_path))["Centroids"][0][-2:] == ["height", "weight"]

    def test_one_bound_for_all_columns_and_another_for_one(self, simulated):
        bounds = (
            "--lower",
            -10,
            "--upper",
            10,
            "--bounds",
            "height=-5:5",
            "--bounds-from-data",
        )
        result, report, _ = simulated("--n-records", 1200, *bounds, "--rounds", 2)
        assert (report["lower"], report["upper"]) == ([-5, -10], [5, 10])
        assert (report["bounds_from_data"], report["private"]) == (False, True)
        assert "not private" not in result.output.lower()

    @pytest.mark.claim("reading-a-report", "warnings-follow-gravest-first")
    def test_outer_bounds_are_tightened_and_the_ranges_are_printed(
        self, simulated, run, blobs, tmp_path
    ):
        wide = ("--bounds", "height=-500:500", "--bounds", "weight=0:1000")
        result, report, saved = simulated(
            *(*wide, "--n-records", 1200),
            *("--epsilon", 16, "--tighten", 0.2),
        )
        assert "Ranges of columns: groups of fewer than" in result.output
        (line,) = [each for each in result.output.splitlines() if "Ranges  " in each]
        assert line.startswith("Ranges   height ")
        assert [each["column"] for each in report["ranges"]] == ["height", "weight"]
        assert report["bounds"]["tighten"] == 0.2
        assert report["releases"][0]["name"] == "ranges"
        domain = json.loads(str(saved["domain"]))
        assert "tighten" not in domain
        page = tmp_path / "out" / "report.html"
        before = tables(read(page.read_text("utf-8")))["Centroids"]
        assert before[-1][0] == "ranges"
        again = run("report", tmp_path / "out" / "report.json")
        assert again.exit_code == 0, again.output
        assert tables(read(page.read_text("utf-8")))["Centroids"] == before
        assigned = run(
            *("assign", "--data", blobs),
            *("--centroids", tmp_path / "out" / "centroids.npz"),
            *("--output", tmp_path / "assigned.csv"),
        )
        assert assigned.exit_code == 0, assigned.output

    @pytest.mark.parametrize("trust", ["distributed-noise", "clients-only"])
    def test_the_quality_is_printed_and_kept(self, simulated, run, tmp_path, trust):
        result, report, _ = simulated(
            *("--bounds", "height=0:300", "--bounds", "weight=0:500"),
            *("--n-records", 1200, "--epsilon", 16, "--quality", "--trust", trust),
        )
        (line,) = [each for each in result.output.splitlines() if "Quality  " in each]
        assert line.startswith("Quality  The silhouette is 0.")
        found = report["silhouette"]
        assert 0 <= found["low"] <= found["value"] <= found["high"] <= 1
        assert report["releases"][-1]["name"] == "quality"
        page = tmp_path / "out" / "report.html"
        page.unlink()
        again = run("report", tmp_path / "out" / "report.json")
        assert again.exit_code == 0, again.output
        assert line.removeprefix("Quality  ") in page.read_text("utf-8")

    @pytest.mark.parametrize("place", ["the file", "the option"])
    def test_a_domain_file_or_an_option_may_tighten(self, run, blobs, tmp_path, place):
        columns = [Number("height", -500, 500), Number("weight", 0, 1000)]
        domain = TableDomain(columns, tighten=0.1 if place == "the file" else None)
        (tmp_path / "domain.toml").write_text(domain.to_toml())
        declared = ("--domain", tmp_path / "domain.toml")
        option = ("--tighten", 0.1) if place == "the option" else ()
        budget = ("--n-records", 1200, "--epsilon", 16)
        made = run("simulate", "--data", blobs, *LOCAL[:6], *declared, *budget, *option)
        assert made.exit_code == 0, made.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["bounds"]["tighten"] == 0.1
        centroids = tmp_path / "out" / "centroids.npz"
        for more in ((), declared):
            result = run(
                *("assign", "--data", blobs, "--centroids", centroids, *more),
                *("--output", tmp_path / f"assigned-{len(more)}.csv"),
            )
            assert result.exit_code == 0, result.output
        planned = run("plan", *declared, *budget, *option)
        assert "1      ranges" in planned.output
        assert "may be cut off" in planned.output

    def test_bounds_from_data_warn_loudly(self, simulated, tmp_path):
        result, report, _ = simulated(
            "--n-records", 1200, "--bounds-from-data", "--rounds", 2
        )
        assert "NOT private" in result.stderr
        assert result.stdout.index("NOT PRIVATE: the bounds") < result.stdout.index(
            "Found "
        )
        assert (
            "NOT PRIVATE: bounds are from the records"
            in facts_of(result.stdout)["Cost"]
        )
        assert (report["bounds_from_data"], report["private"]) == (True, False)
        assert report["statements"][0].startswith("NOT PRIVATE")
        assert len(report["statements"]) > 1
        page = page_of(tmp_path)
        assert page.all("li")[0].text.startswith(
            "Privacy NOT PRIVATE: the bounds were read off"
        )
        assert "NOT PRIVATE" in page.the("header").text

    @pytest.mark.claim("reading-a-report", "private-runs-page-has")
    def test_the_page_holds_nothing_that_was_counted_in_records(
        self, simulated, tmp_path, monkeypatch
    ):
        costs = Comparison(98_765.4, 12_345.6, 99_999.9, 1_200)
        monkeypatch.setattr(Clustering, "compare", lambda *_, **__: costs)
        arguments = ("--epsilon", 50, "--rounds", 2, *PUBLIC[:4], "--n-records", 1300)
        result, report, _ = simulated(*arguments)
        page = page_of(tmp_path)
        for statement in report["statements"]:
            assert statement in page.text
        assert addresses(page) == []
        assert costs.text in result.stdout
        assert "1,200 records" in result.stdout
        # Exact costs are in one section, which says that they are exact.
        quality = page.the("section", id="quality").text
        assert costs.text in quality
        assert "exact, and the guarantee does not cover them" in quality
        assert page.text.count(costs.text) == 1
        words = [
            text for element in page.the("body").all() for text in element.children
        ]
        text = " ".join(word for word in words if isinstance(word, str))
        assert {"1,300"} == {"1,300", "1200", "1,200"} & set(
            re.findall(r"\d[\d,.]*", text)
        )
        assert "inertia" not in text

    def test_photograph(self, run, tmp_path):
        result = run("simulate", "--engine", "in-process", "--output", "out")
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert (report["n_clients"], report["n_records"]) == (20, PHOTO_RECORDS)
        assert report["epsilon"] == pytest.approx(1)
        assert report["columns"] == ["red", "green", "blue"]
        with np.load(tmp_path / "out" / "centroids.npz") as saved:
            assert saved["centroids"].shape == (16, 3)
            assert 0 <= saved["centroids"].min() < saved["centroids"].max() <= 255
        assert len(page_of(tmp_path).all("div", "palette")[0].children) == 16
        image = pytest.importorskip("PIL.Image")
        with image.open(tmp_path / "out" / "picture.png") as picture:
            assert picture.size[0] > 2 * 640


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (PUBLIC[:4], ["--n-records"]),
            (
                ("--n-records", 1200),
                ["'height', 'weight'", "--tighten 0.1", "--bounds-from-data"],
            ),
            ((*PUBLIC, "--tighten", 2), ["tighten between 0 and 1", "Got 2"]),
            (
                (*PUBLIC, "--tighten", 0.1, "--strategy", "sulloyd"),
                ["without tighten for SuLloyd"],
            ),
            ((*PUBLIC[:2], *PUBLIC[4:]), ["'weight'", "--bounds"]),
            ((*PUBLIC, "--bounds", "size=0:1"), ["'size'"]),
            ((*PUBLIC, "--bounds", "height"), ["NAME=LOW:HIGH"]),
            ((*PUBLIC, "--bounds", "height=0:tall"), ["'tall'"]),
            ((*PUBLIC, "--bounds", "height=5:-5"), ["'height'", "5:-5"]),
            ((*PUBLIC, "--bounds", "height=nan:5"), ["'nan'"]),
            ((*PUBLIC, "--lower", 0), ["--lower", "--upper"]),
            ((*PUBLIC, "--epsilon", 0), ["epsilon"]),
            ((*PUBLIC, "--clusters", 0), ["Expected --clusters in [1, 10000]. Got 0"]),
            ((*PUBLIC, "--clients", 0), ["--clients"]),
            ((*PUBLIC, "--seed", -1), ["--seed"]),
            (
                (*PUBLIC, "--clusters", "x"),
                ["as integer in [1, 10000]|LOW-HIGH|any. Got 'x'"],
            ),
            (
                (*PUBLIC, "--clusters", "5-2"),
                ["Expected --clusters as (low, high). Got (5, 2)"],
            ),
            (
                (*PUBLIC, "--clusters", "2-101"),
                ["Expected --clusters in [1, 100]. Got 101"],
            ),
            (
                (*PUBLIC, "--clusters", "2-5", "--strategy", "fastlloyd"),
                ["Expected --clusters as integer in [1, 10000]. Got '2-5'"],
            ),
            (
                (*PUBLIC, "--strategy", "k-means"),
                ["--strategy", "'synopsis'", "'k-means'"],
            ),
            ((*PUBLIC, "--columns", "height,age"), ["'age'"]),
            ((*PUBLIC, "--label", "age"), ["'age'"]),
            ((*PUBLIC, "--split", "random"), ["'random'"]),
            ((*PUBLIC, "--split", "column:age"), ["'age'"]),
            ((*PUBLIC, "--split", "column:site", "--clients", 4), ["3", "4"]),
            ((*PUBLIC, "--split", "column:height"), ["--clients"]),
            ((*PUBLIC, "--split", "dirichlet:1"), ["--label"]),
            ((*PUBLIC, "--split", "dirichlet:x", "--label", "site"), ["'x'"]),
            ((*PUBLIC, "--split", "tiles"), ["photograph"]),
            (
                ("--strategy", "lloyd", "--epsilon", 1, "--bounds-from-data"),
                ["Lloyd", "epsilon=1.0"],
            ),
            (("--strategy", "lloyd", "--unit", "client"), ["--unit", "--clip"]),
            ((*PUBLIC, "--trust", "plain", "--clip", 5), ["--unit", "--clip"]),
            ((*PUBLIC, "--clip", 5), ["clip=5", "unit='client'"]),
            ((*PUBLIC, "--trust", "plain", "--epsilon", 1), ["'plain'", "epsilon=1.0"]),
            ((*PUBLIC, "--strategy", "feddp"), ["feddp", "--server-data"]),
            (
                (*PUBLIC, "--strategy", "synopsis", "--rounds", 4),
                ["does not take --rounds"],
            ),
            (
                (*PUBLIC, "--server-data", "server.csv"),
                ["synopsis", "--server-data", "feddp"],
            ),
            ((*PUBLIC, *FEDDP, "server.csv", "--trust", "oblivious-server"), [SIGHTED]),
            ((*PUBLIC, *FEDDP, "none.csv"), ["none.csv"]),
            ((*PUBLIC, *FEDDP, "few.csv"), ["server_data", "n_clusters=3", "Got 2"]),
            ((*PUBLIC, *FEDDP, "narrow.csv"), ["'weight'"]),
        ],
    )
    def test_one_sentence_before_anything_is_written(
        self, run, blobs, server, tmp_path, arguments, words
    ):
        (tmp_path / "few.csv").write_text("height,weight\n1,2\n3,4\n1,2\n")
        (tmp_path / "narrow.csv").write_text("height,age\n1,2\n3,4\n2,3\n")
        assert_one_sentence(simulate(run, blobs, *arguments), *words)
        assert not (tmp_path / "out").exists()

    def test_files_that_cannot_be_used(self, run, blobs, tmp_path):
        assert_one_sentence(simulate(run, tmp_path / "none.csv"), "none.csv")
        assert_one_sentence(run("simulate", "--data", "."), "Got . instead")
        (tmp_path / "empty.csv").write_text("height,weight\n")
        assert_one_sentence(simulate(run, tmp_path / "empty.csv"), "empty.csv")
        (tmp_path / "out").write_text("a file")
        assert_one_sentence(simulate(run, blobs, "--strategy", "lloyd"), "out")

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            (
                "simulate --columns red",
                "--columns names columns of your own file: give it with",
            ),
            ("simulate --label red", "--label"),
            ("plan --features 0", "--features"),
            ("plan --parties 2", "--parties with --strategy vertical"),
            ("plan --strategy vertical --parties 4", "from 2 to 3 parties"),
            ("plan --strategy vertical --clients 4", "leave out --clients"),
            ("plan --strategy feddp", "--server-points"),
            ("plan --server-points 50", "--server-points"),
            ("plan --strategy feddp --server-points 0", "--server-points"),
            (f"plan --strategy feddp --server-points {2**23}", "--server-points"),
            ("plan --strategy feddp --server-points 15", "n_clusters=16"),
            ("plan --strategy feddp --server-points 50 --unit client", "--clip"),
            (
                "plan --strategy feddp --server-points 50 --trust oblivious-server",
                SIGHTED,
            ),
            ("keygen", "--check ROSTER"),
            ("keygen --key a.key", "--check ROSTER"),
            ("keygen a --key a.key", "--check ROSTER"),
            ("keygen a --check roster.toml", "names of clients"),
            ("keygen --check roster.toml --output x", "--output"),
            (f"keygen --check roster.toml --beacon {'5a' * 32}", "--beacon"),
            ("keygen --check missing.toml", "cannot be read"),
            ("keygen ../a", "../a"),
            ("keygen c --beacon 5a", "beacon"),
            ("keygen a A", "case"),
            ("ledger", "--state-dir"),
            ("ledger --state-dir a --policy-file b", "--policy-file"),
            ("ledger --state-dir none", "no ledger"),
            ("forget", "--state-dir"),
            ("forget --state-dir a --policy-file b", "--policy-file"),
            ("forget --state-dir none", "no ledger"),
        ],
    )
    def test_other_commands_write_nothing_either(self, run, tmp_path, line, words):
        assert_one_sentence(run(*line.split()), words)
        assert not list(tmp_path.iterdir())

    def test_missing_packages_name_the_extra(self, run, blobs, monkeypatch):
        monkeypatch.setitem(sys.modules, "PIL", None)
        assert_one_sentence(run("simulate"), "Pillow", "flower-kmeans[simulation]")
        monkeypatch.setitem(sys.modules, "ray", None)
        result = simulate(run, blobs, *PUBLIC, "--engine", "ray")
        assert_one_sentence(result, "ray", "flower-kmeans[simulation]", "in-process")

    @pytest.mark.claim("own-data", "on-error-such-full")
    def test_a_full_disk_leaves_an_earlier_result(self, run, blobs, tmp_path):
        lloyd = ("--strategy", "lloyd", "--lower", -5, "--upper", 10)
        assert simulate(run, blobs, *lloyd).exit_code == 0
        before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        largest, second = sorted(map(len, before.values()))[:-3:-1]
        assert len(before["picture.png"]) == largest
        # The operating system itself refuses files of more bytes: the first one, and
        # the last one.
        for most, name in (
            (100, "report.html"),
            ((largest + second) // 2, "picture.png"),
        ):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limit[1]))
            try:
                result = simulate(run, blobs, *lloyd)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            assert_one_sentence(
                result, f"Got out/{name}: File too large", "name another place"
            )
            found = {
                path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()
            }
            assert found == before

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (
                OSError(errno.ENOSPC, "No space left on device", "/var/x"),
                "/var/x cannot be used",
            ),
            (OSError(errno.EMFILE, "Too many open files"), "(ulimit -n)"),
            (
                FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"),
                "TMPDIR",
            ),
            (
                MemoryError("Unable to allocate 8.0 GiB"),
                "memory: Unable to allocate 8.0 GiB.",
            ),
        ],
    )
    def test_what_the_machine_refuses(self, run, blobs, monkeypatch, error, words):
        def refuse(*args, **kwargs):
            raise error

        monkeypatch.setattr("flower_kmeans.cli.simulation.simulate", refuse)
        assert_one_sentence(simulate(run, blobs, *PUBLIC), words)

    @pytest.mark.parametrize("arguments", [["plan"], ["--help"], ["--version"]])
    def test_output_that_cannot_be_printed(self, tmp_path, arguments):
        command = [
            sys.executable,
            "-c",
            "from flower_kmeans.cli.app import main; main()",
        ]
        with open("/dev/full", "w") as full:
            found = subprocess.run(
                [*command, *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert found.returncode == 1
        words = "Error: The operating system refused: No space left on device: make room there"
        assert found.stderr.startswith(words)
        assert found.stderr.count("\n") == 1

    def test_a_broken_package_costs_the_picture_alone(
        self, run, blobs, tmp_path, monkeypatch
    ):
        for name in [
            name for name in sys.modules if name.split(".")[0] == "matplotlib"
        ]:
            monkeypatch.delitem(sys.modules, name)
        (tmp_path / "matplotlib.py").write_text(
            "raise ImportError('libpng16.so.16: no such file')"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        result = simulate(run, blobs, *PUBLIC)
        assert result.exit_code == 0, result.output
        words = "installed but cannot be imported (ImportError: libpng16.so.16: no such file)"
        assert words in facts_of(result.stdout)["Picture"]
        assert (tmp_path / "out" / "report.json").exists()
        assert not (tmp_path / "out" / "picture.png").exists()

    @pytest.mark.claim("reference/simulation", "where-ray-cannot-be")
    def test_auto_goes_on_in_this_process_where_ray_does_not_start(
        self, run, blobs, tmp_path, monkeypatch
    ):
        def init(**options):
            raise OSError(errno.ENOSPC, "No space left on device")

        ray = types.ModuleType("ray")
        ray.init, ray.is_initialized = init, lambda: False
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.delenv("RAY_ADDRESS")
        monkeypatch.setattr("flower_kmeans.simulation.engines._MUCH_WORK", 0)
        monkeypatch.setattr(
            "flower_kmeans.simulation.engines.find_spec", lambda name: object()
        )
        result = simulate(run, blobs, *PUBLIC, "--engine", "auto")
        assert result.exit_code == 0, result.output
        assert "The run goes on in this process. Ray cannot be started" in result.stdout
        assert "No space left on device" in result.stdout
        assert (
            json.loads((tmp_path / "out" / "report.json").read_text())["engine"]
            == "in-process"
        )
        result = simulate(run, blobs, *PUBLIC, "--engine", "ray")
        assert_one_sentence(
            result, "Ray cannot be started", "No space left", "'in-process'"
        )

    def test_text_says_what_to_do(self, run, tmp_path):
        """Of all columns at once, and it shows no record."""
        path = tmp_path / "people.csv"
        path.write_text("id,age,seen\nP1,31.77,2024-01-02\nP2,,2024-02-03\n")
        for columns, words in (
            ((), ("'id'", "'seen'", "2 of 2", "--columns")),
            (("--columns", "seen"), ("'seen'", "dates")),
        ):
            result = run("simulate", "--data", path, *columns)
            assert_one_sentence(result, *words)
            assert not any(value in result.output for value in ("P1", "31.77", "2024"))

    def test_records_with_missing_cells_are_dropped_and_counted(self, run, tmp_path):
        """Also values that bounds move: a line above the results, and a second one on columns."""
        rng = np.random.default_rng(2)
        rows = [f"{i},{rng.normal(i % 3 - 1, 0.1):.3f},7" for i in range(100)]
        rows[3], rows[50] = "3,,7", "50,NA,"
        path = tmp_path / "t.csv"
        path.write_text("\n".join(["patient,score,same", *rows]))
        options = ("--lower", -3, "--upper", 9, "--n-records", 100, "--clusters", 3)
        result = run("simulate", "--data", path, *options, "--clients", 4)
        assert result.exit_code == 0, result.output
        assert "t.csv: 98 records of 4 clients, 3 columns" in result.stdout
        (first, second) = [
            line
            for line in result.stdout.splitlines()
            if "'patient'" in line or "'score'" in line
        ]
        assert first == (
            "2 of 100 records count as none; missing cells: 2 of 'score', 1 of 'same'; values "
            "moved to the bounds, of 100 records: 89 of 'patient'."
        )
        assert second == (
            "Look at the columns: 'patient' looks like a number of rows; 'same' has one value only."
        )
        assert f"answered\n{first}\n{second}\n" in result.stdout
        assert result.stdout.index(second) < result.stdout.index("Found")
        assert "moved" not in result.stderr
        # The results, which others may see, have nothing of it.
        files = [
            path.read_bytes() for path in (tmp_path / "flower-kmeans-out").iterdir()
        ]
        assert files
        assert not any(b"to the bounds" in file or b"as none" in file for file in files)


def rows_of(text):
    """Return the rows of releases of a plan."""
    rows = [line.split() for line in text.splitlines()]
    return [row for row in rows if len(row) == 7 and row[0].isdigit()]


def stated_noise(text):
    return float(text.split("up to noise of about ")[1].split()[0])


@pytest.fixture
def visits(tmp_path):
    """Blobs of 300 persons with four records each, of which one column says whose."""
    rng = np.random.default_rng(7)
    kind = np.repeat([0, 1, 2], 100)
    lines = []
    for person in range(300):
        own = CENTERS[kind[person]] + rng.normal(scale=0.2, size=(4, 2))
        lines += [f"P{person},{x},{y},{i % 2}" for i, (x, y) in enumerate(own)]
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(["who,height,weight,half", *lines]))
    return path


OF_PERSONS = (*PUBLIC[:4], "--person", "who")


class TestPersons:
    @pytest.mark.claim("own-data", "person-in-simulation")
    def test_persons_are_protected_and_counted(self, simulated, visits):
        options = ("--n-persons", 300, "--epsilon", 8, "--clients", 4)
        result, report, arrays = simulated(*OF_PERSONS, *options, path=visits)
        assert "visits.csv: 1,200 records of 300 persons at 4 clients" in result.stdout
        assert "per person, trust model" in result.stdout
        assert (report["unit"], report["n_persons"]) == ("person", 300)
        # Four records of a person weigh a quarter each.
        found = report["comparison"]
        assert found["n_records"] == 1200
        box = Box([-5, 0], [5, 10])
        exact = Clustering(arrays["centroids"], arrays["counts"], box, None)
        rows = np.loadtxt(visits, delimiter=",", skiprows=1, usecols=(1, 2))
        assert 4 * found["cost"] == pytest.approx(exact.cost(rows))
        assert report["columns"] == ["height", "weight"]
        np.testing.assert_allclose(arrays["counts"], 100, atol=30)
        assert_near_the_blobs(arrays["centroids"], 0.5)
        assert "WARNING" not in result.stdout

    def test_the_number_of_persons_is_public_or_nobody_is_protected(
        self, run, simulated, visits
    ):
        assert_one_sentence(
            simulate(run, visits, *OF_PERSONS, "--clients", 3), "--n-persons", "private"
        )
        _, report, arrays = simulated(
            *OF_PERSONS, "--strategy", "lloyd", "--clients", 3, path=visits
        )
        assert report["n_persons"] == 300
        assert arrays["counts"].sum() == pytest.approx(300)

    def test_records_are_protected_if_an_option_says_so(self, simulated, visits):
        unit = ("--unit", "record", "--n-records", 1200, "--clients", 3)
        result, report, _ = simulated(*OF_PERSONS, *unit, path=visits)
        assert report["unit"] == "record"
        assert "persons at" not in result.stdout

    def test_persons_need_their_column(self, run, blobs):
        options = (*PUBLIC[:4], "--unit", "person", "--n-persons", 300)
        assert_one_sentence(simulate(run, blobs, *options), "--person")

    @pytest.mark.claim("own-data", "split-iid-persons")
    def test_iid_keeps_a_person_at_one_client(self, visits):
        source = inputs.table(str(visits), Reading(person="who"), None, None, "iid")
        parts = source.split("iid", 7, seed=3)
        assert sorted(np.concatenate(parts)) == list(range(1200))
        assert source.most_clients(parts) == (0, 1)
        sizes = [len(np.unique(source.persons[rows])) for rows in parts]
        assert max(sizes) - min(sizes) <= 1

    def test_persons_at_several_clients_are_a_warning(self, simulated, visits):
        numbers = ("--n-persons", 300, "--split", "column:half", "--epsilon", 8)
        few = ("--trust", "trusted-server", "--columns", "height,weight")
        result, _, _ = simulated(*OF_PERSONS, *numbers, *few, path=visits)
        text = " ".join(result.stdout.split())
        assert "WARNING: 300 persons with records at several clients, at most 2" in text
        assert "the guarantee of a group of up to 2" in text
        assert "--max-clients-per-person 2" in text
        more = ("--max-clients-per-person", 2)
        result, report, _ = simulated(*OF_PERSONS, *numbers, *few, *more, path=visits)
        assert "several clients" not in result.stdout
        assert report["max_clients_per_person"] == 2

    def test_records_without_an_id_are_a_person_each(self, visits):
        text = visits.read_text().replace("P7,", ",")
        visits.write_text(text)
        source = inputs.table(str(visits), Reading(person="who"), None, None, "iid")
        assert source.n_persons == 299 + 4

    def test_a_plan_for_persons_needs_their_number(self, run):
        features = ("--features", 2, "--clusters", 3, "--clients", 5)
        unit = ("plan", "--unit", "person", *features)
        assert_one_sentence(run(*unit), "--n-persons")
        forgotten = run("plan", *features, "--n-persons", 1500)
        assert_one_sentence(forgotten, "Expected --unit person with --n-persons")
        result = run(*unit, "--n-persons", 1500, "--max-clients-per-person", 2)
        assert result.exit_code == 0, result.output
        assert "delta 1e-06 per person" in result.stdout
        assert " persons.\n" in result.stdout
        assert "for one person." in result.stdout
        numbers = "n_persons 1500, max_clients_per_person 2, n_clients 5"
        assert numbers in result.stdout
        sentence = "counts as 1/2, so sizes may be up to 2 times too small."
        assert sentence in " ".join(result.stdout.split())
        alone = run(*unit, "--n-persons", 1500)
        assert "too small" not in alone.stdout
        of_records = run("plan", *features, "--n-records", 1500)
        assert rows_of(result.stdout) == rows_of(of_records.stdout)
        assert stated_noise(result.stdout) == stated_noise(of_records.stdout)

    def test_a_plan_warns_of_too_few_persons(self, run):
        sizes = ("--features", 9, "--clusters", 10, "--n-persons", 300)
        result = run("plan", "--unit", "person", *sizes)
        assert "WARNING: noise may hide many of the clusters" in result.stdout

    def test_a_preview_gives_each_person_one_record(self, run, monkeypatch):
        monkeypatch.setattr(preview, "RUNS", 1)
        monkeypatch.setattr(preview, "FACTORS", ())
        sizes = ("--features", 2, "--clusters", 3, "--n-persons", 900, "--clients", 3)
        options = ("--unit", "person", "--simulate", "--trust", "trusted-server")
        result = run("plan", *sizes, *options)
        assert result.exit_code == 0, result.output
        assert "Each person has one record." in result.stdout

    def test_weights_of_records_are_no_option(self, run):
        assert "--weighted" not in run("simulate", "--help").stdout
        assert_one_sentence_or_usage(run("plan", "--weighted", "true"))


def assert_one_sentence_or_usage(result):
    assert result.exit_code != 0
    assert "Traceback" not in result.output


class TestPlan:
    @pytest.fixture
    def planned(self, run):
        def invoke(*arguments):
            result = run("plan", *arguments)
            assert result.exit_code == 0, result.output
            return result.stdout

        return invoke

    def test_what_matters_comes_first(self, planned):
        first, second, head, *_, last = planned(
            "--delta", 1e-6, "--epsilon", 0.5
        ).splitlines()
        assert (
            first
            == "Epsilon 0.5, delta 1e-06 per record, trust model distributed-noise."
        )
        assert second.startswith("A cluster's size is known up to noise of about ")
        assert head.startswith("round  release")
        # Of 20 clients' noise shares 14 make the planned noise; most of the rest is
        # removed.
        factor = f"1.054 ({(20 / 14) ** 0.5:.4g} before removal)"
        crowd = "n_records 273280, n_clients 20, min_clients 16, max_colluders 2"
        assert last == f"{crowd}, noise factor {factor}"

    def test_the_size_of_a_cluster_of_cells_has_no_one_noise(self, planned):
        text = planned("--clusters", "2-12")
        assert "A cluster's size" not in text
        assert "synopsis" in text
        assert "refinement" not in text

    def test_the_plan_says_whether_a_silhouette_will_mean_anything(self, planned, run):
        many = planned("--n-records", 100_000, "--quality")
        assert "9      quality" in many
        assert "so it will be known to within about" in many
        few = planned("--n-records", 1000, "--quality")
        assert "WARNING: quality=True promises nothing here" in few
        assert "quality" not in planned("--n-records", 1000)
        refused = run("plan", "--strategy", "vertical", "--quality")
        assert refused.exit_code == 1
        assert "does not take --quality" in refused.output

    def test_the_noise_for_clients_is_clip_times_as_large(self, planned):
        same = ("--strategy", "glloyd", "--rounds", 2, "--delta", 1e-6)
        records, clients = (
            planned(*same),
            planned(*same, "--unit", "client", "--clip", 40),
        )
        assert stated_noise(clients) == pytest.approx(
            40 * stated_noise(records), rel=0.01
        )
        crowd = "n_clients 20, min_clients 3, max_colluders 1"
        assert f"{crowd}, noise factor 1" in records
        clip = "clip 40 records' worth of a client in each release"
        assert f"{crowd}, {clip}, noise factor 1" in clients

    @pytest.mark.claim("own-data", "server-data-file-servers")
    def test_every_release_of_feddp_from_parameters_alone(self, planned):
        text = planned(
            "--strategy", "feddp", "--server-points", 40, "--features", 8, "--epsilon", 2,
            "--delta", 1e-6, "--rounds", 2, "--n-records", 273_280,
        )  # fmt: skip
        rows, lloyd = rows_of(text), ["lloyd-sums", "lloyd-counts"]
        lift = ["lift-sums", "lift-counts"]
        names = ["projection", "weights", *lift, *lloyd, "spread", *lloyd]
        assert [row[1] for row in rows] == names
        assert [row[0] for row in rows] == list("123344455")
        mu = float(text.split("All rounds together: mu ")[1].split(",")[0])
        together = np.hypot.reduce([float(row[6]) for row in rows])
        assert together == pytest.approx(mu, rel=1e-3)
        # The last size is known up to the noise of the release above, times the noise
        # factor.
        assert stated_noise(text) == pytest.approx(1.054 * float(rows[-1][4]), rel=0.01)

    @pytest.mark.parametrize("strategy", ["synopsis", "glloyd"])
    def test_sizes_have_the_noise_of_their_round_also_with_quality(
        self, planned, strategy
    ):
        """The last round counts again, for the silhouette: those are not the sizes."""
        options = ("--strategy", strategy, "--n-records", 20_000, "--clusters", 4)
        without = stated_noise(planned(*options))
        # The other rounds have 0.95 of mu^2.
        found = stated_noise(planned(*options, "--quality"))
        assert found == pytest.approx(without / np.sqrt(0.95), rel=0.01)

    @pytest.mark.claim("equal-groups", "tenth-runs-goes-four")
    def test_the_plan_of_bounds_has_four_more_rounds_and_warns_where_noise_is_large(
        self, planned
    ):
        same, bounds = (
            ("--n-records", 2000, "--clusters", 4),
            ("--min-size", 400, "--max-size", 600),
        )
        free, text = rows_of(planned(*same)), planned(*same, *bounds)
        refinements = ["refinement-sums", "refinement-counts"] * 4
        assert [row[1] for row in free] == ["moments", *["synopsis"] * 3, *refinements]
        rows = rows_of(text)
        assert [row[1] for row in rows] == [*(row[1] for row in free), *["sizes"] * 4]
        assert stated_noise(text) == pytest.approx(1.054 * float(rows[-1][4]), rel=0.01)
        assert "WARNING" not in text
        assert "bounds on sizes mean little" in planned(
            *same, *bounds, "--epsilon", 0.2
        )

    @pytest.mark.parametrize(
        ("strategy", "factor"), [("glloyd", 1.0), ("sulloyd", 2**0.5)]
    )
    def test_how_large_the_noise_of_a_size_is(self, planned, strategy, factor):
        text = planned("--strategy", strategy, "--clusters", 3, "--n-records", 5000)
        multiplier = next(float(row[4]) for row in rows_of(text) if "counts" in row[1])
        assert stated_noise(text) == pytest.approx(multiplier * factor, rel=0.01)

    @pytest.mark.claim("own-data", "server-data-file-servers")
    def test_the_plan_of_feddp_is_that_of_a_run(self, planned, simulated, server):
        same = (
            "--strategy",
            "feddp",
            "--epsilon",
            3,
            "--n-records",
            1200,
            "--clusters",
            3,
        )
        text = planned(*same, "--features", 2, "--server-points", 15, "--clients", 4)
        _, report, _ = simulated(
            *same, "--server-data", server, "--clients", 4, *PUBLIC
        )
        for release in report["releases"]:
            row = f"{release['name']} gaussian l2 {release['noise_multiplier']:.6g}".split()
            assert row in [line.split()[1:5] for line in text.splitlines()]

    def test_not_private(self, planned):
        assert planned("--strategy", "lloyd").startswith(
            "Trust model plain.\nNOT PRIVATE"
        )


class TestKeygen:
    def test_keys_and_a_roster_are_made(self, run, tmp_path):
        new = tmp_path / "new"
        result = run("keygen", "a", "b", "c", "--output", new)
        assert result.exit_code == 0, result.output
        assert sorted(path.name for path in new.iterdir()) == [
            "a.key",
            "b.key",
            "c.key",
            "roster.toml",
        ]
        assert stat.S_IMODE(new.stat().st_mode) == 0o700
        assert Roster.from_file(new / "roster.toml").names == ("a", "b", "c")
        for path in new.iterdir():
            assert path.name in result.stdout
            assert path.read_bytes().hex() not in result.stdout
        assert_one_sentence(run("keygen", "a", "--output", new), "a.key")

    def test_a_roster_is_checked(self, run, tmp_path):
        run("keygen", "a", "b", "c", "--beacon", "5a" * 32)
        result = run("keygen", "--check", "roster.toml", "--key", "b.key")
        assert result.exit_code == 0, result.output
        assert "3 clients, each with a valid key." in result.stdout
        assert "The own key is that of b, number 2 of 3." in result.stdout
        assert (
            f"The beacon is {'5a' * 32}. It must have been fixed after all"
            in result.stdout
        )
        (digest,) = [
            line for line in result.stdout.splitlines() if line.startswith("Digest: ")
        ]
        expected = Roster.from_file("roster.toml").digest.hex()
        assert digest.removeprefix("Digest: ").replace(" ", "") == expected
        assert (tmp_path / "b.key").read_bytes().hex() not in result.stdout
        alone = run("keygen", "--check", "roster.toml")
        assert digest in alone.stdout
        assert "own key" not in alone.stdout

    def test_a_roster_that_cannot_be_used_is_one_sentence(self, run):
        run("keygen", "a", "b")
        run("keygen", "c", "--output", "other")
        stranger = run("keygen", "--check", "roster.toml", "--key", "other/c.key")
        assert_one_sentence(stranger, "a key that is not there")


class TestForget:
    @pytest.fixture
    def state(self, tmp_path):
        """A ledger with one unfinished run, answered once, and one that is over."""
        plan, loose = gaussian_plan(), LifetimeLimit(100.0, DELTA)
        with Ledger(tmp_path / "state") as ledger:
            for number in (1, 2):
                session = ClientSession(
                    secret=b"SECRET" * 5, commitment=bytes([number]) * 32
                )
                ledger.charge(answer_of(number), price(plan), loose, 0, encode(session))
                copy = f"records-{bytes([number]).hex() * 32}-{bytes([number]).hex() * 32}.npy"
                (tmp_path / "state" / copy).write_bytes(b"records")
            version, _ = ledger.load(answer_of(2).run)
            ledger.end(answer_of(2).run, version, encode(ClientSession(over=1)))
        return tmp_path / "state"

    @pytest.mark.parametrize("option", ["--state-dir", "--policy-file"])
    def test_unfinished_runs_are_erased_and_stay_charged(
        self, run, state, tmp_path, option
    ):
        (tmp_path / "policy.toml").write_text('state_dir = "state"')
        named = state if option == "--state-dir" else tmp_path / "policy.toml"
        assert b"SECRET" in (state / FILE_NAME).read_bytes()
        result = run("forget", option, named)
        assert result.exit_code == 0, result.output
        assert "Forgot 1 unfinished run" in result.stdout
        assert b"SECRET" not in (state / FILE_NAME).read_bytes()
        # no copy of records
        assert [path.name for path in state.iterdir()] == [FILE_NAME]
        with Ledger(state) as ledger:
            assert unpack_session(ledger.load(answer_of(1).run)[1]).over
            assert unpack_session(ledger.load(answer_of(2).run)[1]).over == 1
            assert ledger.last_answer(answer_of(1).run) is not None
            charge(
                ledger,
                answer_of(9),
                gaussian_plan(rounds=2),
                LifetimeLimit(100.0, DELTA),
            )
        # the new one
        assert "Forgot 1 unfinished run" in run("forget", option, named).stdout
        assert "Forgot 0 unfinished runs" in run("forget", option, named).stdout

    def test_a_policy_names_a_ledger(self, run, tmp_path):
        (tmp_path / "policy.toml").write_text("max_epsilon = 1.0")
        assert_one_sentence(
            run("forget", "--policy-file", "policy.toml"), "no state_dir"
        )


class TestLedger:
    @pytest.mark.parametrize("unit", ["client", "person", "record"])
    def test_a_unit_that_a_run_did_not_cover_has_no_number(self, run, tmp_path, unit):
        plan, loose = gaussian_plan(), LifetimeLimit(100.0, DELTA)
        with Ledger(tmp_path / "state") as ledger:
            ledger.charge(answer_of(), price_of(unit, plan.rounds), loose, 0, b"")
        (tmp_path / "policy.toml").write_text('state_dir = "state"')
        result = run("ledger", "--policy-file", "policy.toml")
        assert result.exit_code == 0, result.output
        rows = [line for line in result.stdout.splitlines() if "one " in line]
        covered = COVERED_UNITS[unit]
        for each, row in zip(COVERED_UNITS["client"], rows, strict=False):
            assert f"one {each}" in row
            assert ("not covered" in row) == (each not in covered)
        assert f"epsilon 10 holds for one {covered[0]}." in result.stdout

    def test_a_directory_alone_is_enough(self, run, tmp_path):
        Ledger(tmp_path / "state").close()
        result = run("ledger", "--state-dir", "state")
        assert result.exit_code == 0, result.output
        assert "not covered" not in result.stdout


def test_missing_clients_are_a_warning(capsys):
    dropped = [
        Dropped(2, 7, number, "No answer in time.", "silent") for number in (1, 3)
    ]
    report = replace(finished("FastLloyd", "trusted-server").report, dropped=dropped)
    print_warnings(Console(), report, ("WARNING: this.", "No warning."))
    expected = "WARNING: this.\nWARNING: 1 of 5 clients missed a round.\n"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_in_any_encoding_ends_no_command(blobs, tmp_path, monkeypatch, encoding):
    monkeypatch.chdir(tmp_path)
    text = blobs.read_text().replace("height,weight", "größe_ε,weight")
    (tmp_path / "größe_ε.csv").write_text(text, encoding="utf-8")
    options = [
        "--strategy",
        "lloyd",
        "--columns",
        "größe_ε,weight",
        "--bounds",
        "größe_ε=-5:5",
    ]
    for bounds, code in (["weight=0:10"], 0), (["ε=0:1"], 1):
        result = CliRunner(charset=encoding).invoke(
            app, ["simulate", "--data", "größe_ε.csv", *options, "--bounds", *bounds]
        )
        assert result.exit_code == code, result.output
        shown = (
            (result.stdout if code == 0 else result.stderr)
            .encode(encoding)
            .decode(encoding)
        )
        assert ("größe" in shown) == (encoding == "latin-1")
        assert r"\u03b5" in shown
    names = np.load(tmp_path / "flower-kmeans-out" / "centroids.npz")["columns"]
    assert names.tolist() == ["größe_ε", "weight"]


def test_a_terminal_of_ascii_ends_no_command(tmp_path):
    own = {
        "LC_ALL": "C",
        "PYTHONIOENCODING": "ascii",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    command = "from flower_kmeans.cli.app import main; main()"
    for arguments in (["plan"], ["plan", "--help"], ["new", "ε"]):
        found = subprocess.run(
            [sys.executable, "-c", command, *arguments],
            env=os.environ | own, cwd=tmp_path, capture_output=True, check=False,
        )  # fmt: skip
        assert found.returncode == (arguments[0] == "new"), found.stderr
        assert (found.stdout + found.stderr).isascii()
        assert b"Traceback" not in found.stderr


def test_help_lists_the_commands_and_the_version_is_that_of_the_package(run):
    result = run("--help")
    for command in ("simulate", "plan", "keygen", "check", "ledger", "forget"):
        assert command in result.stdout
    assert (
        run("--version").output.strip() == f"flower-kmeans {flower_kmeans.__version__}"
    )


def test_a_new_parameter_of_an_algorithm_is_an_option_at_once():
    @dataclass(frozen=True, kw_only=True)
    class Algorithm(FastLloydAlgorithm):
        """With one more."""

        name: ClassVar[str] = "toy"
        speed: Annotated[float, real(0.5, 2.0)] = 1.0

    class Toy(strategies.FastLloyd):
        """With one more.

        Parameters
        ----------
        speed : float
            How fast
            it goes. As a rule.
        """

        ALGORITHM = Algorithm

        def __init__(self, n_clusters, domain, privacy, *, speed=1.0, **options):
            super().__init__(n_clusters, domain, privacy, speed=speed, **options)

    option = options_of(Toy)["speed"]
    assert (option.kind.values, option.default) == ("number in [0.5, 2]", 1.0)
    assert option.meaning == "How fast it goes. As a rule."
    assert option.kind.parse("0.75") == 0.75
    assert options_of(Toy).keys() == {*options_by_strategy()["fastlloyd"], "speed"}


@pytest.mark.claim("own-data", "server-data-file-servers")
def test_every_strategy_can_be_chosen_by_name():
    others = {"KFed", "KMeansStrategy", "RoundInfo"}
    assert {each.__name__ for each in BY_NAME.values()} == {
        *strategies.__all__
    } - others
