"""Inputs as people have them, and what a command and a node make of each.

``python tests/support/inputs.py`` prints the table of docs/tables/inputs.md.
"""

import gzip
import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flower_kmeans import TableDomain
from flower_kmeans.data.reading import Reading
from flower_kmeans.data.table_domain import Category, Number
from flower_kmeans.data.tables import load_table
from flower_kmeans.errors import KMeansError

NAN = float("nan")
AGE_AND_WARD = TableDomain([Number("age", 0, 120), Category("ward", ("A", "B"))])
WITH_RULES = TableDomain(
    [Number("age", 0, 120, missing=60), Category("ward", ("A", "B"), "B")]
)


@dataclass(frozen=True)
class Input:
    """A file as somebody has it.

    Attributes
    ----------
    what : str
        In the words of the table.
    content : bytes or str
    records : list of rows, or str
        What ``simulate`` reads, or words of the error by which it refuses.
    node : list of rows, or str, optional
        The same of a node, where it differs.
    name : str
        Of the file.
    options : dict
        Of `load_table`.
    reading : dict
        Of `Reading`.
    """

    what: str
    content: bytes | str
    records: Any
    node: Any = None
    name: str = "t.csv"
    options: dict[str, Any] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)
    header: Any = True
    """Of the node, which never recognises it."""

    def write(self, folder: Path) -> Path:
        """Write the file, and return its path."""
        path = folder / self.name
        content = self.content
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


ROWS = [[1.5, 2.0], [3.0, 4.0]]
PLAIN = "a,b\n1.5,2\n3,4\n"
GERMAN = {"delimiter": ";", "decimal": ","}
HALF = [[NAN, 2.0], [3.0, 4.0]]
LEFT_OUT = [[3.0, 4.0]]

INPUTS = [
    Input("a csv file", PLAIN, ROWS),
    Input("lines that end in CR LF", PLAIN.replace("\n", "\r\n"), ROWS),
    Input("lines that end in CR", PLAIN.replace("\n", "\r"), ROWS),
    Input("lines that end in different ways", "a,b\r\n1.5,2\r3,4\n", ROWS),
    Input("no end of the last line", PLAIN.rstrip(), ROWS),
    Input("blank lines before the header, between records and at the end",
          f"\n \n{PLAIN}\n\n", ROWS),
    Input("an end of a line within quotes", 'a,b,c\n1.5,2,"x\ny"\n3,4,z\n', "2 of 3 lines",
          [[NAN] * 2, [NAN] * 2, [3, 4]], options={"features": ["a", "b"]}),
    Input("a quote that does not end", 'a,b\n"1.5,2\n3,4\n', "1 of 2 lines", [[NAN] * 2, [3, 4]]),
    Input("a quote within a cell", 'a,b,c\n1.5,2,5" disk\n3,4,z\n', ROWS,
          options={"features": ["a", "b"]}),
    Input("quoted cells with commas and quotes", 'a,b,c\n1.5,2,"x, ""y"""\n3,4,z\n', ROWS,
          options={"features": ["a", "b"]}),
    Input("spaces around cells and names", 'a , b\n 1.5, 2 \n"3", 4\n', ROWS),
    Input("a record with too many cells", "a,b\n1.5,2,7\n3,4\n", "1 of 2 lines",
          [[NAN] * 2, [3, 4]]),
    Input("a record with too few cells", "a,b\n1.5\n3,4\n", "1 of 2 lines", [[NAN] * 2, [3, 4]]),
    Input("semicolons", PLAIN.replace(",", ";"), ROWS),
    Input("tabs", PLAIN.replace(",", "\t"), ROWS),
    Input("bars", PLAIN.replace(",", "|"), ROWS),
    Input("spaces as delimiters", PLAIN.replace(",", " "), "another delimiter",
          [[NAN], [NAN]]),
    Input("another delimiter, that is named", PLAIN.replace(",", "~"), ROWS,
          reading={"delimiter": "~"}),
    Input("commas in quoted names", '"a, b";"c, d"\n1.5;2\n3;4\n', ROWS),
    Input("two delimiters equally often in the header", "a,b;c\n1,2;3\n", "one delimiter",
          "one delimiter"),
    Input("a first line sep=; of Excel", f"sep=;\n{PLAIN.replace(',', ';')}", ROWS),
    Input("spaces around quotes", '"a" , "b"\n"1.5" ,2\n3, "4" \n', ROWS),
    Input("a long cell in quotes", f'a,b,c\n1.5,2,"{"x" * 200_000}"\n3,4,z\n', "1 of 2 lines",
          [[NAN] * 2, [3, 4]], options={"features": ["a", "b"]}),
    Input("two byte order marks", b"\xef\xbb\xbf\xef\xbb\xbf" + PLAIN.encode(), ROWS),
    Input("UTF-16 with its mark, and its order of bytes named",
          b"\xff\xfe" + PLAIN.encode("utf-16-le"), ROWS, reading={"encoding": "utf-16-le"}),
    Input("UTF-16 without a mark, that is named", PLAIN.encode("utf-16-le"), ROWS,
          reading={"encoding": "utf-16"}),
    Input("UTF-32", PLAIN.encode("utf-32"), "save it as UTF-8", "save it as UTF-8"),
    Input("a file named as compressed that is not", PLAIN, "damaged", "damaged", name="t.csv.gz"),
    Input("a byte order mark", b"\xef\xbb\xbf" + PLAIN.encode(), ROWS),
    Input("UTF-16 with its mark, as Excel's Unicode text",
          PLAIN.replace(",", "\t").encode("utf-16"), ROWS),
    Input("names in Windows' encoding", "gr\xf6\xdfe,b\n1.5,2\n3,4\n".encode("cp1252"),
          "cp1252", "cp1252"),
    Input("names in Windows' encoding, that is named",
          "gr\xf6\xdfe,b\n1.5,2\n3,4\n".encode("cp1252"), ROWS, reading={"encoding": "cp1252"}),
    Input("bytes that are not UTF-8 in a number", b"a,b\n1.5\xff,2\n3,4\n", "another encoding",
          HALF),
    Input("bytes that are not UTF-8 in a column that is not used",
          b"a,b,c\n1.5,2,\xff\n3,4,z\n", ROWS, options={"features": ["a", "b"]}),
    Input("a NUL byte in a number", b"a,b\n1.5\x00,2\n3,4\n", "1 of 2 cells of 'a'", HALF),
    Input("a csv file that gzip compressed", gzip.compress(PLAIN.encode(), mtime=0), ROWS,
          name="t.csv.gz"),
    Input("a compressed file whose name does not say so", gzip.compress(PLAIN.encode(), mtime=0),
          "gzip", "gzip"),
    Input("a name of a file with umlauts and spaces", PLAIN, ROWS, name="gr\xf6\xdfe 1.CSV"),
    Input("no header: numbers only", "1.5,2\n3,4\n", ROWS, [[3, 4]]),
    Input("no header, and names from the settings", "1.5,2\n3,4\n", ROWS,
          reading={"header": ["a", "b"]}, header=["a", "b"]),
    Input("no header, and a missing cell in the first line", "1.5,,7\n3,4,8\n",
          "numbers and empty cells", [[1.5, NAN, 7], [3, 4, 8]], header=["a", "b", "c"]),
    Input("a first line of names and numbers", "a,2019\n1.5,2\n3,4\n", "both", ROWS),
    Input("the same, and --header true", "a,2019\n1.5,2\n3,4\n", ROWS, reading={"header": True}),
    Input("a first line that counts the columns, as pandas names them", "0,1\n1.5,2\n3,4\n",
          "count the columns", ROWS),
    Input("a first line of years", "2019,2020,2021\n1.5,2,7\n3,4,8\n", "count the columns",
          [[1.5, 2, 7], [3, 4, 8]]),
    Input("no header, decimal commas", "1,5;2;7\n3;4;8\n", "no number", [[3, 4, 8]]),
    Input("the nameless index of pandas", ",a,b\n0,1.5,2\n1,3,4\n", "row numbers of pandas",
          "row numbers of pandas"),
    Input("the nameless index of pandas, and named features", ",a,b\n0,1.5,2\n1,3,4\n", ROWS,
          options={"features": ["a", "b"]}),
    Input("the index that pandas read and wrote once more", "Unnamed: 0,a,b\n0,1.5,2\n1,3,4\n",
          "row numbers of pandas", "row numbers of pandas"),
    Input("a point for a missing cell, as SAS writes it", "a,b\n.,2\n3,4\n",
          "signs for a missing cell", HALF),
    Input("an error of a spreadsheet", "a,b\n#DIV/0!,2\n3,4\n", "an error of a spreadsheet", HALF),
    Input("two columns of one name", "a,a\n1.5,2\n3,4\n", "same name", "same name"),
    Input("two columns of one name that are not used", "a,b,c,c\n1.5,2,7,8\n3,4,7,8\n", ROWS,
          options={"features": ["a", "b"]}),
    Input("a quote in the first line that does not end", '"a,b\n1.5,2\n3,4\n', "quotes that end",
          "quotes that end"),
    Input("an empty file", "", "Got none", "Got none"),
    Input("a header without records", "a,b\n", np.empty((0, 2))),
    Input("hexadecimal numbers", "a,b\n0x10,2\n3,4\n", "hexadecimal", HALF),
    Input("numbers with underscores", "a,b\n1_5,2\n3,4\n", "no number", HALF),
    Input("infinite numbers", "a,b\ninf,2\n3,4\n", "infinite", HALF),
    Input("exponents and signs", "a,b\n+15e-1,2.\n3E0,.4e1\n", ROWS),
    Input("truths", "a,b\nTrue,false\n0,1\n", [[1, 0], [0, 1]]),
    Input("an empty cell", "a,b\n,2\n3,4\n", LEFT_OUT, HALF),
    Input("NA, NaN, NULL, #N/A", "a,b\nNA,2\n#N/A,2\nNULL,nan\n3,4\n", LEFT_OUT,
          [[NAN, 2], [NAN, 2], [NAN, NAN], [3, 4]]),
    Input("text among numbers", "a,b\nunknown,2\n3,4\n", "1 of 2 cells of 'a'", HALF),
    Input("a column of text", "a,b,c\n1.5,2,Rome\n3,4,Oslo\n", "'c'",
          [[1.5, 2, NAN], [3, 4, NAN]]),
    Input("decimal commas", "a;b\n1,5;2\n3;4\n", "decimal comma", HALF),
    Input("decimal commas, that are named", "a;b\n1,5;2\n3;4\n", ROWS, reading=GERMAN),
    Input("decimal points, where commas are named", "a;b\n1.5;2\n3;4\n", "decimal point", HALF,
          reading=GERMAN),
    Input("points between thousands", "a;b\n1.000,5;2\n3;4\n", [[1000.5, 2], [3, 4]],
          reading={**GERMAN, "thousands": "."}),
    Input("points that may stand between thousands, and are not named",
          "a;b\n" + "1.500;2\n" * 20, [[1.5, 2.0]] * 20),
    Input("narrow spaces between thousands", "a;b\n1\u202f000,5;2\n3;4\n", [[1000.5, 2], [3, 4]],
          reading={**GERMAN, "thousands": " "}),
    Input("commas between thousands, that are not named", 'a,b\n"1,000,000",2\n3,4\n',
          "--thousands ,", HALF),
    Input("percentages", "a,b\n15%,2\n3,4\n", "percentages", HALF),
    Input("numbers with a unit", "a,b\n15 kg,2\n3,4\n", "unit", HALF),
    Input("numbers below a limit of detection", "a,b\n<0.5,2\n3,4\n", "limit", HALF),
    Input("words for a missing cell", "a,b\nk. A.,2\n3,4\n", "signs for a missing cell", HALF),
    Input("dates in a column of numbers", "a,b\n2024-02-29,2\n3,4\n", "dates", HALF),
    Input("an unlisted category", "age,ward\n40,A\n50,C\n", "none of its categories",
          [[40, 1, 0], [50, NAN, NAN]], options={"domain": AGE_AND_WARD}),
    Input("an unlisted category that counts as another", "age,ward\n40,A\n50,C\n",
          [[40, 1, 0], [50, 0, 1]], options={"domain": WITH_RULES}),
    Input("a missing number with a stated value", "age,ward\n,A\n50,B\n",
          [[60, 1, 0], [50, 0, 1]], options={"domain": WITH_RULES}),
    Input("text in a number with a stated value", "age,ward\nold,A\n50,B\n",
          "1 of 2 cells of 'age'", [[NAN, 1, 0], [50, 0, 1]], options={"domain": WITH_RULES}),
    Input("a record without any cell", "age,ward\n,\n50,B\n", [[50, 0, 1]],
          [[NAN] * 3, [50, 0, 1]], options={"domain": WITH_RULES}),
    Input("a number beyond its bounds", "age,ward\n400,A\n50,B\n", [[120, 1, 0], [50, 0, 1]],
          options={"domain": WITH_RULES}),
]  # fmt: skip


def outcome(made: Input, folder: Path, *, node: bool) -> tuple[Any, str]:
    """Return the records that are read, or ``None``, and what the holder is told."""
    path = made.write(folder)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("flower_kmeans.data")
    log.addHandler(handler)
    options = dict(made.options)
    if node:
        options |= {"malformed": "nan", "header": made.header}
    try:
        table = load_table(path, reading=Reading(**made.reading), **options)
    except KMeansError as error:
        return None, str(error).replace(str(path), "FILE")
    finally:
        log.removeHandler(handler)
    return table.records, " ".join(said).replace(f"{path.name}: ", "")


def table() -> str:
    """Return the rows of docs/tables/inputs.md."""
    lines = ["| input | `simulate`, `assign` | a node |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as name:
        for made in INPUTS:
            cells = [made.what]
            for node in (False, True):
                records, said = outcome(made, Path(name), node=node)
                cells.append(_words(records, said))
            if cells[1] == cells[2]:
                cells[2] = "the same"
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _words(records: Any, said: str) -> str:
    said = said.replace("|", "\\|").replace("\n", " ")
    if records is None:
        return f"refused: {said}"
    n_usable = int(np.isfinite(records).all(axis=1).sum())
    number = "1 record" if n_usable == 1 else f"{n_usable} records"
    return f"{number}. {said}".strip()


if __name__ == "__main__":
    print(table(), end="")
