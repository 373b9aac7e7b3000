"""Models and data sets for the part `numbers`, imported as a user's file with `--import`."""

import torch
from torch import Tensor, nn

from chop.dataset import Splits, register_dataset
from chop.models import register_model
from chop.models.info import DataInfo

FACTS = {"is_fx_traceable": True}


def sizes(info: DataInfo) -> tuple[int, int]:
    """Features and classes of the data."""
    assert info.num_features is not None
    assert info.num_classes is not None
    return info.num_features, info.num_classes


@register_model("harden-plain")
def plain(info: DataInfo) -> nn.Module:
    """Two linear layers."""
    features, classes = sizes(info)
    return nn.Sequential(nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, classes))


@register_model("harden-batchnorm")
def normalised(info: DataInfo) -> nn.Module:
    """Batch normalisation between two linear layers."""
    features, classes = sizes(info)
    return nn.Sequential(nn.Linear(features, 6), nn.BatchNorm1d(6), nn.Linear(6, classes))


@register_model("harden-pixels", task_type="vision", model_source="toy")
def pixels(info: DataInfo) -> nn.Module:
    """Batch normalisation of images that are shrunk to one place."""
    assert info.image_size is not None
    return nn.Sequential(
        nn.Conv2d(info.image_size[0], 4, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.BatchNorm2d(4),
        nn.Flatten(1),
        nn.Linear(4, info.num_classes or 2),
    )


class Bare(nn.Module):
    """Scores without a parameter: the first features, squashed."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x[:, : self.classes])


@register_model("harden-bare")
def bare(info: DataInfo) -> nn.Module:
    """A model with no parameters."""
    return Bare(sizes(info)[1])


class Moves(nn.Module):
    """The first features as scores: nothing is computed, so nothing can be quantised."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.classes].contiguous()


@register_model("harden-moves")
def moves(info: DataInfo) -> nn.Module:
    """A model in which no node can be quantised."""
    return Moves(sizes(info)[1])


@register_model("harden-frozen")
def frozen(info: DataInfo) -> nn.Module:
    """A model whose parameters are all frozen."""
    return plain(info).requires_grad_(False)


class Shared(nn.Module):
    """One layer called three times, one activation called twice, and a weight of two layers."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(features, features)
        self.relu = nn.ReLU()
        self.again = self.inner
        self.tied = nn.Linear(features, features)
        self.tied.weight = self.inner.weight
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.inner(x))
        x = self.relu(self.again(x)) + self.inner(x)
        scores: Tensor = self.head(self.tied(x))
        return scores


@register_model("harden-shared")
def shared(info: DataInfo) -> nn.Module:
    """A model with shared layers and weights."""
    return Shared(*sizes(info))


class Undefined(nn.Module):
    """Scores that are not numbers."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x) / torch.zeros(1)
        return scores - scores


@register_model("harden-undefined")
def undefined(info: DataInfo) -> nn.Module:
    """A model whose scores are NaN."""
    return Undefined(*sizes(info))


@register_dataset("harden-one-row")
def one_row() -> Splits:
    """One row in each split."""
    row = torch.tensor([[0.5, -1.0, 2.0, 0.25]])
    return Splits((row, torch.tensor([1])), (row + 1, torch.tensor([0])), (-row, torch.tensor([2])))


@register_dataset("harden-train-only")
def train_only() -> Splits:
    """Rows to train on and none to validate or test on."""
    rows = torch.arange(48.0).reshape(12, 4).sin()
    return Splits((rows, torch.arange(12) % 3))


@register_dataset("harden-not-finite")
def not_finite() -> Splits:
    """A row with NaN and one with an infinity."""
    rows = torch.ones(12, 4)
    rows[3, 1], rows[4, 2] = torch.nan, torch.inf
    labels = torch.arange(12) % 3
    return Splits((rows, labels), (rows, labels), (rows, labels))
