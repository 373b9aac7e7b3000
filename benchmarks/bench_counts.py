"""Our counts beside those of other counters, with a reason for every difference.

A reason is a prediction: the number of the other counter must be ours plus what the reasons add up
to, or the row says `unexplained`. Products are compared (MACs, or 2 FLOPs for each), since that is
what all of them count; everything is for one sample. The other counters are optional:

    pip install thop fvcore ptflops

Run: python benchmarks/bench_counts.py [--quick] [--save]
"""

import argparse
import contextlib
import importlib.util
import io
import itertools
import json
import logging
import math
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph.analysis.flops import Counts, NodeCount, count

RESULTS = Path(__file__).parent / "results"
BLOCKS = (
    (64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1),
    (256, 512, 2), (512, 512, 1),
)  # fmt: skip
"""Of ResNet-18: channels before and after, stride."""
ATTENTION = "scaled_dot_product_attention"


class ByHand(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(16))
        return torch.softmax(scores, dim=-1) @ value


class Fused(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)


class Block(nn.Module):
    """Attention of four heads with its projections, a normalisation and a skip."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.project = nn.Linear(64, 192)
        self.attention = attention
        self.out = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(self.norm(x)).chunk(3, -1)
        shape = (x.size(0), x.size(1), 4, 16)
        query, key, value = (parts[i].reshape(shape).transpose(1, 2) for i in range(3))
        return x + self.out(self.attention(query, key, value).transpose(1, 2).flatten(2))


class Basic(nn.Module):
    """Two convolutions and a skip, as in ResNet-18."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        change = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.skip = change if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.relu(out + self.skip(x))


def resnet() -> nn.Module:
    """ResNet-18, 1.814 G MACs for images of 224 × 224."""
    blocks = [Basic(*size) for size in BLOCKS]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(BLOCKS[-1][1], 1000)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks, *head)


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32),
        nn.Conv2d(32, 64, 1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def perceptron() -> nn.Module:
    widths = (16, 64, 32, 32, 5)
    layers: list[nn.Module] = [nn.BatchNorm1d(16)]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def models(quick: bool) -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    size = 32 if quick else 224
    return {
        "MLP 16-64-32-32-5": (perceptron(), (16,)),
        "conv net with groups": (grouped(), (3, 32, 32)),
        f"ResNet-18, {size} × {size}": (resnet(), (3, size, size)),
        "attention by hand": (Block(ByHand()), (16, 64)),
        "attention fused": (Block(Fused()), (16, 64)),
    }


@dataclass
class Counted:
    """A model as we count it."""

    graph: MaseGraph
    counts: Counts
    shape: tuple[int, ...]

    @property
    def nodes(self) -> list[tuple[fx.Node, NodeCount]]:
        return [(node, each) for node, each in self.counts.nodes.items() if node.op[:4] == "call"]

    def sum(self, value: Callable[[NodeCount], int], *ops: str, modules: bool = False) -> int:
        return sum(
            value(each)
            for node, each in self.nodes
            if each.op.startswith(ops) and (node.op == "call_module" or not modules)
        )

    @property
    def biases(self) -> int:
        """One for each output of a layer that has products and a bias."""
        layers = self.graph.modules
        return sum(
            each.output_buffer_size
            for node, each in self.nodes
            if node.op == "call_module" and each.macs and layers[node.target].bias is not None
        )

    @property
    def grouped_gradients(self) -> int:
        layers = self.graph.modules
        return sum(
            2 * each.macs * (getattr(layers.get(str(node.target)), "groups", 1) - 1)
            for node, each in self.nodes
            if each.macs
        )


Reason = tuple[str, Callable[[Counted], int]]


def inputs(each: NodeCount) -> int:
    return each.input_buffer_size


def macs(each: NodeCount) -> int:
    return each.macs or 0


FUNCTIONS = "products that are functions or operators (matmul, attention) are not seen"
TORCH: list[Reason] = [
    (f"{ATTENTION} counts as 0 on a CPU", lambda c: -2 * c.sum(macs, ATTENTION)),
]
BACKWARD: list[Reason] = [
    (
        f"the gradient of {ATTENTION} counts as 0 on a CPU",
        lambda c: -c.sum(lambda each: 4 * macs(each), ATTENTION),
    ),
    (
        "the gradient of a grouped kernel is counted as if there were no groups",
        lambda c: c.grouped_gradients,
    ),
]
FVCORE: list[Reason] = [
    (f"{ATTENTION} is unknown and counts as 0", lambda c: -c.sum(macs, ATTENTION)),
    ("2 for each element of a batch norm are added", lambda c: 2 * c.sum(inputs, "batch_norm")),
    ("5 for each element of a layer norm are added", lambda c: 5 * c.sum(inputs, "layer_norm")),
    ("1 for each input of an adaptive pool is added", lambda c: c.sum(inputs, "adaptive")),
]
THOP: list[Reason] = [
    (FUNCTIONS, lambda c: -c.sum(macs, "matmul", ATTENTION)),
    (
        "4 for each element of a norm are added",
        lambda c: 4 * c.sum(inputs, "batch_norm", "layer_norm"),
    ),
    (
        "adaptive pools add 1 for each input and each output",
        lambda c: c.sum(lambda each: each.input_buffer_size + each.output_buffer_size, "adaptive"),
    ),
]
PTFLOPS: list[Reason] = [
    (FUNCTIONS, lambda c: -c.sum(macs, "matmul", ATTENTION)),
    ("a bias counts 1 for each output", lambda c: c.biases),
    ("2 for each element of a batch norm are added", lambda c: 2 * c.sum(inputs, "batch_norm")),
    ("1 for each element of a layer norm is added", lambda c: c.sum(inputs, "layer_norm")),
    (
        "activations and pools add 1 for each input, twice: as a module and as its function",
        lambda c: 2 * c.sum(inputs, "relu", "max_pool", "adaptive", modules=True),
    ),
]


def torch_forward(model: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(x)
    return int(counter.get_total_flops())


def torch_backward(model: nn.Module, x: Tensor) -> int:
    loss = model(x).sum()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    return int(counter.get_total_flops())


def fvcore_count(model: nn.Module, x: Tensor) -> int:
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(model, x)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    return int(analysis.total())


def thop_count(model: nn.Module, x: Tensor) -> int:
    from thop import profile

    return int(profile(model, inputs=(x,), verbose=False)[0])


def ptflops_count(model: nn.Module, x: Tensor) -> int:
    from ptflops import get_model_complexity_info

    found, _ = get_model_complexity_info(
        model,
        tuple(x.shape[1:]),
        as_strings=False,
        print_per_layer_stat=False,
        verbose=False,
        backend="pytorch",
    )
    return int(found)


def product_flops(counts: Counts) -> int:
    return 2 * counts.total["macs"]


def product_gradients(counts: Counts) -> int:
    return sum(each.backward_flops or 0 for each in counts.nodes.values() if each.macs) - sum(
        (each.flops or 0) - 2 * each.macs for each in counts.nodes.values() if each.macs
    )


@dataclass(frozen=True)
class Other:
    """Another counter: its package, what it calls its number, and why that differs from ours."""

    name: str
    package: str
    unit: str
    run: Callable[[nn.Module, Tensor], int]
    ours: Callable[[Counts], int]
    reasons: list[Reason]


def our_macs(counts: Counts) -> int:
    return counts.total["macs"]


OTHERS = [
    Other("FlopCounterMode", "torch", "FLOPs", torch_forward, product_flops, TORCH),
    Other(
        "FlopCounterMode", "torch", "backward FLOPs", torch_backward, product_gradients, BACKWARD
    ),
    Other("fvcore", "fvcore", "“FLOPs”, which are MACs", fvcore_count, our_macs, FVCORE),
    Other("thop", "thop", "MACs", thop_count, our_macs, THOP),
    Other("ptflops", "ptflops", "MACs", ptflops_count, our_macs, PTFLOPS),
]


def installed(other: Other) -> bool:
    return importlib.util.find_spec(other.package) is not None


def compare(name: str, model: nn.Module, shape: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """A row for each counter that is installed."""
    model.eval()
    x = torch.randn(1, *shape)
    graph = MaseGraph(model)
    first = next(node.name for node in graph.nodes if node.op == "placeholder")
    counts = count(graph, {first: x})
    assert counts.per == "sample"
    assert not counts.uncounted_nodes
    ours = Counted(graph, counts, shape)
    for other in filter(installed, OTHERS):
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = other.run(model, x)
        expected = [(text, term(ours)) for text, term in other.reasons]
        difference = theirs - other.ours(counts)
        why = [f"{text} ({amount:+,})" for text, amount in expected if amount]
        unexplained = difference - sum(amount for _, amount in expected)
        if unexplained:
            why.append(f"unexplained: {unexplained:+,}")
        yield {
            "model": name,
            "counter": other.name,
            "unit": other.unit,
            "theirs": theirs,
            "ours": other.ours(counts),
            "difference": difference,
            "why": "; ".join(why) or "equal",
            "unexplained": unexplained,
        }


def report(rows: list[dict[str, Any]]) -> str:
    headers = ["Model", "Counter", "Reports", "Its number", "Ours", "Difference", "Why"]
    keys = ("model", "counter", "unit", "theirs", "ours", "difference", "why")
    cells = [
        [f"{row[key]:,}" if isinstance(row[key], int) else row[key] for key in keys] for row in rows
    ]
    align = ("left", "left", "left", "right", "right", "right", "left")
    return tabulate(
        cells, headers=headers, tablefmt="github", colalign=align, disable_numparse=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small images")
    parser.add_argument("--save", action="store_true", help="add a line to benchmarks/results")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    rows = [row for name, case in models(arguments.quick).items() for row in compare(name, *case)]
    print(report(rows))
    missing = sorted({other.package for other in OTHERS if not installed(other)})
    print(f"\nNot installed: {', '.join(missing) or 'none'}.", end=" ")
    print(f"Unexplained differences: {sum(row['unexplained'] != 0 for row in rows)}.")
    if arguments.save:
        RESULTS.mkdir(exist_ok=True)
        line = {
            "benchmark": "counts",
            "torch": torch.__version__,
            "python": platform.python_version(),
            "missing": missing,
            "rows": rows,
        }
        with (RESULTS / "counts.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
