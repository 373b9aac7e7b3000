"""Functions computed in a number format: ``add_integer(x, y, config={...})``."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from chop.errors import ConfigError, suggestion
from chop.nn.quant_config import OUTPUT, QuantConfig, parse_quant_config
from chop.nn.rounding import HOME, rounded, written_back
from chop.numerics import FORMATS
from chop.ops.op import Op
from chop.ops.table import OPS

CONFIGS_KEPT = 1024


@functools.cache
def quantized_function(op: Op, format_name: str) -> Callable[..., Any]:
    """The operation as a function that rounds its operands: ``add_integer``.

    It takes the arguments of the float function, positional or by keyword, and `config`, a flat
    dictionary or a `QuantConfig`. With ``inplace=True`` the result is stored in the first argument,
    which is how methods such as ``add_`` and operators such as ``+=`` are quantised.
    """
    if op.function is None or not op.quantizable:
        raise ConfigError(f"operation {op.name!r} has no function that can be quantised")
    if format_name not in FORMATS:
        raise ConfigError(
            f"unknown number format {format_name!r}: {suggestion(format_name, FORMATS)}"
        )
    return _made_findable(QuantizedFunction(op, format_name))


class QuantizedFunction:
    """The parts of a quantised function: arguments to operands to result."""

    def __init__(self, op: Op, format_name: str) -> None:
        assert op.function is not None
        self.op, self.format_name, self.function = op, format_name, op.function
        self.name = f"{op.name}_{format_name}"
        self.roles = tuple(argument.role for argument in op.arguments if not argument.rest)
        self.rest = next((argument.role for argument in op.arguments if argument.rest), None)
        self.by_name = {argument.name: argument.role for argument in op.arguments}
        names = list(self.by_name)
        self.place_of_inplace = names.index("inplace") if "inplace" in names else None
        self.parsed: dict[str, QuantConfig] = {}

    def config(self, config: Mapping[str, Any] | QuantConfig) -> QuantConfig:
        """The typed configuration; a dictionary that was seen before is not parsed again."""
        if isinstance(config, QuantConfig):
            return self.checked(config)
        key = repr(config)  # generated code makes a new dictionary at each call
        if key not in self.parsed:
            if len(self.parsed) >= CONFIGS_KEPT:
                self.parsed.clear()
            named = {"name": self.format_name} | dict(config)
            self.parsed[key] = self.checked(parse_quant_config(self.op, named, self.name))
        return self.parsed[key]

    def checked(self, quant: QuantConfig) -> QuantConfig:
        """The configuration itself, unless it is meant for another format."""
        if quant.name != self.format_name and quant.format is not FORMATS[self.format_name]:
            raise ConfigError(f"{self.name} cannot take the format {quant.name!r}")
        return quant

    def compute(self, quant: QuantConfig, *args: Any, **kwargs: Any) -> Any:
        """The float function on rounded operands."""
        roles = self.roles + (self.rest,) * (len(args) - len(self.roles))
        operands = [
            self.operand(quant, role, value) for role, value in zip(roles, args, strict=False)
        ]
        named = {
            name: self.operand(quant, self.by_name.get(name), value)
            for name, value in kwargs.items()
        }
        return rounded(quant.operands.get(OUTPUT), self.function(*operands, **named))

    def operand(self, quant: QuantConfig, role: str | None, value: Any) -> Any:
        """One argument, rounded if it is an operand."""
        if role is None:
            return value
        if role in self.op.optional and isinstance(value, Tensor):
            quant.require(self.op, role)
        return rounded(quant.operands.get(role), value)

    def in_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the call asks for its result in its first argument; the keyword is taken out."""
        place = self.place_of_inplace
        by_position = place is not None and place < len(args) and args[place]
        return bool(kwargs.pop("inplace", False) or by_position)


def _made_findable(parts: QuantizedFunction) -> Callable[..., Any]:
    """A plain function whose name and module lead to it, as torch.fx and pickle require."""
    op, first = parts.op, parts.op.arguments[0].name

    def function(*args: Any, config: Mapping[str, Any] | QuantConfig, **kwargs: Any) -> Any:
        operands = (*args, *kwargs.values())
        if has_torch_function(operands):  # a tracer records the call as it stands
            return handle_torch_function(function, operands, *args, config=config, **kwargs)
        quant = parts.config(config)
        in_place = parts.in_place(args, kwargs)
        compute = parts.function if quant.bypass else functools.partial(parts.compute, quant)
        if in_place:
            return written_back(compute, first, args, kwargs)
        return compute(*args, **kwargs)

    function.__name__ = function.__qualname__ = parts.name
    function.__module__ = f"{HOME}.quantized_funcs"
    function.__doc__ = f"{op.description}, its operands rounded to the format {parts.format_name}."
    function.op = op  # type: ignore[attr-defined]
    return function


def named_function(name: str) -> Callable[..., Any]:
    """The quantised function of a name such as ``matmul_block_fp``."""
    for format_name in FORMATS:
        op_name = name.removesuffix(f"_{format_name}")
        if op_name != name and op_name in OPS:
            op = OPS[op_name]
            if op.quantizable and op.function:
                return quantized_function(op, format_name)
    known = [f"{op.name}_{each}" for op in OPS.values() if op.quantizable for each in FORMATS]
    raise AttributeError(f"no quantised function is called {name!r}: {suggestion(name, known)}")
