"""What a client agrees to, its operator's policy file, and that an app can only tighten it."""

import json
import math
from dataclasses import fields, replace
from functools import cache
from unittest import mock

import pytest
from documents import TRUSTS, make_document
from hypothesis import given, settings
from hypothesis import strategies as st
from vertical_runs import make_run as make_vertical

from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.data.domain import Ball, Box
from flower_kmeans.data.table_domain import Category, Number, TableDomain
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.protocol.policy import DOMAIN_EXAMPLES, ClientPolicy, tightest
from flower_kmeans.protocol.roster import write_members
from flower_kmeans.protocol.run import Horizontal, Run, open_run
from flower_kmeans.protocol.trust import TRUST_MODELS
from flower_kmeans.protocol.wire import encode

pytestmark = pytest.mark.claim("threat-model", "put-these-settings-into")

OPEN = ClientPolicy.for_simulation()
IN_MEMORY = ClientPolicy(in_memory=True)
BOX = Box([0, 0], [1, 1])
NAMED = Box([0, 0], [1, 1], columns=["age", "income"])


def make_run(
    trust="oblivious-server",
    *,
    domain=BOX,
    budget=None,
    rounds=3,
    shared_by=1,
    **changes,
):
    """Return a small run over a domain, with fields of its document changed."""
    if trust == "plain":
        return open_run(encode(make_document(trust, **changes)))
    budget = budget or PrivacyBudget(1.0, 1e-6)
    total = "n_persons" if budget.protects_persons else "n_records"
    options = {total: 1000, "n_rounds": rounds}
    if budget.protects_clients:
        options["n_clients"] = 10
    if shared_by != 1:
        options["max_clients_per_person"] = shared_by
    algorithm = FastLloydAlgorithm.planned(2, domain, budget, **options)
    return open_run(encode(make_document(trust, algorithm=algorithm, **changes)))


def accepts(policy, run):
    return policy.objection(run) is None


def test_the_defaults_are_strict():
    policy = ClientPolicy()
    assert policy.trusts == ("oblivious-server", "distributed-noise", "clients-only")
    assert (policy.max_epsilon, policy.max_delta, policy.min_clients) == (1.0, 1e-6, 3)
    assert (policy.max_total_epsilon, policy.max_total_delta) == (10.0, 1e-6)
    assert (policy.max_attempts, policy.max_colluders, policy.copy_records) == (
        3,
        1,
        True,
    )
    for trust in TRUSTS:
        assert accepts(IN_MEMORY, make_run(trust)) == (trust in policy.trusts)
        assert not accepts(IN_MEMORY, make_run(trust, min_clients=2))


@pytest.mark.claim("threat-model", "without-state-dir-private")
def test_private_work_needs_a_ledger_or_in_memory(tmp_path):
    assert not ClientPolicy().allows_private_work
    assert IN_MEMORY.allows_private_work
    assert ClientPolicy(state_dir=tmp_path).allows_private_work


@pytest.mark.parametrize(
    ("epsilon", "delta", "accepted"),
    [
        (1.0, 1e-6, True),
        (1.0 + 1e-12, 1e-6, False),
        (1.0, 1.1e-6, False),
        (0.1, 0.0, True),
        (math.inf, 0.0, False),
        (math.nan, 0.0, False),
        (0.5, math.nan, False),
        (None, None, False),
    ],
)
def test_guarantees_beyond_the_limits_are_refused(epsilon, delta, accepted):
    """Plans whose epsilon is NaN cannot be made."""
    with mock.patch.object(Run, "guarantee", (epsilon, delta)):
        assert accepts(IN_MEMORY, make_run()) is accepted


@pytest.mark.claim("protocol", "max-attempts-attempts-at")
@pytest.mark.parametrize(
    "trust", ["oblivious-server", "distributed-noise", "clients-only"]
)
def test_attempts_do_not_raise_the_guarantee(trust):
    """One sum of a round opens, so what is compared is the plan's own epsilon."""
    run = make_run(trust, max_attempts=3)
    epsilon, delta = run.guarantee
    for factor, accepted in ((1.0, True), (1 - 1e-6, False)):
        limits = {"max_epsilon": epsilon * factor, "max_delta": delta}
        assert accepts(replace(IN_MEMORY, **limits), run) is accepted
    assert accepts(replace(IN_MEMORY, max_epsilon=10**400), run)  # beyond all floats


def test_runs_without_privacy_need_plain_trust():
    run = make_run("plain")
    assert accepts(ClientPolicy(trusts=("plain",)), run)
    # Not only by name: a document that calls itself otherwise has no guarantee either.
    called = Run(
        make_run("trusted-server").document, run.algorithm, run.plan, run.trust
    )
    assert "private run" in ClientPolicy(trusts=("trusted-server",)).objection(called)


CLIENT_LEVEL = PrivacyBudget(1.0, 1e-6, "client")
PERSON_LEVEL = PrivacyBudget(1.0, 1e-6, "person")
LIMITS = [
    ({"max_rounds": 2}, {"rounds": 3}), ({"min_clients": 4}, {"min_clients": 3}),
    ({"max_attempts": 1}, {"max_attempts": 2}), ({"max_colluders": 2}, {"max_colluders": 1}),
    *(({"max_colluders": 2}, {"trust": t}) for t in ("clients-only", "distributed-noise")),
    ({"algorithms": ("glloyd",)}, {}), ({"algorithms": ()}, {}),
    ({"trusts": ("distributed-noise",)}, {}), ({"domain": Box([0, 0], [1, 2])}, {}),
    ({"domain": Box([0, 0], [1, 1], scale="common")}, {}), ({"domain": Ball(1, [0, 0])}, {}),
    ({"domain": Box([0], [1])}, {}), ({"columns": ("age", "income")}, {}), ({"domain": NAMED}, {}),
    *(({"columns": names}, {"domain": NAMED}) for names in (("income", "age"), ("age",))),
    ({"domain": replace(NAMED, columns=["a", "b"])}, {"domain": NAMED}),
    ({"units": ("client",)}, {}), ({"units": ("record",)}, {"budget": CLIENT_LEVEL}),
    ({"units": ("person",)}, {}), ({"units": ("person",)}, {"budget": CLIENT_LEVEL}),
    ({"units": ("record", "client")}, {"budget": PERSON_LEVEL}),
    ({"max_clients_per_person": 2}, {"budget": PERSON_LEVEL}),
    ({"max_clients_per_person": 4}, {"budget": PERSON_LEVEL, "shared_by": 3}),
    ({"units": ()}, {}), ({"max_epsilon": 0.99}, {}), ({"max_delta": 0.9e-6}, {}),
]  # fmt: skip


@pytest.mark.claim("protocol", "max-attempts-attempts-at")
@pytest.mark.parametrize(("limit", "changes"), LIMITS)
def test_each_limit_refuses_and_each_limit_of_an_app_tightens(limit, changes):
    run = make_run(**changes)
    assert accepts(OPEN, run)
    tight = replace(OPEN, **limit)
    for policy in (tight, tightest(OPEN, tight), tightest(tight, OPEN)):
        objection = policy.objection(run)
        assert next(iter(limit)).removeprefix("max_").removesuffix("s") in objection


def test_pins_and_names_accept_their_own():
    run = make_run()
    for limit in ({"domain": Box([0, 0], [1, 1])}, {"algorithms": ("fastlloyd",)}):
        assert accepts(replace(OPEN, **limit), run)
    # A run without privacy protects no unit, and where nothing is protected nobody can
    # collude.
    assert accepts(replace(OPEN, units=("client",), max_colluders=9), make_run("plain"))
    assert accepts(replace(OPEN, max_colluders=9), make_run("trusted-server"))
    # A run that protects records assumes nothing on persons.
    assert accepts(replace(OPEN, max_clients_per_person=9), run)
    for shared_by in (2, 3):
        persons = make_run(budget=PERSON_LEVEL, shared_by=shared_by)
        own = replace(OPEN, units=("person",), max_clients_per_person=2)
        assert accepts(own, persons)
    declared = TableDomain([Number("x", 0, 1), Number("y", 0, 1)], persons=True)
    pinned = replace(OPEN, units=("record", "person"), domain=declared)
    box = Box([0, 0], [1, 1], columns=["x", "y"])
    assert accepts(pinned, make_run(domain=box, budget=PERSON_LEVEL))
    assert not accepts(pinned, make_run(domain=box))
    named = make_run(domain=NAMED)
    for limit in (
        {"domain": Box([0, 0], [1, 1])},
        {"columns": ["age", "income"]},
        {"domain": NAMED},
        {"domain": Box([0, 0], [1, 1]), "columns": ("age", "income")},
    ):
        assert accepts(replace(OPEN, **limit), named)
    assert replace(OPEN, domain=NAMED).columns == ("age", "income")


@pytest.mark.claim("protocol", "refusal-carries-code-alone")
def test_an_objection_is_one_line_whatever_the_document_says():
    run = make_run()
    body = Horizontal(
        algorithm={"name": "x\n" * 10_000}, domain=run.document.body.domain
    )
    changed = Run(make_document(body=body), run.algorithm, run.plan, run.trust)
    objection = replace(OPEN, algorithms=("fastlloyd",)).objection(changed)
    assert "\n" not in objection
    assert len(objection) < 400


def test_keys_are_those_of_the_roster_or_relayed(tmp_path):
    *secrets, roster = write_members(tmp_path / "keys", ["a", "b", "c"])
    policy = replace(OPEN, roster_file=roster, member_key_file=secrets[1])
    identity = policy.read_identity()
    assert identity.slot == 1
    assert ClientPolicy().read_identity() is None
    pinned = make_run(keys="roster", roster=identity.roster.digest)
    for own, kind, good, bad in (
        (policy, "roster", pinned, make_run(keys="relayed")),
        (OPEN, "relayed", make_run(keys="relayed"), pinned),
    ):
        assert own.accepted_keys == (kind,)
        assert accepts(own, good)
        assert "keys" in own.objection(bad)
        # Where nothing is protected among clients there are no keys to compare.
        assert accepts(own, make_run("trusted-server"))
    for name in ("roster_file", "member_key_file"):
        with pytest.raises(ConfigurationError, match="together"):
            replace(policy, **{name: None})


@pytest.mark.parametrize("trust", TRUST_MODELS)
def test_simulated_clients_accept_what_the_simulation_asks_for(trust):
    options = {"budget": PrivacyBudget(50.0, 1e-3), "min_clients": 2, "max_attempts": 3}
    assert accepts(
        OPEN, make_vertical() if trust == "vertical" else make_run(trust, **options)
    )
    assert tightest(OPEN, OPEN) == OPEN


def test_a_policy_accepts_the_kinds_of_runs_of_its_trust_models():
    assert ClientPolicy().accepted_kinds == {"horizontal"}
    assert ClientPolicy(trusts=("vertical",)).accepted_kinds == {"vertical"}
    assert OPEN.accepted_kinds == {"horizontal", "vertical"}
    assert ClientPolicy(trusts=()).accepted_kinds == set()


# ------------------------------------------------------------------------ values, files

TYPE, VALUE = ConfigurationTypeError, ConfigurationError
EPSILONS, DELTAS = (
    ("max_epsilon", "max_total_epsilon"),
    ("max_delta", "max_total_delta"),
)
COUNTS = (
    "min_clients",
    "max_rounds",
    "max_attempts",
    "max_colluders",
    "max_clients_per_person",
    "max_opened",
)
BAD = [
    *((VALUE, name, value) for name in EPSILONS for value in (0.0, -1.0, math.nan)),
    *((VALUE, name, value) for name in DELTAS for value in (1.0, -1e-9, math.nan)),
    *((TYPE, name, value) for name in (*EPSILONS, *DELTAS) for value in ("1", None, True)),
    *((VALUE, name, 0) for name in (*COUNTS, "workers")),
    *((TYPE, name, value) for name in COUNTS for value in (2.5, "7", True)),
    *((TYPE, name, v) for name in ("trusts", "units", "algorithms") for v in ("plain", (1,), 5)),
    *((TYPE, "columns", value) for value in ("age", (1, 2))),
    *((TYPE, name, 1) for name in ("in_memory", "copy_records", "must_hold_key")),
    *((TYPE, name, 7) for name in ("roster_file", "member_key_file", "state_dir", "work_dir")),
    (TYPE, "rows_key_file", 7),
    (VALUE, "trusts", ("nobody",)), (VALUE, "units", ("household",)), (VALUE, "party", -1),
    (TYPE, "domain", [[0, 0], [1, 1]]), (TYPE, "party", True), (TYPE, "workers", 1.5),
    (VALUE, "columns", ("age", "age")),
]  # fmt: skip


@pytest.mark.parametrize(("error", "name", "value"), BAD)
def test_bad_limits_are_one_sentence(error, name, value):
    with pytest.raises(error, match=name) as caught:
        ClientPolicy(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("columns", [("age",), ("income", "age")])
def test_columns_are_those_of_the_domain(columns):
    with pytest.raises(ConfigurationError, match="columns"):
        ClientPolicy(columns=columns, domain=NAMED)


SETTINGS = {
    "trusts": ("oblivious-server", "trusted-server"), "max_epsilon": 0.5, "max_delta": 1e-7,
    "min_clients": 5, "max_rounds": 20, "max_attempts": 2, "max_colluders": 3,
    "max_clients_per_person": 2,
    "algorithms": ("fastlloyd",), "roster_file": "roster.toml",
    "member_key_file": "/etc/kmeans/a.key", "in_memory": False, "copy_records": False,
    "state_dir": "/var/lib/kmeans", "max_total_epsilon": 3, "max_total_delta": 1e-8,
    "columns": ("age", "income"), "units": ("record",), "party": 1, "max_opened": 60,
    "must_hold_key": True, "workers": 2, "work_dir": "work", "rows_key_file": "rows.key",
}  # fmt: skip
FULL = "".join(f"{name} = {json.dumps(value)}\n" for name, value in SETTINGS.items())
FULL += '[domain]\nlower = [0, -1.5]\nupper = [1, 1.5]\nscale = "common"\n'


def write(directory, text, mode=0o600):
    path = directory / "policy.toml"
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return path


def test_every_setting_is_read(tmp_path):
    policy = ClientPolicy.from_file(write(tmp_path, FULL))
    found = {field.name: getattr(policy, field.name) for field in fields(policy)}
    paths = ("roster_file", "work_dir", "rows_key_file")
    relative = {name: str(tmp_path.resolve() / SETTINGS[name]) for name in paths}
    assert found == {
        **SETTINGS, **relative, "domain": Box([0, -1.5], [1, 1.5], scale="common"),
    }  # fmt: skip
    assert ClientPolicy.from_file(write(tmp_path, "")) == ClientPolicy()
    text = "[domain]\nradius = 2\ncenter = [0, 1]\n"
    assert ClientPolicy.from_file(write(tmp_path, text)).domain == Ball(2, [0, 1])


@pytest.mark.parametrize(
    ("error", "match", "text"),
    [
        (VALUE, "max_epsilom", "max_epsilom = 1.0"),
        (VALUE, "policy", "[policy]\nmax_epsilon = 1.0"),
        (VALUE, "not TOML", "max_epsilon: 1.0"),
        (VALUE, "not TOML", "max_epsilon = 1.0\nmax_epsilon = 2.0"),
        (VALUE, "more than 32 deep", f"x = {'[' * 100_000}{']' * 100_000}"),
        *(
            (
                VALUE,
                "more than 32 deep",
                f"domain = {{lower = {'[' * n}{']' * n}, upper = [1.0]}}",
            )
            for n in (40, 100, 900)
        ),
        (VALUE, "max_epsilon", "max_epsilon = nan"),
        (TYPE, "trusts", "trusts = [[]]"),
        (VALUE, "'colluders'", "colluders = 2"),
        (VALUE, "columns", 'columns = ["a"]\n[domain]\nradius = 1\ncenter = [0, 0]'),
        (VALUE, "domain", "domain = 7"),
        (VALUE, "domain file .*box cannot be read", 'domain = "box"'),
        (VALUE, "domain", "[domain]\nlower = [0]"),
        (VALUE, "domain", "[domain]\nlower = [0]\nupper = [1]\nradius = 1"),
        (VALUE, "domain", "[domain]\nlower = [1]\nupper = [0]"),
        (VALUE, "domain", '[domain]\nlower = ["a"]\nupper = ["b"]'),
        (VALUE, "domain", "[domain]\nradius = -1\ncenter = [0]"),
    ],
)
def test_files_that_cannot_be_followed_are_refused(error, match, text, tmp_path):
    with pytest.raises(error, match=match):
        ClientPolicy.from_file(write(tmp_path, text))


AGE = '[[columns]]\nkind = "number"\nname = "age"\nlower = {}\nupper = 1\n'


@pytest.mark.claim("reference/domains", "only-rules-missing-cells")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("domain = 7", "expected the path of a domain.toml in quotes, or a table"),
        ("domain = [0, 1]", "expected the path of a domain.toml in quotes, or a table"),
        ('domain = "none.toml"', "none.toml cannot be read"),
        (
            'domain = "age.toml"',
            "Line 4, column 'age', key 'lower': Expected lower below upper",
        ),
        ("[domain]\nlower = [0]", "expected upper; got nothing"),
        ("[domain]\nlower = [0]\nuper = [1]", "got 'uper' (did you mean 'upper'?)"),
        ("[domain]\nradius = 1", "expected center; got nothing"),
        ("[domain]\nradius = 1\ncentre = [0]", "got 'centre' (did you mean 'center'?)"),
        ("[domain]", "expected lower; got nothing"),
        ("[domain]\nlower = [1]\nupper = [0]", "Expected lower below upper"),
        (
            'columns = ["a"]\n[domain]\nlower = [0, 0]\nupper = [1, 1]',
            "columns as the 2 of domain",
        ),
        ('domain = "off.toml"', "Got one that was read off records"),
    ],
)
def test_errors_of_a_domain_name_the_file_the_key_and_an_example(text, words, tmp_path):
    for name, content in (
        ("age", AGE.format(2)),
        ("off", "from_records = true\n" + AGE.format(0)),
    ):
        (tmp_path / f"{name}.toml").write_text(content, "utf-8")
        (tmp_path / f"{name}.toml").chmod(0o600)
    path = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as error:
        ClientPolicy.from_file(path)
    said = str(error.value)
    assert words in said
    assert f"the policy file {path}" in said
    assert "domain" in said.replace(words, "")
    assert said.endswith(DOMAIN_EXAMPLES)
    assert "\n" not in said


def test_a_file_that_is_not_there_or_not_the_operators_is_refused(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    paths = [(tmp_path / "none.toml", "cannot be read"), (tmp_path, "cannot be read")]
    for path, match in (*paths, (tmp_path / "binary.toml", "not TOML")):
        with pytest.raises(ConfigurationError, match=match):
            ClientPolicy.from_file(path)
    for mode in (0o620, 0o602, 0o666):
        with pytest.raises(ConfigurationError, match=f"{mode:04o}"):
            ClientPolicy.from_file(write(tmp_path, FULL, mode))
    assert ClientPolicy.from_file(write(tmp_path, FULL, 0o644)).min_clients == 5


WARDS = Category("ward", ("surgery", "medicine"))
DECLARED = TableDomain([Number("age", 0, 120), WARDS])


@pytest.mark.claim("reference/domains", "policy-pins-domain-runs")
def test_a_domain_file_pins_bounds_and_names_and_is_its_operators(tmp_path):
    path = write(tmp_path, 'domain = "domain.toml"\nin_memory = true\n')
    file = tmp_path / "domain.toml"
    file.write_text(DECLARED.to_toml(), "utf-8")
    file.chmod(0o600)
    policy = ClientPolicy.from_file(path)
    assert policy.domain == DECLARED
    assert policy.columns == ("age", "ward=surgery", "ward=medicine")
    assert accepts(policy, make_run(domain=DECLARED))
    assert tightest(policy, ClientPolicy(domain=DECLARED)).domain == DECLARED
    others = [
        Box(DECLARED.lower, DECLARED.upper),
        TableDomain([WARDS, Number("age", 0, 120)]),
        TableDomain([Number("age", 0, 130), WARDS]),
        TableDomain([Number("age", 0, 120), Category("ward", ("medicine", "surgery"))]),
        TableDomain(
            [Number("age", 0, 120), Category("ward", ("surgery", "pediatrics"))]
        ),
    ]
    assert not any(accepts(policy, make_run(domain=other)) for other in others)
    log = TableDomain([Number("x", 1, 10, "log")])
    pinned = replace(OPEN, domain=log)
    assert accepts(pinned, make_run(domain=log))
    assert not accepts(pinned, make_run(domain=TableDomain([Number("x", 1, 10)])))
    # its bounds
    assert not accepts(pinned, make_run(domain=TableDomain([Number("x", 0, 1)])))
    file.chmod(0o666)
    with pytest.raises(ConfigurationError, match="writable by its owner alone"):
        ClientPolicy.from_file(path)


@pytest.mark.claim("reference/domains", "policy-pins-domain-runs")
def test_no_policy_pins_what_was_read_off_records(tmp_path):
    read_off = TableDomain(DECLARED.declared, from_records=True)
    with pytest.raises(ConfigurationError, match="one that was read off records"):
        ClientPolicy(domain=read_off)
    (tmp_path / "domain.toml").write_text(read_off.to_toml(), "utf-8")
    (tmp_path / "domain.toml").chmod(0o600)
    with pytest.raises(ConfigurationError, match="public knowledge"):
        ClientPolicy.from_file(write(tmp_path, 'domain = "domain.toml"'))


# --------------------------------------------------------------------------- tightening


def some(*names):
    return st.lists(st.sampled_from(names), unique=True).map(tuple)


policies = st.builds(
    ClientPolicy,
    trusts=some(*TRUSTS),
    max_epsilon=st.sampled_from([0.5, 1.0, 2.0]),
    max_delta=st.sampled_from([1e-7, 1e-6]),
    min_clients=st.integers(1, 4),
    max_rounds=st.integers(1, 5),
    max_attempts=st.integers(1, 3),
    max_colluders=st.integers(1, 2),
    max_clients_per_person=st.integers(1, 2),
    copy_records=st.booleans(),
    algorithms=st.none() | some("fastlloyd", "glloyd", "lloyd"),
    domain=st.sampled_from([None, BOX, Box([0, 0], [1, 1], columns=["x", "y"])]),
    columns=st.sampled_from([None, ("x", "y")]),
    units=some("record", "client", "person"),
    in_memory=st.booleans(),
    state_dir=st.sampled_from([None, "/state"]),
    max_total_epsilon=st.sampled_from([1.0, 10.0]),
    max_total_delta=st.sampled_from([1e-7, 1e-6]),
    must_hold_key=st.booleans(),
    workers=st.none() | st.integers(1, 3),
)


@cache
def some_runs():
    return [
        make_run(
            trust, rounds=rounds, min_clients=m, budget=PrivacyBudget(epsilon, 1e-6)
        )
        for trust in TRUSTS
        for rounds, m, epsilon in ((2, 4, 0.4), (4, 4, 0.9), (2, 2, 1.5), (4, 3, 3.0))
    ] + [
        make_run("clients-only", domain=Box([0, 0], [1, 1], columns=columns))
        for columns in (["x", "y"], ["y", "x"])
    ]


@pytest.mark.claim("threat-model", "policy-app-code-can")
@settings(deadline=None)
@given(policies, policies)
def test_the_tightest_policy_accepts_what_both_accept(operator, app):
    if operator.state_dir is None and app.state_dir is not None:
        with pytest.raises(ConfigurationError, match="state_dir"):
            tightest(operator, app)
        return
    both = tightest(operator, app)
    assert tightest(operator, operator) == operator
    for run in some_runs():
        assert accepts(both, run) is (accepts(operator, run) and accepts(app, run))
    assert both.state_dir == operator.state_dir
    assert both.allows_private_work <= operator.allows_private_work
    for name, tighter in (
        ("in_memory", min), ("copy_records", min), ("must_hold_key", max),
        ("max_total_epsilon", min), ("max_total_delta", min),
    ):  # fmt: skip
        assert getattr(both, name) == tighter(
            getattr(operator, name), getattr(app, name)
        )
    workers = {operator.workers, app.workers} - {None}
    assert both.workers == (min(workers) if workers else None)


def test_each_limit_of_a_vertical_run_tightens():
    for limit in ({"max_opened": 11}, {"trusts": ("clients-only",)}, {"max_rounds": 1}):
        assert not accepts(tightest(OPEN, replace(OPEN, **limit)), make_vertical())


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("roster_file", {"roster_file": "/elsewhere", "member_key_file": "/key"}),
        (
            "member_key_file",
            {"roster_file": "/roster", "member_key_file": "/elsewhere"},
        ),
        ("state_dir", {"state_dir": "/elsewhere"}),
        ("work_dir", {"work_dir": "/elsewhere"}),
        ("rows_key_file", {"rows_key_file": "/elsewhere"}),
        ("domain", {"domain": Box([0, 0], [1, 2])}),
        ("columns", {"columns": ("y", "x")}),
        ("columns", {"domain": Box([0, 0], [1, 1], columns=["y", "x"])}),
        ("party", {"party": 1}),
    ],
)
def test_contradictions_are_refused(match, changes, tmp_path):
    operator = ClientPolicy(
        roster_file="/roster", member_key_file="/key", state_dir=tmp_path, domain=BOX, party=0,
        columns=("x", "y"),
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match=match):
        tightest(operator, ClientPolicy(**changes))
    without = replace(operator, state_dir=None, roster_file=None, member_key_file=None)
    with pytest.raises(
        ConfigurationError, match=match if "file" not in match else "_file"
    ):
        tightest(without, ClientPolicy(**changes))
    # What an app leaves out, or repeats, is the operator's; what the operator leaves
    # out, the app's
    for app in (ClientPolicy(), operator):
        kept = tightest(operator, app)
        for name in (
            "roster_file",
            "member_key_file",
            "state_dir",
            "domain",
            "columns",
            "party",
        ):
            assert getattr(kept, name) == getattr(operator, name)
    assert tightest(OPEN, replace(OPEN, party=1)).party == 1
