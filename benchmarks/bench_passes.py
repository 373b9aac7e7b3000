"""How the cost of a pass grows with the number of layers: microseconds a node and the exponent.

Each time is the best of several runs; the exponent is the slope of time over nodes in log-log
coordinates, from 100 layers up, where fixed costs no longer count. 1 is linear.
Run: python benchmarks/bench_passes.py [--quick] [--save]
"""

import argparse
import contextlib
import io
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import PASSES
from chop.passes.graph.utils import deepcopy_mase_graph

RESULTS = Path(__file__).parent / "results"
SIZES = (10, 100, 1000, 5000)
X = torch.randn(4, 8)
INTEGER = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {
        "config": {
            "name": "integer",
            **{f"{role}_{key}": value
               for role in ("data_in", "weight", "bias")
               for key, value in (("width", 8), ("frac_width", 4))},
        }
    },
}  # fmt: skip
PROFILE = {
    "target_weight_nodes": ["linear"],
    "target_activation_nodes": ["relu"],
    "weight_statistics": {"variance_precise": {}},
    "activation_statistics": {"range_quantile": {}},
    "input_generator": [{"input": X}],
    "num_samples": len(X),
}


def network(layers: int) -> nn.Sequential:
    """Linear layers and ReLUs in turn."""
    return nn.Sequential(
        *(layer for _ in range(layers // 2) for layer in (nn.Linear(8, 8), nn.ReLU(inplace=True)))
    )


def pass_arguments(folder: str) -> dict[str, dict[str, Any]]:
    """The passes that are timed, in the order in which they build on each other."""
    file = {"file_name": f"{folder}/report.txt"}
    return {
        "init_metadata": {},
        "add_common_metadata": {"dummy_in": {"input": X}},
        "add_software_metadata": {},
        "profile_statistics": PROFILE,
        "verify_metadata": {},
        "report_graph": file,
        "report_node_type": {},
        "report_node_meta_param": {"which": ("software",)},
        "count_operations": {"report": False},
        "quantize": INTEGER,
    }


def best(run: Callable[[], Any], times: int) -> float:
    """Seconds of the fastest of several runs."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure(layers: int, times: int, folder: str) -> dict[str, float]:
    """Seconds of each step on a network of so many layers."""
    model = network(layers)
    graph = MaseGraph(model)
    found = {"MaseGraph(model)": best(lambda: MaseGraph(model), times)}
    for name, arguments in pass_arguments(folder).items():
        if name in PASSES:
            entry = PASSES[name]
            with contextlib.redirect_stdout(io.StringIO()):
                found[name] = best(lambda e=entry, a=arguments: e(graph, a), times)
    found["deepcopy_mase_graph"] = best(lambda: deepcopy_mase_graph(graph), times)
    return found


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of log time over log size."""
    pairs = [(math.log(n), math.log(s)) for n, s in zip(sizes, seconds, strict=True) if n >= 100]
    mean_x = sum(x for x, _ in pairs) / len(pairs)
    mean_y = sum(y for _, y in pairs) / len(pairs)
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    return sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 to 1,000 layers, one run each")
    parser.add_argument("--save", action="store_true", help="append a line to benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = list(SIZES[:3] if options.quick else SIZES)
    with tempfile.TemporaryDirectory() as folder:
        measure(10, 1, folder)  # imports and first calls
        runs = [measure(size, 1 if options.quick else 3, folder) for size in sizes]
    rows = []
    for name in runs[0]:
        seconds = [run[name] for run in runs]
        each = [s / n * 1e6 for n, s in zip(sizes, seconds, strict=True)]
        rows.append([name, *each, exponent(sizes, seconds), seconds[2]])
    each = (f"{size:,} layers, µs a node" for size in sizes)
    headers = ["step", *each, "exponent", f"s for {sizes[2]:,}"]
    print(tabulate(rows, headers, floatfmt=(None, *(".1f" for _ in sizes), ".2f", ".2f")))
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        line = {
            "benchmark": "passes",
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "threads": 1,
            "sizes": sizes,
            "steps": {row[0]: {"us_per_node": row[1:-2], "exponent": row[-2]} for row in rows},
        }
        with (RESULTS / "passes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
