"""Runs suites of benchmarks, and shows their results.

A suite declares its measurements with `bench.harness.Suite`. Scripts of this
repository's ``benchmarks/`` find this package beside them. docs/benchmarks.md describes
how to declare a suite.
"""
