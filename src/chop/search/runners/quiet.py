"""Training inside a trial, without its own reports."""

import contextlib
import io
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Only warnings are shown; the progress of a training would drown that of the search."""
    logger = logging.getLogger("chop")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
