"""Networks for folded circuits, the rows that they see, and the cycles that they may take."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import chop
from chop.dataset import MaseDataModule
from chop.errors import ChopError
from chop.lowering import IntegerProgram, lower
from chop.models import get_model

CALIBRATION = 64


@dataclass(frozen=True)
class StreamCase:
    """A network, the shape of its rows, and the cycles that it may take for one."""

    build: Callable[[tuple[int, ...]], nn.Module]
    shape: tuple[int, ...]
    cycles: int
    width: int = 8
    data: str | None = None
    """The data set whose rows it sees, where it is on this machine; else noise."""
    fitted: bool = False
    """True if the estimate of look-up tables was made with this network in view."""


@cache
def data_rows(name: str, count: int) -> Tensor | None:
    """Rows of a data set, None if it is not here."""
    try:
        data = MaseDataModule(name, batch_size=count)
        data.prepare_data()
        data.setup()
        features: Tensor = next(iter(data.train_dataloader()))[0]
    except ChopError:
        return None
    return features


def rows_of(case: StreamCase, count: int) -> tuple[Tensor, str]:
    """Rows for a network, and whose they are."""
    found = None if case.data is None else data_rows(case.data, CALIBRATION + count)
    if found is not None and found.shape[1:] == case.shape:
        return found[: CALIBRATION + count], str(case.data)
    torch.manual_seed(1)
    return torch.randn(CALIBRATION + count, *case.shape), "noise"


def warmed(model: nn.Module, rows: Tensor) -> nn.Module:
    """A network whose normalisations have seen rows."""
    with torch.no_grad():
        for _ in range(20):
            model.train()(rows)
    return model.eval()


def program_of(case: StreamCase, count: int) -> tuple[IntegerProgram, Tensor, str]:
    """The integers of a network with random weights, rows to run it on, and whose they are."""
    torch.manual_seed(0)
    rows, whose = rows_of(case, count)
    model = warmed(case.build(case.shape), rows[:CALIBRATION])
    quantised = chop.quantize(model, width=case.width, calibrate=[rows[:CALIBRATION]])
    return lower(quantised.graph, cut_tail=True), rows[CALIBRATION:], whose


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


def vgg_like(shape: tuple[int, ...]) -> nn.Module:
    """Pairs of convolutions of 16, 32 and 64 channels, pools between them, two linear layers."""
    layers: list[nn.Module] = []
    channels = shape[0]
    for width in (16, 32, 64):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    features = channels * (shape[1] // 8) * (shape[2] // 8)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 64), nn.ReLU(),
                         nn.Linear(64, 10))  # fmt: skip


TINY = StreamCase(sigmoids, (1, 8, 8), 3_000, width=4)
CIFAR, FASHION = "cifar10", "fashion-mnist"
CASES = {
    "labs' CNN": StreamCase(named("jsc-rs1923"), (16,), 1_000, data="jsc-sim"),
    "cnn-small": StreamCase(named("cnn-small"), (1, 28, 28), 30_000, data=FASHION),
    "lenet5": StreamCase(named("lenet5"), (1, 28, 28), 30_000, data=FASHION),
    "sigmoids": StreamCase(sigmoids, (1, 28, 28), 30_000, data=FASHION),
    "joining": StreamCase(joining, (2, 9, 11), 20_000),
    "joining, fast": StreamCase(joining, (2, 9, 11), 400, width=4),
    "autoencoder": StreamCase(named("autoencoder-ad"), (640,), 10_000),
    "ds-cnn": StreamCase(named("ds-cnn"), (1, 49, 10), 75_000, fitted=True),
    "vgg-like": StreamCase(vgg_like, (3, 32, 32), 150_000, data=CIFAR),
    "mobilenet": StreamCase(named("mobilenet-v1-025"), (3, 96, 96), 300_000),
    "resnet8": StreamCase(named("resnet8"), (3, 32, 32), 150_000, data=CIFAR, fitted=True),
    "resnet8, 4 bits": StreamCase(
        named("resnet8"), (3, 32, 32), 37_000, width=4, data=CIFAR, fitted=True
    ),
}
