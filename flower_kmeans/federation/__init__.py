"""What server and clients exchange: run document, cohort, transcript, messages, and their rules.

docs/protocol.md describes the protocol. The modules here hold both sides of it; they know Flower's
records but no k-means: the algorithm's part of a run document passes through unread.
"""
