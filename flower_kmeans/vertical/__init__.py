"""Computing on encrypted columns: CKKS keys, signs, and one k-means iteration.

Nothing here knows Flower or messages. `engine` alone imports TenSEAL, which the
computing party needs; key holders need NumPy and ``cryptography``.
"""
