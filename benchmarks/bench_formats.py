"""Time of rounding in every format against copying the tensor and against fixed point."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tabulate import tabulate

from chop.numerics import FORMATS, NumberFormat

SETTINGS: dict[str, dict[str, object]] = {
    "integer": {"width": 8, "frac_width": 4},
    "minifloat_ieee": {"width": 8, "exponent_width": 4},
    "minifloat_denorm": {"width": 8, "exponent_width": 4},
    "log": {"width": 8},
    "block_fp": {"width": 8, "block_size": [16]},
    "block_minifloat": {"width": 8, "exponent_width": 3, "block_size": [16]},
    "block_log": {"width": 5, "block_size": [16]},
}
RESULTS = Path(__file__).parent / "results"


def seconds(work: Callable[[], object]) -> float:
    """The time of a second call: the first leaves it the same warm memory, whatever ran before."""
    work()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best time of each, all taken in turn so that a busy machine slows them alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: min(taken) for name, taken in times.items()}


def call_overhead(fmt: NumberFormat) -> float:
    """Microseconds of one call on a small tensor that records gradients."""
    x = torch.randn(64, requires_grad=True)
    return statistics.median(seconds(lambda: fmt(x)) for _ in range(300)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small tensor, one round")
    parser.add_argument("--save", action="store_true", help="append one JSON line to results/")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn((16, 4000) if args.quick else (2000, 4000))
    formats = {n: FORMATS[n].model_validate(SETTINGS.get(n, {})) for n in FORMATS if n != "fixed"}
    works: dict[str, Callable[[], object]] = {"clone": x.clone}
    works |= {name: lambda fmt=fmt: fmt.round_to(x) for name, fmt in formats.items()}  # type: ignore[misc]
    best = interleaved(works, 1 if args.quick else 7)
    rows = [
        (name, best[name] / best["clone"], best[name] / best["integer"], call_overhead(fmt))
        for name, fmt in sorted(formats.items(), key=lambda item: best[item[0]])
    ]
    headers = ["format", "× clone", "× integer", "µs, 64 values with gradient"]
    print(f"{x.numel() / 1e6:.1f} M float32, one thread, torch {torch.__version__}")
    print(tabulate(rows, headers, floatfmt=".2f"))
    if args.save:
        RESULTS.mkdir(exist_ok=True)
        record = {"torch": torch.__version__, "threads": 1, "elements": x.numel(), "rows": rows}
        with (RESULTS / "formats.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
