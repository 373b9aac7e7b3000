"""The plan of a quantisation, decided and checked before anything is changed."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, model_validator
from torch import fx, nn

from chop.errors import ConfigError, UnknownNameError, suggestion
from chop.ir.call import FLOAT_FORM, NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import OUTPUT, QuantConfig, known_keys, parse_quant_config
from chop.numerics import FORMATS
from chop.ops.op import Op, is_aten, op_of_node, parameter_roles
from chop.ops.table import OPS
from chop.passes.base import Batches, PassArgs
from chop.passes.graph.transforms.quantize.ranges import Calibration
from chop.passes.graph.utils import SELECTORS, By, get_mase_op, select
from chop.validation import parse

WHERE = "pass 'quantize'"
DEFAULT = "default"
LISTED = 12  # names that a message lists; a large network has hundreds
Plan = dict[fx.Node, QuantConfig | None]
"""For each node that a rule is for: how it is to be quantised; None for floating point."""


def calls_layer(node: fx.Node) -> bool:
    """True if a node calls a layer, rather than a function that became a module to own a state."""
    return node.op == "call_module" and FLOAT_FORM not in node.meta


class QuantizeRule(PassArgs):
    """The rule for some nodes: a flat configuration with the `name` of a number format."""

    config: dict[str, Any]


class DefaultRule(QuantizeRule):
    """The rule for nodes without a rule of their own.

    Args:
        only: the operations it applies to; by default all that can be quantised.
    """

    only: tuple[str, ...] | None = None


POWER_OF_TWO: Literal["power_of_two"] = "power_of_two"
Scales = Literal["power_of_two", "free"]


class QuantizeArgs(PassArgs):
    """Rules by operation, node name or pattern, each ``{"config": {"name": ..., ...}}``.

    Args:
        by: what the keys of the rules are: operations (type), names of nodes (name), or regular
            expressions that match whole names, of which the first match counts (regex_name).
        default: the rule for every other node that can be quantised; with ``only = [...]``, for
            nodes of these operations.
        input_generator: batches of inputs by name, on which scales that are "auto" are calibrated.
        calibrate: the arguments of the pass `calibrate`.
        outside_width: do not warn about binary points outside the width.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    ignored: ClassVar[Mapping[str, str]] = {
        **PassArgs.ignored,
        "report": "ch transform always prints what changed, as summarize_quantization does",
        "baseline_weight_path": "LUTNet and LogicNets are not here",
        "load_type": "LUTNet and LogicNets are not here",
    }

    by: By = "type"
    default: DefaultRule | None = None
    input_generator: Batches | None = None
    calibrate: Calibration = Calibration()
    outside_width: bool = False

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for key, config in self.configs():
            name = config.get("name")
            if name is not None and name not in FORMATS:
                raise UnknownNameError("number format", name, FORMATS, f"{WHERE}: {key}")
            if self.by == "type" and key not in (*OPS, DEFAULT):
                raise UnknownNameError("operation", key, OPS, WHERE)
        known = quantizable_operations()
        for name in (self.default and self.default.only) or ():
            if name not in known:
                raise UnknownNameError("operation", name, known, f"{WHERE}: default.only")
        return self

    def configs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The configuration of each rule by its key, the default last."""
        for key, rule in (self.model_extra or {}).items():
            if not isinstance(rule, Mapping):
                near = suggestion(key, ("by", DEFAULT, *self.ignored))
                hint = f"; {near}" if near.startswith("did you mean") else ""
                raise ConfigError(
                    f"{WHERE}: {key}: a rule is a table with 'config' (got {rule!r}){hint}"
                )
            yield key, parse(QuantizeRule, rule, f"{WHERE}: {key}").config
        if self.default is not None:
            yield DEFAULT, self.default.config

    def default_for(self, op: Op | None) -> str | None:
        """The key of the default rule, if it is for an operation."""
        if self.default is None or op is None:
            return None
        only = self.default.only
        return DEFAULT if only is None or op.name in only else None


def quantizable_operations() -> list[str]:
    """The operations that rules can be for, in any graph."""
    return sorted(name for name, op in OPS.items() if op.quantizable)


def make_plan(graph: MaseGraph, args: QuantizeArgs) -> Plan:
    """The configuration that the rules give each node; any fault in the rules is an error."""
    modules = graph.modules
    configs = dict(args.configs())
    chosen = select(graph.nodes, args.by, keys_to_find(graph, args.by, configs), WHERE)
    plan: Plan = {}
    rule_of: dict[fx.Node, str] = {}
    for node in graph.nodes:
        op = op_of_node(node, modules)
        key = chosen.get(node) or args.default_for(op)
        if key is None or not is_quantizable(node, op):
            refuse_named(graph, node, key, configs, args.by)
            continue
        assert op is not None
        rule_of[node] = key
        plan[node] = quant_config(node, op, configs[key], f"{WHERE}: {key}")
    for key in sorted(set(chosen.values()) - set(rule_of.values())):
        if configs[key].get("name") is not None:
            refuse_unused(graph, args.by, key)
    refuse_nothing(graph, configs, plan, rule_of)
    return check_shared(graph, plan, modules)


def keys_to_find(graph: MaseGraph, by: By, configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The keys of rules that must be found in the graph.

    An operation that is to stay in floating point need not be there: such rules restrict the
    default, and one set of them may serve many networks.
    """
    present = {get_mase_op(node) for node in graph.nodes} if by == "type" else set()
    return [
        key
        for key, config in configs.items()
        if key != DEFAULT and (by != "type" or key in present or config.get("name") is not None)
    ]


def is_quantizable(node: fx.Node, op: Op | None) -> bool:
    """True if the operation of a node can be computed in a number format the way it is written."""
    if op is None or not op.quantizable or is_aten(node) or renormalises(node, op):
        return False
    return op.module is not None if calls_layer(node) else op.function is not None


def renormalises(node: fx.Node, op: Op) -> bool:
    """True if a node writes to its weight as it runs: an embedding whose rows have a largest norm.

    Of a rounded weight it would scale rows off the grid, and leave the weight itself as it was.
    """
    if calls_layer(node):
        return getattr(node.meta["mase"].module, "max_norm", None) is not None
    return NodeCall.of(node).arguments.get("max_norm") is not None


def quant_config(
    node: fx.Node, op: Op, config: Mapping[str, Any], where: str
) -> QuantConfig | None:
    """The typed configuration; None where the rule says floating point.

    It says so too where it mentions only operands that the node lacks, so that none is left to be
    rounded.
    """
    if config.get("name") is None:
        return None
    quant = parse_quant_config(op, config, where)
    rounds = not quant.operands.keys().isdisjoint((*present_roles(node, op), OUTPUT))
    return quant if rounds or quant.bypass else None


def present_roles(node: fx.Node, op: Op) -> list[str]:
    """The operands of a node: those of its operation but parameters that its layer goes without."""
    if not calls_layer(node):
        return [*op.roles, *op.inner]
    there = parameter_roles(op, node.meta["mase"].module).values()
    return [role for role in (*op.roles, *op.inner) if role not in op.params or role in there]


def refuse_named(
    graph: MaseGraph,
    node: fx.Node,
    key: str | None,
    configs: Mapping[str, Mapping[str, Any]],
    by: By,
) -> None:
    """Raise if a rule asks by name or type for a node that cannot be quantised."""
    # A pattern may cover nodes between those that are meant, and a default covers all.
    if key in (None, DEFAULT) or by == "regex_name" or configs[str(key)].get("name") is None:
        return
    raise ConfigError(
        f"{WHERE}: {key}: node {node.name!r} ({node.op}) cannot be quantised; "
        f"{what_can_be(graph, by)}"
    )


def refuse_unused(graph: MaseGraph, by: By, key: str) -> None:
    """Raise for a pattern all of whose nodes are of kinds that cannot be quantised.

    A pattern that an earlier one has left only such nodes is not one of these.
    """
    modules = graph.modules
    matched = [node for node in graph.nodes if SELECTORS[by](node, (key,)) is not None]
    if not any(is_quantizable(node, op_of_node(node, modules)) for node in matched):
        raise ConfigError(
            f"{WHERE}: {key}: none of its nodes can be quantised; {what_can_be(graph, by)}"
        )


def what_can_be(graph: MaseGraph, by: By = "type") -> str:
    """The operations or the nodes of a graph that a rule may ask for."""
    modules = graph.modules
    able = [node for node in graph.nodes if is_quantizable(node, op_of_node(node, modules))]
    names = sorted({get_mase_op(n) for n in able}) if by == "type" else [n.name for n in able]
    if not names:
        return "no operation of this graph can be"
    shown = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
    return f"{'operations' if by == 'type' else 'nodes'} of this graph that can be: {shown}"


def refuse_nothing(
    graph: MaseGraph,
    configs: Mapping[str, Mapping[str, Any]],
    plan: Plan,
    rule_of: Mapping[fx.Node, str],
) -> None:
    """Raise if not one operation is quantised although no rule says that all is to be float.

    Rules with the name "NA", and a bypass, do say so.
    """
    wishes = {key: config for key, config in configs.items() if config.get("name") is not None}
    if any(plan.values()) or (configs and not wishes):
        return
    key = next(iter(wishes), None)
    nodes = [node for node, each in rule_of.items() if each == key]
    if key is None:
        why = "there is no rule"
    elif nodes:
        why = f"the rule {key!r} {absent_operands(wishes[key], nodes[0])}"
    else:
        why = f"no node is left for the rule {key!r}"
    raise ConfigError(f"{WHERE}: no operation would be rounded: {why}; {what_can_be(graph)}")


def absent_operands(config: Mapping[str, Any], node: fx.Node) -> str:
    """Return that a rule has settings only for operands that a node lacks."""
    keys = known_keys(FORMATS[str(config["name"])], len(OPS))
    stated = sorted({keys[key][0] for key in config if key in keys})
    there = present_roles(node, OPS[get_mase_op(node)])
    return f"sets {', '.join(stated)}, but node {node.name!r} has {', '.join(there)}"


def check_shared(graph: MaseGraph, plan: Plan, modules: Mapping[str, nn.Module]) -> Plan:
    """The plan, if nodes that call the same layer agree on what becomes of it."""
    first: dict[nn.Module, fx.Node] = {}
    missing = object()
    for node in graph.nodes:
        if node.op != "call_module":
            continue
        other = first.setdefault(modules[str(node.target)], node)
        if plan.get(node, missing) != plan.get(other, missing):
            raise ConfigError(
                f"{WHERE}: nodes {other.name!r} and {node.name!r} call the same layer "
                f"{str(node.target)!r}, so the same rule must hold for both"
            )
    return plan
