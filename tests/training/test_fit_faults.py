"""What a run does when something goes wrong."""

import hashlib
import resource
from pathlib import Path

import pytest
import torch
import train_bench as bench
from torch import Tensor, nn

from chop.dataset import MaseDataModule
from chop.errors import CheckpointError, ConfigError, OutputError, TrainingError
from chop.training.optimisers import decays_too_fast
from chop.training.settings import TrainingSettings


class BreaksAt(nn.Module):
    """Gives NaN from one training step on."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.step = step
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += self.training
        out: Tensor = self.linear(x.flatten(1))
        return out * (float("nan") if self.seen >= self.step else 1.0)


@pytest.mark.parametrize("step", [1, 10, 11, 15, 70])
def test_a_loss_that_is_not_a_number_stops_the_run_at_its_step(tmp_path: Path, step: int) -> None:
    with pytest.raises(TrainingError, match=rf"not a finite number at step {step} \(epoch .*rate"):
        bench.run(tmp_path, BreaksAt(step), max_epochs=9)
    done = (step - 1) // 10
    if done:
        last = torch.load(tmp_path / "last.ckpt", weights_only=True)
        assert last["epoch"] == done - 1
        assert all(bool(value.isfinite().all()) for value in last["state_dict"].values())
    else:
        assert not (tmp_path / "last.ckpt").exists()


def test_too_high_a_learning_rate_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"learning rate 1e\+30 is most likely too high"):
        bench.run(tmp_path, learning_rate=1e30, optimizer="sgd", scheduler="constant")


@pytest.mark.parametrize(("optimizer", "rate", "decay"), [("sgd", 1e-2, 1e4), ("adamw", 0.1, 1e3)])
def test_too_high_a_weight_decay_is_named(
    tmp_path: Path, optimizer: str, rate: float, decay: float
) -> None:
    with pytest.raises(TrainingError, match="weight decay .* is most likely too high"):
        bench.run(
            tmp_path, learning_rate=rate, optimizer=optimizer, weight_decay=decay,
            scheduler="constant", max_epochs=20,
        )  # fmt: skip


@pytest.mark.parametrize("decay", [1e3, 1e20])
def test_adam_takes_a_high_weight_decay_until_it_overflows(decay: float) -> None:
    assert decays_too_fast(TrainingSettings(weight_decay=decay), 0.1) == (decay > 1e18)


def test_weights_are_not_multiplied_with_what_they_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="weight_decay: input should be less than 3e"):
        bench.run(tmp_path, weight_decay=1e308)
    assert not list(tmp_path.iterdir())


class Normalised(nn.Sequential):
    """A layer between two normalisations, of rows or of images."""

    def __init__(self, images: bool) -> None:
        norm = nn.BatchNorm2d(1) if images else nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4))
        super().__init__(norm, nn.Flatten(), nn.Linear(4, 2))


def test_batches_of_one_row_are_refused_at_once(tmp_path: Path) -> None:
    data = MaseDataModule("toy_tiny", 1)
    with pytest.raises(ConfigError, match="batch_size = 1: batch normalisation needs two rows"):
        bench.run(tmp_path, Normalised(images=False), data=data)
    assert not list(tmp_path.iterdir())


def test_batches_of_one_image_can_be_normalised(tmp_path: Path) -> None:
    bench.run(tmp_path, Normalised(images=True), data=MaseDataModule("toy_tiny", 1), max_steps=2)


def test_bad_rows_are_named(tmp_path: Path) -> None:
    data = MaseDataModule("toy_tiny", 64)
    data.setup()
    data.train_dataset.tensors[0][77, 0, 0, 0] = float("nan")  # type: ignore[attr-defined]
    with pytest.raises(TrainingError, match="inputs hold NaN"):
        bench.run(tmp_path, data=data)


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(tmp_path: Path) -> None:
    bench.run(tmp_path, max_epochs=1)
    before = {path: hashlib.sha256(path.read_bytes()).digest() for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # every longer write fails for real
    try:
        with pytest.raises(OutputError, match=r"\.ckpt: cannot be written: File too large"):
            bench.run(tmp_path, max_epochs=2, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert _changed(before) <= {"training_log.csv"}  # its new row is whole, too
    assert len(bench.run(tmp_path, max_epochs=2, resume=True).history) == 2


def _changed(before: dict[Path, bytes]) -> set[str]:
    return {
        path.name
        for path, digest in before.items()
        if hashlib.sha256(path.read_bytes()).digest() != digest
    }


def test_flipped_bytes_are_noticed_when_resuming(tmp_path: Path) -> None:
    result = bench.run(tmp_path, max_epochs=1)
    content = bytearray(result.last.read_bytes())
    middle = len(content) // 2
    for place in range(middle, middle + 256):  # longer than any padding
        content[place] ^= 0xFF
    result.last.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"last\.ckpt: is damaged"):
        bench.run(tmp_path, max_epochs=2, resume=True)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        bench.run(tmp_path / "file" / "folder")
