"""A database that stops answering: how long a search waits for it, and what it says then.

A server that is restarted, fails over to another machine or is out of reach for a moment breaks
every connection. Whatever a search asks of its storage can be asked again: reading changes
nothing, a value that is set twice is the same, a trial that has ended says so, and of two claims
of one process on the same configuration the second is void (`Store.claim`).
"""

import contextlib
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from optuna.storages import BaseStorage

from chop.errors import SearchError
from chop.logger import get_logger
from chop.masking import masked_url, without_secrets
from chop.search.study.workers import at_any_moment

logger = get_logger("chop")

LONGEST_OUTAGE = 60.0
"""Seconds that a storage may be away; less than `workers.SILENCE`, so that nobody seems dead."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a storage is asked again: the first time, and at most; each is twice the last."""
AWAY = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN")
"""What gRPC says of a proxy that is away, or whose own database is."""

REFUSED = (
    "authentication failed", "no password supplied", "pg_hba.conf", "does not exist",
    "permission denied", "unable to open database file", "resolve host", "translate host name",
    "Access denied", "Unknown database", "readonly database", "disk I/O error", "not a database",
    "lock timeout",
)  # fmt: skip
"""What drivers say where it is of no use to ask again."""

Answer = TypeVar("Answer")


class StorageLost(SearchError):
    """A storage that has not answered for `LONGEST_OUTAGE`."""


class Patience:
    """Asks a storage again until it answers or the time is up.

    Only the thread that has opened the storage waits: others give signs of life, which are given
    again anyway.

    Args:
        is_away: whether an error says that the storage is away.
    """

    def __init__(self, url: str, is_away: Callable[[BaseException], bool] | None = None) -> None:
        self.url = url
        self._is_away = is_away or is_outage
        self._thread = threading.get_ident()
        self._is_lost = False

    def __call__(self, ask: Callable[[], Answer]) -> Answer:
        """The answer of a storage."""
        started = time.monotonic()
        pause = FIRST_PAUSE
        while True:
            try:
                answer = ask()
            except Exception as error:
                if not self._is_away(error) or threading.get_ident() != self._thread:
                    raise
                self._is_lost |= time.monotonic() + pause - started > LONGEST_OUTAGE
                if self._is_lost:
                    raise StorageLost(self._words(error)) from None
            else:
                if pause > FIRST_PAUSE:
                    _tell("The storage answers again")
                return answer
            if pause == FIRST_PAUSE:
                _tell("%s does not answer; it is asked again for %g s", self, LONGEST_OUTAGE)
            is_main = threading.current_thread() is threading.main_thread()  # Ctrl-C comes to it
            with at_any_moment() if is_main else contextlib.nullcontext():
                time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def __str__(self) -> str:
        return f"Storage {masked_url(self.url)}"

    def _words(self, error: BaseException) -> str:
        reason = without_secrets((_outage(error) or "").strip().partition("\n")[0], self.url)
        return (
            f"storage {masked_url(self.url)}: has not answered for {LONGEST_OUTAGE:g} s "
            f"({reason}); what was finished is kept: when it answers again, go on with --resume"
        )


def make_patient(storage: BaseStorage, patience: Patience) -> BaseStorage:
    """`storage`, each of whose public methods asks again while it is away."""
    for name in vars(BaseStorage):
        if not name.startswith("_"):
            setattr(storage, name, _patient(getattr(storage, name), patience))
    return storage


def _patient(method: Callable[..., Answer], patience: Patience) -> Callable[..., Answer]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Answer:
        return patience(lambda: method(*args, **kwargs))

    return call


def is_outage(error: BaseException) -> bool:
    """Return whether an error says that a storage is away."""
    return _outage(error) is not None


def may_be_opened(error: BaseException) -> bool:
    """Return whether a database that could not be opened may open soon: nothing was refused."""
    reason = _outage(error)
    return reason is not None and not any(words in reason for words in REFUSED)


def _outage(error: BaseException | None) -> str | None:
    """Return the message of a driver about a storage that is away, without its wrappers."""
    from sqlalchemy.exc import InterfaceError, OperationalError, PendingRollbackError

    grpc: Any = sys.modules.get("grpc")
    while error is not None:
        if isinstance(error, OperationalError | InterfaceError):
            return str(error.orig)
        if isinstance(error, PendingRollbackError):
            return "the connection was lost"
        if grpc and isinstance(error, grpc.RpcError) and error.code().name in AWAY:
            return str(error.details())
        error = error.__cause__ or error.__context__
    return None


def _tell(message: str, *values: object) -> None:
    """Say something once, although all processes of a search learn of it."""
    if multiprocessing.parent_process() is None:
        logger.warning(message, *values)
