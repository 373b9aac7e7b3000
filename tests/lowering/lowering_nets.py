"""Networks and formats that the tests of lowering share."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import chop.passes as passes
from chop.ir.graph.mase_graph import MaseGraph
from chop.models.physical.jet_convolution import JSC_rs1923
from chop.models.physical.jet_substructure import JSC_MLP, JSC_New, JSC_Tiny
from chop.models.vision import vgg7

Config = dict[str, Any]
JETS: Any = SimpleNamespace(num_features=16, num_classes=5, image_size=None)


def integer(
    width: int = 8,
    frac: int = 4,
    weight: int = 6,
    weight_frac: int = 4,
    out: tuple[int, int] | None = None,
    **modes: Any,
) -> Config:
    """A configuration of every role; `modes` holds for all of them."""
    sizes = {"data_in": (width, frac), "weight": (weight, weight_frac)}
    sizes |= {"bias": (weight, weight_frac)} | ({} if out is None else {"data_out": out})
    config: Config = {"name": "integer"}
    for role, (bits, point) in sizes.items():
        config |= {f"{role}_width": bits, f"{role}_frac_width": point}
        config |= {f"{role}_{mode}": value for mode, value in modes.items()}
    return {"config": config}


def quantised(
    model: nn.Module, x: Tensor, rules: Mapping[str, Any], fuse: bool = False
) -> MaseGraph:
    """A graph of the model in evaluation, its operations quantised by type."""
    graph = MaseGraph(model.eval())
    name = next(str(node.target) for node in graph.nodes if node.op == "placeholder")
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": {name: x[:2]}})
    if fuse:
        graph, _ = passes.conv_bn_fusion_transform_pass(graph)
    types = {node.meta["mase"]["common"]["mase_op"] for node in graph.nodes}
    present = {name: rule for name, rule in rules.items() if name in types}
    graph, _ = passes.quantize_transform_pass(graph, {"by": "type", **present})
    return graph


def settled(model: nn.Module, x: Tensor) -> nn.Module:
    """The model with running statistics and scales that are not those of a new one."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            size = module.weight.shape
            module.weight.data = torch.rand(size, generator=generator) * 2.5 - 0.25
            module.bias.data = torch.randn(size, generator=generator) / 2
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            size = module.weight.shape  # large enough to be seen after rounding
            scale = 1.5 / module.weight[0].numel() ** 0.5
            module.weight.data = torch.randn(size, generator=generator) * scale
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(x)
    return model.eval()


class Attention(nn.Module):
    """Scores and their product with values, without a softmax."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.out = nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        heads = (batch, length, 2, size // 2)
        q, k, v = (
            layer(x).view(heads).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = torch.relu(torch.matmul(q, k.transpose(-2, -1)) / 4)
        mixed = torch.matmul(scores, v).transpose(1, 2).reshape(batch, length, size)
        result: Tensor = self.out(mixed + x)
        return result


class Branches(nn.Module):
    """Movement, sums, products and parts in one network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(6, 8)
        self.last = nn.Linear(12, 4)
        self.register_buffer("shift", torch.tensor([0.5, -1.25, 2.0, 0.0] * 2))

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.first(x), F.relu6(self.second(x))
        joined = torch.cat([one * other, (one - other + self.shift)[:, 2:6]], dim=1)
        left, right = joined.split([4, 8], dim=1)
        swapped = torch.cat([right, left], 1).view(-1, 3, 4).permute(0, 2, 1).flatten(1)
        scores: Tensor = torch.tanh(self.last(F.hardtanh(swapped * 2, -4, 4)))
        return scores


class Pools(nn.Module):
    """Convolutions with stride, dilation and groups, and every kind of pool."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, stride=2, padding=2, groups=2)
        self.norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 4, (3, 2), dilation=(1, 2), bias=False)
        self.third = nn.Conv2d(4, 3, 3, padding="same")
        self.last = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.gelu(self.norm(self.first(x))), 3, 2, padding=1)
        x = F.avg_pool2d(F.relu(self.second(x)), 2, 1, padding=1)
        x = F.adaptive_avg_pool2d(self.third(x), 1)
        scores: Tensor = self.last(torch.flatten(x, 1))
        return scores


class Words(nn.Module):
    """An embedding of integers, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.pool = nn.AvgPool1d(3)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.pool(self.embedding(x).transpose(1, 2)).flatten(1))
        return scores


LAYERS = ("linear", "conv1d", "conv2d", "batch_norm1d", "batch_norm2d", "embedding")
ALL = dict.fromkeys(LAYERS, integer())


def jets(rows: int) -> Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(2)) * 1.5


def images(rows: int, channels: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, channels, size, size, generator=generator)


def forward(graph: MaseGraph, x: Tensor, size: int | None = None) -> Tensor:
    """What the simulation gives, in batches of a size, as float64."""
    parts = torch.split(x, size or len(x))
    with torch.no_grad():
        return torch.cat([graph.model(part.clone()) for part in parts]).double()


def example(
    name: str, rows: int = 60, rules: Mapping[str, Any] | None = None
) -> tuple[MaseGraph, Tensor]:
    """A quantised example network and rows for it."""
    torch.manual_seed(0)
    fuse = name == "vgg7-fused"
    model, x, own = _examples(rows)[name]()
    return quantised(settled(model, x), x, ALL | own | dict(rules or {}), fuse), x


def _examples(rows: int) -> dict[str, Any]:
    image = SimpleNamespace(num_features=None, num_classes=4, image_size=(3, 8, 8))
    attended = torch.randn(rows, 5, 8)
    few = max(rows // 8, 3)
    return {
        "jsc-tiny": lambda: (JSC_Tiny(JETS), jets(rows), {}),
        "jsc-mlp": lambda: (JSC_MLP(JETS), jets(rows), {}),
        "jsc-new": lambda: (JSC_New(JETS), jets(rows), {"relu": integer(6, 3)}),
        "jsc-rs1923": lambda: (
            JSC_rs1923(JETS), jets(rows), {"add": integer(), "sigmoid": integer(out=(7, 7))},
        ),
        "vgg7": lambda: (vgg7.VGG7(image.image_size, 4), images(few, 3, 8), {}),
        "vgg7-fused": lambda: (vgg7.VGG7(image.image_size, 4), images(few, 3, 8), {}),
        "attention": lambda: (Attention(), attended, {"matmul": integer(), "add": integer()}),
        "branches": lambda: (
            Branches(), torch.randn(rows, 6), dict.fromkeys(("tanh", "mul"), integer()),
        ),
        "pools": lambda: (
            Pools(), images(rows, 2, 13),
            dict.fromkeys(("avg_pool2d", "adaptive_avg_pool2d"), integer()),
        ),
        "words": lambda: (Words(), torch.randint(0, 11, (rows, 3)), {}),
    }  # fmt: skip


EXAMPLES = tuple(_examples(2))
