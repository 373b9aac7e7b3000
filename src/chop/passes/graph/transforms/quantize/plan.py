"""Which node is to become what, decided and checked before anything is changed."""

from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import ConfigDict, model_validator
from torch import fx, nn

from chop.errors import ConfigError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.quant_config import QuantConfig, parse_quant_config
from chop.numerics import FORMATS
from chop.ops.lookup import op_of_node
from chop.ops.op import Op
from chop.ops.table import OPS
from chop.passes.base import PassArgs
from chop.passes.graph.select import SELECTORS, By, select
from chop.validation import parse

WHERE = "pass 'quantize'"
Plan = dict[fx.Node, QuantConfig | None]
"""For each node that a rule is for: how it is to be quantised; None for floating point."""


class QuantizeRule(PassArgs):
    """The rule for some nodes: a flat configuration with the `name` of a number format."""

    config: dict[str, Any]


class QuantizeArgs(PassArgs):
    """Rules by operation, node name or pattern, each ``{"config": {"name": ..., ...}}``.

    Args:
        by: what the keys of the rules are: operations (type), names of nodes (name) or regular
            expressions for whole names, of which the first that matches counts (regex_name).
        default: the rule for every other node that can be quantised.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    by: By = "type"
    default: QuantizeRule | None = None

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for key, config in self.configs():
            name = config.get("name")
            if name is None:
                continue
            if name not in FORMATS:
                raise UnknownNameError("number format", name, FORMATS, f"{WHERE}: {key}")
            if self.by == "type" and key not in (*OPS, "default"):
                raise UnknownNameError("operation", key, OPS, WHERE)
        return self

    def configs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The configuration of each rule by its key, the default last."""
        for key, rule in (self.model_extra or {}).items():
            if not isinstance(rule, Mapping):
                raise ConfigError(f"{WHERE}: {key}: a rule is a table with 'config' (got {rule!r})")
            yield key, parse(QuantizeRule, rule, f"{WHERE}: {key}").config
        if self.default is not None:
            yield "default", self.default.config


def make_plan(graph: MaseGraph, args: QuantizeArgs) -> Plan:
    """What the rules make of each node; whatever is wrong with them is an error."""
    modules = graph.modules
    configs = dict(args.configs())
    keys = [key for key in configs if key != "default"]
    chosen = select(graph.nodes, args.by, keys, WHERE)
    plan: Plan = {}
    used: set[str] = set()
    for node in graph.nodes:
        key = chosen.get(node) or ("default" if "default" in configs else None)
        op = op_of_node(node, modules)
        if key is None or not can_be_quantised(node, op):
            refuse_named(node, key, configs, args.by)
            continue
        assert op is not None
        used.add(key)
        plan[node] = quant_config(op, configs[key], f"{WHERE}: {key}")
    for key in sorted(set(chosen.values()) - used):
        if configs[key].get("name") is not None:
            refuse_unused(graph, args.by, key)
    return check_shared(graph, plan, modules)


def can_be_quantised(node: fx.Node, op: Op | None) -> bool:
    """Whether the operation of a node can be computed in a number format the way it is written."""
    if op is None or not op.quantizable or renormalises(node, op):
        return False
    return op.module is not None if node.op == "call_module" else op.function is not None


def renormalises(node: fx.Node, op: Op) -> bool:
    """Whether a node writes to its weight as it runs: an embedding whose rows have a largest norm.

    Of a rounded weight it would scale rows off the grid, and leave the weight itself as it was.
    """
    if node.op == "call_module":
        return getattr(node.meta["mase"].module, "max_norm", None) is not None
    return op.bind(node.args, node.kwargs).get("max_norm") is not None


def quant_config(op: Op, config: Mapping[str, Any], where: str) -> QuantConfig | None:
    """The typed configuration; None where the rule says floating point.

    It says so too where it mentions only operands that the operation lacks, so that none is left
    to be rounded.
    """
    if config.get("name") is None:
        return None
    quant = parse_quant_config(op, config, where)
    return quant if quant.operands or quant.bypass else None


def refuse_named(
    node: fx.Node, key: str | None, configs: Mapping[str, Mapping[str, Any]], by: By
) -> None:
    """Raise if a rule asks by name or type for a node that cannot be quantised."""
    # A pattern may cover nodes between those that are meant, and a default covers all.
    if key in (None, "default") or by == "regex_name" or configs[str(key)].get("name") is None:
        return
    raise ConfigError(f"{WHERE}: {key}: node {node.name!r} ({node.op}) cannot be quantised")


def refuse_unused(graph: MaseGraph, by: By, key: str) -> None:
    """Raise for a pattern all of whose nodes are of kinds that cannot be quantised.

    A pattern that an earlier one has left only such nodes is none of these.
    """
    modules = graph.modules
    matched = [node for node in graph.nodes if SELECTORS[by](node, (key,)) is not None]
    if not any(can_be_quantised(node, op_of_node(node, modules)) for node in matched):
        raise ConfigError(f"{WHERE}: {key}: none of its nodes can be quantised")


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
