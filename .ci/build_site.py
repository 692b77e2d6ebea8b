"""Build the site of the documents: ``python .ci/build_site.py [DIRECTORY]``, by default ``site``.

The documents are written for a code host, where ``../README.md`` is a page and
``../simulations/...`` a file. The site holds a copy of every file that is linked so,
under ``repository/``, and links are rewritten to it. So a page has one form, and the
site needs no address of the repository. The pages are prepared here and not by a
plugin, so that any generator of sites can take them.
"""

import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import site_command

ROOT = Path(__file__).resolve().parent.parent
COPIES = "repository/"
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\\)(\[[^\]]*\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def in_repository(site: str) -> str:
    """Return the path in the repository of a page or file of the site."""
    return site.removeprefix(COPIES) if site.startswith(COPIES) else f"docs/{site}"


def in_site(repository: str) -> str:
    """Return the path in the site of a file of the repository."""
    inside = repository.startswith("docs/")
    return repository.removeprefix("docs/") if inside else COPIES + repository


def outside_fences(text: str) -> list[tuple[str, bool]]:
    """Cut a page into pieces, and say of each whether it may hold links."""
    pieces, end = [], 0
    for fence in FENCE.finditer(text):
        pieces += [(text[end : fence.start()], True), (fence[0], False)]
        end = fence.end()
    return [*pieces, (text[end:], True)]


def targets(page: str) -> list[str]:
    """Return the files of the repository that a page of it links, as paths from its root."""
    text = (ROOT / page).read_text("utf-8")
    links = [
        link[2]
        for piece, open_ in outside_fences(text)
        if open_
        for link in LINK.finditer(piece)
    ]
    return [
        posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
        for link in links
    ]


def rewritten(page: str, text: str) -> str:
    """Return the text of a page of the repository, its links leading to places in the site."""
    here, there = posixpath.dirname(page), posixpath.dirname(in_site(page)) or "."

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[2]))
        return f"{link[1]}{posixpath.relpath(in_site(target), there)}{link[3]}"

    return "".join(
        LINK.sub(moved, piece) if open_ else piece
        for piece, open_ in outside_fences(text)
    )


def prepare(docs: Path) -> None:
    """Write the site's pages and files: ``docs/``, what it links, and what these link in turn."""
    shutil.copytree(ROOT / "docs", docs)
    waiting = [
        path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/**/*.md"))
    ]
    waiting.append("README.md")
    seen = set(waiting)
    while waiting:
        file = waiting.pop()
        content, place = (ROOT / file).read_bytes(), docs / in_site(file)
        if file.endswith(".md"):
            content = site_command.filled(
                rewritten(file, content.decode("utf-8"))
            ).encode("utf-8")
            new = [target for target in targets(file) if target not in seen]
            waiting += dict.fromkeys(
                target for target in new if (ROOT / target).is_file()
            )
            seen.update(waiting)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def copy_packages(folder: Path) -> None:
    """Copy the packages whose docstrings the site shows, with the folders of installed ones."""
    package = folder / "flower_kmeans"
    # loads the folder
    leave_out = shutil.ignore_patterns("__pycache__", "strategies.py")
    shutil.copytree(ROOT / "flower_kmeans", package, ignore=leave_out)
    shutil.copytree(ROOT / "strategies", package / "strategies", ignore=leave_out)
    shutil.copytree(ROOT / "benchmarks" / "bench", folder / "bench", ignore=leave_out)


def main(site: str = "site") -> int:
    """Build the site in a temporary directory and put it into ``site``; return the exit code."""
    with tempfile.TemporaryDirectory() as work:
        prepare(Path(work, "docs"))
        shutil.copy(ROOT / "mkdocs.yml", work)
        copy_packages(Path(work))
        built = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"], cwd=work
        )
        if built.returncode == 0:
            shutil.rmtree(site, ignore_errors=True)
            shutil.copytree(Path(work, "site"), site)
    return built.returncode


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # the commands of this checkout, as its docstrings
    sys.exit(main(*sys.argv[1:]))
