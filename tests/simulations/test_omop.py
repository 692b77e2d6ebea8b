"""The example of three hospitals with databases: its persons are found, whatever has the tables."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from databases import postgresql
from scripts import load_script

from flower_kmeans.data.sql import SqlQuery

pytestmark = pytest.mark.claim("own-data", "example-has-omop-like")

FOLDER = Path(__file__).parents[2] / "simulations" / "omop"
KINDS = [(1998, 1.5, 115), (1972, 6.0, 150), (1945, 15.0, 128)]


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "cluster", FOLDER)


def found_kinds(text):
    """Return the centroids that the script printed, (k, 3): year of birth, visits, pressure."""
    header, *lines = text.splitlines()
    assert header.split() == [
        "size", "year_of_birth", "sex=female", "sex=male", "sex=unknown", "visits", "systolic",
    ]  # fmt: skip
    assert lines[-1].startswith("epsilon 4, delta 1.0e-06")
    rows = np.array([line.split() for line in lines[:-1]], dtype=float)
    return rows[:, [1, 5, 6]], rows[:, 0], rows[:, 2:5]


def test_it_finds_the_kinds_of_persons(script, tmp_path, capsys):
    arguments = [
        "--output",
        str(tmp_path / "out"),
        "--persons",
        "1000",
        "--epsilon",
        "4",
    ]
    assert script.main(arguments) == 0
    centroids, sizes, sexes = found_kinds(capsys.readouterr().out)
    assert len(centroids) == 7
    assert 2500 < sizes.sum() < 3500
    known = sexes[:, 2] < 0.5
    for kind in KINDS:
        near = (np.abs(centroids[known] - kind) < [6, 2.5, 6]).all(axis=1)
        assert near.sum() == 2, f"{near.sum()} clusters of {kind}"  # one of each sex
    assert script.main(arguments) == 1
    assert "exists" in capsys.readouterr().err


def test_there_is_one_row_for_each_person_which_follows_from_its_entries(
    script, tmp_path
):
    uris = script.make_hospitals(tmp_path, 40, 1, None)
    query = SqlQuery(uris[1], script.QUERY, script.DOMAIN)
    (before,) = query.blocks()
    assert len(before["visits"]) == 40
    with (
        closing(sqlite3.connect(uris[1].removeprefix("sqlite:///"))) as connection,
        connection,
    ):
        for table in ("person", "visit_occurrence", "measurement"):
            connection.execute(f"DELETE FROM {table} WHERE person_id = 7")  # noqa: S608
    (after,) = query.blocks()
    for name in query.names:
        assert after[name].tolist() == [
            *before[name][:6].tolist(),
            *before[name][7:].tolist(),
        ]


@pytest.mark.thorough
def test_postgresql_has_the_same_records(script, tmp_path, capsys):
    pytest.importorskip("adbc_driver_postgresql")
    with postgresql() as server:
        theirs = script.make_hospitals(tmp_path, 50, 3, server)
        ours = script.make_hospitals(tmp_path, 50, 3, None)
        for pair in zip(theirs, ours, strict=True):
            records = [
                script.DOMAIN.encode(block, "nan")
                for uri in pair
                for block in SqlQuery(
                    uri, f"{script.QUERY} ORDER BY person_id"
                ).blocks()
            ]
            np.testing.assert_allclose(records[0], records[1], rtol=1e-12)
        assert script.main(["--postgresql", server, "--persons", "50"]) == 1
        assert "made_up_hospital_0 is new" in capsys.readouterr().err
