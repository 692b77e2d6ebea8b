"""The ``flower-kmeans`` command."""
