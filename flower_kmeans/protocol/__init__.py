"""The federation protocol ``flower-kmeans/2`` (docs/protocol.md)."""
