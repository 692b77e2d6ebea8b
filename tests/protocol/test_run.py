"""The run document: one text, read and checked the same way on both sides."""

import functools
import hashlib
from dataclasses import replace

import msgspec
import pytest
from documents import BOX, KINDS, TRUSTS, make_algorithm, make_document
from harness import memory_below
from hypothesis import given, settings
from hypothesis import strategies as st
from malformed import fields_of, second_encodings, write

from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.algorithms.lloyd import GLloydAlgorithm
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm
from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.run import (
    Horizontal,
    UnacceptableRunError,
    open_run,
    parse_document,
    verify_plan,
)
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.protocol.wire import encode

pytestmark = pytest.mark.claim("protocol", "receiver-decodes-encodes-requires")

change = msgspec.structs.replace
RUNS = [
    (trust, name)
    for trust in TRUSTS
    for name in KINDS
    if (trust == "plain") == (name == "lloyd")
    # Laplace noise
    and not (name == "sulloyd" and trust in ("clients-only", "distributed-noise"))
    # the server asks
    and not (name == "feddp" and trust in ("clients-only", "oblivious-server"))
]


@pytest.mark.parametrize("trust", TRUSTS)
def test_the_documents_below_are_those_of_all_possible_runs(trust):
    algorithms = [
        make_algorithm(kind, trust)
        for name, kind in KINDS.items()
        if (trust == "plain") == (name == "lloyd")
    ]
    possible = [
        algorithm.name
        for algorithm in algorithms
        if trust_model(trust).objection(algorithm, algorithm.plan()) is None
    ]
    assert possible == [name for listed, name in RUNS if listed == trust]


@pytest.mark.parametrize(("trust", "name"), RUNS)
def test_documents_survive_and_mean_what_they_were_made_of(trust, name):
    algorithm = make_algorithm(KINDS[name], trust)
    document = make_document(trust, algorithm=algorithm)
    data = encode(document)
    assert parse_document(data) == document
    run = open_run(data)
    assert run.data == data
    assert run.doc_hash == hashlib.sha256(data).digest()
    assert run.algorithm == algorithm
    assert run.trust is trust_model(trust)
    assert run.plan.to_config() == algorithm.plan().to_config()
    assert document.rounds == algorithm.n_rounds
    verify_plan(open_run(data))
    if run.trust.is_private:
        epsilon, delta = run.guarantee
        assert epsilon == pytest.approx(1.0, rel=1e-4)
        assert delta == run.plan.budget.delta
        assert run.price is not None
    else:
        assert run.guarantee == (None, None)
        assert run.price is None


SHARED, MASKED, PLAIN = "clients-only", "oblivious-server", "plain"
BAD = [
    (SHARED, {"trust": "blind"}, "parameters"),
    (SHARED, {"trust": "plain"}, "adds no noise"),
    (PLAIN, {"trust": "trusted-server"}, "adds noise"),
    *(
        (SHARED, {"words": w}, r"words=\(7, 7, 7\)")
        for w in ((7, 7), (6, 7, 7), (7, 7, 7, 7))
    ),
    (MASKED, {"keys": "none"}, "Keys are needed exactly where"),
    (PLAIN, {"keys": "relayed"}, "Keys are needed exactly where"),
    (SHARED, {"keys": "roster"}, "A digest of the roster belongs to"),
    (SHARED, {"roster": bytes(32)}, "A digest of the roster belongs to"),
    (
        SHARED,
        {"max_colluders": 3, "share_variance": "1/0"},
        "max_colluders < min_clients",
    ),
    (MASKED, {"max_colluders": 4}, "max_colluders < min_clients"),
    *((SHARED, {"share_variance": v}, "='1/2'") for v in ("1/3", "none", "2/4")),
    *((trust, {"share_variance": "1/2"}, "='none'") for trust in (MASKED, PLAIN)),
    (SHARED, {"levels": (3,)}, "removed only where the server reconstructs"),
    (MASKED, {"levels": (3,)}, "removed only where the server reconstructs"),
    *(
        ("distributed-noise", {"levels": v}, "ascending")
        for v in ((2,), (4, 4), (5, 4))
    ),
    ("distributed-noise", {"levels": (2**17 + 1,)}, "levels that a cohort can reach"),
    (SHARED, {"privacy": {}}, "parameters"),
    (SHARED, {"body": Horizontal(algorithm={}, domain=BOX.to_config())}, "parameters"),
    (SHARED, {"body": Horizontal(algorithm={"name": "x"}, domain={})}, "parameters"),
]


@pytest.mark.parametrize(("trust", "changes", "sentence"), BAD)
def test_a_document_that_contradicts_itself_is_refused_with_the_reason(
    trust, changes, sentence
):
    data = encode(change(make_document(trust), **changes))
    parse_document(data)  # it is well formed
    with pytest.raises(UnacceptableRunError, match=sentence):
        open_run(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", bytes(15)), ("run", bytes(17)), ("run", "0" * 16), ("run", None),
        ("trust", 3), ("trust", "x" * 65), ("keys", "file"), ("keys", None), ("roster", bytes(31)),
        ("epoch", 16), ("epoch", -1), ("epoch", 0), ("colluders", 0), ("colluders", 1),
        ("colluders", 2**31), ("colluders", True), ("min_clients", 0), ("min_clients", 2.0),
        ("max_attempts", 0), ("max_attempts", 4), ("max_attempts", 2), ("words", []),
        ("words", [0]), ("words", [True]), ("words", 7), ("privacy", []), ("privacy", None),
        ("share_variance", 2), ("levels", [1, 2, 3, 4, 5]), ("levels", [0]), ("levels", []),
        ("sampler", None), ("sampler", "none"), ("body", None), ("body", {}),
        ("body", {"type": "vertical"}), ("body", {"type": "horizontal", "algorithm": {}}),
        ("body", {"type": "horizontal", "algorithm": {}, "domain": {}, "x": 1}),
        ("body", {"type": "horizontal", "algorithm": [], "domain": {}}),
        ("max_colluders", 1), ("opening", "none"), ("num_examples", 1),
    ],
)  # fmt: skip
def test_malformed_fields_are_no_document(field, value):
    fields = fields_of(encode(make_document("trusted-server")))
    fields[field] = msgspec.msgpack.encode(value)
    if field == "sampler":
        fields |= {"sampler": b"\xa4none"} if value == "none" else {}
    with pytest.raises(MessageError, match="malformed"):
        parse_document(write(list(fields.items())))


def test_only_one_text_counts():
    for other in second_encodings(encode(make_document())):
        with pytest.raises(MessageError):
            parse_document(other)
    with pytest.raises(MessageError, match="at most 1048576 bytes"):
        parse_document(bytes(2**20 + 1))


def changed_plan(document, factor):
    """Return the document with the first multiplier of its plan changed, and mu to fit."""
    plan = open_run(encode(document)).plan
    (first, *rest), *others = plan.rounds
    first = replace(first, noise_multiplier=first.noise_multiplier * factor)
    made = replace(plan, rounds=((first, *rest), *others))
    return change(document, privacy=made.to_config())


def test_the_plan_must_be_ones_own():
    document = make_document("clients-only")
    for changes in ({"n_records": 999}, {"n_records": 1001}, {"n_clients": 5}):
        with pytest.raises(UnacceptableRunError):
            verify_plan(
                open_run(encode(change(document, privacy=document.privacy | changes)))
            )
    verify_plan(open_run(encode(document)))
    # two processors may differ so much
    verify_plan(open_run(encode(changed_plan(document, 1 + 1e-13))))
    for factor in (1.001, 2.0):
        with pytest.raises(UnacceptableRunError, match="not that of the parameters"):
            verify_plan(open_run(encode(changed_plan(document, factor))))
    # less noise than the announced budget needs: not even opened
    for factor in (0.999, 0.5):
        with pytest.raises(UnacceptableRunError, match="parameters"):
            open_run(encode(changed_plan(document, factor)))


def test_the_sampler_must_be_the_one_that_draws():
    for trust, sampler in (
        ("clients-only", "rounded-gaussian/1"),
        ("oblivious-server", "discrete-gaussian/2"),
        ("trusted-server", "none"),
        ("plain", "rounded-gaussian/1"),
    ):
        data = encode(make_document(trust, sampler=sampler))
        open_run(data)
        with pytest.raises(UnacceptableRunError, match="sampler"):
            verify_plan(open_run(data))


def test_shares_that_cannot_be_drawn_are_refused():
    fine = make_algorithm(GLloydAlgorithm, fraction_bits=4)
    document = make_document("clients-only", algorithm=fine, min_clients=10**6)
    with pytest.raises(UnacceptableRunError, match="cannot be shared"):
        verify_plan(open_run(encode(document)))
    server = make_document("oblivious-server", algorithm=fine)
    verify_plan(open_run(encode(server)))


KINDS_OF = {
    "oblivious-server": FastLloydAlgorithm,
    "distributed-noise": SynopsisAlgorithm,
}
DATA = [encode(make_document(trust, KINDS_OF.get(trust))) for trust in TRUSTS]


odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.sampled_from(
        ["", "x", "nan", "inf", "0x1p5", "0x1.0p+0", "none", "box", "ball", "glloyd", "gaussian"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)  # fmt: skip


@given(st.sampled_from(DATA), st.data())
@settings(deadline=None, max_examples=200)
def test_changed_configurations_are_read_or_refused(data, draw):
    """Any value anywhere: no other exception than the two, and nothing that takes long."""
    tree = msgspec.msgpack.decode(data)
    nodes = [tree]
    for node in nodes:
        values = node.values() if isinstance(node, dict) else node
        nodes.extend(
            value for value in values if isinstance(value, dict | list) and value
        )
    node = draw.draw(st.sampled_from(nodes))
    key = draw.draw(
        st.sampled_from(list(node) if isinstance(node, dict) else range(len(node)))
    )
    node[key] = draw.draw(odd)
    changed = msgspec.msgpack.encode(tree)
    try:
        run = open_run(changed)
        verify_plan(open_run(changed))
    except (MessageError, UnacceptableRunError):
        return
    assert run.data == changed


@pytest.mark.claim("threat-model", "files-run-documents-nested")
@pytest.mark.parametrize("depth", [40, 400])
@pytest.mark.parametrize("is_mapping", [True, False])
def test_a_document_whose_values_lie_too_deep_is_malformed(depth, is_mapping):
    """Also where nobody looks at the value: a log or a comparison would fail half way."""

    def deeper(value, _):
        return {"a": value} if is_mapping else [value]

    nested = functools.reduce(deeper, range(depth), 1)
    document = make_document()
    body = document.body
    for changes in (
        {"privacy": document.privacy | {"a": nested}},
        {"body": change(body, algorithm=body.algorithm | {"a": nested})},
        {"body": change(body, domain=body.domain | {"a": nested})},
    ):
        with pytest.raises(MessageError, match="not nested so deeply"):
            parse_document(encode(change(document, **changes)))


@pytest.mark.parametrize("depth", [5, 900])
def test_nested_configurations_that_msgpack_still_reads_are_refused(depth):
    nested = functools.reduce(lambda value, _: [value], range(depth), 1)
    document = make_document()
    for algorithm, domain in (
        ({"name": nested}, BOX.to_config()),
        (document.body.algorithm | {"seed": nested}, {}),
        (document.body.algorithm, {"name": nested}),
    ):
        body = Horizontal(algorithm=algorithm, domain=domain)
        with pytest.raises((MessageError, UnacceptableRunError)):
            open_run(encode(change(document, body=body)))


def test_a_document_for_a_large_problem_is_read_in_memory_that_fits_the_problem():
    """A document names sizes; nobody makes arrays of these sizes before a policy has agreed."""
    box = type(BOX)([0.0] * 500, [1.0] * 500)
    algorithm = SynopsisAlgorithm.planned(
        50, box, open_run(DATA[0]).plan.budget, n_records=10**9
    )
    data = encode(make_document("clients-only", algorithm=algorithm))
    with memory_below(64 * 2**20):
        open_run(data)
