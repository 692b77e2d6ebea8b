"""The picture of the trust model, and who the run protects against."""

import pytest
from report_pages import MODES, PARTITIONS, finished, read, strategy_of, tables

from flower_kmeans import html_report, simulate

FIRST_OF_TRUST = {trust: name for name, trust in reversed(MODES)}


def section_of(trust):
    clustering = finished(FIRST_OF_TRUST[trust], trust)
    return read(html_report(clustering)).the("section", id="trust")


def kinds(svg, name):
    return [
        set(e.attributes["class"].split()) & {"masked", "noisy", "exact"} for e in svg.all(name)
    ]


@pytest.mark.parametrize(
    ("trust", "drawn", "missing"),
    [
        (
            "oblivious-server",
            ("masked words", "adds noise", "sees masked words, and its own noise", "no centroid"),
            ("noise share", "exact", "sealed"),
        ),
        (
            "distributed-noise",
            ("noise share", "secret shares", "sealed shares, with noise", "noisy sums"),
            ("adds noise", "exact", "mask"),
        ),
        (
            "clients-only",
            ("noise share", "sees sealed shares only", "sealed sum-shares", "no centroid"),
            ("adds noise", "exact", "mask"),
        ),
        (
            "trusted-server",
            ("exact sums of each client", "adds noise", "sees every client's exact sums"),
            ("mask", "noise share"),
        ),
        (
            "plain",
            ("exact sums of each client", "exact sums,", "exact sizes, report"),
            ("noise", "mask"),
        ),
    ],
)
def test_the_picture_is_that_of_the_trust_model(trust, drawn, missing):
    (svg,) = section_of(trust).all("svg")
    texts = [text.text for text in svg.all("text")]
    for words in drawn:
        assert words in texts
    for words in missing:
        assert not [text for text in texts if words in text]
    arrows = [e for e in svg.all("path") if "flow" in e.attributes["class"]]
    sent = "exact" if trust in ("trusted-server", "plain") else "masked"
    assert len(arrows) == 4
    assert all(sent in arrow.attributes["class"] for arrow in arrows[:3])
    assert "5 clients hold the records" in texts


def test_what_the_server_sees_is_as_the_documents_say():
    """In the README's table: no sum; noisy sums; exact sums."""
    results = {
        trust: [e.attributes["class"] for e in section_of(trust).all("rect", "box")]
        for trust in FIRST_OF_TRUST
    }
    assert results == {
        "oblivious-server": ["box noisy", "box masked", "box noisy"],
        "clients-only": ["box noisy", "box masked", "box noisy"],
        "distributed-noise": ["box noisy"] * 3,
        "trusted-server": ["box noisy", "box exact", "box noisy"],
        "plain": ["box exact"] * 3,
    }


@pytest.mark.parametrize("trust", sorted(FIRST_OF_TRUST))
def test_the_table_says_what_the_report_says(trust):
    clustering = finished(FIRST_OF_TRUST[trust], trust)
    rows = tables(section_of(trust))["What the run protects against"]
    told = [row[1] for row in rows[1:]]
    expected = [
        words.replace("Yes:", "Yes").replace("In part:", "In part").replace("No:", "No")
        for words in clustering.report.protects_against.values()
    ]
    assert told == expected


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("relayed", "public keys were relayed by the server"),
        ("roster", "public keys are pinned by a roster"),
    ],
)
def test_keys_are_named(keys, words):
    strategy = strategy_of("FastLloyd", "oblivious-server", keys=keys, n_rounds=2)
    section = read(html_report(simulate(strategy, PARTITIONS))).the("section", id="trust")
    assert words in section.text


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
