"""The items of the papers (benchmarks/papers), and the suites that make them alone."""

import shlex
import subprocess
import sys

import numpy as np
import pytest
from scripts import ROOT, load_script
from suites import measured

from bench import published
from bench.harness import Options
from bench.script import parser_of
from benchmarks.papers.__main__ import main, words_of
from benchmarks.papers.items import KINDS, papers
from benchmarks.papers.page import page_of, path_of
from benchmarks.papers.record import rows_of
from benchmarks.papers.rows import MISSING, read
from benchmarks.papers.rows import path_of as rows_path
from flower_kmeans.algorithms.answers import reconstructed
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Statistic
from flower_kmeans.privacy.randomness import Stream

PAPERS = papers()
MADE = [
    pytest.param(item, id=f"{paper.name}-{item.name}".replace(" ", "-"))
    for paper in PAPERS.values()
    for item in paper.items
    if item.is_made
]
QUICK = sorted(
    {
        item.quick
        for paper in PAPERS.values()
        for item in paper.items
        if item.is_made and not item.quick.startswith("-m")
    }
)


def test_every_paper_has_items_of_each_number_once():
    assert list(PAPERS) == ["fastlloyd", "pe-means", "feddp", "vertical", "thesis"]
    for paper in PAPERS.values():
        names = [item.name for item in paper.items]
        assert len(set(names)) == len(names) > 5


@pytest.mark.parametrize("name", PAPERS)
def test_the_page_is_the_one_that_is_made(name):
    """Write it again: python -m benchmarks.papers --write."""
    paper = PAPERS[name]
    assert path_of(paper).read_text("utf-8") == page_of(paper, read(rows_path(name)))


@pytest.mark.parametrize("name", PAPERS)
def test_rows_equal_the_cells_of_the_committed_tables(name):
    """Take them over again: python -m benchmarks.papers --write."""
    found = read(rows_path(name))
    assert found == rows_of(PAPERS[name])
    for row in found:
        assert row.ours
        assert row.ours == MISSING or row.date


@pytest.mark.parametrize("item", MADE)
def test_commands_name_files_and_options_that_exist(item, monkeypatch):
    for words in (
        words_of(item, quick=False, data_dir="data"),
        words_of(item, quick=True, data_dir=None),
    ):
        if words[:2] == ["-m", "pytest"]:
            files = [word for word in words[2:] if word.startswith("tests/")]
            assert files
            assert all((ROOT / file).exists() for file in files)
            continue
        path = ROOT / words[0]
        assert path.is_file()
        module = load_script(monkeypatch, path.stem, path.parent)
        if path.stem == "experiments":
            module.options_of(words[1:])
        elif "--quick" not in words:
            parser_of(module.SUITE).parse_args(words[1:])


@pytest.mark.thorough
@pytest.mark.parametrize("quick", QUICK)
def test_the_quick_command_works(quick, tmp_path):
    command = [sys.executable, *shlex.split(quick), "--output", str(tmp_path / "out")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "|--" in done.stdout


def test_the_command_lists_items(capsys):
    assert main([]) == 0
    assert "fastlloyd" in capsys.readouterr().out
    assert main(["fastlloyd"]) == 0
    listed = capsys.readouterr().out
    assert "  figure 3" in listed
    assert "- table 1" in listed


def test_the_command_runs_an_item_from_the_root(monkeypatch, capsys):
    ran = []

    def run(command, cwd, check):
        ran.append((command, cwd))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr("benchmarks.papers.__main__.subprocess.run", run)
    arguments = ["fastlloyd", "--table", "3", "--data-dir", "sets", "--", "--redraw"]
    assert main(arguments) == 3
    (found,) = ran
    words = ["benchmarks/fastlloyd_overhead.py", "--data-dir", "sets", "--runs", "20"]
    assert found == ([sys.executable, *words, "--redraw"], ROOT)
    assert capsys.readouterr().out == f"python {' '.join(words)} --redraw\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fastlloyd", "--figure", "99"], "Expected a figure of fastlloyd, one of: 1"),
        (["fastlloyd", "--table", "1"], "Nothing makes table 1: nothing is measured"),
        (["fastlloyd", "--figure", "2"], "Expected --data-dir for figure 2"),
        (["fastlloyd", "--figure", "2", "--table", "3"], "Expected one item"),
    ],
)
def test_what_cannot_be_made_is_an_error(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_an_item_without_command_or_reason_is_refused(tmp_path):
    file = tmp_path / "items.toml"
    head = '[a]\ntitle = "A"\n[[a.items]]\nkind = "figure"\nnumber = "1"\ntitle = "x"\n'
    for more, message in (
        ("", "the reason"),
        ('command = "x.py"\n', "or neither"),
        (
            'why = "no"\nours = "0.5"\n[[a.items.tables]]\nkeys = []\ncolumns = []',
            "in its rows",
        ),
        ('why = "no"\n[[a.items]]\nkind = "figure"\nnumber = "1"\ntitle = "y"', "once"),
    ):
        file.write_text(head + more, "utf-8")
        with pytest.raises(ValueError, match=message):
            papers(file)
    assert KINDS == ("figure", "table", "theorem", "algorithm")


# A task of each suite that only the papers' items need, and measures in a range.
SMALL = {
    "fastlloyd_ablation": (
        ("ablation_2_2_25", "step", "fold", 0.8, 0),
        {"nicv": (0, 2)},
    ),
    "fastlloyd_metrics": (
        ("sklearn-iris", "FastLloyd:paper", 1.0, 0),
        {"silhouette": (-1, 1), "centroid_error": (0, 16)},
    ),
    "fastlloyd_overhead": (
        ("timesynth_10000_2_2", "oblivious-server", 0),
        {"words": (224, 224), "total": (300, 3000)},
    ),
    "fastlloyd_synthetic": (("g2_2_30", "SuLloyd", 1.0, 0), {"nicv": (0, 2)}),
    "hdpe_rounds": (
        ("g2_32_30", "all columns, equal", 0.25, 0),
        {"rounds": (20, 20), "loss": (0, 1)},
    ),
    "pe_means_heuristics": (
        ("separated_4_4_21", 0.025, 1.0, 0),
        {"loss": (0, 1), "records": (5000, 5000)},
    ),
    "pe_means_selection": (("weighted k-means", 1, 0), {"ratio": (0.999, 1.1)}),
    "thesis_choices": (
        (
            *("sklearn-iris", "MNA", "sphere packing", "trunc, fold, none"),
            *("NOT PRIVATE", 4.0, 0),
        ),
        {"wcss": (20, 400), "seconds": (0, 60)},
    ),
    "thesis": (
        ("sklearn-iris", "exclusive MNA", "laplace", "NOT PRIVATE", "2 even", 4.0, 0),
        {"wcss": (20, 200), "rounds": (2, 7)},
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_suite_measures_a_task_and_shows_it(script, name):
    suite = script(name).SUITE
    values, ranges = SMALL[name]
    (row,) = measured(suite, [suite.task(*values)])
    assert set(suite.measures) <= set(row)
    for measure, (low, high) in ranges.items():
        assert low <= row[measure] <= high, measure
    assert "|--" in suite.tables([row], None)


def test_the_selection_by_most_votes_loses_clusters(script):
    """PE-means' figure 1."""
    suite = script("pe_means_selection").SUITE
    ratios = {}
    for selection in ("top-k", "weighted k-means"):
        tasks = [suite.task(selection, 4, run) for run in range(4)]
        ratios[selection] = [row["ratio"] for row in measured(suite, tasks)]
    assert max(ratios["weighted k-means"]) < 1.1
    assert np.mean(ratios["top-k"]) > 2


def test_thesis_noise_that_is_not_private_is_smaller(script):
    module = script("thesis")
    task = ("sklearn-iris", "exclusive MNA", "laplace", module.RIGHT, "2 even", 1.0, 0)
    data = module.in_box("sklearn-iris", Options(1))
    algorithm = module.algorithm_of(data, module.Task(*task))
    sizes = []
    for noise in (module.RIGHT, module.CLAIMED):
        drawn = module.noise_of(algorithm, algorithm.plan(), 1, noise, Stream.fresh())
        sizes.append(float(abs(drawn).mean()))
    assert sizes[1] < sizes[0] / 2


def test_missing_sets_have_a_loader():
    """`bench.published` reads them, but for two whose shapes `populations` has."""
    missing = {
        name
        for paper in PAPERS.values()
        for item in paper.items
        for name in item.missing
    }
    assert missing - {"folktables", "stackoverflow"} <= published.SETS.keys()


@pytest.mark.parametrize("aggregation", ["MNA", "AMN"])
def test_the_default_choices_are_the_librarys(script, aggregation):
    module = script("thesis_choices")
    values = ("sklearn-iris", aggregation, module.PACKED, module.DEFAULT)
    task = module.Task(*values, module.CLAIMED, 4.0, 0)
    algorithm = module.algorithm_of(Options(1), task)
    state = algorithm.initial_state()
    rng = np.random.default_rng(0)
    words = rng.integers(-(2**40), 2**40, algorithm.layout(1).n_words)
    answer = reconstructed(algorithm, 1, words, 1.0, 2)
    expected = algorithm.update(state, answer)
    found = module.updated(algorithm, state, answer, task.postprocessing, 2)
    np.testing.assert_array_equal(
        found.arrays["centroids"], expected.arrays["centroids"]
    )


def test_sums_and_counts_are_treated_at_their_bounds(script):
    module = script("thesis_choices")
    task = module.Task("sklearn-iris", "MNA", module.RANDOM, "", "right", 4.0, 0)
    algorithm = module.algorithm_of(Options(1), task)
    assert algorithm.initial is not None
    one = 2**algorithm.fraction_bits
    low, high = algorithm.min_size, algorithm.max_size
    counts = np.array([low - 3, high + 5, low], dtype=np.int64) * one
    sums = np.zeros((3, 4), dtype=np.int64)
    sums[0, 0] = (high + 2) * one
    answer = Statistic({SUMS: sums, COUNTS: counts})
    for choice, expected_sum, expected_counts in (
        ("none, none, none", high + 2, [low - 3, high + 5, low]),
        ("trunc, trunc, none", high, [low, high, low]),
        ("fold, fold, none", high - 2, [low + 3, high - 5, low]),
    ):
        new_sums, new_counts = module.treated(algorithm, answer, choice)
        assert new_sums[0, 0] == expected_sum * one
        assert (new_counts // one).tolist() == expected_counts


def test_the_elbow_is_where_the_fall_ends(monkeypatch):
    module = load_script(monkeypatch, "elbow", ROOT / "simulations/feddp")
    costs = np.array([10.0, 6.0, 2.0, 1.9, 1.8, 1.75])
    assert module.elbow_of(costs) == 3
    rows = [
        {"population": "mixture", "epsilon": 1.0, "run": 0, "elbow": 3}
        | {f"cost_{k}": 1 / k for k in range(1, module.LARGEST + 1)}
    ]
    assert "| mixture | 1.0 | 3 | 3 |" in module.tables_of(rows, Options(1))
