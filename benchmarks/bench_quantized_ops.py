"""A training step of a quantised MLP against the float step and, where installed, Brevitas.

One thread, one process, the rivals interleaved; every figure that matters is a ratio within one
run, of the best of many steps and of their median. Brevitas is used only where it can be imported:

    python3 -m venv /tmp/brevitas && /tmp/brevitas/bin/pip install torch==2.13.0
    /tmp/brevitas/bin/pip install 'brevitas==0.13.*' 'setuptools<81' pydantic
    PYTHONPATH=src /tmp/brevitas/bin/python benchmarks/bench_quantized_ops.py
"""

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import quantize_module
from chop.ops.op import op_of_module

SIZES = (16, 64, 32, 32, 5)
BATCH = 1024
CONFIG = {"name": "integer"} | {
    f"{role}_{field}": value
    for role in ("data_in", "weight", "bias")
    for field, value in (("width", 8), ("frac_width", 4))
}
Step = Callable[[], object]


def float_mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(SIZES):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def chop_mlp() -> nn.Sequential:
    model = float_mlp()
    for name, module in model.named_children():
        op = op_of_module(module)
        assert op is not None
        quant = parse_quant_config(op, CONFIG, "benchmark")
        setattr(model, name, quantize_module(module, op, quant))
    return model


def brevitas_mlp() -> nn.Sequential:
    from brevitas import nn as qnn
    from brevitas.quant import (
        Int8ActPerTensorFixedPoint,
        Int8WeightPerTensorFixedPoint,
        Uint8ActPerTensorFixedPoint,
    )

    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(SIZES):
        layers.append(
            qnn.QuantLinear(
                inputs,
                outputs,
                bias=True,
                weight_quant=Int8WeightPerTensorFixedPoint,
                input_quant=Int8ActPerTensorFixedPoint,
            )
        )
        layers.append(qnn.QuantReLU(act_quant=Uint8ActPerTensorFixedPoint))
    return nn.Sequential(*layers[:-1])


def training_step(model: nn.Module) -> Step:
    x = torch.randn(BATCH, SIZES[0])
    y = torch.randint(0, SIZES[-1], (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()

    def step() -> object:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        return optimizer.step()

    return step


def evaluation(model: nn.Module) -> Step:
    x = torch.randn(BATCH, SIZES[0])
    model.eval()

    def step() -> object:
        with torch.no_grad():
            return model(x)

    return step


def timed(steps: dict[str, Step], repeats: int) -> dict[str, dict[str, float]]:
    """Best and median microseconds of each step, the steps taking turns.

    The best is what the step takes when nothing else disturbs it; the two differ on a busy machine.
    """
    for step in steps.values():
        for _ in range(20):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e6 * (time.perf_counter() - start))
    return {
        name: {"best": min(found), "median": statistics.median(found)}
        for name, found in times.items()
    }


def builders() -> dict[str, Callable[[], nn.Module]]:
    found: dict[str, Callable[[], nn.Module]] = {"float": float_mlp, "chop integer": chop_mlp}
    if importlib.util.find_spec("brevitas") and importlib.util.find_spec("brevitas.nn"):
        found["brevitas int8"] = brevitas_mlp
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it runs")
    parser.add_argument("--save", action="store_true", help="add a line to benchmarks/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 5 if args.quick else 300
    rows = {}
    for title, make in (("training step", training_step), ("evaluation", evaluation)):
        steps = {name: make(build()) for name, build in builders().items()}
        rows[title] = timed(steps, repeats)
    print(f"{'-'.join(map(str, SIZES))} MLP, batch {BATCH}, one thread, torch {torch.__version__}")
    print(f"load average {os.getloadavg()[0]:.1f}; microseconds, and times the float step")
    for title, times in rows.items():
        for name, found in times.items():
            shown = "".join(
                f"{kind:>9} {found[kind]:8.0f} us {found[kind] / times['float'][kind]:6.2f} x"
                for kind in ("best", "median")
            )
            print(f"{title:14} {name:14} {shown}")
    if "brevitas int8" not in rows["training step"]:
        print("Brevitas is not installed here and was left out.")
    if args.save:
        folder = Path(__file__).parent / "results"
        folder.mkdir(exist_ok=True)
        facts = {"torch": torch.__version__, "threads": 1, "load": os.getloadavg()[0]}
        line = {"benchmark": "quantized_ops", **facts, **rows}
        with (folder / "quantized_ops.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
