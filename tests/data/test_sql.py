"""Records of databases: what a query gives, and what is refused."""

import gc
import os
import stat
import subprocess
import sys
import tracemalloc
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from databases import execute, postgresql, sqlite_script, sqlite_table

from flower_kmeans.data import sql
from flower_kmeans.data.sources import as_source, checked_source
from flower_kmeans.data.sql import SqlQuery, is_uri, open_query
from flower_kmeans.data.table_domain import Category, Date, Number, TableDomain
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, DataError

LARGE = 2**53 + 1  # which no float64 is
CELLS = [1, 2.5, None, "3.5", "x", b"\x00\xff", LARGE, -7]
DOMAIN = TableDomain(
    [
        Number("age", 0, 120),
        Category("sex", ("f", "m")),
        Date("seen", date(2020, 1, 1), date(2025, 1, 1)),
    ]
)
SECRET = "8735"  # noqa: S105 - of a single record


def rows_of(query):
    """Return all rows of a query, as tuples."""
    found = []
    for block in query.blocks():
        assert tuple(block) == query.names
        found += zip(*(column.tolist() for column in block.values()), strict=True)
    return found


@pytest.fixture
def table(tmp_path):
    return sqlite_table(
        tmp_path / "x.db", ["a", "b"], [(c, i) for i, c in enumerate(CELLS)]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqlite:///x.db", True),
        ("SQLite:////srv/x.db", True),
        ("postgresql://h/d", True),
        ("postgres://h/d", True),
        ("x.csv", False),
        ("/srv/sqlite/x.db", False),
        ("mysql://h/d", False),
        ("", False),
    ],
)
def test_a_database_is_told_from_a_file(text, expected):
    assert is_uri(text) is expected


# --------------------------------------------------------------------------- SQLite


@pytest.mark.claim("own-data", "postgresql-read-through-adbc")
def test_each_cell_has_the_type_that_it_is_stored_with(table):
    query = open_query(table, "SELECT a, b FROM t ORDER BY b")
    assert query.names == ("a", "b")
    (block,) = query.blocks()
    assert {column.dtype for column in block.values()} == {np.dtype(object)}
    found = block["a"].tolist()
    assert found == CELLS
    assert list(map(type, found)) == list(map(type, CELLS))


@pytest.mark.claim("own-data", "postgresql-read-through-adbc")
def test_a_text_that_is_no_utf_8_changes_no_other_cell(tmp_path):
    uri = sqlite_table(tmp_path / "x.db", ["a"], [("é",), (None,)])
    sqlite_script(
        tmp_path / "x.db", "UPDATE t SET a = CAST(x'66ff' AS TEXT) WHERE a IS NULL"
    )
    assert rows_of(SqlQuery(uri, "SELECT a FROM t")) == [("é",), ("f\ufffd",)]


@pytest.mark.claim("own-data", "query-result-one-select")
def test_rows_come_in_blocks_of_bounded_size(tmp_path, monkeypatch):
    uri = sqlite_table(tmp_path / "x.db", ["a", "b"], [(i, -i) for i in range(1000)])
    monkeypatch.setattr(sql, "_BLOCK_CELLS", 600)
    blocks = list(SqlQuery(uri, "SELECT * FROM t ORDER BY a").blocks())
    assert [len(block["a"]) for block in blocks] == [300, 300, 300, 100]
    assert np.concatenate([block["a"] for block in blocks]).tolist() == list(
        range(1000)
    )
    monkeypatch.undo()
    many = SqlQuery(uri, "SELECT x.a FROM t AS x, t AS y LIMIT 70000").blocks()
    assert [len(block["a"]) for block in many] == [65536, 4464]


@pytest.mark.claim("own-data", "query-result-one-select")
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path, monkeypatch):
    uri = sqlite_table(
        tmp_path / "x.db", ["a", "b"], [(i + 0.5, i) for i in range(300)]
    )
    monkeypatch.setattr(sql, "_BLOCK_CELLS", 1_000)

    def peak(n_rows):
        tracemalloc.start()
        text = f"SELECT x.* FROM t AS x, t AS y LIMIT {n_rows}"  # noqa: S608
        for _ in SqlQuery(uri, text).blocks():
            pass
        reached = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return reached

    assert peak(60_000) < 1.5 * peak(3_000)


def test_a_query_is_made_anew_by_each_pass(table, tmp_path):
    query = open_query(table, "SELECT a FROM t WHERE b < 2")
    assert rows_of(query) == [(1,), (2.5,)]
    sqlite_script(tmp_path / "x.db", "UPDATE t SET a = 9")
    assert rows_of(query) == [(9,), (9,)]


def test_a_result_without_rows_has_names(table):
    query = open_query(
        table, "WITH w AS (SELECT a AS x, b AS y FROM t) SELECT * FROM w LIMIT 0"
    )
    assert query.names == ("x", "y")
    assert rows_of(query) == []


def test_names_are_known_before_anything_is_computed(table):
    query = open_query(table, "SELECT sum(b + 9223372036854775000) AS s FROM t")
    assert query.names == ("s",)
    with pytest.raises(DataError, match=r"failed \(SQLITE_ERROR\)"):
        rows_of(query)


@pytest.mark.claim("own-data", "database-opened-reading-only")
@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM t",
        "INSERT INTO t VALUES (1, 2) RETURNING a",
        "UPDATE t SET a = 1",
        "DROP TABLE t",
        "PRAGMA user_version = 3",
        "ATTACH 'other.db' AS other",
        "VACUUM INTO 'other.db'",
        "SELECT a FROM t; DELETE FROM t",
        "SELECT a FROM t) ; DROP TABLE t --",
    ],
)
def test_nothing_is_written(table, tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    before = (tmp_path / "x.db").read_bytes()
    with pytest.raises(ConfigurationError, match=r"one SELECT \(or WITH\)"):
        open_query(table, query)
    with pytest.raises(ConfigurationError, match=r"one SELECT \(or WITH\)"):
        rows_of(SqlQuery(table, query))
    assert (tmp_path / "x.db").read_bytes() == before
    assert os.listdir(tmp_path) == ["x.db"]


@pytest.mark.claim("own-data", "database-opened-reading-only")
def test_the_file_is_opened_for_reading_alone(table, tmp_path, monkeypatch):
    opened, connect = [], sql.sqlite3.connect
    monkeypatch.setattr(
        sql.sqlite3,
        "connect",
        lambda *a, **k: opened.append(connect(*a, **k)) or opened[-1],
    )
    blocks = SqlQuery(table, "SELECT a FROM t").blocks()
    next(blocks)
    (connection,) = opened
    with pytest.raises(sql.sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM t")
    blocks.close()
    with pytest.raises(sql.sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT a, b AS a FROM t", "Got 'a' twice"),
        ("SELECT a, b AS A FROM t", "Got 'A' twice"),
        ("SELECT * FROM t AS x, t AS y", "Got 'a' twice"),
        ('SELECT a, b AS "" FROM t', "Got column 2 without a name"),
        ("SELECT nope FROM t", "no such column: nope"),
        ("SELECT a FROM nowhere", "no such table: nowhere"),
        ("SELEC a FROM t", "syntax error"),
        ("SELECT ? AS a FROM t", "parameters"),
        ("", "incomplete input"),
    ],
)
def test_a_query_that_cannot_be_made_is_an_error(table, query, message):
    with pytest.raises(ConfigurationError, match=message):
        open_query(table, query)


@pytest.mark.parametrize(
    "query", ["SELECT a FROM t;", "SELECT a FROM t -- all", " SELECT a FROM t; \n"]
)
def test_the_end_of_a_query_may_have_a_semicolon_or_a_comment(table, query):
    assert len(rows_of(open_query(table, query))) == len(CELLS)


def test_a_file_that_is_none_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"no\.db does not exist"):
        open_query(f"sqlite:///{tmp_path}/no.db", "SELECT 1 AS a")
    assert not list(tmp_path.iterdir())
    (tmp_path / "text.db").write_text(f"{SECRET}\n" * 100)
    with pytest.raises(DataError, match="SQLITE_NOTADB") as caught:
        open_query(f"sqlite:///{tmp_path}/text.db", "SELECT a FROM t")
    assert SECRET not in str(caught.value)


def test_paths_may_have_any_characters_and_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sqlite_table(tmp_path / "ä b?mode=rwc#%41.db", ["a"], [(1,)])
    assert rows_of(SqlQuery("sqlite:///ä b?mode=rwc#%41.db", "SELECT a FROM t")) == [
        (1,)
    ]


@pytest.mark.claim("own-data", "database-opened-reading-only")
def test_a_computation_that_fails_says_nothing_about_its_record(tmp_path):
    rows = [(1,), (SECRET,), (-(2**63),)]
    uri = sqlite_table(tmp_path / "x.db", ["a"], rows)
    with pytest.raises(DataError) as caught:
        rows_of(open_query(uri, "SELECT abs(a) AS a FROM t"))
    assert "expression" in str(caught.value)
    assert "overflow" not in str(caught.value)
    with pytest.raises(DataError) as caught:
        rows_of(
            open_query(
                uri, "SELECT json_extract('{', a) AS a FROM t WHERE a = 8735 OR 1"
            )
        )
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


# --------------------------------------------------------------------------- URIs


@pytest.mark.claim("own-data", "database-opened-reading-only")
@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://ann:8735@host/clinic",
        "postgres://ann:@host/clinic",
        "postgresql://ann:8735@ho@st/clinic",
        "postgresql://host/clinic?password=8735",
        "postgresql://host/clinic?sslmode=require&%70assword=8735",
        "postgresql://host/clinic?sslpassword=8735",
        "postgresql://ann:#8735@host/clinic",
        "postgresql://a#n:8735@host/clinic",
        "postgresql://ann:/8735@host/clinic",
        "postgresql://ann:?8735@host/clinic",
        "postgresql://host/clinic?user=ann#&password=8735",
    ],
)
def test_a_password_in_a_uri_is_refused_and_not_repeated(uri):
    with pytest.raises(ConfigurationError, match="PGPASSWORD") as caught:
        open_query(uri, "SELECT 1 AS a")
    assert SECRET not in str(caught.value)


def test_other_texts_and_types_are_refused():
    with pytest.raises(ConfigurationError, match="Expected uri") as caught:
        SqlQuery(f"mysql://ann:{SECRET}@host/x", "SELECT 1")
    assert SECRET not in str(caught.value)
    for arguments in (
        (1, "SELECT 1"),
        ("sqlite:///x", 1),
        ("sqlite:///x", "SELECT 1", "domain"),
    ):
        with pytest.raises(ConfigurationTypeError):
            SqlQuery(*arguments)


def test_without_the_driver_postgresql_needs_an_extra_and_sqlite_none(tmp_path):
    uri = sqlite_table(tmp_path / "x.db", ["a"], [(1,)])
    code = """
import sys
sys.modules.update(dict.fromkeys(["adbc_driver_postgresql", "adbc_driver_manager", "pyarrow"]))
from flower_kmeans.data.sql import open_query
print([block["a"].tolist() for block in open_query(sys.argv[1], "SELECT a FROM t").blocks()])
try:
    open_query("postgresql:///x", "SELECT 1 AS a")
except ValueError as error:
    print(error)
"""
    found = subprocess.run(
        [sys.executable, "-c", code, uri],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    assert "[[1]]" in found
    assert "A PostgreSQL database needs the package adbc_driver_postgresql" in found
    assert "flower-kmeans[sql]" in found or "installed but cannot be imported" in found


# --------------------------------------------------------------------------- as records


@pytest.fixture
def people(tmp_path):
    rows = [
        (30, "f", "2021-02-03"),
        (40.5, "m", None),
        ("50", "m", "2022-01-01"),
        (None, "f", "2022-01-01"),
        (60, "x", "2022-01-01"),
        (130, b"m", "1999-01-01 10:00"),
    ]
    return sqlite_table(tmp_path / "people.db", ["age", "sex", "seen"], rows)


def test_a_domain_makes_records_of_what_it_declares(people):
    query = SqlQuery(people, "SELECT 'no' AS other, seen, sex, age FROM t", DOMAIN)
    for columns in (None, DOMAIN.columns):
        source = as_source(query, 4, columns)
        assert source.is_live
        found = source.loaded()
        assert source.n_null == 3
    days = [
        date(2021, 2, 3).toordinal(),
        date(2022, 1, 1).toordinal(),
        date(2020, 1, 1).toordinal(),
    ]
    np.testing.assert_array_equal(
        found, [[30, 1, 0, days[0]], [50, 0, 1, days[1]], [120, 0, 1, days[2]]]
    )


def test_without_a_domain_columns_are_numbers(people):
    query = SqlQuery(people, "SELECT age, sex, length(sex) AS n FROM t")
    found = as_source(query, 2, ["n", "age"]).loaded(keep_null=True)
    np.testing.assert_array_equal(found[:, 1], [30, 40.5, 50, np.nan, 60, 130])
    assert as_source(query, 3).loaded().size == 0  # all null: text is no number


@pytest.mark.parametrize(
    ("width", "columns", "domain", "message"),
    [
        (2, None, None, "with 2 columns. Got 3"),
        (1, ["x"], None, "Expected the column 'x' in the query. Got age, sex, seen"),
        (4, ["a", "b", "c", "d"], DOMAIN, "with the columns"),
        (3, None, DOMAIN, "with 3 columns. Got 4"),
        (
            1,
            None,
            TableDomain([Number("x", 0, 1)]),
            "Expected the column 'x' in the query",
        ),
    ],
)
def test_a_query_without_the_columns_of_a_run_is_an_error(
    people, width, columns, domain, message
):
    with pytest.raises(DataError, match=message):
        as_source(SqlQuery(people, "SELECT * FROM t", domain), width, columns)


@pytest.mark.claim("own-data", "simulate-reads-each-partition")
def test_a_simulation_reads_a_query_once(people, tmp_path):
    records = checked_source(
        SqlQuery(people, "SELECT age FROM t LIMIT 3"), 1, ["age"], "x"
    )
    np.testing.assert_array_equal(records, [[30], [40.5], [50]])
    assert isinstance(records, np.ndarray)
    with pytest.raises(DataError, match=r"Expected x to be finite.* in row 3"):
        checked_source(SqlQuery(people, "SELECT age FROM t"), 1, ["age"], "x")


# --------------------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("adbc_driver_postgresql")
    with postgresql() as uri:
        execute(
            uri,
            "CREATE TYPE sex AS ENUM ('f', 'm')",
            "CREATE TABLE t (n int4, big int8, short float4, exact numeric, yes bool, word text,"
            " fixed char(4), kind sex, day date, moment timestamp, there timestamptz)",
            "INSERT INTO t VALUES (1, 9007199254740993, 0.5, 0.1, true, 'é', 'ab', 'f',"
            " '2024-02-29', '2024-02-29 23:30', '2024-02-29 23:30-05')",
            "INSERT INTO t (n) VALUES (2)",
            "INSERT INTO t VALUES (3, 4, 'NaN', 'NaN', false, '', 'c', 'm',"
            " 'infinity', '-infinity', 'infinity')",
            "INSERT INTO t (n, exact, day) VALUES (4, 1e400, '0044-03-15 BC')",
        )
        yield uri


@pytest.mark.claim("own-data", "postgresql-read-through-adbc")
def test_columns_of_postgresql_have_their_types(server):
    """Whether a cell is NULL, infinite or before the year 1 changes no other one."""
    query = open_query(server, "SELECT * FROM t ORDER BY n")
    (block,) = query.blocks()
    assert query.names == tuple(block)
    day, second = np.datetime64("2024-02-29"), "datetime64[s]"
    nat = np.datetime64("NaT")
    assert block["n"].tolist() == [1, 2, 3, 4]
    assert block["big"].tolist() == [LARGE, None, 4, None]
    assert block["yes"].tolist() == [True, None, False, None]
    assert block["word"].tolist() == ["é", None, "", None]
    assert block["fixed"].tolist() == ["ab  ", None, "c   ", None]
    assert block["kind"].tolist() == ["f", None, "m", None]
    np.testing.assert_array_equal(block["short"], [0.5, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(block["exact"], [0.1, np.nan, np.nan, np.inf])
    np.testing.assert_array_equal(block["day"][:3], np.array([day, nat, nat]))
    assert block["day"][3] == np.datetime64("-0043-03-15")
    moments = np.array(["2024-02-29T23:30", nat, nat, nat], second)
    np.testing.assert_array_equal(block["moment"].astype(second), moments)
    there = np.array(["2024-03-01T04:30", nat, nat, nat], second)  # in UTC
    np.testing.assert_array_equal(block["there"].astype(second), there)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "value",
    [
        "'{}'::json",
        "'1 day'::interval",
        "'10:00'::time",
        "'1'::money",
        "1::oid",
        "ARRAY[1]",
        "gen_random_uuid()",
        "point(1, 2)",
    ],
)
def test_other_types_of_postgresql_are_refused_unless_the_query_turns_them(
    server, value
):
    with pytest.raises(
        ConfigurationError, match=r"Expected the column 'x' as a number.* CAST"
    ):
        open_query(server, f"SELECT {value} AS x")
    assert len(rows_of(open_query(server, f"SELECT CAST({value} AS text) AS x"))) == 1


@pytest.mark.claim("own-data", "database-opened-reading-only")
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT n, big AS n FROM t", "Got 'n' twice"),
        ("SELECT n + 1 FROM t", "Got column 1 without a name"),
        ("SELECT FROM t", "Got no columns"),
        ("", "Got no columns"),
        ("SELECT nothing FROM t", 'column "nothing" does not exist'),
        ("SELECT n FROM nowhere", 'relation "nowhere" does not exist'),
        ("SELEC n FROM t", "syntax error"),
        ("SELECT n FROM t; SELECT 1", "multiple commands"),
        ("SELECT n FROM t) TO PROGRAM 'true' --", "syntax error"),
        ("DELETE FROM t", "Got no columns"),
        ("DROP TABLE t", "Got no columns"),
        ("SHOW timezone", "SQLSTATE 42601"),
        ("DELETE FROM t RETURNING n", "SQLSTATE 25006"),
        (
            "WITH x AS (INSERT INTO t (n) VALUES (9) RETURNING n) SELECT n FROM x",
            "SQLSTATE 25006",
        ),
    ],
)
def test_postgresql_makes_one_select_and_writes_nothing(server, query, message):
    with pytest.raises(ConfigurationError, match=message):
        rows_of(open_query(server, query))
    assert len(rows_of(SqlQuery(server, "SELECT n FROM t"))) == 4


@pytest.mark.claim("own-data", "database-opened-reading-only")
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("SELECT 1 / (n - 3) AS x FROM t", "expression"),
        ("SELECT ('x' || (8700 + 35 * (n / 3)))::int4 AS x FROM t", "expression"),
        ("SELECT 1 / 0 AS x", "SQLSTATE 22012"),
        ("SELECT set_config('transaction_read_only', 'off', true) AS x", "failed"),
        ("SELECT pg_sleep(9)::text AS x", "failed"),
    ],
)
def test_a_row_that_fails_says_nothing_about_its_record(server, query, match):
    with pytest.raises(DataError, match=match) as caught:
        rows_of(open_query(f"{server}&options=-cstatement_timeout%3D500", query))
    assert SECRET not in str(caught.value)
    assert "zero" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.claim("own-data", "query-result-one-select")
@pytest.mark.thorough
def test_a_million_rows_of_postgresql_take_bounded_memory(server):
    """Measured in a process of its own, beyond what the first rows take."""
    code = """
import resource, sys
from flower_kmeans.data.sql import SqlQuery
text = "SELECT i, i::float8 AS x, ('t' || i) AS t FROM generate_series(1, %d) AS i"
def peak(n):
    sizes = [len(b["i"]) for b in SqlQuery(sys.argv[1], text % n).blocks()]
    assert sum(sizes) == n and max(sizes) <= 65536
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(peak(200_000), peak(1_000_000))
"""
    command = [sys.executable, "-c", code, server]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=300
    )
    first, second = map(float, done.stdout.split())
    assert second - first < 30


@pytest.mark.thorough
def test_a_pass_that_ends_early_closes_its_connection(server):
    blocks = SqlQuery(server, "SELECT i FROM generate_series(1, 3000000) AS i").blocks()
    next(blocks)
    counting = (
        "SELECT count(*) AS n FROM pg_stat_activity "
        "WHERE query LIKE '%generate_series(1, 3%'"
    )
    assert rows_of(SqlQuery(server, counting)) == [(2,)]  # itself too
    blocks.close()
    gc.collect()
    assert rows_of(
        SqlQuery(server, f"{counting} AND pid <> pg_backend_pid() AND state = 'active'")
    ) == [(0,)]


@pytest.mark.claim("own-data", "postgresql-read-through-adbc")
@pytest.mark.thorough
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_texts_of_other_encodings_are_read(server, encoding):
    name = f"of_{encoding.lower()}"
    execute(
        server,
        f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'",
    )
    uri = server.replace("///postgres", f"///{name}")
    execute(uri, "CREATE TABLE t (word text)", "INSERT INTO t VALUES ('a')")
    execute(uri, "INSERT INTO t VALUES (convert_from('\\xe9', 'LATIN1'))" if encoding == "LATIN1"
            else "INSERT INTO t VALUES (E'\\xe9')")  # fmt: skip
    expected = "é" if encoding == "LATIN1" else "\ufffd"
    assert rows_of(SqlQuery(uri, "SELECT word FROM t")) == [("a",), (expected,)]


@pytest.mark.thorough
def test_a_server_that_cannot_be_reached_is_said_clearly(server):
    folder = server.partition("host=")[2].partition("&")[0]
    for uri, said in (
        (
            server.replace("///postgres", "///nothing"),
            'database "nothing" does not exist',
        ),
        (
            server.replace("user=postgres", "user=nobody"),
            'role "nobody" does not exist',
        ),
        ("postgresql://127.0.0.1:1/x", "Connection refused"),
        (f"postgresql:///x?host={folder}/no", "No such file"),
        (f"postgresql:///x?host={folder}&nothing=1", "invalid URI query parameter"),
    ):
        with pytest.raises(DataError, match="server that can be reached") as caught:
            open_query(uri, "SELECT 1 AS a")
        assert said in str(caught.value)


@pytest.mark.claim("own-data", "database-opened-reading-only")
@pytest.mark.thorough
def test_a_password_comes_from_the_environment_or_a_file(server, tmp_path, monkeypatch):
    folder = server.partition("host=")[2].partition("&")[0]
    execute(server, "CREATE ROLE ann LOGIN PASSWORD '8735'", "GRANT SELECT ON t TO ann")
    rules = Path(folder) / "data" / "pg_hba.conf"
    rules.write_text(
        f"local all ann scram-sha-256\n{rules.read_text('utf-8')}", "utf-8"
    )
    execute(server, "SELECT pg_reload_conf()")
    uri = f"postgresql://ann@/postgres?host={folder}"
    query = SqlQuery(uri, "SELECT n FROM t")
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    with pytest.raises(DataError, match="no password supplied"):
        rows_of(query)
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(DataError, match="password authentication failed") as caught:
        rows_of(query)
    assert "wrong" not in str(caught.value)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert len(rows_of(query)) == 4
    monkeypatch.delenv("PGPASSWORD")
    (tmp_path / "pass").write_text(f"*:*:*:ann:{SECRET}\n")
    (tmp_path / "pass").chmod(stat.S_IRUSR)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pass"))
    assert len(rows_of(query)) == 4
    with pytest.raises(ConfigurationError, match="SQLSTATE 42501"):
        rows_of(SqlQuery(uri, "SELECT rolpassword FROM pg_authid"))


@pytest.mark.thorough
def test_records_of_postgresql_are_encoded_as_declared(server):
    declared = TableDomain(
        [
            Number("n", 0, 9),
            Number("exact", 0, 1, missing=0.5),
            Category("kind", ("f", "m", "none"), missing="none"),
            Date("there", date(2024, 1, 1), date(2025, 1, 1), missing=date(2024, 6, 1)),
        ]
    )
    found = as_source(
        SqlQuery(server, "SELECT * FROM t ORDER BY n", declared), 6
    ).loaded()
    days = [date(2024, 3, 1).toordinal(), date(2024, 6, 1).toordinal()]
    rows = [
        [1, 0.1, 1, 0, 0, days[0]],
        [2, 0.5, 0, 0, 1, days[1]],
        [3, 0.5, 0, 1, 0, days[1]],
    ]  # 1e400 is no finite number, which no stated value stands for: a null record
    np.testing.assert_array_equal(found, rows)
    with pytest.raises(ConfigurationTypeError, match=r"'day' as numbers\. Got dates"):
        as_source(SqlQuery(server, "SELECT day FROM t"), 1).loaded()
