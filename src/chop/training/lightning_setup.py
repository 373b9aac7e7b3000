"""How Lightning is set up: checkpoints, processes, messages, and requeueing by SLURM."""

import contextlib
import io
import logging
import math
import os
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.utilities.exceptions import SIGTERMException

from chop.errors import TrainingError
from chop.files import replacing
from chop.logger import get_logger
from chop.models.weights import read_checkpoint
from chop.runs import BEST_CHECKPOINT, LAST_CHECKPOINT, with_suffix
from chop.training.settings import TrainingSettings

logger = get_logger("chop")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the old file and renames; reads tensors and plain values only."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        buffer = io.BytesIO()  # torch's own writer turns a full disk into an obscure RuntimeError
        torch.save(checkpoint, buffer)
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(buffer.getvalue())

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        content: dict[str, Any] = read_checkpoint(path)
        return content


class BestAndLast(Checkpoint):
    """Saves every epoch as `last`, and as `best` when the monitored loss is the lowest so far."""

    def __init__(self, folder: Path, suffix: str, monitor: str) -> None:
        self.best = with_suffix(folder / BEST_CHECKPOINT, suffix)
        self.last = with_suffix(folder / LAST_CHECKPOINT, suffix)
        self.monitor = monitor
        self.best_loss = math.inf

    @property
    def state_key(self) -> str:
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        return {"best_loss": self.best_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_loss = float(state_dict.get("best_loss", math.inf))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loss = float(trainer.callback_metrics[self.monitor])
        if loss < self.best_loss:
            self.best_loss = loss
            trainer.save_checkpoint(self.best)
        trainer.save_checkpoint(self.last)


FIRST = "CHOP_FIRST_PROCESS"
"""The variable that tells a further process the number of the one that has started it."""
UNCONNECTED = ("gloo/", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""What the errors of torch say when another process of the run is gone."""


class QuietLauncher(_SubprocessScriptLauncher):
    """Starts the further processes with the same command, their output thrown away."""

    def _call_children_scripts(self) -> None:
        os.environ[FIRST] = str(os.getpid())
        try:
            with _no_stdout():
                super()._call_children_scripts()
        finally:
            del os.environ[FIRST]  # it is for these processes and for no others


class QuietDDP(DDPStrategy):
    """Lightning's DDP, whose further processes repeat nothing that the first one says."""

    def _configure_launcher(self) -> None:
        super()._configure_launcher()
        if isinstance(self._launcher, _SubprocessScriptLauncher):
            assert self.cluster_environment is not None
            self._launcher = QuietLauncher(
                self.cluster_environment, self.num_processes, self.num_nodes
            )


def strategy_of(settings: TrainingSettings) -> Strategy | str:
    """How the processes of a run work together."""
    if settings.processes == 1:
        return "auto"
    if FIRST in os.environ:
        first = int(os.environ[FIRST])
        threading.Thread(target=_end_with, args=(first,), daemon=True).start()
    return QuietDDP(find_unused_parameters=settings.strategy.endswith("unused_parameters_true"))


def _end_with(first: int) -> None:
    """End this process once the first is gone, for which torch would wait for half an hour."""
    while os.getppid() == first:
        time.sleep(1.0)
    os._exit(1)


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Say in one line that another process of the run is gone."""
    try:
        yield
    except RuntimeError as error:
        if not any(part in str(error) for part in UNCONNECTED):
            raise
        raise TrainingError(
            "another process of this run has ended before its time; --resume continues after the "
            "last epoch that was saved"
        ) from None


@contextlib.contextmanager
def _no_stdout() -> Iterator[None]:
    """Send file descriptor 1, which new processes inherit, to nowhere."""
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(nowhere)
        os.close(kept)


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
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for pattern in SILENCED:
                warnings.filterwarnings("ignore", message=pattern)
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


@contextlib.contextmanager
def honest_interrupts() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM through as what they are: Lightning gives exit codes 1 and 0."""
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    try:
        yield
    except SIGTERMException:
        logger.warning("Terminated; what was finished is kept")
        raise SystemExit(128 + signal.SIGTERM) from None
    except SystemExit as exit_request:
        if isinstance(exit_request.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)


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
