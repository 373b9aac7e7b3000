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
from chop.files import replacing
from chop.models.weights import read_checkpoint


@contextlib.contextmanager
def output_errors(what: object) -> Iterator[None]:
    """Say in one line that a file could not be written, whatever the reason."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{what}: cannot be written: {error.strerror or error}; what was there before is intact"
        ) from None


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the old file and renames; reads tensors and plain values only."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        buffer = io.BytesIO()  # torch's own writer turns a full disk into an obscure RuntimeError
        torch.save(checkpoint, buffer)
        with output_errors(path), replacing(Path(path)) as temporary:
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
        self.best_loss = state_dict.get("best_loss", math.inf)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loss = float(trainer.callback_metrics[self.monitor])
        if loss < self.best_loss:
            self.best_loss = loss
            trainer.save_checkpoint(self.best)
        trainer.save_checkpoint(self.last)


def free_suffix(folder: Path) -> str:
    """The first of nothing, ``-v1``, ``-v2``, … that no checkpoint in `folder` has."""
    suffixes = itertools.chain([""], (f"-v{version}" for version in itertools.count(1)))
    return next(
        suffix
        for suffix in suffixes
        if not any((folder / f"{name}{suffix}.ckpt").exists() for name in ("best", "last"))
    )
