"""Vectors of texts for benchmarks/embeddings.py, from a file of lines, in NAME.npy.

    python benchmarks/embedding_sets.py wordllama LINES.txt DIR/words_30000_256.npy \
        --rows 30000 --columns 256
    python benchmarks/embedding_sets.py tfidf LINES.txt DIR/terms_24000_768.npy \
        --rows 24000 --columns 768

Each line is a text. Lines with fewer than 30 characters and repeated lines are left
out, and ``--rows`` of the others are drawn, always the same. Texts without a known word
have no direction and are left out too.

wordllama    the mean of the vectors of a text's tokens, their first ``--columns``. They
             are static vectors in the package wordllama, which need not be imported:
             ``--package`` is a folder with its unpacked wheel, by default the installed
             package. The package tokenizers reads the texts.
tfidf        TF-IDF of words in at least three texts, projected by a truncated SVD.
"""

import argparse
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

Vectors = NDArray[np.float32]

_FEWEST_CHARACTERS = 30
_FEWEST_TEXTS = 3  # with a word, so that it counts
_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"


def lines_of(file: Path, n_rows: int | None) -> list[str]:
    """Return the long lines of a file, each once, or as many as are wanted, at random."""
    texts = file.read_text(encoding="utf-8", errors="replace").splitlines()
    stripped = (text.strip() for text in texts)
    found = list(
        dict.fromkeys(text for text in stripped if len(text) >= _FEWEST_CHARACTERS)
    )
    if n_rows is None or n_rows >= len(found):
        return found
    chosen = np.random.default_rng(0).permutation(len(found))[:n_rows]
    return [found[i] for i in chosen]


def table_of_tokens(file: Path) -> Vectors:
    """Return the only table of a safetensors file, (tokens, columns)."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    (described,) = header.values()
    kinds = {"F16": "<f2", "F32": "<f4"}
    start, stop = described["data_offsets"]
    words = data[8 + size + start : 8 + size + stop]
    table = np.frombuffer(words, kinds[described["dtype"]])
    return table.reshape(described["shape"]).astype(np.float32)


def wordllama(texts: Sequence[str], n_columns: int, package: Path) -> Vectors:
    """Return the means of the vectors of each text's tokens, (n, columns)."""
    from tokenizers import Tokenizer

    table = table_of_tokens(package / _WEIGHTS)[:, :n_columns]
    tokenizer = Tokenizer.from_file(str(package / _TOKENIZER))
    found = np.zeros((len(texts), n_columns), dtype=np.float32)
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    for row, encoding in zip(found, encodings, strict=True):
        if encoding.ids:
            row[:] = table[encoding.ids].mean(axis=0)
    return found


def tfidf(texts: Sequence[str], n_columns: int) -> Vectors:
    """Return projections of the texts' TF-IDF, (n, columns)."""
    terms = TfidfVectorizer(
        min_df=_FEWEST_TEXTS, sublinear_tf=True, stop_words="english"
    )
    weights = terms.fit_transform(texts)
    found = TruncatedSVD(n_columns, random_state=0).fit_transform(weights)
    return np.asarray(found, dtype=np.float32)


def folder_of_package(given: Path | None) -> Path:
    """Return the folder of the package wordllama, without importing it."""
    if given is not None:
        return given
    found = find_spec("wordllama")
    if found is None or found.origin is None:
        raise SystemExit("Install wordllama, or give --package.")
    return Path(found.origin).parent


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the vectors of the texts of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["wordllama", "tfidf"])
    parser.add_argument("lines", type=Path, help="file of texts, one a line")
    parser.add_argument("out", type=Path, help="file of vectors, .npy")
    parser.add_argument("--rows", type=int, help="texts to draw; all by default")
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--package", type=Path, help="folder of the package wordllama")
    options = parser.parse_args(arguments)
    texts = lines_of(options.lines, options.rows)
    if options.kind == "tfidf":
        vectors = tfidf(texts, options.columns)
    else:
        folder = folder_of_package(options.package)
        vectors = wordllama(texts, options.columns, folder)
    known = np.linalg.norm(vectors, axis=1) > 0
    np.save(options.out, vectors[known])
    print(f"{options.out}: {int(known.sum()):,} vectors of {options.columns} columns")


if __name__ == "__main__":
    main()
