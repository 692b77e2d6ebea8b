"""Pictures show every cluster, whatever the noise made of its size."""

import sys

import numpy as np
import pytest

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.picture import (
    save_elbow_picture,
    save_photo_picture,
    save_scatter_picture,
)

Image = pytest.importorskip("PIL.Image")
IMAGE = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
COLOURS = np.array([[250.0, 10.0, 10.0], [10.0, 250.0, 10.0], [-5.0, 3.0, 300.0]])


@pytest.mark.parametrize("counts", [[40.0, 8.0, -3.5], [0.0, 0.0, 0.0], [-1.0, -2.0, -3.0]])
def test_photo_before_after_and_palette(tmp_path, counts):
    path = tmp_path / "picture.png"
    labels = np.repeat([0, 1], 24)
    save_photo_picture(path, IMAGE, labels, COLOURS, np.array(counts), "after")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    shown = {tuple(pixel) for pixel in pixels.tolist()}
    assert {tuple(pixel) for pixel in IMAGE.reshape(-1, 3).tolist()} <= shown
    assert {(250, 10, 10), (10, 250, 10), (0, 3, 255)} <= shown


def test_photo_refuses_labels_of_another_image(tmp_path):
    with pytest.raises(ConfigurationError, match="48 pixels"):
        save_photo_picture(tmp_path / "p.png", IMAGE, np.zeros(5, int), COLOURS, np.ones(3), "")


def test_scatter_of_many_and_of_no_records(tmp_path):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    for n in (0, 3, 50_001):
        path = tmp_path / f"{n}.png"
        save_scatter_picture(
            path, rng.normal(size=(n, 3)), rng.integers(3, size=n), COLOURS, ("a", "b", "c")
        )
        with Image.open(path) as picture:
            assert picture.format == "PNG"


def test_scatter_needs_two_columns_and_matplotlib(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    one = np.zeros((2, 1))
    with pytest.raises(ConfigurationError, match="2 columns"):
        save_scatter_picture(tmp_path / "p.png", one, np.zeros(2, int), one, ("a",))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"flower-kmeans\[plots\]"):
        save_scatter_picture(tmp_path / "p.png", one, np.zeros(2, int), one, ("a",))


def test_an_elbow_of_any_length(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    for n in (1, 2, 30):
        path = tmp_path / f"{n}.png"
        save_elbow_picture(path, np.linspace(9.0, 0.0, n))
        with Image.open(path) as picture:
            assert picture.format == "PNG"
            assert len(picture.convert("RGB").getcolors(2**20)) > 10
    for costs in (np.empty(0), np.zeros((2, 2))):
        with pytest.raises(ConfigurationError, match="k_max"):
            save_elbow_picture(tmp_path / "p.png", costs)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"flower-kmeans\[plots\]"):
        save_elbow_picture(tmp_path / "p.png", np.ones(3))
