"""Time of rounding in every format against copying the tensor and against fixed point."""

import argparse
import ctypes
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tabulate import tabulate

from chop.numerics import FORMATS, NumberFormat

SETTINGS: dict[str, dict[str, object]] = {
    "integer": {"width": 8, "frac_width": 4},
    "integer_scaled": {"width": 8, "scale": 0.0625},
    "minifloat_ieee": {"width": 8, "exponent_width": 4},
    "minifloat_denorm": {"width": 8, "exponent_width": 4},
    "log": {"width": 8},
    "block_fp": {"width": 8, "block_size": [16]},
    "block_minifloat": {"width": 8, "exponent_width": 3, "block_size": [16]},
    "block_log": {"width": 5, "block_size": [16]},
}
RESULTS = Path(__file__).parent / "results"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # glibc's malloc.h


def page_faults() -> int:
    """How often this process was given a fresh page of memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def use_memory(kind: str) -> None:
    """Makes every large allocation `warm` (memory used before) or `fresh` (new from the system).

    Left alone, the allocator decides by what was freed last. Fresh pages cost several times what a
    copy costs and fall on whoever asks first, so the order of the calls would decide the ratios.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1 if kind == "warm" else 0)
    libc.mallopt(M_MMAP_THRESHOLD, 2**16)
    libc.mallopt(M_MMAP_MAX, 0 if kind == "warm" else 2**16)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The times of each, all taken in turn so that a busy machine slows them alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    return times


def ratio(times: list[float], base: list[float]) -> float:
    """The median of the ratios of the rounds, each taken within one round."""
    return statistics.median(t / b for t, b in zip(times, base, strict=True))


def call_overhead(fmt: NumberFormat) -> float:
    """Microseconds of one call on a small tensor that records gradients."""
    x = torch.randn(64, requires_grad=True)
    return statistics.median(seconds(lambda: fmt(x)) for _ in range(300)) * 1e6


def compare(
    works: dict[str, Callable[[], object]], rounds: int, kind: str
) -> dict[str, list[float]]:
    """Times everything with one kind of memory, and says how many page faults that took."""
    use_memory(kind)
    interleaved(works, 1)
    faults = page_faults()
    times = interleaved(works, rounds)
    each = sorted(t / c for t, c in zip(times["integer"], times["clone"], strict=True))
    print(
        f"{kind} memory: integer / clone {ratio(times['integer'], times['clone']):.2f} "
        f"({each[0]:.2f} to {each[-1]:.2f}), {page_faults() - faults} page faults"
    )
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small tensor, one round")
    parser.add_argument("--save", action="store_true", help="append one JSON line to results/")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn((16, 4000) if args.quick else (2000, 4000))
    rounds = 1 if args.quick else 15
    formats = {n: FORMATS[n].model_validate(SETTINGS.get(n, {})) for n in FORMATS if n != "fixed"}
    works: dict[str, Callable[[], object]] = {"clone": x.clone}
    works |= {name: lambda fmt=fmt: fmt.round_to(x) for name, fmt in formats.items()}  # type: ignore[misc]
    print(
        f"{x.numel() / 1e6:.1f} M float32, one thread, torch {torch.__version__}, {rounds} rounds"
    )
    fresh = compare(works, rounds, "fresh")
    warm = compare(works, rounds, "warm")
    rows = [
        (
            name,
            *(
                ratio(times[name], times[base])
                for times in (warm, fresh)
                for base in ("clone", "integer")
            ),
            call_overhead(fmt),
        )
        for name, fmt in formats.items()
    ]
    rows.sort(key=lambda row: row[1])
    headers = ["format", "× clone", "× integer", "fresh: × clone", "× integer", "µs, 64 values"]
    print(tabulate(rows, headers, floatfmt=".2f"))
    if args.save:
        RESULTS.mkdir(exist_ok=True)
        record = {"torch": torch.__version__, "threads": 1, "elements": x.numel(), "rows": rows}
        with (RESULTS / "formats.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
