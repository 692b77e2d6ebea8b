"""The code blocks of the documents: what they are, and how they are run."""

import argparse
import contextlib
import doctest
import io
import json
import re
import runpy
import shlex
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from flower_kmeans.cli.app import app as command

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("simulations/**/README.md"),
    ]
)
CODE = re.compile(
    r"^ *(?:\$ |(?:python3?|pip|flwr|flower-[a-z]+) [\w.-]|import \w|from [\w.]+ import )",
    re.MULTILINE,
)
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1``` *$", re.MULTILINE | re.DOTALL)
COMMANDS = {"assign", "check", "domain", "inspect", "keygen", "plan", "simulate"}
"""Of flower-kmeans, which are run; of the others, and with files of a node, options are read."""
OF_A_NODE = "/srv/"  # paths on machines that are not here
STOPS = "# stops"  # the comment before a command that ends with an error
# the first line of a file that the page's reader writes
NAMED = re.compile(r"# ([\w-]+\.toml)\b")
WIDTH = "100"  # columns of the terminal
# take long: their options are read
SCRIPTS = ("benchmarks/", "simulations/", "tests/deployment/")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str  # from the repository's root
    line: int  # of its first line of code
    language: str
    text: str

    @property
    def key(self):
        """Its page and its first line, by which it is listed."""
        return self.page, self.text.split("\n", 1)[0]

    def __str__(self):
        return f"{self.page}:{self.line} ({self.language or 'no language'})"


def page_id(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page):
    """Return the fenced blocks of a page, those within lists too."""
    text, found = page.read_text("utf-8"), []
    for match in FENCE.finditer(text):
        line = text[: match.start(3)].count("\n") + 1
        found.append(
            Block(page_id(page), line, match[2].strip(), textwrap.dedent(match[3]))
        )
    fences = len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE))
    assert fences == 2 * len(found), (
        f"{page_id(page)} has fences that are not understood"
    )
    indented = [
        line for line in FENCE.sub("", text).splitlines() if line.startswith("    ")
    ]
    code = [line for line in indented if CODE.match(line)]
    assert not code, (
        f"{page_id(page)}: code stands in a fence, so that it is run: {code}"
    )
    return found


def commands(block):
    """Return a shell block's commands as lists of words."""
    return [words for words, _ in commands_and_ends(block)]


def commands_and_ends(block):
    """Return a shell block's commands as lists of words, each with whether it is to stop."""
    found, stops = [], False
    for line in block.text.replace("\\\n", " ").splitlines():
        words = with_file(shlex.split(line, comments=True))
        if words:
            found.append((words, stops))
            stops = False
        elif line.startswith(STOPS):
            stops = True
    assert not stops, f"{block}: no command follows {STOPS!r}"
    return found


def with_file(words):
    """Return a command with a script's file in place of ``-m`` and its module."""
    is_module = words[:2] == ["python", "-m"] and words[2].startswith("benchmarks.")
    if not is_module:
        return words
    return ["python", words[2].replace(".", "/") + ".py", *words[3:]]


def treatment(block, listed):
    """Return what is done with a block; a block of a new kind is an error."""
    if block.key in listed:
        return "listed"
    if block.language == "bash":
        for words in commands(block):
            known = words[0] == "flower-kmeans" or (
                words[0] == "python" and words[1].startswith(SCRIPTS)
            )
            plain = not {"&&", "|", ">", ";"} & set(words)
            complaint = (
                f"{block}: {' '.join(words)!r} is not run; list the block with a reason"
            )
            assert all((known, plain)), complaint
        return "bash"
    assert block.language in {"python", "toml", "json", "output", "text"}, (
        f"{block}: a block is python, bash, toml, json, output (compared with what the block "
        "before it printed) or text (no code); or it is listed with a reason"
    )
    assert block.language != "text" or not CODE.search(block.text), (
        f"{block}: this is code: list it"
    )
    return block.language


def run_page(page, listed, directory, monkeypatch, prepare=None):
    """Run a page's blocks in order, in one directory and one namespace; return both accounts.

    Returns the namespace of the Python blocks, and what was done with each block.
    """
    monkeypatch.chdir(directory)
    if prepare is not None:
        prepare(directory)
    namespace, done, printed = {"__name__": "documents"}, [], None
    for block in blocks(page):
        how = treatment(block, listed)
        if how == "python":
            printed = run_python(block, namespace)
        elif how == "bash":
            ends = commands_and_ends(block)
            printed = "".join(
                run_command(words, monkeypatch, stops) for words, stops in ends
            )
        elif how == "output":
            assert printed is not None, f"{block}: nothing ran before it"
            compare(block, printed)
        elif how in ("toml", "json"):
            (tomllib if how == "toml" else json).loads(block.text)
            named = NAMED.match(block.text)
            if named is not None:
                (directory / named[1]).write_text(block.text, "utf-8")
        done.append((block, how))
    return namespace, done


def run_python(block, namespace):
    """Run Python in a namespace, and return what it printed."""
    source = "\n" * (block.line - 1) + block.text  # lines as in the page
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(source, str(ROOT / block.page), "exec"), namespace)  # noqa: S102
    return printed.getvalue()


def run_command(words, monkeypatch, stops=False):
    """Run the library's command in this process, or let it or a script read the options alone."""
    arguments = words[1:]
    if words[0] == "python":
        read_options(ROOT / arguments[0], arguments[1:], monkeypatch)
        return ""
    elsewhere = any(OF_A_NODE in argument for argument in arguments)
    if arguments[0] not in COMMANDS or elsewhere:
        get_command(command).commands[arguments[0]].make_context(
            arguments[0], arguments[1:]
        )
        return ""
    if arguments[0] == "simulate" and "--engine" not in arguments:
        # Ray takes longer than all documents together
        arguments += ["--engine", "in-process"]
    result = CliRunner(env={"COLUMNS": WIDTH}).invoke(command, arguments)
    assert result.exit_code == (1 if stops else 0), f"{words}: {result.output}"
    return result.output


class OptionsRead(Exception):  # noqa: N818
    """A script has read its options, and is stopped."""


def read_options(script, arguments, monkeypatch):
    """Start a script with these arguments, and stop it once its parser has accepted them."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser, args=None, namespace=None):
        parse(parser, args, namespace)
        raise OptionsRead

    assert script.is_file(), script
    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        patch.setattr(sys, "argv", [str(script), *arguments])
        patch.syspath_prepend(script.parent)
        with pytest.raises(OptionsRead):
            runpy.run_path(str(script), run_name="__main__")


def compare(block, printed):
    """Compare what was printed with the page; ``...`` stands for anything, and so does space."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(block.text, printed, flags), (
        f"{block}: the page says\n{block.text}\nand the block before it printed\n{printed}"
    )
