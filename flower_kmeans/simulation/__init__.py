"""Whole federations on one machine."""

from flower_kmeans.simulation.engines import simulate

__all__ = ["simulate"]
