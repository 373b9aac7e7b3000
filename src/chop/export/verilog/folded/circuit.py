"""The files of a folded circuit, and their check by simulation under backpressure."""

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chop.errors import GraphError
from chop.export.rows import CheckedRows
from chop.export.verilog.bench import (
    EXPECTED,
    ROWS,
    StreamBeats,
    simulate,
    stream_part,
    write_bench,
)
from chop.export.verilog.folded.builder import NodeBuilder
from chop.export.verilog.folded.cost import plan_cost, plan_luts
from chop.export.verilog.folded.folding import MOST_CYCLES, fastest, fold_nodes
from chop.export.verilog.folded.plan import StreamPlan, beats_of
from chop.export.verilog.folded.text import folded_files
from chop.export.verilog.netlist import CircuitError
from chop.export.verilog.prove import rounding_shapes
from chop.files import write_text
from chop.lowering.program import IntegerProgram

FREE = 3
"""Images without any pause, whose cycles are counted."""
OPTIMISED = "OPT_FAST=-O2 OPT_SLOW=-O0 OPT_GLOBAL=-O1"
PORTS = ".clk(clk), .resetn(stream_resetn), " + ", ".join(
    f".{side}_{each}(stream_{side}_{each})" for side in "sm" for each in ("data", "valid", "ready")
)


def plan_circuit(
    program: IntegerProgram, cycles: int | None, most_luts: int,
    depths: Mapping[str, int] | None = None,
) -> StreamPlan:  # fmt: skip
    """The blocks of a program for at most so many cycles an image, or so many look-up tables.

    Args:
        cycles: None for as few as the look-up tables allow.
        depths: beats of queues by edge, in place of those that are computed.
    """
    nodes = NodeBuilder(program).build()

    def folded(wanted: int) -> StreamPlan:
        return StreamPlan(nodes, fold_nodes(nodes, wanted), depths or {}, wanted)

    least, slowest = fastest(nodes), folded(MOST_CYCLES)
    if cycles is not None:
        if cycles < least:
            raise CircuitError(
                f"verilog: {cycles:,} cycles for an image are too few: with all channels and taps "
                f"at once the slowest layer takes {least:,}"
            )
        plan = folded(cycles)
        refuse_slow(plan, cycles)
        refuse_large(plan_luts(plan), most_luts, "give more cycles, or raise most_luts")
        return plan
    needed = plan_luts(slowest)
    refuse_large(needed, most_luts, "raise most_luts, or take narrower formats")
    low, high = least, slowest.cycles  # the first that fits lies between them
    while low < high:
        middle = (low + high) // 2
        fits = plan_luts(folded(middle)) <= most_luts
        low, high = (low, middle) if fits else (middle + 1, high)
    return folded(high)


def refuse_slow(plan: StreamPlan, cycles: int) -> None:
    """Raise if a layer takes more cycles than allowed, whatever the others do."""
    name, slowest = max(plan.folds.items(), key=lambda each: each[1].cycles)
    if slowest.cycles > cycles:
        raise CircuitError(
            f"verilog: {plan.nodes[name].layer} takes {slowest.cycles:,} cycles for an image, and "
            f"{cycles:,} are allowed: give more cycles"
        )


def refuse_large(needed: int, most: int, help_: str) -> None:
    """Raise if there are more look-up tables than allowed."""
    if needed > most:
        raise CircuitError(
            f"verilog: the folded circuit would need about {needed:,} look-up tables, and {most:,} "
            f"are allowed: {help_}"
        )


def write_circuit(plan: StreamPlan, folder: Path, headers: Mapping[str, str]) -> dict[str, Any]:
    """Write the files of a plan; facts about them."""
    made = folded_files(plan, headers)
    for name, text in made.files.items():
        write_text(folder / name, text)
    cost = plan_cost(plan)
    return {
        "cycles_per_image": plan.cycles,
        "folded_for": plan.target,
        "estimated_luts": cost.luts,
        "estimated_registers": cost.registers,
        "estimated_block_rams": cost.block_rams,
        "roundings": [asdict(shape) for shape in rounding_shapes(made.primitives.rounds)],
        "queues": plan.queues,
        "layers": [
            {"layer": plan.nodes[name].layer, **asdict(fold)} for name, fold in plan.folds.items()
        ],
        "input_stream": asdict(plan.input),
        "output_stream": asdict(plan.output),
    }


def check_circuit(plan: StreamPlan, folder: Path, rows: CheckedRows) -> tuple[str, dict[str, int]]:
    """Simulate a circuit on images and compare; the simulator, and the cycles that were counted."""
    first, *_, last = plan.nodes.values()
    source, result = plan.input, plan.output
    (codes,), (wanted,) = rows.codes.values(), rows.outputs
    for name, node, stream, given in (
        (ROWS, first, source, codes), (EXPECTED, last, result, wanted)
    ):  # fmt: skip
        words = beats_of(given.numpy(), node, stream)
        write_text(folder / name, "".join(f"{word:x}\n" for word in words))
    count = len(rows)
    beats = StreamBeats(
        (source.bits, result.bits),
        (count * source.beats, count * result.beats),
        (source.beats, result.beats),
        free=FREE,
        spoilt=min(count * source.beats, source.beats + source.beats // 3),
        quiet=4 * plan.cycles + plan.longest_wait + 10_000,
        # Long enough to fill all memories, where images are many enough for several such pauses.
        pause=max(plan.cycles * 3 // 2, plan.cycles * min(plan.images_held, count // 8)) + 1,
    )
    ports = f"{PORTS}, .m_last(stream_m_last)"
    write_bench(folder, [stream_part("top", ports, beats, report_lines(plan))], count)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "bench"
        shutil.copytree(folder, place)
        try:
            tool, *said = simulate(place, make=OPTIMISED)
        except GraphError as error:
            raise named_deadlock(error) from None
    counted = next(line for line in said if line.startswith("cycles "))
    begun, early, ended, cycles = (int(word) for word in counted.split()[1:])
    free = min(FREE, count)
    facts = {"simulated_cycles": cycles, "latency": early - begun}
    if free > 1:
        facts["interval"] = round((ended - early) / (free - 1))
    return tool, facts


def report_lines(plan: StreamPlan) -> str:
    """Statements that print the cycles, and for a stream that is stuck where beats wait."""
    counted = ("begun", "early", "ended", "driver.cycle")
    shown = ", ".join(f"stream_{each}" for each in counted)
    lines = [f'    $display("cycles %0d %0d %0d %0d", {shown});']
    queues = plan.queues
    streams = [plan.input, *(each for block in plan.blocks for each in block.given)]
    for each in sorted(streams, key=lambda each: each.edge not in queues):
        words = re.sub(r"[^A-Za-z0-9_., -]", "_", each.edge)
        held = f" (a queue of {queues[each.edge]} beats)" if each.edge in queues else ""
        wire = f"stream_dut.{each.name}"
        lines.append(f"    if (stream_stuck & {wire}_valid & ~{wire}_ready)")
        lines.append(f'      $display("blocked: {words}{held}");')
    return "\n".join(lines)


def named_deadlock(error: GraphError) -> GraphError:
    """The error of a bench; of a deadlock, with the edge where beats wait."""
    blocked = re.findall(r"blocked: ([^\n|]*)", str(error))
    if not blocked:
        return error
    return GraphError(
        f"verilog: deadlock: beats wait for ever from {blocked[0].strip()}; "
        f"{len(blocked)} streams are blocked"
    )
