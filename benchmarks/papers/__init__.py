"""Every table, figure, theorem and algorithm of five papers, with the command that makes it.

``python -m benchmarks.papers`` lists them. ``items.toml`` has the items.
"""
