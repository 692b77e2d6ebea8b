"""The client's side of the protocol, by real messages."""

from pathlib import Path

import pytest

from tests.support.cohorts import TRUSTS, Cohort

KEYS = ("roster", "relayed")


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("ledger", [False, True])
def test_a_run_gives_all_clients_one_result(
    tmp_path: Path, trust: str, keys: str, ledger: bool
) -> None:
    cohort = Cohort(tmp_path, trust, keys, ledger=ledger).play()
    assert not cohort.refusals
    results = [node.results for node in cohort.nodes]
    assert all(len(found) == 1 for found in results)
    assert len({found[0].centroids.tobytes() for found in results}) == 1
