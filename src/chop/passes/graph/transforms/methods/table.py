"""The table of methods that lose less at few bits, and a network quantised with some of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from chop.errors import ConfigError, UnknownNameError
from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import Info
from chop.passes.graph.transforms.methods.choosing import Quantise, same_named_copy
from chop.passes.graph.transforms.methods.equalise import equalise_transform_pass
from chop.passes.graph.transforms.methods.layerwise import (
    clip_weights_transform_pass,
    correct_bias_transform_pass,
    round_weights_transform_pass,
)
from chop.passes.graph.transforms.methods.low_rank import add_low_rank_transform_pass
from chop.passes.graph.transforms.methods.rotate import rotate_transform_pass
from chop.passes.graph.transforms.methods.scaling import awq_transform_pass, smooth_transform_pass

RTN, PLUS = "rtn", "+"


class FewBitMethod(NamedTuple):
    """A method in the table: a pass, when it runs, and what it is given beside the rows."""

    words: str
    run: Callable[..., Any] | None = None
    when: Literal["before", "after"] = "after"
    given: tuple[str, ...] = ("input_generator",)
    by_layer: bool = False
    """Whether it changes the weights of one layer at a time, so that a search may choose it."""


FEW_BIT_METHODS: Mapping[str, FewBitMethod] = {
    RTN: FewBitMethod("rounding to nearest", by_layer=True),
    "equalise": FewBitMethod("like ranges of channels", equalise_transform_pass, "before", ()),
    "smooth": FewBitMethod("SmoothQuant", smooth_transform_pass, "before"),
    "awq": FewBitMethod("AWQ", awq_transform_pass, "before", ("input_generator", "formats")),
    "rotate": FewBitMethod("Hadamard rotation", rotate_transform_pass, "before", ()),
    "clip": FewBitMethod("clipping by least error", clip_weights_transform_pass, by_layer=True),
    "gptq": FewBitMethod("GPTQ", round_weights_transform_pass, by_layer=True),
    "lqer": FewBitMethod(
        "low-rank correction", add_low_rank_transform_pass, given=("input_generator", "reference")
    ),
    "bias": FewBitMethod(
        "bias correction", correct_bias_transform_pass, given=("input_generator", "reference")
    ),
}
"""Methods in the order in which several of them run."""


def parse_methods(text: str) -> tuple[str, ...]:
    """``rotate+gptq`` as names, in the order in which they run."""
    names = [name.strip() for name in text.split(PLUS)]
    for name in names:
        if name not in FEW_BIT_METHODS:
            raise UnknownNameError("method", name, FEW_BIT_METHODS)
    if len(names) > 1 and RTN in names:
        raise ConfigError(
            f"method {text!r}: {RTN} is rounding without a method, so it stands alone"
        )
    return tuple(name for name in FEW_BIT_METHODS if name in names)


def quantise_by(
    graph: MaseGraph, quantise: Quantise, batches: Any, methods: Sequence[str]
) -> tuple[MaseGraph, Info]:
    """Return a graph quantised with methods, all of which are used; the graph may change."""
    info: Info = {}
    chosen = [(name, FEW_BIT_METHODS[name]) for name in methods]

    def run(name: str, method: FewBitMethod, facts: Mapping[str, Any]) -> None:
        nonlocal graph
        if method.run is not None:
            graph, said = method.run(graph, {key: facts[key] for key in method.given})
            info[name] = said

    for name, method in chosen:
        if method.when == "before":
            known: dict[str, Any] = {"input_generator": batches}
            if "formats" in method.given:
                known["formats"] = weight_formats(quantise(same_named_copy(graph))[0])
            run(name, method, known)
    later = [(name, method) for name, method in chosen if method.when == "after"]
    reference = same_named_copy(graph) if any("reference" in m.given for _, m in later) else None
    graph, said = quantise(graph)
    for name, method in later:
        run(name, method, {"input_generator": batches, "reference": reference})
    return graph, {**said, "methods": info}


def weight_formats(graph: MaseGraph) -> dict[str, Any]:
    """Return the number format of the weights of each quantised layer, by node."""
    found = {}
    for node in graph.nodes:
        call = NodeCall.of(node, graph.modules)
        fmt = None if call.quant is None or call.layer is None else call.formats.get("weight")
        if fmt is not None:
            found[node.name] = fmt
    return found
