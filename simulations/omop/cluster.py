"""Three hospitals cluster their patients, whose records lie in OMOP-like databases.

    python simulations/omop/cluster.py python simulations/omop/cluster.py --postgresql
    "postgresql://ann@db.example/research"

The script makes the hospitals' tables, from a seed: as files of SQLite in ``--output``,
or as new schemas in a PostgreSQL database. The query gives one row for each person.
Each hospital is one client of a private run, whose centroids and noisy sizes are
printed.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from hospitals import MIXTURES, hospital, write_postgresql, write_sqlite

from flower_kmeans import PrivacyBudget, TableDomain, simulate
from flower_kmeans.data.sql import SqlQuery
from flower_kmeans.errors import KMeansError
from flower_kmeans.report.clustering import Clustering
from flower_kmeans.strategies import SynopsisKMeans

FOLDER = Path(__file__).parent
QUERY = (FOLDER / "persons.sql").read_text("utf-8")
DOMAIN = TableDomain.from_file(FOLDER / "domain.toml")
N_CLUSTERS = 7
"""Three kinds of persons of each sex, and those of unknown sex."""


def make_hospitals(
    output: Path, n_persons: int, seed: int, postgresql: str | None
) -> list[str]:
    """Make the databases of all hospitals, and return their URIs."""
    uris = []
    for number in range(len(MIXTURES)):
        tables = hospital(number, n_persons, seed)
        if postgresql is None:
            uris.append(write_sqlite(output / f"hospital-{number}.db", tables))
        else:
            uris.append(
                write_postgresql(postgresql, f"made_up_hospital_{number}", tables)
            )
    return uris


def cluster(
    uris: Sequence[str], n_records: int, epsilon: float, seed: int
) -> Clustering:
    """Return the private clustering of the persons in some databases, one for each client."""
    strategy = SynopsisKMeans(
        N_CLUSTERS,
        DOMAIN,
        PrivacyBudget(epsilon),
        n_records=n_records,
        n_clients=len(uris),
        seed=seed,
    )
    return simulate(strategy, [SqlQuery(uri, QUERY, DOMAIN) for uri in uris])


def lines_of(clustering: Clustering) -> list[str]:
    """Return centroids and noisy sizes as lines of a table."""
    columns = DOMAIN.decode(clustering.centroids)
    sizes = clustering.counts
    lines = ["  ".join(f"{name:>13}" for name in ("size", *columns))]
    for place, size in enumerate(sizes):
        cells = [f"{columns[name][place]:13.1f}" for name in columns]
        lines.append("  ".join((f"{size:13.0f}", *cells)))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Make hospitals, cluster their persons and print the result; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--postgresql", metavar="URI", help="where to make schemas, for tables"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("omop-out"), help="of SQLite's files"
    )
    parser.add_argument("--persons", type=int, default=2_000, help="at each hospital")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        if given.postgresql is None:
            given.output.mkdir(parents=True, exist_ok=True)
        uris = make_hospitals(given.output, given.persons, given.seed, given.postgresql)
        # Public knowledge: what the hospitals publish as their numbers of patients.
        clustering = cluster(uris, given.persons * len(uris), given.epsilon, given.seed)
    except KMeansError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines_of(clustering)))
    report = clustering.report
    print(f"epsilon {report.epsilon:g}, delta {report.delta:.1e}, for each person")
    return 0


if __name__ == "__main__":
    sys.exit(main())
