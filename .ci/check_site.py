"""Check that no page of a built site fetches anything from another host.

Looks at all that a browser loads by itself: scripts, styles, images, fonts, frames and
media of the pages, and what style sheets load. Links that a reader may follow are not
looked at. (The theme's script names a host for diagrams in Mermaid's language, and asks
it only where a page has one: none may.)
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

FETCHED = {
    "audio",
    "embed",
    "iframe",
    "img",
    "input",
    "object",
    "script",
    "source",
    "video",
}
CSS_URL = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")
OUTSIDE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


class Fetches(HTMLParser):
    """Collects the addresses that a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the addresses of one element."""
        values = {name: value or "" for name, value in attrs}
        self.style = tag == "style"
        if tag in FETCHED:
            self.found += [
                values[name] for name in ("src", "data", "poster") if name in values
            ]
            self.found += [
                part.split()[0] for part in values.get("srcset", "").split(",") if part
            ]
        if tag == "link":
            self.found.append(values.get("href", ""))
        if "mermaid" in values.get("class", "").split():
            self.found.append("https://a diagram in Mermaid's language")
        self.found += addresses(values.get("style", ""))

    def handle_data(self, data: str) -> None:
        """Take the addresses in a style sheet of the page's own."""
        if self.style:
            self.found += addresses(data)


def addresses(css: str) -> list[str]:
    """Return what a style sheet loads."""
    return [first or second for first, second in CSS_URL.findall(css)]


def fetched_outside(name: str, text: str) -> list[str]:
    """Return the addresses outside of the site that a browser loads for this file."""
    if name.endswith(".css"):
        found = addresses(text)
    else:
        page = Fetches()
        page.feed(text)
        found = page.found
    return [address for address in found if OUTSIDE.match(address)]


def main(site: str) -> int:
    """Look at all pages, pictures and style sheets of a site; return the exit code."""
    kinds = {".html", ".css", ".svg"}
    files = [path for path in sorted(Path(site).rglob("*")) if path.suffix in kinds]
    failed = not any(path.suffix == ".html" for path in files)
    for path in files:
        for address in fetched_outside(path.name, path.read_text("utf-8")):
            print(f"{path}: fetches {address}")
            failed = True
    print(f"{len(files)} pages, style sheets and drawings in {site}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
