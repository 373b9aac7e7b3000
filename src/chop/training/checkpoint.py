"""Checkpoints: the state of a run between two epochs, written, read and compared."""

import contextlib
import io
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, Field, NonNegativeInt

from chop.errors import CheckpointError, ConfigError
from chop.files import replacing
from chop.models.weights import OURS, read_checkpoint
from chop.runs import LAST_CHECKPOINT, latest, versions_of
from chop.training.settings import FREE_ON_RESUME, TrainingSettings
from chop.validation import parse

MISFITS = (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError)
"""Errors that a state of another kind than ours raises where it is restored."""

SAME_RECORD = ("batch_size", "fingerprint")
"""Entries of the record that must not change when a run is resumed."""

LIGHTNING_VERSION = "pytorch-lightning_version"
"""The key by which Lightning knows its checkpoints."""

History = list[dict[str, float]]


def random_state() -> dict[str, Any]:
    """The state of every generator of random numbers, as tensors and plain numbers."""
    name, keys, *rest = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    state = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Continue every generator of random numbers where `random_state` saw it."""
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    version_number, words, gauss = state["python"]
    random.setstate((version_number, tuple(words), gauss))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


versions = cache(partial(versions_of, ("machop", "torch", "lightning", "numpy")))
"""The versions of what decides the numbers."""


def plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """`record` as strings, numbers, lists and dictionaries, which load without running code."""
    values: dict[str, Any] = json.loads(json.dumps(record, default=str))
    return values


class OwnState(BaseModel):
    """The entries of a checkpoint that Lightning does not know, as far as their types go."""

    settings: dict[str, Any]
    record: dict[str, Any]
    history: list[dict[str, float]]
    random_state: dict[str, Any]
    epoch_random_state: dict[str, Any]
    steps_into_epoch: NonNegativeInt
    learned_widths: dict[str, Any] | None = None


class RunState(BaseModel):
    """A checkpoint that a run can resume from, as far as its types go."""

    epoch: NonNegativeInt
    global_step: NonNegativeInt
    state_dict: dict[str, torch.Tensor]
    optimizer_states: list[dict[str, Any]] = Field(min_length=1)
    callbacks: dict[str, dict[str, Any]]
    chop: OwnState

    model_config = {"arbitrary_types_allowed": True}


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that a run resumes from."""

    path: Path
    checkpoint: Mapping[str, Any]

    @property
    def epoch(self) -> int:
        """The epoch to continue with: the next one, or the one that a limit on steps cut short."""
        return int(self.checkpoint["epoch"]) + (0 if self.steps_into_epoch else 1)

    @property
    def steps_into_epoch(self) -> int:
        """The steps of that epoch that are done."""
        return int(self.ours["steps_into_epoch"])

    @property
    def ours(self) -> Mapping[str, Any]:
        """The entries that Lightning does not know."""
        table: Mapping[str, Any] = self.checkpoint[OURS]
        return table

    @property
    def step(self) -> int:
        """The optimiser steps that are done."""
        return int(self.checkpoint["global_step"])

    @property
    def history(self) -> History:
        """The metrics of the epochs that are done."""
        rows = self.ours["history"]
        return [dict(row) for row in rows if row["epoch"] < self.epoch]

    @contextlib.contextmanager
    def fitting(self, what: str) -> Iterator[None]:
        """Say in one line that a part of the checkpoint does not fit."""
        try:
            yield
        except MISFITS as error:
            reason = str(error).partition("\n")[0][:120]
            raise CheckpointError(f"{self.path}: its {what} does not fit ({reason})") from None


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors and plain values into one file, which is whole or not there."""
    buffer = io.BytesIO()  # torch's own writer turns a full disk into an obscure RuntimeError
    torch.save(content, buffer)
    with replacing(path) as temporary:
        temporary.write_bytes(buffer.getvalue())


def newest(folder: Path) -> Path | None:
    """The last checkpoint of the newest run in `folder` that has finished an epoch."""
    last = latest(folder / LAST_CHECKPOINT)
    return last if last.exists() else None


def read_resumed(path: Path, settings: TrainingSettings, record: Mapping[str, Any]) -> Resumed:
    """The interrupted run of a checkpoint; other settings than its own are an error."""
    resumed = read_state(path)
    _check_same(resumed, resumed.ours["settings"], settings.model_dump())
    _check_same(resumed, resumed.ours["record"], {name: record.get(name) for name in SAME_RECORD})
    return resumed


def read_state(path: Path) -> Resumed:
    """The interrupted run of a checkpoint."""
    content = read_checkpoint(path)
    _check_types(content, path)
    return Resumed(path, content)


def _check_types(content: Any, path: Path) -> None:
    reason = "it is not a dictionary"
    if isinstance(content, dict):
        try:
            parse(RunState, content, "its entries")
        except ConfigError as error:
            reason = str(error)
        else:
            return
    raise CheckpointError(f"{path}: holds no run to resume ({reason}); start from it with --load")


def _check_same(resumed: Resumed, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in now.keys() - FREE_ON_RESUME:
        if name in before and before[name] != now[name]:
            raise ConfigError(
                f"--resume: {name} is {now[name]!r}, but the run in {resumed.path} has "
                f"{before[name]!r}; give the same, or start a new run with --load"
            )
