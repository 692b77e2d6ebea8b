"""What a holder is told of the persons of a table: numbers, and never an id."""

import numpy as np
import pytest

from flower_kmeans.data.person_findings import PersonFindings
from flower_kmeans.data.weights import MOST_WEIGHT


def found(*ids):
    """Return the findings on ids, which come in two blocks."""
    findings = PersonFindings("patient")
    half = len(ids) // 2
    findings.add(ids[:half])
    findings.add(ids[half:])
    return findings


def visits(n_persons, each=2):
    return [f"P{i}" for i in range(1000, 1000 + n_persons) for _ in range(each)]


@pytest.mark.parametrize(
    ("ids", "persons", "mean", "largest"),
    [
        ([], 0, 0.0, 0),
        (["a", "b", "a", "a"], 2, 2.0, 3),
        (["a", None, None, "a"], 3, 4 / 3, 2),
        ([None, None], 2, 1.0, 1),
    ],
)
def test_persons_and_their_numbers_of_records(ids, persons, mean, largest):
    findings = found(*ids)
    assert findings.n_records == len(ids)
    assert findings.n_persons == persons
    assert findings.mean == pytest.approx(mean)
    assert findings.largest == largest


def test_the_summary_has_numbers_and_no_id():
    findings = found(*visits(1500), *["P1000"] * 7)
    assert findings.summary() == (
        "1,500 persons by 'patient': 2.0 records each on average, 9 at most."
    )
    assert findings.doubts() == []


def test_records_without_an_id_are_counted():
    (doubt,) = found(*visits(200), None, None).doubts()
    assert doubt == "2 records without an id: each counts as one person."


@pytest.mark.parametrize("sentinel", ["nobody", "0", "-1"])
def test_an_id_of_many_records_may_stand_for_unknown_persons(sentinel):
    usual = visits(500)
    assert found(*usual, *[sentinel] * 10).n_frequent == 0
    findings = found(*usual, *[sentinel] * 11)
    assert findings.n_frequent == 1
    (doubt,) = findings.doubts()
    assert doubt.startswith("1 id with more than 1 % of all records")


def test_an_id_of_more_than_w_records_is_remarked_on_in_any_table():
    usual = visits(MOST_WEIGHT * 60)
    assert found(*usual, *["x"] * MOST_WEIGHT).n_frequent == 0
    assert found(*usual, *["x"] * (MOST_WEIGHT + 1)).n_frequent == 1


def test_an_id_with_one_record_is_never_frequent():
    assert found("a", "b").n_frequent == 0


@pytest.mark.parametrize(
    ("ids", "n_alike"),
    [
        (["a", "A"], 2),
        (["7", "007", "07", "8"], 3),
        (["P-7", "P-007"], 2),
        (["A 1", "A1", "a  01"], 3),
        (["70", "7"], 0),
        (["1.05", "1.5"], 0),
        (["a", "b", "a"], 0),
        (["0", "00"], 2),
    ],
)
def test_ids_that_differ_in_their_spelling_only(ids, n_alike):
    findings = found(*ids)
    assert findings.n_alike == n_alike
    told = [doubt for doubt in findings.doubts() if "differing" in doubt]
    assert bool(told) == bool(n_alike)


def test_persons_of_many_records_lose_weight():
    half = MOST_WEIGHT // 2
    usual = visits(half * 60)
    assert found(*usual, *["x"] * half).n_lightened == 0
    findings = found(*usual, *["x"] * (half + 1))
    assert findings.n_lightened == 1
    assert any(
        doubt.startswith("1 person with more than 2,048 records: up to half")
        for doubt in findings.doubts()
    )


def test_blocks_change_nothing():
    ids = [*visits(300, 3), None, "X", "x"]
    order = np.random.default_rng(1).permutation(len(ids))
    shuffled = [ids[i] for i in order]
    assert found(*ids) == found(*shuffled)


def test_no_repr_shows_an_id():
    assert "P1000" not in repr(found(*visits(3)))
