"""Help of the command: on a screen, with the parameters of one strategy."""

import inspect

import pytest
from typer.testing import CliRunner

from flower_kmeans.cli.app import app
from flower_kmeans.cli.options import Settings, options_by_strategy, spelled
from flower_kmeans.parameters import declared
from flower_kmeans.protocol.trust import TRUST_MODELS
from flower_kmeans.strategies import BY_NAME


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: CliRunner().invoke(app, [*arguments])


def words_of(text):
    """Return a help without the breaks of its lines."""
    return " ".join(text.split())


def test_every_trust_model_is_offered_with_who_learns_what(run):
    shown = words_of(run("plan", "--help").stdout)
    for trust, model in TRUST_MODELS.items():
        assert model.learns
        assert f"{trust} {model.learns}." in shown
    assert "plan --help" not in shown
    assert "trust models flower-kmeans plan --help" in words_of(
        run("simulate", "--help").stdout
    )


@pytest.mark.parametrize("strategy", [None, *BY_NAME])
def test_help_is_on_one_screen_with_the_parameters_of_one_strategy(run, strategy):
    chosen = () if strategy is None else ("--strategy", strategy)
    result = run("simulate", *chosen, "--help")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) <= (52 if strategy is None else 65)
    assert max(map(len, lines)) <= 80
    options = {line.split()[0] for line in lines if line.startswith("  --")}
    known = options_by_strategy()
    own = known[strategy or "synopsis"]
    every = {spelled(name) for each in known.values() for name in each}
    assert options & every == {*map(spelled, own)}
    assert "other strategies flower-kmeans simulate --strategy NAME --help" in words_of(
        result.stdout
    )
    takes_points = (
        "server_data" in inspect.signature(BY_NAME[strategy or "synopsis"]).parameters
    )
    assert ("--server-data" in options) == takes_points


@pytest.mark.parametrize(
    ("chosen", "name"),
    [
        (["--strategy=fastlloyd"], "fastlloyd"),
        (["--rounds", "3"], "fastlloyd"),
        (["--help", "--strategy", "LLOYD"], "lloyd"),
        (["--rounds", "3", "--strategy", "synopsis"], "synopsis"),
    ],
)
def test_help_is_of_the_strategy_that_the_options_choose(run, chosen, name):
    assert f"Parameters of {name}:" in run("plan", *chosen, "--help").stdout


def test_help_of_a_strategy_that_is_none_is_an_error(run):
    result = run("simulate", "--strategy", "fastloyd", "--help")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "Error: Expected --strategy in ['constrained-lloyd'"
    )
    assert result.stdout == ""


def test_an_option_says_one_thing(run):
    """Also where strategies take other values for it, or mean it in another way."""
    for strategy, text in (
        ("fastlloyd", "--radius step|constant"),
        ("vertical", "--radius true|false"),
        ("synopsis", "--min-size N Fewest records of a cluster."),
        ("constrained-lloyd", "--min-size N Fewest records of a cluster."),
        (
            "fastlloyd",
            "--alpha NUMBER Factor of the radius within which offsets count.",
        ),
        ("feddp", "--alpha NUMBER Factor of the radius within which offsets count."),
        ("lloyd", "--split HOW iid, tiles, column:NAME"),
        ("vertical", "--split HOW columns (halves)"),
    ):
        shown = words_of(run("simulate", "--strategy", strategy, "--help").stdout)
        assert text in shown
        assert "For fastlloyd" not in shown


@pytest.mark.parametrize("strategy", BY_NAME)
def test_every_declared_parameter_is_an_option(run, strategy):
    """Named, read and described as it is declared, and passed on to the strategy."""
    known = options_by_strategy()[strategy]
    assert {"n_clusters", "n_records", "seed", "fraction_bits"} <= known.keys()
    fields = declared(BY_NAME[strategy].ALGORITHM)
    parameters = inspect.signature(BY_NAME[strategy]).parameters
    assert {
        name for name in fields.keys() & parameters if fields[name].kind.values
    } <= {*known}
    shown = words_of(run("plan", "--strategy", strategy, "--help").stdout)
    for name, (kind, _, meaning) in known.items():
        assert f" {spelled(name)} " in shown
        assert meaning
        is_choice = "|" in kind.values and not kind.values.startswith("integer")
        text = kind.values.split("|")[0] if is_choice else "1"
        if kind.values != "NAME=NUMBER,..." and (strategy, name) != ("lloyd", "clip"):
            others = dict.fromkeys(["strategy", "epsilon", "delta", "unit", "trust"])
            given = Settings.read(**others | {"strategy": strategy, name: text}).given
            assert (
                given == {name: {"true": True, "1": 1}.get(text, text)}
                or text == "auto"
            )
