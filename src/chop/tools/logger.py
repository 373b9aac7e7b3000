"""Logging: rich on a terminal, plain text in a pipe, one line a message."""

import logging
import os
import sys
from typing import Any, TextIO

root_logger = logging.getLogger("chop")
LEVELS = ("debug", "info", "warning", "error", "critical")


class CurrentStdout(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stdout` is now, as notebooks and tests replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(levelname)-8s %(message)s"))

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


def _attach() -> None:
    """Give chop's loggers their handler, once."""
    if root_logger.handlers:
        return
    root_logger.addHandler(_terminal_handler() if _on_terminal() else CurrentStdout())
    root_logger.setLevel(logging.INFO)
    root_logger.propagate = False


def _on_terminal() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _terminal_handler() -> logging.Handler:
    from rich.logging import RichHandler

    options: dict[str, Any] = {"show_time": False, "show_path": False}
    return RichHandler(**options)
