"""The phases of a run at the server, each with a small state.

`protocol.server.Server` composes them in the order of a run.
"""
