"""Graphs of every kind that saving must bring back."""

import hashlib
import json
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.graph.mase_graph import SECTIONS, MaseGraph, MaseTracer
from chop.ir.stored.folder import seal
from chop.ir.stored.metadata import by_path, toml_text
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
)

Example = tuple[nn.Module, dict[str, Tensor]]


def rows(*shape: int) -> dict[str, Tensor]:
    return {"x": torch.randn(*shape)}


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Conv2d(8, 8, (3, 1), padding=(1, 0), groups=4, bias=False)
        self.pool = nn.AdaptiveAvgPool2d((1, None))
        self.head = nn.Linear(8 * 6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.pool(x + self.body(x))
        return self.head(x.flatten(1))


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 6))
        self.register_buffer("offset", torch.randn(6))
        self.frozen = nn.Parameter(torch.randn(()), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(F.gelu(x, approximate="tanh"), self.weight.t()) + self.offset
        y = torch.cat([y, y[:, 1:3], y[..., ::2]], dim=-1)
        y = F.softmax(y, dim=-1).clamp(min=1e-3) * self.frozen * math.sqrt(2.0)
        y = operator.sub(y, torch.mean(y, dim=(0,), keepdim=True)).to(torch.float32)
        return F.max_pool1d(y.unsqueeze(1), 2).squeeze(1)


class Methods(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.view(x.size(0), -1).reshape(x.shape[0], 2, -1).permute(0, 2, 1).contiguous()
        y += 1.0
        return y.mul(-2).relu_().masked_fill(y.gt(0.5), float("inf")).float().sum(dim=-1)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.fc.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(self.fc(torch.tanh(self.fc(x))))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Bilinear(3, 4, 2)

    def forward(self, left: Tensor, right: Tensor, scale: float = 2.0) -> dict[str, Any]:
        both = self.fc(left, right)
        return {"sum": both * scale, "parts": (left, [right, both])}


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)
        self.norm = nn.LayerNorm(8, eps=1e-3)
        self.rnn = nn.LSTM(8, 4, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        y = self.norm(self.attention(y, y, y)[0] + y)
        return self.rnn(y)[0]


class Double(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.drop = nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc(x))


def sequential() -> Example:
    layers = (nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 5), nn.ReLU(inplace=True))
    return nn.Sequential(*layers), {"input": torch.randn(8, 16)}


def two_inputs() -> Example:
    return TwoInputs(), {"left": torch.randn(5, 3), "right": torch.randn(5, 4)}


def channels_last() -> Example:
    model = ConvNet().to(memory_format=torch.channels_last)
    return model, {"x": torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)}


ZOO: dict[str, Callable[[], Example]] = {
    "sequential": sequential,
    "conv": lambda: (ConvNet(), rows(2, 3, 6, 6)),
    "channels_last": channels_last,
    "functional": lambda: (Functional(), rows(4, 5)),
    "methods": lambda: (Methods(), rows(3, 2, 4)),
    "shared": lambda: (Shared(), rows(3, 4)),
    "two_inputs": two_inputs,
    "sequences": lambda: (Sequences(), {"x": torch.randint(10, (2, 5))}),
    "double": lambda: (Double().double(), {"x": torch.randn(3, 4).double()}),
}


def graph_of(model: nn.Module, inputs: dict[str, Tensor], **options: Any) -> MaseGraph:
    """A graph with all metadata, in evaluation mode."""
    graph = MaseGraph(model.eval(), **options)
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    graph, _ = add_software_metadata_analysis_pass(graph)
    return graph


class OwnBlock(nn.Module):
    """A layer that no table knows."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if bool((x > 0).any()) else x


def own_function(x: Tensor) -> Tensor:
    """A function that no table knows."""
    return x * 3


class WithOwnParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = OwnBlock()

    def forward(self, x: Tensor) -> Tensor:
        return own_function(self.block(x))


def graph_with_own_parts() -> MaseGraph:
    tracer = MaseTracer(custom_leaf_layers=(OwnBlock,), custom_leaf_functions=(own_function,))
    return graph_of(WithOwnParts(), rows(3, 4), tracer=tracer)


def assert_equal(left: Any, right: Any) -> None:
    """Nested values are equal to the last bit."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    elif isinstance(left, Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left.nan_to_num(nan=7.5), right.nan_to_num(nan=7.5))
    else:
        assert left == right


def assert_same_graph(left: MaseGraph, right: MaseGraph, inputs: dict[str, Tensor]) -> None:
    """Nodes, metadata, tensors and outputs are equal."""
    assert str(left.fx_graph) == str(right.fx_graph)
    assert left.model.code == right.model.code
    for one, other in zip(left.nodes, right.nodes, strict=True):
        for section in SECTIONS:
            assert_equal(one.meta["mase"][section], other.meta["mase"][section])
    assert_equal(left.meta["mase"].parameters, right.meta["mase"].parameters)
    assert_equal(dict(left.model.state_dict()), dict(right.model.state_dict()))
    strides = [[p.stride() for p in graph.model.parameters()] for graph in (left, right)]
    assert strides[0] == strides[1]
    assert [type(m).__name__ for m in left.model.modules()] == [
        type(m).__name__ for m in right.model.modules()
    ]
    with torch.no_grad():
        copies = [{key: value.clone() for key, value in inputs.items()} for _ in range(2)]
        assert_equal(left.model(**copies[0]), right.model(**copies[1]))


def in_earlier_form(folder: Path) -> Path:
    """Turn a saved graph into one of an earlier version, whose metadata is a file of TOML."""
    graph, metadata = folder / "graph.json", folder / "node_meta_param.toml"
    record = json.loads(graph.read_text())
    metadata.write_text(toml_text(by_path(record.pop("metadata"))))
    del record["checksum"]
    digest = hashlib.sha256(metadata.read_bytes()).hexdigest()
    record["digests"] = record.get("digests", {}) | {metadata.name: digest}
    graph.write_text(seal(record))
    return folder
