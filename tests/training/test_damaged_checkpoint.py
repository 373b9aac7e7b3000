"""A checkpoint whose entries are of other types is refused."""

from pathlib import Path

import pytest
import torch

from chop.errors import CheckpointError
from chop.training.checkpoint import random_state, read_resumed
from chop.training.settings import TrainingSettings


def whole_run() -> dict[str, object]:
    state = random_state()
    return {
        "epoch": 0, "global_step": 1, "state_dict": {}, "optimizer_states": [{}], "callbacks": {},
        "chop": {"settings": {}, "record": {}, "history": [{"epoch": 0}], "random_state": state,
                 "epoch_random_state": state, "steps_into_epoch": 0},
    }  # fmt: skip


@pytest.mark.parametrize("key", sorted(whole_run()))
def test_a_run_whose_entries_are_of_other_types_is_refused(key: str, tmp_path: Path) -> None:
    torch.save(whole_run(), tmp_path / "last.ckpt")
    assert read_resumed(tmp_path / "last.ckpt", TrainingSettings(), {}).epoch == 1
    torch.save({**whole_run(), key: "x"}, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match=rf"last\.ckpt: holds no run.*{key}"):
        read_resumed(tmp_path / "last.ckpt", TrainingSettings(), {})
