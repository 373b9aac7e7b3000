"""Random small networks of every operation that has integers, in random formats."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ops.table import OPS
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    conv_bn_fusion_transform_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)

Dice = random.Random
Part = Callable[[Tensor], Tensor]
Config = dict[str, Any]
ROLES = ("data_in", "weight", "bias")
MOST_ELEMENTS, TRIES = 600, 8

COMBINED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "cat": lambda a, b: torch.cat([a, b], dim=1),
    "cat last": lambda a, b: torch.cat([b, a], dim=-1),
    "gate": lambda a, b: a * torch.sigmoid(b),
}
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": lambda a, b: torch.matmul(a, b.transpose(-2, -1)),
    "einsum": lambda a, b: torch.einsum("bik,bjk->bij", a, b),
}


class Network(nn.Module):
    """A chain of parts, each a function that may own layers."""

    def __init__(self, parts: list[Part]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Branches(nn.Module):
    """Two layers that read the same, and what is made of their results."""

    def __init__(self, left: nn.Module, right: nn.Module, how: Callable[..., Tensor]) -> None:
        super().__init__()
        self.left, self.right, self.how = left, right, how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.left(x), self.right(x))


FUNCTIONS: tuple[Callable[[], Part], ...] = (
    nn.ReLU, nn.ReLU6, lambda: nn.ReLU(inplace=True), lambda: nn.Hardtanh(-0.75, 1.5),
    lambda: nn.LeakyReLU(0.125), nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Hardswish,
    nn.Hardsigmoid, nn.Softsign, nn.Mish, nn.PReLU, nn.Softplus, nn.Identity, nn.Dropout,
    lambda: lambda x: torch.clamp(x, -0.5, 0.75), lambda: torch.abs, lambda: lambda x: -x,
    lambda: lambda x: x * 0.3, lambda: lambda x: 1.5 - x, lambda: lambda x: x / 3,
    lambda: lambda x: x * x,
)  # fmt: skip


def divisor(dice: Dice, size: int) -> int:
    """A number by which a size can be divided."""
    return dice.choice([each for each in range(1, size + 1) if size % each == 0])


def convolution(dice: Dice, channels: int, sizes: list[int], kinds: Any) -> nn.Module:
    """A convolution of any stride, padding, dilation and grouping; perhaps a transposed one."""
    dims = len(sizes)
    groups = dice.choice([1, divisor(dice, channels), channels])
    after = groups * dice.randint(1, 2)
    kernel = [dice.randint(1, min(3, size)) for size in sizes]
    settings: Config = {
        "stride": [dice.randint(1, 2) for _ in sizes],
        "padding": [dice.randint(0, size - 1) for size in kernel],
        "dilation": [dice.randint(1, 2) for _ in sizes],
        "groups": groups,
        "bias": dice.random() < 0.6,
    }
    layer: nn.Module = dice.choice(kinds)[dims - 1](channels, after, kernel, **settings)
    return layer


CONVOLUTIONS = ((nn.Conv1d, nn.Conv2d), (nn.Conv1d, nn.Conv2d), (nn.Conv1d, nn.Conv2d))
TRANSPOSED = ((nn.ConvTranspose1d, nn.ConvTranspose2d),)


def on_rows(dice: Dice, shape: list[int]) -> Part:
    """A part for rows of features."""
    (size,) = shape
    after, half = dice.randint(1, 8), max(size // 2, 1)
    groups = divisor(dice, size)
    pair = nn.Linear(size, after), nn.Linear(size, after, bias=False)
    makers: list[Callable[[], Part]] = [
        *[lambda: nn.Linear(size, after, bias=dice.random() < 0.7)] * 2,
        lambda: Branches(*pair, dice.choice(list(COMBINED.values()))),
        lambda: nn.BatchNorm1d(size),
        lambda: lambda x: torch.cat([x[:, half:], x[:, :half].flip(1)], 1),
        lambda: lambda x: torch.roll(x, 1, 1),
        lambda: lambda x: x.view(x.size(0), groups, size // groups),
        lambda: lambda x: F.pad(x, (1, 0)),
    ]
    return dice.choice(makers)()


def on_sequences(dice: Dice, shape: list[int]) -> Part:
    """A part for channels of one dimension."""
    channels, size = shape
    reduce, dim, keep = dice.choice(["sum", "mean", "amax", "amin"]), dice.choice([1, 2, -1]), True
    pair = nn.Linear(size, 3), nn.Linear(size, 3, bias=False)
    products = dice.choice(list(PRODUCTS.values()))
    makers: list[Callable[[], Part]] = [
        *[lambda: convolution(dice, channels, [size], CONVOLUTIONS)] * 2,
        lambda: convolution(dice, channels, [size], TRANSPOSED),
        lambda: nn.BatchNorm1d(channels),
        lambda: nn.MaxPool1d(2, dice.randint(1, 2), dice.randint(0, 1), ceil_mode=True),
        lambda: nn.AvgPool1d(dice.choice([2, 3]), dice.randint(1, 2), dice.randint(0, 1)),
        lambda: nn.AdaptiveAvgPool1d(divisor(dice, size)),
        lambda: nn.Linear(size, dice.randint(1, 6)),
        lambda: Branches(*pair, products),
        lambda: lambda x: x.transpose(1, 2),
        lambda: lambda x: getattr(torch, reduce)(x, dim=dim, keepdim=keep),
        lambda: lambda x: x[:, :, ::2],
        lambda: lambda x: F.pad(x, (1, 2)),
        nn.Flatten,
    ]
    return dice.choice(makers)()


def on_images(dice: Dice, shape: list[int]) -> Part:
    """A part for channels of two dimensions."""
    channels, *sizes = shape
    pair = nn.Identity(), nn.Conv2d(channels, channels, 1)
    makers: list[Callable[[], Part]] = [
        *[lambda: convolution(dice, channels, sizes, CONVOLUTIONS)] * 3,
        lambda: convolution(dice, channels, sizes, TRANSPOSED),
        lambda: nn.BatchNorm2d(channels),
        lambda: nn.MaxPool2d(2, dice.randint(1, 2), dice.randint(0, 1)),
        lambda: nn.AvgPool2d(dice.choice([2, 3]), dice.randint(1, 2), dice.randint(0, 1)),
        lambda: nn.AdaptiveAvgPool2d([divisor(dice, size) for size in sizes]),  # type: ignore[arg-type]
        lambda: nn.AdaptiveMaxPool2d(1),
        lambda: Branches(*pair, COMBINED[dice.choice(["add", "mul", "cat"])]),
        lambda: lambda x: x.permute(0, 2, 3, 1),
        lambda: lambda x: x[:, :, 1:, :-1],
        lambda: lambda x: x.mean(dim=(2, 3)),
        lambda: nn.PixelShuffle(2),
        lambda: nn.ZeroPad2d((1, 0, 2, 1)),
        nn.Flatten,
    ]
    return dice.choice(makers)()


PARTS = (on_rows, on_sequences, on_images)


def parts_for(dice: Dice, x: Tensor) -> list[Part]:
    """Parts that fit one another, the first a layer with weights more often than not."""
    parts: list[Part] = []
    for _ in range(dice.randint(3, 7)):
        for _ in range(TRIES):
            shape = list(x.shape[1:])
            of_codes = dice.random() < 0.22 and bool(parts)
            part = dice.choice(FUNCTIONS)() if of_codes else PARTS[len(shape) - 1](dice, shape)
            try:
                with torch.no_grad():
                    result = part(x.clone())
            except (RuntimeError, ValueError):  # a window that is larger than what it is moved over
                continue
            if 1 < result.dim() < 5 and 0 < result[0].numel() <= MOST_ELEMENTS:
                parts.append(part)
                x = result
                break
    return parts


def spread_weights(model: nn.Module, x: Tensor) -> None:
    """Weights that are seen after rounding, and running statistics of some batches."""
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(layer.weight, -0.25, 2.25)
            nn.init.normal_(layer.bias, 0, 0.5)
        elif isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            nn.init.normal_(layer.weight, 0, 1.5 / layer.weight[0].numel() ** 0.5)
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(x.clone())
    model.eval()


OTHER_FORMATS: tuple[Config, ...] = (
    {"name": "ternary", "data_in_mean": 1.0, "weight_width": 2},
    {"name": "log", "data_in_width": 4, "weight_width": 3, "bias_width": 4},
    {"name": "binary", **{f"{role}_bipolar": True for role in ROLES}},
    {"name": "minifloat_ieee"}
    | {
        f"{role}_{key}": bits
        for role in ROLES
        for key, bits in (("width", 6), ("exponent_width", 3))
    },
)
WITH_OTHERS = ("linear", "conv1d", "conv2d")
SOMETIMES = ("relu", "max_pool1d", "max_pool2d", "abs", "clamp", "cat")


def fixed_point(dice: Dice, widest: int) -> Config:
    """Widths, binary points (some outside the width), signs and modes of each operand."""
    config: Config = {"name": "integer"}
    for role in (*ROLES, *(("data_out",) if dice.random() < 0.4 else ())):
        width = dice.randint(1, widest)
        inside, outside = dice.randint(0, width), dice.randint(-4, width + 4)
        config |= {
            f"{role}_width": width,
            f"{role}_frac_width": dice.choice([inside, inside, outside]),
            f"{role}_rounding": dice.choice(["half_even", "half_even", "half_up"]),
            f"{role}_overflow": dice.choice(["saturate", "saturate", "wrap"]),
        }
        if role.startswith("data") and dice.random() < 0.3:
            config[f"{role}_signed"] = False
    return config


def rules_for(dice: Dice, operations: set[str]) -> Config:
    """A format for each operation that can have one."""
    widest = 16 if dice.random() < 0.25 else 8
    rules: Config = {"by": "type", "outside_width": True}
    for name in sorted(operations):
        op = OPS.get(name)
        if op is None or not op.quantizable or (name in SOMETIMES and dice.random() < 0.5):
            continue
        other = name in WITH_OTHERS and dice.random() < 0.25
        config = dice.choice(OTHER_FORMATS) if other else fixed_point(dice, widest)
        rules[name] = {"config": config}
    return rules


def of_channels(dice: Dice, config: Config, role: str, shape: Any) -> Config:
    """Widths, points and signs of one operand for some of its dimensions, each by itself."""
    width, point = config[f"{role}_width"], config[f"{role}_frac_width"]

    def each(some: Callable[[], int]) -> Tensor:
        kept = [size if dice.random() < 0.6 else 1 for size in shape]
        return torch.tensor([some() for _ in range(torch.Size(kept).numel())]).reshape(kept)

    found: Config = {f"{role}_width": each(lambda: max(width - dice.randint(0, 4), 0))}
    if dice.random() < 0.6:
        found[f"{role}_frac_width"] = each(lambda: point + dice.randint(-1, 1))
    if dice.random() < 0.3:
        found[f"{role}_signed"] = each(lambda: dice.randint(0, 1))
    return config | found


def granular(dice: Dice, graph: MaseGraph) -> MaseGraph:
    """The graph with formats by channel or element."""
    rules: Config = {"by": "name", "outside_width": True, "default": {"config": {"name": None}}}
    for node in graph.nodes:
        mase = node.meta["mase"]
        common, module = mase["common"], mase.module
        config = getattr(module, "config", None) or node.kwargs.get("config")
        if not config:
            continue
        shapes = {
            "data_in": common["args"]["data_in_0"]["shape"][1:],
            "data_out": common["results"]["data_out_0"]["shape"][1:],
            **{name: list(p.shape) for name, p in (module or nn.Module()).named_parameters()},
        }
        for role, shape in shapes.items():
            if config["name"] == "integer" and f"{role}_width" in config and dice.random() < 0.8:
                config = of_channels(dice, config, role, shape)
        rules[node.name] = {"config": config}
    result: MaseGraph = quantize_transform_pass(graph, rules)[0]
    return result


def integer_network(seed: int, rows: int = 9) -> tuple[MaseGraph, Tensor]:
    """A quantised network and rows for it, the same for the same seed."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    channels = dice.choice([1, 2, 4])
    shape = dice.choice([(dice.randint(2, 8),), (channels, 8), (channels, 6, 6)])
    x = torch.randn(rows, *shape) * dice.choice([0.5, 2, 6])
    model = Network(parts_for(dice, x))
    spread_weights(model, x)
    graph, _ = init_metadata_analysis_pass(MaseGraph(model))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x[:2]}})
    if dice.random() < 0.3:
        graph, _ = conv_bn_fusion_transform_pass(graph)
    operations = {node.meta["mase"]["common"]["mase_op"] for node in graph.nodes}
    graph, _ = quantize_transform_pass(graph, rules_for(dice, operations))
    return (granular(dice, graph) if dice.random() < 0.35 else graph), x
