"""Columns as people have them, in a domain.toml."""

DECLARED = """
[[columns]]
kind = "number"
name = "income"
lower = 1000
upper = 1000000
scale = "log"

[[columns]]
kind = "category"
name = "ward"
values = ["surgery", "medicine", "other"]
missing = "other"

[[columns]]
kind = "date"
name = "admitted"
lower = 2020-01-01
upper = 2024-12-31
"""
