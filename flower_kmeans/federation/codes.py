"""Why a client refuses: a number that travels and a sentence that does not."""

from enum import IntEnum


class Code(IntEnum):
    """Why a client refuses; each code has one fixed sentence."""

    OK = 0
    BAD_MESSAGE = 1
    VERSION = 2
    POLICY = 3
    STALE = 4
    NEED = 5
    RENEW = 6
    CONFLICT = 7
    GARBAGE = 8
    KEY = 9
    LEDGER = 10
    DATA = 11
    INTERNAL = 12

    @property
    def sentence(self) -> str:
        """The sentence that stands for the code in reports and logs."""
        return _SENTENCES[self]


_SENTENCES = {
    Code.OK: "The client answered.",
    Code.BAD_MESSAGE: "The message was malformed.",
    Code.VERSION: "The client does not speak this version of the protocol.",
    Code.POLICY: "The run is outside of what the client's policy accepts.",
    Code.STALE: "The message belongs to a round that is over.",
    Code.NEED: "The client lacks an earlier part of the run.",
    Code.RENEW: "The client has no part in the cohort yet, or its records changed.",
    Code.CONFLICT: "The message contradicts what the client already answered.",
    Code.GARBAGE: "The announced sum does not open.",
    Code.KEY: "The client has no group key, or cannot accept the one that was sent.",
    Code.LEDGER: "The client's privacy ledger does not allow another release.",
    Code.DATA: "The client's records could not be loaded or checked.",
    Code.INTERNAL: "The client failed; its own log says why.",
}
