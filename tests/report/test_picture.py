"""Pictures show every cluster, whatever the noise made of its size."""

import re
import sys
from datetime import date
from typing import NamedTuple

import numpy as np
import pytest
from report_pages import finished

from flower_kmeans import Box, Clustering, Sphere, TableDomain
from flower_kmeans.cli.inputs import InputRecords
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.report.picture import save_photo_picture, save_scatter_picture

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.claim("own-data", "picture-shows-records-where")
IMAGE = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
COLOURS = np.array([[250.0, 10.0, 10.0], [10.0, 250.0, 10.0], [-5.0, 3.0, 300.0]])


@pytest.mark.parametrize(
    "counts", [[40.0, 8.0, -3.5], [0.0, 0.0, 0.0], [-1.0, -2.0, -3.0]]
)
def test_photo_before_after_and_palette(tmp_path, counts):
    path = tmp_path / "picture.png"
    labels = np.repeat([0, 1], 24)
    save_photo_picture(path, IMAGE, labels, COLOURS, np.array(counts), "after")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    shown = {tuple(pixel) for pixel in pixels.tolist()}
    assert {tuple(pixel) for pixel in IMAGE.reshape(-1, 3).tolist()} <= shown
    assert {(250, 10, 10), (10, 250, 10), (0, 3, 255)} <= shown


def is_png(path):
    with Image.open(path) as picture:
        return (
            picture.format == "PNG"
            and len(picture.convert("RGB").getcolors(2**20)) > 10
        )


THREE = Box([-5] * 3, [300] * 3, columns=["a", "b", "c"])


def test_pictures_of_few_and_many_values(tmp_path):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    for n in (0, 1, 3, 50_001):
        labels, path = rng.integers(3, size=n), tmp_path / f"{n}.png"
        records = rng.normal(size=(n, 3))
        save_scatter_picture(path, records, labels, COLOURS, np.ones(3), THREE)
        assert is_png(path)


def test_a_table_is_drawn_by_power_cells(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure").Figure
    figures = []
    monkeypatch.setattr(figure, "savefig", lambda self, *a, **b: figures.append(self))
    records = np.column_stack([np.linspace(0, 10, 60), np.zeros(60)])
    source = InputRecords("x.csv", records, ("a", "b"), 60)
    report = finished("Lloyd", "plain").report
    n_first = {}
    for weight in (0.0, 60.0, 200.0):
        clustering = Clustering(
            np.array([[0.0, 0.0], [10.0, 0.0]]),
            np.array([30.0, 30.0]),
            Box([0, 0], [10, 10]),
            report,
            weights=np.array([weight, 0.0]),
        )
        assert source.draw(tmp_path / "p.png", clustering, "")
        dots = figures.pop().axes[0].collections[0].get_facecolors()
        n_first[weight] = int((dots[:, 2] > dots[:, 0]).sum())  # blue, not orange
    assert n_first == {0.0: 30, 60.0: 48, 200.0: 60}


def test_what_cannot_be_drawn_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    path, one, none = tmp_path / "p.png", np.zeros((2, 1)), np.zeros(5, int)
    with pytest.raises(ConfigurationError, match="48 pixels"):
        save_photo_picture(path, IMAGE, none, COLOURS, np.ones(3), "")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"flower-kmeans\[plots\]"):
        save_scatter_picture(path, one, none[:2], one, one[0], Box([0], [1]))


# --------------------------------------------------------------- records by clusters


WARDS = ("surgery", "medicine", "children")
VISITS = TableDomain(
    [
        Number("age", 0, 120),
        Number("days", 1, 1000, "log"),
        Category("ward", WARDS),
        Date("admitted", date(2020, 1, 1), date(2024, 1, 1)),
    ]
)


class Drawn(NamedTuple):
    """The words of a picture, and the places of its points."""

    title: str
    x: str
    y: str
    ticks: tuple
    legend: list
    points: np.ndarray
    marks: np.ndarray


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Return a function that draws records and returns what is in the figure."""
    figure = pytest.importorskip("matplotlib.figure").Figure
    figures = []
    monkeypatch.setattr(figure, "savefig", lambda self, *a, **b: figures.append(self))

    def read(records, labels, centroids, domain, columns=None, counts=None):
        if counts is None:
            counts = np.bincount(labels, minlength=len(centroids)) * 1.0
        path = tmp_path / "picture.png"
        save_scatter_picture(path, records, labels, centroids, counts, domain, columns)
        found = figures.pop()
        found.draw_without_rendering()
        (axes,) = found.axes
        places = [each.get_offsets().data for each in axes.collections]
        return Drawn(
            axes.get_title("left"),
            axes.get_xlabel(),
            axes.get_ylabel(),
            tuple(
                [each.get_text() for each in axis.get_ticklabels()]
                for axis in (axes.xaxis, axes.yaxis)
            ),
            [text.get_text() for text in found.legends[0].get_texts()],
            places[0] if places else None,
            places[1] if places else None,
        )

    return read


def groups(centroids, n, spread, seed=0):
    """Return records around centroids, n each, and their clusters."""
    labels = np.repeat(np.arange(len(centroids)), n)
    noise = np.random.default_rng(seed).normal(0, spread, (len(labels), 1))
    return centroids[labels] + noise * np.ones(centroids.shape[1]), labels


def test_two_columns_are_drawn_as_they_are(draw):
    centroids = np.array([[1.0, 2.0], [8.0, 9.0]])
    records, labels = groups(centroids, 40, 0.1)
    found = draw(records, labels, centroids, Box([0, 0], [10, 10]), ["<$a_1$>", "b"])
    assert (found.x, found.y) == ("<$a_1$>", "b")
    assert found.title == "2 clusters by <$a_1$> and b"
    assert sorted(found.points.tolist()) == sorted(records.tolist())
    np.testing.assert_array_equal(found.marks, centroids)
    assert found.legend == ["0  low <$a_1$>, low b", "1  high <$a_1$>, high b"]


def test_two_columns_that_separate_as_well_are_preferred(draw):
    """The clusters differ in the second and fourth of five columns."""
    centroids = np.full((3, 5), 5.0)
    centroids[:, 1] = [1, 9, 5]
    centroids[:, 3] = [2, 2, 8]
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(3), 200)
    records = centroids[labels] + rng.normal(0, 0.5, (600, 5))
    box = Box([0] * 5, [10] * 5, columns=list("abcde"))
    found = draw(records, labels, centroids, box)
    assert {found.x, found.y} == {"b", "d"}
    assert found.title.startswith("3 clusters by the two columns that separate them")
    assert "100% of the records are nearest to the centroid" in found.title
    assert "(100% along the two best directions)" in found.title


def test_directions_are_drawn_where_no_two_columns_separate(draw):
    """Each of four clusters differs in all six columns, by little."""
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]) * 1.0
    centroids = np.repeat(signs, [3, 3], axis=1) + 5
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(4), 240)  # records so few are drawn in their order
    records = centroids[labels] + rng.normal(0, 1, (960, 6))
    box = Box([0] * 6, [10] * 6, columns=list("abcdef"))
    found = draw(records, labels, centroids, box)
    assert "along the two directions of all columns" in found.title
    share, other = (int(n) for n in re.findall(r"(\d+)%", found.title))
    assert share > 88
    assert other < 75
    named = set(re.findall(r"\w(?= \()", f"{found.x} {found.y}"))
    assert len(named & set("abc")) >= 2
    assert len(named & set("def")) >= 2
    # Points and centroids are in one projection, in which lengths are not stretched.
    offsets = found.points - found.marks[labels]
    assert offsets.std(axis=0) == pytest.approx([0.2, 0.2], rel=0.1)
    again = draw(records, labels, centroids, box)
    np.testing.assert_array_equal(found.points, again.points)


def test_categories_and_dates_have_ticks_of_the_users_form(draw):
    table = {
        "age": [30.0, 70, 8],
        "days": [3.0, 40, 2],
        "ward": WARDS,
        "admitted": [date(2022, 1, 1)] * 3,
    }
    centroids = VISITS.encode(table)
    labels = np.repeat(np.arange(3), 100)
    records = centroids[labels]
    records[:, 0] += np.random.default_rng(0).normal(0, 20, 300)
    found = draw(records, labels, centroids, VISITS)
    assert found.x == "ward"
    assert found.ticks[0] == list(WARDS)
    assert np.abs(found.points[:, 0] - np.repeat(np.arange(3), 100)).max() <= 0.3
    assert len(np.unique(found.points[:, 0])) == 300  # none hides another
    np.testing.assert_array_equal(found.marks[:, 0], [0, 1, 2])

    two = TableDomain([VISITS.declared[1], VISITS.declared[3]])
    days = [date(2020, 5, 1), date(2023, 5, 1)]
    points = two.encode({"days": [2, 500], "admitted": days})
    found = draw(points, np.array([0, 1]), points, two)
    assert (found.x, found.y) == ("days", "admitted")
    assert {"2", "5", "10", "500"} <= set(found.ticks[0])
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d", text) for text in found.ticks[1])


def test_one_column_is_a_histogram(draw):
    centroids = np.array([[2.0], [8.0]])
    records, labels = groups(centroids, 100, 0.5)
    found = draw(records, labels, centroids, Box([0], [10], columns=["age"]))
    assert (found.x, found.y) == ("age", "records")
    assert found.title == "2 clusters by age"
    wards = TableDomain([VISITS.declared[2]])
    points = wards.encode({"ward": WARDS})
    found = draw(points, np.arange(3), points, wards)
    assert found.ticks[0] == list(WARDS)


def test_directions_of_a_sphere_are_among_their_records(draw):
    """Centroids have length 1, and the mean of many directions is shorter."""
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.normal(size=(40, 40)))
    labels = np.repeat(np.arange(4), 200)
    records = 10 * rotation[labels] + rng.normal(0, 1.5, (800, 40))
    found = draw(records, labels, rotation[:4], Sphere(40))
    assert found.x == "a direction of all 40 columns together"
    assert found.legend == [f"{j}  cluster {j}" for j in range(4)]
    for cluster in range(4):
        center = found.points[labels == cluster].mean(axis=0)
        assert np.linalg.norm(center - found.marks[cluster]) < 0.03


def test_a_legend_has_the_largest_clusters(draw):
    centroids = np.stack([np.arange(30.0), np.zeros(30)], axis=1)
    box = Box([0, -1], [30, 1], columns=["x", "y"])
    counts = np.arange(30.0) + 100
    found = draw(centroids, np.arange(30), centroids, box, counts=counts)
    assert len(found.legend) == 13
    assert found.legend[0].startswith("29  high x")
    assert found.legend[-1] == "and 18 smaller clusters;\ncolours repeat"


@pytest.mark.parametrize("n", [0, 1, 50])
def test_one_cluster_and_records_on_a_line_have_a_view(draw, n):
    records = np.outer(np.arange(n), np.ones(4))
    centroids = np.full((1, 4), 3.0)
    box = Box([-99] * 4, [99] * 4, columns=list("abcd"))
    found = draw(records, np.zeros(n, dtype=np.int64), centroids, box)
    assert found.title.startswith("1 cluster ")
    assert len(found.points) == n
    two = np.concatenate([centroids, centroids])
    labels = np.arange(n) % 2
    assert len(draw(records, labels, two, box).points) == n
