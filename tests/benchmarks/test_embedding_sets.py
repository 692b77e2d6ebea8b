"""Vectors of texts: the lines that count, TF-IDF, and means of the vectors of tokens."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scripts import load_script

WORDS = [
    "apple",
    "banana",
    "cherry",
    "grape",
    "lemon",
    "mango",
    "melon",
    "orange",
    "peach",
    "pear",
    "plum",
    "quince",
]


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "embedding_sets")


@pytest.fixture
def lines(tmp_path):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 8)) for _ in range(60)]
    file = tmp_path / "lines.txt"
    unknown = "nothing anybody else has ever written"
    file.write_text("\n".join([*texts, texts[0], "too short", "", unknown]))
    return file


def test_short_and_repeated_lines_do_not_count(script, lines):
    found = script.lines_of(lines, None)
    assert len(found) == len(set(found)) == 61
    some = script.lines_of(lines, 10)
    assert some == script.lines_of(lines, 10)
    assert len(some) == 10
    assert set(some) < set(found)


def test_tfidf_of_lines(script, lines, tmp_path):
    out = tmp_path / "terms.npy"
    script.main(["tfidf", str(lines), str(out), "--columns", "5"])
    vectors = np.load(out)
    # A text without a word of three texts has no direction.
    assert vectors.shape == (60, 5)
    assert vectors.dtype == np.float32


def test_means_of_the_vectors_of_tokens(script, lines, tmp_path, monkeypatch):
    class Tokenizer:
        @classmethod
        def from_file(cls, path):
            assert path.endswith(".json")
            return cls()

        def encode_batch(self, texts, add_special_tokens):
            assert not add_special_tokens
            return [
                SimpleNamespace(
                    ids=[WORDS.index(word) for word in text.split() if word in WORDS]
                )
                for text in texts
            ]

    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Tokenizer))
    table = np.arange(len(WORDS) * 4, dtype="<f2").reshape(-1, 4)
    described = {"dtype": "F16", "shape": list(table.shape), "data_offsets": [0, 96]}
    header = json.dumps({"__metadata__": {}, "embedding.weight": described}).encode()
    file = tmp_path / script._WEIGHTS
    file.parent.mkdir()
    file.write_bytes(len(header).to_bytes(8, "little") + header + table.tobytes())
    out = tmp_path / "words.npy"
    chosen = ["--columns", "3", "--package", str(tmp_path)]
    script.main(["wordllama", str(lines), str(out), *chosen])
    vectors = np.load(out)
    text = script.lines_of(lines, None)[0].split()
    expected = table[[WORDS.index(word) for word in text], :3].mean(axis=0, dtype="f4")
    assert vectors.shape == (60, 3)
    np.testing.assert_allclose(vectors[0], expected, rtol=1e-6)


def test_the_package_must_be_there(script, monkeypatch):
    monkeypatch.setattr(script, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="--package"):
        script.folder_of_package(None)
