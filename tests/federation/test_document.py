"""The run document: one text, checked on both sides."""

import hashlib
import json

import pytest

from flower_kmeans.canonical import canonical_bytes
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.federation.document import RunDocument, VersionError

PRIVATE = {
    "run": "00112233445566778899aabbccddeeff",
    "trust": "oblivious-server",
    "keys": "file",
    "opening": "none",
    "algorithm": {"name": "fastlloyd", "alpha": "0x1.999999999999ap-1"},
    "domain": {"kind": "box"},
    "privacy": {"epsilon": "0x1.0000000000000p+0"},
    "words": 46,
    "rounds": 7,
    "min_clients": 5,
    "max_attempts": 2,
    "sampler": "rounded-gaussian/1",
}
SHARED = PRIVATE | {
    "trust": "distributed-noise",
    "opening": "simple",
    "colluders": 2,
    "share_variance": "1/3",
    "sampler": "discrete-gaussian/1",
}
PLAIN = PRIVATE | {"trust": "plain", "keys": "none", "sampler": "none"}
TRUSTED = PRIVATE | {"trust": "trusted-server", "keys": "none"}


@pytest.mark.parametrize("values", [PRIVATE, SHARED, PLAIN, TRUSTED], ids=lambda v: v["trust"])
def test_documents_survive_the_wire(values):
    document = RunDocument(**values)
    assert document.doc_hash == hashlib.sha256(document.data).digest()
    assert json.loads(document.data)["protocol"] == "flower-kmeans/1"
    assert RunDocument.parse(document.data) == document
    assert hash(RunDocument(**values)) == hash(document)
    assert document.is_masked == (values["trust"] in ("oblivious-server", "distributed-noise"))
    assert document.shares == (3 if values is SHARED else 1)


def test_words_by_round():
    document = RunDocument(**PRIVATE | {"words": (5, 6, 7), "rounds": 3})
    assert [document.words_of(t) for t in (1, 2, 3)] == [5, 6, 7]
    assert RunDocument.parse(document.data) == document
    assert RunDocument(**PRIVATE).words_of(7) == 46


BAD = [
    (PRIVATE, {"run": "00"}),
    (PRIVATE, {"run": PRIVATE["run"].upper()}),
    (PRIVATE, {"run": PRIVATE["run"] + "\n"}),
    (PRIVATE, {"run": 7}),
    (PRIVATE, {"trust": "blind"}),
    (PRIVATE, {"trust": ["plain"]}),
    (PRIVATE, {"keys": "none"}),
    (PRIVATE, {"opening": "simple"}),
    (PRIVATE, {"colluders": 1}),
    (PRIVATE, {"share_variance": "1/5"}),
    (PRIVATE, {"algorithm": "fastlloyd"}),
    (PRIVATE, {"algorithm": {"alpha": 0.8}}),
    (PRIVATE, {"domain": None}),
    (PRIVATE, {"privacy": []}),
    (PRIVATE, {"words": 1}),
    (PRIVATE, {"words": True}),
    (PRIVATE, {"words": (46, 46)}),
    (PRIVATE, {"words": (1,) * 7}),
    (PRIVATE, {"rounds": 0}),
    (PRIVATE, {"rounds": 2.0}),
    (PRIVATE, {"min_clients": 0}),
    (PRIVATE, {"max_attempts": 0}),
    (PRIVATE, {"max_attempts": 4}),
    (PRIVATE, {"sampler": ""}),
    (PRIVATE, {"sampler": None}),
    (PLAIN, {"keys": "file"}),
    (TRUSTED, {"keys": "relayed"}),
    (SHARED, {"opening": "none"}),
    (SHARED, {"colluders": 0}),
    (SHARED, {"colluders": 5, "share_variance": "1/0"}),
    (SHARED, {"share_variance": "1/4"}),
    (SHARED, {"share_variance": "none"}),
    (SHARED, {"sampler": "none"}),
    (SHARED, {"min_clients": 1, "colluders": 1}),
]


@pytest.mark.parametrize(("base", "changes"), BAD)
def test_bad_documents_are_refused_on_both_sides(base, changes):
    with pytest.raises(ConfigurationError):
        assert RunDocument(**base | changes).data
    full = json.loads(RunDocument(**base).data) | changes
    try:
        sent = canonical_bytes(full | {"words": full["words"]})
    except MessageError:
        sent = json.dumps(full, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(MessageError):
        RunDocument.parse(sent)


@pytest.mark.parametrize("name", [*SHARED, "protocol"])
def test_every_field_is_required(name):
    values = json.loads(RunDocument(**SHARED).data)
    del values[name]
    with pytest.raises(MessageError):
        RunDocument.parse(canonical_bytes(values))


def test_unknown_fields_and_versions_are_refused():
    values = json.loads(RunDocument(**SHARED).data)
    with pytest.raises(MessageError):
        RunDocument.parse(canonical_bytes(values | {"surprise": 1}))
    with pytest.raises(VersionError):
        RunDocument.parse(canonical_bytes(values | {"protocol": "flower-kmeans/2", "new": 1}))


def test_only_the_canonical_text_counts():
    data = RunDocument(**PRIVATE).data
    for other in (data + b" ", data.replace(b":", b": ", 1), data[:-1], b"", b"[]", b"\xff"):
        with pytest.raises(MessageError):
            RunDocument.parse(other)
    doubled = data[:-1] + b',"run":"00112233445566778899aabbccddeeff"}'
    with pytest.raises(MessageError):
        RunDocument.parse(doubled)
    # Neither is anything that only Python's parser takes for JSON, however deep.
    for odd in (b'{"words":NaN}', b"[" * 100_000, b'{"a":' * 50_000):
        with pytest.raises(MessageError):
            RunDocument.parse(odd)
