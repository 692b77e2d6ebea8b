"""The FedDP-KMeans experiments on small populations: what they compare, state and draw."""

import csv
import importlib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.strategies import PEMeans, SynopsisKMeans

FOLDER = Path(__file__).parents[2] / "simulations" / "feddp"


@pytest.fixture(scope="module")
def experiments() -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("experiments")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("experiments", "outcomes", "populations"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def populations(experiments: ModuleType) -> Any:
    return sys.modules["populations"]


@pytest.fixture(scope="module")
def quick(
    experiments: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Any], Path]:
    output = tmp_path_factory.mktemp("feddp")
    return experiments.main(quick_arguments(experiments, output)), output


def quick_arguments(experiments: ModuleType, output: Path) -> list[str]:
    # Without PE-means, whose rounds grow with epsilon.
    methods = [each for each in experiments.METHODS if each != experiments.PE]
    arguments = ["record", "--quick", "--runs", "1", "--epsilons", "1000", "--jobs", "1"]
    return [*arguments, "--output", str(output), "--methods", *methods]


def of(outcomes: list[Any], method: str) -> Any:
    (outcome,) = (each for each in outcomes if each.method == method)
    return outcome


class TestRecord:
    def test_all_methods_and_their_guarantee_are_in_the_table(
        self, experiments: ModuleType, quick: tuple[list[Any], Path]
    ) -> None:
        outcomes, output = quick
        table = (output / "record.md").read_text("utf-8")
        methods = set(experiments.METHODS) - {experiments.PE}
        for method in methods:
            assert f"| {method} |" in table
        for heading in sys.modules["outcomes"].HEADINGS:
            assert heading in table
        for fact in (
            "trust='trusted-server'",
            "unit='record'",
            "n_clients=8",
            "min_clients=",
            "noise factor 1,",
            "delta=1e-06",
        ):
            assert fact in table
        assert len(outcomes) == len(methods)
        assert (output / "feddp.png").read_bytes().startswith(b"\x89PNG")

    def test_little_noise_is_near_the_optimum(
        self, experiments: ModuleType, quick: tuple[list[Any], Path]
    ) -> None:
        outcomes, _ = quick
        assert of(outcomes, experiments.OPTIMUM).ratio == pytest.approx(1)
        for method in (experiments.FEDDP, experiments.SYNOPSIS):
            found = of(outcomes, method)
            assert 1 <= found.ratio < 1.05
            assert min(found.accuracy, found.ari, found.fmi, found.nmi) > 0.95

    def test_a_file_of_runs_is_gone_on_with(
        self, experiments: ModuleType, quick: tuple[list[Any], Path]
    ) -> None:
        outcomes, output = quick
        before = (output / "runs.csv").read_bytes()
        again = experiments.main(quick_arguments(experiments, output))
        assert (output / "runs.csv").read_bytes() == before
        assert list(map(repr, again)) == list(map(repr, outcomes))
        with (output / "runs.csv").open(newline="") as file:
            assert len(list(csv.DictReader(file))) == len(outcomes)


class TestOther:
    def test_whole_clients_and_shared_noise(self, experiments: ModuleType, tmp_path: Path) -> None:
        arguments = [
            "client",
            "--quick",
            "--clients",
            "12",
            "--runs",
            "1",
            "--clip",
            "20",
            "--jobs",
            "1",
        ]
        arguments += ["--epsilons", "50", "--trust", "distributed-noise", "--output", str(tmp_path)]
        methods = [
            m for m in experiments.METHODS if m not in (experiments.SYNOPSIS, experiments.PE)
        ]
        outcomes = experiments.main([*arguments, "--methods", *methods])
        private = [each for each in outcomes if each.method not in experiments.NOT_PRIVATE]
        assert len(private) == 4
        for each in private:
            assert (each.unit, each.trust, each.clip) == ("client", "distributed-noise", "20")
            assert each.min_clients < each.n_clients == 12
            assert each.noise_factor > 1
        assert "unit='client'" in (tmp_path / "client.md").read_text("utf-8")

    def test_methods_without_server_points_have_the_librarys_clips(
        self, experiments: ModuleType, tmp_path: Path
    ) -> None:
        arguments = [
            "client",
            "--quick",
            "--clients",
            "4",
            "--runs",
            "1",
            "--epsilons",
            "1",
            "--jobs",
            "1",
        ]
        arguments += ["--clip", "20", "--output", str(tmp_path), "--methods"]
        outcomes = experiments.main([*arguments, experiments.SYNOPSIS, experiments.PE])
        common = (10, Box([0.0] * 10, [1.0] * 10), PrivacyBudget(1.0, unit="client"), 200)
        synopsis = SynopsisKMeans(*common, n_clients=4)
        votes = PEMeans(*common, n_clients=4).clips["votes"]
        table = (tmp_path / "client.md").read_text("utf-8")
        for method, clip in (
            (experiments.SYNOPSIS, f"{synopsis.clip:g}"),
            (experiments.PE, f"by release: votes {votes:.4g}"),
        ):
            assert of(outcomes, method).clip == clip
            assert f", {method}'s clip {clip} (" in table

    def test_beyond_16_columns_pe_means_projects(
        self, experiments: ModuleType, populations: ModuleType
    ) -> None:
        setting = experiments.Setting("record")
        for d, projects in ((16, False), (17, True)):
            drawn = populations.Mixture(3, 20, d=d).draw("a", 0)
            made = experiments.strategy_of(experiments.PE, drawn, setting, 1.0, 0)
            assert made.algorithm.projects is projects

    def test_missing_components(self, experiments: ModuleType, tmp_path: Path) -> None:
        arguments = ["missing", "--quick", "--missing", "0", "2", "--runs", "1", "--jobs", "1"]
        outcomes = experiments.main([*arguments, "--epsilons", "100", "--output", str(tmp_path)])
        assert {each.population for each in outcomes} == {"0 missing (quick)", "2 missing (quick)"}
        found = {each.method for each in outcomes}
        assert found == set(experiments.METHODS) - {experiments.SYNOPSIS, experiments.PE}
        assert len(outcomes) == 2 * len(found)

    def test_a_file_with_a_column_of_clients(self, experiments: ModuleType, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        clients = np.repeat(np.arange(5), 40)
        classes = rng.integers(2, size=200)
        values = np.clip(0.8 * classes[:, None] + rng.normal(0.1, 0.02, (200, 2)), 0, 1)
        path = tmp_path / "some.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("x", "y", "site", "kind"))
            writer.writerows(zip(*values.T, clients, classes, strict=True))
        arguments = f"data --data {path} --client-column site --label kind --bounds 0 1".split()
        arguments += [
            "--clusters",
            "2",
            "--runs",
            "1",
            "--jobs",
            "1",
            "--epsilons",
            "50",
            "--methods",
        ]
        chosen = (experiments.FEDDP, experiments.SYNOPSIS, experiments.OPTIMUM)
        outcomes = experiments.main([*arguments, *chosen, "--output", str(tmp_path)])
        assert {each.method for each in outcomes} == set(chosen)
        assert all(each.n_clients == 4 for each in outcomes)  # one is the server's
        assert of(outcomes, experiments.FEDDP).accuracy > 0.95
        with pytest.raises(SystemExit):
            experiments.main(["data", "--data", str(path), "--client-column", "site"])


class TestPublicFiguresOnly:
    def test_domain_is_of_the_parameters(self, populations: ModuleType) -> None:
        mixture = populations.Mixture(3, 20, d=7, variance=0.3)
        assert mixture.domain.center == (0.5,) * 7
        assert mixture.domain.radius == pytest.approx(1.25 * (7 * (0.3 + 1 / 12)) ** 0.5)
        assert mixture.draw("a", 0).domain == mixture.draw("b", 1).domain == mixture.domain

    @pytest.mark.parametrize("unit", ["record", "client"])
    def test_other_records_make_the_same_strategies(
        self, experiments: ModuleType, populations: ModuleType, unit: str
    ) -> None:
        mixture = populations.Mixture(3, 20, d=4, n_uniform=30)
        drawn = mixture.draw("a", 0)
        other = populations.Population(
            drawn.name,
            [np.full_like(part, 77.0) for part in drawn.partitions],
            None,
            drawn.server_data,
            drawn.domain,
            drawn.n_clusters,
        )
        setting = experiments.Setting("record", unit=unit)
        for method in set(experiments.METHODS) - set(experiments.NOT_PRIVATE):
            first, second = (
                experiments.strategy_of(method, each, setting, 1.0, 5).algorithm
                for each in (drawn, other)
            )
            assert first.to_config() == second.to_config()
            assert first.domain == second.domain
            assert first.seed == second.seed == 5

    def test_the_server_misses_the_first_components_and_nothing_else_changes(
        self, populations: ModuleType
    ) -> None:
        whole = populations.Mixture(3, 20, d=4).draw("a", 2)
        less = populations.Mixture(3, 20, d=4, n_missing=3).draw("a", 2)
        assert all(map(np.array_equal, whole.partitions, less.partitions))
        assert len(whole.server_data) == 300
        assert np.array_equal(whole.server_data[60:], less.server_data)

    def test_digits_of_the_server_are_no_clients(self, populations: ModuleType) -> None:
        found = populations.digits()
        assert found.n_records + len(found.server_data) == 1797
        assert len(found.classes) == found.n_records
        assert found.domain.lower == (0.0,) * 64
        assert found.domain.upper == (16.0,) * 64
        assert len(found.partitions) == 27


def test_the_legend_names_what_any_panel_shows(experiments: ModuleType) -> None:
    outcomes = sys.modules["outcomes"]
    measured = {name: kind(1) for name, kind in outcomes.MEASURES.items()}
    shown = [
        outcomes.Outcome("record", name, "trusted-server", method, 1.0, 0, **measured)
        for name, method in (("a", outcomes.LLOYD), ("b", outcomes.SYNOPSIS))
    ]
    (legend,) = outcomes.plot(shown).legends
    assert [text.get_text() for text in legend.get_texts()] == [outcomes.SYNOPSIS, outcomes.LLOYD]


class TestOneOutput:
    """What rows depend on beside their columns; nothing is run here."""

    @pytest.fixture
    def measured(
        self, experiments: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> list[Any]:
        """Return the tasks that were measured, in a directory of its own, and draw nothing."""
        found: list[Any] = []
        text = "red,green,blue,column,row\n1,2,3,0,0\n4,5,6,1,1\n"
        (tmp_path / "china.csv").write_text(text)

        def measure(task: Any, *_: Any, **__: Any) -> dict[str, Any]:
            found.append(task)
            return {name: kind(1) for name, kind in sys.modules["outcomes"].MEASURES.items()}

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(experiments, "measure", measure)
        monkeypatch.setattr(experiments, "plot", lambda _: None)
        monkeypatch.setattr("flower_kmeans.bench.plots.save", lambda *_: [])
        return found

    def test_the_documents_commands_share_an_output(
        self, experiments: ModuleType, measured: list[Any]
    ) -> None:
        page = (FOLDER.parents[1] / "docs" / "benchmarks.md").read_text("utf-8")
        commands = re.findall(
            r"^python simulations/feddp/experiments\.py((?:.*\\\n)*.*)$", page, re.MULTILINE
        )
        assert len(commands) == page.count("\npython simulations/feddp/experiments.py ") > 10
        for command in commands:
            arguments = shlex.split(command.replace("\\\n", " "))
            assert experiments.main([*arguments, "--jobs", "1"])
            assert Path("build", "feddp", f"{arguments[0]}.md").exists()
        assert len(measured) == len(set(measured))
        n_done = len(measured)
        experiments.main([*shlex.split(commands[0]), "--jobs", "1"])
        assert len(measured) == n_done

    def test_rows_of_other_data_are_refused(
        self, experiments: ModuleType, measured: list[Any]
    ) -> None:
        command = "data --data china.csv --client-column column --bounds 0 255 --runs 1 --jobs 1"
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

    def test_other_clips_are_other_rows(self, experiments: ModuleType, measured: list[Any]) -> None:
        command = "client --clients 5 --runs 1 --epsilons 1 --jobs 1 --clip 20"
        experiments.main([*command.split(), "--methods", experiments.FEDDP])
        experiments.main([*f"{command}.0000001".split(), "--methods", experiments.FEDDP])
        assert [each.variant.split(", ")[1] for each in measured] == ["clip 20", "clip 20.0000001"]

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ("record --clip 20", "--clip is for --unit client alone"),
            ("client --unit record --lloyd-clip 20", "--lloyd-clip is for --unit client alone"),
            ("record --clients 50", "--clients is for the table client alone"),
            ("client --missing 1", "--missing is for the table missing alone"),
            ("record --data china.csv --client-column a --bounds 0 1", "--data is for the table"),
            ("data --clusters 5", "--clusters is for --data alone"),
        ],
    )
    def test_options_that_a_table_does_not_take_are_refused(
        self,
        experiments: ModuleType,
        measured: list[Any],
        capsys: pytest.CaptureFixture[str],
        given: str,
        words: str,
    ) -> None:
        with pytest.raises(SystemExit):
            experiments.main(given.split())
        assert words in capsys.readouterr().err
        assert not measured
