"""A quantised graph node by node: its noise, and whether every form gives the engine's codes."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import ChopError, ConfigError, GraphError
from chop.export.rows import CheckedRows, checked_rows
from chop.export.targets import EXPORT_TARGETS
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import Recorder, placeholder_values
from chop.lowering import IntegerProgram
from chop.lowering.comparing import NotComparableError, Simulation, values_of_nodes
from chop.lowering.engine import Engine, different_codes
from chop.lowering.from_graph import Lowering
from chop.ops.op import op_of_node
from chop.results.agreement import SIMULATION, AgreementByNode, Found, NodeAgreement

FORMS = ("c", "onnx")
MOST_ROWS = 256
Results = dict[str, Tensor]


def compare_nodes(
    graph: MaseGraph, inputs: Mapping[str, Tensor] | None, forms: Sequence[str] = FORMS
) -> AgreementByNode:
    """Compare a quantised graph with floating point and every form with the engine, by node.

    The files of a form are written with every node as an output, which C would otherwise not
    store; where they differ, one node after another is looked at until the first is found.

    Args:
        inputs: rows by the names of the network's inputs, of which 256 are taken; None makes some.
        forms: export targets to write and run.
    """
    for form in forms:
        _ = EXPORT_TARGETS[form]
    lowering = Lowering(graph, inputs or {})
    program = lowering.program(cut_tail=True)
    values = values_of_nodes(lowering, program)
    if not values:
        raise GraphError("agreement: no node of the graph has integers: quantise it first")
    wide = replace(program, outputs=tuple(dict.fromkeys(values.values())))
    given = None if inputs is None else {name: each[:MOST_ROWS] for name, each in inputs.items()}
    count = MOST_ROWS if given is None else min(map(len, given.values()))
    numbers = made_numbers(program, count) if given is None else given
    rows = rows_with_codes(wide, numbers)
    states: dict[str, dict[str, Found]] = {}
    missing: dict[str, str] = {}
    for form in (SIMULATION, *forms):
        try:
            if form == SIMULATION:
                states[form] = simulation_states(Simulation(lowering, program), rows)
            else:
                states[form] = file_states(form, rows)
        except (NotComparableError, ConfigError) as error:
            missing[form] = str(error)
    noise = noise_of_nodes(graph, numbers)
    nodes = tuple(
        NodeAgreement(
            node=node.name,
            operation=op.name if (op := op_of_node(node, graph.modules)) else str(node.target),
            snr=noise.get(node.name),
            forms={form: found[values[node]] for form, found in states.items()}
            if node in values
            else {},
        )
        for node in graph.nodes
        if node.name in noise
    )
    return AgreementByNode(rows_compared=count, nodes=nodes, not_compared=missing)


def made_numbers(program: IntegerProgram, count: int) -> dict[str, Tensor]:
    """Return made rows within the range of the inputs' codes: beyond it, noise means nothing."""
    numbers = checked_rows(program, count).numbers
    for each in program.inputs:
        low, high = (float(side) * float(each.value.unit.min()) for side in each.value.limits)
        numbers[each.placeholder] = numbers[each.placeholder].clamp(low, high)
    return numbers


def rows_with_codes(program: IntegerProgram, numbers: Mapping[str, Tensor]) -> CheckedRows:
    """Return rows with the codes that the engine gives for every output of a program."""
    engine = Engine(program)
    codes = engine.quantise(dict(numbers))
    count = len(next(iter(numbers.values())))
    return CheckedRows(program, dict(numbers), codes, tuple(engine.run(codes)), {"given": count})


def simulation_states(simulation: Simulation, rows: CheckedRows) -> dict[str, Found]:
    """Return whether the simulation gives the engine's numbers, by the names of values."""
    results = simulation.results(rows.numbers, set(simulation.values))
    wanted = dict(
        zip(rows.program.outputs, Engine(rows.program).numbers(rows.outputs), strict=True)
    )
    found: dict[str, Found] = {}
    for node, name in simulation.values.items():
        value = rows.program.values[name]
        same = not different_codes(results[node], wanted[name], value).any()
        found[name] = "equal" if same and found.get(name, "equal") == "equal" else "differs"
    return found


def file_states(form: str, rows: CheckedRows) -> dict[str, Found]:
    """Return whether the files of a form give the engine's codes, by the names of values."""
    names = rows.program.outputs
    if gives_the_same(form, rows, names):
        return dict.fromkeys(names, "equal")
    found: dict[str, Found] = {}
    for name in names:
        if "differs" in found.values():
            found[name] = "after"
        else:
            found[name] = "equal" if gives_the_same(form, rows, (name,)) else "differs"
    return found


def gives_the_same(form: str, rows: CheckedRows, names: Sequence[str]) -> bool:
    """Write a program with some outputs, run the files, and return True if no code differs."""
    target = EXPORT_TARGETS[form]
    if (reason := target.missing()) is not None:
        raise ConfigError(reason)
    chosen = [rows.outputs[rows.program.outputs.index(name)] for name in names]
    program = replace(rows.program, outputs=tuple(names))
    part = replace(rows, program=program, outputs=tuple(chosen))
    options = target.options()
    with tempfile.TemporaryDirectory() as folder:
        try:
            target(program, Path(folder), options)
        except ChopError as error:
            raise ConfigError(str(error)) from None
        try:
            target.run_check(Path(folder), part, options)
        except GraphError:
            return False
    return True


def noise_of_nodes(graph: MaseGraph, numbers: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Return the signal-to-noise ratio of each node's numbers in decibels; None without noise."""
    calls = (NodeCall.of(node, graph.modules) for node in graph.nodes)
    floats = {call.node: call.rounded_by({}) for call in calls if call.quant is not None}
    wanted, found = (run_nodes(graph, numbers, each) for each in (floats, {}))
    noise: dict[str, float | None] = {}
    for node, signal in wanted.items():
        lost = float((found[node].double() - signal.double()).square().sum())
        size = float(signal.double().square().sum())
        ratio = 10 * torch.log10(torch.tensor(size / lost)) if lost and size else None
        noise[node.name] = None if ratio is None else round(float(ratio), 3)
    return noise


def run_nodes(
    graph: MaseGraph, numbers: Mapping[str, Tensor], instead: Mapping[fx.Node, Any]
) -> dict[fx.Node, Tensor]:
    """Return what the nodes of a graph give that are computed in floating point."""
    results: dict[fx.Node, Tensor] = {}

    def keep(node: fx.Node, result: Any) -> None:
        is_call = node.op.startswith("call_")
        if is_call and isinstance(result, Tensor) and result.is_floating_point():
            results[node] = result.clone()  # the next may write in place

    given = placeholder_values(graph, dict(numbers))
    Recorder(graph.model, after=keep, instead=instead).run_undisturbed(given)
    return results
