"""The errors that this library raises on purpose.

Every message names the parameter, what was expected and what came. None is built from
records.
"""


class KMeansError(Exception):
    """Base class of all errors that the library raises on purpose."""


class ConfigurationError(KMeansError, ValueError):
    """A parameter is out of range, or parameters contradict each other."""


class ConfigurationTypeError(KMeansError, TypeError):
    """A parameter has the wrong type."""


class DataError(KMeansError, ValueError):
    """Records cannot be used: wrong shape, wrong type, or not finite."""


class BudgetError(ConfigurationError):
    """A privacy budget would be exceeded, or cannot be met."""


class ObliviousServerError(ConfigurationError):
    """Something was requested from the server that it must never learn."""


class RunError(KMeansError, RuntimeError):
    """A federated run could not be completed."""

    ended_run = False  # whether a run that was under way ended by it


class TooFewClientsError(RunError):
    """Fewer clients answered than the run needs."""


class MessageError(KMeansError, ValueError):
    """A received message is malformed. The error's text holds nothing of the message."""


class LedgerError(KMeansError, RuntimeError):
    """A ledger cannot be read or written, or others could read it."""
