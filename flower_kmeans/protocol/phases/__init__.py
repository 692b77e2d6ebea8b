"""The phases of a run at the server, each with its own small state.

`protocol.server.Server` puts them together, in the order of a run.
"""
