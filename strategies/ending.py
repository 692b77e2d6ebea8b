"""End of a failed run in Flower's log: one sentence without a traceback."""

import logging

from flower_kmeans.errors import RunError


class _OneSentence(logging.Filter):
    """Filter that replaces the traceback of an error that ended a run by the error's text."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return true, after shortening the record of an error that ended a run."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, RunError) and error.ended_run:
            record.msg = f"{record.getMessage()}: {error}"
            record.args = ()
            record.exc_info = record.exc_text = None
        return True


_FILTER = _OneSentence()


def end_in_one_sentence(error: RunError) -> None:
    """Let Flower log this error by its text.

    Flower's ServerApp and its simulation log the error that ends them with a traceback.
    If clients ended the run, the traceback shows only this library's lines, and hides the
    sentence that says why.
    """
    error.ended_run = True
    logging.getLogger("flwr").addFilter(_FILTER)  # logging keeps equal filters once
