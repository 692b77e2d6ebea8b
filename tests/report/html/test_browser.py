"""A report in headless Chromium: it renders, on any width and in the dark, and fetches nothing."""

from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from browsers import chromium, measure, screenshot, visit
from report_pages import (
    N_CLIENTS,
    PARTITIONS,
    WIDE,
    finished,
    read,
    strategy_of,
    tables,
)

from flower_kmeans import (
    Ball,
    Box,
    Clustering,
    Fault,
    PrivacyBudget,
    Sphere,
    TableDomain,
    html_report,
    simulate,
)
from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.errors import RunError
from flower_kmeans.strategies import SynopsisKMeans

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium() is None, reason="no Chromium on this machine (apt: chromium)"
    ),
]


@pytest.fixture(scope="module")
def page():
    strategy = strategy_of("FastLloyd", "oblivious-server")
    return html_report(
        simulate(strategy, PARTITIONS, faults=[Fault(client=1, round=1, kind="drop")])
    )


@pytest.fixture(scope="module", params=[2, 100])
def sized(request):
    """A page with bounds on sizes, of few clusters or many."""
    k, result = request.param, finished("SynopsisKMeans", "trusted-server")
    counts = np.linspace(0, 40_000, k)
    sizes = SizeReport(tuple(counts.tolist()), 900.0, 9_000, 31_000)
    return html_report(
        replace(
            result,
            centroids=np.zeros((k, 2)),
            counts=counts,
            weights=np.zeros(k),
            size_report=sizes,
        )
    )


@pytest.fixture(scope="module")
def widest():
    """A page with long names, and many columns and clusters."""
    result = finished("FastLloyd", "distributed-noise")
    rng = np.random.default_rng(0)
    result = Clustering(
        rng.normal(size=(250, 80)) * 1e5,
        rng.uniform(size=250) * 1e7,
        Ball(1e6, [0] * 80),
        replace(result.report, warnings=("a" * 300,)),
    )
    names = [f"a_column_with_a_long_name_{i}" * (5 if i < 2 else 1) for i in range(80)]
    return html_report(result, columns=names, title="W" * 200)


@pytest.fixture(scope="module")
def table():
    """A page of a table with a category of long names, dates and a log scale."""
    levels = tuple(f"the {i}th ward of the hospital" for i in range(6))
    names = [f"a column with a long name {i}" for i in range(9)]
    domain = TableDomain(
        [
            Category("the ward at the time of admission", levels),
            Date("admitted", date(2020, 1, 1), date(2024, 12, 31)),
            *(Number(name, 0.001, 1e6, scale="log") for name in names),
        ]
    )
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(6), 7)
    days = date(2022, 1, 1).toordinal() + rng.uniform(-500, 500, (7, 1))
    centroids = np.hstack([shares, days, rng.uniform(-3, 6, (7, 9))])
    report = finished("SynopsisKMeans", "distributed-noise").report
    counts = rng.uniform(-50, 5_000, 7)
    return html_report(Clustering(centroids, counts, domain, report))


@pytest.fixture(scope="module")
def failed():
    """A page of a run that ended in its second round."""
    strategy = strategy_of("FastLloyd", "distributed-noise", min_clients=5, n_rounds=3)
    fault = Fault(client=2, round=2, kind="crash")
    with pytest.raises(RunError):
        simulate(strategy, PARTITIONS, faults=[fault])
    return html_report(strategy)


@pytest.fixture(scope="module")
def pages(page, widest, table, failed):
    """Pages of several kinds of runs."""
    sphere = SynopsisKMeans(
        3, Sphere(18), PrivacyBudget(2.0), n_records=300, n_clients=N_CLIENTS
    )
    # Small costs have many digits.
    small = SynopsisKMeans(
        4, Box([0, 0], [100, 100]), PrivacyBudget(20.0), 300, n_clients=N_CLIENTS
    )
    others = [
        finished("Lloyd", "plain"),
        simulate(sphere, WIDE),
        simulate(small, PARTITIONS),
    ]
    return [page, widest, table, failed, *map(html_report, others)]


@pytest.mark.claim("reading-a-report", "page-one-file-without")
def test_nothing_is_fetched(page):
    seen = visit({"/": page})
    assert seen.served == []
    assert seen.requested == []
    # The document is the page: the browser dropped and added nothing that holds text.
    assert tables(read_back(seen.dom)) == tables(read(page))


def read_back(dom):
    return read(dom.strip())


POLICY = "Content-Security-Policy"


@pytest.mark.claim("reading-a-report", "page-one-file-without")
@pytest.mark.parametrize(
    "planted",
    [
        '<img src="/planted.gif" alt="">',
        '<img src="{here}/planted.gif" alt="">',
        '<style>body{background:url("/planted.gif")}</style>',
        "<script>fetch('/planted.gif')</script>",
    ],
)
def test_what_is_fetched_would_be_noticed_and_the_policy_stops_it(page, planted):
    mutated = page.replace("</body>", planted + "</body>")
    assert mutated != page
    stopped = visit({"/": mutated})
    assert (stopped.served, stopped.requested) == ([], [])
    assert POLICY in mutated
    free = visit({"/": mutated.replace(POLICY, "X-Nothing")})
    assert free.served == ["/planted.gif"]
    assert [url.endswith("/planted.gif") for url in free.requested] == [True]


@pytest.mark.claim("reading-a-report", "page-one-file-without")
def test_requests_to_elsewhere_would_be_noticed_too(page):
    """They do not reach the server that counts, but the browser's own log has them."""
    elsewhere = "http://127.0.0.1:9/planted.gif"  # nobody answers there
    mutated = page.replace("</body>", f'<img src="{elsewhere}" alt=""></body>')
    assert visit({"/": mutated}).requested == []
    free = visit({"/": mutated.replace(POLICY, "X-Nothing")})
    assert free.served == []
    assert free.requested == [elsewhere]


@pytest.mark.claim("reading-a-report", "reads-on-screens-400")
@pytest.mark.parametrize("width", [1280, 390])
def test_every_section_is_there_and_nothing_overflows(pages, width):
    for each in pages:
        found = measure(each, width)
        expected = [e.attributes["id"] for e in read(each).all("section")]
        assert [section["id"] for section in found["section"]] == expected
        assert all(min(s["width"], s["height"]) > 40 for s in found["section"])
        assert len(found["svg"]) == len(read(each).all("svg"))
        assert all(drawing["width"] > 290 for drawing in found["svg"])
        assert all(drawing["height"] > 20 for drawing in found["svg"])
        assert all(table["width"] > 100 for table in found["table"])
        assert all(text["height"] > 7 for text in found["text"])
        # Names and values of profiles are beside the bars, and within the drawing.
        lines = zip(found["label"], found["guide"], found["value"], strict=True)
        for label, guide, value in lines:
            assert label["right"] <= guide["left"] + 1
            assert value["left"] >= guide["right"] - 1
        # No table scrolls sideways, not even within its own box.
        assert all(table["left"] >= 0 for table in found["table"])
        assert all(table["right"] <= width for table in found["table"])
        assert found["width"] == width
        assert found["scroll"] <= width
        assert all(s["left"] >= 0 and s["right"] <= width for s in found["section"])


@pytest.mark.parametrize("width", [1280, 390])
def test_intervals_are_readable_for_few_clusters_and_many(sized, width):
    found = measure(sized, width)
    assert found["scroll"] <= width
    section = read(sized).the("div", id="sizes")
    rows = len(section.all("g", "span"))
    drawn = [svg.all("title")[0].text for svg in read(sized).all("svg")]
    chart = found["svg"][drawn.index("Sizes of clusters")]
    assert chart["width"] > 290
    assert chart["height"] > max(80, 7 * rows)
    assert all(text["height"] > 7 for text in found["text"])
    paper = measure(sized.replace("@media print{", "@media all{"), 717)
    assert paper["scroll"] <= 717
    assert all(table["right"] <= 717 for table in paper["table"])


@pytest.mark.claim("reading-a-report", "on-paper-no-table")
def test_paper_cuts_nothing(pages):
    """On paper nothing scrolls: all tables must fit the width, A4's within Chromium's margins."""
    width = round((210 / 25.4 - 2 * 0.4) * 96)
    for each in pages:
        assert each.count("@media print{") == 1
        found = measure(each.replace("@media print{", "@media all{"), width)
        assert found["scroll"] <= width
        assert all(
            table["left"] >= 0 and table["right"] <= width for table in found["table"]
        )
        assert all(text["height"] > 6 for text in found["text"])


def test_an_overflow_would_be_noticed(page):
    mutated = page.replace("<footer>", '<div style="width:700px">wide</div><footer>')
    assert measure(mutated, 400)["scroll"] > 400
    hidden = page.replace("<style>", "<style>section{display:none}")
    assert all(section["height"] == 0 for section in measure(hidden, 400)["section"])


@pytest.mark.claim("reading-a-report", "reads-on-screens-400")
def test_light_and_dark_follow_the_reader(page):
    bright = {}
    for dark in (False, True):
        found = measure(page, 400, dark=dark)
        bright[dark] = [lightness(found[name]) for name in ("ink", "paper")]
    assert bright[False][0] < 60
    assert bright[False][1] > 200
    assert bright[True][0] > 200
    assert bright[True][1] < 60


def lightness(colour):
    return sum(int(c) for c in colour.strip("rgb()").split(",")) / 3


@pytest.mark.claim("reading-a-report", "reads-on-screens-400")
@pytest.mark.parametrize("dark", [False, True])
def test_the_picture_of_the_page_is_not_blank(page, tmp_path, dark):
    image = pytest.importorskip("PIL.Image")
    screenshot(page, tmp_path / "page.png", 1200, 1400, dark=dark)
    with image.open(tmp_path / "page.png") as opened:
        pixels = np.asarray(opened.convert("RGB")).astype(int)
    assert pixels.shape == (1400, 1200, 3)
    paper = pixels[0, 0]
    assert (paper.mean() < 60) == dark
    # Something is drawn in every part of the page's height, and in more than a few
    # colours.
    for part in np.array_split(pixels, 7):
        assert (np.abs(part - paper).sum(axis=2) > 60).mean() > 0.005
    assert len(np.unique(pixels @ [1, 256, 65536])) > 50
