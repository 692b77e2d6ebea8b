"""The accounting of tensorflow-privacy, live, beside ours.

It is imported from the folder that the variable TENSORFLOW_PRIVACY names, which holds
the wheel alone (docs/guarantees/accounting.md has the command). `.ci/run` makes this
folder. A folder without the package is an error, not a skip.
"""

import json
import os
import re
import runpy
import sys
from importlib import import_module
from importlib.metadata import distributions, version
from pathlib import Path

import dp_accounting
import pytest
from packaging.requirements import Requirement
from pages import ROOT, blocks
from rows import ONLY_A_SERVERS_NOISE, ROWS, TRUSTS, make, runs

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.privacy.calibration import (
    delta_of_mu,
    epsilon_of_mu,
    mu_of_budget,
)
from flower_kmeans.privacy.plan import PrivacyPlan, calibrate
from flower_kmeans.privacy.release import Release
from flower_kmeans.strategies import VerticalKMeans

pytestmark = pytest.mark.claim("guarantees", "1", "2")

FOLDER = "TENSORFLOW_PRIVACY"
if not os.environ.get(FOLDER):
    pytest.skip(
        f"{FOLDER} names no folder with tensorflow-privacy (docs/guarantees/accounting.md)",
        allow_module_level=True,
    )
PACKAGE = "tensorflow_privacy.privacy.analysis"
PAGE = ROOT / "docs/guarantees/accounting.md"
MAKER = Path(__file__).with_name("make_tensorflow_privacy_table.py")
TABLE = MAKER.with_name("tensorflow_privacy_table.json")
EVENTS = {
    "gaussian": dp_accounting.GaussianDpEvent,
    "laplace": dp_accounting.LaplaceDpEvent,
}
BUDGETS = [(0.1, 1e-6), (1.0, 1e-5), (1.0, 1e-9), (8.0, 1e-6)]
ROUNDS = [(1, 0.8), (2, 12.0), (7, 2.0), (7, 60.0)]
DELTAS = [1e-5, 1e-9]
# Its losses are on a grid of steps of 1e-4, and err upwards.
PLD = {"rel": 1e-5, "abs": 1e-5}


@pytest.fixture(scope="module", autouse=True)
def on_the_path():
    """Put the wheel on the path, without the import of TensorFlow."""
    folder = os.environ[FOLDER]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(sys, "skip_tf_privacy_import", True, raising=False)
        found = import_module("tensorflow_privacy")
        assert Path(found.__file__).is_relative_to(Path(folder).resolve())
        yield


@pytest.fixture(scope="module")
def gdp(on_the_path):
    """Return its accounting in mu."""
    return import_module(f"{PACKAGE}.gdp_accountant")


@pytest.fixture(scope="module")
def dp_sgd(on_the_path):
    """Return its accounting of rounds."""
    return import_module(f"{PACKAGE}.compute_dp_sgd_privacy_lib")


def plan_of(multiplier, n_rounds, budget):
    """Return a plan of equal Gaussian releases, one a round."""
    release = Release("sums", "gaussian", "l2", multiplier, ("sums",))
    return PrivacyPlan(budget, None, ((release,),) * n_rounds)


def composed(accountant, plan):
    """Return an accountant with the releases of a plan."""
    for release in plan.releases:
        for bound, number in release.parts or ((1.0, 1),):
            event = EVENTS[release.mechanism](release.noise_multiplier / bound)
            accountant.compose(event, number)
    return accountant


def test_it_runs_without_tensorflow(gdp, dp_sgd):
    assert "tensorflow" not in sys.modules
    assert import_module("tensorflow_privacy").__version__ == "0.9.0"


def test_what_it_requires_does_not_fit_beside_flwr(on_the_path):
    """Therefore it is no extra: once this fails, it can be one."""
    (found,) = distributions(name="tensorflow-privacy", path=[os.environ[FOLDER]])
    required = {}
    for text in found.requires:
        requirement = Requirement(text)
        required[requirement.name] = requirement.specifier
    for name in ("dp-accounting", "packaging"):
        assert not required[name].contains(version(name)), name


@pytest.mark.parametrize("mu", [0.05, 0.236, 1.0, 4.0])
def test_epsilon_and_delta_of_mu_agree(gdp, mu):
    for delta in DELTAS:
        theirs = gdp.eps_from_mu(mu, delta)
        assert epsilon_of_mu(mu, delta) == pytest.approx(theirs, rel=1e-6)
    for epsilon in (0.0, mu / 2, mu, 2 * mu):
        theirs = gdp.delta_eps_mu(epsilon, mu)
        assert delta_of_mu(mu, epsilon) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_mu_of_a_budget_costs_the_budget(gdp, epsilon, delta):
    mu = mu_of_budget(epsilon, delta)
    assert gdp.eps_from_mu(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert gdp.delta_eps_mu(epsilon, mu) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize(("n_rounds", "multiplier"), ROUNDS)
def test_gaussian_rounds_agree(dp_sgd, n_rounds, multiplier, delta):
    plan = plan_of(multiplier, n_rounds, PrivacyBudget(1.0, delta))

    def theirs(accountant):
        return dp_sgd._compute_dp_sgd_example_privacy(
            n_rounds,
            multiplier,
            delta,
            used_microbatching=False,
            accountant_type=dp_sgd.AccountantType[accountant],
        )

    assert plan.epsilon() == pytest.approx(theirs("PLD"), **PLD)
    # Renyi accounting is an upper bound, and not a sharp one.
    assert plan.epsilon() < theirs("RDP") < 1.5 * plan.epsilon()


def test_its_statement_has_our_epsilon(dp_sgd):
    """The public function, which prints three decimals."""
    text = dp_sgd.compute_dp_sgd_privacy_statement(
        number_of_examples=1000,
        batch_size=1000,
        num_epochs=5,
        noise_multiplier=4.0,
        delta=1e-6,
        used_microbatching=False,
        accountant_type=dp_sgd.AccountantType.PLD,
    )
    (found,) = re.findall(r"once per epoch: +([0-9.]+)", text)
    plan = plan_of(4.0, 5, PrivacyBudget(1.0, 1e-6))
    assert found == f"{plan.epsilon():.3f}"


@pytest.mark.parametrize("size", [2, 5])
def test_groups_cost_no_more_than_by_its_bound(dp_sgd, size):
    """Ours is exact for Gaussian noise, and theirs is the bound for any mechanism."""
    plan = plan_of(20.0, 5, PrivacyBudget(1.0, 1e-6))
    theirs = dp_sgd._compute_dp_sgd_user_privacy(
        5, 20.0, 1e-6, size, used_microbatching=False
    )
    assert plan.epsilon() < plan.group(size) <= theirs


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_its_calibration_needs_a_little_more_noise(epsilon, delta, capsys):
    """Its search is over Renyi accounting, ours over the exact curve."""
    search = import_module(f"{PACKAGE}.compute_noise_from_budget_lib").compute_noise
    n_rounds = 7
    rounds = ((Release("sums", "gaussian", "l2", 1.0, ("sums",)),),) * n_rounds
    plan = calibrate(PrivacyBudget(epsilon, delta), rounds, 1000)
    ours = plan.releases[0].noise_multiplier
    theirs = search(1000, 1000, epsilon, n_rounds, delta, ours / 2)
    capsys.readouterr()
    assert ours < theirs < 1.15 * ours


def strategy_of(name, epsilon, delta):
    """Return the strategy of a row, or one of columns."""
    budget = {"epsilon": epsilon, "delta": delta}
    if name == "VerticalKMeans":
        box = Box([0.0, 0.0], [1.0, 2.0])
        privacy = PrivacyBudget(**budget)
        return VerticalKMeans(2, box, privacy, 1000, parties=[1, 1], n_rounds=3)
    trust = next(trust for trust in TRUSTS if runs(name, trust))
    return make(name, trust, **budget)


# At epsilon 8 a composition has ten times as many values.
@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(1.0, 1e-6), pytest.param(8.0, 1e-5, marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize("name", ["VerticalKMeans", *ROWS])
def test_every_strategy_costs_its_budget(gdp, dp_sgd, name, epsilon, delta):
    plan = strategy_of(name, epsilon, delta).plan
    numerical = composed(dp_sgd.AccountantType.PLD.get_accountant(), plan)
    renyi = composed(dp_sgd.AccountantType.RDP.get_accountant(), plan)
    if name in ONLY_A_SERVERS_NOISE:
        # Few Laplace releases spend their pure epsilons, where the curve is steep: its
        # grid of losses decides there.
        assert plan.mu is None
        assert numerical.get_epsilon(delta) == pytest.approx(plan.epsilon(), rel=1e-3)
        assert numerical.get_delta(epsilon * (1 + 1e-3)) <= delta
        assert renyi.get_epsilon(delta) >= plan.epsilon() * (1 - 1e-3)
        return
    assert gdp.eps_from_mu(plan.mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert gdp.delta_eps_mu(epsilon, plan.mu) == pytest.approx(delta, rel=1e-6)
    assert numerical.get_epsilon(delta) == pytest.approx(epsilon, **PLD)
    assert numerical.get_delta(epsilon) == pytest.approx(delta, rel=1e-4)
    assert 1.05 * epsilon < renyi.get_epsilon(delta) < 1.1 * epsilon


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_noise_of_another_scale_would_be_seen(dp_sgd, factor):
    """These comparisons can fail."""
    plan = strategy_of("GLloyd", 1.0, 1e-6).plan
    accountant = dp_sgd.AccountantType.PLD.get_accountant()
    for release in plan.releases:
        multiplier = release.noise_multiplier * factor
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
    assert accountant.get_epsilon(1e-6) != pytest.approx(1.0, rel=0.25)


@pytest.mark.thorough  # 42 compositions
def test_the_committed_table_comes_out_again():
    """It was made beside TensorFlow, with another version of dp-accounting."""
    made = runpy.run_path(str(MAKER))["table"]()
    committed = json.loads(TABLE.read_text("utf-8"))
    for part in ("epsilon_from_mu", "delta_from_mu", "rounds"):
        assert len(made[part]) == len(committed[part]) > 15
        for new, old in zip(made[part], committed[part], strict=True):
            assert new == pytest.approx(old, rel=1e-7)


def test_the_code_of_the_page_runs(capsys, monkeypatch):
    """The folder of the page is a name; here it is the one of the variable."""
    (code,) = [
        block.text
        for block in blocks(PAGE)
        if block.language == "python" and "tensorflow_privacy" in block.text
    ]
    name = '"tensorflow-privacy"'
    assert code.count(name) == 1
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(code.replace(name, repr(os.environ[FOLDER])), {})  # noqa: S102
    epsilon, delta = capsys.readouterr().out.split()
    assert float(epsilon) == pytest.approx(1.0, rel=1e-6)
    assert float(delta) == pytest.approx(1e-6, rel=1e-3)
