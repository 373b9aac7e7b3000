"""Integer programs: how long lowering takes, and what engine, C and ONNX cost beside the model.

One thread, one process, rivals in turns; every figure that matters is a ratio within one run.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import chop.passes as passes
from chop.export.c.code import value_type
from chop.export.c.target import write_c
from chop.export.onnx.write.standard import FILE, write_onnx
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import Engine, IntegerProgram, lower
from chop.models.physical.jet_substructure import JSC_MLP
from chop.models.vision.vgg7 import VGG7

CHAINS, ROWS, IMAGES = (100, 300, 1000), 20_000, (8, 3, 32, 32)
CONFIG = {"name": "integer"} | {
    f"{role}_{field}": value
    for role in ("data_in", "weight", "bias")
    for field, value in (("width", 8), ("frac_width", 4))
}
JETS: Any = SimpleNamespace(num_features=16, num_classes=5)
Run = Callable[[], object]


def quantised(model: nn.Module, x: Tensor, *types: str, fuse: bool = False) -> MaseGraph:
    graph = MaseGraph(model.eval())
    name = next(str(node.target) for node in graph.nodes if node.op == "placeholder")
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": {name: x[:2]}})
    if fuse:
        graph, _ = passes.conv_bn_fusion_transform_pass(graph)
    rules = {name: {"config": CONFIG} for name in types}
    graph, _ = passes.quantize_transform_pass(graph, {"by": "type", **rules})
    return graph


def chain(layers: int) -> MaseGraph:
    parts = [part for _ in range(layers // 2) for part in (nn.Linear(16, 16), nn.ReLU())]
    return quantised(nn.Sequential(*parts), torch.zeros(2, 16), "linear")


def seconds(run: Run) -> float:
    start = time.process_time()  # as the C measures its own; all have one thread
    run()
    return time.process_time() - start


def ratio(one: Run, other: Run, repeats: int) -> tuple[float, float, float]:
    """Median of one / other over rounds in turns, and the smallest and largest."""
    one(), other()
    found = [seconds(one) / seconds(other) for _ in range(repeats)]
    return statistics.median(found), min(found), max(found)


def compared(graph: MaseGraph, x: Tensor, repeats: int) -> tuple[float, float, float]:
    """Engine from codes to codes, against the simulation from numbers to numbers."""
    engine = Engine(lower(graph))
    codes = engine.quantise({engine.program.inputs[0].placeholder: x})

    def simulate() -> object:
        with torch.no_grad():
            return graph.model(x)

    return ratio(lambda: engine.run(codes), simulate, repeats)


def c_seconds(program: IntegerProgram, codes: Tensor, rounds: int) -> float:
    """Seconds that compiled C takes for all rows, the best of some rounds.

    Few rows are run again and again in a round, as the clock counts microseconds.
    """
    again = -(-ROWS // len(codes))
    source, out = program.inputs[0].value, program.values[program.outputs[0]]
    numbers = ",".join(map(str, codes.reshape(-1).tolist()))
    driver = f"""#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include "model.h"
static const {value_type(source)} rows[] = {{{numbers}}};
static {value_type(out)} result[{out.size}];
static uint64_t scratch[(MODEL_SCRATCH_BYTES + 7) / 8];
int main(void) {{
    volatile long long used = 0;
    for (int round = 0; round < {rounds}; round++) {{
        clock_t start = clock();
        for (int row = 0; row < {len(codes) * again}; row++) {{
            model_predict(rows + (long)(row % {len(codes)}) * {source.size}, result, scratch);
            used += result[0];
        }}
        printf("%.9f\\n", (double)(clock() - start) / CLOCKS_PER_SEC);
    }}
    return 0;
}}
"""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_c(program, place)
        (place / "driver.c").write_text(driver)
        command = ["cc", "-std=c99", "-O3", "model.c", "driver.c", "-o", "run"]
        subprocess.run(command, cwd=folder, check=True)
        printed = subprocess.run([place / "run"], capture_output=True, text=True, check=True)
    return min(map(float, printed.stdout.split())) / again


def onnx_seconds(program: IntegerProgram, codes: Tensor, rounds: int) -> float:
    """Seconds that onnxruntime takes for all rows, from numbers to numbers, the best of some."""
    import onnxruntime

    source = program.inputs[0]
    fed = {source.placeholder: torch.ldexp(codes.float(), -torch.tensor(source.value.frac)).numpy()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        write_onnx(program, Path(folder))
        session = onnxruntime.InferenceSession(str(Path(folder) / FILE), options)
        session.run(None, fed)
        return min(seconds(lambda: session.run(None, fed)) for _ in range(rounds))


def measured(quick: bool) -> dict[str, Any]:
    repeats = 3 if quick else 21
    torch.manual_seed(0)
    rows: dict[str, Any] = {}
    for layers in CHAINS:
        graph = chain(layers)
        each = min(seconds(lambda g=graph: lower(g)) for _ in range(2 if quick else 5)) / layers
        rows[f"lowering, {layers} nodes, us per node"] = 1e6 * each
    jets, images = torch.randn(ROWS, 16), torch.randn(IMAGES)
    mlp = quantised(JSC_MLP(JETS), jets, "linear")
    rows[f"engine / float model, jsc-mlp, {ROWS:,} rows"] = compared(mlp, jets, repeats)
    vgg7 = f"engine / float model, {len(images)} images, vgg7"
    fused = quantised(VGG7(IMAGES[1:], 10), images, "conv2d", "linear", fuse=True)
    rows[f"{vgg7} fused"] = compared(fused, images, repeats)
    plain = quantised(VGG7(IMAGES[1:], 10), images, "conv2d", "linear", "batch_norm2d")
    rows[f"{vgg7} with tables"] = compared(plain, images, repeats)
    engine = Engine(lower(mlp))
    (name,) = codes = engine.quantise({"x": jets})
    for count in (1, ROWS):
        some = {name: codes[name][:count]}
        best = min(seconds(lambda s=some: engine.run(s)) for _ in range(repeats))
        in_c = c_seconds(engine.program, some[name], repeats)
        rows[f"C / engine, jsc-mlp, {count:,} rows"] = in_c / best
        if find_spec("onnxruntime"):
            rounds = repeats * (50 if count == 1 else 1)
            in_onnx = onnx_seconds(engine.program, some[name], rounds)
            rows[f"onnxruntime / engine, jsc-mlp, {count:,} rows"] = in_onnx / best
            rows[f"C / onnxruntime, jsc-mlp, {count:,} rows"] = in_c / in_onnx
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it runs")
    parser.add_argument("--save", action="store_true", help="add a line to benchmarks/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = measured(args.quick)
    print(f"one thread, torch {torch.__version__}, load average {os.getloadavg()[0]:.1f}")
    for title, found in rows.items():
        numbers = found if isinstance(found, tuple) else (found,)
        print(f"{title:55}" + " ".join(f"{number:9.3f}" for number in numbers))
    if args.save:
        facts = {"torch": torch.__version__, "threads": 1, "load": os.getloadavg()[0]}
        with (Path(__file__).parent / "results" / "lowering.jsonl").open("a") as file:
            file.write(json.dumps({"benchmark": "lowering", **facts, **rows}) + "\n")


if __name__ == "__main__":
    main()
