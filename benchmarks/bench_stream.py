"""Folded circuits: cycles, look-up tables and memories against the estimate, and equality.

Each network is quantised, written as a folded circuit for so many cycles an image, simulated with
pauses on both ends and a reset in between against the engine, and mapped by Yosys for UltraScale+;
with --route also mapped for an ECP5 and routed by nextpnr. Weights are random, rows are those of
the data set where it is on this machine. Seconds of tools are those of a processor.

Run: python benchmarks/bench_stream.py [--quick] [--only NAME …] [--images N] [--route] [--save]
"""

import argparse
import json
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parent))
from stream_networks import CASES, TINY, StreamCase, program_of

from chop.export import export
from chop.export.verilog import bench, synthesis
from chop.export.verilog.folded.circuit import plan_circuit
from chop.export.verilog.folded.nodes import Matrix
from chop.export.verilog.folded.plan import StreamPlan
from chop.export.verilog.synthesis import DEVICES, synthesise_folded
from chop.export.verilog.target import Hardware, write_verilog

RESULTS = Path(__file__).parent / "results" / "stream.jsonl"
IMAGES = 50
MOST_LUTS = 10**6
HEADERS = (
    "network", "bits", "images equal", "cycles", "of ideal", "LUTs", "estimate", "RAMB36",
    "estimate", "registers", "estimate", "write s", "build s", "Mcycles/s", "ECP5 LUTs", "MHz",
)  # fmt: skip


def child_seconds() -> float:
    """Seconds of a processor that all tools together have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def tool_times() -> Iterator[dict[str, float]]:
    """The processor's seconds of each tool that a bench calls, by its name."""
    seconds: dict[str, float] = {}
    whole: Callable[..., str] = bench.run_tool

    def timed(command: Sequence[str], *more: Any, **named: Any) -> str:
        start = child_seconds()
        try:
            return whole(command, *more, **named)
        finally:
            name = Path(command[0]).name
            seconds[name] = seconds.get(name, 0.0) + child_seconds() - start

    bench.run_tool = synthesis.run_tool = timed
    try:
        yield seconds
    finally:
        bench.run_tool = synthesis.run_tool = whole


def ideal_cycles(plan: StreamPlan) -> float:
    """Products of the slowest layer for an image, by those that it computes at once."""
    slowest = 0.0
    for name, node in plan.nodes.items():
        if isinstance(node, Matrix):
            fold = plan.folds[name]
            at_once = fold.gives * fold.taps * (1 if node.depthwise else fold.reads)
            slowest = max(slowest, node.macs / at_once)
    return slowest


def measured(name: str, case: StreamCase, images: int, route: bool) -> dict[str, Any]:
    """All figures of a network."""
    program, rows, whose = program_of(case, images)
    hardware = Hardware(folded=True, cycles=case.cycles, most_luts=MOST_LUTS)
    plan = plan_circuit(program, case.cycles, MOST_LUTS)
    found: dict[str, Any] = {
        "benchmark": "stream", "network": name, "bits": case.width, "rows of": whose,
        "fitted": case.fitted, "asked": case.cycles, "planned": plan.cycles,
        "ideal": round(ideal_cycles(plan)),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch, tool_times() as seconds:
        folder = Path(scratch) / "rtl"
        (Path(scratch) / "only").mkdir()
        start = time.process_time()
        write_verilog(program, Path(scratch) / "only", hardware)
        found["write_s"] = round(time.process_time() - start, 2)
        inputs = {program.inputs[0].placeholder: rows}
        done = export(program, "verilog", folder, rows=images, inputs=inputs, options=hardware)
        circuit = done.manifest["circuit"]
        said = json.loads((folder / "circuit.json").read_text())
        found |= {key: circuit[f"estimated_{key}"] for key in ("luts", "registers", "block_rams")}
        found["images"] = done.verified_rows
        found["real images"] = done.manifest["verified"]["kinds"].get("real", 0)
        found["distinct outputs"] = done.manifest["verified"]["distinct_outputs"]
        found |= {key: said[key] for key in ("interval", "latency", "simulated_cycles")}
        found["build_s"] = round(seconds["verilator"], 1)
        found["simulation_s"] = round(seconds["Vbench"], 1)
        devices = {key: DEVICES[key] for key in (("xcup", "ecp5") if route else ("xcup",))}
        found |= synthesise_folded(folder, devices)
        found["yosys_s"] = round(seconds["yosys"], 1)
    return found


def shown(found: dict[str, Any]) -> list[Any]:
    """The line of the table."""
    xcup, ecp5 = found["xcup"], found.get("ecp5", {})

    def share(estimate: str) -> str:
        real = xcup[estimate]
        return f"{100 * (found[estimate] / real - 1):+.0f} %" if real else str(found[estimate])

    return [
        found["network"], found["bits"], f"{found['images']} ({found['real images']} real)",
        found["interval"], round(found["interval"] / found["ideal"], 4),
        xcup["luts"], share("luts"), xcup["block_rams"], share("block_rams"), xcup["registers"],
        share("registers"), found["write_s"], found["build_s"],
        round(found["simulated_cycles"] / max(found["simulation_s"], 0.1) / 1e6, 2),
        ecp5.get("luts", ""), ecp5.get("fmax_mhz", ""),
    ]  # fmt: skip


def main() -> None:
    """Measure networks and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest network, few images")
    parser.add_argument("--only", nargs="+", default=list(CASES), help="names of networks")
    parser.add_argument("--images", type=int, default=IMAGES, help="to simulate, of each network")
    parser.add_argument("--route", action="store_true", help="ECP5 as well, with nextpnr if found")
    parser.add_argument("--save", action="store_true", help="add lines to benchmarks/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cases = {"tiny": TINY} if args.quick else {name: CASES[name] for name in args.only}
    table = []
    for name, case in cases.items():
        found = measured(name, case, 3 if args.quick else args.images, args.route)
        found["machine"] = f"{platform.machine()}, {platform.python_version()}"
        print(json.dumps(found), file=sys.stderr, flush=True)
        table.append(shown(found))
        if args.save:
            with RESULTS.open("a") as file:
                file.write(json.dumps(found) + "\n")
    print(tabulate(table, HEADERS))


if __name__ == "__main__":
    main()
