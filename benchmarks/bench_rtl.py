"""Circuits: look-up tables, clock and latency of the labs' networks, and how good the estimate is.

Networks are trained on jsc-sim, quantised, written as SystemVerilog, simulated on 2,000 test rows
and synthesised with Yosys; with nextpnr-ecp5 on the path, placed and routed as well. Times are CPU
seconds, of this process for writing and of its children for tools.

    python benchmarks/bench_rtl.py --save                          the labs' networks, the estimate
    ch search --config configs/examples/jsc_mlp_learned.toml       a front to make circuits of
    python benchmarks/bench_rtl.py --front RUN_DIR --clock-ns 4.9 --route --save
"""

import argparse
import json
import re
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rtl_networks import Case, quantised, rows

from chop.export import export
from chop.export.verilog.emit import BusPort
from chop.export.verilog.synthesis import DEVICES, PLACERS, resources, route_circuit
from chop.export.verilog.target import Hardware, write_verilog
from chop.lowering import IntegerProgram, lower
from chop.passes.graph.interface import load_mase_graph
from chop.runs import open_run

SEEDS = [Case(name) for name in ("jsc-tiny", "jsc-tiny-x10", "jsc-new", "jsc-mlp", "jsc-rs1923")]
ESTIMATED = [
    *(Case("jsc-tiny", bits, weight) for bits, weight in ((3, 3), (5, 5), (6, 4), (6, 8))),
    *(Case("jsc-toy", bits, weight) for bits, weight in ((3, 3), (4, 6), (6, 6))),
    *(Case("jsc-new", bits, weight) for bits, weight in ((5, 3), (3, 5))),
    *(Case("jsc-tiny-x10", 4, 4, pruned) for pruned in (0.5, 0.8)),
    *(Case("jsc-mlp", 4, bits, pruned) for bits, pruned in ((4, 0.9), (6, 0.95))),
]
"""The rules of the estimate were mended once, after 3/3 jsc-toy and 95 % pruned jsc-mlp."""
FRESH = [
    Case("jsc-toy", 3, 4), Case("jsc-tiny", 4, 6, 0.5), Case("jsc-new", 3, 3, 0.6),
    Case("jsc-mlp", 5, 4, 0.93), Case("jsc-mlp", 3, 5, 0.9),
]  # fmt: skip
"""Chosen after that, and not looked at before."""
SIMULATED = ("seed", "front")
"""The kinds of networks whose circuits are simulated, not only synthesised."""


def child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def verified(program: IntegerProgram, folder: Path, hardware: Hardware) -> dict[str, Any]:
    """Write and simulate on test rows."""
    x = rows()[1][0].float()
    before = child_seconds()
    start = time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        write_verilog(program, Path(scratch), hardware)
    writing = time.process_time() - start
    inputs = {program.inputs[0].placeholder: x}
    done = export(program, "verilog", folder, inputs=inputs, options=hardware)
    circuit = done.manifest["circuit"]
    return {
        "rows": done.verified_rows,
        "checked_with": done.manifest["checked_with"],
        "writing_s": round(writing, 2),
        "simulating_s": round(child_seconds() - before, 1),
        "latency_cycles": circuit["latency_cycles"],
        "estimated_luts": circuit["estimated_luts"],
    }


def mapped(folder: Path) -> dict[str, Any]:
    before = child_seconds()
    found = resources(folder, DEVICES["xcup"])
    return {"yosys_s": round(child_seconds() - before, 1), **found}


def clocked(folder: Path) -> dict[str, Any]:
    """The clock on an ECP5, if nextpnr is there."""
    import shutil

    facts = json.loads((folder / "circuit.json").read_text())
    placer = next((name for name in PLACERS if shutil.which(name)), None)
    if placer is None:
        return {}
    ports = ([BusPort(**each) for each in facts[side]] for side in ("input_ports", "output_ports"))
    return route_circuit(folder, placer, *ports, facts["latency_cycles"])


def measured(case: Case, kind: str, hardware: Hardware, route: bool) -> dict[str, Any]:
    graph, accuracy = quantised(case)
    found: dict[str, Any] = {"benchmark": "rtl", "kind": kind, "case": str(case)}
    found["accuracy"] = round(accuracy, 4)
    return found | circuit_of(lower(graph), kind in SIMULATED, hardware, route)


def on_front(place: Path, hardware: Hardware, route: bool) -> dict[str, Any]:
    """The same of a saved graph of a front, with its accuracy on test rows."""
    graph = load_mase_graph(place)
    _, (x, labels), _ = rows()
    with torch.no_grad():
        right = graph.model.eval()(x.float()).argmax(1) == labels
    stored = json.loads((place.parent.parent / "best.json").read_text()).values()
    epoch = int(place.name.rpartition("_")[2])
    (ebops,) = (each["hardware_metrics"].get("ebops") for each in stored
                if each["sampled_config"]["epoch"] == epoch)  # fmt: skip
    name = "/".join((place.parents[3].name, place.name))
    found: dict[str, Any] = {"benchmark": "rtl", "kind": "front", "case": name}
    found |= {"accuracy": round(float(right.float().mean()), 4), "ebops": ebops}
    return found | circuit_of(lower(graph), "front" in SIMULATED, hardware, route)


def circuit_of(
    program: IntegerProgram, verify: bool, hardware: Hardware, route: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "rtl"
        if verify:
            found |= verified(program, folder, hardware)
        else:
            folder.mkdir()
            facts = write_verilog(program, folder, hardware)["circuit"]
            found |= {name: facts[name] for name in ("latency_cycles", "estimated_luts")}
        found["xcup"] = mapped(folder)
        if route:
            found["ecp5"] = clocked(folder)
    found["estimate / xcup"] = round(found["estimated_luts"] / found["xcup"]["luts"], 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one network, to see that it runs")
    parser.add_argument("--only", choices=("seed", "estimate", "fresh"), help="one part")
    parser.add_argument("--name", help="networks whose name has this expression")
    parser.add_argument("--front", type=Path, help="the graphs of a learned front, in its run")
    parser.add_argument("--stages", type=int, help="registers, in place of one for each layer")
    parser.add_argument("--clock-ns", type=float, help="a clock period, in place of --stages")
    parser.add_argument("--route", action="store_true", help="ECP5 as well, with nextpnr")
    parser.add_argument("--save", action="store_true", help="add lines to benchmarks/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    hardware = Hardware(args.stages, args.clock_ns)
    for measure in chosen(args)[: 1 if args.quick else None]:
        found = measure(hardware, args.route)
        print(json.dumps(found), flush=True)
        if args.save:
            with (Path(__file__).parent / "results" / "rtl.jsonl").open("a") as file:
                file.write(json.dumps(found) + "\n")


def chosen(args: argparse.Namespace) -> list[Callable[[Hardware, bool], dict[str, Any]]]:
    """What is to be measured."""
    wanted = args.name or ""
    if args.front is not None:
        graphs = open_run(args.front).front_graphs
        return [partial(on_front, each) for each in graphs if re.search(wanted, each.name)]
    cases = [(case, "seed") for case in SEEDS] + [(case, "estimate") for case in ESTIMATED]
    cases += [(case, "fresh") for case in FRESH]
    return [
        partial(measured, case, kind)
        for case, kind in cases
        if args.only in (None, kind) and re.search(wanted, str(case))
    ]


if __name__ == "__main__":
    main()
