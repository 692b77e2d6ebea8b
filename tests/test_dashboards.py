"""The recipe for a dashboard, as the page has it: TensorBoard's file holds the public metrics."""

import struct

import numpy as np
import pytest
from pages import ROOT, blocks
from tensorboardX.proto.event_pb2 import Event

from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.strategies import SynopsisKMeans

pytestmark = pytest.mark.claim("threat-model", "metrics-each-round-what")

PARTS = [np.random.default_rng(i).uniform(0, 10, (180, 4)) for i in range(10)]


def events(path):
    """Yield what TensorBoard reads: a length and its checksum, the event and its checksum."""
    data, place = path.read_bytes(), 0
    while place < len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        event = Event()
        event.ParseFromString(data[place + 12 : place + 12 + size])
        yield event
        place += size + 16


def test_tensorboard_shows_the_public_metrics_of_every_round(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = (
        each
        for each in blocks(ROOT / "docs" / "existing-app.md")
        if each.language == "python" and "SummaryWriter" in each.text
    )
    names = {
        "Box": Box,
        "PrivacyBudget": PrivacyBudget,
        "SynopsisKMeans": SynopsisKMeans,
        "np": np,
    }
    names |= {"simulate": simulate, "quarters": np.vstack(PARTS)}
    exec(block.text, names)  # noqa: S102
    (path,) = (tmp_path / "runs" / "clusters").iterdir()
    shown = {}
    for event in events(path):
        for value in event.summary.value:
            shown.setdefault(value.tag, {})[event.step] = value.simple_value
    rounds = range(1, names["clustering"].n_rounds + 1)
    assert shown["round"] == {t: t for t in rounds}
    assert shown["answers"] == shown["clients"] == dict.fromkeys(rounds, 10)
    epsilon = [shown["epsilon"][t] for t in rounds]
    assert epsilon == sorted(epsilon)
    np.testing.assert_allclose(
        epsilon[-1], names["clustering"].report.epsilon, rtol=1e-6
    )
    assert shown.keys() == {"round", "answers", "clients", "epsilon"}
