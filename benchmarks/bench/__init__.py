"""Suites of benchmarks: they declare what is measured; this package runs and shows them.

`bench.harness.Suite` declares. Scripts of this repository's ``benchmarks/`` find the
package beside them. docs/benchmarks.md says how to declare a suite of your own.
"""
