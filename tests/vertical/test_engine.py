"""What is computed under encryption, how exactly, and with which SEAL."""

import gc
import sys
import types
import weakref

import numpy as np
import pytest
from soft import soft_members
from vertical_parties import ALONE, JOINT, MODULI, keys_of

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.vertical import engine as engines
from flower_kmeans.vertical import signs
from flower_kmeans.vertical.engine import Chunk, SealEngine, require_tenseal
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.ring import SLOTS

# The slope is largest on borders, and the error of a fresh column enters with its own
# weight in the comparison: 1 at most, where two centroids differ in that column alone.
TILTED = np.array([[-0.3, 0.1], [0.4, -0.2]])
FOREIGN = np.array([[0.3, -0.5], [0.3, 0.5]])
BOX = np.ones(2)


def exact(X, C, half_widths, radius=None):
    """Counts and sums of the polynomial's memberships; with a radius sums of offsets."""
    A = soft_members(X, C, half_widths, radius)
    centre = np.zeros_like(C) if radius is None else C
    sums = np.stack([A[:, j] @ (X - c) for j, c in enumerate(centre)])
    return np.concatenate([A.sum(0)[:, None], sums], 1)


def errors(keys, columns, X, C, half_widths=BOX, **radius):
    """By how much opened counts and sums are off; columns but the first are encrypted."""
    columns = [keys.engine.column(column) for column in columns]
    if radius:
        radius = {"radius": radius["radius"], "squares": columns[1:], "norms": [1.0]}
        columns = columns[:1]
    words = keys.engine.chunk(Chunk(X[:, :1], columns, C, half_widths, **radius))
    return keys.open(words) - exact(X, C, half_widths, radius.get("radius"))


def in_units(e, radius=2**0.5):
    """An error of counts and sums, in the units of the noise: at two columns without a radius."""
    return np.sqrt((e[:, 0] ** 2).sum() / 4 + (e[:, 1:] ** 2).sum() / (2 * radius) ** 2)


def on_border(C):
    """Records on the border between two centroids."""
    if C is FOREIGN:
        return np.tile([1.0, 0.0], (SLOTS, 1))
    y = np.random.default_rng(7).uniform(-1, 1, SLOTS)
    w, b = signs.pair(*C, BOX)
    return np.stack([np.clip(-(y * w[1] + b) / w[0], -1, 1), y], 1)


# ---------------------------------------------------------------------- how exactly


# By default the tests of errors below have the real polynomials of the sign.
@pytest.mark.parametrize(("k", "d", "n"), [(2, 2, 5000), (3, 3, 2000)])
def test_counts_and_sums_are_the_polynomials(is_real, k, d, n):
    """The same input gives the same words: no restart makes holders open a second value."""
    rng, keys = np.random.default_rng(8), keys_of(1, moduli(k))
    X, C = rng.uniform(-1, 1, (n, d)), rng.uniform(-0.7, 0.7, (k, d))
    columns = [keys.engine.column(keys.encrypt_alone(X[:, q], q)) for q in range(1, d)]
    chunk = Chunk(X[:, :1], columns, C, np.ones(d))
    words = keys.engine.chunk(chunk)
    assert np.abs(keys.open(words) - exact(X, C, np.ones(d))).max() < 1e-3
    if k == 2:
        assert (keys.engine.chunk(chunk) == words).all()


@pytest.mark.claim("guarantees", "31")
@pytest.mark.claim("threat-model", "V12")
@pytest.mark.parametrize(
    ("keys", "encrypt", "allowed"),
    [
        # 6 deviations, twice
        pytest.param(ALONE, ALONE.encrypt_alone, 0.005, id="two parties"),
        pytest.param(  # columns under a public key are less exact
            *(JOINT, JOINT.encrypt, 0.039 * np.sqrt(3)),
            id="three holders",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.parametrize(
    ("number", "C"),
    [
        pytest.param(0, TILTED, id="tilted", marks=pytest.mark.thorough),
        pytest.param(1, FOREIGN, id="foreign"),
    ],
)
def test_parties_stay_within_the_error_that_rho_allows_for_on_borders(
    keys, encrypt, allowed, number, C
):
    """rho allows for these (docs/guarantees, Theorem 31)."""
    X = on_border(C)
    found = 2 * in_units(errors(keys, [encrypt(X[:, 1], number)], X, C))
    assert found < allowed, (
        f"The error of counts and sums is {found}; rho pays for {allowed}."
    )


NARROW = np.array([1.0, 0.01])  # half widths


def test_a_narrow_column_is_as_exact_as_a_wide_one():
    """Centroids differ in it alone, so its error would be multiplied by 1 over its half width."""
    C, X = FOREIGN * NARROW, np.tile([1.0, 0.0], (SLOTS, 1))
    scaled = signs.scaled_columns(X[:, 1:], NARROW[1:])[:, 0]
    found = in_units(errors(ALONE, [ALONE.encrypt(scaled, 11)], X, C, NARROW))
    assert found < 0.02, f"The error of counts and sums is {found}; 0.02 is allowed."


@pytest.mark.thorough
def test_a_narrow_column_is_exact_away_from_borders():
    C, X = FOREIGN * NARROW, np.random.default_rng(5).uniform(-1, 1, (400, 2)) * NARROW
    e = errors(ALONE, [ALONE.encrypt(X[:, 1] / 0.01, 12)], X, C, NARROW)
    assert np.abs(e).max() < 1e-3


@pytest.mark.claim("guarantees", "31")
def test_a_radius_stays_within_the_error_with_every_record_on_it(is_real):
    """Fresh errors of the column and of its square both enter (sums: tests of the workers)."""
    keys, c, radius = keys_of(1, moduli(2, radius=True)), 0.5, 0.45
    X, C = np.tile([0.0, c + radius], (SLOTS, 1)), np.array([[0.0, c], [0.9, -0.9]])
    values = X[:, 1], signs.scaled_squares(X[:, 1:], BOX[1:])
    columns = [keys.encrypt_alone(each, number) for number, each in enumerate(values)]
    found = 2 * in_units(errors(keys, columns, X, C, radius=radius), radius)
    assert found < 0.005, (
        f"The error of counts and sums is {found}; rho pays for 0.005."
    )


@pytest.mark.claim("threat-model", "V19")
@pytest.mark.parametrize(
    ("largest", "C"),
    [
        pytest.param(2.0**-20, TILTED, id="almost zero"),
        # no weight but 0, and halves of every record
        pytest.param(0.0, np.tile([0.2, 0.1], (2, 1)), id="equal centroids"),
    ],
)
def test_columns_of_zeros_do_not_stop_the_evaluation(is_real, largest, C):
    """SEAL refuses products that are 0 for all to see: a failure that depends on records."""
    x, keys = np.zeros((50, 2)), keys_of(1, moduli(2))
    x[3, 0] = largest
    column = keys.encrypt_alone(x[:, 1], 5)
    assert np.abs(errors(keys, [column], x, C)).max() < 1e-3


# ---------------------------------------------------------------------- attacks


@pytest.mark.claim("threat-model", "V2")
def test_c1_shows_which_data_were_used_unless_zero_is_added():
    """A key holder could confirm a guess of party 0's records, in spite of noise in c0."""
    x, own = np.random.default_rng(3).uniform(-1, 1, (2, SLOTS))
    engine, neighbour = ALONE.engine, own.copy()
    column = engine.column(ALONE.encrypt_alone(x, 7))
    neighbour[7] *= -1

    def c1(values):
        return engine.words(
            engine.rescale(engine.times(column, values, MODULI.levels))
        )[1]

    assert (c1(own) == c1(own)).all()
    assert (c1(own) != c1(neighbour)).any()


@pytest.mark.claim("threat-model", "V11")
def test_words_that_are_not_residues_never_reach_seal():
    words = ALONE.encrypt_alone(np.zeros(1))
    bad = words.copy()
    bad[1, 2, 5] = MODULI.data[2]
    for hostile in (
        bad,
        words[:1],
        words[:, 1:],
        words[..., 1:],
        words.astype(np.int64),
    ):
        with pytest.raises(MessageError, match="Expected words") as caught:
            ALONE.engine.column(hostile)
        assert str(int(MODULI.data[2])) not in str(caught.value)
    with pytest.raises(MessageError, match="Expected words"):
        SealEngine(MODULI, ALONE.relin[:-1])


# ---------------------------------------------------------------------- memory


def test_no_ciphertext_outlives_its_chunk(is_real, monkeypatch):
    """Without the garbage collector: it counts objects and not their bytes."""
    keys = keys_of(1, moduli(2))
    living, made, engine = weakref.WeakSet(), [], keys.engine
    seal = engines._seal()

    def counted(context):
        c = seal.Ciphertext(context)
        living.add(c)
        made.append(1)
        return c

    recorded = types.SimpleNamespace(Plaintext=seal.Plaintext, Ciphertext=counted)
    monkeypatch.setattr(engine, "_seal", recorded)
    X = np.random.default_rng(9).uniform(-1, 1, (20, 2))
    column = engine.column(keys.encrypt_alone(X[:, 1], 8))
    gc.disable()
    try:
        engine.chunk(Chunk(X[:, :1], [column], TILTED, BOX))
        assert set(living) == {column}
        assert len(made) > (100 if is_real else 10)
    finally:
        gc.enable()


# ---------------------------------------------------------------------- TenSEAL


@pytest.fixture
def fresh():
    """Neither a context nor the result of a check is kept."""
    for cache in (require_tenseal, engines._context):
        cache.cache_clear()
    yield
    for cache in (require_tenseal, engines._context):
        cache.cache_clear()


def test_the_installed_tenseal_computes_as_expected(fresh):
    require_tenseal()


def test_a_broken_tenseal_says_why(fresh, monkeypatch, tmp_path):
    (tmp_path / "tenseal").mkdir()
    text = "raise OSError('libseal.so: invalid ELF header')"
    (tmp_path / "tenseal" / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "tenseal"]:
        monkeypatch.delitem(sys.modules, name)
    words = r"cannot be imported \(OSError: libseal.so: invalid ELF header\): install it anew"
    with pytest.raises(ConfigurationError, match=words):
        require_tenseal()


def test_a_missing_tenseal_is_one_clear_error(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    for use in (require_tenseal, lambda: SealEngine(MODULI, ALONE.relin)):
        platforms = r"Linux \(x86-64 .*, aarch64 .*\), macOS .*Windows \(x86-64\)"
        with pytest.raises(
            ConfigurationError, match=rf"flower-kmeans\[vertical\].*{platforms}"
        ):
            use()


@pytest.mark.parametrize("what", ["layout of files", "order of words"])
def test_another_seal_is_one_clear_error(fresh, monkeypatch, what):
    truth = SealEngine.words
    if what == "layout of files":
        monkeypatch.setattr(engines, "_MAGIC", bytes.fromhex("5ea1100303000000"))
    else:
        monkeypatch.setattr(
            SealEngine, "words", lambda self, c: truth(self, c)[:, ::-1]
        )
    with pytest.raises(
        ConfigurationError, match=r"tenseal 0\.3\.\d+ does not.*Install tenseal"
    ):
        require_tenseal()
