"""The benchmark of rounds with persons prints a row for each case."""

import person_round


def test_the_table_has_a_ratio_for_each_case(capsys, monkeypatch):
    monkeypatch.setattr(person_round, "STRATEGIES", person_round.STRATEGIES[1:2])
    person_round.main(["--repeats", "1", "--persons", "200"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(person_round.CLIENTS)
    for line in lines[2:]:
        assert float(line.split("|")[6]) > 0
