"""A small thing to train, and a short way to say so."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn

from chop.actions import train
from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info
from chop.training.fit import TrainingResult

BATCH = 1024  # ten steps an epoch of toy_tiny


class MemoryLogger(DummyLogger):
    """Remembers what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))

    def steps_with(self, name: str) -> list[int]:
        return [step for step, metrics in self.logged if name in metrics]


class WithDropout(nn.Module):
    """Draws random numbers while it trains, so a resumed run must go on with the same ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def toy_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return get_model("toy", dataset_info=MaseDataModule("toy_tiny", BATCH).dataset_info)


def dropout_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return WithDropout()


def run(
    folder: Path, model: nn.Module | None = None, data: Any = None, **given: Any
) -> TrainingResult:
    """Train a toy for three epochs, unless told otherwise."""
    data = data or MaseDataModule("toy_tiny", BATCH, seed=given.get("seed", 0))
    settings = {"learning_rate": 1e-2, "max_epochs": 3, "save_path": folder} | given
    return train(model or toy_model(), get_model_info("toy"), data, data.dataset_info, **settings)


def weights(path: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(path, weights_only=True)["state_dict"]
    return state


def same(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold the same weights, bit for bit."""
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )
