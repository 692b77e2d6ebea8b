"""What a client agrees to, before anything is computed or sent."""

import math
from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
from documents import make_document

from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.domain import Ball, Box
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.protocol.policy import ClientPolicy, tightest
from flower_kmeans.protocol.roster import write_members
from flower_kmeans.protocol.run import Horizontal, Run, open_run
from flower_kmeans.protocol.trust import TRUST_MODELS
from flower_kmeans.protocol.wire import encode

OPEN = ClientPolicy.for_simulation()
IN_MEMORY = ClientPolicy(in_memory=True)
BOX = Box([0, 0], [1, 1])
NAMED = Box([0, 0], [1, 1], columns=["age", "income"])


def make_run(trust="oblivious-server", *, domain=BOX, budget=None, rounds=3, **changes):
    """Return a small run over a domain, with fields of its document changed."""
    if trust == "plain":
        return open_run(encode(make_document(trust, **changes)))
    budget = budget or PrivacyBudget(1.0, 1e-6)
    algorithm = FastLloydAlgorithm(2, domain, budget, n_records=1000, n_rounds=rounds)
    return open_run(encode(make_document(trust, algorithm=algorithm, **changes)))


def test_the_defaults_are_strict():
    policy = ClientPolicy()
    assert policy.trusts == ("oblivious-server", "distributed-noise", "clients-only")
    assert (policy.max_epsilon, policy.max_delta, policy.min_clients) == (1.0, 1e-6, 3)
    assert (policy.max_total_epsilon, policy.max_total_delta) == (10.0, 1e-6)
    assert (policy.max_attempts, policy.max_colluders) == (3, 1)
    assert policy.copy_records
    assert not policy.in_memory
    assert policy.state_dir is None
    assert not policy.allows_private_work
    for trust in ("trusted-server", "plain"):
        assert not IN_MEMORY.accepts(make_run(trust))
    for trust in policy.trusts:
        assert IN_MEMORY.accepts(make_run(trust))
        assert not IN_MEMORY.accepts(make_run(trust, min_clients=2))


def test_private_work_needs_a_ledger_or_in_memory(tmp_path):
    assert not ClientPolicy().allows_private_work
    assert IN_MEMORY.allows_private_work
    assert ClientPolicy(state_dir=tmp_path).allows_private_work


class Announced(Run):
    """A run with any guarantee: plans whose epsilon is NaN cannot be made."""

    @cached_property
    def guarantee(self):
        return self.__dict__["announced"]


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
    run = make_run()
    announced = Announced(run.document, run.algorithm, run.plan, run.trust)
    announced.__dict__["announced"] = (epsilon, delta)
    assert IN_MEMORY.accepts(announced) is accepted


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise", "clients-only"])
def test_attempts_do_not_raise_the_guarantee(trust):
    """One sum of a round opens, so what is compared is the plan's own epsilon."""
    run = make_run(trust, max_attempts=3)
    epsilon, delta = run.guarantee
    for factor, accepted in ((1.0, True), (1 - 1e-6, False)):
        limits = {"max_epsilon": epsilon * factor, "max_delta": delta}
        assert replace(IN_MEMORY, **limits).accepts(run) is accepted


def test_runs_without_privacy_need_plain_trust():
    run = make_run("plain")
    assert ClientPolicy(trusts=("plain",)).accepts(run)
    # Not only by name: a document that calls itself otherwise has no guarantee either.
    called = Run(make_run("trusted-server").document, run.algorithm, run.plan, run.trust)
    assert "private run" in ClientPolicy(trusts=("trusted-server",)).objection(called)


CLIENTS = PrivacyBudget(1.0, 1e-6, "client")


@pytest.mark.parametrize(
    ("limit", "changes"),
    [
        ({"max_rounds": 2}, {"rounds": 3}),
        ({"min_clients": 4}, {"min_clients": 3}),
        ({"max_attempts": 1}, {"max_attempts": 2}),
        ({"max_colluders": 2}, {"max_colluders": 1}),
        ({"max_colluders": 2}, {"trust": "clients-only"}),
        ({"max_colluders": 2}, {"trust": "distributed-noise"}),
        ({"algorithms": ("glloyd",)}, {}),
        ({"algorithms": ()}, {}),
        ({"trusts": ("distributed-noise",)}, {}),
        ({"domain": Box([0, 0], [1, 2])}, {}),
        ({"domain": Box([0, 0], [1, 1], scale="common")}, {}),
        ({"domain": Ball(1, [0, 0])}, {}),
        ({"domain": Box([0], [1])}, {}),
        ({"columns": ("age", "income")}, {}),
        ({"columns": ("income", "age")}, {"domain": NAMED}),
        ({"columns": ("age",)}, {"domain": NAMED}),
        ({"domain": replace(NAMED, columns=["a", "b"])}, {"domain": NAMED}),
        ({"domain": NAMED}, {}),
        ({"units": ("client",)}, {}),
        ({"units": ()}, {}),
        ({"max_epsilon": 0.99}, {}),
        ({"max_delta": 0.9e-6}, {}),
    ],
)
def test_each_limit_refuses(limit, changes):
    run = make_run(**changes)
    assert OPEN.accepts(run)
    objection = replace(OPEN, **limit).objection(run)
    assert objection is not None
    assert next(iter(limit)).removeprefix("max_").removesuffix("s") in objection


def test_protected_clients_are_a_unit_of_their_own():
    run = open_run(
        encode(
            make_document(
                algorithm=FastLloydAlgorithm(
                    2, BOX, CLIENTS, n_records=1000, n_rounds=3, n_clients=10
                )
            )
        )
    )
    assert replace(OPEN, units=("client",)).accepts(run)
    assert "'client'" in replace(OPEN, units=("record",)).objection(run)


@pytest.mark.parametrize("limit", [{"domain": BOX}, {"columns": ("age", "income")}])
def test_a_domain_that_cannot_be_read_is_not_the_pinned_one(limit):
    run = make_run()
    body = Horizontal(algorithm=run.document.body.algorithm, domain={})
    changed = Run(make_document(body=body), run.algorithm, run.plan, run.trust)
    assert "something else" in replace(OPEN, **limit).objection(changed)


def test_pinned_domains_and_named_algorithms_accept_their_own():
    run = make_run()
    assert replace(OPEN, domain=Box([0, 0], [1, 1])).accepts(run)
    assert replace(OPEN, algorithms=("fastlloyd",)).accepts(run)
    assert replace(OPEN, units=("record",)).accepts(run)
    # A run without privacy protects no unit, and where nothing is protected nobody can collude.
    assert replace(OPEN, units=("client",), max_colluders=9).accepts(make_run("plain"))
    assert replace(OPEN, max_colluders=9).accepts(make_run("trusted-server"))


def test_pinned_columns_accept_runs_that_name_them():
    named = make_run(domain=NAMED)
    for pinned in (
        OPEN,
        replace(OPEN, domain=Box([0, 0], [1, 1])),
        replace(OPEN, columns=["age", "income"]),
        replace(OPEN, domain=NAMED),
        replace(OPEN, domain=Box([0, 0], [1, 1]), columns=("age", "income")),
    ):
        assert pinned.accepts(named)
    assert replace(OPEN, domain=NAMED).columns == ("age", "income")


def test_an_objection_is_one_line_whatever_the_document_says():
    run = make_run()
    body = Horizontal(algorithm={"name": "x\n" * 10_000}, domain=run.document.body.domain)
    changed = Run(make_document(body=body), run.algorithm, run.plan, run.trust)
    objection = replace(OPEN, algorithms=("fastlloyd",)).objection(changed)
    assert "\n" not in objection
    assert len(objection) < 400


# --------------------------------------------------------------------------- keys


@pytest.fixture
def pinned(tmp_path):
    """A policy with a roster of three, and the roster's digest."""
    *secrets, roster = write_members(tmp_path / "keys", ["a", "b", "c"])
    policy = replace(OPEN, roster_file=roster, member_key_file=secrets[1])
    return policy, policy.read_identity().roster.digest


def test_without_a_roster_keys_are_relayed(pinned):
    _, digest = pinned
    assert OPEN.accepted_keys == ("relayed",)
    assert OPEN.accepts(make_run(keys="relayed"))
    assert "keys" in OPEN.objection(make_run(keys="roster", roster=digest))


def test_with_a_roster_keys_are_pinned(pinned):
    policy, digest = pinned
    assert policy.accepted_keys == ("roster",)
    assert policy.accepts(make_run(keys="roster", roster=digest))
    assert "keys" in policy.objection(make_run(keys="relayed"))
    # Where nothing is protected among clients there are no keys to compare.
    assert policy.accepts(make_run("trusted-server"))
    assert policy.accepts(make_run("plain"))


def test_an_identity_needs_both_files(pinned):
    policy, _ = pinned
    assert policy.read_identity().slot == 1
    assert ClientPolicy().read_identity() is None
    for name in ("roster_file", "member_key_file"):
        with pytest.raises(ConfigurationError, match="together"):
            replace(policy, **{name: None})


def test_neither_policies_nor_identities_show_a_secret(pinned):
    policy, _ = pinned
    identity = policy.read_identity()
    shown = repr(policy) + repr(identity) + str(identity) + repr(identity.roster)
    assert repr(identity.secret) not in shown
    assert identity.secret.hex() not in shown
    assert "slot=1" in shown


# --------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("error", "name", "values"),
    [
        (ConfigurationError, "trusts", {"trusts": ("nobody",)}),
        (ConfigurationError, "max_epsilon", {"max_epsilon": 0.0}),
        (ConfigurationError, "max_epsilon", {"max_epsilon": float("nan")}),
        (ConfigurationError, "max_delta", {"max_delta": 1.0}),
        (ConfigurationError, "max_delta", {"max_delta": -1e-9}),
        (ConfigurationError, "max_total_epsilon", {"max_total_epsilon": -1.0}),
        (ConfigurationError, "max_total_delta", {"max_total_delta": float("nan")}),
        (ConfigurationError, "min_clients", {"min_clients": 0}),
        (ConfigurationError, "max_rounds", {"max_rounds": 0}),
        (ConfigurationError, "max_attempts", {"max_attempts": 0}),
        (ConfigurationError, "max_colluders", {"max_colluders": 0}),
        (ConfigurationTypeError, "trusts", {"trusts": "plain"}),
        (ConfigurationTypeError, "max_epsilon", {"max_epsilon": "1"}),
        (ConfigurationTypeError, "max_delta", {"max_delta": None}),
        (ConfigurationTypeError, "min_clients", {"min_clients": 2.5}),
        (ConfigurationTypeError, "max_rounds", {"max_rounds": "7"}),
        (ConfigurationTypeError, "max_attempts", {"max_attempts": 2.0}),
        (ConfigurationTypeError, "max_colluders", {"max_colluders": True}),
        (ConfigurationTypeError, "domain", {"domain": [[0, 0], [1, 1]]}),
        (ConfigurationTypeError, "columns", {"columns": "age"}),
        (ConfigurationTypeError, "columns", {"columns": (1, 2)}),
        (ConfigurationError, "columns", {"columns": ("age", "age")}),
        (ConfigurationError, "columns", {"columns": ("age",), "domain": NAMED}),
        (ConfigurationError, "columns", {"columns": ("income", "age"), "domain": NAMED}),
        (ConfigurationTypeError, "units", {"units": "record"}),
        (ConfigurationTypeError, "units", {"units": (1,)}),
        (ConfigurationError, "units", {"units": ("household",)}),
        (ConfigurationTypeError, "algorithms", {"algorithms": "lloyd"}),
        (ConfigurationTypeError, "roster_file", {"roster_file": 5}),
        (ConfigurationTypeError, "member_key_file", {"member_key_file": 5}),
        (ConfigurationTypeError, "copy_records", {"copy_records": 0}),
        (ConfigurationTypeError, "state_dir", {"state_dir": True}),
        (ConfigurationTypeError, "in_memory", {"in_memory": 1}),
        (ConfigurationTypeError, "max_total_epsilon", {"max_total_epsilon": "10"}),
        (ConfigurationTypeError, "max_total_delta", {"max_total_delta": None}),
    ],
)
def test_bad_limits_are_one_sentence(error, name, values):
    with pytest.raises(error, match=name) as caught:
        ClientPolicy(**values)
    assert "\n" not in str(caught.value)


def test_policies_are_values(tmp_path):
    assert ClientPolicy() == ClientPolicy()
    assert ClientPolicy.for_simulation() == ClientPolicy.for_simulation()
    with pytest.raises(AttributeError):
        ClientPolicy().max_epsilon = np.inf


@pytest.mark.parametrize("trust", TRUST_MODELS)
def test_simulated_clients_accept_what_the_simulation_asks_for(trust):
    budget = PrivacyBudget(50.0, 1e-3)
    assert OPEN.accepts(make_run(trust, budget=budget, min_clients=2, max_attempts=3))
    assert tightest(OPEN, OPEN) == OPEN
