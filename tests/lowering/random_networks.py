"""Random small networks with random formats, the same for the same seed."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from lowering_nets import Config, quantised, settled
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from harden.integer_networks import ROLES, Network, Part, granular


def random_format(dice: random.Random, plain: bool) -> Config:
    """A format for every role; other kinds than fixed point where not `plain`."""
    kind = "integer" if plain or dice.random() < 0.8 else dice.choice(["ternary", "log", "binary"])
    if kind == "ternary":
        return {"config": {"name": kind, "data_in_mean": 1.0, "weight_width": 2}}
    if kind == "log":
        return {"config": {"name": kind, "data_in_width": 4, "weight_width": 3, "bias_width": 4}}
    if kind == "binary":
        return {"config": {"name": kind, **{f"{role}_bipolar": True for role in ROLES}}}
    config: Config = {"name": "integer"}
    for role in (*ROLES, *(("data_out",) if dice.random() < 0.3 else ())):
        width = dice.randint(2, 9)
        config[f"{role}_width"] = width
        config[f"{role}_frac_width"] = dice.randint(-1, width)
        config[f"{role}_rounding"] = dice.choice(["half_even", "half_up"])
        config[f"{role}_overflow"] = dice.choice(["saturate", "saturate", "wrap"])
    return {"config": config}


class Residual(nn.Module):
    """A layer whose result is combined with what it reads."""

    def __init__(self, layer: nn.Module, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = layer, kind

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        match self.kind:
            case "add":
                return x + y
            case "sub":
                return y - x
            case "mul":
                return y * x
            case "number":
                return 0.5 * y + 1.25
        return torch.cat([x, y], dim=1)


ACTIVATIONS: tuple[Callable[[], Part], ...] = (
    nn.ReLU, nn.ReLU6, lambda: nn.Hardtanh(-0.75, 1.5), lambda: nn.LeakyReLU(0.125), nn.Sigmoid,
    nn.Tanh, nn.GELU, lambda: nn.ReLU(inplace=True), nn.Identity, lambda: torch.abs, nn.SiLU,
)  # fmt: skip


def rows_network(dice: random.Random) -> tuple[list[Part], tuple[int, ...]]:
    """Linear layers on rows of features."""
    size = first = dice.randint(2, 8)
    parts: list[Part] = []
    for _ in range(dice.randint(1, 3)):
        kind = dice.choice(["linear", "linear", "add", "sub", "mul", "cat", "number"])
        if dice.random() < 0.4:
            parts.append(nn.BatchNorm1d(size))
        if dice.random() < 0.7:
            parts.append(dice.choice(ACTIVATIONS)())
        if kind == "linear":
            after = dice.randint(1, 8)
            parts.append(nn.Linear(size, after, bias=dice.random() < 0.7))
            size = after
        else:
            parts.append(Residual(nn.Linear(size, size), kind))
            size *= 2 if kind == "cat" else 1
        if dice.random() < 0.2:
            half = size // 2
            parts.append(lambda x, half=half: torch.cat([x[:, half:], x[:, :half].flip(1)], 1))
    return parts, (first,)


def images_network(dice: random.Random) -> tuple[list[Part], tuple[int, ...]]:
    """Convolutions and pools, over one or two dimensions, then a linear layer."""
    dims = dice.choice([1, 2])
    channels = first = dice.choice([1, 2, 4])
    side = 7
    conv: Any = (nn.Conv1d, nn.Conv2d)[dims - 1]
    parts: list[Part] = []
    x = torch.zeros(2, first, *[side] * dims)
    for _ in range(dice.randint(1, 2)):
        groups = dice.choice([1, channels])
        after = groups * dice.randint(1, 3)
        settings = {"stride": dice.randint(1, 2), "padding": dice.randint(0, 2), "groups": groups}
        layer = conv(channels, after, 2, dilation=dice.randint(1, 2), **settings)
        if min(x.shape[2:]) < 4:
            break
        parts.append(layer)
        x, channels = layer(x), after
        if dice.random() < 0.5:
            parts.append((nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1](channels))
        parts.append(dice.choice(ACTIVATIONS)())
        if min(x.shape[2:]) >= 3:
            largest: Any = (nn.MaxPool1d, nn.MaxPool2d)[dims - 1]
            average: Any = (nn.AvgPool1d, nn.AvgPool2d)[dims - 1]
            pools = [largest(2), largest(3, 1, 1), average(2), average(3, 2), nn.Identity()]
            pool = dice.choice(pools)
            parts.append(pool)
            x = pool(x)
    if dice.random() < 0.3:
        parts.append(lambda x: F.relu(x).transpose(1, 2))
    parts += [nn.Flatten(), nn.Linear(x[0].numel(), 3)]
    return parts, (first, *[side] * dims)


def random_network(seed: int, rows: int = 9) -> tuple[MaseGraph, Tensor]:
    """A quantised network and rows for it."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    make = rows_network if dice.random() < 0.5 else images_network
    parts, shape = make(dice)
    x = torch.randn(rows, *shape) * dice.choice([0.5, 2, 6])
    model = settled(Network(parts), x)
    plain = ("batch_norm1d", "batch_norm2d", "add", "sub", "mul", "avg_pool1d", "avg_pool2d")
    rules = {name: random_format(dice, plain=True) for name in plain}
    rules |= {name: random_format(dice, plain=False) for name in ("linear", "conv1d", "conv2d")}
    for name in ("sigmoid", "tanh", "gelu", "silu", "leaky_relu", "abs", "relu", "max_pool2d"):
        if dice.random() < 0.6 or name in ("sigmoid", "tanh", "gelu", "silu"):
            rules[name] = random_format(dice, plain=True)
    return quantised(model, x, rules), x


def granular_network(seed: int, rows: int = 9) -> tuple[MaseGraph, Tensor]:
    """A random network whose fixed-point operands have widths by channel or element."""
    graph, x = random_network(seed, rows)
    return granular(random.Random(seed), graph), x
