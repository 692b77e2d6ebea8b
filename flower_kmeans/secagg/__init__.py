"""Secure sums (masks, shares and plain words), with their hashes and keys.

This package knows nothing of k-means or of Flower. Its specification is
docs/protocol.md, sections 2, 3 and 5. Importing it registers the three sums under their
names.
"""

from flower_kmeans.secagg import masks, shares

__all__ = ["masks", "shares"]
