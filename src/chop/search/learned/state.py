"""Files of a search that learns widths: its checkpoints, those of an earlier format included."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.errors import ChopError, SearchError
from chop.files import read_safetensors
from chop.models.weights import OURS, read_checkpoint
from chop.training.checkpoint import MISFITS, Resumed, random_state, read_state
from chop.training.loop import Loop
from chop.training.parts import WidthTraining

EARLIER = ".safetensors"
"""The suffix of the files in the earlier format: tensors, and JSON in place of the rest."""
PLAIN = "plain"
"""The name under which such a file has its JSON, as bytes."""
TENSOR = "tensor"
"""The only key of a table that stands for a tensor."""


class LearningFiles:
    """The files of a run that learns widths, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, folder / ".lock"
        self.teacher, self.network, self.last = (
            folder / f"{name}.ckpt" for name in ("teacher", "float", "last")
        )

    def snapshot(self, epoch: int) -> Path:
        """The file of the weights and widths after an epoch."""
        return self.folder / f"snapshot_{epoch}.ckpt"


def empty_facts() -> dict[str, Any]:
    """The entries of a checkpoint of which such a run has nothing to say."""
    return {"settings": {}, "record": {}, "history": []}


def resume(loop: Loop, path: Path) -> list[dict[str, Any]]:
    """Continue where a loop has saved its last epoch, if it has; return what is known of epochs."""
    with fitting(path):
        if path.exists():
            resumed = read_state(path)
        elif path.with_suffix(EARLIER).exists():
            resumed = _converted(path.with_suffix(EARLIER))
        else:
            return []
        loop.restore(resumed)
        return list(resumed.ours["history"])


def read_snapshot(path: Path) -> dict[str, Tensor] | None:
    """The weights and widths in the file of a snapshot; None if there is no such file."""
    with fitting(path):
        if path.exists():
            state: dict[str, Tensor] = read_checkpoint(path)
            return state
        earlier = path.with_suffix(EARLIER)
        return _read_earlier(earlier) if earlier.exists() else None


def remove_snapshot(path: Path) -> None:
    """Remove the file of a snapshot."""
    for each in (path, path.with_suffix(EARLIER)):
        each.unlink(missing_ok=True)


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Say in one line that a file does not hold what is restored from it."""
    try:
        yield
    except (*MISFITS, OSError, ChopError) as error:
        reason = str(error).partition("\n")[0][:120]
        raise SearchError(
            f"{path}: cannot be resumed from ({reason}); start a new study without --resume"
        ) from None


def _converted(path: Path) -> Resumed:
    """A file of the earlier format as a checkpoint."""
    state = _read_earlier(path)
    optimiser = state["optimiser"]
    optimiser["state"] = {int(key): each for key, each in optimiser["state"].items()}
    widths = {"widths": state.get("widths"), "start_ebops": state.get("start_ebops", 0.0)}
    now = random_state()  # each epoch begins with its own seed
    ours = {"random_state": now, "epoch_random_state": now, "steps_into_epoch": 0}
    content = {
        "epoch": int(state["epochs"]) - 1,
        "global_step": 0,
        "state_dict": {f"model.{name}": value for name, value in state["model"].items()},
        "optimizer_states": [optimiser],
        "callbacks": {},
        OURS: {
            **empty_facts(), **ours,
            "history": state.get("history", []),
            WidthTraining.key: {**widths, "followed": None},
        },
    }  # fmt: skip
    return Resumed(path, content)


def _read_earlier(path: Path) -> dict[str, Any]:
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
