"""The FedDP-KMeans experiments on small populations: what they compare, state and draw."""

import csv
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.strategies import PEMeans, SynopsisKMeans

FOLDER = Path(__file__).parents[2] / "simulations" / "feddp"


@pytest.fixture(scope="module")
def experiments():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("experiments")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("experiments", "federated", "outcomes", "populations"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def populations(experiments):
    return sys.modules["populations"]


def all_but(experiments, *left_out):
    return [each for each in experiments.METHODS if each not in left_out]


def small(command, output):
    """Return the arguments of a command that is quick, one run in this process."""
    return [*command.split(), "--runs", "1", "--jobs", "1", "--output", str(output)]


def of(outcomes, method):
    (outcome,) = (each for each in outcomes if each["method"] == method)
    return outcome


# ------------------------------------------------------------------------------ runs


@pytest.fixture(scope="module")
def quick(experiments, tmp_path_factory):
    """Arguments, outcomes and directory; without PE-means, whose rounds grow with epsilon."""
    output = tmp_path_factory.mktemp("feddp")
    methods = all_but(experiments, experiments.PE)
    arguments = [
        *small("record --quick --epsilons 1000", output),
        "--methods",
        *methods,
    ]
    return arguments, experiments.main(arguments), output


@pytest.mark.claim("tables/feddp", "feddp-kmeans-within-0")
def test_all_methods_and_their_guarantee_are_in_the_table(experiments, quick):
    _, outcomes, output = quick
    table = (output / "record.md").read_text("utf-8")
    methods = all_but(experiments, experiments.PE)
    facts = ["trust='trusted-server'", "unit='record'", "n_clients=8", "min_clients="]
    facts += ["noise factor 1,", "delta=1e-06", *sys.modules["outcomes"].FIGURES]
    assert not [
        fact for fact in (*facts, *(f"| {m} |" for m in methods)) if fact not in table
    ]
    assert len(outcomes) == len(methods)
    assert (output / "feddp.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.claim("tables/feddp", "feddp-kmeans-within-0")
def test_little_noise_is_near_the_optimum(experiments, quick):
    _, outcomes, _ = quick
    assert of(outcomes, experiments.OPTIMUM)["ratio"] == pytest.approx(1)
    for method in (experiments.FEDDP, experiments.SYNOPSIS):
        found = of(outcomes, method)
        assert 1 <= found["ratio"] < 1.05
        assert min(found[name] for name in ("accuracy", "ari", "fmi", "nmi")) > 0.95


def test_a_file_of_runs_is_gone_on_with(experiments, quick):
    arguments, outcomes, output = quick
    before = (output / "runs.csv").read_bytes()
    again = experiments.main(arguments)
    assert (output / "runs.csv").read_bytes() == before
    assert list(map(repr, again)) == list(map(repr, outcomes))
    assert len(before.splitlines()) == 1 + len(outcomes)


@pytest.mark.thorough
def test_its_commands_run_in_two_processes(tmp_path):
    command = [
        sys.executable,
        str(FOLDER / "experiments.py"),
        "record",
        "--quick",
        "--jobs",
        "2",
    ]
    command += [
        "--runs",
        "2",
        "--methods",
        "optimum (not private)",
        "--output",
        str(tmp_path),
    ]
    subprocess.run(command, check=True, timeout=600, capture_output=True)
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + 2


def test_whole_clients_and_shared_noise(experiments, tmp_path):
    arguments = small("client --quick --clients 12 --clip 20 --epsilons 50", tmp_path)
    methods = all_but(experiments, experiments.SYNOPSIS, experiments.PE)
    arguments += ["--trust", "distributed-noise", "--methods", *methods]
    outcomes = experiments.main(arguments)
    private = [
        each for each in outcomes if each["method"] not in experiments.NOT_PRIVATE
    ]
    assert len(private) == 4
    for each in private:
        shared = {
            "unit": "client",
            "trust": "distributed-noise",
            "clip": "20",
            "n_clients": 12,
        }
        assert shared.items() <= each.items()
        assert each["min_clients"] < 12
        assert each["noise_factor"] > 1
    assert "unit='client'" in (tmp_path / "client.md").read_text("utf-8")


def test_methods_without_server_points_have_the_librarys_clips(experiments, tmp_path):
    arguments = small("client --quick --clients 4 --clip 20 --epsilons 1", tmp_path)
    outcomes = experiments.main(
        [*arguments, "--methods", experiments.SYNOPSIS, experiments.PE]
    )
    common = (10, Box([0.0] * 10, [1.0] * 10), PrivacyBudget(1.0, unit="client"), 200)
    votes = PEMeans(*common, n_clients=4).clips["votes"]
    table = (tmp_path / "client.md").read_text("utf-8")
    for method, clip in (
        (experiments.SYNOPSIS, f"{SynopsisKMeans(*common, n_clients=4).clip:g}"),
        (experiments.PE, f"by release: votes {votes:.4g}"),
    ):
        assert of(outcomes, method)["clip"] == clip
        assert f", {method}'s clip {clip} (" in table


@pytest.mark.parametrize(("d", "projects"), [(16, False), (17, True)])
def test_beyond_16_columns_pe_means_projects(experiments, populations, d, projects):
    drawn = populations.Mixture(3, 20, d=d).draw("a", 0)
    setting = experiments.Setting("record")
    made = experiments.strategy_of(experiments.PE, drawn, setting, 1.0, 0)
    assert made.algorithm.projects is projects


def test_missing_components(experiments, tmp_path):
    outcomes = experiments.main(
        small("missing --quick --missing 0 2 --epsilons 100", tmp_path)
    )
    assert {each["population"] for each in outcomes} == {
        "0 missing (quick)",
        "2 missing (quick)",
    }
    found = {each["method"] for each in outcomes}
    assert found == set(all_but(experiments, experiments.SYNOPSIS, experiments.PE))
    assert len(outcomes) == 2 * len(found)


def test_a_file_with_a_column_of_clients(experiments, tmp_path):
    rng, clients = np.random.default_rng(0), np.repeat(np.arange(5), 40)
    classes = rng.integers(2, size=200)
    values = np.clip(0.8 * classes[:, None] + rng.normal(0.1, 0.02, (200, 2)), 0, 1)
    path = tmp_path / "some.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("x", "y", "site", "kind"))
        writer.writerows(zip(*values.T, clients, classes, strict=True))
    command = f"data --data {path} --client-column site --label kind --bounds 0 1 --clusters 2"
    chosen = (experiments.FEDDP, experiments.SYNOPSIS, experiments.OPTIMUM)
    arguments = small(f"{command} --epsilons 50", tmp_path)
    outcomes = experiments.main([*arguments, "--methods", *chosen])
    assert {each["method"] for each in outcomes} == set(chosen)
    assert all(each["n_clients"] == 4 for each in outcomes)  # one is the server's
    assert of(outcomes, experiments.FEDDP)["accuracy"] > 0.95
    with pytest.raises(SystemExit):
        experiments.main(["data", "--data", str(path), "--client-column", "site"])


# ----------------------------------------------------------------------- public numbers


@pytest.mark.claim("tables/feddp", "domains-seeds-these-experiments")
def test_domain_is_of_the_parameters(populations):
    mixture = populations.Mixture(3, 20, d=7, variance=0.3)
    assert mixture.domain.center == (0.5,) * 7
    assert mixture.domain.radius == pytest.approx(1.25 * (7 * (0.3 + 1 / 12)) ** 0.5)
    assert mixture.draw("a", 0).domain == mixture.draw("b", 1).domain == mixture.domain


@pytest.mark.claim("tables/feddp", "domains-seeds-these-experiments")
@pytest.mark.parametrize("unit", ["record", "client"])
def test_other_records_make_the_same_strategies(experiments, populations, unit):
    drawn = populations.Mixture(3, 20, d=4, n_uniform=30).draw("a", 0)
    other = populations.Population(
        drawn.name,
        [np.full_like(part, 77.0) for part in drawn.partitions],
        None,
        drawn.server_data,
        drawn.domain,
        drawn.n_clusters,
    )
    setting = experiments.Setting("record", unit=unit)
    for method in all_but(experiments, *experiments.NOT_PRIVATE):
        first, second = (
            experiments.strategy_of(method, each, setting, 1.0, 5).algorithm
            for each in (drawn, other)
        )
        assert algorithm_to_config(first) == algorithm_to_config(second)
        assert first.domain == second.domain
        assert first.seed == second.seed == 5


def test_the_server_misses_the_first_components_and_nothing_else_changes(populations):
    whole = populations.Mixture(3, 20, d=4).draw("a", 2)
    less = populations.Mixture(3, 20, d=4, n_missing=3).draw("a", 2)
    assert all(map(np.array_equal, whole.partitions, less.partitions))
    assert len(whole.server_data) == 300
    assert np.array_equal(whole.server_data[60:], less.server_data)


def test_digits_of_the_server_are_no_clients(populations):
    found = populations.digits()
    assert found.n_records + len(found.server_data) == 1797
    assert len(found.classes) == found.n_records
    assert (found.domain.lower, found.domain.upper) == ((0.0,) * 64, (16.0,) * 64)
    assert len(found.partitions) == 27


def test_the_legend_names_what_any_panel_shows(experiments):
    outcomes = sys.modules["outcomes"]
    measured = {name: kind(1) for name, kind in outcomes.MEASURES.items()}
    shown = [
        vars(outcomes.Task("record", name, "trusted-server", method, 1.0, 0)) | measured
        for name, method in (("a", outcomes.LLOYD), ("b", outcomes.SYNOPSIS))
    ]
    (legend,) = outcomes.plot(shown).legends
    assert [text.get_text() for text in legend.get_texts()] == [
        outcomes.SYNOPSIS,
        outcomes.LLOYD,
    ]


# --------------------------------------------------------------------------- one output


@pytest.fixture
def measured(experiments, tmp_path, monkeypatch):
    """Return the tasks that were measured, in another directory; nothing is run or drawn."""
    found = []
    (tmp_path / "china.csv").write_text(
        "red,green,blue,column,row\n1,2,3,0,0\n4,5,6,1,1\n"
    )

    def measure(task, *_, **__):
        found.append(task)
        return {
            name: kind(1) for name, kind in sys.modules["outcomes"].MEASURES.items()
        }

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiments, "measure", measure)
    monkeypatch.setattr(experiments, "plot", lambda _: None)
    monkeypatch.setattr("bench.plots.save", lambda *_: [])
    return found


@pytest.mark.claim("tables/feddp", "all-commands-this-section")
@pytest.mark.thorough
def test_the_documents_commands_share_an_output(experiments, measured):
    page = (FOLDER.parents[1] / "docs" / "tables" / "feddp.md").read_text("utf-8")
    start = "python simulations/feddp/experiments.py"
    commands = re.findall(rf"^{re.escape(start)}((?:.*\\\n)*.*)$", page, re.MULTILINE)
    assert len(commands) == page.count(f"\n{start} ") > 10
    for command in commands:
        arguments = shlex.split(command.replace("\\\n", " "))
        assert experiments.main([*arguments, "--jobs", "1"])
        assert Path("build", "feddp", f"{arguments[0]}.md").exists()
    assert len(measured) == len(set(measured))
    n_done = len(measured)
    experiments.main([*shlex.split(commands[0]), "--jobs", "1"])
    assert len(measured) == n_done


@pytest.mark.claim("tables/feddp", "all-commands-this-section")
def test_rows_of_other_data_are_refused(experiments, measured):
    command = (
        "data --data china.csv --client-column column --bounds 0 255 --runs 1 --jobs 1"
    )
    experiments.main(command.split())
    n_done = len(measured)
    for change, words in (
        ("--bounds 0 256", "Got bounds 0 256, not 0 255: choose another --output"),
        ("--bounds 0 255.0000001", r"Got bounds 0 255\.0000001, not 0 255"),
        ("--clusters 9", "Got clusters 9, not 10"),
        ("--server-clients 2", "Got server-clients 2, not 1"),
        ("--label row", "Got label row, not :"),
        ("--client-column row", "Got client-column row, not column"),
    ):
        for redraw in ("", " --redraw"):
            with pytest.raises(SystemExit, match=words):
                experiments.main(f"{command} {change}{redraw}".split())
    Path("china.csv").write_text("red,column\n0,0\n")
    with pytest.raises(SystemExit, match=r"china to be .* Got other contents"):
        experiments.main(command.split())
    experiments.main(["data", "--runs", "1", "--jobs", "1"])
    Path("china.csv").rename("digits.csv")
    with pytest.raises(SystemExit, match=r"digits to be .* Got bounds 0 255, not"):
        experiments.main(command.replace("china", "digits").split())
    assert len(measured) == 2 * n_done


def test_other_clips_are_other_rows(experiments, measured):
    command = "client --clients 5 --runs 1 --epsilons 1 --jobs 1 --clip 20"
    for each in (command, f"{command}.0000001"):
        experiments.main([*each.split(), "--methods", experiments.FEDDP])
    assert [each.variant.split(", ")[1] for each in measured] == [
        "clip 20",
        "clip 20.0000001",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("record --clip 20", "--clip is for --unit client alone"),
        (
            "client --unit record --lloyd-clip 20",
            "--lloyd-clip is for --unit client alone",
        ),
        ("record --clients 50", "--clients is for the table client alone"),
        ("client --missing 1", "--missing is for the table missing alone"),
        (
            "record --data china.csv --client-column a --bounds 0 1",
            "--data is for the table",
        ),
        ("data --clusters 5", "--clusters is for --data alone"),
    ],
)
def test_options_that_a_table_does_not_take_are_refused(
    experiments, measured, capsys, given, words
):
    with pytest.raises(SystemExit):
        experiments.main(given.split())
    assert words in capsys.readouterr().err
    assert not measured


# ------------------------------------------------------------------ shapes of sets


@pytest.fixture(scope="module")
def federated(experiments):
    return sys.modules["federated"]


@pytest.mark.parametrize("kind", ["folktables", "stackoverflow"])
def test_a_stand_in_says_so_and_lies_in_its_domain(federated, kind):
    population = federated.population_of(kind, None, 0)
    assert population.name == f"{kind} (stand-in, not its data)"
    pooled = np.concatenate([*population.partitions, population.server_data])
    assert len(population.partitions) > 10
    if kind == "folktables":
        assert pooled.min() >= 0
        assert pooled.max() <= 1
    else:
        np.testing.assert_allclose(np.linalg.norm(pooled, axis=1), 1)
    again = federated.population_of(kind, None, 0)
    np.testing.assert_array_equal(again.server_data, population.server_data)


def test_a_survey_is_read_by_areas_and_scaled_by_public_bounds(
    federated, tmp_path, capsys
):
    path = tmp_path / "psam_p36.csv"
    lines = [
        "SERIALNO,PUMA,AGEP,SCHL,WKHP,JWMNP,POVPIP,PINCP",
        "1,100,99,24,99,200,501,500000",
        "2,200,0,0,0,0,0,-20000",
        "3,200,0,0,0,0,0,-90000",
        "4,300,10,,0,0,0,0",
    ]
    path.write_text("\n".join(lines), "utf-8")
    population = federated.population_of("folktables", path, 0)
    assert "1 of 4 persons lack a column" in capsys.readouterr().out
    np.testing.assert_array_equal(population.server_data, np.ones((1, 6)))
    (part,) = population.partitions
    np.testing.assert_array_equal(part, np.zeros((2, 6)))
    path.write_text("PUMA,AGEP\n1,2\n", "utf-8")
    with pytest.raises(federated.DataError, match="Expected a survey file"):
        federated.population_of("folktables", path, 0)


def test_embedded_questions_are_read_by_users(federated, tmp_path):
    path = tmp_path / "questions.npz"
    np.savez(path, X=np.eye(4), client=np.array([5, 7, 7, 9]))
    population = federated.population_of("stackoverflow", path, 0)
    assert [len(part) for part in population.partitions] == [2, 1]
    np.testing.assert_array_equal(population.server_data, np.eye(4)[:1])
    np.savez(path, X=np.eye(4))
    with pytest.raises(federated.DataError, match="Expected arrays X and client"):
        federated.population_of("stackoverflow", path, 0)


def test_a_stand_in_is_clustered_and_named(experiments, tmp_path):
    rows = experiments.main(
        small(
            "stackoverflow --epsilons 100 --methods FedDP-KMeans", tmp_path / "output"
        )
    )
    assert {row["unit"] for row in rows} == {"client"}
    text = (tmp_path / "output/stackoverflow.md").read_text("utf-8")
    assert "stackoverflow (stand-in, not its data)" in text
