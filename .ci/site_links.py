"""A hook of mkdocs: links that leave ``docs/`` lead to copies within the site.

The documents are written for a code host, where ``../README.md`` is a page and
``../simulations/...`` a file. The site holds a copy of every file that is linked so, under
``repository/``, and links are rewritten to it. So a page has one form, and the site needs no
address of the repository.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

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
        link[2] for piece, open_ in outside_fences(text) if open_ for link in LINK.finditer(piece)
    ]
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in links]


def on_config(config: Any) -> Any:
    """Name headings as code hosts do, so that one anchor works in both places."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add copies of what pages link outside of ``docs/``, and of what these link in turn."""
    waiting = [in_repository(file.src_uri) for file in files if file.is_documentation_page()]
    waiting.append("README.md")
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        if not page.startswith("docs/"):
            content = (ROOT / page).read_bytes()
            if not page.endswith(".md"):
                files.append(File.generated(config, COPIES + page, content=content))
                continue
            files.append(File.generated(config, COPIES + page, content=content.decode("utf-8")))
        for target in targets(page):
            if target not in seen and (ROOT / target).is_file():
                seen.add(target)
                if target.endswith(".md") or not target.startswith("docs/"):
                    waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite a page's relative links to the places that the files have in the site."""
    source = page.file.src_uri
    here = posixpath.dirname(in_repository(source))

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[2]))
        there = posixpath.relpath(in_site(target), posixpath.dirname(source) or ".")
        return f"{link[1]}{there}{link[3]}"

    return "".join(
        LINK.sub(rewritten, piece) if open_ else piece for piece, open_ in outside_fences(markdown)
    )
