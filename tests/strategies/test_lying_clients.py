"""One client of ten lies in a whole run: it cannot be prevented, and a large lie is flagged.

The lies are other integers in a right message: shares, masks and plain sums carry them
alike (docs/threat-model.md, row 34).
"""

import logging
from unittest import mock

import numpy as np
import pytest
from harness import run_recorded
from rich.console import Console

from flower_kmeans import Box, PrivacyBudget, html_report, simulate
from flower_kmeans.cli.outputs import print_warnings
from flower_kmeans.protocol import ask
from flower_kmeans.strategies import FastLloyd, Lloyd, SynopsisKMeans

pytestmark = [
    pytest.mark.claim("reading-a-report", "report-dict-warnings-at"),
    pytest.mark.claim("threat-model", "34"),
]

N_CLIENTS, N_RECORDS = 10, 1000
BOX = Box([-1, -1], [1, 1])
CENTERS = np.array([[-0.7, -0.7], [0.7, 0.7], [-0.7, 0.7]])


def part(i):
    rng = np.random.default_rng(i)
    n = N_RECORDS // N_CLIENTS
    return CENTERS[rng.integers(0, 3, n)] + rng.normal(0, 0.05, (n, 2))


PARTS = [part(i) for i in range(N_CLIENTS)]
LIES = {
    "times a million": lambda words: words * 10**6,
    "times minus 1000": lambda words: words * -1000,
    "huge": lambda words: np.full_like(words, 2**45),
    # A sum wraps, so this is not what it looks like.
    "beyond the range": lambda words: np.where(
        np.arange(len(words)) % 2, 2**63 - 1, -(2**63)
    ),
}
RUNS = {
    "clients-only": lambda: fast("clients-only"),
    "distributed-noise": lambda: SynopsisKMeans(
        3, BOX, PrivacyBudget(5.0), N_RECORDS, n_clients=N_CLIENTS
    ),
    "oblivious-server": lambda: fast("oblivious-server"),
    "trusted-server": lambda: fast("trusted-server"),
    "plain": lambda: Lloyd(
        3, BOX, PrivacyBudget(None), N_RECORDS, n_clients=N_CLIENTS, n_rounds=2
    ),
}


def fast(trust):
    privacy = PrivacyBudget(5.0)
    return FastLloyd(
        3, BOX, privacy, N_RECORDS, n_clients=N_CLIENTS, n_rounds=3, trust=trust
    )


def run(strategy, lie=None, liar=4, **options):
    """Return a run in which one client's vectors are others, but for the word that counts it."""
    real = ask._vector

    def vector(conversation, query, context):
        words = real(conversation, query, context)
        if lie is None or conversation.client.load_records() is not PARTS[liar]:
            return words
        return np.append(lie(words[:-1]), words[-1:])

    with mock.patch.object(ask, "_vector", vector):
        return run_recorded(strategy, PARTS, **options)


def alarms(warnings):
    return [words for words in warnings if words.startswith("WARNING: ")]


@pytest.mark.parametrize("trust", RUNS)
def test_honest_runs_are_not_flagged(trust):
    outcome = run(RUNS[trust]())
    assert not alarms(outcome.strategy.report.warnings)
    for result in outcome.results.values():
        assert not alarms(result.warnings)
        assert not [each for each in result.findings if each.kind.is_alarm]


@pytest.mark.parametrize("trust", RUNS)
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.default_cases("values")
def test_a_liar_of_ten_is_flagged_in_report_log_status_and_results(trust, lie, caplog):
    strategy, seen = RUNS[trust](), []
    strategy.on_round = seen.append
    with caplog.at_level(logging.WARNING):
        outcome = run(strategy, LIES[lie])
    report = outcome.strategy.report
    results = list(outcome.results.values())
    assert len(results) == N_CLIENTS
    logs = [record.getMessage() for record in caplog.records]
    # All parties learn the same, in their own words: sentences follow from the
    # findings.
    for result in results:
        assert alarms(result.warnings)
        assert result.findings == results[0].findings
        assert not [words for words in result.warnings if words not in " ".join(logs)]
        assert "WARNING" in result._repr_html_()
    is_blind = strategy.trust_model.is_blind
    # A server that saw no sum can say nothing of it.
    assert bool(alarms(report.warnings)) == (not is_blind)
    assert report.to_dict()["warnings"] == list(report.warnings)
    told = [words for info in seen for words in alarms(info.warnings)]
    assert bool(told) == (not is_blind)
    assert not [words for words in told if words not in logs]
    if not is_blind:
        assert set(alarms(results[0].warnings)) == set(alarms(report.warnings))
        page = html_report(strategy, outcome.result)
        assert "Released values" in page
        for words in alarms(report.warnings):
            assert words.split("<")[0][:60] in page


def test_the_command_line_prints_them(capsys):
    strategy = RUNS["plain"]()
    run(strategy, LIES["times a million"])
    print_warnings(Console(width=500), strategy.report, ())
    out = capsys.readouterr().out
    assert "add up to as many as" in out
    assert "more than 3 times n_records=1,000" in out


def test_rounds_before_the_last_are_remembered_by_clients_of_a_blind_server():
    """Only the last state follows from the last sum, and the first round is flagged too."""
    strategy = RUNS["oblivious-server"]()
    outcome = run(strategy, LIES["times a million"])
    rounds = {each.round for each in outcome.results[0].findings}
    assert rounds == {1, 2, 3}
    assert "of rounds 1, 2 and 3 add up" in outcome.results[0].warnings[0]


@pytest.mark.claim("reading-a-report", "warning-further-below-0")
def test_a_blind_run_of_clients_with_a_negative_size_is_not_silent():
    """Sixty protected clients, whose noise is far larger than a cluster."""
    rng = np.random.default_rng(0)
    parts = [rng.uniform(-1, 1, (50, 2)) for _ in range(60)]
    strategy = FastLloyd(
        10,
        BOX,
        PrivacyBudget(1.0, unit="client"),
        3000,
        n_clients=60,
        trust="oblivious-server",
    )
    clustering = simulate(strategy, parts)
    warnings = clustering.report.to_dict()["warnings"]
    (words,) = [each for each in warnings if each.startswith("The noisy sizes of")]
    least = int(np.argmin(clustering.counts))
    assert f"of cluster {least}." in words
    assert f"{clustering.counts[least]:,.0f} of" in words
    assert strategy.report.warnings == ()  # the server's own: it saw nothing
