"""The notebooks as pages of the site, run when it is built (``.ci/build_site.py``).

The repository holds notebooks without outputs, which would become old. Each runs from
the top, in a new kernel and an empty directory. A cell that fails ends the build.
"""

import base64
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "notebooks"
CELL_SECONDS = 300
COLUMNS = "84"  # of the terminal that commands write to
SHELL = "%%bash\n"
OUTPUT = " { .text .output }"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DEPLOYMENT = str(ROOT / "tests" / "deployment")
"""Has what ends the processes that Flower starts."""

Cell = dict[str, Any]
"""A cell as in the file, with its source as one text."""


@dataclass
class Page:
    """A notebook as a page of the site."""

    text: str
    pictures: dict[str, bytes] = field(default_factory=dict)
    """PNG files beside the page, by name."""


def cells_of(path: Path) -> list[Cell]:
    """Return the cells of a notebook of the repository."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells]


def environment(home: Path, work: Path, ports: Sequence[int]) -> dict[str, str]:
    """Return the environment of a kernel: this checkout, and nothing of the user's."""
    link, control = ports
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    code = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {
        "PATH": programs,
        "PYTHONPATH": code.rstrip(os.pathsep),
        "HOME": str(work),
        "IPYTHONDIR": str(home / "ipython"),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(link),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Without it, Ray's first lines are a tip with a path of this machine.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "COLUMNS": COLUMNS,
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


def run(path: Path) -> list[Cell]:
    """Return the cells of a notebook with outputs, which call its directory ``~``.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails.
    """
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    if DEPLOYMENT not in sys.path:
        sys.path.append(DEPLOYMENT)
    from processes import Processes, free_ports

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary, "work")
        work.mkdir()
        # By files of this directory: others on this machine could listen to a port.
        transport = {"transport": "ipc", "ip": str(Path(temporary, "kernel"))}
        # Flower's own SuperLink goes on after its command, and ends with the `with`.
        with Processes(Path(temporary)) as processes:
            client = NotebookClient(
                notebook,
                timeout=CELL_SECONDS,
                kernel_name="python3",
                resources={"metadata": {"path": str(work)}},
                config=Config({"KernelManager": transport}),
            )
            kernel = environment(processes.home, work, free_ports(2))
            client.execute(env=kernel)
        places = {str(work): "~", str(processes.home): "~/.flwr"}
        for cell in notebook.cells:
            for output in cell.get("outputs", ()):
                hide(output, places)
    return list(notebook.cells)


def hide(output: dict[str, Any], places: dict[str, str]) -> None:
    """Put short names for directories of this machine into an output."""
    data = output.get("data", {})
    for place, short in places.items():
        if "text" in output:
            output["text"] = output["text"].replace(place, short)
        for kind, value in data.items():
            if kind.startswith("text/"):
                data[kind] = value.replace(place, short)


def fenced(language: str, text: str) -> str:
    """Return a block of code or of output."""
    return f"```{language}\n{text.rstrip()}\n```"


def code_of(source: str) -> str:
    """Return a code cell as a block."""
    if source.startswith(SHELL):
        return fenced("bash", source.removeprefix(SHELL))
    return fenced("python", source)


def shown(data: dict[str, str], name: str, pictures: dict[str, bytes]) -> str:
    """Return one result of a cell in Markdown; a picture becomes a file."""
    if "image/png" in data:
        place = f"{name}-{len(pictures) + 1}.png"
        pictures[place] = base64.b64decode(data["image/png"])
        return f"![The output of the cell above]({place})"
    if "text/html" in data:
        return f'<div class="result">\n{data["text/html"].strip()}\n</div>'
    return fenced(OUTPUT, COLOUR.sub("", data["text/plain"]))


def outputs_of(cell: Cell, name: str, pictures: dict[str, bytes]) -> list[str]:
    """Return the outputs of a cell in Markdown, all that it wrote as one block."""
    outputs = cell["outputs"]
    written = "".join(output["text"] for output in outputs if "text" in output)
    written = COLOUR.sub("", written).strip("\n")
    parts: list[str] = []
    if written:
        parts.append(fenced(OUTPUT, written))
    results = [output["data"] for output in outputs if "data" in output]
    return parts + [shown(data, name, pictures) for data in results]


def page_of(cells: Sequence[Cell], name: str) -> Page:
    """Return a notebook as a page, with the outputs that its cells have."""
    pictures: dict[str, bytes] = {}
    parts: list[str] = []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            continue
        parts.append(code_of(cell["source"]))
        parts += outputs_of(cell, name, pictures)
    return Page("\n\n".join(parts) + "\n", pictures)


def page(path: Path, is_run: bool) -> Page:
    """Return the page of a notebook of the repository, with new outputs if it is run."""
    if not is_run:
        return page_of(cells_of(path), path.stem)
    begun = time.monotonic()
    cells = run(path)
    seconds = time.monotonic() - begun
    made = page_of(cells, path.stem)
    counts = f"{len(cells)} cells, {len(made.pictures)} pictures"
    print(f"{path.name}: {counts}, {seconds:.0f} s", flush=True)
    return made


def with_download(text: str, name: str) -> str:
    """Return the text of a page with a link to the notebook itself below its title."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n[Download this notebook]({name}.ipynb)\n{rest}"
