"""Networks of `bench_c.py`: some to fit estimates to, and others to compare them with."""

import itertools
import random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import chop
import chop.passes as passes
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import IntegerProgram, lower
from chop.models import get_model

FITTED = 120
"""Made networks that the factors of estimates are fitted to."""
OTHERS = {
    "jsc-tiny": ((16,), 5), "jsc-toy": ((16,), 5), "jsc-tiny-x10": ((16,), 5),
    "jsc-new": ((16,), 5), "jsc-mlp": ((16,), 5), "jsc-s": ((16,), 5),
    "lenet5": ((1, 28, 28), 10), "cnn-small": ((1, 28, 28), 10), "ds-cnn": ((1, 49, 10), 12),
    "resnet8": ((3, 32, 32), 10), "toy_convnet": ((3, 32, 32), 10), "autoencoder-ad": ((640,), 640),
    "toy_tiny": ((1, 28, 28), 10),
}  # fmt: skip
"""Registered networks that they are compared with: shapes of rows, and classes."""


class Joined(nn.Module):
    """A layer and what it is added to."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.inner(x))


def quantised(model: nn.Module, x: Tensor, width: int) -> IntegerProgram:
    """The integers of a network at a width."""
    return lower(chop.quantize(model.eval(), width=width, calibrate=[x]).graph, cut_tail=True)


def rounded_up(model: nn.Module, x: Tensor, width: int) -> IntegerProgram:
    """The integers of a network with fixed formats that round half up, as learned ones do."""
    graph = MaseGraph(model.eval())
    given = next(str(node.target) for node in graph.nodes if node.op == "placeholder")
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": {given: x}})
    config: dict[str, Any] = {"name": "integer"}
    config |= {f"{role}_rounding": "half_up" for role in ("data_in", "weight", "bias")}
    config |= {"data_in_width": 8, "data_in_frac_width": 4, "weight_width": width,
               "weight_frac_width": width - 2, "bias_width": 8, "bias_frac_width": 6}  # fmt: skip
    types = {node.meta["mase"]["common"]["mase_op"] for node in graph.nodes}
    rules = {kind: {"config": config} for kind in types & {"conv2d", "linear", "add"}}
    graph, _ = passes.quantize_transform_pass(graph, {"by": "type", **rules})
    return lower(graph, cut_tail=True)


def dense_layers(pick: random.Random) -> tuple[nn.Module, Tensor]:
    """A network of linear layers, some of whose weights may be zero."""
    sizes = [pick.choice((8, 16, 21, 40, 64, 96, 200)) for _ in range(pick.randint(1, 4))]
    layers: list[nn.Module] = [nn.BatchNorm1d(sizes[0])] if pick.random() < 0.3 else []
    share = pick.choice((1.0, 1.0, 0.5, 0.2, 0.1))
    for inside, out in itertools.pairwise(sizes):
        layers += [nn.Linear(inside, out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(sizes[-1], pick.choice((2, 5, 10))))
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.weight.data *= (torch.rand_like(layer.weight) < share) * 4
    return model, torch.randn(8, sizes[0])


def convolutions(pick: random.Random) -> tuple[nn.Module, Tensor]:
    """A network of convolutions, pools and sums."""
    side, channels = pick.choice((8, 12, 16)), pick.choice((1, 3, 4))
    x = torch.randn(4, channels, side, side)
    layers: list[nn.Module] = []
    for _ in range(pick.randint(1, 3)):
        kind = pick.choice(("plain", "plain", "point", "depth", "joined"))
        out = pick.choice((4, 6, 8, 16, 32, 48))
        size = pick.choice((3, 3, 5))
        if kind == "depth":
            layers += [nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels)]
            out = channels
        elif kind == "joined":
            layers += [Joined(nn.Conv2d(channels, channels, size, padding=size // 2))]
            out = channels
        else:
            size = 1 if kind == "point" else size
            step = pick.choice((1, 1, 2))
            layers += [nn.Conv2d(channels, out, size, step, size // 2)]
        layers += [nn.ReLU()]
        channels = out
        if pick.random() < 0.5 and nn.Sequential(*layers)(x).shape[-1] > 1:
            side = nn.Sequential(*layers)(x).shape[-1]
            pool = pick.choice((nn.MaxPool2d, nn.AvgPool2d))
            layers += [pool(min(pick.choice((2, 2, 3)), side))]
    head = nn.Sequential(*layers)
    size = head(x).flatten(1).shape[1]
    last: list[nn.Module] = [nn.Flatten(), nn.Linear(size, 10)]
    if pick.random() < 0.4:
        last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers, *last), x


def fitted_network(number: int) -> IntegerProgram:
    """One of the made networks."""
    torch.manual_seed(number)
    pick = random.Random(number)
    model, x = pick.choice((dense_layers, convolutions))(pick)
    way = pick.choice((quantised, rounded_up))
    way = quantised if any(isinstance(each, nn.BatchNorm1d) for each in model.modules()) else way
    return way(model, x, pick.choice((4, 6, 8)))


def other_network(name: str, width: int) -> IntegerProgram:
    """A registered network with random weights."""
    torch.manual_seed(width)
    shape, classes = OTHERS[name]
    facts: Any = SimpleNamespace(
        num_features=shape[0] if len(shape) == 1 else None, num_classes=classes,
        image_size=shape if len(shape) == 3 else None,
    )  # fmt: skip
    return quantised(get_model(name, dataset_info=facts), torch.randn(4, *shape), width)
