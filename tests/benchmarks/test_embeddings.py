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
    best = script.yardsticks(vectors, 20, n_starts=1)
    assert best.kmeans < 0.95 * best.one_cluster


def test_the_cost_is_that_of_the_nearest_centroids(script, tmp_path):
    vectors = script.made(200, 5)
    centroids = vectors[:7]
    distances = np.square(vectors[:, None] - centroids).sum(axis=2)
    expected = distances.min(axis=1).mean()
    assert script.cost(vectors, centroids) == pytest.approx(expected)
    np.save(tmp_path / "own.npy", 3 * vectors)
    own = script.load("own.npy", tmp_path)
    np.testing.assert_allclose(own.records, vectors)
    assert own.n_clusters == 20


@pytest.mark.parametrize(
    ("name", "d", "k"), [("digits", 64, 10), ("sklearn-breast", 30, 2)]
)
def test_records_of_other_sets_fill_the_ball(script, tmp_path, name, d, k):
    found = script.load(name, tmp_path)
    assert found.records.shape[1] == d
    assert found.n_clusters == k
    assert np.linalg.norm(found.records, axis=1).max() == pytest.approx(1)


def test_it_prints_a_row_for_each_set_epsilon_and_strategy(script, capsys):
    chosen = ["--data", "made_600_6", "--clusters", "3", "--epsilons", "1", "8"]
    script.main([*chosen, "--runs", "2", "--starts", "1"])
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == 10
    assert [row.split("|")[5].strip() for row in rows] == [*script.ALGORITHMS] * 2
    for row in rows:
        lost, error = map(float, row.split("|")[6].split("±"))
        assert -1 < lost < 3
        assert 0 <= error < 2


def test_it_measures_boxes_groups_of_columns_and_the_floor(script, capsys, monkeypatch):
    chosen = ["--data", "made_600_40", "--clusters", "3", "--epsilons", "40"]
    chosen += ["--runs", "1", "--starts", "1", "--algorithms", "SynopsisKMeans"]
    planned = []

    class Planned(script.SynopsisAlgorithm):
        @classmethod
        def planned(cls, n_clusters, domain, *rest, **options):
            found = script.SynopsisAlgorithm.planned(
                n_clusters, domain, *rest, **options
            )
            planned.append((type(domain), found.schedule.n_groups))
            return found

    monkeypatch.setitem(script.ALGORITHMS, "SynopsisKMeans", Planned)
    for extra in ([], ["--groups", "16"], ["--box", "0.5"]):
        script.main([*chosen, *extra, "--floor"])
        row = capsys.readouterr().out.splitlines()[-1].split("|")
        ratio, over_floor = (float(row[place].split("±")[0]) for place in (7, 8))
        assert 0.9 < over_floor <= ratio + 0.001 < 2
    assert planned == [(script.Ball, 0), (script.Ball, 16), (script.Box, 0)]


def test_seeded_noise_is_the_same_in_every_run_and_of_the_planned_size(script):
    vectors = script.made(600, 6)
    costs = {
        script.run(script.SynopsisAlgorithm, vectors, 3, 1.0, seed, None, True)
        for seed in (1, 1, 2)
    }
    assert len(costs) == 2
    algorithm = script.SynopsisAlgorithm.planned(
        3, script.domain_of(40), script.PrivacyBudget(1.0, 1e-6), n_records=10**5
    )
    noise = script.seeded_noise(algorithm, 1)(1)
    (planned,) = algorithm.noise_of(1).values()
    assert noise[:40].std() == pytest.approx(planned, rel=0.5)
    assert noise[40:].std() == pytest.approx(planned / 2**0.5, rel=0.15)


@pytest.mark.parametrize("chosen", [["--client"], ["--trust", "trusted-server"]])
def test_it_prints_time_and_memory(script, capsys, chosen):
    script.main(["--data", "made_2000_6", "--clusters", "3", *chosen])
    line = capsys.readouterr().out.splitlines()[-1]
    seconds, megabytes = line.rpartition(": ")[2].split(", ")
    assert float(seconds.removesuffix(" s")) >= 0
    assert float(megabytes.removesuffix(" MB")) >= 0
