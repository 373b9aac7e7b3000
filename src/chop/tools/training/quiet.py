"""Lightning without the remarks that a user of chop can do nothing about."""

import contextlib
import logging
import signal
import threading
import warnings
from collections.abc import Iterator

from lightning.pytorch.utilities.exceptions import SIGTERMException

from chop.tools.logger import get_logger

log = get_logger("chop")

SILENCED = (
    # No loader of ours has workers to add: rows in memory are cut as slices.
    r"The '\w+_dataloader' does not have many workers",
    # An item of our loaders is an epoch; the steps inside it are logged by us.
    r"The number of training batches \(1\) is smaller than the logging interval",
    # Data without validation rows is trained on as well.
    r"You defined a `validation_step` but have no `val_dataloader`",
    # Lightning's own use of a part of torch that is about to change.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    # The barrier at the end of a run with several processes.
    r"No device id is provided via `init_process_group` or `barrier",
)


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide Lightning's information and the warnings named above."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for pattern in SILENCED:
                warnings.filterwarnings("ignore", message=pattern)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def honest_interrupts() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM through as what they are: Lightning gives exit codes 1 and 0."""
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    try:
        yield
    except SIGTERMException:
        log.warning("Terminated; what was finished is kept")
        raise SystemExit(128 + signal.SIGTERM) from None
    except SystemExit as exit_request:
        if isinstance(exit_request.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)
