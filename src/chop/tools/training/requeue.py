"""Runs that SLURM stops and starts again."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import FrameType

from chop.tools.logger import get_logger

logger = get_logger("chop")


def requeued(wanted: bool) -> bool:
    """Whether this is a run that SLURM has started again."""
    return wanted and int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0


@contextlib.contextmanager
def requeueing(wanted: bool) -> Iterator[None]:
    """Ask SLURM to start the job again when it announces the end of its time with SIGUSR1."""
    job = os.environ.get("SLURM_JOB_ID")
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    if job is None:
        logger.warning("--auto-requeue has no effect: this is not a SLURM job")
        yield
        return

    def requeue(number: int, frame: FrameType | None) -> None:
        logger.info("Asking SLURM to requeue job %s", job)
        subprocess.run(["scontrol", "requeue", job], check=False)

    before = signal.signal(signal.SIGUSR1, requeue)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
