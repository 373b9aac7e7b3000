"""C on simulated devices: memory, flash, and instructions for each multiplication.

    python benchmarks/bench_c.py [--estimates] [--load FOLDER] [--emlearn PYTHON]

Instructions are counted by qemu, cycles of the ATmega328 by simavr. The writer before it planned
memory, on the same networks and a Cortex-M4: cnn 112,912 bytes, 21.5 instructions, 6,732 bytes of
flash; jsc-mlp 916, 6.1, 5,105; resnet8 721,128 bytes.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from c_networks import OTHERS, other_network

import chop.passes as passes
from chop.export import EXPORT_TARGETS
from chop.export.c.boards.devices import DEVICES, OnDevice, run_on
from chop.export.c.boards.estimate import estimate_cost
from chop.export.c.code import value_type
from chop.export.c.source import c_program
from chop.export.c.target import COptions
from chop.export.rows import checked_rows
from chop.ir.graph.mase_graph import MaseGraph
from chop.loading.networks import load_graph
from chop.lowering import IntegerProgram, lower
from chop.lowering.program import Convolution, Product
from chop.models.physical.jet_substructure import JSC_MLP

NETWORKS = ("cnn", "resnet8", "jsc-mlp")
REGISTERED = ("resnet8",)
"""Registered networks that `chop.quantize` makes whole at 8 bits."""
ON_AVR = ("jsc-tiny",)
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


def run_network(
    name: str, program: IntegerProgram, board: str, *, defines: tuple[str, ...] = (),
    optimise: str = "speed",
) -> OnDevice:  # fmt: skip
    """Run two rows of a network on a device; they must be those of the engine."""
    rows = checked_rows(program, 2)
    with tempfile.TemporaryDirectory() as folder:
        EXPORT_TARGETS["c"](program, Path(folder), COptions(optimise=optimise))
        codes = rows.flat_codes.tolist()
        ran = run_on(DEVICES[board], Path(folder), "model", program, codes, defines=defines)
    assert (ran.codes == rows.flat_outputs).all(), name
    return ran


def print_line(
    names: tuple[str, str, str], scratch: int, ran: OnDevice, program: IntegerProgram
) -> None:
    """Print the line of a network, a device and a way to write the code."""
    size = f"{scratch:8,} {ran.flash_bytes:7,} {ran.stack_bytes:6,} {ran.instructions:12,}"
    each = ran.instructions / products(program)
    print(f"{names[0]:18} {names[1]:14} {names[2]:9} {size} {each:8.2f}", flush=True)


def show_network(name: str, program: IntegerProgram, boards: tuple[str, ...]) -> None:
    """Print a line for each device, and each way to write the code that makes a difference."""
    ways: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("default", "speed", ()), ("portable", "speed", ("MODEL_PORTABLE",)), ("size", "size", ()),
    )  # fmt: skip
    for board in boards:
        if DEVICES[board].missing:
            print(f"{name:18} {board:14} not installed: {DEVICES[board].missing}")
            continue
        for way, optimise, defines in ways:
            ran = run_network(name, program, board, defines=defines, optimise=optimise)
            scratch = c_program(program, optimise).scratch_bytes
            size = f"{scratch:8,} {ran.flash_bytes:7,} {ran.stack_bytes:6,} {ran.instructions:12,}"
            print(
                f"{name:18} {board:14} {way:9} {size} {ran.instructions / products(program):8.2f}"
            )


def show_estimates(board: str = "cortex-m4") -> None:
    """Print how far estimates are from a compiler and qemu, on networks they were not made of."""
    print(f"\n{'network':18} {'bits':>4} {'for':6} {'flash':>8} {'':>7} {'instructions':>12}")
    errors: list[tuple[float, float]] = []
    for name in OTHERS:
        for width, optimise in ((8, "speed"), (8, "size"), (4, "speed"), (4, "size")):
            program = other_network(name, width)
            guess = estimate_cost(c_program(program, optimise))
            ran = run_network(name, program, board, optimise=optimise)
            flash = guess.flash_bytes / ran.flash_bytes - 1
            spent = guess.instructions / ran.instructions - 1
            errors.append((abs(flash), abs(spent)))
            print(f"{name:18} {width:4} {optimise:6} {ran.flash_bytes:8,} {100 * flash:+6.1f}% "
                  f"{ran.instructions:12,} {100 * spent:+6.1f}%", flush=True)  # fmt: skip
    for what, found in zip(("flash", "instructions"), zip(*errors, strict=True), strict=True):
        inside = sum(each <= 0.15 for each in found)
        print(f"{what}: {inside} of {len(found)} within 15 %, the worst {100 * max(found):.1f} %")


SHIM = """\
#include "model.h"
#include "net.h"
/* named for activations that the network does not have; the linker wants them */
float expf(float x) {{ return x; }}
float tanhf(float x) {{ return x; }}
float logf(float x) {{ return x; }}
int model_predict(const int8_t *codes, {kind} *best, void *scratch) {{
    float x[{inputs}];
    (void)scratch;
    for (int i = 0; i < {inputs}; i++) x[i] = codes[i] * 0.0625f;
    best[0] = ({kind})net_predict(x, {inputs});
    for (int i = 1; i < {outputs}; i++) best[i] = 0;
    return 0;
}}
"""
HEADER = """\
#include <stdint.h>
#define MODEL_SCRATCH_BYTES {ram}
int model_predict(const int8_t *codes, {kind} *best, void *scratch);
"""


def show_emlearn(python: str, board: str = "cortex-m4") -> None:
    """Print what the same network of linear layers takes as the C of emlearn."""
    torch.manual_seed(0)
    facts: Any = SimpleNamespace(num_features=16, num_classes=5)
    layers = [each for each in JSC_MLP(facts).modules() if isinstance(each, nn.Linear)]
    arrays = {f"weight{n}": each.weight.detach().numpy() for n, each in enumerate(layers)}
    arrays |= {f"bias{n}": each.bias.detach().numpy() for n, each in enumerate(layers)}
    widest = max(max(each.weight.shape) for each in layers)
    program = made("jsc-mlp")
    kind = value_type(program.values[program.outputs[0]])
    codes = checked_rows(program, 2).flat_codes.tolist()
    with tempfile.TemporaryDirectory() as scratch:
        place, script = Path(scratch), Path(__file__).parent / "rivals_emlearn.py"
        np.savez(place / "weights.npz", **arrays)
        subprocess.run([python, script, place / "weights.npz", place / "net.h"], check=True)
        (place / "model.c").write_text(SHIM.format(inputs=16, outputs=5, kind=kind))
        (place / "model.h").write_text(HEADER.format(ram=2 * 4 * widest, kind=kind))
        ran = run_on(DEVICES[board], place, "model", program, codes)
    print_line(("jsc-mlp, emlearn", board, "float"), 2 * 4 * widest, ran, program)


def main() -> None:
    """Print a line for each network and device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--estimates", action="store_true", help="compare estimates, in minutes")
    parser.add_argument("--load", help="measure this saved graph, in place of the networks")
    parser.add_argument("--emlearn", metavar="PYTHON", help="an interpreter with emlearn")
    args = parser.parse_args()
    print(f"{'network':18} {'device':14} {'code':9} {'scratch':>8} {'flash':>7} {'stack':>6} "
          f"{'instructions':>12} {'per MAC':>8}")  # fmt: skip
    if args.load:
        show_network("loaded", lower(load_graph(args.load, "mz"), cut_tail=True), BOARDS)
        return
    for name in NETWORKS:
        show_network(name, made(name), BOARDS)
    for name in REGISTERED:
        show_network(f"{name}, registered", other_network(name, 8), ("cortex-m4",))
    for name in ON_AVR:
        show_network(name, other_network(name, 8), ("atmega328",))
    if args.emlearn:
        show_emlearn(args.emlearn)
    if args.estimates:
        show_estimates()


if __name__ == "__main__":
    main()
