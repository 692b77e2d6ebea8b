"""Pictures show every cluster, whatever the noise made of its size."""

import sys

import numpy as np
import pytest
from report_pages import finished

from flower_kmeans import Box, Clustering
from flower_kmeans.cli.inputs import InputRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.report.picture import save_photo_picture, save_scatter_picture

Image = pytest.importorskip("PIL.Image")
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


def test_pictures_of_few_and_many_values(tmp_path):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    for n in (0, 3, 50_001):
        labels, path = rng.integers(3, size=n), tmp_path / f"{n}.png"
        save_scatter_picture(
            path, rng.normal(size=(n, 3)), labels, COLOURS, ("a", "b", "c")
        )
        assert is_png(path)


def test_a_table_is_drawn_by_power_cells(tmp_path):
    pytest.importorskip("matplotlib")
    records = np.column_stack([np.linspace(0, 10, 60), np.zeros(60)])
    source = InputRecords("x.csv", records, ("a", "b"), 60)
    report = finished("Lloyd", "plain").report
    colours = {}
    for weight in (0.0, 60.0, 200.0):
        clustering = Clustering(
            np.array([[0.0, 0.0], [10.0, 0.0]]),
            np.array([30.0, 30.0]),
            Box([0, 0], [10, 10]),
            report,
            weights=np.array([weight, 0.0]),
        )
        assert source.draw(tmp_path / "p.png", clustering, "")
        with Image.open(tmp_path / "p.png") as picture:
            pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
        colours[weight] = [
            (pixels == c).all(axis=1).sum() for c in ((31, 119, 180), (255, 127, 14))
        ]
    assert colours[0.0][0] == pytest.approx(colours[0.0][1], rel=0.3)
    assert colours[60.0][0] > 2 * colours[60.0][1] > 0
    assert colours[200.0][1] == 0


def test_what_cannot_be_drawn_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    path, one, none = tmp_path / "p.png", np.zeros((2, 1)), np.zeros(5, int)
    with pytest.raises(ConfigurationError, match="48 pixels"):
        save_photo_picture(path, IMAGE, none, COLOURS, np.ones(3), "")
    with pytest.raises(ConfigurationError, match="2 columns"):
        save_scatter_picture(path, one, none[:2], one, ("a",))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"flower-kmeans\[plots\]"):
        save_scatter_picture(path, one, none[:2], one, ("a",))
