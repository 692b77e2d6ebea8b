"""The version of the library, for people, packages and commitments."""

__version__ = "0.2.0"
