"""Numerical code of the algorithms.

Code that clients replay gives the same integers on every processor. Each module says so.
"""
