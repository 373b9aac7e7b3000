"""Number formats of quantised nodes, as the metadata shows them: a type and a precision."""

from collections.abc import Mapping
from typing import Any

from torch import fx

from chop.nn.quant_config import OUTPUT, QuantConfig, parse_quant_config
from chop.nn.quantized import QuantizedModule
from chop.numerics import NumberFormat
from chop.ops.op import Op
from chop.passes.graph.analysis.add_metadata.arguments import bare

NOT_PRECISION = {"signed", "skip_first_dim"}  # settings that the lists of the labs leave out


def quantization_of(node: fx.Node) -> tuple[Op, QuantConfig] | None:
    """The operation of a quantised node and its configuration; None if it is in floating point."""
    module = node.meta["mase"].module
    if isinstance(module, QuantizedModule):
        return None if module.quant.bypass else (module.op, module.quant)
    target: Any = node.target
    config: Any = node.kwargs.get("config")
    op = getattr(target, "op", None)
    if node.op != "call_function" or not isinstance(op, Op):
        return None
    if isinstance(config, Mapping):
        named = {"name": target.__name__.removeprefix(f"{op.name}_")} | dict(config)
        config = parse_quant_config(op, named, f"node {node.name!r}")
    return (op, config) if isinstance(config, QuantConfig) and not config.bypass else None


def record_formats(node: fx.Node) -> None:
    """Write the formats of a quantised node into its common metadata; other nodes are left alone.

    Passes that quantise call this after they change a node.
    """
    found = quantization_of(node)
    if found is None:
        return
    op, quant = found
    common = node.meta["mase"]["common"]
    for name, entry in common["args"].items():
        fmt = quant.operands.get(role_of(op, name))
        if fmt is not None and not bare(entry):
            entry.update(type=quant.name, precision=precision(fmt))
    if OUTPUT in quant.operands and not bare(common["results"]["data_out_0"]):
        common["results"]["data_out_0"].update(
            type=quant.name, precision=precision(quant.operands[OUTPUT])
        )


def role_of(op: Op, name: str) -> str:
    """The role of an argument: the inputs of the operation in order, parameters by name."""
    prefix, _, index = name.rpartition("_")
    if prefix != "data_in" or not op.inputs:
        return name
    return op.inputs[min(int(index), len(op.inputs) - 1)]


def precision(fmt: NumberFormat) -> list[Any]:
    """The settings of a format in the order of the labs: ``[width, frac_width]`` and the like."""
    values = fmt.model_dump(exclude=NOT_PRECISION).values()
    return [list(value) if isinstance(value, tuple) else value for value in values]
