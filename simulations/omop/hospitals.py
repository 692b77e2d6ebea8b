"""Made-up hospitals with OMOP-like databases: person, visit_occurrence and measurement.

The tables have the names and types of the OMOP common data model, and those of its
columns that the query uses. All persons are drawn from a seed. Three kinds of them
differ in age, in the number of their visits and in their systolic blood pressure, and
each hospital has another mixture.
"""

import sqlite3
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require

MALE, FEMALE, UNKNOWN = 8507, 8532, 0  # gender_concept_id
OUTPATIENT = 9202  # visit_concept_id
SYSTOLIC, MMHG = 3004249, 8876  # measurement_concept_id, unit_concept_id
FIRST_DAY = date(2024, 1, 1)
N_DAYS = 366

# year of birth, visits in a year, blood pressure: mean and deviation, mean, both
KINDS = (
    ((1998, 6), 1.5, (115, 7)),
    ((1972, 7), 6.0, (150, 9)),
    ((1945, 6), 15.0, (128, 8)),
)
# of the kinds, at each hospital
MIXTURES = ((0.6, 0.3, 0.1), (0.2, 0.5, 0.3), (0.1, 0.3, 0.6))

TABLES = {
    "person": {
        "person_id": "INTEGER",
        "gender_concept_id": "INTEGER",
        "year_of_birth": "INTEGER",
    },
    "visit_occurrence": {
        "visit_occurrence_id": "INTEGER",
        "person_id": "INTEGER",
        "visit_concept_id": "INTEGER",
        "visit_start_date": "DATE",
    },
    "measurement": {
        "measurement_id": "INTEGER",
        "person_id": "INTEGER",
        "measurement_concept_id": "INTEGER",
        "measurement_date": "DATE",
        "value_as_number": "NUMERIC",
        "unit_concept_id": "INTEGER",
    },
}
INDICES = (
    "CREATE INDEX visits_of_persons ON visit_occurrence (person_id)",
    "CREATE INDEX measurements_of_persons ON measurement (person_id)",
)


class Hospital(NamedTuple):
    """The rows of a hospital's tables, in the order of `TABLES`."""

    person: list[tuple[Any, ...]]
    visit_occurrence: list[tuple[Any, ...]]
    measurement: list[tuple[Any, ...]]


def hospital(number: int, n_persons: int, seed: int) -> Hospital:
    """Return the tables of one hospital, the same for the same numbers."""
    rng = np.random.default_rng((seed, number))
    made = Hospital([], [], [])
    for person in range(1, n_persons + 1):
        (born, deviation), n_visits, pressure = KINDS[
            rng.choice(3, p=MIXTURES[number % 3])
        ]
        # Some entries are unknown, and some persons were never measured.
        gender = rng.choice([MALE, FEMALE, UNKNOWN], p=[0.48, 0.48, 0.04])
        made.person.append((person, int(gender), round(rng.normal(born, deviation))))
        days = np.sort(rng.integers(0, N_DAYS, rng.poisson(n_visits)))
        for day in days.tolist():
            visited = FIRST_DAY + timedelta(day)
            visit = len(made.visit_occurrence) + 1
            made.visit_occurrence.append((visit, person, OUTPATIENT, visited))
            if rng.random() < 0.8:
                value = round(float(rng.normal(*pressure)), 1)
                row = len(made.measurement) + 1, person, SYSTOLIC, visited, value, MMHG
                made.measurement.append(row)
    return made


def write_sqlite(path: Path, tables: Hospital) -> str:
    """Write a hospital's tables to a new file of SQLite, for its owner, and return its URI."""
    if path.exists():
        raise ConfigurationError(f"Expected {path} as a new file. Got one that exists.")
    path.touch(mode=0o600)  # of its owner alone; SQLite keeps the mode
    with closing(sqlite3.connect(path)) as connection, connection:
        for (name, columns), rows in zip(TABLES.items(), tables, strict=True):
            connection.execute(f"CREATE TABLE {name} ({_declared(columns)})")
            marks = ", ".join("?" for _ in columns)
            # SQLite has no dates: ISO 8601 sorts as they do.
            texts = ([_iso(cell) for cell in row] for row in rows)
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", texts)  # noqa: S608
        for index in INDICES:
            connection.execute(index)
    return f"sqlite:///{path}"


def write_postgresql(uri: str, schema: str, tables: Hospital) -> str:
    """Write a hospital's tables to a new schema of a database, and return the URI of both."""
    driver = require("adbc_driver_postgresql.dbapi", "A PostgreSQL database", "sql")
    pyarrow = require("pyarrow", "A PostgreSQL database", "sql")
    of_schema = f"{uri}{'&' if '?' in uri else '?'}options=-csearch_path%3D{schema}"
    with (
        closing(driver.connect(uri)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        try:
            cursor.execute(f"CREATE SCHEMA {schema}")
        except driver.Error:
            raise ConfigurationError(
                f"Expected a database where the schema {schema} is new and may be made."
            ) from None
        connection.commit()
    with (
        closing(driver.connect(of_schema)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        for (name, columns), rows in zip(TABLES.items(), tables, strict=True):
            cells = zip(*rows, strict=True)
            arrays = dict(zip(columns, map(list, cells), strict=True))
            cursor.adbc_ingest(name, pyarrow.table(arrays), mode="create")
            for column, kind in columns.items():
                cursor.execute(f"ALTER TABLE {name} ALTER {column} TYPE {kind}")
        for index in INDICES:
            cursor.execute(index)
        connection.commit()
    return of_schema


def _declared(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _iso(cell: Any) -> Any:
    return cell.isoformat() if isinstance(cell, date) else cell
