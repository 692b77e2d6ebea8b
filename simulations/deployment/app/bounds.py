"""Public bounds as text: node and run configurations hold no lists."""

from flower_kmeans import Box


def read_box(text: str) -> Box:
    """Return the Box of ``LOW:HIGH,...`` or of ``NAME=LOW:HIGH,...``, one for every column."""
    named = [column.rpartition("=") for column in text.split(",")]
    pairs = [pair.split(":") for _, _, pair in named]
    columns = [name for name, _, _ in named] if "=" in text else None
    return Box(
        [float(low) for low, _ in pairs], [float(high) for _, high in pairs], columns=columns
    )
