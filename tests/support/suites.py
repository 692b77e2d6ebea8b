"""What tests of the suites in benchmarks/ share."""

from bench.harness import Options


def measured(suite, tasks):
    """Return a row for each task."""
    return [{**vars(task), **suite.measure(task, Options(1))} for task in tasks]


def cells(table):
    """Return the cells of a markdown table, without its head."""
    return [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.splitlines()[2:]
    ]
