"""The limit holds whatever run an adversary chooses after which result; and it can be reached."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from ledger_workers import DELTA, answer_of
from scipy.signal import fftconvolve
from scipy.special import ndtr

from flower_kmeans.errors import BudgetError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import delta_of_mu, mu_of_budget
from flower_kmeans.privacy.filter import Charge, Price, charge_of, price_of
from flower_kmeans.privacy.ledger import Ledger, LifetimeLimit
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.release import Release

EPSILON = 4.0
LIMIT = LifetimeLimit(EPSILON, DELTA)
COSTS = [1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 1, 1.3, 2, 4, 8, 20, 60, 150, 500]
COUNTS = (1, 2, 4, 14, 60)


def gaussian(mu):
    return Release("all", "gaussian", "l2", 1 / mu, ("all",))


def laplace(cost, n=1):
    return [Release("all", "laplace", "l1", 1 / cost, ("all",))] * n


def laplace_mu(cost):
    return charge_of(laplace(cost)).mu


# --------------------------------------------------------------------------- domination


def laplace_tradeoff(alpha, cost):
    """Return the least type II error of a test of level alpha (Dong, Roth & Su 2022, prop. A.6)."""
    if alpha < mpmath.exp(-cost) / 2:
        return 1 - mpmath.exp(cost) * alpha
    if alpha <= mpmath.mpf(1) / 2:
        return mpmath.exp(-cost) / (4 * alpha)
    return mpmath.exp(-cost) * (1 - alpha)


@pytest.mark.claim("guarantees", "4")
@pytest.mark.default_cases("1e-06", "0.2", "1", "8", "150")
@pytest.mark.parametrize("cost", COSTS)
def test_a_laplace_release_reveals_no_more_than_its_gaussian_one(cost):
    mu = laplace_mu(cost)
    assert mu <= 1.25332 * cost * (1 + 1e-9)
    assert mu <= 2 * math.sqrt(cost)
    with mpmath.workdps(60 + int((mu + 9) ** 2 / 4.6)):  # tails beside 1
        level = mpmath.mpf(mu)
        # Between the places where the pieces of the Laplace curve meet, and beyond.
        inner = [level * i / 20 for i in range(21)]
        outer = [
            place + x for place in (-mu - 9, level) for x in np.linspace(0, mu + 9, 20)
        ]
        for x in inner + outer:
            alpha = mpmath.ncdf(-x)
            assert laplace_tradeoff(alpha, mpmath.mpf(cost)) >= mpmath.ncdf(x - level)
        # No smaller level would do: the curves meet in the middle.
        less = level * (1 - mpmath.mpf(10) ** -14)
        alpha = mpmath.ncdf(-less / 2)
        assert laplace_tradeoff(alpha, mpmath.mpf(cost)) < mpmath.ncdf(-less / 2)


@pytest.mark.claim("guarantees", "4")
@pytest.mark.parametrize(
    "parts",
    [
        [0.5, 0.5],
        [0.1] * 10,
        [3.0, 1e-3],
        [1e-7, 2.0, 0.4],
        [40.0, 60.0],
        [1e-13, 1e-13],
        [2e5, 1e-3],
    ],
)
def test_a_release_of_many_words_reveals_no_more_than_one_of_one_word(parts):
    """An l1 change may be spread over words: squares of levels are superadditive."""
    assert (
        math.fsum(laplace_mu(c) ** 2 for c in parts)
        <= laplace_mu(math.fsum(parts)) ** 2
    )


# --------------------------------------------------------------------------- sums


@pytest.mark.claim("guarantees", "6")
def test_charges_are_exact_and_rounded_upward():
    third = gaussian(1 / 3.0)
    one = charge_of([third])
    exact = (1 / Fraction(third.noise_multiplier)) ** 2 * 2**96
    assert exact <= one.square < exact + 1
    many = charge_of([third] * 1000)
    assert many == one * 1000 == sum([one] * 1000, Charge())
    assert many - one == charge_of([third] * 999)
    assert math.isclose(many.mu, math.sqrt(1000) / 3, rel_tol=1e-15)
    mixed = charge_of([third, *laplace(0.3, 2)])
    assert mixed.n_gaussian == 1
    assert mixed.pure >= 2 * Fraction(0.3) * 2**96 * (1 - Fraction(1, 2**50))
    # Words that are accounted one by one are charged one by one.
    parts = Release("all", "laplace", "linf", 0.5, ("all",), ((0.25, 3), (1.0, 2)))
    assert charge_of([parts]) == charge_of([*laplace(0.5, 3), *laplace(2.0, 2)])


def test_the_limit_is_met_to_the_last_bit():
    mu = mu_of_budget(EPSILON, DELTA)
    assert Charge(math.floor(Fraction(mu) ** 2 * 2**96), 0, 1).fits(EPSILON, DELTA)
    assert not Charge(math.floor(Fraction(mu) ** 2 * 2**96) + 1, 0, 1).fits(
        EPSILON, DELTA
    )
    pure = Charge(1 << 200, 4 << 96, 0)
    assert pure.fits(EPSILON, 0.0)
    assert not (pure + Charge(0, 1, 0)).fits(EPSILON, 0.0)
    assert not (pure + Charge(0, 0, 1)).fits(EPSILON, DELTA)
    assert not charge_of([gaussian(1e-9)]).fits(EPSILON, 0.0)
    assert Charge().fits(0.0, 0.0)
    assert pure.fits(math.inf, 0.0)


def test_epsilon_and_delta_are_those_of_the_smaller_sum():
    both = charge_of([gaussian(0.5), *laplace(0.2)])
    mu = math.hypot(0.5, laplace_mu(0.2))
    assert both.delta(1.0) == pytest.approx(delta_of_mu(mu, 1.0), rel=1e-9)
    assert both.delta(both.epsilon(DELTA)) == pytest.approx(DELTA, rel=1e-6)
    assert both.epsilon(0.0) == math.inf
    few, many = charge_of(laplace(0.2)), charge_of(laplace(0.1, 100))
    assert few.epsilon(DELTA) == few.epsilon(0.0) == pytest.approx(0.2, rel=1e-12)
    assert few.delta(0.21) == 0
    assert many.epsilon(DELTA) < many.epsilon(0.0) == pytest.approx(10, rel=1e-12)
    assert Charge().epsilon(0.0) == 0


def test_prices_of_runs_for_clients_count_a_record_of_a_client_that_stays():
    rounds = [[gaussian(0.5), *laplace(0.25)], [gaussian(0.1)]]
    assert price_of("record", rounds) == Price(
        "record", tuple({"record": charge_of(releases)} for releases in rounds)
    )
    first, _ = price_of("client", rounds).rounds
    assert first["client"] == charge_of(rounds[0])
    assert first["record"].mu == pytest.approx(
        math.hypot(1.0, laplace_mu(0.5)), rel=1e-12
    )
    first, second = price_of("client", rounds, [[0.5, 1.0], [2.0]]).rounds
    assert first["record"].mu == pytest.approx(
        math.hypot(0.25, laplace_mu(0.25)), rel=1e-12
    )
    assert second["record"].mu == pytest.approx(0.2, rel=1e-12)
    whole = price_of("client", rounds).whole
    assert whole["client"] == charge_of([*rounds[0], *rounds[1]])


@pytest.mark.parametrize("moves", [None, [[0.5, 1.0], [0.25]]])
def test_a_person_of_a_client_is_charged_both_ends_of_the_clip(moves):
    rounds = [[gaussian(0.5), *laplace(0.25)], [gaussian(0.1)]]
    first, second = price_of("client", rounds, moves).rounds
    assert first["person"] == charge_of(rounds[0], [2.0, 2.0])
    assert second["person"] == charge_of(rounds[1], [2.0])


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_a_person_of_several_clients_is_charged_for_each(clients):
    rounds = [[gaussian(0.5), gaussian(0.25)], [gaussian(0.1)]]
    price = price_of("client", rounds)
    of_all = price.for_persons_at(clients, 1)
    for charges, alone, releases in zip(
        of_all.rounds, price.rounds, rounds, strict=True
    ):
        exact = charge_of(releases, [2.0 * clients] * len(releases))
        assert charges["person"].mu == pytest.approx(exact.mu, rel=1e-12)
        assert charges["person"].square >= exact.square
        assert charges["client"] == alone["client"]
        assert charges["record"] == alone["record"]


def test_a_group_covers_laplace_noise_at_so_many_times_the_distance():
    releases = laplace(0.25)
    alone = price_of("client", [releases]).for_persons_at(3, 1).whole["person"]
    exact = charge_of(releases, [6.0] * len(releases))
    assert alone.square >= exact.square
    assert alone.pure >= exact.pure
    assert alone.epsilon(0.0) == pytest.approx(1.5, rel=1e-9)


@pytest.mark.parametrize(
    ("clients", "assumed", "group"), [(2, 2, 1), (1, 3, 1), (3, 2, 2), (6, 2, 3)]
)
def test_a_run_for_persons_is_charged_for_the_clients_that_it_does_not_assume(
    clients, assumed, group
):
    price = price_of("person", [[gaussian(0.5)]])
    changed = price.for_persons_at(clients, assumed).whole
    assert changed["person"].mu == pytest.approx(0.5 * group, rel=1e-12)
    assert changed["record"] == price.whole["record"]


def test_a_run_for_persons_charges_a_record_what_it_charges_a_person():
    rounds = [[gaussian(0.5), *laplace(0.25)], [gaussian(0.1)]]
    price = price_of("person", rounds)
    for charges, releases in zip(price.rounds, rounds, strict=True):
        assert charges == dict.fromkeys(("person", "record"), charge_of(releases))
    assert list(price.whole) == ["person", "record"]


def test_a_run_for_records_bounds_nothing_for_a_person():
    price = price_of("record", [[gaussian(0.5)]])
    assert list(price.whole) == list(price.rounds[0]) == ["record"]


# -------------------------------------------------------------------------- adversaries

STEP = 2.0**-10
SIZE = 2**14  # privacy losses up to 16
GRID = STEP * np.arange(-SIZE, SIZE + 1)


def distribution(cdf):
    """Return the probabilities of a continuous privacy loss, rounded to the grid."""
    edges = np.concatenate([[-np.inf], GRID[:-1] + STEP / 2, [np.inf]])
    return np.diff(cdf(edges))


def gaussian_loss(mu):
    if mu < 1e-6:
        return laplace_loss(0.0, 1)
    return distribution(lambda loss: ndtr((loss - mu * mu / 2) / mu))


def laplace_loss(cost, n):
    """Of n releases: an atom at either end, and exponential between; the cost is on the grid."""
    one = distribution(lambda loss: np.exp((np.clip(loss, -cost, cost) - cost) / 2) / 2)
    for place, mass in ((cost, 0.5), (-cost, math.exp(-cost) / 2)):
        one[SIZE + round(place / STEP)] += mass
    total = one
    for _ in range(n - 1):
        total = np.maximum(fftconvolve(total, one, mode="same"), 0)
    return total


def ahead(value, loss):
    """Return what a release makes of the adversary's gain: its mean over the release's result."""
    # value[i] is the gain where epsilon less the loss so far is GRID[i].
    padded = np.concatenate([np.full(SIZE, value[0]), value, np.full(SIZE, value[-1])])
    return fftconvolve(padded, loss, mode="same")[SIZE:-SIZE]


# (1 - e^(epsilon - loss))+ where nothing follows
END = -np.expm1(np.minimum(GRID, 0.0))


def delta_at(value):
    return float(np.interp(EPSILON, GRID, value))


def largest(accepted, most=EPSILON):
    """Return the largest scale that is accepted."""
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    return low


def options(fits):
    """Return the losses of six kinds of runs, each as large as is accepted."""
    found = [gaussian_loss(largest(lambda mu: fits([gaussian(mu)])))]
    for n in COUNTS:
        cost = STEP * (largest(lambda cost, n=n: fits(laplace(cost, n))) // STEP)
        found.append(laplace_loss(cost, n))
    return found


FIRST = {
    "gaussian": ([gaussian(0.3 * mu_of_budget(EPSILON, DELTA))]),
    "laplace": laplace(0.125, 14),
    # After this one a Gaussian run fits by one of the sums, and larger Laplace runs by
    # the other.
    "either": laplace(0.25, 2),
    "pure": laplace(0.375, 4),
}


def loss_of(releases):
    if releases[0].mechanism == "gaussian":
        return gaussian_loss(releases[0].cost)
    return laplace_loss(releases[0].cost, len(releases))


@pytest.mark.claim("guarantees", "3", "5")
@pytest.mark.default_cases("either", "pure")
@pytest.mark.parametrize("first", FIRST)
def test_runs_chosen_after_a_result_keep_the_ledgers_limit(first, tmp_path):
    with Ledger(tmp_path / "state") as ledger:
        ledger.charge(answer_of(1), price_of("record", [FIRST[first]]), LIMIT, 0, b"")

        def fits(releases):
            try:
                ledger.require_room(
                    answer_of(2).run, price_of("record", [releases]), LIMIT
                )
            except BudgetError:
                return False
            return True

        chosen = options(fits)
    best = np.maximum.reduce([ahead(END, loss) for loss in chosen])
    assert delta_at(ahead(best, loss_of(FIRST[first]))) <= DELTA * 1.002


@pytest.mark.claim("guarantees", "3")
def test_three_runs_chosen_one_after_the_other_keep_the_limit():
    """Each from six mechanisms, for every result of those before."""
    square = mu_of_budget(EPSILON, DELTA) ** 2

    def within(part):
        return options(lambda releases: charge_of(releases).mu ** 2 <= part * square)

    value = np.maximum.reduce([END, *(ahead(END, loss) for loss in within(0.4))])
    value = np.maximum.reduce([value, *(ahead(value, loss) for loss in within(0.4))])
    for first in within(0.2):
        assert delta_at(ahead(value, first)) <= DELTA * 1.002


def fixed_epsilon(releases):
    return PrivacyPlan(PrivacyBudget(EPSILON, DELTA), None, (releases,)).epsilon()


@pytest.mark.claim("guarantees", "3")
@pytest.mark.thorough
def test_what_one_fixed_composition_allows_exceeds_the_limit():
    """The same adversary, where runs are composed as if they had been fixed beforehand."""
    first = FIRST["gaussian"]
    chosen = options(lambda more: fixed_epsilon([*first, *more]) <= EPSILON)
    alone = [delta_at(ahead(ahead(END, loss), loss_of(first))) for loss in chosen]
    assert max(alone) <= DELTA * 1.02
    best = np.maximum.reduce([ahead(END, loss) for loss in chosen])
    assert delta_at(ahead(best, loss_of(first))) > 2 * DELTA


@pytest.mark.claim("guarantees", "3")
def test_a_sequence_of_gaussian_runs_reaches_the_limit(tmp_path):
    """Runs that differ in scale, as many as the ledger accepts."""
    value, run, scale = END, 0, 0.5
    with Ledger(tmp_path / "state") as ledger:
        while scale > 0.05:
            price = price_of("record", [[gaussian(scale)]])
            try:
                ledger.charge(answer_of(run + 1), price, LIMIT, 0, b"")
            except BudgetError:  # no room is left for one of this size
                scale *= 0.8
                continue
            value, run = ahead(value, gaussian_loss(scale)), run + 1
    assert run > 3
    assert 0.9 * DELTA <= delta_at(value) <= 1.002 * DELTA
