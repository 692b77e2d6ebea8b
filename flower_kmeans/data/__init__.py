"""Public bounds, and records from wherever they are kept."""
