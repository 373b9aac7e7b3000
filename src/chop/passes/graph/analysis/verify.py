"""Rules that metadata must follow, checked node by node."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, fx

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.parameters import (
    module_buffers,
    module_parameters,
)
from chop.ops.op import MaseType
from chop.passes.base import Info, PassArgs, analysis_pass
from chop.passes.graph.analysis.metadata_entries import bare

Rule = Callable[[fx.Node], Iterator[str]]
TENSOR_KEYS = {"type", "precision", "shape"}


def is_classified(node: fx.Node) -> Iterator[str]:
    """A node has a MASE type and an operation, and keeps its fx kind where fx names one."""
    common = node.meta["mase"]["common"]
    if common.get("mase_type") not in set(MaseType):
        yield f"mase_type {common.get('mase_type')!r} is not a MASE type"
    if not common.get("mase_op"):
        yield "mase_op is missing"
    if node.op in ("placeholder", "output") and common.get("mase_type") != node.op:
        yield f"mase_type should be {node.op!r}"


def has_sides(node: fx.Node) -> Iterator[str]:
    """Arguments and results are there; only calls have arguments."""
    common = node.meta["mase"]["common"]
    for side in ("args", "results"):
        if not isinstance(common.get(side), dict):
            yield f"{side} is missing"
    if not node.op.startswith("call_") and common.get("args"):
        yield f"a {node.op} node has no arguments"
    if not common.get("results"):
        yield "results are empty"


def entries_are_whole(node: fx.Node) -> Iterator[str]:
    """The record of a tensor has all its keys, and its value the recorded shape."""
    for name, entry in tensor_entries(node):
        missing = TENSOR_KEYS - set(entry)
        if missing:
            yield f"{name} lacks {', '.join(sorted(missing))}"
        value = entry.get("value")
        if isinstance(value, Tensor) and list(value.shape) != entry.get("shape"):
            yield f"{name} has shape {entry.get('shape')} but its value {list(value.shape)}"
        if isinstance(value, Tensor) and value.requires_grad:
            yield f"the value of {name} holds an autograd graph"


def inputs_are_numbered(node: fx.Node) -> Iterator[str]:
    """Inputs are called data_in_0, data_in_1, … without a gap."""
    args = node.meta["mase"]["common"].get("args", {})
    names = [name for name in args if name.startswith("data_in_")]
    wanted = [f"data_in_{index}" for index in range(len(names))]
    if names != wanted:
        yield f"inputs are called {names}, not {wanted}"


def parameters_match(node: fx.Node) -> Iterator[str]:
    """The parameters of a layer are recorded with the shapes they have now."""
    module = node.meta["mase"].module
    args = node.meta["mase"]["common"].get("args", {})
    for name, parameter in () if module is None else module_parameters(module):
        if name not in args:
            yield f"parameter {name} is not recorded"
        elif args[name].get("shape") != list(parameter.shape):
            yield f"{name} is recorded as {args[name].get('shape')}, is {list(parameter.shape)}"


def software_matches_common(node: fx.Node) -> Iterator[str]:
    """Software findings are about tensors of the node, each with its statistics."""
    record = node.meta["mase"]
    module = record.module
    buffers = () if module is None else [name for name, _ in module_buffers(module)]
    known = {name for name, _ in tensor_entries(node)} | set(buffers)
    if node.op == "output":
        known = {name.replace("data_out", "data_in") for name in known}
    for side in ("args", "results"):
        for name, entry in record["software"].get(side, {}).items():
            if name not in known:
                yield f"software {side} has {name}, which the node has not"
            if not isinstance(entry.get("stat"), dict):
                yield f"software {side} {name} has no dictionary of statistics"


def hardware_is_counted(node: fx.Node) -> Iterator[str]:
    """Hardware metadata is empty or the look-up tables of the node, which are not negative."""
    hardware = node.meta["mase"]["hardware"]
    luts = hardware.get("luts", 0)
    if not set(hardware) <= {"luts"}:
        yield f"hardware has {', '.join(sorted(set(hardware) - {'luts'}))}, which nothing reads"
    if not isinstance(luts, int | float) or not luts >= 0:
        yield f"hardware luts {luts!r} is not a number of look-up tables"


COMMON_RULES: tuple[Rule, ...] = (
    is_classified,
    has_sides,
    entries_are_whole,
    inputs_are_numbered,
    parameters_match,
)
SOFTWARE_RULES: tuple[Rule, ...] = (software_matches_common,)
HARDWARE_RULES: tuple[Rule, ...] = (hardware_is_counted,)


def tensor_entries(node: fx.Node) -> Iterator[tuple[str, Any]]:
    """The records of tensors among the arguments and results."""
    for side in ("args", "results"):
        for name, entry in node.meta["mase"]["common"].get(side, {}).items():
            if not bare(entry):
                yield name, entry


def check_rules(graph: MaseGraph, rules: tuple[Rule, ...]) -> Info:
    """Raise for the first rule that is broken; else say how much was checked."""
    problems = [f"{n.name}: {text}" for n in graph.nodes for rule in rules for text in rule(n)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise GraphError(f"metadata of node {problems[0]}{more}")
    return {"nodes": len(graph.nodes), "rules": [rule.__name__ for rule in rules]}


@analysis_pass("verify_common_metadata", requires=("common",))
def verify_common_metadata_analysis_pass(
    graph: MaseGraph, args: PassArgs
) -> tuple[MaseGraph, Info]:
    """Check that the common metadata is complete and fits the model."""
    return graph, check_rules(graph, COMMON_RULES)


@analysis_pass("verify_software_metadata", requires=("common", "software"))
def verify_software_metadata_analysis_pass(
    graph: MaseGraph, args: PassArgs
) -> tuple[MaseGraph, Info]:
    """Check that the software metadata fits the common metadata."""
    return graph, check_rules(graph, SOFTWARE_RULES)


@analysis_pass("verify_hardware_metadata", requires=("common",))
def verify_hardware_metadata_analysis_pass(
    graph: MaseGraph, args: PassArgs
) -> tuple[MaseGraph, Info]:
    """Check that the hardware metadata is what `add_hardware_metadata` writes."""
    return graph, check_rules(graph, HARDWARE_RULES)


@analysis_pass("verify_metadata", requires=("common", "software"))
def verify_metadata_analysis_pass(graph: MaseGraph, args: PassArgs) -> tuple[MaseGraph, Info]:
    """Check all metadata."""
    return graph, check_rules(graph, COMMON_RULES + SOFTWARE_RULES + HARDWARE_RULES)
