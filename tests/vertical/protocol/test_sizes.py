"""The largest vertical runs: what a message of them holds."""

import itertools
from typing import get_args

import pytest
from vertical_runs import make_algorithm, make_run

from flower_kmeans.protocol.wire import MAX_MESSAGE
from flower_kmeans.vertical.protocol import parcels
from flower_kmeans.vertical.protocol.messages import VerticalStep


@pytest.mark.claim("protocol", "message-holds-at-most")
@pytest.mark.parametrize("radius", [False, True])
@pytest.mark.parametrize("n_clusters", [2, 5, 16])
@pytest.mark.parametrize("holders", [1, 2, 3])
def test_every_message_of_the_largest_runs_has_room(n_clusters, holders, radius):
    """Parts hold 240 MB, and a holder receives the shares of all others at once."""
    widths = (3, 2, 2, 2)
    options = {
        "n_clusters": n_clusters,
        "n_rounds": 1,
        "initial": None,
        "n_records": 2**20,
    }
    run = make_run(
        widths, make_algorithm(widths, key_holders=holders, radius=radius, **options)
    )
    for slot, step in itertools.product(range(4), get_args(VerticalStep)):
        t = 1 if step in ("step", "open") else 0
        planned = parcels.planned(run, slot, step, t)
        if not planned:  # another slot's step
            continue
        assert all(each.n_bytes <= 200 * 10**6 for each in planned)
        parts = parcels.in_parts(planned)
        assert [each for part in parts for each in part] == list(planned)
        assert all(sum(each.n_bytes for each in part) <= 240 * 10**6 for part in parts)
        keys = [each.number for each in parts[0] if each.number < parcels.IDS]
        assert (
            keys == [each.number for each in planned if each.number < parcels.IDS] or t
        )
        mail = parcels.due(run, slot, step, t) if (step, t) != ("step", 1) else ()
        assert sum(each.n_bytes for each in mail) < MAX_MESSAGE - 2**20
