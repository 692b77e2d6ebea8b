"""The federation protocol ``flower-kmeans/3`` (docs/protocol.md)."""
