"""Every code block of the documents runs, or stands in the table below with the reason."""

import csv
import re
import runpy
import shutil
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pytest
from click import UsageError
from pages import (
    PAGES,
    ROOT,
    Block,
    blocks,
    commands,
    page_id,
    run_command,
    run_page,
    treatment,
)

from flower_kmeans import Box
from flower_kmeans.algorithms import registry
from flower_kmeans.files import open_private
from flower_kmeans.report.names import cluster_names
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity

pytestmark = pytest.mark.usefixtures("quiet")

# Parts of the commands in the table below.
LOCALLY = (
    'local --stream --federation-config "num-supernodes={} client-resources-num-cpus=1"'
)
MEMBERS = [f"from-{name}/roster.toml" for name in "abc"]
NODE_KEY = "--auth-supernode-private-key node/node.key"
RUN = (
    "flwr run simulations/deployment/app deployment --stream "
    '--run-config \'n-clients=3 report="/srv/report.json" roster="/srv/roster.toml"'
)


@dataclass(frozen=True)
class Listed:
    """Why a block is not run here, and what shows that it is right all the same."""

    reason: str
    shown_by: str | None = None  # a test, or the file that runs the same


TESTS = "tests/deployment/test_loopback.py::"
CI = Listed("sets up an environment, or is this run of the tests", ".ci/run")
DEPLOYED = Listed(
    "needs a SuperLink and SuperNodes: the tests of deployments run the same words",
    TESTS + "test_the_pages_commands_are_those_that_run",
)
DIFF = Listed(
    "a change of an app, not code",
    "tests/simulations/test_existing_app.py::test_the_page_shows_what_was_added",
)
VERTICAL = replace(
    DEPLOYED,
    shown_by="tests/deployment/test_vertical.py::test_the_pages_words_are_those_that_run",
)
RAY = "starts Ray through Flower's command"

# Every block that is not run, by its page and its first line.
LISTED = {
    (
        "README.md",
        'python -m pip install ".[simulation]" && flower-kmeans simulate',
    ): Listed("installs the package", "tests/cli/test_app.py::test_photograph"),
    ("README.md", 'python -m pip install ".[test]" && python -m pytest -n 2'): CI,
    ("CONTRIBUTING.md", "python3 -m venv .venv && . .venv/bin/activate"): CI,
    ("CONTRIBUTING.md", "ruff check . && ruff format --check ."): CI,
    (
        "docs/index.md",
        'python -m pip install ".[simulation]" && flower-kmeans simulate',
    ): CI,
    ("docs/tutorial.md", "python3 -m venv .venv && . .venv/bin/activate"): CI,
    (
        "docs/tables/deployments.md",
        "python -m pytest -m deployment -rP tests/deployment/test_faults.py",
    ): Listed("takes an hour", ".ci/run"),
    ("docs/tables/csv-readers.md", "pip install polars duckdb"): Listed(
        "installs packages and takes minutes", "tests/benchmarks/test_csv_readers.py"
    ),
    (
        "docs/guarantees/accounting.md",
        "pip install --no-deps --target tensorflow-privacy tensorflow-privacy==0.9.0",
    ): Listed("installs a package", ".ci/run"),
    ("docs/guarantees/accounting.md", "import sys"): Listed(
        "needs this package",
        "tests/privacy/test_tensorflow_privacy.py::test_the_code_of_the_page_runs",
    ),
    (
        "docs/tables/originals.md",
        "python benchmarks/originals.py fastlloyd --reference CHECKOUT --python PYTHON "
        "--data-dir DIR --runs 5",
    ): Listed("needs checkouts of other codes", "tests/benchmarks/test_originals.py"),
    ("docs/tables/feddp.md", 'python -c "'): Listed(
        "writes the file of a table that takes long"
    ),
    (
        "docs/own-data.md",
        "flower-kmeans plan --domain domain.toml --n-records 500 --clusters 3 "
        "--epsilon 0.5 --clients 5 \\",
    ): Listed(
        "makes 72 runs",
        "tests/cli/test_preview.py::test_the_command_of_the_page_prints_what_the_page_shows",
    ),
    ("docs/existing-app.md", " from digits_app.model import accuracy, fit"): DIFF,
    (
        "docs/existing-app.md",
        " from digits_app.output import save_accuracies, save_model",
    ): DIFF,
    ("docs/existing-app.md", " app = ClientApp(client_fn=client_fn)"): DIFF,
    ("docs/existing-app.md", " app = ServerApp(server_fn=server_fn)"): DIFF,
    **{
        ("docs/deploy.md", line): DEPLOYED
        for line in (
            "flower-superlink --ssl-ca-certfile link/ca.crt --ssl-certfile link/server.pem \\",
            "flwr supernode register hospital-a.pub deployment",
            f"flower-supernode --root-certificates node/ca.crt {NODE_KEY} \\",
            f"{RUN}'",
        )
    },
    (
        "docs/deploy-vertical.md",
        f"flower-supernode --root-certificates node/ca.crt {NODE_KEY} \\",
    ): VERTICAL,
    (
        "docs/deploy-vertical.md",
        "flwr run simulations/vertical deployment --stream --run-config "
        """'report="/srv/report.json" roster="/srv/roster.toml" n-records=10000'""",
    ): VERTICAL,
    ("docs/deploy.md", f"cat {' '.join(MEMBERS)} > member/roster.toml"): Listed(
        "joins files of several members", TESTS + "test_the_pages_credentials_are_made"
    ),
    (
        "simulations/existing-app/README.md",
        f"flwr run simulations/existing-app {LOCALLY.format(10)}",
    ): Listed(RAY, "tests/simulations/test_existing_app.py::test_both_work_on_ray"),
    (
        "simulations/clustered/README.md",
        f"flwr run simulations/clustered {LOCALLY.format(100)}",
    ): Listed(RAY, "tests/simulations/test_clustered_app.py"),
    (
        "simulations/photo/README.md",
        f"flwr run simulations/photo {LOCALLY.format(20)}",
    ): Listed(RAY, "tests/simulations/test_photo_app.py"),
    (
        "simulations/vertical/README.md",
        f"flwr run simulations/vertical {LOCALLY.format(2)}",
    ): Listed(RAY, "tests/simulations/test_vertical_app.py"),
}


def visits(directory):
    """Copy the table of the home and the tutorial."""
    (directory / "docs").mkdir()
    shutil.copy(ROOT / VISITS, directory / VISITS)


def tables_of_home(directory):
    """Write the tables of the home page's commands."""
    visits(directory)
    rng = np.random.default_rng(3)
    rows = np.column_stack([rng.uniform(18, 90, 500), rng.uniform(0, 90_000, 500)])
    with open_private(directory / "customers.csv") as file:
        np.savetxt(file, rows, "%s", ",", header="age,income", comments="")


VISITS = "docs/visits.csv"
PREPARED = {"docs/index.md": tables_of_home, "docs/tutorial.md": visits}
WARDS = ("Chirurgie", "Innere", "Pädiatrie")  # of docs/own-data.md
RAN = {}  # what run_page returned, by page
OPEN = {}  # files that others can read after it, by page
PUBLIC = {  # those that hold neither a record nor a secret
    "docs/deploy.md": {"member/roster.toml"},
    # what the server knows without the records
    "docs/existing-app.md": {"runs/clusters"},
    # the visits are made up
    "docs/index.md": {VISITS},
    "docs/tutorial.md": {VISITS},
    # the baskets are generated on the page
    "docs/own-data.md": {"domain.toml", "baskets.csv"},
}


@pytest.fixture(autouse=True)
def known_algorithms(monkeypatch):
    """Forget the algorithms that a document registers."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def place_of(path):
    """Return a path, without the name that TensorBoard makes of the time."""
    return (path.parent if "tfevents" in path.name else path).as_posix()


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Run a page's blocks unless another test has, and return what `run_page` does."""

    def run(name):
        if name not in RAN:
            prepare = PREPARED.get(name)
            RAN[name] = run_page(ROOT / name, LISTED, tmp_path, monkeypatch, prepare)
            simulated = any(
                how == "bash" and "flower-kmeans simulate" in block.text
                for block, how in RAN[name][1]
            )
            OPEN[name] = {
                place_of(path.relative_to(tmp_path))
                for path in tmp_path.rglob("*")
                if path.is_file() and path.stat().st_mode & 0o077
            }
            written = tmp_path / "flower-kmeans-out"
            assert (written / "report.json").exists() == simulated
            assert (written / "report.html").exists() == simulated
        return RAN[name]

    return run


# Real keys and ciphertexts: a quarter of a minute. tests/simulation/test_vertical.py
# runs the same.
SLOW_PAGES = {"docs/vertical.md"}
RUN_PAGES = [
    pytest.param(
        page, marks=[pytest.mark.thorough] if page_id(page) in SLOW_PAGES else []
    )
    for page in PAGES
    if blocks(page)
]


@pytest.mark.claim("CONTRIBUTING", "tests-test-document-blocks")
@pytest.mark.claim("own-data", "from-messy-table-private")
@pytest.mark.claim("how-sums-work", "masks-shares-do-not")
@pytest.mark.claim("vertical", "every-party-receives-centroids")
@pytest.mark.claim("what-epsilon-means", "most-true-positives-four")
@pytest.mark.claim("deploy", "commands-these-pages-write")
@pytest.mark.parametrize("page", RUN_PAGES, ids=page_id)
def test_blocks_run(page, ran):
    _, done = ran(page_id(page))
    assert OPEN[page_id(page)] == PUBLIC.get(page_id(page), set())
    assert [block for block, _ in done] == blocks(page)  # and none was left out


@pytest.mark.claim("README", "existing-app-gets-one")
def test_the_readmes_app_and_server_make_a_run(ran):
    readme, _ = ran("README.md")
    readme["results"].clear()
    with task_identity():
        readme["main"](InProcessGrid(readme["app"], 3), None)
    shapes = [result.centroids.shape for result in readme["results"]]
    assert shapes == [(3, 3)] * 3
    assert len({result.centroids.tobytes() for result in readme["results"]}) == 1


@pytest.mark.claim("own-data", "from-messy-table-private")
def test_the_result_of_own_data_is_near_the_one_on_the_page(ran):
    """Its noise is new each time: in 20 runs by 1 year, 4 minutes, 16 % and 165 visits at most."""
    namespace, done = ran("docs/own-data.md")
    (shown,) = (
        block.text for block, how in done if how == "text" and "visits" in block.text
    )
    pattern = r"(\w+): born (\d+)\S+, (\d+) minutes, (\d+) euros, about (\d+) visits"
    found = {
        max(WARDS, key=lambda ward: float(row[f"Station={ward}"])): row
        for row in namespace["result"]
    }
    numbers = re.findall(pattern, shown)
    assert {ward for ward, *_ in numbers} == set(found) == set(WARDS)
    for ward, year, minutes, euros, visits in numbers:
        row = found[ward]
        assert abs(int(row["Geburt"][:4]) - int(year)) <= 10
        assert abs(float(row["Minuten"]) - int(minutes)) <= 15
        assert 0.6 < float(row["Gebühr"]) / int(euros) < 1.7
        assert abs(float(row["noisy_size"]) - int(visits)) <= 500


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """Return the groups of the command of home and tutorial, with names, by their names."""
    found = tmp_path_factory.mktemp("groups")
    visits(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        for block in blocks(ROOT / "docs/tutorial.md")[:1]:
            for words in commands(block):
                run_command(words, patch)
    with (found / "flower-kmeans-out/centroids.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    points = np.array(
        [[float(row[name]) for name in ("age", "minutes")] for row in rows]
    )
    sizes = np.array([float(row["noisy_size"]) for row in rows])
    domain = Box([0, 0], [100, 120], columns=["age", "minutes"])
    names = cluster_names(points, sizes, domain)
    return dict(zip(names, np.column_stack([sizes, points]), strict=True))


@pytest.mark.claim("index", "visits-become-groups")
@pytest.mark.claim("tutorial", "command-found-groups")
@pytest.mark.parametrize("page", ["docs/index.md", "docs/tutorial.md"])
def test_visits_become_the_groups_that_the_first_screen_shows(page, groups):
    """The noise is new each time: in 60 runs by 200 patients, 3 years and 3 minutes at most."""
    text = (ROOT / page).read_text("utf-8")
    lines = (ROOT / VISITS).read_text("utf-8").splitlines()
    shown = re.findall(
        r"^\| ([A-E]) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE
    )
    assert [",".join(row) for row in shown] == lines[1:7]
    pattern = r"^\| ([a-z ]+) \| about (\d+) \| (\d+) \| (\d+) \|$"
    found = re.findall(pattern, text, re.MULTILINE)
    assert {name for name, *_ in found} == set(groups)
    for name, *numbers in found:
        differences = np.abs(groups[name] - np.array(numbers, dtype=float))
        assert (differences <= [250, 8, 8]).all(), name


def test_the_visits_are_those_of_the_script():
    made = runpy.run_path(str(ROOT / ".ci/visits.py"))["table"]()
    assert made == (ROOT / VISITS).read_text("utf-8")
    with (ROOT / VISITS).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    patients = {row["patient"] for row in rows}
    assert (len(rows), len(patients)) == (5902, 2000)
    assert len({(row["patient"], row["clinic"]) for row in rows}) == 2000


def test_the_table_has_no_other_block_and_each_is_shown_by_something():
    found = Counter(block.key for page in PAGES for block in blocks(page))
    assert {key: found[key] for key in LISTED} == dict.fromkeys(LISTED, 1)


def test_what_shows_a_listed_block_exists():
    for listed in LISTED.values():
        file, _, name = (listed.shown_by or "").partition("::")
        if file:
            source = (ROOT / file).read_text("utf-8")
            assert re.search(rf"^ *def {name}\b", source, re.MULTILINE) or not name, (
                listed
            )


# -------------------------------------------------------------------- the runner itself


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("", "python benchmarks/noise.py\n"),
        ("sh", "true\n"),
        *(
            ("bash", text)
            for text in ("flwr run app\n", "flower-kmeans plan && true\n")
        ),
        ("bash", "python -m pytest\n"),
        *(
            ("text", text)
            for text in ("python benchmarks/noise.py\n", "x = 1\nimport os\n")
        ),
    ],
)
def test_blocks_that_nothing_runs_are_reported(language, text):
    block = Block("page.md", 1, language, text)
    with pytest.raises(AssertionError, match="list"):
        treatment(block, {})
    assert treatment(block, {block.key: None}) == "listed"


def run_text(text, directory, monkeypatch):
    """Run the blocks of a page with this text."""
    monkeypatch.setattr("pages.ROOT", directory)
    page = directory / "page.md"
    page.write_text(text, "utf-8")
    return run_page(page, {}, directory, monkeypatch)


@pytest.mark.claim("own-data", "from-messy-table-private")
def test_commands_run_or_stop_as_the_page_says(tmp_path, monkeypatch):
    stops = "```bash\n# stops\nflower-kmeans inspect {}\n```\n"
    said = "```output\nError: The data file other.csv does not exist.\n```\n"
    run_text(stops.format("other.csv") + said, tmp_path, monkeypatch)
    (tmp_path / "here.csv").write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(AssertionError, match=r"here\.csv: 1 records"):
        run_text(stops.format("here.csv"), tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match=r"other\.csv does not exist"):
        run_text(
            stops.format("other.csv").replace("# stops\n", ""), tmp_path, monkeypatch
        )
    with pytest.raises(AssertionError, match="the page says"):
        run_text(stops.format("third.csv") + said, tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match="no command follows"):
        run_text("```bash\n# stops\n```\n", tmp_path, monkeypatch)


def test_files_that_a_page_names_are_written(tmp_path, monkeypatch):
    text = "```toml\n# domain.toml\ncolumns = []\n```\n```toml\nnone = 1\n```\n"
    run_text(text, tmp_path, monkeypatch)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "domain.toml",
        "page.md",
    ]
    assert (tmp_path / "domain.toml").read_text(
        "utf-8"
    ) == "# domain.toml\ncolumns = []\n"


def test_fences_are_understood_or_reported(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    monkeypatch.setattr("pages.ROOT", tmp_path)
    page.write_text("1.  a\n\n    ```python\n    x = 1\n    ```\n", "utf-8")
    assert blocks(page) == [Block("page.md", 4, "python", "x = 1\n")]
    for text, message in (
        ("```python\nx = 1\n", "not understood"),
        ("~~~\nx = 1\n~~~\n", "not understood"),
        ("```python\n  ```\n```\n", "not understood"),
        ("So:\n\n    flower-kmeans plan --clusters 3\n", "stands in a fence"),
    ):
        page.write_text(text, "utf-8")
        with pytest.raises(AssertionError, match=message):
            blocks(page)


PYTHON, BASH, OUTPUT = (
    "```python\n{}\n```\n",
    "```bash\n{}\n```\n",
    "```output\n{}\n```\n",
)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (PYTHON.format("raise KeyError"), KeyError),
        (PYTHON.format("x = 1") + PYTHON.format("assert x == 2"), AssertionError),
        ("```toml\nx = \n```\n", ValueError),
        ("```json\n{\n```\n", ValueError),
        (OUTPUT.format("1"), AssertionError),
        (PYTHON.format("print(1)") + OUTPUT.format("2"), AssertionError),
        (PYTHON.format("print('a b d')") + OUTPUT.format("a ... c"), AssertionError),
        (PYTHON.format("print('a b  c')") + OUTPUT.format("a ... c"), None),
        (BASH.format("flower-kmeans plan"), None),
        (BASH.format("flower-kmeans plan --no-such-option"), AssertionError),
        (BASH.format("flower-kmeans check --no-such-option"), AssertionError),
        (BASH.format("flower-kmeans new app"), None),  # its options are read, no more
        (BASH.format("flower-kmeans new --no-such-option"), UsageError),
        (
            BASH.format("flower-kmeans check --policy-file /srv/a --no-such-option"),
            UsageError,
        ),
        (BASH.format("flower-kmeans no-such-command"), KeyError),
        # its options are read, no more
        (BASH.format("python benchmarks/noise.py"), None),
        (BASH.format("python benchmarks/noise.py --no-such-option"), SystemExit),
        (BASH.format("python benchmarks/no_such_script.py"), AssertionError),
        (BASH.format("python -m benchmarks.noise"), None),
        (BASH.format("python -m benchmarks.noise --no-such-option"), SystemExit),
    ],
)
def test_blocks_that_do_not_hold_fail(text, error, tmp_path, monkeypatch):
    page = ROOT / "page.md"
    read = type(page).read_text

    def read_text(self, *arguments, **options):
        return text if self == page else read(self, *arguments, **options)

    monkeypatch.setattr(type(page), "read_text", read_text)
    with nullcontext() if error is None else pytest.raises(error):
        run_page(page, {}, tmp_path, monkeypatch)
