"""The bar of a run: what it says after each round, and that it leaves nothing behind."""

import io
import logging
import sys
import warnings

import numpy as np
import pytest
from rich.console import Console

from flower_kmeans import Box, Fault, PrivacyBudget, ProgressBar, simulate
from flower_kmeans.errors import ConfigurationTypeError, TooFewClientsError
from flower_kmeans.strategies import FastLloyd, RoundInfo

PARTS = np.array_split(np.random.default_rng(0).random((90, 2)), 3)


def strategy_of(**options):
    domain = Box([0, 0], [1, 1])
    return FastLloyd(
        2, domain, PrivacyBudget(1.0), 90, n_rounds=3, n_clients=3, **options
    )


def terminal(is_one=True):
    forced = {"force_terminal": is_one, "force_interactive": is_one}
    return Console(file=io.StringIO(), width=100, color_system=None, **forced)


@pytest.fixture
def handler():
    """One of Flower's log, which writes to the standard error."""
    made, logger = logging.StreamHandler(sys.stderr), logging.getLogger("flwr")
    logger.addHandler(made)
    yield made
    logger.removeHandler(made)


def info(t, seconds, n_rounds=4):
    return RoundInfo(t, n_rounds, 5, 5, 0, seconds)


def last_line(bar):
    """Return the bar as it stands."""
    console = terminal(is_one=False)
    console.print(bar._progress.get_renderable())
    return console.file.getvalue()


def test_the_time_left_follows_from_the_rounds_so_far_and_comes_nearer():
    now = [100.0]
    bar = ProgressBar(terminal(), clock=lambda: now[0])
    with bar:
        assert "starting the clients" in last_line(bar)
        assert "time left: -" in last_line(bar)
        now[0] = 130.0
        bar(info(1, 30.0))
        assert "round 2 of 4" in last_line(bar)
        assert "about 0:01:30" in last_line(bar)  # three rounds of 30 s
        now[0] = 150.0
        assert "about 0:01:10" in last_line(bar)
        now[0] = 500.0
        assert "about 0:00:00" in last_line(bar)
        bar(info(2, 400.0))
        assert "about 0:06:40" in last_line(bar)
        bar(info(4, 500.0))
        assert "delivering" in last_line(bar)


@pytest.mark.parametrize(
    ("t", "seconds", "left"),
    [(1, 10.0, 30.0), (2, 10.0, 10.0), (3, 30.0, 10.0), (4, 7.0, 0.0)],
)
def test_the_estimate_takes_the_mean_of_the_rounds(t, seconds, left):
    assert info(t, seconds).seconds_left == pytest.approx(left)


@pytest.mark.parametrize("own", [True, False])
def test_a_bar_follows_a_simulation_and_a_start(own):
    console, rounds = terminal(), []
    with ProgressBar(console) as bar:

        def on_round(each):
            bar(each)
            rounds.append(each.round)

        if own:  # what a strategy's start calls
            simulate(strategy_of(on_round=on_round), PARTS)
        else:
            simulate(strategy_of(), PARTS, on_round=on_round)
        assert "delivering" in last_line(bar)
    assert rounds == [1, 2, 3]
    assert "round 2 of 3" in console.file.getvalue()


def test_nothing_is_drawn_where_there_is_no_terminal():
    console = terminal(is_one=False)
    with ProgressBar(console) as bar:
        simulate(strategy_of(), PARTS, on_round=bar)
    assert console.file.getvalue() == ""
    console = terminal()
    # a run goes on without ``with``
    simulate(strategy_of(), PARTS, on_round=ProgressBar(console))
    assert console.file.getvalue() == ""


def test_a_run_that_fails_leaves_no_bar_and_no_stream_of_its_own(handler):
    before, streams, bar = sys.stderr, [], ProgressBar(terminal())

    def run():
        with bar:
            streams.extend([handler.stream, sys.stderr])
            fault = Fault(0, 2, "drop")
            simulate(strategy_of(min_clients=3), PARTS, faults=[fault], on_round=bar)

    with pytest.raises(TooFewClientsError):
        run()
    assert streams[0] is streams[1] is not before
    assert sys.stderr is handler.stream is before
    with bar:  # once more, from the start
        assert "starting the clients" in last_line(bar)


def test_lines_of_the_log_stand_above_the_bar(handler):
    console = terminal()
    with ProgressBar(console):
        logging.getLogger("flwr").error("a line of the log")
    assert "a line of the log\n" in console.file.getvalue()


def test_in_a_notebook_the_log_keeps_its_stream(handler, monkeypatch):
    console, before = terminal(is_one=False), handler.stream
    monkeypatch.setattr(console, "is_jupyter", True)
    with warnings.catch_warnings():
        # rich's, where ipywidgets is missing
        warnings.simplefilter("ignore", UserWarning)
        with ProgressBar(console):
            assert handler.stream is before


def test_the_console_is_one_of_rich():
    with pytest.raises(ConfigurationTypeError, match="console"):
        ProgressBar(sys.stdout)
