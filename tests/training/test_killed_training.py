"""A training that was killed between two files, and two trainings in one folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.actions import train
from chop.dataset import MaseDataModule
from chop.dataset.data_module import TensorLoader
from chop.errors import OutputError
from chop.models import get_model, get_model_info
from chop.runs import own_suffix
from chop.training.batches import Epochs, normalisable
from chop.training.fit import TrainingResult


def trained(folder: Path, **given: Any) -> TrainingResult:
    data = MaseDataModule("toy_tiny", 4096)
    torch.manual_seed(0)
    model = get_model("toy", dataset_info=data.dataset_info)
    settings = {"max_epochs": 1, "save_path": folder} | given
    return train(model, get_model_info("toy"), data, data.dataset_info, **settings)


def test_a_kill_between_the_first_best_and_the_first_last_checkpoint(tmp_path: Path) -> None:
    """The run went on under other names, `best-v1` and `last-v1`."""
    result = trained(tmp_path)
    result.last.unlink()
    again = trained(tmp_path, resume=True)
    assert again.last.name == "last.ckpt"
    assert not list(tmp_path.glob("*-v1*"))


def test_a_kill_after_the_last_epoch_and_before_the_curves(tmp_path: Path) -> None:
    """A run that was resumed with nothing left to train never drew them."""
    trained(tmp_path)
    (tmp_path / "learning_curves.png").unlink()
    trained(tmp_path, resume=True)
    assert (tmp_path / "learning_curves.png").exists()


def test_runs_at_work_in_one_folder_have_names_of_their_own(tmp_path: Path) -> None:
    """Both wrote `best.ckpt` and `last.ckpt`, as neither had when the other looked."""
    with own_suffix(tmp_path, None, resume=False) as first:
        assert first == ""
        with pytest.raises(OutputError, match="another run is at work"):
            trained(tmp_path, resume=True)
        assert trained(tmp_path).last.name == "last-v1.ckpt"
    assert not list(tmp_path.glob(".run*"))


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize("rows", [9, 10, 17, 18, 19])
def test_all_processes_leave_out_the_same_lone_row(rows: int) -> None:
    """One process left out a last batch of one row; several fell over it."""
    loader = TensorLoader(torch.zeros(rows, 2), torch.zeros(rows, dtype=torch.int64), 4, True)
    steps = [
        [
            len(x)
            for x, _ in normalisable(Epochs(loader, even=True).batches(1, rank, 2), Normalised())
        ]
        for rank in (0, 1)
    ]
    assert steps[0] == steps[1]
    assert 1 not in steps[0]
