"""The comparison with original codes, on stubs with the interfaces of the two codes."""

import sys

import numpy as np
import pytest
from scripts import load_script

from flower_kmeans.errors import ConfigurationError, RunError

FASTLLOYD = {
    "configs/__init__.py": """
class Params:
    def __init__(self, **given):
        vars(self).update(given)
        self.max_dist = 0.5
    def calculate_iters(self):
        self.iters = 2
""",
    "configs/params.py": "",
    "data_io/__init__.py": """
import numpy as np
SCALE = 2**16
def to_int(values):
    return np.asarray(values).astype(np.int32)
def to_fixed(values):
    return to_int(np.asarray(values) * SCALE)
def unscale(values):
    return values / SCALE
def shuffle_and_split(values, clients):
    np.random.shuffle(values)
    return np.array_split(values, clients)
""",
    "parties/__init__.py": "",
    "parties/server.py": """
import numpy as np
from data_io import to_fixed, to_int
class Mechanism:
    def __init__(self, scale, seed):
        self._scale = scale
        self._rng = np.random.RandomState(seed)
class Server:
    def __init__(self, params):
        self.params = params
        self.round = 0
    def dp_setup(self, params=None):
        seed = params.seed * self.round
        self.sum_mech = Mechanism(4.0 * params.max_dist, seed)
        self.count_mech = Mechanism(4.0, seed)
        self.round += 1
    def noise(self):
        return to_int(np.array([0.7]))[0]
""",
    "utils/__init__.py": "",
    "utils/protocols.py": """
import numpy as np
from data_io import to_fixed, unscale
from parties.server import Server
def local_proto(parts, params):
    server = Server(params)
    for _ in range(params.iters):
        server.dp_setup(params)
    values = unscale(np.concatenate(parts))
    # The noise of a count is an offset, so that a test sees it.
    return to_fixed(values[: params.k] + server.noise()), 0
""",
}

FEDDP = {
    "algorithms/__init__.py": "",
    "algorithms/federated_cluster_init.py": "",
    "configs/gaussians_data_privacy.yaml": "",
    "configs/gaussians_client_privacy.yaml": "",
    "data/__init__.py": """
from types import SimpleNamespace
import numpy as np
def make_data(arguments):
    rng = np.random.default_rng(arguments.data_seed)
    records = rng.normal(size=(200, 2)).astype(np.float32)
    central = [SimpleNamespace(raw_data=(records, None))]
    server = SimpleNamespace(raw_data=(records[:40] + 0.01, None))
    return None, None, server, central
""",
    "privacy/__init__.py": """
from privacy.mechanism import MultipleMechanisms
class Gaussian:
    def __init__(self, multiplier, bound):
        self.relative_noise_stddev = multiplier
        self.bound = bound
    def add_noise(self, statistics, cohort_size, seed=None):
        return seed
class Laplace:
    def __init__(self, epsilon):
        self._epsilon = epsilon
    def add_noise(self, statistics, cohort_size, seed=None):
        return seed
def get_mechanism(arguments, name):
    return Gaussian(8.0, arguments.outer_product_clipping_bound)
""",
    "privacy/mechanism.py": """
class MultipleMechanisms:
    def __init__(self, mechanisms):
        self.mechanisms = mechanisms
    def add_noise(self, statistics, cohort_size, seed=None):
        return [each.add_noise(statistics, cohort_size, seed=seed) for each in self.mechanisms]
""",
    "pfl/__init__.py": "",
    "pfl/internal/__init__.py": "",
    "pfl/internal/ops/__init__.py": "",
    "utils/__init__.py": """
def post_evaluation(results, arguments, model, data, when, *words):
    results[when] = {"Privacy cost": (1.5, 1e-6)}
""",
    "run.py": """
import argparse
from types import SimpleNamespace
from data import make_data
from pfl.internal.ops import pytorch_ops
from privacy import Gaussian, Laplace, MultipleMechanisms, get_mechanism
from utils import post_evaluation
parser = argparse.ArgumentParser()
parser.add_argument("--data_seed", type=int)
arguments, _ = parser.parse_known_args()
arguments.datapoint_privacy = True
arguments.outer_product_clipping_bound = 11.0
arguments.num_train_clients = 4
_, _, server, central = make_data(arguments)
moments = get_mechanism(arguments, "outer_product")
pair = MultipleMechanisms([Gaussian(8.0, 11.0), Laplace(0.1)])
pair.add_noise(statistics=None, cohort_size=4, seed=7)
centers = central[0].raw_data[0][:10].copy()
centers[0, 0] = moments.bound
model = SimpleNamespace(initial_centers=centers)
weights = Laplace(0.2)
private = [moments, weights, pair, pair]
post_evaluation({}, arguments, model, central, "Clustering", private, [1] * 4, [1] * 4, True)
best = SimpleNamespace(centers=centers * 0)
post_evaluation({}, arguments, best, central, "Optimal", [], [], [], True)
""",
}


def written(folder, files):
    """Write a stub's files, and return its folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def originals(monkeypatch):
    return load_script(monkeypatch, "originals")


@pytest.fixture
def fastlloyd(tmp_path):
    return written(tmp_path / "code", FASTLLOYD)


@pytest.fixture
def feddp(tmp_path):
    return written(tmp_path / "code", FEDDP)


@pytest.mark.parametrize("name", ["fastlloyd", "feddp"])
def test_a_folder_without_the_code_is_refused_with_the_repository(
    originals, tmp_path, name
):
    repository = originals.PAPERS[name].repository
    with pytest.raises(ConfigurationError, match=repository):
        originals.suite_of(name, tmp_path, sys.executable)


def test_rows_belong_to_one_version_of_the_code(originals, fastlloyd):
    before = originals.suite_of("fastlloyd", fastlloyd, sys.executable).settings
    (fastlloyd / "configs/params.py").write_text("CHANGED = True\n")
    after = originals.suite_of("fastlloyd", fastlloyd, sys.executable).settings
    assert before != after


def test_a_failure_of_the_code_is_told_with_its_last_line(originals, fastlloyd):
    (fastlloyd / "utils/protocols.py").write_text("raise ValueError('no luck')\n")
    checkout = originals.Checkout(fastlloyd, sys.executable)
    runs = [{"epsilon": 1.0, "mended": False}]
    facts = {"n_clusters": 2, "n_clients": 2, "seed": 3, "runs": runs}
    records = {"records": np.zeros((8, 2))}
    with pytest.raises(RunError, match="no luck"):
        checkout.run("run_fastlloyd.py", records, facts)


def test_fastlloyds_runs_differ_by_what_is_mended_and_by_nothing_else(
    originals, fastlloyd
):
    checkout = originals.Checkout(fastlloyd, sys.executable)
    runs = [{"epsilon": 1.0, "mended": mended} for mended in (False, True, False)]
    facts = {"n_clusters": 2, "n_clients": 2, "seed": 3, "runs": runs}
    records = np.random.default_rng(0).uniform(-1, 0, (8, 2))
    answer = checkout.run("run_fastlloyd.py", {"records": records}, facts)
    first, mended, again = (answer.arrays[f"centroids{place}"] for place in range(3))
    # Noise of 0.7 is cut to 0 there, and rounded to 1 here.
    np.testing.assert_allclose(mended - first, 1.0)
    np.testing.assert_array_equal(again, first)
    seen = answer.facts["runs"]
    assert [each["shared"] for each in seen] == [2, 0, 2]
    # Only round 1 has the seed 0, whatever the run's seed is.
    assert [each["fixed"] for each in seen] == [1, 0, 1]
    # Two releases a round, each with a multiplier of 4: mu is 1/2.
    assert seen[0]["releases"] == [["gaussian", 4.0]] * 4
    expected = originals.epsilon_of([("gaussian", 2.0)], 1e-3)
    found = originals.epsilon_of(seen[0]["releases"], 1e-3)
    assert found == pytest.approx(expected)


def test_fastlloyds_table_has_the_code_and_ours(originals, fastlloyd, tmp_path, capsys):
    arguments = ["--data", "sklearn-iris", "--epsilons", "1", "--runs", "1"]
    arguments += ["--jobs", "1", "--output", str(tmp_path / "out")]
    arguments += ["--reference", str(fastlloyd), "--python", sys.executable]
    originals.main(["fastlloyd", *arguments])
    shown = (tmp_path / "out" / "tables.md").read_text()
    row = next(line for line in shown.splitlines() if line.startswith("| sklearn-iris"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:3] == ["sklearn-iris", "1", "1"]
    # The original's cost, and four others over it, each with a lost gain.
    assert [cell.count(";") for cell in cells[4:]] == [1] * 5
    for method in originals.FASTLLOYD_OURS:
        assert f"| {method} |" in shown


def test_feddps_runs_differ_by_the_scale_of_moments_and_the_seeds(originals, feddp):
    checkout = originals.Checkout(feddp, sys.executable)
    arguments = originals.feddp_arguments(feddp, "record", 1.0, 5)
    answers = [
        checkout.run(
            "run_feddp.py",
            {},
            {"arguments": arguments, "only_data": False, "mended": mended},
        )
        for mended in (False, True)
    ]
    bounds = [answer.arrays["centroids"][0, 0] for answer in answers]
    assert bounds == [11.0, 121.0]
    assert [answer.facts["shared"] for answer in answers] == [1, 0]
    assert [answer.facts["stated"] for answer in answers] == [1.5, 1.5]
    # Without the step that is not private.
    kinds = [kind for kind, _ in answers[0].facts["releases"]]
    assert kinds == ["gaussian", "laplace", *["gaussian", "laplace"] * 2]


def test_feddps_records_are_ours_too(originals, feddp):
    checkout = originals.Checkout(feddp, sys.executable)
    data = originals.generated(checkout, "record", 5)
    expected = np.random.default_rng(5).normal(size=(200, 2)).astype(np.float32)
    np.testing.assert_array_equal(data.records, expected)
    assert data.n_clients == 4


def test_the_moments_noise_counts_by_the_squared_bound(originals, feddp):
    checkout = originals.Checkout(feddp, sys.executable)
    options = originals.Options(1)
    rows = {
        method: originals.measure_feddp(
            originals.Task("record", method, 1.0, 5), options, checkout
        )
        for method in originals.CODES
    }
    original, mended = rows["original"], rows["mended"]
    assert original["stated"] == mended["stated"] == mended["real"]
    assert original["real"] > original["stated"]
    assert (original["shared"], mended["shared"]) == (1, 0)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_steps_have_together_the_wanted_epsilon(originals, unit):
    step = originals.step_epsilon(unit, 1.0)
    releases = []
    for kind, part in originals.RELEASES[unit]:
        multiplier = 1 / (step * part)
        if kind == "gaussian":
            mu = originals.mu_of_budget(step * part, originals.FEDDP_DELTA)
            multiplier = 1 / mu
        releases.append((kind, multiplier))
    joint = originals.epsilon_of(releases, originals.FEDDP_DELTA)
    assert joint == pytest.approx(1.0, rel=1e-3)


def test_tables_compare_mean_costs(originals):
    fixed = {"kmeans": 1.0, "one_cluster": 5.0, "stated": 1.0, "real": 1.0}
    fixed |= {"pairs": 2, "shared": 2, "fixed": 1}
    costs = {"original": (2.0, 4.0), "mended": (6.0, 6.0), "FastLloyd": (1.5, 1.5)}
    rows = [
        {"data": "s", "epsilon": 1.0, "method": method, "run": run, "cost": cost}
        | fixed
        for method, of_runs in costs.items()
        for run, cost in enumerate(of_runs)
    ]
    last = originals.cost_table(rows).splitlines()[-1]
    assert last == "| s | 1 | 2 | 1 | 3; 0.500 | 2.000; 1.250 | 0.500; 0.125 |"
    summary = originals.summary_table(rows).splitlines()[-1]
    assert summary == "| FastLloyd | 0.500 | 1 of 1 | 0.250 | 1 of 1 |"
    noise = originals.noise_table(rows).splitlines()
    assert noise[-1] == "| s | mended | 2 | 1 | 1 | 4 of 4 | 2 |"


def test_noise_of_counts_gives_noise_of_sums_where_both_have_one_seed():
    """A step of FedDP-KMeans' code draws both from NumPy's global generator."""
    np.random.seed(7)  # noqa: NPY002
    of_counts = np.random.laplace(0.0, 2.0, 10)  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    of_sums = np.random.normal(0.0, 9.0, 10)  # noqa: NPY002
    below = 0.5 * np.exp(of_counts / 2)
    uniform = np.where(of_counts < 0, below, 1 - 0.5 * np.exp(-of_counts / 2))
    found = []
    for first, second in (2 * uniform - 1).reshape(-1, 2):
        square = first**2 + second**2
        # The polar method draws another pair otherwise.
        if 0 < square < 1:
            scale = 9.0 * np.sqrt(-2 * np.log(square) / square)
            found += [scale * second, scale * first]
    assert len(found) >= 4
    np.testing.assert_allclose(of_sums[: len(found)], found)
