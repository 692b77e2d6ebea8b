"""Every code block of the documents runs, or stands in the table below with the reason."""

import re
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from click import UsageError
from pages import (
    PAGES,
    ROOT,
    Block,
    blocks,
    compare,
    page_id,
    read_options,
    run_command,
    run_page,
    treatment,
)

from flower_kmeans.algorithms import base
from flower_kmeans.protocol.in_process import InProcessGrid, task_identity

pytestmark = pytest.mark.usefixtures("quiet")

# Parts of the commands in the table below.
LOCALLY = 'local --stream --federation-config "num-supernodes={} client-resources-num-cpus=1"'
MEMBERS = [f"from-{name}/roster.toml" for name in "abc"]
NODE_KEY = "--auth-supernode-private-key node/node.key"
POINTS = 'server-data="/srv/server.csv"'
RUN = (
    "flwr run simulations/deployment/app deployment --stream "
    '--run-config \'n-clients=3 report="/srv/report.json" roster="/srv/roster.toml"'
)


@dataclass(frozen=True)
class Listed:
    """Why a block is not run here, and what shows that it is right all the same."""

    reason: str
    shown_by: str | None = None  # a test, or the file that runs the same
    times: int = 1  # as many blocks of the page begin so


TESTS = "tests/simulations/test_deployment.py::"
CI = Listed("sets up an environment, or is this run of the tests", ".ci/run")
DEPLOYED = Listed(
    "needs a SuperLink and SuperNodes: the tests of deployments run the same words",
    TESTS + "test_the_pages_commands_are_those_that_run",
)
DIFF = Listed(
    "a change of an app, not code",
    "tests/simulations/test_existing_app.py::test_the_page_shows_what_was_added",
)
BENCH = Listed(
    "takes minutes", "tests/bench/test_quick.py::test_every_method_runs_as_the_protocol_says"
)
RAY = "starts Ray through Flower's command"

# Every block that is not run, by its page and its first line.
LISTED = {
    ("README.md", 'python -m pip install ".[simulation]" && flower-kmeans simulate'): Listed(
        "installs the package", "tests/test_cli.py::test_photograph"
    ),
    ("README.md", 'python -m pip install ".[test]" && python -m pytest -n 2'): CI,
    ("CONTRIBUTING.md", "python3 -m venv .venv && . .venv/bin/activate"): CI,
    ("CONTRIBUTING.md", "ruff check . && ruff format --check ."): CI,
    ("docs/tutorial.md", "python3 -m venv .venv && . .venv/bin/activate"): CI,
    ("README.md", "flower-kmeans bench --suite quick"): BENCH,
    ("docs/benchmarks.md", "flower-kmeans bench --suite quick"): BENCH,
    ("docs/benchmarks.md", 'python -c "'): Listed("writes the file of a table that takes long"),
    ("docs/existing-app.md", " from digits_app.model import accuracy, fit"): DIFF,
    ("docs/existing-app.md", " from digits_app.output import save_accuracies, save_model"): DIFF,
    ("docs/existing-app.md", " app = ClientApp(client_fn=client_fn)"): DIFF,
    ("docs/existing-app.md", " app = ServerApp(server_fn=server_fn)"): DIFF,
    **{
        ("docs/deploy.md", line): replace(DEPLOYED, times=times)
        for line, times in {
            "flower-superlink --ssl-ca-certfile link/ca.crt --ssl-certfile link/server.pem \\": 2,
            "flwr supernode register hospital-a.pub deployment": 1,
            f"flower-supernode --root-certificates node/ca.crt {NODE_KEY} \\": 2,
            f"{RUN}'": 1,
            f"""{RUN} strategy="synopsis" trust="clients-only"'""": 1,
            f"""{RUN} strategy="synopsis" trust="distributed-noise"'""": 1,
            f"""{RUN} strategy="feddp" {POINTS} trust="distributed-noise"'""": 1,
        }.items()
    },
    ("docs/deploy.md", f"cat {' '.join(MEMBERS)} > member/roster.toml"): Listed(
        "joins files of several members", TESTS + "test_the_pages_credentials_are_made"
    ),
    (
        "simulations/existing_app/README.md",
        f"flwr run simulations/existing_app {LOCALLY.format(10)}",
    ): Listed(RAY, "tests/simulations/test_existing_app.py::test_both_work_on_ray"),
    ("simulations/photo/README.md", f"flwr run simulations/photo {LOCALLY.format(20)}"): Listed(
        RAY, "tests/simulations/test_photo_app.py"
    ),
}


def customers(directory):
    """Write the table of the README's commands."""
    rng = np.random.default_rng(3)
    rows = np.column_stack([rng.uniform(18, 90, 500), rng.uniform(0, 90_000, 500)])
    np.savetxt(directory / "customers.csv", rows, "%s", ",", header="age,income", comments="")


PREPARED = {"README.md": customers}
RAN = {}  # what run_page returned, by page


@pytest.fixture(autouse=True)
def known_algorithms(monkeypatch):
    """Forget the algorithms that a document registers."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


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
            written = tmp_path / "flower-kmeans-out"
            assert (written / "report.json").exists() == simulated
            assert (written / "report.html").exists() == simulated
        return RAN[name]

    return run


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=page_id)
def test_blocks_run(page, ran):
    _, done = ran(page_id(page))
    assert [block for block, _ in done] == blocks(page)  # and none was left out


def test_the_readmes_app_and_server_make_a_run(ran):
    readme, _ = ran("README.md")
    for client_app in (readme["app"], readme["wrapped_app"]):
        readme["results"].clear()
        with task_identity():
            readme["main"](InProcessGrid(client_app, 10), None)
        assert [result.centroids.shape for result in readme["results"]] == [(15, 2)] * 10
        assert len({result.centroids.tobytes() for result in readme["results"]}) == 1


def test_the_table_has_no_other_block_and_each_as_often_as_it_says():
    found = Counter(block.key for page in PAGES for block in blocks(page))
    assert {key: found[key] for key in LISTED} == {key: one.times for key, one in LISTED.items()}


def test_what_shows_a_listed_block_exists():
    for listed in LISTED.values():
        if listed.shown_by is not None:
            file, _, name = listed.shown_by.partition("::")
            source = (ROOT / file).read_text("utf-8")
            assert re.search(rf"^ *def {name}\b", source, re.MULTILINE) or not name, listed


def test_documents_are_found():
    names = {page_id(page) for page in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "docs/deploy.md", "docs/reference/client.md"} <= names


# --------------------------------------------------------------------------- the runner itself


def block(language, text):
    return Block("page.md", 1, language, text)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("", "python benchmarks/noise.py\n"),
        ("sh", "true\n"),
        ("bash", "flwr run app\n"),
        ("bash", "flower-kmeans plan && true\n"),
        ("bash", "python -m pytest\n"),
        ("text", "python benchmarks/noise.py\n"),
        ("text", "x = 1\nimport os\n"),
    ],
)
def test_blocks_that_nobody_runs_are_told(language, text):
    with pytest.raises(AssertionError, match="list"):
        treatment(block(language, text), {})
    assert treatment(block(language, text), {block(language, text).key: None}) == "listed"


def test_fences_are_understood_or_told(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    monkeypatch.setattr("pages.ROOT", tmp_path)
    page.write_text("1.  a\n\n    ```python\n    x = 1\n    ```\n", "utf-8")
    assert blocks(page) == [Block("page.md", 4, "python", "x = 1\n")]
    for text in ("```python\nx = 1\n", "~~~\nx = 1\n~~~\n", "```python\n  ```\n```\n"):
        page.write_text(text, "utf-8")
        with pytest.raises(AssertionError, match="not understood"):
            blocks(page)
    page.write_text("So:\n\n    flower-kmeans plan --clusters 3\n", "utf-8")
    with pytest.raises(AssertionError, match="stands in a fence"):
        blocks(page)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nraise KeyError\n```\n", KeyError),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", AssertionError),
        ("```toml\nx = \n```\n", ValueError),
        ("```json\n{\n```\n", ValueError),
        ("```output\n1\n```\n", AssertionError),
        ("```python\nprint(1)\n```\n\n```output\n2\n```\n", AssertionError),
        ("```bash\nflower-kmeans plan --no-such-option\n```\n", AssertionError),
        ("```bash\nflower-kmeans check --no-such-option\n```\n", UsageError),
        ("```bash\nflower-kmeans no-such-command\n```\n", KeyError),
        ("```bash\npython benchmarks/noise.py --no-such-option\n```\n", SystemExit),
        ("```bash\npython benchmarks/no_such_script.py\n```\n", AssertionError),
    ],
)
def test_blocks_that_do_not_hold_fail(text, error, tmp_path, monkeypatch):
    page = ROOT / "page.md"
    monkeypatch.setattr(type(page), "read_text", lambda *_: text)
    with pytest.raises(error):
        run_page(page, {}, tmp_path, monkeypatch)


def test_what_was_printed_is_compared():
    compare(block("output", "a ... c\n"), "a b  c\n")
    with pytest.raises(AssertionError, match="the page says"):
        compare(block("output", "a ... c\n"), "a b d\n")


def test_options_are_read_and_nothing_is_run(monkeypatch, capsys):
    read_options(ROOT / "benchmarks/noise.py", [], monkeypatch)
    assert capsys.readouterr().out == ""
    assert "mu" in run_command(["flower-kmeans", "plan"], monkeypatch)
