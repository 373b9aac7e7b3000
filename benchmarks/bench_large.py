"""What a search costs on a large network whose graph comes from torch.export: BERT-base, 109 M.

trial      the time of a trial of `random`, over that of a forward pass on the same rows; <= 1.3
calibrate  the time of choosing scales for weights and inputs, in 8 bits and in each of five
           widths, over that of a forward pass on the rows; <= 3 in 8 bits
peak       the most memory of the process, without what Python and torch take, over the model; <= 5
growth     the memory after the last trial over that after the third; 1
saved      the bytes of a saved graph in 8 bits over those of its weights as they are stored; <= 1.1

    python benchmarks/bench_large.py            BERT-base from its configuration, one thread
    python benchmarks/bench_large.py --quick    a BERT of 1.3 M: times mean little
    python benchmarks/bench_large.py --save     adds a line to results/large.jsonl
"""

import argparse
import json
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from tabulate import tabulate

from chop.dataset import MaseDataModule
from chop.ir.stored.folder import save_graph
from chop.logger import set_logging_verbosity
from chop.models import get_model_info
from chop.models.hf import TokenModel
from chop.passes.graph import quantize_transform_pass
from chop.search.config import parse_search
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import SearchContext, make_space, walk

RESULTS = Path(__file__).parent / "results" / "large.jsonl"
ROWS, TRIALS = 64, 20
WIDTHS = (4, 5, 6, 7, 8)
SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
         "intermediate_size": 512, "vocab_size": 4000}  # fmt: skip


def tables(frac: Any, widths: Sequence[int] = WIDTHS) -> dict[str, Any]:
    """The tables of a search of widths for each linear layer."""
    config: dict[str, Any] = {"name": ["integer"]}
    for role in ("data_in", "weight"):
        config |= {f"{role}_width": list(widths), f"{role}_frac_width": frac}
    config |= {"bias_width": [12], "bias_frac_width": [8]}
    return {
        "search_space": {
            "name": "graph/quantize/mixed_precision_ptq",
            "setup": {"by": "type", "calibrate": {"num_samples": ROWS}},
            "seed": {"default": {"config": {"name": [None]}}, "linear": {"config": config}},
        },
        "strategy": {
            "sw_runner": {"basic_evaluation": {"num_samples": ROWS}},
            "hw_runner": {"average_bitwidth": {}},
            "setup": {"sampler": "random", "n_trials": TRIALS},
            "metrics": {
                "accuracy": {"direction": "maximize"},
                "average_bitwidth": {"direction": "minimize"},
            },
        },
    }


def seconds(work: Callable[[], Any]) -> float:
    """The processor time that a call takes: others may be at work on this machine."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def resident() -> int:
    """The bytes of memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """The most bytes of memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def context(config: dict[str, Any]) -> SearchContext:
    """A BERT of random weights that judges the sentences of `agreement`."""
    data = MaseDataModule("agreement", batch_size=ROWS // 2)
    data.setup()
    torch.manual_seed(0)
    network = transformers.BertForSequenceClassification(transformers.BertConfig(**config))
    return SearchContext(TokenModel(network).eval(), get_model_info("encoder-tiny"), data)


def calibration(found: SearchContext, widths: Sequence[int]) -> float:
    """The time of choosing scales for weights and inputs in each of some widths."""
    stated = parse_search(tables(["auto"], widths)).search_space
    space = make_space(stated.name, found, stated.setup, stated.seed)
    found.kept.clear()
    return seconds(space._chosen_scales)  # type: ignore[attr-defined]


def saved_share(found: SearchContext, stored: float) -> float:
    """The bytes of a saved graph, all linear layers in 8 bits, over those of its weights.

    Args:
        stored: the bytes of the weights in their formats.
    """
    config = {"name": "integer"}
    for role, width, frac in (("data_in", 8, 4), ("weight", 8, 7), ("bias", 12, 8)):
        config |= {f"{role}_width": width, f"{role}_frac_width": frac}
    graph = found.graph(found.pristine())
    args = {"by": "type", "default": {"config": {"name": None}}, "linear": {"config": config}}
    graph, _ = quantize_transform_pass(graph, args)
    with tempfile.TemporaryDirectory() as folder:
        saved = save_graph(graph, Path(folder) / "saved", "codes")
        return sum(saved.sizes.values()) / stored


class Bench:
    """A network, its rows and the time of a forward pass on them."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.found = context(config)
        self.weights = sum(each.nbytes for each in self.found.model.parameters())
        self.base = resident() - self.weights
        self.batches = self.found.batches("val_dataloader", ROWS)
        self.forward()
        self.passes = [seconds(self.forward) for _ in range(3)]

    def forward(self) -> None:
        """Run the network in floating point on all rows."""
        with torch.inference_mode():
            for features, _ in self.batches:
                self.found.model(features)

    def trials(self) -> tuple[list[float], list[int]]:
        """The time of each trial, and the memory after it; now and then a forward pass."""
        config = parse_search(tables([3, 4, 5]))
        stated = config.search_space
        space = make_space(stated.name, self.found, stated.setup, stated.seed)
        assert space.variants is not None  # type: ignore[attr-defined]
        measure, draw = Measure(space, config), random.Random(0)
        times, memory = [], []
        for number in range(TRIALS):
            chosen = space.config(walk(space.tree, lambda each: draw.randrange(len(each.options))))
            times.append(seconds(partial(measure, chosen)))
            memory.append(resident())
            if number % 4 == 3:
                self.passes.append(seconds(self.forward))
        return times, memory

    def stored(self) -> int:
        """The bytes of the weights when those of linear layers have one byte each."""
        layers = self.found.model.modules()
        linear = sum(each.weight.numel() for each in layers if isinstance(each, torch.nn.Linear))
        return self.weights - 3 * linear


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    set_logging_verbosity("error")
    torch.set_num_threads(1)
    bench = Bench(SMALL if options.quick else {})
    times, memory = bench.trials()
    most, one = peak(), statistics.median(bench.passes)
    figures = {
        "trial": statistics.median(times[2:]) / one,
        "calibrate": calibration(bench.found, (8,)) / one,
        "calibrate five widths": calibration(bench.found, WIDTHS) / one,
        "peak": (most - bench.base) / bench.weights,
        "growth": memory[-1] / memory[2],
        "saved": saved_share(bench.found, bench.stored()),
    }
    targets = {"trial": "<= 1.3", "calibrate": "<= 3", "peak": "<= 5", "growth": "1",
               "saved": "<= 1.1"}  # fmt: skip
    rows = [[name, value, targets.get(name, "")] for name, value in figures.items()]
    print(tabulate(rows, ["", "ratio", "target"], floatfmt=".3f", tablefmt="github"))
    print(f"{bench.weights / 2**20:.0f} MiB, a forward pass takes {one:.2f} s; trials in passes:",
          " ".join(f"{each / one:.2f}" for each in times))  # fmt: skip
    if options.save:
        line = {"results": figures, "rows": ROWS, "trials": TRIALS, "load": os.getloadavg()[0]}
        with RESULTS.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
