"""The pass quantize_whole: a network of which every number is an integer, where there is one.

Batch normalisation is folded, products and sums and functions read rounded values, and the result
is lowered as a test. What selects numbers without changing them, as ReLU and maximum pools do,
needs no rounding: the next operation rounds what it reads.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, fx

from chop.errors import ChopError
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import LoweringError, lower
from chop.numerics import Integer, NumberFormat
from chop.numerics.base import AUTO
from chop.numerics.int_tensor import IntTensor
from chop.ops.op import Op, Reads, op_of_node
from chop.ops.stepwise import TABLE
from chop.ops.table import OPS
from chop.passes.base import Info, transform_pass
from chop.passes.graph.transforms.folding import NORMS, fold_normalisation_transform_pass
from chop.passes.graph.transforms.methods.choosing import (
    Method,
    methods_for,
    quantise_with_methods,
)
from chop.passes.graph.transforms.quantize.free_scales import set_free_scales
from chop.passes.graph.transforms.quantize.one_line import product_operations
from chop.passes.graph.transforms.quantize.plan import (
    POWER_OF_TWO,
    DefaultRule,
    Plan,
    QuantizeArgs,
    Scales,
    make_plan,
)
from chop.passes.graph.transforms.quantize.quantize import apply_plan, quantize_by_plan
from chop.passes.graph.transforms.recognition import recognise
from chop.passes.graph.transforms.writing import balance_products, write_out
from chop.passes.graph.transforms.writing.balance import SCALES
from chop.passes.graph.transforms.writing.functions import is_transposed

logger = logging.getLogger("chop")
LISTED = 5
INTEGER = "integer"
LEAST_BIAS = 16
MORE_IN_TABLES = 4
"""Bits that the tables inside an operation have more than its data."""
MORE_IN_NORMS = 2
"""Bits that the tables of norms that subtract the mean have more than those of others."""
WOULD_HELP = "write it with operations that have one, or add one by @chop.ops.lowering"
WEIGHTS_BY_CHANNEL = {"per": {"weight": "channel"}}


class WholeArgs(QuantizeArgs):
    """The rules of `quantize`, and methods that lose less at few bits.

    Args:
        methods: passes that are kept where they help on rows: equalise, round_weights and
            correct_bias; by default all, if weights have fewer than 8 bits.
        scales: powers of two, or free ones that are chosen on the rows.
    """

    methods: tuple[Method, ...] | None = None
    scales: Scales = POWER_OF_TWO


@transform_pass("quantize_whole", requires=("common",))
def quantize_whole_transform_pass(graph: MaseGraph, args: WholeArgs) -> tuple[MaseGraph, Info]:
    """Compute everything in integers where that is possible, else all products.

    The arguments are those of `quantize`; the format of `default` is for every operation that has
    integers. Where one in the middle of the network has none, only products get it. `info` has
    what `quantize` says, the gain of each method (`methods`), the folded norms (`folded`), what
    stays in floating point with the reason (`in_float`), which is empty if the network is whole in
    integers, and whether its `scales` are powers of two or free.
    """
    folded: Info = {}
    if args.by != "type" or not args.model_extra:  # rules for operations are for what is written
        recognise(graph)
        usual = args.default.config.get("data_in_width") if args.default is not None else None
        write_out(graph, nodes_of_rows(graph), int(usual or 0))
        if args.input_generator is not None:
            balance_products(graph, args.input_generator)
    if not names_norms(graph, args):
        graph, folded = fold_normalisation_transform_pass(graph)
    left = without_integers(graph)
    only = product_operations() if left else rounded_operations(graph)
    ruled = with_operations(args, only)

    def quantise(each: MaseGraph) -> tuple[MaseGraph, Info]:
        plan = with_wide_sums(each, for_rows(each, make_plan(each, ruled)), ruled)
        return quantize_by_plan(each, without_signs(each, plan, ruled), ruled)

    methods = methods_for(ruled, args.methods)
    graph, info = quantise_with_methods(graph, quantise, args.input_generator, methods)
    align_biases(graph)
    in_float = left or first_obstacle(graph)
    show_left(in_float)
    scales = args.scales
    if scales != POWER_OF_TWO and (in_float or args.input_generator is None):
        logger.warning("%s", "Scales stay powers of two, as the network is not whole in integers")
        scales = POWER_OF_TWO
    if scales != POWER_OF_TWO and args.input_generator is not None:
        info["free_scales"] = set_free_scales(graph, args.input_generator)
    return graph, {**info, "folded": folded, "in_float": in_float, "scales": scales}


def names_norms(graph: MaseGraph, args: QuantizeArgs) -> bool:
    """Return True if a rule is for a batch normalisation, which therefore has to stay."""
    norms = {
        node.name
        for node in graph.nodes
        if node.op == "call_module" and isinstance(graph.modules[str(node.target)], NORMS)
    }
    kinds = {name for name, op in OPS.items() if op.module in NORMS}
    return any(key in norms | kinds for key in args.model_extra or {})


def with_operations(args: QuantizeArgs, only: Sequence[str]) -> QuantizeArgs:
    """Return rules whose default is for some operations; weights get a scale for each channel.

    A bias has twice the bits of the weights and at least 16, which sums have anyway.
    """
    if args.default is None or args.default.only is not None:
        return args
    changed: dict[str, Any] = {
        key: {"config": with_inner_operands(config)} for key, config in args.configs()
    }
    changed["default"] = DefaultRule(**changed["default"], only=tuple(only))
    if "calibrate" not in args.model_fields_set:
        changed["calibrate"] = type(args.calibrate).model_validate(WEIGHTS_BY_CHANNEL)
    return args.model_copy(update=changed)


def with_inner_operands(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration that says the bits of biases and tables, too, where it did not."""
    if config.get("name") != INTEGER:
        return config
    config = dict(config)
    if "weight_width" in config and "bias_width" not in config:
        config["bias_width"] = max(LEAST_BIAS, 2 * int(config["weight_width"]))
        if config.get("weight_frac_width") == AUTO:
            config["bias_frac_width"] = AUTO
    if "data_in_width" in config:
        bits = min(int(config["data_in_width"]), LEAST_BIAS - MORE_IN_TABLES) + MORE_IN_TABLES
        config = {"table_width": bits, "table_frac_width": bits} | config
    return config


def rounded_operations(graph: MaseGraph) -> list[str]:
    """Return the operations that have integers and whose operands have to be rounded for them.

    What only selects numbers has to round them where it reads an input of the network.
    """
    first = {op.name for node in graph.nodes if (op := raw_reader(node, graph)) is not None}
    return sorted(
        op.name
        for op in OPS.values()
        if op.quantizable and op.lowering is not None and (not op.selects or op.name in first)
    )


def raw_reader(node: fx.Node, graph: MaseGraph) -> Op | None:
    """Return the operation of a node if it only selects numbers, some of which none has rounded."""
    op = op_of_node(node, graph.modules)
    if op is None or not op.selects:
        return None
    seen, left = {node}, list(node.all_input_nodes)
    while left:
        source = left.pop()
        if source.op == "placeholder":
            return op
        before = op_of_node(source, graph.modules)
        if source in seen or before is None or (before.quantizable and not before.selects):
            continue
        seen.add(source)
        left += source.all_input_nodes
    return None


def nodes_of_rows(graph: MaseGraph) -> set[fx.Node]:
    """Return the nodes that depend on the rows; others are computed once, as positions are."""
    varying: set[fx.Node] = set()
    for node in graph.nodes:
        op = op_of_node(node, graph.modules)
        depends = not varying.isdisjoint(node.all_input_nodes)
        is_fact = op is not None and op.reads is Reads.SHAPE and not is_transposed(node)
        if node.op == "placeholder" or (depends and not is_fact):
            varying.add(node)
    return varying


def for_rows(graph: MaseGraph, plan: Plan) -> Plan:
    """Return a plan without what is computed once, or only moves a binary point.

    Whatever reads its result rounds that.

    The angles of rotary embeddings are such numbers, whose sines need more than a few bits. Layers
    with weights keep what the rules say.
    """
    varying = {node for node in nodes_of_rows(graph) if SCALES not in node.meta}
    return {node: q for node, q in plan.items() if node in varying or node.op == "call_module"}


def with_wide_sums(graph: MaseGraph, plan: Plan, args: QuantizeArgs) -> Plan:
    """Return a plan with more bits for what is standardised, and for the sums that lead there.

    A row is divided by its own size, so what was rounded by the size of the largest row would be
    the noise of small ones. Widths that are said for an operation or a layer stay.
    """
    usual = args.default.config.get("data_in_width") if args.default is not None else None
    if usual is None:
        return plan
    modules, wide = graph.modules, set[fx.Node]()
    ops = {node: op_of_node(node, modules) for node in graph.nodes}
    left = [node for node, op in ops.items() if op is not None and op.standardises]
    while left:
        node = left.pop()
        wide.add(node)
        for source in node.all_input_nodes:
            op = ops[source]
            carries = op is not None and (op.keeps_sign or op.reads is Reads.PLACE)
            if carries and not getattr(op, "multiplies", False) and source not in wide:
                left.append(source)
    return {
        node: quant
        if quant is None or node not in wide
        else replace(quant, operands=dict(widened(quant.operands, int(usual))))
        for node, quant in plan.items()
    }


def widened(operands: Mapping[str, NumberFormat], usual: int) -> Iterator[tuple[str, NumberFormat]]:
    """Yield the formats of operands, that of data and of tables with the bits of tables."""
    bits = min(usual, LEAST_BIAS - MORE_IN_TABLES) + MORE_IN_TABLES
    for role, fmt in operands.items():
        is_usual = isinstance(fmt, Integer) and fmt.is_open and fmt.width == usual
        if role == "data_in" and is_usual and bits > usual:
            fmt = fmt.model_copy(update={"width": bits})
        elif role == TABLE and "bias" in operands and getattr(fmt, "width", None) == bits:
            more = min(bits + MORE_IN_NORMS, LEAST_BIAS)
            fmt = fmt.model_copy(update={"width": more, "frac_width": more})
        yield role, fmt


def without_signs(graph: MaseGraph, plan: Plan, args: QuantizeArgs) -> Plan:
    """Return a plan with data that cannot be below zero in formats without a sign: one bit more.

    Scales that are given and signs that are said stay as they are.
    """
    said = any("data_in_signed" in config for _, config in args.configs())
    if said or args.input_generator is None:
        return plan
    modules, positive = graph.modules, set[fx.Node]()
    signed: set[Any] = set()  # nodes and layers that read a number below zero somewhere
    for node in graph.nodes:
        op = op_of_node(node, modules)
        reads = [each for each in node.all_input_nodes if each.op != "get_attr"]
        kept = bool(reads) and positive.issuperset(reads)
        if not kept:
            signed.add(node.target if node.op == "call_module" else node)
        if op is not None and (
            op.never_negative or (kept and op.keeps_sign and not fills_values(node))
        ):
            positive.add(node)
    return {
        node: quant
        if quant is None or (node.target if node.op == "call_module" else node) in signed
        else replace(quant, operands=dict(unsigned(quant.operands)))
        for node, quant in plan.items()
    }


def unsigned(operands: Mapping[str, NumberFormat]) -> Iterator[tuple[str, NumberFormat]]:
    """Yield the formats of operands, that of data without a sign where its scale is open."""
    for role, fmt in operands.items():
        drops = role == "data_in" and isinstance(fmt, Integer) and fmt.is_open
        yield role, fmt.model_copy(update={"signed": False}) if drops else fmt


def fills_values(node: fx.Node) -> bool:
    """Return True if a node may put other numbers between those that it moves, as padding does."""
    return "value" in node.kwargs or any(isinstance(each, str) for each in node.args[1:])


def align_biases(graph: MaseGraph) -> None:
    """Give a bias the binary point of the sums that it is added to, where its own is finer.

    Bits below those of the products would make every sum wider.
    """
    plan: Plan = {}
    for node in graph.nodes:
        call = NodeCall.of(node, graph.modules)
        operands = {} if call.quant is None else call.quant.operands
        three = [operands.get(role) for role in ("data_in", "weight", "bias")]
        if call.quant is None or not all(isinstance(e, Integer) and not e.is_open for e in three):
            continue
        data, weight, bias = (each.arrays[1] for each in three)  # type: ignore[union-attr]
        stored = getattr(call.module, "bias", None)
        by_channel = isinstance(stored, Tensor) and stored.numel() == weight.size
        point = data.max() + (weight.reshape(-1) if by_channel else weight.max())
        if (bias > point).any():
            number = np.minimum(bias, point)
            fmt = three[2].with_scale(IntTensor(number) if number.ndim else int(number))  # type: ignore[union-attr]
            plan[node] = replace(call.quant, operands={**operands, "bias": fmt})
    if plan:
        apply_plan(graph, plan)


def without_integers(graph: MaseGraph) -> dict[str, str]:
    """Return the nodes between products that have no integers, each with the reason.

    What stands at the end of a network, as a softmax does, can be left off and does not count.
    """
    found: dict[str, str] = {}
    varying = nodes_of_rows(graph)
    for node in graph.nodes:
        op = op_of_node(node, graph.modules)
        is_call = node.op.startswith("call_") and node in varying
        if not is_call or not leads_to_product(node, graph):
            continue
        if op is None:
            found[node.name] = f"is not an operation that has a rule; {WOULD_HELP}"
        elif op.lowering is None:
            found[node.name] = f"has no rule in integers ({op.name}); {WOULD_HELP}"
    return found


def leads_to_product(node: fx.Node, graph: MaseGraph) -> bool:
    """Return True if a product reads what a node gives, or what follows from it."""
    seen, left = set(), list(node.users)
    while left:
        user = left.pop()
        if user in seen:
            continue
        seen.add(user)
        op = op_of_node(user, graph.modules)
        if op is not None and op.multiplies:
            return True
        left += user.users
    return False


def first_obstacle(graph: MaseGraph) -> dict[str, str]:
    """Return what keeps a quantised graph from being whole in integers, found by lowering it."""
    try:
        lower(graph)
    except LoweringError as error:
        name, _, reason = str(error).partition(" ")
        return {name.rstrip(":"): reason}
    except ChopError as error:
        return {"network": str(error).partition("\n")[0]}
    return {}


def show_left(in_float: dict[str, str]) -> None:
    """Say what stays in floating point, or that nothing does."""
    if not in_float:
        logger.info("Whole in integers")
        return
    logger.warning("In floating point: %s", in_words(in_float.items()))


def in_words(in_float: Iterable[tuple[str, str]]) -> str:
    """Return names and reasons as one line."""
    shown = [f"{name} {reason}" for name, reason in in_float]
    more = f" and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
    return "; ".join(shown[:LISTED]) + more
