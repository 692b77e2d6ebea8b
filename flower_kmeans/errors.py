"""The errors that this library raises on purpose.

A message names the parameter, the expected value and the given value. No message is
built from records.
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
    """A caller asked a blind server for something that it must never see."""


class RunError(KMeansError, RuntimeError):
    """A federated run could not be completed."""

    # Whether the error ended a run that was under way.
    ended_run = False


class TooFewClientsError(RunError):
    """Fewer clients answered than the run needs."""


class MessageError(KMeansError, ValueError):
    """A received message is malformed. The error's text quotes nothing of the message."""


class LedgerError(KMeansError, RuntimeError):
    """A ledger cannot be read or written, or others can access it."""
