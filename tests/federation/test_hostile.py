"""Decoders against malformed records, documents and bytes: nothing but documented errors."""

import dataclasses
import hashlib
import json
from random import Random
from typing import get_args

import numpy as np
import pytest
from asking import SplitAlgorithm
from flwr.app import ConfigRecord
from harness import BOX, Scene, make_run
from hostile import (
    POOL,
    as_json,
    candidates,
    content,
    little_memory,
    message,
    message_classes,
    mutated,
    mutated_document,
    mutated_json,
    near_bytes,
    plausible,
    unheard,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flower_kmeans import Ball, Box, PrivacyBudget
from flower_kmeans.algorithms.base import algorithm_from_config
from flower_kmeans.algorithms.lloyd import SuLloydAlgorithm
from flower_kmeans.canonical import (
    array_from_text,
    canonical_bytes,
    parse_canonical,
    real_from_text,
    real_to_text,
)
from flower_kmeans.domain import domain_from_config
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    LedgerError,
    MessageError,
)
from flower_kmeans.federation.arrays import decode_arrays, encode_arrays
from flower_kmeans.federation.cohort import depth
from flower_kmeans.federation.document import RunDocument
from flower_kmeans.federation.life import Life, pack_life, unpack_life
from flower_kmeans.federation.messages import (
    Lead,
    Refusal,
    Reply,
    Request,
    Round,
    decode_reply,
    decode_request,
    to_content,
)
from flower_kmeans.federation.questions import read_question, read_result, require_answerable
from flower_kmeans.federation.run import UnacceptableRunError, open_run, verify_plan
from flower_kmeans.federation.transcript import Entry, unpack_survivors, unpack_words
from flower_kmeans.privacy.plan import plan_from_config
from flower_kmeans.privacy.randomness import token
from flower_kmeans.secagg import keys

CLASSES = message_classes()
D = bytes(32)
TRUSTS = ("oblivious-server", "distributed-noise", "trusted-server", "plain")
MiB = 2**20

fuzz = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
rngs = st.randoms(use_true_random=False)
classes = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def kind_of(error):
    return type(error).__name__


def attempt(function, *errors):
    """Return what a decoder reads, or the documented error that it raised; any other is raised."""
    try:
        return function()
    except errors as error:
        return error


# --------------------------------------------------------------------------- messages


def test_all_messages_are_among_the_classes():
    assert set(CLASSES) == {*get_args(Request), *get_args(Reply), Refusal}


@classes
def test_some_value_of_the_pool_fits_every_field(cls):
    """A field of a new size needs a value in the pool, or it would be tested with refusals only."""
    for field in dataclasses.fields(cls):
        fitting = candidates(cls, field.name)
        assert fitting, f"Put values that fit {cls.__name__}.{field.name} into hostile.POOL."
        types = {type(value) for value in fitting}
        assert len(types) == 1, f"{cls.__name__}.{field.name} accepts values of several types."


@classes
def test_acceptable_messages_are_found_and_survive(cls):
    found = list(filter(None, (message(Random(i), cls) for i in range(20))))
    assert len(set(found)) > 1
    for read in found:
        assert cls.from_record(to_content(read)["kmeans"]) == read


def read_all(record):
    """Give one content to every decoder; return what one of them accepted."""
    accepted = [attempt(lambda: decode_request(record), MessageError)]
    for expected in get_args(Reply):
        accepted.append(
            attempt(lambda expected=expected: decode_reply(record, expected, D), MessageError)
        )
    for error in accepted:
        if isinstance(error, MessageError):
            assert str(error) in (
                "A message is malformed.",
                "A message belongs to another run.",
                "A message is of another version of the protocol.",
            )
    return [read for read in accepted if not isinstance(read, MessageError)]


@classes
@given(rng=rngs)
@fuzz
def test_decoders_raise_nothing_but_message_errors(cls, rng):
    others = [plausible(rng, rng.choice(CLASSES)) for _ in range(2)]
    values = plausible(rng, cls, doc_hash=D)
    if rng.random() < 0.9:
        values = mutated(rng, values, others)
    sent = content(rng, values)
    read_in_some_way = read_all(sent)
    if list(sent) != ["kmeans"] or type(sent["kmeans"]) is not ConfigRecord:
        assert not read_in_some_way
    for read in read_in_some_way:
        assert read._is_consistent()
        again = to_content(read)["kmeans"]
        assert {key: values[key] for key in again} == dict(again) == values  # one encoding
        assert [type(values[key]) for key in again] == [type(again[key]) for key in again]


@classes
@given(rng=rngs)
@fuzz
def test_values_that_no_record_holds_are_message_errors_too(cls, rng):
    for values in (unheard(rng, plausible(rng, cls)), {}, {"v": 1}, {"kind": cls.KIND}):
        assert isinstance(attempt(lambda v=values: cls.from_record(v), MessageError), MessageError)


# --------------------------------------------------------------------------- bytes


@pytest.fixture(scope="module")
def samples():
    """Return honest bytes of every kind, from a run in which a round is over."""
    scene = Scene(make_run())
    scene.round([0, 1, 3])
    life = scene.nodes[0].life(scene.run)
    packed = pack_life(life)
    assert unpack_life(packed) == life
    return {
        "entry": scene.server.closed[0].entry.pack(),
        "survivors": b"\x0b",
        "words": scene.replies[0].words,
        "document": scene.run.document.data,
        "canonical": scene.run.document.data,
        "run": scene.run.document.data,
        "life": packed,
        "arrays": QUESTION,
        "question": QUESTION,
        "result": encode_arrays({"centroids": np.full((2, 2), 0.5), "counts": np.ones(2)}),
    }


def _opened(data):
    run = open_run.__wrapped__(data)
    verify_plan.__wrapped__(data)
    return run


ASKING = make_run("distributed-noise", rounds=2, kind=SplitAlgorithm)
QUESTION = encode_arrays({"thresholds": np.array([7]), "radius": np.array(40_000.0)})


def _answerable(data):
    question = read_question(ASKING, 2, data)
    require_answerable(ASKING, question)
    return question


BYTE_DECODERS = {
    "entry": (Entry.unpack, MessageError),
    "survivors": (lambda data: unpack_survivors(data, 4), MessageError),
    "words": (lambda data: unpack_words(data, 9), MessageError),
    "document": (RunDocument.parse, MessageError),
    "canonical": (parse_canonical, MessageError),
    "run": (_opened, (MessageError, UnacceptableRunError)),
    "life": (unpack_life, LedgerError),
    "arrays": (decode_arrays, MessageError),
    "question": (_answerable, MessageError),
    "result": (lambda data: read_result(ASKING, data), MessageError),
}


@pytest.mark.parametrize("name", BYTE_DECODERS)
@given(rng=rngs, data=st.binary(max_size=200))
@fuzz
def test_bytes_are_read_or_refused(name, samples, rng, data):
    decode, errors = BYTE_DECODERS[name]
    errors = errors if isinstance(errors, tuple) else (errors,)
    honest = samples[name]
    assert not isinstance(attempt(lambda: decode(honest), *errors), Exception)
    changed = near_bytes(rng, honest)
    for given_bytes in (data, changed, near_bytes(rng, changed), honest[: len(data)] + data):
        read = attempt(lambda given_bytes=given_bytes: decode(given_bytes), *errors)
        if isinstance(read, Entry):
            assert read.pack() == given_bytes  # nothing is read in two ways
            assert len(read.words)
        if isinstance(read, RunDocument):
            assert read.data == given_bytes
        if isinstance(read, dict):
            encode = encode_arrays if name == "arrays" else canonical_bytes
            assert encode(read) == given_bytes


@given(rng=rngs)
@fuzz
def test_a_ledger_with_another_life_is_a_ledger_error(samples, rng):
    changed = as_json(mutated_json(rng, json.loads(samples["life"])))
    life = attempt(lambda: unpack_life(changed), LedgerError)
    if not isinstance(life, LedgerError):
        assert unpack_life(pack_life(life)) == life
        for name, value in vars(Life(b"", b"")).items():
            if isinstance(value, bytes | int):
                assert type(getattr(life, name)) is type(value)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"{}", b'{"hex":5}', b"[" * 10**5, b'{"head":1e999}', b"\xff"]
)
def test_what_is_no_life_is_a_ledger_error(data):
    with pytest.raises(LedgerError):
        unpack_life(data)


# --------------------------------------------------------------------------- configurations


def _trees():
    """Return the documents of honest runs, one of each kind, as JSON objects."""
    for trust in TRUSTS:
        yield json.loads(make_run(trust).document.data)
    named = Box([0, 0], [1, 2], columns=["age", "income"])
    relaxed = PrivacyBudget(1.0)
    for budget, domain in (
        (PrivacyBudget(1.0, 0.0), named),
        (relaxed, Ball(2, [0, 1])),
        (relaxed, named),
    ):
        algorithm = SuLloydAlgorithm(2, domain, budget, n_records=1000, n_rounds=2)
        tree = json.loads(make_run("trusted-server", rounds=2).document.data)
        yield tree | {
            "algorithm": algorithm.to_config(),
            "words": algorithm.words(1) + 1,
            "domain": domain.to_config(),
            "privacy": algorithm.plan().to_config(),
            "sampler": "rounded-laplace/1",
        }


TREES = list(_trees())


def test_the_honest_documents_are_accepted():
    for tree in TREES:
        assert _opened(as_json(tree)).document.rounds == tree["rounds"]


@pytest.mark.parametrize("parts", [[(1.0, 1)], [(1.0, 3)], [(0.5, 2)], [(0.5, 1), (1.0, 1)]])
def test_other_parts_than_those_of_the_algorithm_are_refused(parts):
    tree = json.loads(json.dumps(TREES[6]))
    assert tree["privacy"]["rounds"][0][0]["parts"] == [[real_to_text(1.0), 2]]
    for sums, _ in tree["privacy"]["rounds"]:
        sums["parts"] = [[real_to_text(bound), number] for bound, number in parts]
    with pytest.raises((MessageError, UnacceptableRunError)):
        _opened(as_json(tree))


@given(tree=st.sampled_from(TREES), rng=rngs)
@settings(fuzz, max_examples=150)
def test_changed_documents_are_read_or_refused(tree, rng):
    data = mutated_document(rng, as_json(tree))
    with little_memory(64 * MiB):
        run = attempt(lambda: _opened(data), MessageError, UnacceptableRunError)
    if not isinstance(run, Exception):
        assert run.document.data == data


CONFIGURATIONS = {
    "privacy": (plan_from_config, (MessageError,)),
    "domain": (domain_from_config, (ConfigurationError, MessageError)),
    "algorithm": (
        lambda config: algorithm_from_config(config, BOX, PrivacyBudget(1.0, 1e-6)),
        (ConfigurationError, ConfigurationTypeError, MessageError),
    ),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
@given(tree=st.sampled_from(TREES), rng=rngs)
@settings(fuzz, max_examples=100)
def test_configurations_are_read_or_refused(name, tree, rng):
    decode, errors = CONFIGURATIONS[name]
    attempt(lambda: decode(mutated_json(rng, tree[name])), *errors)


@given(st.one_of(st.text(max_size=30), st.floats().map(float.hex), st.sampled_from(POOL)))
@fuzz
def test_reals_have_one_text(text):
    value = attempt(lambda: real_from_text(text), MessageError)
    if not isinstance(value, MessageError):
        assert real_to_text(value) == text


# --------------------------------------------------------------------------- time and memory


def test_deep_documents_are_no_documents():
    """There is a depth at which the interpreter's stack ends within one function or the next."""
    tree = json.dumps(TREES[0] | {"algorithm": "@"}, sort_keys=True, separators=(",", ":"))
    for levels in (30, 31, 100, *range(700, 1001), 10**5):
        data = tree.replace('"@"', '{"a":' + "[" * levels + "]" * levels + "}").encode()
        with pytest.raises(UnacceptableRunError if levels == 30 else MessageError):
            open_run(data)


def _with(path, value, base=0):
    tree = json.loads(json.dumps(TREES[base]))
    *way, last = path.split(".")
    node = tree
    for name in way:
        node = node[int(name) if isinstance(node, list) else name]
    node[last] = value
    return tree


def _wide(d, k, **changes):
    """Return a document of many columns and clusters whose parts fit each other."""
    tree = json.loads(json.dumps(TREES[3]))
    tree["domain"] = Box(np.zeros(d), np.ones(d)).to_config()
    tree["algorithm"] |= {"n_clusters": k, "n_records": 10**9, "fraction_bits": 4} | changes
    tree["rounds"] = tree["algorithm"]["n_rounds"]
    tree["privacy"]["n_records"] = 10**9
    tree["privacy"]["rounds"] = [[]] * tree["rounds"]
    tree["words"] = k * (d + 1) + 1
    return tree


def _laplace(epsilon, rounds, multiplier):
    """Return a document whose releases must be composed numerically."""
    tree = json.loads(json.dumps(TREES[5]))
    real = real_to_text(multiplier)
    releases = [
        {"name": n, "mechanism": "laplace", "norm": "l1", "noise_multiplier": real, "blocks": [n]}
        for n in ("sums", "counts")
    ]
    tree["privacy"]["budget"]["epsilon"] = real_to_text(epsilon)
    tree["privacy"]["rounds"] = [releases] * rounds
    tree["algorithm"]["n_rounds"] = tree["rounds"] = rounds
    return tree


def _parts(epsilon, multiplier, parts):
    """Return a document whose sums are made of many parts, of many sizes."""
    tree = json.loads(json.dumps(TREES[6]))
    tree["privacy"]["budget"]["epsilon"] = real_to_text(epsilon)
    for sums, _ in tree["privacy"]["rounds"]:
        sums["noise_multiplier"] = real_to_text(multiplier)
        sums["parts"] = [[real_to_text(bound), number] for bound, number in parts]
    return tree


HEAVY = {
    "parts": _parts(1.0, 1e4, [(1.0, 2**16)]),
    "more parts": _parts(1.0, 1e4, [(1.0, 2**17)]),
    "many parts": _parts(1.0, 1e4, [(1.0, 2**60)]),
    "parts of many sizes": _parts(1.0, 1e4, [(i / 255, 257) for i in range(1, 256)]),
    "parts of too many sizes": _parts(1.0, 1e4, [(i / 2**16, 1) for i in range(1, 2**15)]),
    "clusters": _with("algorithm.n_clusters", 2**40),
    "clusters at their most": _wide(2, 10_001),
    "columns": _with("domain.n_features", 2**40),
    "rounds": _with("rounds", 10**6),
    "rounds of both": _with("algorithm.n_rounds", 10**6) | {"rounds": 10**6},
    "many rounds and words": _wide(500, 1000, n_rounds=1000),
    "words": _with("words", 2**31 - 1),
    "words by round": _with("words", [2**31 - 1] * 50_000) | {"rounds": 50_000},
    "fraction bits": _with("algorithm.fraction_bits", 2**31),
    "fraction bits at their most": _with("algorithm.fraction_bits", 25),
    "records": _with("algorithm.n_records", 2**53 - 1),
    "seed": _with("algorithm.seed", 2**53 - 1),
    "wide and many": _wide(30_000, 10_000),
    "wide": _wide(45_000, 94),
    "packing": _wide(900, 4000),
    "long text": _with("algorithm.name", "x" * 10**6),
    "long array": _with("algorithm.initial", "A" * 10**6),
    "huge alpha": _with("algorithm.alpha", real_to_text(1e300)),
    "releases": _with("privacy.rounds", [TREES[0]["privacy"]["rounds"][0] * 1500]),
    "empty rounds": _with("privacy.rounds", [[]] * 200_000),
    "huge epsilon": _with("privacy.budget.epsilon", real_to_text(1.7e308)),
    "tiny epsilon": _with("privacy.budget.epsilon", real_to_text(5e-324)),
    "tiny delta": _with("privacy.budget.delta", real_to_text(5e-324)),
    "laplace of epsilon 1e5": _laplace(1e5, 10, 2e-4),
    "laplace of epsilon 1e8": _laplace(1e8, 1, 2e-8),
    "laplace of epsilon 1e300": _laplace(1e300, 1, 1e-100),
    "laplace in many rounds": _laplace(1e3, 1000, 2.0),
    "min_clients": _with("min_clients", 2**32 - 1),
    "min_clients and shares": _with("min_clients", 2**32 - 1, base=1)
    | {"share_variance": f"1/{2**32 - 2}"},
    "more than a mebibyte": _with("run", "0" * MiB),
}


@pytest.mark.parametrize("name", HEAVY)
def test_documents_that_would_cost_minutes_or_gigabytes_cost_neither(name, monkeypatch):
    """What takes long is counted, not timed: pairs of points, and draws of noise."""
    packed, drawn = [], []
    from flower_kmeans import initialization
    from flower_kmeans.privacy import noise

    pack, sampler = initialization._pack, noise.discrete_gaussian
    monkeypatch.setattr(
        initialization,
        "_pack",
        lambda k, w, *rest: packed.append(k * k * len(w)) or pack(k, w, *rest),
    )
    monkeypatch.setattr(
        noise, "discrete_gaussian", lambda v, stream: drawn.append(len(v)) or sampler(v, stream)
    )
    data = as_json(HEAVY[name])
    with little_memory(96 * MiB):
        attempt(lambda: _opened(data), MessageError, UnacceptableRunError)
    assert max(packed, default=0) <= 2**27
    assert sum(drawn) <= 100


def test_sizes_are_compared_before_anything_is_made():
    """Headers that announce gigabytes, in a few bytes."""
    header = (1).to_bytes(4, "little") * 2 + b"\xff" * 4 + bytes(64)
    huge = Round(doc_hash=D, t=1, m=1, index=0, root=D, attempt=1)
    record = to_content(huge)["kmeans"]
    crowd = to_content(Lead(doc_hash=D, pubs=(D,)))["kmeans"]
    crowd["pubs"] = [D] * (2**17 + 1)
    with little_memory(MiB):
        for claim in (header, header + bytes(1000)):
            with pytest.raises(MessageError):
                Entry.unpack(claim)
        for m in (2**17 + 1, 2**32 - 1, 2**40, 2**62):
            with pytest.raises(MessageError):
                unpack_survivors(b"\1", m)
            record["m"], record["path"] = m, bytes(32 * depth(m))
            with pytest.raises(MessageError):
                Round.from_record(record)
        with pytest.raises(MessageError):
            unpack_words(bytes(80), 2**60)
        for shape in ((2**40,), (2**40, 2**40), (10**4, 10**6)):
            with pytest.raises(MessageError):
                array_from_text("AAAA", shape)
    with little_memory(4 * MiB), pytest.raises(MessageError):
        Lead.from_record(crowd)


def test_a_cohort_that_no_run_has_is_refused_with_its_bitmap():
    """A bitmap of a hundred megabytes would cost two vectors of masks for every two bits."""
    entry = (1).to_bytes(4, "little") * 2 + (2**17 + 8).to_bytes(4, "little") + bytes(64)
    bitmap = b"\x55" * (2**14 + 1)
    with pytest.raises(MessageError):
        Entry.unpack(entry + bitmap + bytes(80))
    most = (1).to_bytes(4, "little") * 2 + (2**17).to_bytes(4, "little") + bytes(64)
    assert Entry.unpack(most + b"\x55" * 2**14 + bytes(80)).n_survivors == 2**16


# --------------------------------------------------------------------------- envelopes

# Points of small order, whose shared secret is zero for every key (RFC 7748, section 6.1).
WEAK = [
    (0).to_bytes(32, "little"),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


@pytest.mark.parametrize("point", WEAK, ids=lambda point: point.hex()[:8])
@pytest.mark.parametrize("pinned", [False, True])
def test_weak_points_make_no_envelope_and_open_none(point, pinned):
    own, doc_hash = token(32), hashlib.sha256(b"run").digest()
    with pytest.raises(MessageError):
        keys.make_envelopes(D, [keys.public_key(own), point], doc_hash, token(32))
    with pytest.raises(MessageError):
        keys.open_envelope(bytes(48), point + point, own, doc_hash, pinned=pinned)


@given(rng=rngs)
@fuzz
def test_envelopes_are_opened_or_refused(rng):
    own, secret, doc_hash = rng.randbytes(32), rng.randbytes(32), rng.randbytes(32)
    public = keys.public_key(own)
    leader, envelopes = keys.make_envelopes(secret, [public], doc_hash, rng.randbytes(32))
    assert keys.open_envelope(envelopes[public], leader, own, doc_hash) == secret
    changed = [near_bytes(rng, envelopes[public]), near_bytes(rng, leader), near_bytes(rng, D)]
    for envelope, point, run in (
        (changed[0], leader, doc_hash),
        (envelopes[public], changed[1], doc_hash),
        (envelopes[public], leader, changed[2]),
    ):
        opened = attempt(
            lambda e=envelope, p=point, r=run: keys.open_envelope(e, p, own, r), MessageError
        )
        # X25519 ignores a point's highest bit, but the key is derived from the point as it came.
        unchanged = (envelope, point, run) == (envelopes[public], leader, doc_hash)
        assert isinstance(opened, MessageError) != unchanged
