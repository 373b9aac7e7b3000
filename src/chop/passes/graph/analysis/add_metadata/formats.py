"""Number formats in the metadata of nodes: a type and a precision for each operand."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, fx

from chop.nn.quant_config import OUTPUT, QuantConfig, parse_quant_config
from chop.nn.quantized import QuantizedCall, QuantizedModule
from chop.numerics import NumberFormat
from chop.ops.op import Op

FLOAT_RECORDS = "float_records"
"""The key of `node.meta` for types and precisions as they were in floating point."""
NOT_PRECISION = {"signed", "skip_first_dim", "rounding", "overflow"}
"""Where an operand stands and how it is rounded, not how precise it is."""
PRECISION = (
    "width", "frac_width", "exponent_width", "exponent_bias", "exponent_bias_width", "block_size",
)  # fmt: skip
PARAMETERS = ("weight", "bias", "running_mean", "running_var")


def record_formats(node: fx.Node) -> None:
    """Write the format and the precision of each operand of a quantised node, and of its result.

    Passes that quantise call this after they change a node; other nodes are left alone.
    """
    found = quantization_of(node)
    if found is None:
        return
    op, quant = found
    before: dict[str, dict[str, Any]] = {"args": {}, "results": {}}
    node.meta[FLOAT_RECORDS] = before
    places = [("args", name, role) for role, name in operands(node, op)]
    for side, name, role in (*places, ("results", "data_out_0", OUTPUT)):
        entry = node.meta["mase"]["common"][side].get(name)
        fmt = quant.operands.get(role)
        if fmt is not None and isinstance(entry, dict):
            before[side][name] = (entry.get("type"), entry.get("precision"))
            entry |= {"type": quant.name, "precision": precision(fmt)}


def restore_records(node: fx.Node) -> None:
    """Give the operands the types they had in floating point."""
    for side, names in node.meta.pop(FLOAT_RECORDS, {}).items():
        entries = node.meta["mase"]["common"].get(side, {})
        for name, (kind, width) in names.items():
            if isinstance(entries.get(name), dict):
                entries[name] |= {"type": kind, "precision": width}


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


def precision(fmt: NumberFormat) -> list[Any]:
    """The settings of a format in the order in which the labs list them."""
    fields = fmt.model_dump(exclude=NOT_PRECISION)
    first = [fields.pop(name) for name in PRECISION if name in fields]
    return [list(v) if isinstance(v, tuple) else v for v in (*first, *fields.values())]


def operands(node: fx.Node, op: Op) -> Iterator[tuple[str, str]]:
    """The role of each operand and the name it has in the metadata."""
    module = node.meta["mase"].module
    if module is None or isinstance(module, QuantizedCall):
        yield from function_operands(node, op)
        return
    yield from ((role, f"data_in_{index}") for index, role in enumerate(op.inputs))
    yield from ((n, n) for n in op.params if isinstance(getattr(module, n, None), Tensor))


def function_operands(node: fx.Node, op: Op) -> Iterator[tuple[str, str]]:
    """The same for a function, whose tensors are counted in the order of the call."""
    roles = {argument.name: argument.role for argument in op.arguments}
    inputs = 0
    for name, value in op.bind(node.args, node.kwargs).items():
        parts = value if isinstance(value, list | tuple) else [value]
        for part in parts:
            if not isinstance(part, fx.Node):
                continue
            role = roles.get(name)
            if name in PARAMETERS:
                yield role or name, name
                continue
            if role is not None:
                yield role, f"data_in_{inputs}"
            inputs += 1
