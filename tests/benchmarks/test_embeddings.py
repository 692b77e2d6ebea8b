"""The script on embeddings: its vectors, its figures, and its smallest run."""

import numpy as np
import pytest
from scripts import load_script


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "embeddings")


def test_vectors_have_length_one_a_common_part_and_clusters(script):
    vectors = script.made(3000, 24)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)
    np.testing.assert_array_equal(vectors, script.made(3000, 24))
    assert 0.2 < np.linalg.norm(vectors.mean(axis=0)) < 0.8
    best = script.reference(vectors, 20, n_starts=1)
    assert best.kmeans < 0.95 * best.one_cluster


def test_the_cost_is_that_of_the_nearest_centroids(script, tmp_path):
    vectors = script.made(200, 5)
    centroids = vectors[:7]
    distances = np.square(vectors[:, None] - centroids).sum(axis=2)
    expected = distances.min(axis=1).mean()
    assert script.cost(vectors, centroids) == pytest.approx(expected)
    np.save(tmp_path / "own.npy", 3 * vectors)
    np.testing.assert_allclose(script.load("own.npy", tmp_path), vectors)


def test_it_prints_a_row_for_each_set_epsilon_and_strategy(script, capsys):
    chosen = ["--data", "made_600_6", "--clusters", "3", "--epsilons", "1", "8"]
    script.main([*chosen, "--runs", "2", "--starts", "1"])
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == 9
    assert [row.split("|")[5].strip() for row in rows] == [*script.ALGORITHMS] * 2
    for row in rows:
        lost, error = map(float, row.split("|")[6].split("±"))
        assert -1 < lost < 3
        assert 0 <= error < 2


@pytest.mark.parametrize("chosen", [["--client"], ["--trust", "trusted-server"]])
def test_it_prints_time_and_memory(script, capsys, chosen):
    script.main(["--data", "made_2000_6", "--clusters", "3", *chosen])
    line = capsys.readouterr().out.splitlines()[-1]
    seconds, megabytes = line.rpartition(": ")[2].split(", ")
    assert float(seconds.removesuffix(" s")) >= 0
    assert float(megabytes.removesuffix(" MB")) >= 0
