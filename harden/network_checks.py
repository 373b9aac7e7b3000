"""What must hold of every network and every set of rules."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from chop.errors import ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import preserve_model
from chop.nn.decomposed import decompose
from chop.nn.quantizers import QUANTIZERS
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    calculate_avg_bits_mg_analysis_pass,
    count_operations_analysis_pass,
    init_metadata_analysis_pass,
    load_mase_graph,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.analysis.flops.node_count import OF_A_BATCH
from harden.network_rules import UNDONE, Rules
from harden.network_source import Network

SAME_LAYER = "call the same layer"
"""What the pass says of rules that want two things of one layer: a mistake it must find."""
NOTHING = "no operation would be rounded"
"""What it says where rules name a format, or there is none, and no operand takes it."""
COUNTED_BY_TORCH = frozenset(
    {"linear", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "mm", "bmm", "addmm",
     "baddbmm"}
)  # fmt: skip
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Draw = Callable[[MaseGraph], Rules]


class Broken(AssertionError):
    """Something that must hold does not."""


def require(holds: object, what: str) -> None:
    """Raise unless it holds."""
    if not holds:
        raise Broken(what)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal to the last bit, signs of zero and NaN included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == torch.bool or not one.numel():
        return torch.equal(one, other)
    kind = INTEGERS[one.element_size()]
    return torch.equal(one.contiguous().view(kind), other.contiguous().view(kind))


def same_results(one: Any, other: Any) -> bool:
    """Whether two results of a model have the same form and the same bits."""
    ones, form = pytree.tree_flatten(one)
    others, other_form = pytree.tree_flatten(other)
    return form == other_form and all(map(same_bits, ones, others))


def close(one: Any, other: Any) -> bool:
    """Whether two results are equal to within rounding."""
    try:
        torch.testing.assert_close(one, other, equal_nan=True)
    except AssertionError:
        return False
    return True


def run(model: nn.Module, x: Tensor) -> Any:
    """What a model gives in evaluation mode; formats that draw at random draw the same."""
    torch.default_generator.manual_seed(1)
    with preserve_model(model):
        return pytree.tree_map(lambda value: value.detach().clone(), model(x.clone()))


class State:
    """Everything about a model that must not change."""

    def __init__(self, model: nn.Module) -> None:
        tensors = [*model.named_parameters(), *model.named_buffers()]
        self.tensors = {
            name: (id(each), each.requires_grad, each.detach().clone()) for name, each in tensors
        }
        self.modules = {
            name: (
                id(module),
                type(module),
                module.training,
                tuple(vars(module)),
                tuple(tuple(hooks) for hooks in hooks_of(module)),
            )
            for name, module in model.named_modules(remove_duplicate=False)
        }

    def require_same(self, other: "State") -> None:
        """Raise with the first thing that is not as it was."""
        require(self.modules == other.modules, "the original model has other modules or modes")
        require(self.tensors.keys() == other.tensors.keys(), "the original has other tensors")
        for name, (place, trained, value) in self.tensors.items():
            now_place, now_trained, now = other.tensors[name]
            require(place == now_place, f"{name} of the original model is another tensor")
            require(trained == now_trained, f"{name} of the original is trained otherwise")
            require(same_bits(value, now), f"{name} of the original model has changed")


def hooks_of(module: nn.Module) -> list[Any]:
    """The hooks of a module, by kind."""
    return [value for name, value in sorted(vars(module).items()) if name.endswith("_hooks")]


def check(network: Network, draw: Draw, folder: Path) -> None:
    """Everything that must hold, from tracing to loading."""
    model, x = network.build(), network.inputs()
    model.register_forward_hook(no_hook)
    before = State(model)
    own = run(model, x)
    # torch has several kernels for attention, which round differently; a graph has its products.
    expected = run(decompose(model), x)
    require(same_results(expected, own) or close(expected, own), "its products are not the model")
    graph = traced(model, x)
    require(same_results(run(graph.model, x), expected), "the graph is not the model")
    plain = check_counts(graph)
    check_products(graph, model, x, plain)
    rules = draw(graph)
    float_twin = copy.deepcopy(graph)
    if not quantised(graph, rules):
        require(same_results(run(graph.model, x), expected), "refused rules changed the graph")
        return
    before.require_same(State(model))
    check_quantised(graph, rules, x, folder)
    require(same_results(run(float_twin.model, x), expected), "a deep copy changed with the graph")
    restored = load_mase_graph(folder / "float")
    quantize_transform_pass(restored, UNDONE)
    require(same_results(run(restored.model, x), expected), "undone, it is not the float model")
    require(check_counts(restored) == plain, "undone, it is counted otherwise")
    before.require_same(State(model))
    require(same_results(run(model, x), own), "the original model computes otherwise")


def no_hook(module: nn.Module, args: Any, output: Any) -> None:
    """A hook that does nothing, to be found again."""


def traced(model: nn.Module, x: Tensor) -> MaseGraph:
    """The model as a graph with metadata that verifies."""
    graph = MaseGraph(model)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})
    add_software_metadata_analysis_pass(graph)
    verify_metadata_analysis_pass(graph)
    return graph


def quantised(graph: MaseGraph, rules: Rules) -> bool:
    """Quantise the graph; False if the rules want two things of one layer, or round nothing."""
    given = copy.deepcopy(rules)
    try:
        quantize_transform_pass(graph, rules)
    except ConfigError as error:
        unlike = SAME_LAYER in str(error) and rules["by"] == "regex_name"
        formats = [rule["config"]["name"] for key, rule in rules.items() if key != "by"]
        all_float = bool(formats) and set(formats) <= {None, "NA"}
        require(unlike or (NOTHING in str(error) and not all_float), f"refused: {error}")
        return False
    finally:
        require(rules == given, "the rules were changed")
    return True


def check_quantised(graph: MaseGraph, rules: Rules, x: Tensor, folder: Path) -> None:
    """What must hold of a quantised graph."""
    verify_metadata_analysis_pass(graph)
    result = run(graph.model, x)
    counts = check_counts(graph)
    code, described = code_of(graph), describe(graph)
    require(quantised(graph, rules), "the same rules are refused the second time")
    require(same_results(run(graph.model, x), result), "quantised twice, it gives something else")
    require(describe(graph) == described, "quantised twice, it is another graph")
    twin = copy.deepcopy(graph)
    require(same_results(run(twin.model, x), result), "a deep copy gives something else")
    require(check_counts(twin) == counts, "a deep copy is counted otherwise")
    for weights in ("float", "codes"):
        where = {"save_dir": folder / weights, "weights": weights, "add_value": True}
        save_mase_graph_interface_pass(graph, where)
        loaded = load_mase_graph(folder / weights)
        verify_metadata_analysis_pass(loaded)
        words = f"saved as {weights} and loaded, it"
        require(same_results(run(loaded.model, x), result), f"{words} gives something else")
        require(code_of(loaded) == code, f"{words} has other code")
        require(describe(loaded) == described, f"{words} has other metadata")
        require(check_counts(loaded) == counts, f"{words} is counted otherwise")
    require(same_results(run(graph.model, x), result), "saving changed what the graph gives")


def code_of(graph: MaseGraph) -> str:
    """The code that fx wrote, without the remarks for its tracer that stand before it."""
    return str(graph.model.code).partition("def forward")[2]


def describe(graph: MaseGraph) -> list[Any]:
    """The nodes and what is known of them, without the values."""
    return [(node.name, node.op, target(node), known(node)) for node in graph.nodes]


def target(node: fx.Node) -> str:
    """What a node calls, and the class of its layer."""
    module = node.meta["mase"].module
    name = getattr(node.target, "__name__", node.target)
    return f"{name} {type(module).__name__}"


def known(node: fx.Node) -> Any:
    """The common metadata of a node without values."""
    return pytree.tree_map(
        lambda value: tuple(value.shape) if isinstance(value, Tensor) else str(value),
        node.meta["mase"]["common"],
    )


def check_counts(graph: MaseGraph) -> dict[str, Any]:
    """The counts of the graph, in which the total is the sum over the nodes."""
    _, info = count_operations_analysis_pass(graph, {"report": False, "backward": True})
    total = info["total"]
    for name in OF_A_BATCH:
        summed = sum(count[name] or 0 for count in info["nodes"].values())
        require(total[name] == summed, f"{name}: {total[name]} is not the sum {summed}")
    parameters = used_parameters(graph)
    elements = sum(parameter.numel() for parameter in parameters)
    require(total["parameters"] == elements, f"{total['parameters']} parameters, not {elements}")
    shared = sum(count["parameters"] for count in info["nodes"].values()) != elements
    bits = sum(count["parameter_bits"] for count in info["nodes"].values())
    require(shared or total["parameter_bits"] == bits, "parameter_bits is not the sum")
    _, widths = calculate_avg_bits_mg_analysis_pass(graph)
    average = widths["w_avg_bit"]
    missed = average * elements - total["parameter_bits"] if elements else 0
    require(abs(missed) < 1e-6, "w_avg_bit is not the average of the bits")
    return dict(info)


def used_parameters(graph: MaseGraph) -> set[nn.Parameter]:
    """The parameters of the layers and attributes that nodes call or read.

    Those of quantisers that learn are no weights: they end up in the format.
    """
    found: set[nn.Parameter] = set()
    for node in graph.nodes:
        if node.op == "call_module":
            layer = graph.model.get_submodule(str(node.target))
            named = layer.named_parameters()
            found |= {each for name, each in named if not name.startswith(f"{QUANTIZERS}.")}
        elif node.op == "get_attr":
            owner, _, last = str(node.target).rpartition(".")
            value = getattr(graph.model.get_submodule(owner), last)
            found |= {value} if isinstance(value, nn.Parameter) else set()
    return found


def check_products(graph: MaseGraph, model: nn.Module, x: Tensor, info: dict[str, Any]) -> None:
    """MACs are those that torch counts, where every product is one that torch counts, too."""
    counted = [each for each in info["nodes"].values() if each["macs"] != 0]
    if any(each["op"] not in COUNTED_BY_TORCH for each in counted):
        return
    macs, truth = info["total"]["macs"], products_of(model, x)
    if info["per"] != "sample":
        require(macs == truth, f"{macs} MACs of a batch, torch counts {truth}")
        return
    try:
        of_one = products_of(model, x[:1])
    except (ValueError, RuntimeError):  # a layer that takes the batch for features, say, has no
        return  # count of one sample to compare with, nor has a network that takes its batch apart
    require(macs == of_one or truth != of_one * len(x), f"{macs} MACs, torch counts {of_one}")


def products_of(model: nn.Module, x: Tensor) -> int:
    """The MACs that torch counts."""
    with FlopCounterMode(display=False) as counter:
        run(model, x)
    return int(counter.get_total_flops()) // 2
