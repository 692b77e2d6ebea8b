"""Each input of docs/tables/inputs.md is read, or refused, as its row says."""

from pathlib import Path

import numpy as np
import pytest
from inputs import INPUTS, outcome, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tables" / "inputs.md"
FEWEST = 60


def require(expected, found, said):
    if isinstance(expected, str):
        assert found is None, said
        assert expected in said
    else:
        assert found is not None, said
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("made", INPUTS, ids=lambda made: made.what)
def test_a_command_and_a_node_read_the_same_bytes_the_same_way(made, tmp_path):
    found, said = outcome(made, tmp_path, node=False)
    require(made.records, found, said)
    at_node, said = outcome(made, tmp_path, node=True)
    require(made.records if made.node is None else made.node, at_node, said)
    if found is not None and at_node is not None and made.header is True:
        # A node drops no row, so that ids keep their places, and has the same usable
        # records.
        usable = at_node[np.isfinite(at_node).all(axis=1)]
        assert made.what.startswith("no header") or np.array_equal(usable, found)


def test_the_page_has_what_happens():
    """To make it anew: ``python tests/support/inputs.py``."""
    assert len(INPUTS) >= FEWEST
    assert len({made.what for made in INPUTS}) == len(INPUTS)
    assert table() in PAGE.read_text("utf-8")
