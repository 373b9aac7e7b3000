"""The quantise pass: operations of a graph computed in number formats, and what it changed."""

import csv
import io
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate
from torch import fx, nn

from chop.errors import ConfigError, GraphError, UnknownNameError
from chop.files import write_text
from chop.ir.call import (
    FLOAT_FORM,
    FloatForm,
)
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import QuantConfig
from chop.nn.quantized import (
    QuantizedCall,
    float_module,
    quantize_module,
    quantized_call,
    quantized_function,
)
from chop.ops.op import op_of_node, writes_in_place
from chop.passes.base import Info, transform_pass
from chop.passes.graph.analysis.flops.count import rounded_macs
from chop.passes.graph.analysis.flops.table import rounded_line, unreached_lines
from chop.passes.graph.analysis.metadata_entries import record_formats, restore_records
from chop.passes.graph.analysis.report import show
from chop.passes.graph.transforms.quantize.plan import (
    LISTED,
    Plan,
    QuantizeArgs,
    calls_layer,
    make_plan,
)
from chop.passes.graph.transforms.quantize.saturation import (
    calibrate_plan,
    calibration_table,
    outside,
    tell,
)
from chop.passes.graph.utils import (
    get_mase_op,
    get_mase_type,
    get_node_actual_target,
    replace_modules,
)

logger = logging.getLogger("chop")
OUTSIDE = (
    "pass 'quantize': the binary point lies outside the width: {}; if this is meant, set "
    'outside_width = true, and frac_width = "auto" to find one that fits'
)
WAITING = (
    "pass 'quantize': there are no batches, so scales that are 'auto' wait for the pass calibrate "
    "(nodes {})"
)


@transform_pass("quantize", requires=("common",))
def quantize_transform_pass(graph: MaseGraph, args: QuantizeArgs) -> tuple[MaseGraph, Info]:
    """Compute the chosen operations in number formats.

    The graph is changed in place, after every rule has been checked. Rules apply whatever the node
    was before: ``name`` None or "NA" makes a quantised node float again, so
    ``{"by": "type", "default": {"config": {"name": None}}}`` undoes everything. A node without a
    rule does not change. Layers keep their float parameters and round them when they run. A
    function whose format has a quantiser with state becomes a module, which owns it.

    Scales that are "auto" are calibrated on `input_generator`, batches that run through the network
    in floating point. Without it, the graph cannot run until the pass `calibrate` sets them.

    `info` has the class or function of each quantised node, the nodes that became float again and,
    with batches, the results of `calibrate`.
    """
    return quantize_by_plan(graph, make_plan(graph, args), args)


def quantize_by_plan(graph: MaseGraph, plan: Plan, args: QuantizeArgs) -> tuple[MaseGraph, Info]:
    """Calibrate a plan, if there are batches, and make each node what it says."""
    if not args.outside_width:
        for words in outside(plan):
            logger.warning("%s", OUTSIDE.format(words))
    if args.input_generator is None:
        waiting = [n.name for n, quant in plan.items() if quant and quant.is_open]
        if waiting:
            logger.info("%s", WAITING.format(", ".join(waiting[:LISTED])))
        return graph, apply_plan(graph, plan)
    plan, found, rows = calibrate_plan(graph, plan, args.input_generator, args.calibrate)
    info = apply_plan(graph, plan)
    if any(each.fit.calibrated for each in found) and logger.isEnabledFor(logging.INFO):
        show(calibration_table(found, rows))
    return graph, info | {"calibration": tell(graph, found, rows)}


def apply_plan(graph: MaseGraph, plan: Plan) -> Info:
    """Make each node what the plan says; the nodes that are quantised, and those made float."""
    modules = graph.modules
    before = {node: called_name(node, modules) for node in plan}
    layers = new_layers(plan, modules)  # whatever is wrong with a rule shows here at the latest
    replace_modules(graph, layers)
    functions = [(node, quant) for node, quant in plan.items() if not calls_layer(node)]
    changed = [replace_function(graph, node, quant) for node, quant in functions]
    if any(changed):
        sort_modules(graph)
        graph.fx_graph.lint()
        graph.model.recompile()  # half the cost of the pass, and layers are found by name anyway
    modules = graph.modules
    for node in plan:
        restore_records(node)
        record_formats(node)
    quantised = {n.name: called_name(n, modules) for n, quant in plan.items() if quant is not None}
    restored = [
        n.name for n, quant in plan.items() if not quant and before[n] != called_name(n, modules)
    ]
    return {"quantized": quantised, "restored": restored}


def sort_modules(graph: MaseGraph) -> None:
    """Put modules in the order of their use, as in copies and saved graphs.

    Optimisers know parameters by their place.
    """
    used = [str(n.target).partition(".")[0] for n in graph.nodes if n.op == "call_module"]
    modules = graph.model._modules
    order = [name for name in dict.fromkeys((*used, *modules)) if name in modules]
    ordered = {name: modules[name] for name in order}
    modules.clear()
    modules.update(ordered)


def called_name(node: fx.Node, modules: Mapping[str, nn.Module]) -> str:
    """The class of the layer or the name of the function that a node calls."""
    if node.op == "call_module":
        return type(modules[str(node.target)]).__name__
    target: Any = node.target
    return target if isinstance(target, str) else str(target.__name__)


def new_layers(plan: Plan, modules: Mapping[str, nn.Module]) -> dict[nn.Module, nn.Module]:
    """The quantised or float layer that is to take the place of each layer."""
    found: dict[nn.Module, nn.Module] = {}
    for node, quant in plan.items():
        if not calls_layer(node):
            continue
        old = modules[str(node.target)]
        op = op_of_node(node, modules)
        assert op is not None
        try:
            found[old] = float_module(old) if quant is None else quantize_module(old, op, quant)
        except ConfigError as error:
            raise ConfigError(f"node {node.name!r}: {error}") from None
    return found


def replace_function(graph: MaseGraph, node: fx.Node, quant: QuantConfig | None) -> bool:
    """Make a function or method node call a quantised function, or what it called at first.

    Gives whether the node changed.
    """
    was_quantised = FLOAT_FORM in node.meta
    before = restore_function(graph, node) if was_quantised else None
    if quant is None:
        return was_quantised
    op = op_of_node(node, {})
    assert op is not None
    added: dict[str, Any] = {"inplace": True} if writes_in_place(node) else {}
    call = quantized_call(op, quant, before)
    if call is None:
        added |= {"config": quant.as_dict()}
    # Functions of torch.nn.functional pass themselves private arguments, which fx records.
    removed = {key: value for key, value in node.kwargs.items() if key.startswith("_")}
    node.meta[FLOAT_FORM] = FloatForm(node.op, node.target, tuple(added), removed)
    node.kwargs = {k: v for k, v in node.kwargs.items() if k not in removed} | added
    if call is None:
        node.op, node.target = "call_function", quantized_function(op, quant.name)
        return True
    name = f"{node.name}_quantized"
    while hasattr(graph.model, name):
        name += "_"
    graph.model.add_module(name, call)
    node.op, node.target = "call_module", name
    return True


def restore_function(graph: MaseGraph, node: fx.Node) -> nn.Module | None:
    """Make a quantised function node what it was, on the arguments it has now.

    Gives the module that it called, if its quantisers had a state.
    """
    called: nn.Module | None = node.meta["mase"].module
    if isinstance(called, QuantizedCall):
        graph.model.delete_submodule(str(node.target))
    form: FloatForm = node.meta.pop(FLOAT_FORM)
    node.op, node.target = form.op, form.target
    kept = {key: value for key, value in node.kwargs.items() if key not in form.added}
    node.kwargs = {**kept, **form.removed}
    return called


TABLE = (
    "Ori name", "New name", "MASE_TYPE", "Mase_OP", "Original type", "Quantized type", "Changed",
)  # fmt: skip
HISTOGRAM = ("Original type", "OP", "Total", "Changed", "Unchanged")


class NodeChange(NamedTuple):
    """One node before and after."""

    before: str
    after: str
    mase_type: str
    mase_op: str
    original_type: str
    quantized_type: str
    changed: bool


class OpCount(NamedTuple):
    """The number of nodes of a kind, and of those that changed."""

    original_type: str
    op: str
    total: int
    changed: int
    unchanged: int


def summarize_quantization_analysis_pass(
    ori_graph: MaseGraph,
    graph: MaseGraph | Mapping[str, Any] | None = None,
    save_dir: str | Path | None = None,
) -> tuple[MaseGraph, Info]:
    """Compare a graph with what it was before quantisation.

    The histogram is logged, and the share of all MACs whose operands are really rounded, with what
    computes products that no rule rounds. With `save_dir`, both tables are written there as CSV
    files. Called as ``(graph, {"original_graph": ..., "save_dir": ...})`` it does the same.
    """
    if not isinstance(graph, MaseGraph):
        ori_graph, graph, save_dir = from_dictionary(ori_graph, graph, save_dir)
    changes = node_changes(ori_graph, graph)
    counts = histogram(changes)
    logger.info("Quantized graph histogram:")
    logger.info("\n%s", tabulate(counts, headers=HISTOGRAM, tablefmt="orgtbl"))
    macs, missing = log_rounded_macs(graph)
    if save_dir is not None:
        save_summary(changes, counts, Path(save_dir))
    return graph, {
        "nodes": [dict(zip(TABLE, change, strict=True)) for change in changes],
        "histogram": [dict(zip(HISTOGRAM, count, strict=True)) for count in counts],
        "macs": macs,
        "not_rounded": missing,
    }


def log_rounded_macs(
    graph: MaseGraph, *, in_full: bool = True
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Log what part of the MACs is rounded and name what no rule rounds; both as information.

    Without recorded shapes to count with, the part is None.

    Args:
        in_full: log the part also where nothing is out of reach of the rules.
    """
    try:
        macs, missing = rounded_macs(graph)
    except GraphError as error:
        logger.warning("How many MACs are rounded is not known: %s", error)
        return None, []
    if in_full:
        logger.info("%s", rounded_line(macs))
    for line in unreached_lines(macs, missing):
        logger.warning("%s", line)
    return macs, missing


def from_dictionary(
    graph: MaseGraph, given: Mapping[str, Any] | None, save_dir: str | Path | None
) -> tuple[MaseGraph, MaseGraph, str | Path | None]:
    """The arguments when they come as a graph and a dictionary."""
    where = "summarize_quantization"
    if not isinstance(given, Mapping) or "original_graph" not in given:
        raise ConfigError(f"{where} takes (ori_graph, graph) or (graph, {{'original_graph': ...}})")
    for key in given.keys() - {"original_graph", "save_dir"}:
        raise UnknownNameError("key", key, ["original_graph", "save_dir"], where)
    return given["original_graph"], graph, given.get("save_dir", save_dir)


def node_changes(ori_graph: MaseGraph, graph: MaseGraph) -> list[NodeChange]:
    """Every node of the graph beside the node of the same name that it was."""
    originals = {node.name: node for node in ori_graph.nodes}
    changes = []
    for node in graph.nodes:
        if node.name not in originals:
            raise GraphError(f"the original graph has no node {node.name!r} to compare with")
        before, after = node_type(originals[node.name]), node_type(node)
        changes.append(
            NodeChange(
                node.name,
                node.name,
                get_mase_type(node),
                get_mase_op(node),
                before,
                after,
                called_object(originals[node.name]) != called_object(node),
            )
        )
    return changes


def called_object(node: fx.Node) -> Any:
    """The object that differs if a node has changed: the class of its layer, or its function."""
    target = get_node_actual_target(node)
    return type(target) if node.op == "call_module" else target


def node_type(node: fx.Node) -> str:
    """A node's kind for the tables: class of the layer, name of the function, method or input."""
    called = called_object(node)
    return called if isinstance(called, str) else str(getattr(called, "__name__", called))


def histogram(changes: list[NodeChange]) -> list[OpCount]:
    """Counts for each kind of node, sorted by kind."""
    total = Counter((change.original_type, change.mase_op) for change in changes)
    changed = Counter((c.original_type, c.mase_op) for c in changes if c.changed)
    return [
        OpCount(kind, op, total[kind, op], changed[kind, op], total[kind, op] - changed[kind, op])
        for kind, op in sorted(total)
    ]


def save_summary(changes: list[NodeChange], counts: list[OpCount], folder: Path) -> None:
    """Write both tables."""
    rows = [(index, *change) for index, change in enumerate(changes)]
    write_text(folder / "quantize_table.csv", summary_csv(("", *TABLE), rows))
    write_text(folder / "quantize_histogram.csv", summary_csv(HISTOGRAM, counts))


def summary_csv(header: tuple[str, ...], rows: list[Any]) -> str:
    """Rows as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
