"""Benchmarks: suites that declare what is measured, and what runs them and shows the results.

`flower_kmeans.bench.harness.Suite` declares; ``flower-kmeans bench`` runs.
docs/benchmarks.md says how to declare one of your own.
"""
