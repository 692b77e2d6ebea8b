"""``flower-kmeans plot`` draws what a run released, and records only where they are added."""

import re
import stat
from datetime import date

import numpy as np
import pytest
from report_pages import finished
from typer.testing import CliRunner

from flower_kmeans import Box, Clustering, TableDomain
from flower_kmeans.algorithms.released import ReleasedMixture, SizeReport
from flower_kmeans.cli.app import app
from flower_kmeans.cli.outputs import write_centroids
from flower_kmeans.data.domain import domain_from_config
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.report.synopsis import Synopsis

pytest.importorskip("matplotlib")
from matplotlib.colors import rgb_to_hsv

pytestmark = pytest.mark.claim("reading-a-report", "other-numbers-clusters-runs")

RNG = np.random.default_rng
KINDS = ("axes", "pairs", "sizes", "profiles")
CENTROIDS = np.array([[-3.0, 30, 0.1], [3, -30, 0.2], [4, 40, -0.4]])
BOX = Box([-10.0, -100, -1], [10.0, 100, 1])
NAMES = ["age", "<$x_1$>", "visits"]


def synopsis_of(domain=BOX, centroids=CENTROIDS, m=12):
    d = domain.n_features
    means = domain.to_unit(np.resize(centroids, (m, d))) + RNG(0).normal(
        0, 0.02, (m, d)
    )
    found = ReleasedMixture(
        np.arange(m) * 10.0 + 50, means, np.full((m, d), 0.05), np.eye(d), 1e-12, np.full(m, 0.1),
        (4.0, 3.0, 3.0),
    )  # fmt: skip
    return Synopsis(found, domain)


def leave(
    directory,
    *,
    domain=BOX,
    centroids=CENTROIDS,
    synopsis=None,
    sizes=None,
    names=NAMES,
    report=None,
    bounds_from_data=False,
):
    k = len(centroids)
    weights = None if sizes is None else np.zeros(k)
    report = report or finished("FastLloyd", "trusted-server").report
    clustering = Clustering(
        centroids, np.arange(k) * 100.0 - 20, domain, report, weights, sizes, synopsis
    )
    directory.mkdir(exist_ok=True)
    write_centroids(directory, clustering, names, bounds_from_data)
    return directory / "centroids.npz"


def invoke(path, *options):
    return CliRunner().invoke(
        app, ["plot", "--centroids", str(path), *map(str, options)]
    )


def drawn(path, kind, *options):
    """Return what the command prints, and the picture as svg with its text as text."""
    import matplotlib

    output = path.with_name("picture.svg")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        result = invoke(path, "--kind", kind, "--output", output, *options)
    assert result.exit_code == 0, result.output
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    return result.output, output.read_text("utf-8")


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_synopsis", [True, False])
def test_every_kind_is_drawn_from_released_values(tmp_path, kind, with_synopsis):
    path = leave(tmp_path, synopsis=synopsis_of() if with_synopsis else None)
    said, svg = drawn(path, kind)
    assert (
        said
        == f"Wrote {path.with_name('picture.svg')}, which shows only what the run released.\n"
    )
    assert "from released values only" in svg
    assert "RECORDS" not in svg
    if kind in ("pairs", "profiles"):
        assert "&lt;$x_1$&gt;" in svg  # neither markup nor a formula
    if kind == "axes":
        of = "synopsis" if with_synopsis else "centroids"
        assert f"3 clusters on the principal axes of the {of}" in svg
        shares = [int(each) for each in re.findall(r"\((\d+)% of variance\)", svg)]
        assert len(shares) == 2
        assert shares[0] >= shares[1]


@pytest.mark.default_cases("axes")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_not_private_is_marked(tmp_path, kind):
    exact = leave(
        tmp_path, synopsis=synopsis_of(), report=finished("Lloyd", "plain").report
    )
    read_off = leave(tmp_path / "b", bounds_from_data=True)
    for path in (exact, read_off):
        said, svg = drawn(path, kind)
        assert said.splitlines()[1].startswith(
            "NOT PRIVATE: of a run without noise, or with"
        )
        assert "NOT PRIVATE" in svg
        assert "noisy" not in svg
        assert "released values only" not in svg


def test_axes_have_the_columns_as_people_know_them(tmp_path):
    days = [date(2021, 3, 4), date(2023, 5, 6)]
    declared = [
        Number("income", 1000, 1e6, "log"),
        Date("admitted", date(2020, 1, 1), date(2024, 12, 31)),
        Category("ward", ("a", "b")),
    ]
    domain = TableDomain(declared)
    centroids = domain.encode(
        {"income": [5e3, 2e5], "admitted": days, "ward": ["a", "b"]}
    )
    path = leave(tmp_path, domain=domain, centroids=centroids, names=domain.columns)
    _, svg = drawn(path, "pairs", "--columns", "admitted,income,ward")
    texts = set(re.findall(r">([^<>]+)</text>", svg))
    assert {"income", "admitted", "ward=a", "ward=b"} <= texts
    assert {text[:4] for text in texts if re.fullmatch(r"20\d\d-\d\d-\d\d", text)} >= {
        "2021",
        "2022",
    }
    incomes = [float(text) for text in texts if re.fullmatch(r"[\d.]+e\+\d\d", text)]
    assert incomes  # and not their logarithms
    assert min(incomes) > 1000
    _, one = drawn(path, "pairs", "--columns", "log10(income)")
    assert {"income", "density"} <= set(re.findall(r">([^<>]+)</text>", one))
    for twice in ("ward,ward=a", "income,income"):
        said = invoke(path, "--kind", "pairs", "--columns", twice).output
        assert "of income, admitted, ward, each once" in " ".join(said.split())


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_suffix_is_the_format(tmp_path, suffix):
    path = leave(tmp_path, synopsis=synopsis_of())
    output = tmp_path / f"picture.{suffix}"
    assert invoke(path, "--output", output).exit_code == 0
    start = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    assert output.read_bytes().startswith(start)


@pytest.mark.default_cases("axes")
@pytest.mark.parametrize("kind", ["axes", "pairs"])
def test_records_that_are_added_are_marked(tmp_path, kind):
    path = leave(tmp_path, synopsis=synopsis_of())
    own = tmp_path / "own.csv"
    records = RNG(1).uniform(-1, 1, (50, 3)) * [10, 100, 1]
    records[7, 1] = np.nan
    lines = [",".join(NAMES), *(",".join(map(str, row)) for row in records.tolist())]
    own.write_text("\n".join(lines), "utf-8")
    _, before = drawn(path, kind)
    said, svg = drawn(path, kind, "--records", own)
    assert said.endswith("which shows THE RECORDS THEMSELVES.\n")
    assert "HOLDS RECORDS of own.csv: as confidential as these" in svg
    if kind == "axes":
        assert "own records, not released" in svg
    # A mark for each whole record, in each of the panels of two columns.
    added = svg.count("<use ") - before.count("<use ")
    assert added > 45 * (1 if kind == "axes" else 6)  # ticks may be fewer


def test_sizes_have_the_intervals_that_are_known(tmp_path, monkeypatch):
    found = {}

    def errorbar(axes, places, heights, yerr, **options):
        found.update(heights=heights, low=heights - yerr[0], high=heights + yerr[1])

    monkeypatch.setattr("matplotlib.axes.Axes.errorbar", errorbar)
    sizes = SizeReport((400.0, 100.0, 250.0), 10.0, 50, 300)
    bounded = leave(tmp_path, sizes=sizes)
    _, svg = drawn(bounded, "sizes")
    assert "intervals of 95% over the noise, at once" in svg
    np.testing.assert_allclose(found["low"], sizes.interval[[0, 2, 1], 0])
    np.testing.assert_allclose(found["high"], sizes.interval[[0, 2, 1], 1])
    synopsis = synopsis_of()
    _, svg = drawn(leave(tmp_path, synopsis=synopsis), "sizes")
    assert "as the synopsis has them" in svg
    assert "intervals of 95% over the noise, each" in svg
    # Four parts of each cluster, each with noise of 4 records.
    np.testing.assert_allclose(
        found["heights"], sorted(synopsis.weights.reshape(4, 3).sum(0))[::-1]
    )
    np.testing.assert_allclose(
        found["high"] - found["heights"], 1.959964 * 4 * 2, rtol=1e-5
    )
    found.clear()
    _, svg = drawn(leave(tmp_path), "sizes")
    assert "intervals" not in svg
    assert not found
    with np.load(bounded) as file:
        arrays = {**file, "sizes": np.ones(3), "size_interval": np.ones((2, 2))}
    np.savez(bounded, **arrays)
    assert (
        "Expected the centroids.npz of a run"
        in invoke(bounded, "--kind", "sizes").output
    )


def test_sizes_of_a_run_for_persons_are_numbers_of_persons(tmp_path):
    path = leave(tmp_path)
    _, svg = drawn(path, "sizes")
    assert "records" in texts_of(svg)
    with np.load(path) as file:
        arrays = {**file, "counted": np.array("persons")}
    np.savez(path, **arrays)
    _, svg = drawn(path, "sizes")
    assert "persons" in texts_of(svg)
    assert "records" not in texts_of(svg)


@pytest.fixture
def bars(monkeypatch):
    """Return the bars of profiles that are drawn: a list of lengths for each cluster."""
    drawn_bars = []

    def barh(axes, heights, lengths, *more, **options):
        drawn_bars.append(np.array(lengths))

    monkeypatch.setattr("matplotlib.axes.Axes.barh", barh)
    return drawn_bars


def texts_of(svg):
    return re.findall(r">([^<>]+)</text>", svg)


def test_profiles_have_values_and_deviations_of_all_records(tmp_path, bars):
    synopsis = synopsis_of()
    _, svg = drawn(leave(tmp_path, synopsis=synopsis), "profiles")
    texts = texts_of(svg)
    assert {"-3", "30", "0.1", "3", "-30", "0.2", "4", "40", "-0.4"} <= set(texts)
    assert "in standard deviations of all records" in svg
    records = synopsis.sample(200_000, RNG(2))
    expected = (CENTROIDS - records.mean(axis=0)) / records.std(axis=0)
    # All columns have one scale.
    lengths = np.sort(np.concatenate(bars[::-1])) / 0.45
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(lengths, np.sort(expected.ravel()) / scale, atol=0.02)


def test_profiles_have_the_sizes_of_the_report_also_beside_a_synopsis(tmp_path):
    synopsis = synopsis_of()
    _, svg = drawn(leave(tmp_path, synopsis=synopsis), "profiles")
    assert {"about 0", "about 80", "about 180"} <= set(texts_of(svg))


def test_profiles_without_a_synopsis_are_in_the_space_that_was_clustered(
    tmp_path, bars
):
    _, svg = drawn(leave(tmp_path), "profiles")
    assert "in the space that was clustered" in svg
    shares = np.array([0.0, 80, 180]) / 260  # of sizes -20, 80 and 180
    expected = BOX.scaled(CENTROIDS) - shares @ BOX.scaled(CENTROIDS)
    separations = np.sqrt(shares @ expected**2)
    by_column = expected[:, np.argsort(-separations)] / np.abs(expected).max()
    np.testing.assert_allclose(np.array(bars)[::-1], 0.45 * by_column, atol=1e-9)


def test_profiles_have_names_sizes_and_decoded_columns(tmp_path):
    declared = [
        Number("income", 1000, 1e6, "log"),
        Date("admitted", date(2020, 1, 1), date(2024, 12, 31)),
        Category("ward", ("a", "b", "c")),
        Category("smoker", ("no", "yes")),
    ]
    domain = TableDomain(declared)
    centroids = domain.encode(
        {
            "income": [5e3, 2e5],
            "admitted": [date(2021, 3, 4), date(2023, 5, 6)],
            "ward": ["a", "b"],
            "smoker": ["yes", "no"],
        }
    )
    path = leave(tmp_path, domain=domain, centroids=centroids, names=domain.columns)
    _, svg = drawn(path, "profiles")
    texts = texts_of(svg)
    assert {"income", "admitted", "ward a", "ward c", "smoker yes"} <= set(texts)
    assert "smoker no" not in texts
    assert {"5,000", "200,000", "2021-03-04", "2023-05-06", "100%", "0%"} <= set(texts)
    assert {"about 0", "about 80"} <= set(texts)
    assert "cluster 0 (may be" in texts
    # The category in which clusters differ less stands with its lines last.
    assert texts.index("ward c") > max(texts.index("ward a"), texts.index("ward b"))


def test_profiles_of_many_columns_have_those_that_separate(tmp_path):
    rng = RNG(0)
    names = [f"column of {n}" for n in range(60)]
    centroids = rng.normal(0, 0.01, (3, 60))
    centroids[:, 57] = [-0.9, 0.2, 0.9]
    path = leave(
        tmp_path, domain=Box([-1] * 60, [1] * 60), centroids=centroids, names=names
    )
    _, svg = drawn(path, "profiles")
    assert "40 of 60 lines, in which the clusters differ most" in svg
    shown = [text for text in texts_of(svg) if text in names]
    assert shown[0] == "column of 57"
    assert len(shown) == 40
    wards = TableDomain([Category("ward", tuple("abcdefghij"))])
    points = wards.encode({"ward": list("cch")})
    path = leave(tmp_path, domain=wards, centroids=points, names=wards.columns)
    _, svg = drawn(path, "profiles")
    assert "6 of 10 lines" in svg
    assert {"ward c", "ward h"} <= set(texts_of(svg))


@pytest.mark.default_cases("False")
@pytest.mark.parametrize("with_synopsis", [True, False])
def test_one_column_has_pictures_too(tmp_path, with_synopsis):
    domain, centroids = Box([0.0], [10.0]), np.array([[2.0], [7.0]])
    synopsis = synopsis_of(domain, centroids) if with_synopsis else None
    path = leave(
        tmp_path, domain=domain, centroids=centroids, synopsis=synopsis, names=["age"]
    )
    for kind in KINDS:
        drawn(path, kind)
    (tmp_path / "own.csv").write_text("age\n3\n4\n6\n", "utf-8")
    without = drawn(path, "pairs")[1]
    # a density, in which the clusters and the records are seen
    for kind in ("axes", "pairs"):
        _, svg = drawn(path, kind, "--records", tmp_path / "own.csv")
        assert "2 clusters by column<" in svg
        assert svg.count("<path ") >= without.count("<path ") + 50  # bars


def test_nothing_is_cut_off_and_clusters_differ_in_hue(tmp_path, monkeypatch):
    """Few clusters make small pictures; in the longer list of colours two are shades of one."""
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda self, *a, **b: (figures.append(self), save(self, *a, **b))[1],
    )
    path = leave(tmp_path, synopsis=synopsis_of())
    for kind in KINDS:
        drawn(path, kind)
        figure = figures[-1]
        size = figure.get_size_inches()
        for axes in figure.axes:
            box = axes.get_tightbbox().transformed(figure.dpi_scale_trans.inverted())
            assert min(box.x0, box.y0) > -0.05
            assert (np.array([box.x1, box.y1]) < size + 0.05).all()
    bars = figures[KINDS.index("sizes")].axes[0].patches
    hues = sorted(rgb_to_hsv(bar.get_facecolor()[:3])[0] for bar in bars)
    assert np.diff(hues).min() > 0.1


def test_a_nodes_result_has_the_declarations_of_a_domain_file(tmp_path):
    domain = TableDomain([Number("age", 0, 100), Category("ward", ("a", "b"))])
    box, centroids = (
        domain_from_config(domain.to_config()),
        np.array([[20.0, 1, 0], [70, 0, 1]]),
    )
    path = leave(tmp_path, domain=box, centroids=centroids, names=domain.columns)
    (tmp_path / "domain.toml").write_text(domain.to_toml(), "utf-8")
    (tmp_path / "own.csv").write_text("ward,age\na,30\nb,40\n,50\n", "utf-8")
    assert "Got 'ward=a'" in invoke(path, "--records", tmp_path / "own.csv").output
    options = ("--records", tmp_path / "own.csv", "--domain", tmp_path / "domain.toml")
    _, svg = drawn(path, "pairs", "--columns", "ward=a, age", *options)
    assert "HOLDS RECORDS" in svg


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--kind", "bars"),
            "--kind in ['axes', 'pairs', 'sizes', 'profiles']. Got 'bars'",
        ),
        (("--output", "x.gif"), "ends in .svg, .png, .pdf"),
        (("--output", "none/x.svg"), "in a directory that exists. Got none/x.svg"),
        (
            ("--kind", "sizes", "--records", "own.csv"),
            "Expected --records with axes or pairs only",
        ),
        (("--columns", "age"), "Expected --columns with pairs only"),
        (("--kind", "pairs", "--columns", "age,size"), "Got age, size"),
        (("--records", "none.csv"), "none.csv"),
    ],
)
def test_bad_options_are_one_sentence(tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    result = invoke(leave(tmp_path), *options)
    assert result.exit_code == 1
    assert words in " ".join(result.output.split())
    assert len(result.output.splitlines()) == 1
    assert not [*tmp_path.glob("*.svg")]


def test_matplotlib_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    result = invoke(leave(tmp_path), "--output", tmp_path / "x.svg")
    assert result.exit_code == 1
    assert "pip install 'flower-kmeans[plots]'" in result.output
