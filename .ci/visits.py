"""Make up the visits of the documents: ``python .ci/visits.py``, to ``docs/visits.csv``.

2,000 patients of five clinics have one to five visits each, of four kinds. Nobody real
is in the table, so other users may read it.
"""

import sys
from pathlib import Path

import numpy as np

FILE = Path(__file__).resolve().parent.parent / "docs" / "visits.csv"
MEANS = np.array([(8, 25), (45, 15), (70, 35), (35, 60)])  # age, minutes
DEVIATIONS = np.array([(3, 5), (7, 4), (6, 7), (6, 9)])
N_PATIENTS = 2_000
MOST_VISITS = 5
CLINICS = "ABCDE"


def table() -> str:
    """Return the table as csv."""
    rng = np.random.default_rng(3)
    n_visits = rng.integers(1, MOST_VISITS + 1, N_PATIENTS)
    patients = np.repeat(np.arange(N_PATIENTS), n_visits)
    kinds = rng.integers(0, len(MEANS), N_PATIENTS)[patients]
    numbers = rng.normal(MEANS[kinds], DEVIATIONS[kinds])
    numbers = np.maximum(numbers.round().astype(int), 1)
    lines = ["clinic,patient,age,minutes"]
    for patient, (age, minutes) in zip(patients, numbers, strict=True):
        clinic = CLINICS[patient % len(CLINICS)]
        lines.append(f"{clinic},{1000 + patient},{age},{minutes}")
    # In no order, as a calendar of five clinics: the first lines have all kinds.
    first, *others = lines
    rng.shuffle(others)
    return "\n".join([first, *others]) + "\n"


if __name__ == "__main__":
    sys.exit(FILE.write_text(table(), "utf-8") == 0)
