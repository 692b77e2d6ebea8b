"""The script on weights after a run: its tables, and its smallest run."""

import numpy as np
import pytest
from scripts import load_script


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "column_weights")


@pytest.mark.parametrize("seed", [0, 5])
def test_groups_are_in_the_columns_that_carry_them(script, seed):
    for carrier in script.CARRIERS:
        table = script.generate(carrier, seed)
        assert len(table.records) == len(table.groups)
        assert 3_000 <= len(table.records) <= 20_000
        places = table.domain.factors()
        for factor in places:
            own = table.records[:, factor.start : factor.stop]
            means = np.array(
                [own[table.groups == j].mean(axis=0) for j in range(table.n_groups)]
            )
            differs = np.ptp(means / own.std(axis=0).clip(1e-9), axis=0).max() > 0.3
            is_first = factor.name.endswith(" 0")
            if is_first:
                carries = (
                    carrier in ("both", "categories")
                    if factor.is_category
                    else (carrier in ("both", "numbers"))
                )
                assert differs == carries


def test_it_prints_a_row_for_each_weight_and_carrier(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "WEIGHTS", (0.2,))
    small = script.generate
    monkeypatch.setattr(
        script,
        "generate",
        lambda carrier, seed: small(carrier, seed)._replace(
            records=small(carrier, seed).records[:600],
            groups=small(carrier, seed).groups[:600],
        ),
    )
    script.main(["--tables", "1"])
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == 6
    assert [row.split("|")[1].strip() for row in rows] == list(script.CARRIERS)
    for row in rows:
        assert all(-0.5 <= float(cell) <= 1 for cell in row.split("|")[3:6])
