"""The site of the documents: all pages are in its navigation, and nothing comes from outside."""

import importlib.util
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from browsers import chromium, requests_of, run_browser
from pages import FENCE, PAGES, page_id
from typer.main import get_command

import flower_kmeans
from flower_kmeans import metrics, strategies
from flower_kmeans.cli.app import app
from flower_kmeans.protocol.trust import TRUST_MODELS

pytestmark = pytest.mark.claim("CONTRIBUTING", "new-page-goes-into")

ROOT = Path(__file__).resolve().parent.parent


def load(name):
    """Load a script of .ci, which is no package."""
    sys.path.append(str(ROOT / ".ci"))  # of the scripts that it imports
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation_or_linked_from_a_page_there():
    hook = load("build_site")
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert len(listed) == len(set(listed)) <= 20
    shown = {hook.in_repository(page) for page in listed}
    linked = {target for page in shown for target in hook.targets(page)}
    files = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.ipynb")]
    pages = {path.relative_to(ROOT).as_posix() for path in files}
    assert shown <= pages <= shown | linked
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= linked


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_lists_are_lists_in_the_site_too(page):
    """Its Markdown wants an empty line before a list, and four spaces within."""
    text = page.read_text("utf-8")
    assert {len(fence[1]) % 4 for fence in FENCE.finditer(text)} <= {0}
    lines = ["", *FENCE.sub("", text).splitlines()]
    item = re.compile(r"(?:[-*+]|\d+\.) ")
    for before, line in pairwise(lines):
        assert (
            not item.match(line) or not before or before[0] == " " or item.match(before)
        ), line


def test_the_reference_has_all_public_names():
    named = set()
    for page in ROOT.glob("docs/reference/*.md"):
        named |= set(
            re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE)
        )
    short = {name.rpartition(".")[2] for name in named}
    assert set(flower_kmeans.__all__) - {"__version__"} <= short
    assert {f"flower_kmeans.strategies.{name}" for name in strategies.__all__} <= named
    own = {
        name
        for name, value in vars(metrics).items()
        if getattr(value, "__module__", None) == metrics.__name__
        and not name.startswith("_")
    }
    assert own == {name.rpartition(".")[2] for name in named if ".metrics." in name}


def row_of(text, option):
    return next(
        line for line in text.splitlines() if line.startswith(f"| `{option}` |")
    )


def test_the_reference_has_all_commands_and_options():
    hook = load("site_command")
    page = (ROOT / "docs/reference/command.md").read_text("utf-8")
    text = hook.tables()
    assert hook.filled(page).count(text) == 1
    assert hook.filled("another page") == "another page"
    commands = hook.commands()
    assert {"simulate", "domain init"} < set(commands)
    assert len(commands) == len(get_command(app).commands)  # each group has one command
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == sorted(commands)
    for command in commands.values():
        for parameter in command.params:
            spelled = (
                ", ".join(parameter.opts) if parameter.opts[0][0] == "-" else "NAMES"
            )
            assert text.count(f"| `{spelled}` |") >= 1, parameter
    row = "| `--clusters` | `integer in [1, 10000]`, `LOW-HIGH`, `any`; `16` by default | Number of"
    assert row in text
    assert all(f"`{trust}`" in row_of(text, "--trust") for trust in TRUST_MODELS)
    assert "| `--policy-file` | path; required |" in text
    assert "| `--verbose` | a flag |" in text
    assert "`flower-kmeans-out` by default" in text


OUTSIDE = [
    '<script src="https://example.org/x.js"></script>',
    '<link rel="stylesheet" href="//example.org/x.css">',
    '<img alt="" src="http://example.org/x.png">',
    '<img alt="" src="x.png" srcset="x.png 1x, https://example.org/y.png 2x">',
    "<style>@import 'https://example.org/x.css';</style>",
    '<p style="background: url(https://example.org/x.png)"></p>',
    '<pre class="mermaid">graph</pre>',
]


@pytest.mark.parametrize(
    ("file", "text", "status"),
    [
        *(("page.html", text, 1) for text in OUTSIDE),
        ("page.html", '<a href="https://flower.ai">Flower</a>', 0),
        ("x.css", "a { src: url(../font.woff2) }", 0),
        ("x.css", "a { src: url('https://example.org/font.woff2') }", 1),
    ],
)
def test_what_is_fetched_from_outside_is_found(file, text, status, tmp_path):
    check = load("check_site")
    assert check.main(str(tmp_path)) == 1  # a site without a page is none
    (tmp_path / "index.html").write_text("<p>nothing</p>", "utf-8")
    assert check.main(str(tmp_path)) == 0
    (tmp_path / file).write_text(text, "utf-8")
    assert check.main(str(tmp_path)) == status


def test_links_that_leave_the_documents_lead_to_copies():
    hook = load("build_site")
    assert hook.in_site("docs/guarantees.md") == "guarantees.md"
    assert hook.in_site("README.md") == "repository/README.md"
    assert hook.in_site("docs/notebooks/x.ipynb") == "notebooks/x.md"
    for path in ("docs/reference/client.md", "simulations/photo/README.md", "LICENSE"):
        assert hook.in_repository(hook.in_site(path)) == path
    linked = hook.targets("docs/existing-app.md")
    assert "simulations/existing-app/digits_app/clusters.py" in linked
    assert "docs/deploy.md" in linked
    text = "[a](../README.md#limits) [b](tutorial.md)\n```\n[c](../README.md)\n```\n"
    assert hook.rewritten("docs/deploy.md", text) == text.replace(
        "../", "repository/", 1
    )
    assert hook.rewritten("README.md", "[a](docs/deploy.md)") == "[a](../deploy.md)"


def test_the_site_holds_all_that_its_pages_link(tmp_path):
    hook = load("build_site")
    hook.prepare(tmp_path / "docs")
    pages = sorted(tmp_path.glob("docs/**/*.md"))
    assert len(pages) > len(list(ROOT.glob("docs/**/*.md")))
    for page in pages:
        for piece, open_ in hook.outside_fences(page.read_text("utf-8")):
            for link in hook.LINK.finditer(piece) if open_ else ():
                assert (page.parent / link[2]).exists(), f"{page}: {link[2]}"
    page = (tmp_path / "docs/notebooks/first-clustering.md").read_text("utf-8")
    assert page.split("\n\n")[1] == "[Download this notebook](first-clustering.ipynb)"
    assert "[a hospital's table](hospital-table.md)" in page
    assert (tmp_path / "docs/repository/LICENSE").read_bytes() == (
        ROOT / "LICENSE"
    ).read_bytes()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.mark.thorough
@pytest.mark.browser
@pytest.mark.skipif(
    chromium() is None, reason="no Chromium on this machine (apt: chromium)"
)
def test_a_browser_asks_nobody_but_the_sites_own_server(tmp_path):
    for needed in ("mkdocstrings", "zensical"):
        pytest.importorskip(needed)
    build = [
        sys.executable,
        ".ci/build_site.py",
        "--without-outputs",
        tmp_path / "site",
    ]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    handler = partial(Quiet, directory=str(tmp_path / "site"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here, log = f"http://127.0.0.1:{server.server_port}", tmp_path / "net.json"
    try:
        for page in (
            "/index.html?q=centroid",
            "/reference/strategies.html",
            "/deploy.html",
        ):
            dom = run_browser(here + page, "--dump-dom", f"--log-net-log={log}")
            assert "What ε means here" in dom
            asked = requests_of(log, here)
            assert any(address.endswith(".css") for address in asked)
            assert any(address.endswith(".js") for address in asked)
            assert [
                address for address in asked if not address.startswith(here + "/")
            ] == []
    finally:
        server.shutdown()
        server.server_close()
