"""The parts of training that can be looked at alone."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from chop.dataset.data_module import TensorLoader
from chop.devices import SMALL_FLOPS, forward_operations, using_threads
from chop.errors import ConfigError
from chop.training.batches import Epochs, SharedRows, normalisable
from chop.training.checkpoint import random_state, restore_random_state
from chop.training.job import make_logger
from chop.training.optimisers import make_optimiser, step_function
from chop.training.report import TrainingBar
from chop.training.settings import TrainingSettings


class Branches(nn.Module):
    """Has a part that takes no part in every other step."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 2), nn.Linear(3, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.one(x)
        return out + self.two(x) if self.calls % 2 else out


@pytest.mark.parametrize("network", [lambda: nn.Linear(3, 2), Branches])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_the_short_way_to_step_is_the_long_way(optimizer: str, network: type[nn.Module]) -> None:
    settings = TrainingSettings(optimizer=optimizer, learning_rate=0.1, weight_decay=0.01)
    models, steps = [], []
    for short in (True, False):
        torch.manual_seed(1)
        models.append(network())
        optimiser = make_optimiser(models[-1], settings)
        steps.append((optimiser, step_function(optimiser) if short else optimiser.step))
    for _ in range(6):
        x = torch.randn(5, 3)
        for model, (_, step) in zip(models, steps, strict=True):
            model.zero_grad()
            model(x).square().mean().backward()
            step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)
    states = [optimiser.state_dict()["state"] for optimiser, _ in steps]
    for name, state in states[0].items():
        for key, value in state.items():
            assert value is None or torch.equal(value, states[1][name][key])


def test_the_short_way_follows_a_new_rate() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimiser = make_optimiser(model, TrainingSettings(learning_rate=0.1))
    for rate in (0.1, 0.0):
        optimiser.param_groups[0]["lr"] = rate
        step = step_function(optimiser)
        before = model.weight.clone()
        for _ in range(2):
            model.weight.grad = torch.ones_like(model.weight)
            step()
        assert torch.equal(before, model.weight) == (rate == 0.0)


def test_random_numbers_go_on_where_they_were() -> None:
    import random

    import numpy as np

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    buffer = io.BytesIO()
    torch.save(random_state(), buffer)
    first = draw()
    buffer.seek(0)
    restore_random_state(torch.load(buffer, weights_only=True))
    assert draw() == first


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)),
        nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(1)),
        nn.Sequential(
            nn.Flatten(2),
            nn.TransformerEncoderLayer(64, 4, 32, 0.0, batch_first=True),
            nn.Flatten(),
        ),
    ],
)
def test_operations_are_those_that_torch_counts(model: nn.Module) -> None:
    features = torch.randn(2, 3, 8, 8)
    with FlopCounterMode(display=False) as counter:
        model(features)
    model.eval()
    assert forward_operations(model, features)[0] == counter.get_total_flops() > 0


def test_small_networks_get_one_thread() -> None:
    before = torch.get_num_threads()
    for width, expected in ((8, 1), (2048, before)):
        model = nn.Sequential(nn.Linear(16, width), nn.Linear(width, 5))
        operations, classes = forward_operations(model, torch.randn(256, 16))
        assert classes == 5
        assert operations == 2 * 256 * width * 21
        assert (operations < SMALL_FLOPS) == (width == 8)
        with using_threads(None, operations) as threads:
            assert threads == expected
    with using_threads(3, 0) as threads:
        assert threads == torch.get_num_threads() == 3
    assert torch.get_num_threads() == before


def test_the_bar_shows_the_names_of_the_labs() -> None:
    screen = io.StringIO()
    bar = TrainingBar(Console(file=screen, force_terminal=True, width=160))
    bar.start(4, 10)
    bar.advance(10, {"train_acc_step": 0.5})
    bar.end({"train_acc_step": 0.5, "val_acc_epoch": 0.25, "val_loss_epoch": 1.5})
    shown = screen.getvalue()
    for text in ("Epoch 4", "10/10", "train_acc_step=0.500", "val_acc_epoch=0.250", "it/s"):
        assert text in shown
    bar.close()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_an_epoch_is_one_line_that_fits(width: int) -> None:
    screen = io.StringIO()
    bar = TrainingBar(Console(file=screen, width=width))
    bar.start(12, 3084)
    metrics = {"train_acc_step": 0.5, "val_acc_epoch": 0.25, "val_loss_epoch": 1.5}
    bar.advance(3084, metrics)
    bar.end(metrics)
    (line,) = [line for line in screen.getvalue().splitlines() if line.strip()]
    assert len(line.rstrip()) <= width
    assert "Epoch 12" in line
    assert "3084/3084" in line
    assert ("val_acc_epoch=0.250" in line) == (width >= 60)
    assert ("train_acc_step=0.500" in line) == (width >= 120)


def test_where_metrics_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_logger("none", tmp_path, "p") is None
    monkeypatch.setattr("chop.training.job.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install wandb"):
        make_logger("wandb", tmp_path, "p")


@pytest.mark.parametrize(("batch_size", "sizes"), [(4, [4, 4]), (1, []), (3, [3, 3, 3])])
def test_a_row_left_over_is_nothing_to_normalise(batch_size: int, sizes: list[int]) -> None:
    loader = TensorLoader(torch.randn(9, 2), torch.zeros(9, dtype=torch.int64), batch_size)
    with_norm = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    assert [len(x) for x, _ in normalisable(iter(loader), with_norm)] == sizes
    plain = [len(x) for x, _ in normalisable(iter(loader), nn.Linear(2, 2))]
    assert sum(plain) == 9


class Noisy(nn.Module):
    """A convolution of pictures with noise, which is drawn and counted in evaluation too."""

    def __init__(self, flatten: str) -> None:
        super().__init__()
        self.conv, self.norm, self.flatten = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), flatten
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        y = self.norm(self.conv(x + torch.rand_like(x)))
        return y.view(len(y), -1) if self.flatten == "view" else y.flatten(1)


@pytest.mark.parametrize(("flatten", "last"), [("flatten", True), ("view", False)])
def test_convolved_pictures_come_channels_last_where_the_model_can(
    flatten: str, last: bool
) -> None:
    """Finding out leaves no trace in the model or in the random numbers."""
    model, pictures = Noisy(flatten).train(), torch.rand(5, 3, 6, 6)
    loader = TensorLoader(pictures, torch.zeros(5, dtype=torch.int64), 2)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    numbers = torch.get_rng_state()
    batches = [x for x, _ in SharedRows(Epochs(loader), 0, 1).batches(0, model)]
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.training
    assert model.norm.training
    assert torch.equal(torch.cat(batches), pictures)
    assert [x.is_contiguous(memory_format=torch.channels_last) for x in batches] == [last] * 3
