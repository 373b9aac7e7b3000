"""Checkpoints that are whole or absent: the best epoch and the last one."""

import contextlib
import io
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from chop.errors import OutputError
from chop.files import held, replacing
from chop.models.weights import read_checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the old file and renames; reads tensors and plain values only."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        buffer = io.BytesIO()  # torch's own writer turns a full disk into an obscure RuntimeError
        torch.save(checkpoint, buffer)
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(buffer.getbuffer())

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        content: dict[str, Any] = read_checkpoint(path)
        return content


class BestAndLast(Checkpoint):
    """Saves every epoch as `last`, and as `best` when the monitored loss is the lowest so far."""

    def __init__(self, folder: Path, suffix: str, monitor: str) -> None:
        self.best = folder / f"best{suffix}.ckpt"
        self.last = folder / f"last{suffix}.ckpt"
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


@contextlib.contextmanager
def own_suffix(folder: Path, last: Path | None, resume: bool) -> Iterator[str]:
    """What the names of a run end in: nothing, ``-v1``, ``-v2``, …, and no other run has the same.

    A run that is at work holds its names by a lock, as it may have written nothing yet. One that
    was killed between its first best and its first last checkpoint has none that can go on; when
    it is resumed, its names are used again.

    Args:
        last: the checkpoint that a run goes on from.
        resume: whether a run is to go on, although it may have left no such checkpoint.
    """
    if resume:
        with _held(folder, last.stem.removeprefix("last") if last else "") as suffix:
            if suffix is None:
                raise OutputError(
                    f"--resume: another run is at work in {folder}; wait for its end, or leave out "
                    "--resume to start a new one"
                )
            yield suffix
        return
    for ending in itertools.chain([""], (f"-v{version}" for version in itertools.count(1))):
        with _held(folder, ending) as suffix:
            names = (f"{name}{ending}.ckpt" for name in ("best", "last"))
            if suffix is not None and not any((folder / name).exists() for name in names):
                yield suffix
                return


@contextlib.contextmanager
def _held(folder: Path, suffix: str) -> Iterator[str | None]:
    """The suffix, if this process has it for itself."""
    with held(folder / f".run{suffix}.lock") as is_ours:
        yield suffix if is_ours else None
