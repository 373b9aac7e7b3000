"""The quantise pass: operations of a graph computed in number formats."""

from collections.abc import Mapping
from typing import Any

from torch import fx, nn

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
from chop.passes.graph.analysis.metadata_entries import record_formats, restore_records
from chop.passes.graph.transforms.quantize.plan import (
    FLOAT_FORM,
    FloatForm,
    Plan,
    QuantizeArgs,
    calls_layer,
    make_plan,
)
from chop.passes.graph.utils import replace_modules


@transform_pass("quantize", requires=("common",))
def quantize_transform_pass(graph: MaseGraph, args: QuantizeArgs) -> tuple[MaseGraph, Info]:
    """Compute the chosen operations in number formats.

    The graph is changed in place, and only once every rule has been checked. What a rule says
    holds whatever the node was before: ``name`` None or "NA" makes a quantised node float again,
    so ``{"by": "type", "default": {"config": {"name": None}}}`` undoes everything. A node that no
    rule is for stays as it is. Layers keep their float parameters and round them on the way in.
    A function whose format has a quantiser with a state becomes a module, which owns it.

    `info` has the class or function of each quantised node and the nodes that became float again.
    """
    plan = make_plan(graph, args)
    modules = graph.modules
    before = {node: described(node, modules) for node in plan}
    layers = new_layers(plan, modules)  # whatever is wrong with a rule shows here at the latest
    replace_modules(graph, layers)
    functions = [(node, quant) for node, quant in plan.items() if not calls_layer(node)]
    changed = [replace_function(graph, node, quant) for node, quant in functions]
    if any(changed):
        graph.fx_graph.lint()
        graph.model.recompile()  # half the cost of the pass, and layers are found by name anyway
    modules = graph.modules
    for node in plan:
        restore_records(node)
        record_formats(node)
    quantised = {n.name: described(n, modules) for n, quant in plan.items() if quant is not None}
    restored = [
        n.name for n, quant in plan.items() if not quant and before[n] != described(n, modules)
    ]
    return graph, {"quantized": quantised, "restored": restored}


def described(node: fx.Node, modules: Mapping[str, nn.Module]) -> str:
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
        found[old] = float_module(old) if quant is None else quantize_module(old, op, quant)
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
