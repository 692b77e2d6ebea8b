"""Computing on encrypted columns: CKKS keys, signs, and one k-means iteration.

These modules use neither Flower nor messages, except in ``protocol`` and the parts for
reports, checks and simulations. Only `engine` imports TenSEAL, which the computing party
needs. Key holders need NumPy and ``cryptography``.
"""
