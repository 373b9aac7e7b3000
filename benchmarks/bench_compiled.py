"""Quantised networks against float ones: compiled by torch, and two large ones as they are.

One thread, the two in turns, CPU time of this process, so that others on the machine disturb less.
Every figure is a ratio within a round; printed are the median and the spread of the rounds.

    python benchmarks/bench_compiled.py [--only compiled] [--rounds 15]
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import chop
from chop.models.vision.resnet import ResNet18

SIZES = (16, 64, 32, 32, 5)
CONFIG = {"name": "integer"} | {
    f"{role}_{field}": value
    for role in ("data_in", "weight", "bias")
    for field, value in (("width", 8), ("frac_width", 4))
}
COMPILER, BATCHES = "inductor", (1024, 16384)
IMAGES, SEQUENCES, LAYERS = (8, 3, 64, 64), (8, 64, 128), 4
ENOUGH = 0.2
"""CPU seconds that a measurement takes at least."""
PRODUCTS = ["linear", "conv2d", "matmul", "scaled_dot_product_attention"]
FORMATS = {
    "integer": CONFIG,
    "minifloat_ieee": {"name": "minifloat_ieee"} | {
        f"{role}_{field}": value
        for role in ("data_in", "weight")
        for field, value in (("width", 8), ("exponent_width", 4))
    },
    "log": {"name": "log", "data_in_width": 8, "weight_width": 8},
}  # fmt: skip
Step = Callable[[], object]


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(SIZES):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def quantised(model: nn.Module, x: Tensor, config: dict[str, object], only: bool) -> nn.Module:
    """The model with its products in a number format, or with all that can be."""
    rule: dict[str, object] = {"config": config} | ({"only": PRODUCTS} if only else {})
    made: nn.Module = chop.quantize(model, x, {"by": "type", "default": rule}).model
    return made


def evaluation(model: nn.Module, x: Tensor) -> Step:
    model.eval()

    def step() -> object:
        with torch.inference_mode():
            return model(x)

    return step


def training(model: nn.Module, x: Tensor) -> Step:
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    labels = torch.zeros(len(x), dtype=torch.long)

    def step() -> object:
        optimiser.zero_grad()
        F.cross_entropy(model(x).flatten(1), labels).backward()
        return optimiser.step()

    return step


def seconds(step: Step, repeats: int) -> float:
    before = time.process_time()
    for _ in range(repeats):
        step()
    return (time.process_time() - before) / repeats


def ratios(name: str, one: Step, other: Step, rounds: int, enough: float) -> dict[str, float]:
    """CPU time of `one` over that of `other`, a ratio for each round; each takes `enough` time."""
    for step in (one, other):
        seconds(step, 3)
    repeats = max(1, int(enough / max(seconds(other, 3), 1e-6)))
    found = sorted(seconds(one, repeats) / seconds(other, repeats) for _ in range(rounds))
    ratio = {"median": statistics.median(found), "low": found[0], "high": found[-1]}
    spread = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
    print(f"{name:50} {ratio['median']:.2f}  ({spread})", flush=True)
    return ratio


def compile_whole(model: nn.Module) -> nn.Module:
    made: nn.Module = torch.compile(model, fullgraph=True, dynamic=False, backend=COMPILER)
    return made


def compiled(rounds: int) -> dict[str, dict[str, float]]:
    """Evaluation of the perceptron, compiled and as it is."""
    found = {}
    for batch in BATCHES:
        x = torch.randn(batch, SIZES[0])
        plain = compile_whole(perceptron())
        for name, config in FORMATS.items():
            model = quantised(perceptron(), x, config, only=False)
            fast = compile_whole(model)
            with torch.inference_mode():
                assert torch.equal(fast.eval()(x), model(x)), name
            steps = evaluation(fast, x), evaluation(plain, x)
            what = f"compiled, {name}, batch {batch}"
            found[what] = ratios(what, *steps, rounds, ENOUGH)
            if name == "integer":
                steps = evaluation(model, x), evaluation(perceptron(), x)
                what = f"eager, {name}, batch {batch}"
                found[what] = ratios(what, *steps, rounds, ENOUGH)
    return found


def large(rounds: int) -> dict[str, dict[str, float]]:
    """A ResNet-18 and an encoder, their products in integers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(SEQUENCES[-1], 4, 512, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    cases = {
        f"resnet18, images {IMAGES}": (ResNet18(IMAGES[1:], 10), torch.randn(IMAGES)),
        f"encoder of {LAYERS} layers, {SEQUENCES}": (encoder, torch.randn(SEQUENCES)),
    }
    torch.backends.mha.set_fastpath_enabled(False)  # which has no gradients, nor roundings
    found = {}
    for name, (model, x) in cases.items():
        made = quantised(model, x, CONFIG, only=True)
        for what, step in (("evaluation", evaluation), ("training", training)):
            steps = step(made, x), step(model, x)
            case = f"{what}, {name}"
            found[case] = ratios(case, *steps, rounds, 2.5 * ENOUGH)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=["compiled", "large"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    parts = {"compiled": compiled, "large": large}
    found = {}
    for name, part in parts.items():
        if args.only in (None, name):
            found |= part(args.rounds)
    print(json.dumps({"load": load, "rounds": args.rounds, "ratios": found}))


if __name__ == "__main__":
    main()
