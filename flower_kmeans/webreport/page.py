"""The page: all sections of a run's report in one HTML file."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from flower_kmeans.version import __version__
from flower_kmeans.webreport.centroids import centroids_section
from flower_kmeans.webreport.guarantee import guarantee_section, warnings_section
from flower_kmeans.webreport.markup import Markup, facts, join, number, paragraph, section, tag
from flower_kmeans.webreport.outcome import Outcome, outcome_of
from flower_kmeans.webreport.releases import curve_section, releases_section
from flower_kmeans.webreport.rounds import rounds_section
from flower_kmeans.webreport.style import STYLE
from flower_kmeans.webreport.trust import trust_section

if TYPE_CHECKING:
    from flower_kmeans.clustering import Clustering
    from flower_kmeans.strategies import KMeansStrategy

# Nothing is fetched, whatever comes into the page: a second lock behind the escaping.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def html_report(
    run: "Clustering | KMeansStrategy",
    result: Any = None,
    *,
    columns: Sequence[str] | None = None,
    title: str | None = None,
    facts: Sequence[tuple[str, str]] = (),
    not_private: str | None = None,
) -> str:
    """Return a run's report as one HTML page that fetches nothing and holds no script.

    It holds what the run's report says, public parameters, and the centroids and sizes that were
    released; never a record. ``docs/reading-a-report.md`` goes through it.

    Parameters
    ----------
    run : Clustering or KMeansStrategy
        What `simulate` returned; or, in a ServerApp, the strategy after its ``start``, also if that
        raised a `RunError`. The page of a server that saw no sum has no centroids.
    result : flwr.serverapp.strategy.Result, optional
        With a strategy: what ``start`` returned. Without it, centroids that the server may see are
        shown without sizes.
    columns : sequence of str, optional
        Names of the columns; by default those of the domain, or numbers.
    title : str, optional
        Of the page.
    facts : sequence of (str, str), optional
        Names and values of what else is publicly known of the run. They stand in the page as they
        are: nothing may be among them that was counted in records.
    not_private : str, optional
        Why the run was not private in spite of its noise, as a sentence: it comes first.

    Returns
    -------
    str
        The page.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If ``run`` is neither, or ``columns`` or ``result`` do not fit it.
    RunError
        If the strategy has not started.
    """
    outcome = outcome_of(
        run, result, columns=columns, title=title, facts=facts, not_private=not_private
    )
    return page_of(outcome)


def page_of(outcome: Outcome) -> str:
    """Return the page of an outcome."""
    sections = [
        warnings_section(outcome),
        guarantee_section(outcome),
        trust_section(outcome),
        releases_section(outcome),
        curve_section(outcome),
        rounds_section(outcome),
        centroids_section(outcome),
        _run_section(outcome),
        _statements_section(outcome),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("link", rel="icon", href="data:,"),
        tag("title", outcome.title),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        _header(outcome),
        tag("main", *sections),
        tag("footer", f"Written by flower-kmeans {__version__}. This page fetches nothing."),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


_SECTIONS = (
    ("guarantee", "Guarantee"),
    ("trust", "Who sees what"),
    ("releases", "Releases"),
    ("curve", "Other epsilons"),
    ("rounds", "Rounds and faults"),
    ("centroids", "Centroids"),
    ("run", "The run"),
    ("statements", "All statements"),
)


def _header(outcome: Outcome) -> Markup:
    report = outcome.report
    d = len(outcome.columns)
    ran = (
        f"{report.strategy} with {outcome.n_clusters} clusters in {d} "
        f"{'column' if d == 1 else 'columns'}, {report.n_clients} clients, "
        f"{report.n_rounds} rounds, trust model {report.trust}"
    )
    links = [
        tag("a", name, href=f"#{anchor}")
        for anchor, name in _SECTIONS
        if anchor != "curve" or report.is_private
    ]
    return tag(
        "header",
        tag("h1", outcome.title),
        paragraph(f"{ran}."),
        tag("div", *_tiles(outcome), class_="tiles"),
        tag("nav", *links, aria_label="Sections"),
    )


def _tiles(outcome: Outcome) -> list[Markup]:
    report = outcome.report
    tiles = [] if outcome.is_private else [_tile("privacy", "NOT PRIVATE", "bad")]
    if report.epsilon is not None and report.delta is not None:
        tiles += [
            _tile(f"epsilon, for one {report.unit}", number(report.epsilon)),
            _tile("delta", number(report.delta, 3)),
            _tile("mu", "-" if report.mu is None else number(report.mu)),
        ]
    missed = len({entry.node_id for entry in report.dropped})
    rounds = str(report.n_rounds)
    if not outcome.is_finished:
        rounds += f" of {len(report.plan.rounds)}: not finished"
    return [
        *tiles,
        _tile("trust model", report.trust),
        _tile(f"clients, {missed} missed a round" if missed else "clients", str(report.n_clients)),
        _tile("rounds", rounds, None if outcome.is_finished else "bad"),
    ]


def _tile(name: str, value: str, kind: str | None = None) -> Markup:
    classes = "tile" if kind is None else f"tile {kind}"
    return tag("div", tag("span", name), tag("strong", value), class_=classes)


def _run_section(outcome: Outcome) -> Markup:
    report = outcome.report
    plan = report.plan
    pairs: list[tuple[str, object]] = [
        ("strategy", report.strategy),
        ("clusters", outcome.n_clusters),
        ("columns", len(outcome.columns)),
        ("domain", type(outcome.domain).__name__),
        ("n_records, public planning figure", _or_dash(plan.n_records)),
        ("n_clients, public planning figure", _or_dash(plan.n_clients)),
        ("clients that took part", report.n_clients),
        ("slots of the cohort", report.n_slots),
        ("fewest clients behind a sum", report.min_clients),
        ("rounds", f"{report.n_rounds} of {len(plan.rounds)}"),
        ("attempts at a round, at most", report.max_attempts),
        ("trust model", report.trust),
        ("keys", report.keys),
        ("clients keep a ledger", "all state it" if report.ledger else "not known"),
        (
            "queries and result computed by",
            "every client" if report.trust_model.is_blind else "the server",
        ),
    ]
    if report.is_private:
        pairs.append(("sampler of the noise", report.sampler or "-"))
        pairs.append(("noise, of the planned", f"{number(report.noise_factor)} times"))
        if report.levels:
            added = f"{number(report.added_noise_factor)} times"
            pairs.append(("noise that clients added, of the planned", added))
    if report.trust_model.shares_noise:
        pairs.append(
            ("clients that may work together, also with the server (c)", report.max_colluders)
        )
        pairs.append(("honest noise shares behind the planned noise (M')", report.noise_shares))
    pairs += outcome.facts
    pairs += [("flower-kmeans", __version__), ("flwr", _installed("flwr"))]
    return section("run", "The run", facts(pairs))


def _statements_section(outcome: Outcome) -> Markup:
    statements = outcome.report.statements
    if outcome.not_private is not None:
        statements = (outcome.not_private, *statements)
    listed = tag("ul", *(tag("li", words) for words in statements), class_="statements")
    words = paragraph("The report's own sentences, as they stand in report.statements.")
    return section("statements", "What all parties must know", join([words, listed]))


def _or_dash(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
