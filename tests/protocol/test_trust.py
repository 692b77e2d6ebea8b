"""Trust models: what follows from who adds the noise, who makes the sum and who sees it."""

import pytest
from documents import KINDS, TRUSTS, make_algorithm

from flower_kmeans.algorithms.lloyd import GLloydAlgorithm, LloydAlgorithm
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol.trust import TRUST_MODELS, TrustModel, trust_model

PROPERTIES = {  # blind, protected, committee, shares of noise, private, commits to records
    "oblivious-server": (True, True, False, False, True, True),
    "distributed-noise": (False, True, True, True, True, False),
    "clients-only": (True, True, True, True, True, False),
    "trusted-server": (False, False, False, False, True, False),
    "plain": (False, False, False, False, False, False),
}
RUNS_UNDER = {
    "lloyd": {"plain"},
    "sulloyd": {"oblivious-server", "trusted-server"},
    "glloyd": {"oblivious-server", "distributed-noise", "clients-only", "trusted-server"},
    "fastlloyd": {"oblivious-server", "distributed-noise", "clients-only", "trusted-server"},
    "synopsis": {"oblivious-server", "distributed-noise", "clients-only", "trusted-server"},
    "pe-means": {"oblivious-server", "distributed-noise", "clients-only", "trusted-server"},
    "hdpe-means": {"oblivious-server", "distributed-noise", "clients-only", "trusted-server"},
    "feddp": {"distributed-noise", "trusted-server"},
}


def test_these_are_all():
    assert set(TRUST_MODELS) == set(PROPERTIES) == set(TRUSTS)
    assert set(KINDS) == set(RUNS_UNDER)


@pytest.mark.parametrize("name", TRUSTS)
def test_what_follows_from_a_trust_model(name):
    model = trust_model(name)
    assert model.name == name
    assert PROPERTIES[name] == (
        model.is_blind,
        model.is_protected,
        model.has_committee,
        model.shares_noise,
        model.is_private,
        model.commits_to_records,
    )
    assert model.is_blind == (model.opened_by == "clients")
    assert model.sum.name == model.secure_sum


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("name", KINDS)
def test_which_algorithm_runs_where_is_derived(name, trust):
    model = trust_model(trust)
    private = "plain" if name == "lloyd" else trust  # plain Lloyd has no budget to be private with
    algorithm = make_algorithm(KINDS[name], private)
    objection = model.objection(algorithm, algorithm.plan())
    allowed = RUNS_UNDER[name] | ({"plain"} if trust == "plain" else set())
    assert (objection is None) == (trust in allowed), objection


@pytest.mark.parametrize(
    ("trust", "name", "private", "sentence"),
    [
        ("plain", "glloyd", "clients-only", "It adds no noise."),
        ("trusted-server", "lloyd", "plain", "It adds noise."),
        ("clients-only", "feddp", "", "The server computes the next query"),
        ("oblivious-server", "feddp", "", "so it must see the sums."),
        ("distributed-noise", "sulloyd", "", "Laplace noise has no shares."),
        ("clients-only", "sulloyd", "", "Laplace noise has no shares."),
    ],
)
def test_an_objection_says_why(trust, name, private, sentence):
    algorithm = make_algorithm(KINDS[name], private)
    objection = trust_model(trust).objection(algorithm, algorithm.plan())
    assert objection is not None
    assert sentence in objection


def test_a_further_trust_model_is_one_object():
    """Nobody compares names: another combination has its properties by itself."""
    model = TrustModel("blind masks with shared noise", "clients", "masks", "clients")
    assert model.is_blind
    assert model.shares_noise
    algorithm = make_algorithm(GLloydAlgorithm)
    assert model.objection(algorithm, algorithm.plan()) is None
    model = TrustModel("shares without noise", "nobody", "shares", "server")
    assert model.objection(algorithm, algorithm.plan()) == "It adds no noise."
    algorithm = make_algorithm(LloydAlgorithm, "plain")
    assert model.objection(algorithm, algorithm.plan()) is None


@pytest.mark.parametrize("name", ["blind", "", "Plain", None, 3, b"plain", ["plain"]])
def test_other_names_are_refused(name):
    with pytest.raises(ConfigurationError, match="Expected trust in") as caught:
        trust_model(name)
    assert repr(name) in str(caught.value)
