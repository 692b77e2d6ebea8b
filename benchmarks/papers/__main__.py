"""Lists the papers' items and makes them: ``python -m benchmarks.papers fastlloyd --figure 3``.

Without a paper it lists the papers, with one its items. ``--quick`` makes an item in
seconds to a few minutes, on data that need no file. ``--data-dir`` has the public data
sets. Options after ``--`` go to the script. ``--record`` writes the item's numbers to
rows/PAPER.csv, with date and commit, and the pages again. ``--write`` makes the pages
docs/tables/papers/NAME.md from the rows, after it took over the rows of the other
tables of docs/tables.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.papers.items import DATA_DIR, KINDS, ROOT, Item, Paper, papers
from benchmarks.papers.page import write
from benchmarks.papers.record import output_of, record, take_over


def parser_of(names: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.papers", epilog=__doc__)
    parser.add_argument("paper", nargs="?", choices=names)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", metavar="NUMBER")
    parser.add_argument("--quick", action="store_true", help="show that it works")
    parser.add_argument("--data-dir", metavar="DIR", help="directory of NAME.npz files")
    parser.add_argument("--record", action="store_true", help="write the item's rows")
    parser.add_argument("--write", action="store_true", help="write the pages")
    return parser


def words_of(item: Item, quick: bool, data_dir: str | None) -> list[str]:
    """Return the arguments of Python that make an item.

    Raises
    ------
    ValueError
        If nothing makes it, or it needs a directory of data sets that is not given.
    """
    if not item.is_made:
        raise ValueError(f"Nothing makes {item.name}: {item.why}")
    words = shlex.split(item.quick if quick else item.command)
    if DATA_DIR in words:
        if data_dir is None:
            raise ValueError(
                f"Expected --data-dir for {item.name}, or --quick. Got neither."
            )
        words[words.index(DATA_DIR)] = data_dir
    return words


def listing(paper: Paper) -> str:
    """Return a line for each item of a paper."""
    lines = [paper.title]
    for item in paper.items:
        mark = " " if item.is_made else "-"
        lines.append(f"{mark} {item.name:<16} {item.title}")
    return "\n".join([*lines, "- : no command; its page has the reason"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    further: list[str] = []
    if "--" in given:
        place = given.index("--")
        further = given[place + 1 :]
        given = given[:place]
    found = papers()
    parser = parser_of(tuple(found))
    options = parser.parse_args(given)
    if options.write:
        for paper in found.values():
            take_over(paper)
            print(write(paper).relative_to(ROOT))
        return 0
    if options.paper is None:
        for paper in found.values():
            made = sum(item.is_made for item in paper.items)
            print(f"{paper.name:<10} {made} of {len(paper.items)} items: {paper.title}")
        return 0
    paper = found[options.paper]
    wanted = [(kind, getattr(options, kind)) for kind in KINDS]
    wanted = [(kind, number) for kind, number in wanted if number is not None]
    if not wanted:
        print(listing(paper))
        return 0
    if len(wanted) > 1:
        parser.error("Expected one item. Got several.")
    try:
        item = paper.item(*wanted[0])
        words = words_of(item, options.quick, options.data_dir)
        if options.record:
            words += ["--output", str(output_of(paper, item, options.quick))]
    except (KeyError, ValueError) as error:
        parser.error(str(error.args[0]))
    command = [sys.executable, *words, *further]
    print(shlex.join(["python", *command[1:]]), flush=True)
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == 0 and options.record:
        print(record(paper, item), "rows of", item.name)
        write(paper)
    return code


if __name__ == "__main__":
    sys.exit(main())
