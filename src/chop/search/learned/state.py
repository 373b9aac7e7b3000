"""What a run keeps on disk to resume with the same numbers: tensors and JSON, nothing pickled."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import ChopError, SearchError
from chop.files import read_safetensors, write_safetensors
from chop.training.checkpoint import MISFITS

PLAIN = "plain"
"""The name under which a file has its JSON, as bytes."""
TENSOR = "tensor"
"""The only key of a table that stands for a tensor."""


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested tables and lists of tensors and plain values into one file."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_plain(state, tensors))
    held = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    write_safetensors(path, {PLAIN: held, **tensors})


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    """`value` without its tensors, which are added to `tensors`."""
    if isinstance(value, Tensor):
        name = f"{len(tensors)}"
        tensors[name] = value.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        return {TENSOR: name}
    if isinstance(value, Mapping):
        return {str(key): _plain(each, tensors) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, tensors) for each in value]
    return value


def read_state(path: Path) -> dict[str, Any] | None:
    """What `write_state` has written; None if there is no such file."""
    if not path.exists():
        return None
    with fitting(path):
        tensors = read_safetensors(path)
        text = tensors.pop(PLAIN).numpy().tobytes()
        found = _with_tensors(json.loads(text), tensors)
        if not isinstance(found, dict):
            raise ValueError("no table")
        return found


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    return [_with_tensors(each, tensors) for each in value] if isinstance(value, list) else value


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Say in one line that a file does not hold what is put back from it."""
    try:
        yield
    except (*MISFITS, OSError, ChopError) as error:
        reason = str(error).partition("\n")[0][:120]
        raise SearchError(
            f"{path}: cannot be resumed from ({reason}); start a new study without --resume"
        ) from None


def optimiser_state(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The state of an optimiser as torch takes it: its keys are numbers, which JSON has not."""
    return {**saved, "state": {int(key): each for key, each in saved["state"].items()}}
