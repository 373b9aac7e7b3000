"""Networks and configurations that the tests of transforms share."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import required_fields
from chop.numerics import FORMATS
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
)

SETTINGS = {"width": 8, "frac_width": 4, "exponent_width": 4, "scale": 0.1}


class Jsc(nn.Module):
    """The layout of the labs: batch norm, ReLU and linear in turn, and a last ReLU."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, following in pairwise(widths):
            layers += [nn.BatchNorm1d(width), nn.ReLU(inplace=True), nn.Linear(width, following)]
        self.seq_blocks = nn.Sequential(*layers, nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.seq_blocks(x)


class JscNew(nn.Module):
    """The larger network of seed 000: four batch norms, four ReLUs, three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(
            nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8),
            nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8),
            nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5),
            nn.BatchNorm1d(5), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.seq_blocks(x)


class Mixed(nn.Module):
    """Modules, functions, operators and methods, in place and not."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        z = F.relu(y) + x
        z = z.matmul(self.weight)
        z = torch.sub(z, other=x)
        z += y
        return z.add_(x).mul(2.0).relu()


class ConvNet(nn.Module):
    """Convolutions with a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = x + self.conv2(x)
        return self.fc(x.mean((2, 3)))


class Shared(nn.Module):
    """One layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.fc(x)))


def graph_of(model: nn.Module, *shape: int, **inputs: Tensor) -> MaseGraph:
    """A graph with all metadata; the model is in evaluation mode."""
    graph = MaseGraph(model.eval())
    (name, *_) = (node.target for node in graph.nodes if node.op == "placeholder")
    dummy = inputs or {str(name): torch.randn(*shape)}
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": dummy})
    graph, _ = add_software_metadata_analysis_pass(graph)
    return graph


def config(name: str, *roles: str, **settings: Any) -> dict[str, Any]:
    """A flat configuration with the required fields of a format for each role."""
    values: Mapping[str, Any] = SETTINGS | settings
    wanted = {*required_fields(FORMATS[name]), *settings}
    roles = roles or ("data_in", "weight", "bias")
    keys = {f"{role}_{field}": values[field] for role in roles for field in sorted(wanted)}
    if name in ("integer", "fixed"):
        keys |= {f"{role}_frac_width": values["frac_width"] for role in roles}
    return {"name": name, **keys}


def rule(name: str | None, *roles: str, **settings: Any) -> dict[str, Any]:
    """The same as a rule of the pass."""
    return {"config": {"name": None} if name is None else config(name, *roles, **settings)}
