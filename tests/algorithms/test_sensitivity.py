"""The noise scale of each word: an algorithm's own number, but for second moments."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from flower_kmeans.algorithms import GLloydAlgorithm
from flower_kmeans.algorithms.layout import Block, Layout
from flower_kmeans.algorithms.numerics.projection import moment_units
from flower_kmeans.algorithms.sensitivity import record_sensitivities
from flower_kmeans.data.domain import Box
from flower_kmeans.privacy.budget import PrivacyBudget

BOX = Box([0.0, 0.0], [1.0, 1.0])
SUM = Block("sums", (2,), 16)


@dataclass(frozen=True)
class OneRound(GLloydAlgorithm):
    """An algorithm whose rounds have given blocks, of sensitivity 5 and 7."""

    BLOCKS = ()

    def layout(self, round_number: int) -> Layout:
        return Layout(self.BLOCKS)

    def block_sensitivities(self, round_number: int) -> Mapping[str, float]:
        return {"moments": 5.0, "sums": 7.0}


def sensitivities_of(monkeypatch, *blocks):
    monkeypatch.setattr(OneRound, "BLOCKS", blocks)
    algorithm = OneRound(2, BOX, PrivacyBudget(None), n_rounds=1)
    return record_sensitivities(algorithm, 1).tolist()


def test_a_block_has_the_number_that_its_algorithm_states(monkeypatch):
    named_alike = Block("moments", (3,), 16)
    assert sensitivities_of(monkeypatch, named_alike, SUM) == [5.0] * 3 + [7.0] * 2


def test_second_moments_have_a_number_for_each_word(monkeypatch):
    moments = Block("moments", (3,), 16, are_moments=True)
    units = moment_units(BOX, 16)
    assert len(np.unique(units)) > 1
    assert sensitivities_of(monkeypatch, moments, SUM) == [*units, 7.0, 7.0]


def test_second_moments_of_another_size_are_refused(monkeypatch):
    moments = Block("moments", (2,), 16, are_moments=True)
    with pytest.raises(ValueError, match=r"'moments' with 3 words\. Got 2 instead"):
        sensitivities_of(monkeypatch, moments, SUM)
