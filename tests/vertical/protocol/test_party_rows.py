"""A party's records as columns: categories, and cells that are missing."""

from types import SimpleNamespace

import numpy as np
import pytest
from vertical_runs import N_RECORDS, make_algorithm, make_run

from flower_kmeans import Box
from flower_kmeans.protocol.run import UnacceptableRunError
from flower_kmeans.vertical.protocol.party_rows import PartyRows

DOMAIN = Box([0] * 4, [1] * 4, categories=[(1, 4)])
INITIAL = [[0.3, 1, 0, 0], [0.7, 0, 1, 0]]


def columns_of(records, caplog):
    """Return the columns of a party that holds the category, on the grid."""
    algorithm = make_algorithm((1, 3), domain=DOMAIN, initial=INITIAL)
    run = make_run((1, 3), algorithm)
    own = SimpleNamespace(
        algorithm=algorithm,
        body=run.document.body,
        slot=1,
        session=SimpleNamespace(digest=b""),
        shape=SimpleNamespace(moduli=SimpleNamespace(radius=False)),
        doc_hash=run.doc_hash,
    )
    rows = PartyRows(own, None, lambda: records, None)
    widths = DOMAIN.grid_half_widths(algorithm.fraction_bits)[1:]
    return np.rint(rows.columns * widths), algorithm.fraction_bits


def test_a_missing_category_is_none_of_its_levels(caplog):
    """Its columns are the middle of the levels; another block is the nearest level."""
    levels = np.eye(3)[np.arange(N_RECORDS) % 3]
    records = levels.copy()
    records[:3] = [[np.nan] * 3, [0.1, 0.7, 0.7], [0, 0, 9]]
    records[3:5] = [[np.nan, 1, 0], [0, 1, np.inf]]  # missing in part is missing
    found, q = columns_of(records, caplog)
    low, high = (int(ends[1]) for ends in DOMAIN.grid_bounds(q))
    expected = np.where(levels == 1, high, low)
    expected[:3] = [[0, 0, 0], [low, high, low], [low, low, high]]
    expected[3:5] = 0
    np.testing.assert_array_equal(found, expected)
    (moved,) = [
        each.getMessage().partition(": ")[2]
        for each in caplog.records
        if each.name == "flower_kmeans.data"
    ]
    # those of the missing cell do not count
    assert moved == (
        f"values moved to the bounds, of {N_RECORDS} records: "
        "2 of 'column 3', 1 of 'column 1', 1 of 'column 2'."
    )


def test_a_document_that_divides_a_category_is_not_accepted():
    algorithm = make_algorithm((2, 2), domain=DOMAIN, initial=INITIAL)
    with pytest.raises(UnacceptableRunError, match="all columns of a category"):
        make_run((2, 2), algorithm)
