"""The run document: one text, read and checked the same way on both sides."""

import hashlib
import tracemalloc

import msgspec
import pytest
from documents import BOX, KINDS, TRUSTS, make_algorithm, make_document
from hypothesis import given, settings
from hypothesis import strategies as st
from malformed import bombs, fields_of, near_bytes, second_encodings, write

from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.algorithms.lloyd import GLloydAlgorithm, SuLloydAlgorithm
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
from flower_kmeans.protocol.wire import VersionError, encode


def algorithm_of(name, trust):
    kind = KINDS[name]
    return make_algorithm(kind, trust)


RUNS = [
    (trust, name)
    for trust in TRUSTS
    for name in KINDS
    if (trust == "plain") == (name == "lloyd")
    and trust_model(trust).objection(a := algorithm_of(name, trust), a.plan()) is None
]


@pytest.mark.parametrize(("trust", "name"), RUNS)
def test_documents_survive_and_mean_what_they_were_made_of(trust, name):
    algorithm = algorithm_of(name, trust)
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
    verify_plan(data)
    if run.trust.is_private:
        epsilon, delta = run.guarantee
        assert epsilon == pytest.approx(1.0, rel=1e-4)
        assert delta == run.plan.budget.delta
        assert run.price is not None
    else:
        assert run.guarantee == (None, None)
        assert run.price is None


def test_noise_shares_are_what_colluders_leave():
    document = make_document(min_clients=7, max_colluders=3, share_variance="1/4")
    assert document.noise_shares == 4
    assert open_run(encode(document)).document == document


def test_the_hash_depends_on_every_field():
    base = make_document("clients-only")
    changes = {
        "run": b"\1" * 16, "trust": "distributed-noise", "keys": "roster", "roster": bytes(32),
        "epoch": 1, "max_colluders": 2, "min_clients": 4, "max_attempts": 3, "words": (7, 7, 8),
        "privacy": {}, "share_variance": "1/3", "levels": (4,), "sampler": "none",
        "body": Horizontal(algorithm={}, domain={}),
    }  # fmt: skip
    assert set(changes) == set(msgspec.structs.asdict(base)) - {"protocol"}
    made = {encode(msgspec.structs.replace(base, **{name: v})) for name, v in changes.items()}
    assert len(made | {encode(base)}) == len(changes) + 1


# ------------------------------------------------------------------------------ contradictions

SHARED, MASKED, PLAIN = "clients-only", "oblivious-server", "plain"
BAD = [
    (SHARED, {"trust": "blind"}, "parameters"),
    (SHARED, {"trust": "plain"}, "adds no noise"),
    (PLAIN, {"trust": "trusted-server"}, "adds noise"),
    (SHARED, {"words": (7, 7)}, r"Expected words=\(7, 7, 7\)"),
    (SHARED, {"words": (6, 7, 7)}, r"Expected words=\(7, 7, 7\)"),
    (SHARED, {"words": (7, 7, 7, 7)}, r"Expected words=\(7, 7, 7\)"),
    (SHARED, {"keys": "none"}, "Keys are needed exactly where"),
    (MASKED, {"keys": "none"}, "Keys are needed exactly where"),
    (PLAIN, {"keys": "relayed"}, "Keys are needed exactly where"),
    ("trusted-server", {"keys": "roster", "roster": bytes(32)}, "Keys are needed exactly where"),
    (SHARED, {"keys": "roster"}, "A digest of the roster belongs to"),
    (SHARED, {"roster": bytes(32)}, "A digest of the roster belongs to"),
    (PLAIN, {"roster": bytes(32)}, "A digest of the roster belongs to"),
    (SHARED, {"max_colluders": 3, "share_variance": "1/0"}, "max_colluders < min_clients"),
    (MASKED, {"max_colluders": 4}, "max_colluders < min_clients"),
    (SHARED, {"share_variance": "1/3"}, "Expected share_variance='1/2'"),
    (SHARED, {"share_variance": "none"}, "Expected share_variance='1/2'"),
    (SHARED, {"share_variance": "2/4"}, "Expected share_variance='1/2'"),
    (MASKED, {"share_variance": "1/2"}, "Expected share_variance='none'"),
    (PLAIN, {"share_variance": "1/2"}, "Expected share_variance='none'"),
    (SHARED, {"levels": (3,)}, "removed only where the server opens"),
    (MASKED, {"levels": (3,)}, "removed only where the server opens"),
    ("distributed-noise", {"levels": (2,)}, "ascending levels"),
    ("distributed-noise", {"levels": (4, 4)}, "ascending levels"),
    ("distributed-noise", {"levels": (5, 4)}, "ascending levels"),
    ("distributed-noise", {"levels": (2**17 + 1,)}, "levels that a cohort can reach"),
    (SHARED, {"privacy": {}}, "parameters"),
    (SHARED, {"body": Horizontal(algorithm={}, domain=BOX.to_config())}, "parameters"),
    (SHARED, {"body": Horizontal(algorithm={"name": "x"}, domain={})}, "parameters"),
]


@pytest.mark.parametrize(("trust", "changes", "sentence"), BAD)
def test_a_document_that_contradicts_itself_is_refused_with_the_reason(trust, changes, sentence):
    data = encode(msgspec.structs.replace(make_document(trust), **changes))
    parse_document(data)  # it is well formed
    with pytest.raises(UnacceptableRunError, match=sentence):
        open_run(data)


def test_an_algorithm_that_does_not_run_under_the_trust_model_is_refused():
    for kind, trust, sentence in (
        (KINDS["feddp"], "clients-only", "must see the sums"),
        (KINDS["feddp"], "oblivious-server", "must see the sums"),
        (SuLloydAlgorithm, "distributed-noise", "Laplace"),
    ):
        with pytest.raises(UnacceptableRunError, match=sentence):
            open_run(encode(make_document(trust, kind)))


def test_levels_belong_to_a_server_that_opens():
    document = make_document("distributed-noise", levels=(3, 5))
    assert open_run(encode(document)).document.levels == (3, 5)


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


def test_every_field_without_a_default_is_required():
    document = make_document(
        "distributed-noise", keys="roster", roster=bytes(32), levels=(3,), max_attempts=3, epoch=2,
        max_colluders=2, min_clients=4, share_variance="1/2",
    )  # fmt: skip
    fields = fields_of(encode(document))
    assert len(fields) == 1 + len(msgspec.structs.asdict(document))
    for name in fields:
        rest = write([(key, value) for key, value in fields.items() if key != name])
        try:
            read = open_run(rest).document
        except (MessageError, UnacceptableRunError):
            continue
        assert read != document  # a default means something else, and its hash is another


def test_only_one_text_counts():
    data = encode(make_document())
    for other in second_encodings(data):
        if other != data:
            with pytest.raises(MessageError):
                parse_document(other)
    with pytest.raises(MessageError, match="at most 1048576 bytes"):
        parse_document(bytes(2**20 + 1))


@pytest.mark.parametrize("protocol", ["flower-kmeans/1", "flower-kmeans/3", "", "x"])
def test_other_versions_are_said_to_be_other_versions(protocol):
    data = encode(make_document(protocol=protocol))
    for read in (parse_document, open_run, verify_plan):
        with pytest.raises(VersionError, match="another version"):
            read(data)


# ------------------------------------------------------------------------------ plans


def changed_plan(document, factor, at=(0, 0)):
    """Return the document with one multiplier of its plan changed, and mu to fit."""
    plan = open_run(encode(document)).plan
    rounds = [list(group) for group in plan.rounds]
    release = rounds[at[0]][at[1]]
    rounds[at[0]][at[1]] = type(release)(
        **{
            **{name: getattr(release, name) for name in release.__dataclass_fields__},
            "noise_multiplier": release.noise_multiplier * factor,
        }
    )
    made = type(plan)(plan.budget, plan.n_records, tuple(map(tuple, rounds)), plan.n_clients)
    return msgspec.structs.replace(document, privacy=made.to_config())


def test_the_plan_must_be_ones_own():
    document = make_document("clients-only")
    verify_plan(encode(document))
    verify_plan(encode(changed_plan(document, 1 + 1e-13)))  # two processors may differ so much
    for factor in (1.001, 2.0):
        with pytest.raises(UnacceptableRunError, match="not that of the parameters"):
            verify_plan(encode(changed_plan(document, factor)))
    for factor in (0.999, 0.5):  # less noise than the announced budget needs: not even opened
        with pytest.raises(UnacceptableRunError, match="parameters"):
            open_run(encode(changed_plan(document, factor)))


@pytest.mark.parametrize("changes", [{"n_records": 999}, {"n_records": 1001}, {"n_clients": 5}])
def test_public_numbers_belong_to_the_plan(changes):
    document = make_document("clients-only")
    other = msgspec.structs.replace(document, privacy=document.privacy | changes)
    with pytest.raises(UnacceptableRunError):
        verify_plan(encode(other))


def test_the_sampler_must_be_the_one_that_draws():
    for trust, sampler in (
        ("clients-only", "rounded-gaussian/1"),
        ("clients-only", "none"),
        ("clients-only", "discrete-gaussian/2"),
        ("oblivious-server", "discrete-gaussian/1"),
        ("trusted-server", "none"),
        ("plain", "rounded-gaussian/1"),
    ):
        data = encode(make_document(trust, sampler=sampler))
        open_run(data)
        with pytest.raises(UnacceptableRunError, match="sampler"):
            verify_plan(data)


def test_shares_that_cannot_be_drawn_are_refused():
    fine = make_algorithm(GLloydAlgorithm, fraction_bits=4)
    document = make_document("clients-only", algorithm=fine, min_clients=10**6)
    with pytest.raises(UnacceptableRunError, match="cannot be shared"):
        verify_plan(encode(document))
    server = make_document("oblivious-server", algorithm=fine)
    verify_plan(encode(server))


# ------------------------------------------------------------------------------ hostile documents

DATA = [
    encode(make_document("clients-only")),
    encode(make_document("oblivious-server", FastLloydAlgorithm)),
    encode(make_document("clients-only", SynopsisAlgorithm)),
    encode(make_document("plain")),
]


@given(st.sampled_from(DATA), st.randoms(use_true_random=False), st.integers(1, 3))
@settings(deadline=None, max_examples=300)
def test_changed_bytes_are_read_or_refused(data, rng, changes):
    for _ in range(changes):
        data = near_bytes(rng, data)
    try:
        run = open_run(data)
        verify_plan(data)
    except (MessageError, UnacceptableRunError):
        return
    assert run.data == data


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
@settings(deadline=None, max_examples=400)
def test_changed_configurations_are_read_or_refused(data, draw):
    """Any value anywhere: no other exception than the two, and nothing that takes long."""
    tree = msgspec.msgpack.decode(data)
    nodes = [tree]
    for node in nodes:
        values = node.values() if isinstance(node, dict) else node
        nodes.extend(value for value in values if isinstance(value, dict | list) and value)
    node = draw.draw(st.sampled_from(nodes))
    key = draw.draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
    node[key] = draw.draw(odd)
    changed = msgspec.msgpack.encode(tree)
    try:
        run = open_run(changed)
        verify_plan(changed)
    except (MessageError, UnacceptableRunError):
        return
    assert run.data == changed


def test_bombs_are_refused_in_little_memory():
    fields = fields_of(DATA[0])
    for bomb in bombs(20_000):
        for field in ("privacy", "words", "levels", "body", "run"):
            changed = write(list((fields | {field: bomb}).items()))
            tracemalloc.start()
            with pytest.raises(MessageError):
                open_run(changed)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 16 * 2**20


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [5, 100, 900])
def test_nested_configurations_that_msgpack_still_reads_are_refused(depth):
    document = make_document()
    for body in (
        Horizontal(algorithm={"name": nested(depth)}, domain=BOX.to_config()),
        Horizontal(algorithm=document.body.algorithm | {"seed": nested(depth)}, domain={}),
        Horizontal(algorithm=document.body.algorithm, domain={"name": nested(depth)}),
    ):
        data = encode(msgspec.structs.replace(document, body=body))
        with pytest.raises((MessageError, UnacceptableRunError)):
            open_run(data)


def test_a_document_for_a_large_problem_is_read_in_memory_that_fits_the_problem():
    """A document names sizes; nobody makes arrays of these sizes before a policy has agreed."""
    algorithm = SynopsisAlgorithm(
        50, type(BOX)([0.0] * 500, [1.0] * 500), open_run(DATA[0]).plan.budget, n_records=10**9
    )
    document = make_document("clients-only", algorithm=algorithm)
    body = Horizontal(algorithm=algorithm.to_config(), domain=algorithm.domain.to_config())
    data = encode(msgspec.structs.replace(document, body=body))
    tracemalloc.start()
    open_run(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20
