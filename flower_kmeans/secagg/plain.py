"""No protection: the server, which is trusted, sees every vector."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.secagg.base import (
    Integers,
    Opened,
    SecureSum,
    SumContext,
    opened_words,
    register_secure_sum,
)


@register_secure_sum
class PlainSum(SecureSum):
    """Words travel as they are."""

    name: ClassVar[str] = "plain"
    is_protected: ClassVar[bool] = False

    def protect(
        self, vector: Integers, context: SumContext, slot: int, secret: bytes
    ) -> tuple[bytes, ...]:
        """Return the vector's bytes."""
        return (self.encode(vector),)

    def open(
        self, combined: Mapping[int, bytes], survivors: NDArray[np.bool_], context: SumContext
    ) -> Opened:
        """Return the words of the sum."""
        return Opened(opened_words(combined, context).view(np.int64))
