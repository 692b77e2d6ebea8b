"""Secure sums: masks, shares, plain words; the hashes and keys that they are made with.

Nothing here knows of k-means or of Flower. docs/protocol.md, sections 2, 3 and 5, is
the specification. Importing this package registers the three sums under their names.
"""

from flower_kmeans.secagg import masks, shares

__all__ = ["masks", "shares"]
