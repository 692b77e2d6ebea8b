"""The whole page: for every strategy under every trust model, and for hostile names."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from flwr.serverapp.strategy import Result
from hypothesis import given
from hypothesis import strategies as st
from report_pages import (
    MODES,
    PARTITIONS,
    addresses,
    finished,
    read,
    strategy_of,
    tables,
)

import flower_kmeans
from flower_kmeans import (
    Box,
    ClientPolicy,
    Fault,
    PrivacyBudget,
    html_report,
    kmeans_client_app,
    simulate,
)
from flower_kmeans.cli.outputs import write_page
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.report.html import TEMPLATES, breakable, column_parts, is_unbroken
from flower_kmeans.simulation.faults import FaultyClientApp, FaultyGrid
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import SynopsisKMeans

SECTIONS = (
    "clusters",
    "quality",
    "trust",
    "guarantee",
    "releases",
    "rounds",
    "run",
    "statements",
)


@pytest.mark.claim("reading-a-report", "what-all-parties-must")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("name", "trust"), MODES)
def test_every_run_has_its_page(name, trust):
    clustering = finished(name, trust)
    report = clustering.report
    page = html_report(clustering)
    root = read(page)
    assert html_report(clustering) == page
    assert page.startswith("<!doctype html>\n<html lang=")
    assert addresses(root) == []
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page)
    sections = [section.attributes["id"] for section in root.all("section")]
    expected = [*SECTIONS[:5], *(["curve"] if report.is_private else []), *SECTIONS[5:]]
    if name == "SynopsisKMeans":
        expected.insert(-2, "numbers")
    assert sections == ["first", *expected]
    anchors = [link.attributes["href"][1:] for link in root.all("a")]
    assert anchors == expected
    names = [e.attributes["id"] for e in root.all() if "id" in e.attributes]
    assert len(set(names)) == len(names)
    for drawing in root.all("svg"):
        labelled = drawing.attributes["aria-labelledby"].split()
        assert [each.name for each in drawing.children[:2]] == ["title", "desc"]
        assert [each.attributes["id"] for each in drawing.children[:2]] == labelled
        assert all(each.text for each in drawing.children[:2])
    for table in root.all("table"):
        heads, rows = table.all("th"), len(table.all("tr"))
        scopes = [head.attributes["scope"] for head in heads]
        assert scopes == ["col"] * (len(heads) - rows + 1) + ["row"] * (rows - 1)
        aligned = [
            [cell.attributes.get("class") for cell in row.children]
            for row in table.all("tr")
        ]
        assert all(row == aligned[0] for row in aligned)
    assert root.all("td", "num")
    listed = [item.text for item in root.all("ul", "statements")[0].all("li")]
    assert tuple(listed) == report.statements
    assert name in root.the("h1").text
    result, quality, privacy, run = (e.text for e in root.the("header").all("p"))
    assert (
        result
        == f"Result: 3 clusters in {len(clustering.centroids[0])} columns, by {name}."
    )
    blind = report.trust_model.is_blind and "Centroids" not in tables(root)
    assert quality.startswith("Quality: ")
    measured = "not measured" not in quality and "not known" not in quality
    assert measured == (report.cost is not None)
    assert ("not known here" in quality) == blind
    cost = (
        report.is_private
        and f"epsilon {report.epsilon:.4g}, delta {report.delta:.3g} for one record, trust model"
    )
    assert privacy == f"Privacy: {cost or 'none, trust model'} {trust}."
    n_rounds = len(report.plan.rounds)
    rounds = "1 round" if n_rounds == 1 else f"{n_rounds} rounds"
    assert run == f"Run: 5 clients, {rounds}."
    tiles = [tile.text for tile in root.all("div", "tile")]
    assert tiles == ([] if report.is_private else ["privacyNOT PRIVATE"])
    if report.mu is not None:
        assert f"{report.mu:.4g}" in root.the("section", id="guarantee").text


@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("name", "trust"), MODES)
def test_no_sentence_is_longer_than_thirty_words(name, trust):
    root = read(html_report(finished(name, trust)))
    for element in root.all():
        if element.name in (
            "p",
            "li",
            "td",
            "th",
            "dt",
            "dd",
            "caption",
            "figcaption",
            "desc",
        ):
            for sentence in re.split(r"(?<=[.?;])\s+", element.text):
                words = [
                    word for word in sentence.split() if re.search(r"[^\W\d_]{2}", word)
                ]
                assert len(words) <= 30, sentence


@pytest.mark.claim("reading-a-report", "page-one-file-without")
def test_nothing_may_be_fetched_or_run():
    root = read(html_report(finished("FastLloyd", "oblivious-server")))
    policy = root.the("meta", **{"http-equiv": "Content-Security-Policy"}).attributes[
        "content"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("style-src") == "'unsafe-inline'"
    assert rules.pop("img-src") == "data:"
    assert set(rules.values()) == {"'none'"}
    assert root.the("link").attributes == {"rel": "icon", "href": "data:,"}


HOSTILE = (
    "<script>alert(1)</script>",
    "\"' onload=x><img src=//a.example/b>\u202e\x00",
)


@pytest.mark.claim("reading-a-report", "page-one-file-without")
def test_hostile_names_come_out_as_text():
    page = html_report(
        finished("FastLloyd", "trusted-server"),
        columns=HOSTILE,
        title="</title><script>",
        facts=[("<b>", "</dd><img src=x>")],
        not_private="<i>NOT PRIVATE</i>",
    )
    root = read(page)
    assert addresses(root) == []
    assert not {"b", "i"} & ({e.name for e in root.all()} - {"i"})
    assert all(e.attributes.get("class", "").startswith("key") for e in root.all("i"))
    assert not [
        e for e in root.all() if any(name.startswith("on") for name in e.attributes)
    ]
    assert root.the("h1").text == "</title><script>"
    shown = tables(root)["Centroids"][0][-2:]
    assert shown == [
        HOSTILE[0],
        HOSTILE[1].replace("\u202e", "\ufffd").replace("\x00", "\ufffd"),
    ]
    assert "</dd><img src=x>" in root.the("section", id="run").text


FORMULAS = ("=HYPERLINK(1)", "\uff1dcmd|' /C calc'!A0", "-b", "\u200b@SUM(1)", "-1+A1")


@pytest.mark.claim("threat-model", "no-name-no-category")
def test_no_cell_of_a_table_is_a_formula():
    """People copy tables into spreadsheets; numbers stay as they are."""
    run = finished("FastLloyd", "trusted-server")
    run = replace(run, centroids=run.centroids - 5, domain=Box([-10, -10], [10, 10]))
    for names in (FORMULAS[:2], FORMULAS[2:4], FORMULAS[3:]):
        root = read(html_report(run, columns=names))
        head, *rows = tables(root)["Centroids"]
        shown = [name.replace("\u200b", "\ufffd") for name in names]
        assert head[-2:] == [f"'{name}" for name in shown]
        assert any(cell.startswith("-") for row in rows for cell in row)
        cells = [e.text.strip() for e in root.all() if e.name in ("td", "th")]
        number = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?( to [-+]?[\d.,]+)?")
        begun = [
            cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\uff1d"))
        ]
        assert all(number.fullmatch(cell) for cell in begun), begun


@pytest.mark.claim("reading-a-report", "warnings-follow-gravest-first")
def test_a_run_that_was_not_private_after_all_says_so_first():
    why = "NOT PRIVATE: bounds were read off the records."
    root = read(
        html_report(finished("FastLloyd", "distributed-noise"), not_private=why)
    )
    first = root.all("li")[0]
    assert first.attributes["class"] == "bad"
    assert why in first.text
    assert root.all("div", "tile")[0].text == "privacyNOT PRIVATE"
    assert why in root.the("section", id="guarantee").text
    assert root.the("section", id="statements").all("li")[0].text == why
    guarantee = root.the("section", id="guarantee").text
    would = guarantee.index("Otherwise epsilon and delta would mean the following.")
    assert guarantee.index(why) < would < guarantee.index("One record is protected.")


# ------------------------------------------------------------------------ at the server


def started(strategy, faults=(), policy=None):
    app = kmeans_client_app(
        lambda context: PARTITIONS[int(context.node_config["partition-id"])],
        policy or ClientPolicy.for_simulation(),
        lambda result, context: None,
    )
    grid = FaultyGrid(InProcessGrid(FaultyClientApp(app, faults), len(PARTITIONS)))
    with task_identity():
        return strategy.start(grid, timeout=60)


@pytest.mark.claim("reading-a-report", "page-server-saw-no")
@pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])
def test_the_page_of_a_server_that_saw_no_sum_has_no_centroids(trust):
    strategy = strategy_of("FastLloyd", trust)
    result = started(strategy)
    for page in (html_report(strategy), html_report(strategy, result)):
        root = read(page)
        assert "must never see them" in root.the("section", id="clusters").text
        assert "Centroids" not in tables(root)
        assert "Every release of the plan" in tables(root)


def test_a_servers_page_has_what_the_server_sees():
    strategy = strategy_of("FastLloyd", "distributed-noise")
    result = started(strategy)
    with_sizes = tables(read(html_report(strategy, result)))
    sizes = with_sizes["Sizes and intervals"]
    assert sizes[0] == ["cluster", "noisy size", "interval", "fraction"]
    interval = strategy.report.size_interval(result.arrays["counts"].numpy())
    for row in sizes[1:]:
        low, high = interval[int(row[0].split(":")[0])]
        assert row[2] == f"{math.floor(low)} to {math.ceil(high)}"
    without = tables(read(html_report(strategy)))
    assert "Sizes and intervals" not in without
    rows = sorted(row[1:] for row in with_sizes["Centroids"][1:-2])
    assert sorted(row[1:] for row in without["Centroids"][1:-2]) == rows
    assert "Centroids" not in tables(read(html_report(strategy, Result())))


@pytest.mark.claim("reading-a-report", "failed-run-what-next")
@pytest.mark.parametrize("kind", ["drop", "crash"])
def test_a_run_that_failed_has_a_page_that_says_how_far_it_came(kind):
    strategy = strategy_of("FastLloyd", "oblivious-server", min_clients=5, n_rounds=3)
    with pytest.raises(TooFewClientsError):
        started(strategy, [Fault(client=2, round=2, kind=kind)])
    root = read(html_report(strategy))
    notices = [item.text for item in root.the("section", id="first").all("li")]
    assert notices[0].startswith("Do this next Start the missing clients again")
    assert "resume=DIR it goes on with round 2" in notices[0]
    assert "choose min_clients of at most 4." in notices[0]
    assert "The run did not finish: 1 of 3 rounds" in notices[1]
    assert "1 of 5 were missing" in notices[1]
    reasons = {"drop": "No answer in time.", "crash": "The client or its node failed."}
    assert f"Client 2: {reasons[kind]}" in notices[1]
    report = strategy.report
    spent = replace(report.plan, rounds=report.plan.rounds[:2]).epsilon()
    assert notices[2].startswith("What it cost")
    assert f"epsilon {spent:.4g} at most, of {report.epsilon:.4g}" in notices[2]
    assert 0 < spent < report.epsilon
    assert "The run did not finish." in root.the("header").all("p")[0].text
    assert "1 of 3 rounds: not finished" in root.the("header").text
    text = root.the("section", id="rounds").text
    assert "The run ended before round 2 was complete." in text
    assert "No client failed" not in text
    if kind == "crash":
        assert tables(root)["Irregular replies"][1][:2] == ["round 2", "2"]
    (line,) = tables(root)["Clients by round"][1:]
    assert line[:3] == ["1", "5", "5"]


def test_a_run_that_nobody_joined_has_a_page():
    strategy = strategy_of("FastLloyd", "oblivious-server")
    refusing = ClientPolicy(max_epsilon=0.001, in_memory=True)
    with pytest.raises(TooFewClientsError):
        started(strategy, policy=refusing)
    root = read(html_report(strategy))
    assert "0 of 8 rounds: not finished" in root.the("header").text
    notices = [item.text for item in root.the("section", id="first").all("li")]
    assert notices[0].startswith("Do this next Remove the reasons below.")
    assert notices[0].endswith("Nothing was spent.")
    assert "The run is outside of what the client's policy accepts." in notices[1]
    assert "No client took part" in root.the("section", id="trust").text
    incidents = tables(root)["Irregular replies"]
    assert [row[:2] for row in incidents[1:]] == [["enrolment", "-"]] * 5


@pytest.mark.claim("reading-a-report", "rounds-faults-shows-every")
def test_clients_that_were_away_are_counted_and_named():
    strategy = strategy_of("FastLloyd", "oblivious-server", n_rounds=3)
    faults = [
        Fault(client=3, round=1, kind="drop"),
        Fault(client=4, round=3, kind="crash"),
    ]
    root = read(html_report(simulate(strategy, PARTITIONS, faults=faults)))
    rows = tables(root)["Clients by round"]
    assert [row[:4] for row in rows[1:]] == [
        ["1", "5", "4", "1"],
        ["2", "5", "5", "0"],
        ["3", "5", "4", "1"],
    ]
    assert root.the("section", id="rounds").all("svg")
    named = [(row[0], row[1], row[-1]) for row in tables(root)["Irregular replies"]]
    assert ("round 1", "3", "yes") in named
    assert ("round 3", "4", "yes") in named
    assert "2 of 5 clients missed a round" in root.the("section", id="first").text


def test_uneventful_rounds_in_a_row_have_one_line_and_no_drawing():
    strategy = strategy_of("FastLloyd", "oblivious-server", n_rounds=6)
    faults = [Fault(client=3, round=3, kind="drop")]
    section = read(html_report(simulate(strategy, PARTITIONS, faults=faults))).the(
        "section", id="rounds"
    )
    rows = [row[:4] for row in tables(section)["Clients by round"][1:]]
    assert rows == [
        ["1 to 2", "5", "5", "0"],
        ["3", "5", "4", "1"],
        ["4 to 6", "5", "5", "0"],
    ]
    quiet = read(html_report(simulate(strategy, PARTITIONS))).the(
        "section", id="rounds"
    )
    assert [row[:4] for row in tables(quiet)["Clients by round"][1:]] == [
        ["1 to 6", "5", "5", "0"]
    ]
    assert quiet.all("svg") == []


def test_whole_clients():
    options = {"privacy": PrivacyBudget(2.0, unit="client"), "n_rounds": 2, "clip": 7.0}
    strategy = strategy_of("FastLloyd", "distributed-noise", **options)
    root = read(html_report(simulate(strategy, PARTITIONS)))
    text = root.the("section", id="guarantee").text
    assert "One client with all its records is protected" in text
    assert "7 records' worth of a client in each release" in text
    assert "for one client, trust model" in root.the("header").text
    table = tables(root.the("div", id="sizes"))["Sizes and intervals"]
    assert {row[2] for row in table[1:]} == {"not known"}
    assert root.the("div", id="sizes").all("path", "reach") == []


def test_only_runs_have_pages():
    with pytest.raises(RunError, match="before the run has started"):
        html_report(strategy_of("FastLloyd", "trusted-server"))
    clustering = finished("FastLloyd", "trusted-server")
    bare = flower_kmeans.Clustering(
        np.ones((1, 2)), np.ones(1), Box([0, 0], [1, 1]), None
    )
    strategy = strategy_of("FastLloyd", "trusted-server")
    started(strategy)
    for run, result, columns, error, message in (
        (
            {"report": 1},
            None,
            None,
            ConfigurationTypeError,
            "Expected run as a Clustering",
        ),
        (bare, None, None, ConfigurationTypeError, "as a Report"),
        (clustering, None, ["a", "b", "c"], ConfigurationError, "columns as 2 names"),
        (clustering, None, "ab", ConfigurationError, "columns as 2 names"),
        (
            strategy,
            3,
            None,
            ConfigurationTypeError,
            "Expected result as what start returned",
        ),
        (
            strategy,
            {"centroids": np.ones((2, 2))},
            None,
            ConfigurationError,
            r"shape \(3, 2\)",
        ),
    ):
        with pytest.raises(error, match=message):
            html_report(run, result, columns=columns)


def test_a_page_is_written_as_it_is(tmp_path):
    page = html_report(
        finished("FastLloyd", "trusted-server"), columns=["Größe", "重さ"]
    )
    assert write_page(tmp_path, page) == ["report.html"]
    assert (tmp_path / "report.html").read_bytes().decode("utf-8") == page
    assert "重さ" in page


TEXT = st.lists(
    st.sampled_from(["<", ">", "&amp;", '"', "'"]) | st.text(max_size=3)
).map("".join)


@given(TEXT, TEXT)
def test_any_text_comes_back_from_an_element_and_from_an_attribute(text, value):
    """Characters that do not print are replaced, such as those that turn the direction."""
    template = TEMPLATES.from_string('<p title="{{ value }}">{{ text }}</p>')
    element = read(template.render(text=text, value=value)).the("p")
    shown = [
        "".join(c if c.isprintable() else "\ufffd" for c in each)
        for each in (text, value)
    ]
    assert [element.text, element.attributes["title"]] == shown


@pytest.mark.claim("reading-a-report", "on-paper-no-table")
@given(st.integers(1, 30), st.integers(2, 9))
def test_a_table_of_many_columns_goes_on_with_the_same_first_column(n_columns, fit):
    parts = column_parts(n_columns, fit)
    assert all(part[0] == 0 and len(part) <= fit for part in parts)
    assert [0] + [i for part in parts for i in part[1:]] == list(range(n_columns))
    assert len(parts) == max(1, -(-(n_columns - 1) // (fit - 1)))


@pytest.mark.parametrize(
    "text",
    [
        '<p title="x"><img src="a.png"></img></p>',
        '<a href="https://example.org/">x</a>',
        '<link rel="icon" href="//example.org/i.png">',
        '<p style="background:url(a.png)"></p>',
        "<style>@import 'a.css';</style>",
        '<meta http-equiv="refresh" content="0; refresh">',
        "<script>1</script>",
    ],
)
def test_what_might_be_fetched_is_found(text):
    assert addresses(read(text))


@pytest.mark.parametrize("trust", ["trusted-server", "clients-only"])
def test_a_run_that_chooses_has_the_number_that_its_writer_may_see(trust):
    strategy = SynopsisKMeans(
        (2, 6), Box([0, 0], [10, 10]), PrivacyBudget(2.0), 300, n_clients=5, trust=trust
    )
    clustering = simulate(strategy, PARTITIONS)
    found = f"{len(clustering.centroids)} clusters in 2 columns"
    assert found in html_report(clustering)
    own = found if trust == "trusted-server" else "2 to 6 clusters in 2 columns"
    assert own in html_report(strategy)


@given(st.text(max_size=60))
def test_long_words_of_a_cell_may_be_broken_and_nothing_is_lost(text):
    parts = breakable(text)
    assert "".join(parts) == text
    for part in parts:
        assert all(len(word) <= 12 for word in re.split(r"(?<=\s)", part))
    assert breakable("geriatrics 81%") == ["geriatrics 81%"]
    dates = breakable("2021-05-03 to 2022-05-03")
    assert [part for part in dates if is_unbroken(part)] == ["2021-05-03", "2022-05-03"]
    assert breakable("discharged_to") == ["dischar", "ged_to"]
