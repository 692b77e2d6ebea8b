"""The notebooks: how they are kept, and how the site shows them. Building the site runs them."""

import base64
import importlib.util
import json
import re

import pytest
from pages import CODE, ROOT

NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
NAMES = {"first-clustering", "flower-app", "hospital-table"}
MOST_CELLS = 12  # of code
LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^)\s]+)\)")
PLACES = re.compile(r"(?<![\w.~])/(?:home|root|tmp|work|Users)/|[A-Z]:\\")
PICTURE = base64.b64encode(b"a picture").decode()

SPEC = importlib.util.spec_from_file_location("notebooks", ROOT / ".ci/notebooks.py")
notebooks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(notebooks)


def content(path):
    return json.loads(path.read_text("utf-8"))


def stem(path):
    return path.stem


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem)
def test_a_notebook_holds_no_output_and_nothing_of_a_machine(path):
    found = content(path)
    assert (found["nbformat"], found["nbformat_minor"]) >= (4, 5)
    assert found["metadata"] == {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }
    ids = [cell["id"] for cell in found["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in found["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert not PLACES.search(path.read_text("utf-8"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem)
def test_a_notebook_is_short_and_its_code_can_be_read(path):
    cells = notebooks.cells_of(path)
    assert cells[0]["source"].startswith("# Notebook: ")
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    assert 0 < len(code) <= MOST_CELLS
    for source in code:
        assert max(map(len, source.splitlines())) <= 88
        if not source.startswith(notebooks.SHELL):
            compile(source, str(path), "exec")
    words = [cell["source"] for cell in cells if cell["cell_type"] == "markdown"]
    assert not [text for text in words if CODE.search(text)]  # code is in cells


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem)
def test_links_of_a_notebook_lead_somewhere(path):
    text = notebooks.page(path, is_run=False).text
    links = [link for link in LINK.findall(text) if "://" not in link]
    assert links
    for link in links:
        assert (path.parent / link.partition("#")[0]).is_file(), link


def test_there_are_three_and_the_home_and_the_tutorial_link_them():
    assert {path.stem for path in NOTEBOOKS} == NAMES
    for page in ("index", "tutorial"):
        text = (ROOT / f"docs/{page}.md").read_text("utf-8")
        assert {name for name in NAMES if f"(notebooks/{name}.ipynb)" in text} == NAMES


def code_cell(*outputs, source="x"):
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def written(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def result(**data):
    kinds = {kind.replace("_", "/"): value for kind, value in data.items()}
    return {"output_type": "execute_result", "data": kinds}


def test_cells_and_their_outputs_become_a_page():
    cells = [
        {"cell_type": "markdown", "source": "# Title\n\nWords."},
        code_cell(source="print(1)"),
        code_cell(
            written("\x1b[92mINFO\x1b[0m: a"),
            written("b\n", "stderr"),
            result(text_plain="<x>", text_html="<table></table>"),
            result(text_plain="'c'"),
            result(text_plain="<Figure>", image_png=PICTURE),
            source="%%bash\ntrue",
        ),
    ]
    page = notebooks.page_of(cells, "name")
    assert page.text.split("\n\n") == [
        "# Title",
        "Words.",
        "```python\nprint(1)\n```",
        "```bash\ntrue\n```",
        "``` { .text .output }\nINFO: ab\n```",
        '<div class="result">\n<table></table>\n</div>',
        "``` { .text .output }\n'c'\n```",
        "![The output of the cell above](name-1.png)\n",
    ]
    assert page.pictures == {"name-1.png": b"a picture"}
    shown = notebooks.with_download(page.text, "name")
    assert shown.startswith(
        "# Title\n\n[Download this notebook](name.ipynb)\n\nWords.\n"
    )


def test_outputs_show_no_directory_of_the_machine():
    output = written("saved /srv/a/work/out, and /srv/a/home/b")
    output |= {"data": {"text/plain": "/srv/a/work/c", "image/png": PICTURE}}
    notebooks.hide(output, {"/srv/a/work": "~", "/srv/a/home": "~/.flwr"})
    assert output["text"] == "saved ~/out, and ~/.flwr/b"
    assert output["data"] == {"text/plain": "~/c", "image/png": PICTURE}


SMALL = """
{"cells": [{"cell_type": "code", "execution_count": null, "id": "a", "metadata": {},
            "outputs": [], "source": ["SOURCE"]}],
 "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python",
                             "name": "python3"}},
 "nbformat": 4, "nbformat_minor": 5}
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("import os; print(os.getcwd(), os.listdir())", "~ []\n"),
        ("import flower_kmeans; print(1 + 1)", "2\n"),
        ("%%bash\\nflower-kmeans --help >help.txt; ls", "help.txt\n"),
        ("raise ValueError('of the cell')", None),
        ("%%bash\\nfalse", None),
    ],
)
def test_a_notebook_runs_in_an_empty_directory_and_a_failing_cell_is_an_error(
    source, shown, tmp_path
):
    for needed in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(needed)
    path = tmp_path / "small.ipynb"
    path.write_text(SMALL.replace("SOURCE", source), "utf-8")
    if shown is None:
        with pytest.raises(Exception, match=r"of the cell|exit status 1"):
            notebooks.run(path)
        return
    (cell,) = notebooks.run(path)
    assert "".join(output["text"] for output in cell["outputs"]) == shown
