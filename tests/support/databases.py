"""Databases of the tests: files of SQLite, and a PostgreSQL server that a test starts."""

import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

_USER = "postgres"  # of the server's processes, which root cannot start
_PROGRAMS = "/usr/lib/postgresql"


def sqlite_table(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]], table: str = "t"
) -> str:
    """Write rows as a table of a new file of SQLite, without types; return its URI."""
    names = ", ".join(f'"{column}"' for column in columns)
    marks = ", ".join("?" for _ in columns)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f'CREATE TABLE "{table}" ({names})')
        connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)  # noqa: S608
    return f"sqlite:///{path}"


def sqlite_script(path: Path, script: str) -> None:
    """Change a file of SQLite, as another program does."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(script)


@contextmanager
def postgresql() -> Iterator[str]:
    """Start a server in a directory of its own, on a socket; yield the URI of its database.

    Without the server's programs, or a user who may run them, the test is skipped.
    """
    found = sorted(Path(_PROGRAMS).glob("*/bin/initdb"))
    if not found:
        pytest.skip(
            "PostgreSQL's server is not installed (Debian's package postgresql)."
        )
    programs, prefix = found[-1].parent, []
    # Not a directory of pytest's: the server's user cannot enter it, and a socket's
    # path is short.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            try:
                pwd.getpwnam(_USER)
            except KeyError:
                pytest.skip(
                    f"PostgreSQL's server cannot run as root, and no user is {_USER!r}."
                )
            shutil.chown(folder, _USER)
            prefix = ["runuser", "-u", _USER, "--"]

        def call(program: str, *arguments: str) -> None:
            command = [
                *prefix,
                str(programs / program),
                "-D",
                str(folder / "data"),
                *arguments,
            ]
            subprocess.run(
                command, cwd=folder, check=True, timeout=120, stdout=subprocess.DEVNULL
            )

        call("initdb", "-A", "trust", "-U", _USER, "-N", "-E", "UTF8", "--locale=C")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql:///postgres?host={folder}&user={_USER}"
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def execute(uri: str, *statements: str) -> None:
    """Run statements in a PostgreSQL database."""
    from adbc_driver_postgresql import dbapi

    with closing(dbapi.connect(uri, autocommit=True)) as connection:
        for statement in statements:
            with closing(connection.cursor()) as cursor:
                cursor.execute(statement)
