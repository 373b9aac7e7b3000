"""Logging: a coloured level on a terminal, plain text in a pipe, one line a message.

Lines are never wrapped or padded, so that paths and tables can be copied whole.
"""

import contextlib
import copy
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

from chop.masking import mask_passwords, printable

root_logger = logging.getLogger("chop")
LEVELS = ("debug", "info", "warning", "error", "critical")
RESULT = {"result": True}
"""``logger.info(..., extra=RESULT)`` marks what a run was made for: ``--quiet`` leaves it."""


COLOURS = {"DEBUG": 90, "INFO": 34, "WARNING": 33, "ERROR": 31, "CRITICAL": 31}


PLACE = re.compile(r"%(?:%|[-#0 +]*\d*(?:\.\d+)?(?P<kind>[a-zA-Z]))")
LINE_ENDS = "\n\t"


class Masked(logging.Formatter):
    """The message without passwords of URLs, and without what a terminal would obey.

    A value is one line, as a name in it may come from a file; one for which the message has a line
    of its own is a table and keeps its lines.
    """

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        if isinstance(record.args, tuple):
            places = [place for place in PLACE.finditer(str(record.msg)) if place["kind"]]
            shown.args = tuple(
                single_line(value, place) if place["kind"] == "s" else value
                for value, place in zip(record.args, places, strict=False)
            )
        return printable(mask_passwords(super().format(shown)), keep=LINE_ENDS)


def single_line(value: object, place: re.Match[str]) -> object:
    """A value of a message as text, in one line unless the message has a line for it alone."""
    before, after = place.string[: place.start()], place.string[place.end() :]
    is_block = before[-1:] in ("", "\n") and after[:1] in ("", "\n")
    return value if is_block else printable(str(value))


class Lines(Masked):
    """The level, in colour where the line goes to a terminal, then the message."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        level = f"{record.levelname:<8}"
        if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
            level = f"\033[{COLOURS.get(record.levelname, 0)}m{level}\033[0m"
        return f"{level} {text}"


class ToReader(logging.StreamHandler[TextIO]):
    """Lets the program hear that nobody reads any more, as when its output goes to ``head``."""

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            raise  # called where that error is handled
        super().handleError(record)


class CurrentStdout(ToReader):
    """Writes to whatever `sys.stdout` is now, as notebooks and tests replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(Lines())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # a property on purpose
        return sys.stdout


def get_logger(name: str) -> logging.Logger:
    """The logger of a part of chop, or of a user's own code."""
    _attach()
    return logging.getLogger(name)


def set_logging_verbosity(level: str = "info") -> None:
    """Show messages from `level` on."""
    if level.lower() not in LEVELS:
        from chop.errors import UnknownNameError

        raise UnknownNameError("logging level", level, LEVELS)
    _attach()
    root_logger.setLevel(level.upper())
    root_logger.info("Set logging level to %s", level)


@contextlib.contextmanager
def only_results(wanted: bool = True) -> Iterator[None]:
    """Show only errors and results, as plain text; nothing else reaches standard output."""
    if not wanted:
        yield
        return
    handlers, level = root_logger.handlers, root_logger.level
    shown = ToReader(sys.stdout)
    shown.setFormatter(Masked())
    shown.addFilter(lambda record: record.levelno >= logging.ERROR or hasattr(record, "result"))
    root_logger.handlers, root_logger.propagate = [shown], False
    root_logger.setLevel(logging.INFO)
    try:
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        root_logger.handlers = handlers
        root_logger.setLevel(level)


@contextlib.contextmanager
def quietly(wanted: bool = True) -> Iterator[None]:
    """Show only warnings, unless another level than the usual one was set."""
    level = root_logger.level
    if wanted and level == logging.INFO:
        root_logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root_logger.setLevel(level)


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """Show only warnings, and nothing that is printed: it would drown the progress of a search."""
    logger = logging.getLogger("chop")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def _attach() -> None:
    """Give chop's loggers their handler, once."""
    if root_logger.handlers:
        return
    root_logger.addHandler(CurrentStdout())
    root_logger.setLevel(logging.INFO)
    root_logger.propagate = False
    # It complains of a home directory that cannot be written, and works all the same.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
