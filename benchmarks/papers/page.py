"""Pages of the papers' items, docs/tables/papers/NAME.md."""

import textwrap
from pathlib import Path

from benchmarks.papers.items import ROOT, Item, Paper

FOLDER = ROOT / "docs/tables/papers"
WIDTH = 128  # columns of the documents


def path_of(paper: Paper) -> Path:
    """Return the file of a paper's page."""
    return FOLDER / f"{paper.name}.md"


def command_of(paper: Paper, item: Item) -> str:
    """Return the command line that makes an item."""
    command = f"python -m benchmarks.papers {paper.name} --{item.kind} {item.number}"
    if "DIR" in item.command.split():
        command += " --data-dir DIR"
    return command


def page_of(paper: Paper) -> str:
    """Return a paper's page: a row for each item."""
    made = sum(item.is_made for item in paper.items)
    text = (
        f"{paper.title}: its {len(paper.items)} tables, figures, theorems and algorithms. "
        f"{made} of them have a command. It is made by `python -m benchmarks.papers "
        "--write` from `benchmarks/papers/items.toml`. Options after `--` go to the script "
        "of an item, and `--quick` shows that a command works, on other data."
    )
    if paper.note:
        text += f" {paper.note}"
    lines = [f"# The items of {paper.name}", "", textwrap.fill(text, WIDTH), ""]
    lines += ["| item | command | printed | here | why |", "|---|---|---|---|---|"]
    for item in paper.items:
        command = ""
        if item.is_made:
            command = f"`{command_of(paper, item)}`: `{item.command}`"
        cells = [f"{item.name}: {item.title}", command]
        cells += [item.printed, item.ours, item.why]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(paper: Paper) -> Path:
    """Write a paper's page, and return its path."""
    path = path_of(paper)
    path.parent.mkdir(exist_ok=True)
    path.write_text(page_of(paper), "utf-8")
    return path
