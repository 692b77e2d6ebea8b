"""Public bounds as text: node and run configurations hold no lists."""

from flower_kmeans import Box


def read_box(text: str) -> Box:
    """Return the Box of ``LOW:HIGH,LOW:HIGH,...``, one pair for every column."""
    pairs = [pair.split(":") for pair in text.split(",")]
    return Box([float(low) for low, _ in pairs], [float(high) for _, high in pairs])
