"""Random rules of quantisation for a graph: every format, by type, name or pattern, and none."""

import re
from typing import Any

from hypothesis import strategies as st
from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.numerics import FORMATS
from chop.ops.op import op_of_node
from chop.passes.graph.transforms.quantize.plan import is_quantizable
from chop.passes.graph.utils import get_mase_op

ROLES = ("data_in", "weight", "bias")
UNDONE = {"by": "type", "default": {"config": {"name": None}}}
"""The rule that makes everything float again."""

Config = dict[str, Any]
Rules = dict[str, Any]

block_sizes = st.sampled_from([[4], [3], [16], [2, 2], [1, -1], [-1], [2, 3, 2]])
small = st.integers(2, 8)


def minifloats(least: int) -> st.SearchStrategy[Config]:
    """A width, and an exponent that leaves so many bits beside the sign."""
    return st.integers(3, 12).flatmap(
        lambda width: st.fixed_dictionaries(
            {"width": st.just(width), "exponent_width": st.integers(1, min(width - 1 - least, 8))},
            optional={"exponent_bias": st.integers(-3, 12)},
        )
    )


def fields(required: Config, **optional: Any) -> st.SearchStrategy[Config]:
    """Settings that must be given and settings that may be."""
    return st.fixed_dictionaries(required, optional=optional)


FIELDS: dict[str, st.SearchStrategy[Config]] = {
    "integer": fields(
        {"width": st.integers(2, 16)}, frac_width=st.integers(-2, 10), signed=st.booleans()
    ),
    "integer_scaled": fields(
        {"width": st.integers(2, 16), "scale": st.floats(1e-3, 2)},
        zero_point=st.integers(0, 1),
        signed=st.booleans(),
        narrow=st.booleans(),
    ),
    "minifloat_ieee": minifloats(0),
    "minifloat_denorm": minifloats(1),
    "log": fields({"width": small}, exponent_bias=st.integers(-2, 8)),
    "block_fp": fields(
        {"width": st.integers(2, 12)},
        exponent_width=small,
        block_size=block_sizes,
        skip_first_dim=st.booleans(),
    ),
    "block_minifloat": minifloats(0).map(
        lambda given: (
            {key: value for key, value in given.items() if key != "exponent_bias"}
            | {"exponent_bias_width": 6, "block_size": [4]}
        )
    ),
    "block_log": fields({"width": small}, exponent_bias_width=small, block_size=block_sizes),
    "binary": fields({}, stochastic=st.booleans(), bipolar=st.booleans()),
    "ternary": fields({}, scaling_factor=st.booleans(), mean=st.floats(0, 2), max=st.floats(0, 2)),
    "mxint8": fields({}, block_size=st.integers(1, 32)),
    "mxfp8": fields({}, element=st.sampled_from(["e4m3", "e5m2"]), block_size=st.integers(1, 8)),
    "mxfp6": fields({}, element=st.sampled_from(["e2m3", "e3m2"])),
    "mxfp4": fields({}, block_size=st.integers(1, 32)),
}
"""The settings of each format that has any; the others take none."""


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """A configuration that serves every operation."""
    name = draw(st.sampled_from(sorted(FORMATS)))
    settings = FIELDS.get(FORMATS_OF[name], st.just({}))
    config: Config = {"name": name}
    wanted = (*ROLES, "data_out") if draw(st.integers(0, 4)) == 0 else ROLES
    for role in wanted:
        config |= {f"{role}_{key}": value for key, value in draw(settings).items()}
    if draw(st.integers(0, 9)) == 0:
        config["bypass"] = True
    return config


FORMATS_OF = {
    name: next(first for first, other in FORMATS.items() if other is kind)
    for name, kind in FORMATS.items()
}
"""The first name of each format, for those that have two."""

nothing = st.sampled_from([{"name": None}, {"name": "NA"}])
either = st.one_of(configs(), configs(), configs(), nothing)


def choosable(graph: MaseGraph) -> list[fx.Node]:
    """The nodes that a rule may be for."""
    modules = graph.modules
    return [n for n in graph.nodes if is_quantizable(n, op_of_node(n, modules))]


@st.composite
def rules(draw: st.DrawFn, graph: MaseGraph) -> Rules:
    """Arguments of the quantise pass that fit a graph."""
    nodes = choosable(graph)
    by = draw(st.sampled_from(["type", "name", "regex_name"]))
    made: Rules = {"by": by}
    if nodes:
        named = KEYS[by](nodes)
        for key in draw(st.lists(st.sampled_from(sorted(named)), max_size=4, unique=True)):
            config = draw(either)
            made |= {each: {"config": config} for each in named[key]}
    if len(made) == 1 or draw(st.booleans()):  # without any rule the pass refuses
        made["default"] = {"config": draw(either)}
    return made


def types(nodes: list[fx.Node]) -> dict[str, list[str]]:
    """The operations of nodes."""
    return {op: [op] for op in map(get_mase_op, nodes)}


def names(nodes: list[fx.Node]) -> dict[str, list[str]]:
    """The names of nodes; those that call one layer go together."""
    together: dict[Any, list[str]] = {}
    for node in nodes:
        layer = node.meta["mase"].module
        together.setdefault(layer if layer is not None else node, []).append(node.name)
    return {group[0]: group for group in together.values()}


def patterns(nodes: list[fx.Node]) -> dict[str, list[str]]:
    """Patterns for one node, and for all whose names begin alike."""
    exact = [re.escape(node.name) for node in nodes]
    beginnings = [f"{re.escape(node.name.rstrip('_0123456789'))}.*" for node in nodes]
    return {pattern: [pattern] for pattern in (*exact, *beginnings)}


KEYS = {"type": types, "name": names, "regex_name": patterns}
