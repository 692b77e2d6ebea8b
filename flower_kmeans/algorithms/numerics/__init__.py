"""Arithmetic that gives the same integers on every processor."""
