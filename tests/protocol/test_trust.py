"""Trust models: what follows from who adds the noise, who makes the sum and who sees it."""

import pytest
from documents import KINDS, make_algorithm
from vertical_runs import make_algorithm as make_vertical

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol.trust import TRUST_MODELS, trust_model

# blind, protected, committee, shares of noise, private, commits to records
PROPERTIES = {
    "oblivious-server": (True, True, False, False, True, True),
    "distributed-noise": (False, True, True, True, True, False),
    "clients-only": (True, True, True, True, True, False),
    "trusted-server": (False, False, False, False, True, False),
    "plain": (False, False, False, False, False, False),
    "vertical": (True, True, False, True, True, False),
}
FOUR = {"oblivious-server", "distributed-noise", "clients-only", "trusted-server"}
RUNS_UNDER = {
    "lloyd": {"plain"},
    "sulloyd": {"oblivious-server", "trusted-server"},
    **dict.fromkeys(
        ("glloyd", "fastlloyd", "synopsis", "pe-means", "hdpe-means"), FOUR
    ),
    "feddp": {"distributed-noise", "trusted-server"},
    "vertical": {"vertical"},
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_what_follows_from_a_trust_model(name):
    assert set(TRUST_MODELS) == set(PROPERTIES)
    assert {*KINDS, "vertical"} == set(RUNS_UNDER)
    model = trust_model(name)
    assert PROPERTIES[name] == (
        model.is_blind,
        model.is_protected,
        model.has_committee,
        model.shares_noise,
        model.is_private,
        model.commits_to_records,
    )
    assert model.is_blind == (model.sums_seen_by == "clients")
    assert model.is_homomorphic == (model.kind == "vertical") == (name == "vertical")
    if model.is_homomorphic:
        with pytest.raises(ConfigurationError, match="secure_sum"):
            _ = model.sum  # no vectors of single clients are added
    else:
        assert model.sum.name == model.secure_sum


@pytest.mark.claim("adding-an-algorithm", "library-derives-trust-models")
@pytest.mark.parametrize("trust", PROPERTIES)
@pytest.mark.parametrize("name", RUNS_UNDER)
def test_which_algorithm_runs_where_is_derived(name, trust):
    model = trust_model(trust)
    # plain Lloyd has no budget to be private with
    private = "plain" if name == "lloyd" else trust
    is_vertical = name == "vertical"
    algorithm = make_vertical() if is_vertical else make_algorithm(KINDS[name], private)
    objection = model.objection(algorithm, algorithm.plan())
    allowed = RUNS_UNDER[name] | (
        {"plain"} if trust == "plain" and not is_vertical else set()
    )
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
        ("vertical", "glloyd", "", "Its parties hold records."),
    ],
)
def test_an_objection_says_why(trust, name, private, sentence):
    algorithm = make_algorithm(KINDS[name], private)
    objection = trust_model(trust).objection(algorithm, algorithm.plan())
    assert objection is not None
    assert sentence in objection


@pytest.mark.parametrize("name", ["blind", None, ["plain"]])
def test_other_names_are_refused(name):
    with pytest.raises(ConfigurationError, match="Expected trust in") as caught:
        trust_model(name)
    assert repr(name) in str(caught.value)
