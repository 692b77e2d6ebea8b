"""Simulations: whole federations on one machine, or on a Ray cluster."""

from flower_kmeans.simulation.engines import simulate

__all__ = ["simulate"]
