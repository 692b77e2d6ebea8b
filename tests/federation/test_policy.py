"""What a client agrees to, before anything is computed or sent."""

from dataclasses import replace

import numpy as np
import pytest
from harness import SIMULATED, key_file, make_run

from flower_kmeans.client import ClientPolicy
from flower_kmeans.domain import Ball, Box
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError

OPEN = replace(SIMULATED)
NAMED = Box([0, 0], [1, 1], columns=["age", "income"])


def test_the_defaults_are_strict():
    policy = ClientPolicy()
    assert policy.trusts == ("oblivious-server", "distributed-noise")
    assert (policy.max_epsilon, policy.max_delta, policy.min_clients) == (1.0, 1e-6, 3)
    assert (policy.max_total_epsilon, policy.max_total_delta) == (10.0, 1e-6)
    assert not policy.in_memory
    assert policy.state_dir is None
    assert not policy.allows_private_work
    for trust in ("trusted-server", "plain"):
        assert not policy.accepts(make_run(trust, min_clients=3).document)
    for trust in policy.trusts:
        assert policy.accepts(make_run(trust, min_clients=3).document)
        assert not policy.accepts(make_run(trust, min_clients=2).document)


@pytest.mark.parametrize(
    ("epsilon", "delta", "accepted"),
    [
        (1.0, 1e-6, True),
        (1.0 + 1e-12, 1e-6, False),
        (1.0, 1.1e-6, False),
        (0.1, 0.0, True),
        (float("inf"), 0.0, False),
        (float("nan"), 0.0, False),
        (0.5, float("nan"), False),
        (None, None, False),
    ],
)
def test_guarantees_beyond_the_limits_are_refused(epsilon, delta, accepted):
    assert ClientPolicy().accepts_guarantee(epsilon, delta) is accepted


def test_runs_without_privacy_need_plain_trust():
    assert ClientPolicy(trusts=("plain",)).accepts_guarantee(None, None)


@pytest.mark.parametrize(
    ("limit", "changes"),
    [
        ({"max_rounds": 2}, {"rounds": 3}),
        ({"min_clients": 4}, {"min_clients": 3}),
        ({"algorithms": ("glloyd",)}, {}),
        ({"algorithms": ()}, {}),
        ({"trusts": ("distributed-noise",)}, {}),
        ({"domain": Box([0, 0], [1, 2])}, {}),
        ({"domain": Box([0, 0], [1, 1], scale="common")}, {}),
        ({"domain": Ball(1, [0, 0])}, {}),
        ({"domain": Box([0], [1])}, {}),
        ({"domain": Box([0, 0], [1, 1])}, {"domain": {}}),
        ({"columns": ("age", "income")}, {}),
        ({"columns": ("age", "income")}, {"domain": {}}),
        ({"columns": ("income", "age")}, {"domain": NAMED.to_config()}),
        ({"columns": ("age",)}, {"domain": NAMED.to_config()}),
        ({"domain": replace(NAMED, columns=["a", "b"])}, {"domain": NAMED.to_config()}),
        ({"domain": NAMED}, {}),
        ({"units": ("client",)}, {}),
        ({"units": ()}, {}),
        ({"units": ("record",)}, {"privacy": {"budget": {"unit": "client"}}}),
        ({"units": ("record",)}, {"privacy": {"budget": 5}}),
        ({"group_key_file": "k"}, {"keys": "relayed"}),
        ({}, {"keys": "file"}),
        ({}, {"keys": "roster"}),
    ],
)
def test_each_limit_refuses(limit, changes):
    document = make_run(**changes).document
    assert not replace(OPEN, **limit).accepts(document)


def test_pinned_domains_and_named_algorithms_accept_their_own():
    document = make_run().document
    assert replace(OPEN, domain=Box([0, 0], [1, 1])).accepts(document)
    assert replace(OPEN, algorithms=("fastlloyd",)).accepts(document)
    assert replace(OPEN, units=("record",)).accepts(document)
    # A run without privacy protects no unit.
    assert replace(OPEN, units=("client",)).accepts(make_run("plain").document)


def test_pinned_columns_accept_runs_that_name_them():
    named = make_run(domain=NAMED.to_config()).document
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
    document = make_run(algorithm={"name": "x\n" * 10_000}).document
    objection = replace(OPEN, algorithms=("fastlloyd",)).objection(document)
    assert "\n" not in objection
    assert len(objection) < 400


def test_single_clients_open_sums_only_where_the_operator_says_so():
    document = make_run("distributed-noise", min_clients=3).document
    for opening in ("deferred", "immediate", "simple"):
        run = replace(document, opening=opening)
        assert OPEN.accepts(run)
        assert ClientPolicy().accepts(run) == (opening != "simple")
        assert not ClientPolicy(openings=()).accepts(run)
        assert ClientPolicy(openings=[opening]).accepts(run)
    assert ClientPolicy(openings=()).accepts(make_run(min_clients=3).document)
    objection = ClientPolicy().objection(replace(document, opening="simple"))
    assert "openings=['deferred', 'immediate']" in objection
    assert "'simple'" in objection


@pytest.mark.parametrize(
    ("error", "name", "values"),
    [
        (ConfigurationError, "trusts", {"trusts": ("nobody",)}),
        (ConfigurationError, "openings", {"openings": ("none",)}),
        (ConfigurationTypeError, "openings", {"openings": "simple"}),
        (ConfigurationTypeError, "openings", {"openings": (1,)}),
        (ConfigurationError, "max_epsilon", {"max_epsilon": 0.0}),
        (ConfigurationError, "max_epsilon", {"max_epsilon": float("nan")}),
        (ConfigurationError, "max_delta", {"max_delta": 1.0}),
        (ConfigurationError, "max_delta", {"max_delta": -1e-9}),
        (ConfigurationError, "max_total_epsilon", {"max_total_epsilon": -1.0}),
        (ConfigurationError, "max_total_delta", {"max_total_delta": float("nan")}),
        (ConfigurationError, "min_clients", {"min_clients": 0}),
        (ConfigurationError, "max_rounds", {"max_rounds": 0}),
        (ConfigurationError, "max_attempts", {"max_attempts": 0}),
        (ConfigurationError, "colluders", {"colluders": 0}),
        (ConfigurationTypeError, "trusts", {"trusts": "plain"}),
        (ConfigurationTypeError, "max_epsilon", {"max_epsilon": "1"}),
        (ConfigurationTypeError, "max_delta", {"max_delta": None}),
        (ConfigurationTypeError, "min_clients", {"min_clients": 2.5}),
        (ConfigurationTypeError, "max_rounds", {"max_rounds": "7"}),
        (ConfigurationTypeError, "max_attempts", {"max_attempts": 2.0}),
        (ConfigurationTypeError, "colluders", {"colluders": True}),
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
        (ConfigurationTypeError, "group_key_file", {"group_key_file": 5}),
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


def test_a_group_key_file_is_read(tmp_path):
    content = bytes(range(32))
    policy = ClientPolicy(group_key_file=key_file(tmp_path, content))
    assert policy.read_group_key() == content
    assert ClientPolicy().read_group_key() is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o622, 0o610, 0o601])
def test_a_group_key_file_must_be_its_owners_alone(mode, tmp_path):
    policy = ClientPolicy(group_key_file=key_file(tmp_path, mode=mode))
    with pytest.raises(ConfigurationError, match=f"0600.*{mode:04o}"):
        policy.read_group_key()


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_group_key_file_may_be_read_only(mode, tmp_path):
    assert ClientPolicy(group_key_file=key_file(tmp_path, mode=mode)).read_group_key()


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_group_key_file_has_32_bytes(size, tmp_path):
    policy = ClientPolicy(group_key_file=key_file(tmp_path, b"k" * size))
    with pytest.raises(ConfigurationError, match=f"32 bytes.*{size}") as caught:
        policy.read_group_key()
    assert "kkkk" not in str(caught.value)


def test_a_group_key_file_must_exist(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            ClientPolicy(group_key_file=path).read_group_key()


def test_policies_are_values(tmp_path):
    assert ClientPolicy() == ClientPolicy()
    assert ClientPolicy.for_simulation() == ClientPolicy.for_simulation()
    with pytest.raises(AttributeError):
        ClientPolicy().max_epsilon = np.inf
