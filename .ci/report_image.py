"""Make docs/images/report.png: the top of the page of a run over a made-up table.

``python .ci/report_image.py`` needs Chromium and Pillow. The records are made up by a
seed, and the noise of the run is new each time.
"""

import shutil
import subprocess
import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path

import numpy as np
from PIL import Image

from flower_kmeans import PrivacyBudget, TableDomain, html_report, simulate
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.strategies import SynopsisKMeans

TARGET = Path(__file__).parents[1] / "docs/images/report.png"
WIDTH = 1280
HEIGHT = 1680
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

N_RECORDS = 6_000
FIRST_DAY = date(2020, 1, 1)
WARDS = ("cardiology", "surgery", "geriatrics", "paediatrics")
DOMAIN = TableDomain(
    [
        Number("age", 0, 110),
        Number("days in hospital", 0, 60),
        Category("ward", WARDS),
        Number("systolic pressure", 80, 220),
        Number("creatinine", 0.2, 12, scale="log"),
        Date("admitted", FIRST_DAY, date(2024, 12, 31)),
        Number("medicines", 0, 30),
        Category("discharged to", ("home", "nursing home", "other hospital")),
    ]
)
# of each kind of stay
AGES = np.array([31, 74, 8, 62, 83])
DAYS = np.array([3, 13, 2, 7, 25])
OF_WARDS = np.array(
    [
        [0.1, 0.8, 0.1, 0.0],
        [0.75, 0.1, 0.15, 0.0],
        [0.0, 0.1, 0.0, 0.9],
        [0.1, 0.85, 0.05, 0.0],
        [0.05, 0.05, 0.9, 0.0],
    ]
)
AT_HOME = np.array([0.95, 0.7, 0.98, 0.85, 0.4])


def records() -> np.ndarray:
    """Return made-up stays in hospital, (n, d), as the domain encodes them."""
    rng = np.random.default_rng(0)
    kinds = rng.choice(5, N_RECORDS, p=[0.25, 0.25, 0.1, 0.2, 0.2])
    wards = [WARDS[rng.choice(4, p=OF_WARDS[kind])] for kind in kinds]
    at_home = rng.random(N_RECORDS) < AT_HOME[kinds]
    admitted = 250 * kinds + rng.uniform(0, 700, N_RECORDS)
    table = {
        "age": np.clip(AGES[kinds] + rng.normal(0, 6, N_RECORDS), 0, 110),
        "days in hospital": DAYS[kinds] * rng.lognormal(0, 0.4, N_RECORDS),
        "ward": np.array(wards),
        "systolic pressure": 118 + 9 * kinds + rng.normal(0, 12, N_RECORDS),
        "creatinine": np.exp(rng.normal(0.12 * kinds, 0.3)),
        "admitted": np.array([str(FIRST_DAY + timedelta(int(x))) for x in admitted]),
        "medicines": 3 * kinds + rng.poisson(2, N_RECORDS),
        "discharged to": np.where(at_home, "home", "nursing home"),
    }
    texts = {name: column.astype(str) for name, column in table.items()}
    return DOMAIN.encode(texts)


def main() -> None:
    """Run, draw the page, and write the picture."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("Expected Chromium on this machine. Got none.")
    strategy = SynopsisKMeans(
        5, DOMAIN, PrivacyBudget(1.0), n_records=N_RECORDS, n_clients=5
    )
    page = html_report(simulate(strategy, np.array_split(records(), 5)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(page, "utf-8")
        picture = Path(folder) / "report.png"
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
            f"--window-size={WIDTH},{HEIGHT}",
            f"--screenshot={picture}",
        ]
        subprocess.run([browser, *options, path.as_uri()], check=True)
        with Image.open(picture) as opened:
            colours = opened.convert("RGB").quantize(128)
            colours.save(TARGET, optimize=True)


if __name__ == "__main__":
    main()
