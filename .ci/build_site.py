"""Build the site of the documents: ``python .ci/build_site.py [DIRECTORY]``, by default ``site``.

The documents are written for a code host, where ``../README.md`` is a page and
``../simulations/...`` a file. The site holds a copy of every file that is linked so,
under ``repository/``, and links are rewritten to it. So a page has one form, and the
site needs no address of the repository. The pages are prepared here and not by a
plugin, so that any generator of sites can take them. The notebooks are run for their
pages; with ``--without-outputs`` they are not, and the site is built sooner.
"""

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import notebooks
import site_command

ROOT = Path(__file__).resolve().parent.parent
COPIES = "repository/"
NOTEBOOK = ".ipynb"
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\\)(\[[^\]]*\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def in_repository(site: str) -> str:
    """Return the path in the repository of a page or file of the site."""
    return site.removeprefix(COPIES) if site.startswith(COPIES) else f"docs/{site}"


def in_site(repository: str) -> str:
    """Return the path in the site of a file of the repository, a notebook's of its page."""
    if repository.endswith(NOTEBOOK):
        repository = repository.removesuffix(NOTEBOOK) + ".md"
    inside = repository.startswith("docs/")
    return repository.removeprefix("docs/") if inside else COPIES + repository


def outside_fences(text: str) -> list[tuple[str, bool]]:
    """Cut a page into pieces, and say of each whether it may hold links."""
    pieces, end = [], 0
    for fence in FENCE.finditer(text):
        pieces += [(text[end : fence.start()], True), (fence[0], False)]
        end = fence.end()
    return [*pieces, (text[end:], True)]


def text_of(page: str) -> str:
    """Return the text of a page of the repository, of a notebook without outputs."""
    if page.endswith(NOTEBOOK):
        return notebooks.page(ROOT / page, is_run=False).text
    return (ROOT / page).read_text("utf-8")


def targets(page: str) -> list[str]:
    """Return the files of the repository that a page of it links, as paths from its root."""
    text = text_of(page)
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


def prepare(docs: Path, are_run: bool = False) -> None:
    """Write the site's pages and files: ``docs/``, what it links, and what these link in turn.

    Pages of notebooks have outputs if the notebooks are run.
    """
    shutil.copytree(ROOT / "docs", docs)
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob(f"docs/**/*{NOTEBOOK}")]
    waiting = [path.relative_to(ROOT).as_posix() for path in sorted(pages)]
    waiting.append("README.md")
    seen = set(waiting)
    while waiting:
        file = waiting.pop()
        place = docs / in_site(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith((".md", NOTEBOOK)):
            new = [target for target in targets(file) if target not in seen]
            waiting += dict.fromkeys(
                target for target in new if (ROOT / target).is_file()
            )
            seen.update(waiting)
        if file.endswith(".md"):
            text = site_command.filled(rewritten(file, text_of(file)))
            place.write_text(text, "utf-8")
        elif file.endswith(NOTEBOOK):
            write_notebook(file, place, are_run)
        else:
            shutil.copyfile(ROOT / file, place)


def write_notebook(file: str, place: Path, is_run: bool) -> None:
    """Write the page of a notebook, and its pictures beside it."""
    page = notebooks.page(ROOT / file, is_run)
    text = notebooks.with_download(rewritten(file, page.text), place.stem)
    place.write_text(text, "utf-8")
    for name, content in page.pictures.items():
        (place.parent / name).write_bytes(content)


def copy_packages(folder: Path) -> None:
    """Copy the packages whose docstrings the site shows, with the folders of installed ones."""
    package = folder / "flower_kmeans"
    # loads the folder
    leave_out = shutil.ignore_patterns("__pycache__", "strategies.py")
    shutil.copytree(ROOT / "flower_kmeans", package, ignore=leave_out)
    shutil.copytree(ROOT / "strategies", package / "strategies", ignore=leave_out)
    shutil.copytree(ROOT / "benchmarks" / "bench", folder / "bench", ignore=leave_out)


def main(site: str, are_run: bool) -> int:
    """Build the site in a temporary directory and put it into ``site``; return the exit code."""
    with tempfile.TemporaryDirectory() as work:
        prepare(Path(work, "docs"), are_run)
        shutil.copy(ROOT / "mkdocs.yml", work)
        copy_packages(Path(work))
        built = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"], cwd=work
        )
        if built.returncode == 0:
            shutil.rmtree(site, ignore_errors=True)
            shutil.copytree(Path(work, "site"), site)
    return built.returncode


def options(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", nargs="?", default="site")
    parser.add_argument("--without-outputs", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # the commands of this checkout, as its docstrings
    chosen = options(sys.argv[1:])
    sys.exit(main(chosen.site, not chosen.without_outputs))
