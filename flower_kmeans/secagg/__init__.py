"""Masked sums: hashes and keys, masks that telescope over a cohort, the ring of 64-bit words.

Nothing here knows of k-means or of Flower, and nothing here draws random numbers: whoever calls
passes fresh secrets in. docs/protocol.md, sections 2, 5 and 6, is the specification.
"""
