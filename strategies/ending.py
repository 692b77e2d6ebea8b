"""How a run that failed ends in Flower's log: by its sentence, without a traceback."""

import logging

from flower_kmeans.errors import RunError


class _OneSentence(logging.Filter):
    """Puts the text of an error in the place of its traceback, if a run ended by it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, RunError) and error.ended_run:
            record.msg = f"{record.getMessage()}: {error}"
            record.args = ()
            record.exc_info = record.exc_text = None
        return True


_FILTER = _OneSentence()


def end_in_one_sentence(error: RunError) -> None:
    """Let Flower log this error by its text.

    Flower's ServerApp and its simulation log what ends them with a traceback. Of a run
    that clients ended it would show this library's lines alone, and hide the sentence
    that says why.
    """
    error.ended_run = True
    logging.getLogger("flwr").addFilter(_FILTER)  # once, however often
