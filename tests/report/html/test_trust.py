"""The picture of the trust model, and who the run protects against."""

import pytest
from report_pages import MODES, PARTITIONS, finished, read, strategy_of, tables

from flower_kmeans import html_report, simulate

FIRST_OF_TRUST = {trust: name for name, trust in reversed(MODES)}


def section_of(trust):
    clustering = finished(FIRST_OF_TRUST[trust], trust)
    return read(html_report(clustering)).the("section", id="trust")


# Drawn words, words that are not there, and what clients, server and readers have. The server's is
# as in the README's table: no sum; noisy sums; exact sums.
PICTURES = {
    "oblivious-server": (
        "masked words|adds noise|sees masked words, and its own noise|no centroid",
        "noise share|exact|sealed",
        ["noisy", "masked", "noisy"],
    ),
    "distributed-noise": (
        "noise share|secret shares|sealed shares, with noise|noisy sums",
        "adds noise|exact|mask",
        ["noisy", "noisy", "noisy"],
    ),
    "clients-only": (
        "noise share|sees sealed shares only|sealed sum-shares|no centroid",
        "adds noise|exact|mask",
        ["noisy", "masked", "noisy"],
    ),
    "trusted-server": (
        "exact sums of each client|adds noise|sees every client's exact sums",
        "mask|noise share",
        ["noisy", "exact", "noisy"],
    ),
    "plain": (
        "exact sums of each client|exact sums,|exact sizes, report",
        "noise|mask",
        ["exact", "exact", "exact"],
    ),
}


@pytest.mark.parametrize("trust", PICTURES)
def test_the_picture_is_that_of_the_trust_model(trust):
    drawn, missing, boxes = PICTURES[trust]
    (svg,) = section_of(trust).all("svg")
    texts = [text.text for text in svg.all("text")]
    assert {*drawn.split("|"), "5 clients hold the records"} <= set(texts)
    assert not [text for text in texts for words in missing.split("|") if words in text]
    arrows = [e.attributes["class"] for e in svg.all("path") if "flow" in e.attributes["class"]]
    sent = "exact" if trust in ("trusted-server", "plain") else "masked"
    assert arrows[:3] == [f"flow {sent}"] * 3
    assert len(arrows) == 4
    assert [e.attributes["class"] for e in svg.all("rect", "box")] == [f"box {b}" for b in boxes]


@pytest.mark.parametrize("trust", sorted(FIRST_OF_TRUST))
def test_the_table_says_what_the_report_says(trust):
    report = finished(FIRST_OF_TRUST[trust], trust).report
    rows = tables(section_of(trust))["What the run protects against"]
    expected = [words.replace(":", "", 1) for words in report.protects_against.values()]
    assert [row[1] for row in rows[1:]] == expected


@pytest.mark.parametrize(
    ("keys", "words"), [("relayed", "were relayed by the server"), ("roster", "pinned by a roster")]
)
def test_keys_are_named(keys, words):
    strategy = strategy_of("FastLloyd", "oblivious-server", keys=keys, n_rounds=2)
    section = read(html_report(simulate(strategy, PARTITIONS))).the("section", id="trust")
    assert f"public keys {'are ' if keys == 'roster' else ''}{words}" in section.text


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_clients_are_drawn_as_they_are(n):
    strategy = strategy_of("Lloyd", "plain", n_clients=n, n_rounds=1)
    clustering = simulate(strategy, PARTITIONS[:n])
    (svg,) = read(html_report(clustering)).the("section", id="trust").all("svg")
    texts = [text.text for text in svg.all("text")]
    assert [text for text in texts if text.startswith("client ")] == [
        f"client {i + 1}" for i in range(n)
    ]
    assert "…" not in texts
