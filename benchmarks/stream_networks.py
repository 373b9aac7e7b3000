"""Networks for folded circuits, on images small enough to be simulated in seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from chop.models import get_model


@dataclass(frozen=True)
class StreamCase:
    """A network, the shape of its rows, and the cycles that it may take for one."""

    build: Callable[[tuple[int, ...]], nn.Module]
    shape: tuple[int, ...]
    cycles: int
    images: int = 10
    """On how many of them the circuit is simulated."""


def named(name: str) -> Callable[[tuple[int, ...]], nn.Module]:
    """What builds a model of this package for rows of a shape."""

    def build(shape: tuple[int, ...]) -> nn.Module:
        outputs = shape[0] if name == "autoencoder-ad" else 10
        info = SimpleNamespace(
            num_features=shape[0] if len(shape) == 1 else None,
            num_classes=outputs, num_targets=None, num_outputs=outputs,
            image_size=shape if len(shape) == 3 else None,
        )  # fmt: skip
        return get_model(name, dataset_info=info, pretrained=False)

    return build


class Joining(nn.Module):
    """A residual block, three branches whose channels follow each other, pools that overlap."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 8, 3, padding=1)
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.wide = nn.Conv2d(8, 4, 3, padding=2, dilation=2)
        self.point = nn.Conv2d(8, 8, 1)
        self.relu, self.over = nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        self.mean = nn.AvgPool2d(3, 2, 1)
        self.last = nn.LazyLinear(10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(x + self.two(self.relu(self.one(x))))
        x = self.relu(torch.cat([self.wide(x), self.point(x), self.over_again(x)], 1))
        scores: Tensor = self.last(self.mean(self.over(x)).flatten(1))
        return scores

    def over_again(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(x, 3, 1, 1)


def joining(shape: tuple[int, ...]) -> nn.Module:
    """The network of all kinds of joins, its last layer made for images of a shape."""
    model = Joining(shape[0])
    model(torch.zeros(1, *shape))
    return model


def sigmoids(shape: tuple[int, ...]) -> nn.Module:
    """Convolutions with sigmoids and average pools."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(16 * (height // 4) * (width // 4), 10), nn.Sigmoid(),
    )  # fmt: skip


CASES = {
    "cnn-small": StreamCase(named("cnn-small"), (3, 8, 8), 10_000),
    "lenet5": StreamCase(named("lenet5"), (1, 20, 20), 20_000),
    "sigmoids": StreamCase(sigmoids, (1, 12, 12), 10_000),
    "joining": StreamCase(joining, (2, 9, 11), 20_000),
    "jsc-rs1923": StreamCase(named("jsc-rs1923"), (16,), 1_000, 50),
    "autoencoder-ad": StreamCase(named("autoencoder-ad"), (640,), 5_000),
    "ds-cnn": StreamCase(named("ds-cnn"), (1, 49, 10), 75_000, 3),
    "vgg7": StreamCase(named("vgg7"), (3, 16, 16), 500_000, 3),
    "mobilenet-v1-025": StreamCase(named("mobilenet-v1-025"), (3, 32, 32), 50_000, 3),
    "resnet8": StreamCase(named("resnet8"), (3, 32, 32), 150_000, 2),
}
