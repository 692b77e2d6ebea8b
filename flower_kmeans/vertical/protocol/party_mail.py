"""A party's mail in a vertical run: parcels that it receives and sends."""

from collections.abc import Callable, Iterator

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.messages import Code
from flower_kmeans.protocol.run import Run
from flower_kmeans.vertical.protocol import parcels
from flower_kmeans.vertical.protocol.messages import Delivery, Sent, Turn, VerticalStep
from flower_kmeans.vertical.protocol.parcels import Planned, Seals


def named(delivery: Delivery) -> tuple[int, VerticalStep, int, int]:
    """Return the first four values of a delivery's `Planned`."""
    return delivery.sender, delivery.step, delivery.t, delivery.number


class PartyMail:
    """The mail of the party at a slot."""

    def __init__(self, run: Run, slot: int, seals: Seals) -> None:
        self._run = run
        self._slot = slot
        self._seals = seals

    def require(self, request: Turn) -> None:
        """Require exactly the parcels that others sealed for this turn."""
        wanted = [plan[:4] for plan in self._due(request)]
        found = [named(delivery) for delivery in request.deliveries]
        if found == wanted:
            return
        if set(found) < set(wanted):
            raise RefuseError(
                Code.NEED, "Expected a parcel of every other party in the turn."
            )
        raise MessageError("Expected the parcels of this turn, in order.")

    def unsealed(self, request: Turn) -> Iterator[bytes]:
        """Yield the plaintexts of a turn's parcels one at a time, because they are large."""
        for plan, delivery in zip(self._due(request), request.deliveries, strict=True):
            yield self.unseal(plan, delivery)

    def unseal(self, plan: Planned, delivery: Delivery) -> bytes:
        """Return the plaintext of one parcel."""
        with RefuseError.of_key():
            return self._seals.open(plan, delivery)

    def sent(self, request: Turn, make: Callable[[int], bytes]) -> Sent:
        """Return the requested part of an answer.

        ``make`` returns the plaintext of the parcel with a number.
        """
        planned = parcels.planned(self._run, self._slot, request.step, request.t)
        parts = parcels.in_parts(planned)
        if request.part > len(parts):
            raise MessageError(f"Expected a part up to {len(parts)}.")
        sealed = []
        for plan in parts[request.part - 1]:
            sealed.append(self._seals.seal(plan, make(plan.number)))
        return Sent(
            doc_hash=self._run.doc_hash,
            parts=len(parts),
            parcels=tuple(sealed),
        )

    def _due(self, request: Turn) -> tuple[Planned, ...]:
        return parcels.due(self._run, self._slot, request.step, request.t, request.part)
