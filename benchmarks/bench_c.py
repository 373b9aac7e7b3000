"""C on simulated devices: memory, flash, and instructions for each multiplication.

    python benchmarks/bench_c.py

Instructions are counted by qemu. The writer before it planned memory, on the same networks and a
Cortex-M4: cnn 112,912 bytes, 21.5 instructions, 6,732 bytes of flash; jsc-mlp 916, 6.1, 5,105;
resnet8 721,128 bytes.
"""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import chop.passes as passes
from chop.export import EXPORT_TARGETS
from chop.export.c.boards.devices import DEVICES, run_on
from chop.export.c.source import c_program
from chop.export.rows import checked_rows
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import IntegerProgram, lower
from chop.lowering.program import Convolution, Product
from chop.models.physical.jet_substructure import JSC_MLP

NETWORKS = ("cnn", "resnet8", "jsc-mlp")
BOARDS = ("cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m33", "rv32")
CONFIG = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4} | {
    f"{role}_{field}": value
    for role in ("weight", "bias")
    for field, value in (("width", 8), ("frac_width", 6))
}


def block(inside: int, out: int, kernel: int, stride: int) -> nn.Module:
    """A convolution with batch normalisation."""
    layer = nn.Conv2d(inside, out, kernel, stride, kernel // 2)
    return nn.Sequential(layer, nn.BatchNorm2d(out))


class ResNet8(nn.Module):
    """The network for images of MLPerf Tiny."""

    def __init__(self) -> None:
        super().__init__()
        self.first = block(3, 16, 3, 1)
        sizes = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        self.one = nn.ModuleList(block(a, b, 3, s) for a, b, s in sizes)
        self.two = nn.ModuleList(block(b, b, 3, 1) for _, b, _ in sizes)
        self.side = nn.ModuleList(block(a, b, 1, s) if a != b else nn.Identity()
                                  for a, b, s in sizes)  # fmt: skip
        self.pool, self.last = nn.AvgPool2d(8), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for one, two, side in zip(self.one, self.two, self.side, strict=True):
            x = torch.relu(side(x) + two(torch.relu(one(x))))
        result: Tensor = self.last(torch.flatten(self.pool(x), 1))
        return result


def made(name: str) -> IntegerProgram:
    """The integer program of a network at 8 bits."""
    torch.manual_seed(0)
    if name == "jsc-mlp":
        facts: Any = SimpleNamespace(num_features=16, num_classes=5)
        model, x = JSC_MLP(facts), torch.randn(2, 16)
    else:
        layers: list[nn.Module] = []
        for inside, out in ((3, 8), (8, 16), (16, 16)):
            layers += [nn.Conv2d(inside, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        small = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 4))
        model, x = small if name == "cnn" else ResNet8(), torch.randn(2, 3, 32, 32)
    graph = MaseGraph(model.eval())
    given = next(str(node.target) for node in graph.nodes if node.op == "placeholder")
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": {given: x}})
    graph, _ = passes.conv_bn_fusion_transform_pass(graph)
    types = {node.meta["mase"]["common"]["mase_op"] for node in graph.nodes}
    kinds = types & {"conv2d", "linear", "add", "batch_norm1d"}
    rules = {kind: {"config": CONFIG} for kind in kinds}
    graph, _ = passes.quantize_transform_pass(graph, {"by": "type", **rules})
    return lower(graph)


def products(program: IntegerProgram) -> int:
    """Multiplications of a row."""
    layers = (step for step in program.steps if isinstance(step, Product | Convolution))
    return sum(step.out.size * step.weight[0].size for step in layers)


def main() -> None:
    """Print a line for each network and device."""
    print(f"{'network':9} {'device':14} {'code':9} {'scratch':>8} {'flash':>7} {'per MAC':>8}")
    for name in NETWORKS:
        program = made(name)
        scratch, rows = c_program(program).scratch_bytes, checked_rows(program, 2)
        with tempfile.TemporaryDirectory() as folder:
            EXPORT_TARGETS["c"](program, Path(folder))
            for board in BOARDS:
                for code, defines in (("default", ()), ("portable", ("MODEL_PORTABLE",))):
                    if DEVICES[board].missing:
                        print(f"{name:9} {board:14} not installed: {DEVICES[board].missing}")
                        break
                    codes = rows.flat_codes.tolist()
                    ran = run_on(DEVICES[board], Path(folder), "model", program, codes,
                                 defines=defines)  # fmt: skip
                    assert (ran.codes == rows.flat_outputs).all()
                    each = ran.instructions / products(program)
                    size = f"{scratch:8,} {ran.flash_bytes:7,}"
                    print(f"{name:9} {board:14} {code:9} {size} {each:8.2f}")


if __name__ == "__main__":
    main()
