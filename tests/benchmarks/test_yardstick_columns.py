"""Tables beside their yardsticks follow from the published means, and are the pages'."""

import re

import numpy as np
import pytest
from scripts import load_script

from bench.harness import Options
from bench.yardsticks import yardsticks

PAGE = """# A page

## Main

```bash
# a comment, no heading
```

| data | KMeans | `FastLloyd` | printed: PE |
|---|--:|--:|--:|
| iris | 2 ± 0 (20) | **3.5 ± 0.1** (20) | 9 |

<!-- yardsticks: areas -->
| old | table |
|---|---|

### Below

| data | method | eps 0.25 | eps 1 |
|---|---|--:|--:|
| iris | FastLloyd | 1.25 ± 0.1 | |
"""


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "yardstick_columns")


def pages_of(script):
    return {name: (script.DOCS / name).read_text("utf-8") for name in script.PAGES}


def test_the_tables_of_the_pages_follow_from_their_means_and_yardsticks(script):
    pages = pages_of(script)
    assert script.refreshed(pages) == pages
    named = re.findall(r"yardsticks: (.+) -->", "".join(pages.values()))
    assert sorted(named) == sorted([*script.GROUPS, *script.MADE])


def test_a_changed_mean_changes_what_follows_from_it(script):
    pages = pages_of(script)
    (line,) = re.findall(r"^\| adult \| 1\.0.*", pages[script.LOSSES], re.MULTILINE)
    changed = dict(pages)
    changed[script.LOSSES] = re.sub(
        r"(\| PEMeans \| 0\.0056.*\| )1\.009", r"\g<1>2.000", pages[script.LOSSES]
    )
    found = script.refreshed(changed)[script.LOSSES]
    assert line not in found
    assert "| adult | 2.000; " in found


def test_tables_of_a_section_are_read_without_those_of_the_script(script):
    (main,) = script.tables_under(PAGE, "Main")
    assert main.head == ["data", "KMeans", "FastLloyd", "printed: PE"]
    entries = script.by_method(main, (1.0, 3.0))
    assert [entry.column for entry in entries] == ["KMeans", "FastLloyd"]
    assert [script.number_of(entry.text) for entry in entries] == [2.0, 3.5]
    (below,) = script.tables_under(PAGE, "Below")
    first, second = script.by_epsilon(below, (0.25, 1.0))
    assert (first.column, first.epsilons) == ("FastLloyd, eps 0.25", (0.25,))
    assert script.number_of(second.text) is None
    with pytest.raises(ValueError, match="a section 'Above'"):
        script.tables_under(PAGE, "Above")
    assert "| old | table |" not in script.written(PAGE, {"areas": "| new |\n|---|"})


@pytest.mark.parametrize(
    ("kind", "text", "cell"),
    [
        ("area", "6.0 ± 1 (20)", "1.50 (1.00); 0.250"),
        ("cost", "4", "2.00 (1.33); 0.500"),
        ("ratio", "2.0 ± 0.1", "2.0 (1.3); 0.500"),
        ("ratio", "", ""),
    ],
)
def test_means_stand_beside_their_yardsticks(script, kind, text, cell):
    scale = script.Scale(script.Yardsticks(2.0, 6.0), {1.0: 2.0, 3.0: 4.0})
    entry = script.Entry("iris", ("iris",), "FastLloyd", (1.0, 3.0), text)
    made = script.Made(script.LOSSES, (), "unit ball", kind)
    assert script.cell_of(entry, script.Base(scale, 1.5), made) == cell
    if kind == "ratio" and text:
        of_runs = made._replace(of_runs=True)
        shown = script.cell_of(entry, script.Base(scale, 1.5), of_runs)
        assert shown == "3.0 (2.0); 1.000"


def test_yardsticks_are_read_as_they_are_written(script, tmp_path):
    rng = np.random.default_rng(0)
    records = np.repeat([[4.0], [-5.0], [0.0]], 30, axis=0) + rng.normal(size=(90, 1))
    np.savez(tmp_path / "iris.npz", X=records)
    group = script.GROUPS["unit ball"]._replace(names=("iris",))
    options = Options(1, data_dir=tmp_path)
    found = script.bases_of(script.table_of(script.computed(group, options)))
    scale, of_ratios = found["iris"]
    data = script.in_ball("iris", options)
    assert scale.yardsticks == pytest.approx(yardsticks(data.records, 3), rel=1e-4)
    assert set(scale.floors) == set(group.epsilons)
    assert min(scale.floors.values()) >= scale.yardsticks.kmeans
    assert of_ratios == pytest.approx(1, abs=1e-3)
