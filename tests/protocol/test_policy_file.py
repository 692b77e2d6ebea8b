"""The operator's policy file, and that an app can only tighten it."""

from dataclasses import fields, replace

import pytest
from documents import TRUSTS, make_document
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.algorithms.lloyd import LloydAlgorithm
from flower_kmeans.domain import Ball, Box
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.protocol.policy import ClientPolicy, tightest
from flower_kmeans.protocol.run import open_run
from flower_kmeans.protocol.wire import encode

OPEN = ClientPolicy.for_simulation()

FULL = """
trusts = ["oblivious-server", "trusted-server"]
max_epsilon = 0.5
max_delta = 1e-7
min_clients = 5
max_rounds = 20
max_attempts = 2
max_colluders = 3
algorithms = ["fastlloyd"]
roster_file = "roster.toml"
member_key_file = "/etc/kmeans/a.key"
in_memory = false
copy_records = false
state_dir = "/var/lib/kmeans"
max_total_epsilon = 3
max_total_delta = 1e-8
columns = ["age", "income"]
units = ["record"]

[domain]
lower = [0, -1.5]
upper = [1, 1.5]
scale = "common"
"""


def make_run(trust, *, rounds=3, domain=None, epsilon=1.0, **changes):
    options = {"n_records": 1000, "n_rounds": rounds}
    box = domain or Box([0, 0], [1, 1])
    if trust == "plain":
        algorithm = LloydAlgorithm(2, box, PrivacyBudget(None), **options)
    else:
        algorithm = FastLloydAlgorithm(2, box, PrivacyBudget(epsilon, 1e-6), **options)
    return open_run(encode(make_document(trust, algorithm=algorithm, **changes)))


def write(directory, text, mode=0o600):
    path = directory / "policy.toml"
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return path


def test_every_setting_is_read(tmp_path):
    policy = ClientPolicy.from_file(write(tmp_path, FULL))
    assert policy == ClientPolicy(
        trusts=("oblivious-server", "trusted-server"),
        max_epsilon=0.5,
        max_delta=1e-7,
        min_clients=5,
        max_rounds=20,
        max_attempts=2,
        max_colluders=3,
        copy_records=False,
        algorithms=("fastlloyd",),
        domain=Box([0, -1.5], [1, 1.5], scale="common"),
        roster_file=str(tmp_path.resolve() / "roster.toml"),
        member_key_file="/etc/kmeans/a.key",
        state_dir="/var/lib/kmeans",
        max_total_epsilon=3.0,
        max_total_delta=1e-8,
        columns=("age", "income"),
        units=("record",),
    )
    assert all(f"{field.name} = " in FULL or field.name == "domain" for field in fields(policy))


def test_what_a_file_leaves_out_is_strict(tmp_path):
    assert ClientPolicy.from_file(write(tmp_path, "")) == ClientPolicy()
    assert (ClientPolicy().max_total_epsilon, ClientPolicy().max_total_delta) == (10.0, 1e-6)


def test_a_pinned_ball_is_read(tmp_path):
    text = "[domain]\nradius = 2\ncenter = [0, 1]\n"
    assert ClientPolicy.from_file(write(tmp_path, text)).domain == Ball(2, [0, 1])


def test_a_pinned_domain_of_a_file_holds(tmp_path):
    run = make_run("clients-only")
    for upper, accepted in (("[1, 1]", True), ("[1, 2]", False)):
        text = f"[domain]\nlower = [0, 0]\nupper = {upper}\n"
        assert ClientPolicy.from_file(write(tmp_path, text)).accepts(run) is accepted


@pytest.mark.parametrize(
    ("error", "match", "text"),
    [
        (ConfigurationError, "max_epsilom", "max_epsilom = 1.0"),
        (ConfigurationError, "policy", "[policy]\nmax_epsilon = 1.0"),
        (ConfigurationError, "not TOML", "max_epsilon: 1.0"),
        (ConfigurationError, "not TOML", "max_epsilon = 1.0\nmax_epsilon = 2.0"),
        (ConfigurationError, "max_epsilon", "max_epsilon = nan"),
        (ConfigurationError, "max_total_epsilon", "max_total_epsilon = 0"),
        (ConfigurationError, "max_total_delta", "max_total_delta = 1"),
        (ConfigurationError, "trusts", 'trusts = ["nobody"]'),
        (ConfigurationTypeError, "trusts", "trusts = [[]]"),
        (ConfigurationTypeError, "trusts", 'trusts = "plain"'),
        (ConfigurationTypeError, "algorithms", "algorithms = [1]"),
        (ConfigurationTypeError, "algorithms", 'algorithms = "fastlloyd"'),
        (ConfigurationTypeError, "in_memory", 'in_memory = "no"'),
        (ConfigurationTypeError, "state_dir", "state_dir = 5"),
        (ConfigurationTypeError, "copy_records", "copy_records = 1"),
        (ConfigurationError, "group_key_file", 'group_key_file = "group.key"'),
        (ConfigurationError, "openings", 'openings = ["simple"]'),
        (ConfigurationError, "'colluders'", "colluders = 2"),
        (ConfigurationTypeError, "max_epsilon", "max_epsilon = true"),
        (ConfigurationTypeError, "min_clients", "min_clients = 2.5"),
        (ConfigurationError, "units", 'units = ["records"]'),
        (ConfigurationTypeError, "units", 'units = "record"'),
        (ConfigurationTypeError, "columns", 'columns = "age"'),
        (ConfigurationTypeError, "columns", "columns = [1]"),
        (ConfigurationError, "columns", 'columns = ["a"]\n[domain]\nradius = 1\ncenter = [0, 0]'),
        (ConfigurationError, "domain", 'domain = "box"'),
        (ConfigurationError, "domain", "[domain]\nlower = [0]"),
        (ConfigurationError, "domain", "[domain]\nlower = [0]\nupper = [1]\nradius = 1"),
        (ConfigurationError, "domain", "[domain]\nlower = [1]\nupper = [0]"),
        (ConfigurationError, "domain", '[domain]\nlower = ["a"]\nupper = ["b"]'),
        (ConfigurationError, "domain", "[domain]\nradius = -1\ncenter = [0]"),
    ],
)
def test_files_that_cannot_be_followed_are_refused(error, match, text, tmp_path):
    with pytest.raises(error, match=match):
        ClientPolicy.from_file(write(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            ClientPolicy.from_file(path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not TOML"):
        ClientPolicy.from_file(tmp_path / "binary.toml")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(mode, tmp_path):
    with pytest.raises(ConfigurationError, match=f"{mode:04o}"):
        ClientPolicy.from_file(write(tmp_path, FULL, mode))
    assert ClientPolicy.from_file(write(tmp_path, FULL, 0o644)).min_clients == 5


# --------------------------------------------------------------------------- tightening

_policies = st.builds(
    ClientPolicy,
    trusts=st.lists(st.sampled_from(TRUSTS), unique=True).map(tuple),
    max_epsilon=st.sampled_from([0.5, 1.0, 2.0]),
    max_delta=st.sampled_from([1e-7, 1e-6]),
    min_clients=st.integers(1, 4),
    max_rounds=st.integers(1, 5),
    max_attempts=st.integers(1, 3),
    max_colluders=st.integers(1, 2),
    copy_records=st.booleans(),
    algorithms=st.none()
    | st.lists(st.sampled_from(["fastlloyd", "glloyd", "lloyd"]), unique=True).map(tuple),
    domain=st.sampled_from([None, Box([0, 0], [1, 1]), Box([0, 0], [1, 1], columns=["x", "y"])]),
    columns=st.sampled_from([None, ("x", "y")]),
    units=st.lists(st.sampled_from(["record", "client"]), unique=True).map(tuple),
    in_memory=st.booleans(),
    state_dir=st.sampled_from([None, "/state"]),
    max_total_epsilon=st.sampled_from([1.0, 10.0]),
    max_total_delta=st.sampled_from([1e-7, 1e-6]),
)
_RUNS = [
    make_run(trust, rounds=rounds, min_clients=m, epsilon=epsilon)
    for trust in TRUSTS
    for rounds, m, epsilon in ((2, 4, 0.4), (4, 4, 0.9), (2, 2, 1.5), (4, 3, 3.0))
] + [
    make_run("clients-only", domain=Box([0, 0], [1, 1], columns=columns))
    for columns in (["x", "y"], ["y", "x"])
]


@settings(deadline=None)
@given(_policies, _policies)
def test_the_tightest_policy_accepts_what_both_accept(operator, app):
    if operator.state_dir is None and app.state_dir is not None:
        with pytest.raises(ConfigurationError, match="state_dir"):
            tightest(operator, app)
        return
    both = tightest(operator, app)
    for run in _RUNS:
        assert both.accepts(run) is (operator.accepts(run) and app.accepts(run))
    assert both.state_dir == operator.state_dir
    assert both.in_memory <= operator.in_memory
    assert both.allows_private_work <= operator.allows_private_work
    assert both.copy_records == (operator.copy_records and app.copy_records)
    assert both.max_total_epsilon == min(operator.max_total_epsilon, app.max_total_epsilon)
    assert both.max_total_delta == min(operator.max_total_delta, app.max_total_delta)


@pytest.mark.parametrize(
    "limit",
    [
        {"trusts": ("plain",)},
        {"min_clients": 9},
        {"max_rounds": 1},
        {"max_attempts": 1},
        {"max_colluders": 2},
        {"max_epsilon": 0.5},
        {"algorithms": ("glloyd",)},
        {"domain": Box([0, 0], [1, 2])},
        {"columns": ("x", "y")},
        {"units": ("client",)},
    ],
)
def test_each_limit_of_an_app_tightens(limit):
    run = make_run("oblivious-server")
    assert tightest(OPEN, OPEN).accepts(run)
    assert not tightest(OPEN, replace(OPEN, **limit)).accepts(run)
    assert not tightest(replace(OPEN, **limit), OPEN).accepts(run)


def test_a_policy_is_its_own_tightest(tmp_path):
    for policy in (ClientPolicy(), OPEN, ClientPolicy.from_file(write(tmp_path, FULL))):
        assert tightest(policy, policy) == policy


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("roster_file", {"roster_file": "/elsewhere", "member_key_file": "/key"}),
        ("member_key_file", {"roster_file": "/roster", "member_key_file": "/elsewhere"}),
        ("state_dir", {"state_dir": "/elsewhere"}),
        ("domain", {"domain": Box([0, 0], [1, 2])}),
        ("columns", {"columns": ("y", "x")}),
        ("columns", {"domain": Box([0, 0], [1, 1], columns=["y", "x"])}),
    ],
)
def test_contradictions_are_refused(match, changes, tmp_path):
    operator = ClientPolicy(
        roster_file="/roster",
        member_key_file="/key",
        state_dir=tmp_path,
        domain=Box([0, 0], [1, 1]),
        columns=("x", "y"),
    )
    with pytest.raises(ConfigurationError, match=match):
        tightest(operator, ClientPolicy(**changes))
    without = replace(operator, state_dir=None, roster_file=None, member_key_file=None)
    with pytest.raises(ConfigurationError, match=match if "file" not in match else "_file"):
        tightest(without, ClientPolicy(**changes))
    # What an app leaves out, or repeats, is the operator's.
    for app in (ClientPolicy(), operator):
        kept = tightest(operator, app)
        for name in ("roster_file", "member_key_file", "state_dir", "domain", "columns"):
            assert getattr(kept, name) == getattr(operator, name)
