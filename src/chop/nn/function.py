"""Functions computed in a number format: ``add_integer(x, y, config={...})``."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from chop.errors import ConfigError, suggestion
from chop.nn.forward import (
    HOME,
    NO_CACHE,
    NoCache,
    compute,
    operation_of_function,
    written_back,
)
from chop.nn.quant_config import QuantConfig, parse_quant_config
from chop.nn.quantizers import Rounder
from chop.numerics import FORMATS
from chop.numerics.arithmetic import run_while_compiling
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
    return _made_findable(function_parts(op, format_name))


@functools.cache
def function_parts(op: Op, format_name: str) -> "QuantizedFunction":
    """The parts of the quantised function of an operation."""
    if op.function is None or not op.quantizable:
        raise ConfigError(f"operation {op.name!r} has no function that can be quantised")
    if format_name not in FORMATS:
        raise ConfigError(
            f"unknown number format {format_name!r}: {suggestion(format_name, FORMATS)}"
        )
    return QuantizedFunction(op, format_name)


class QuantizedFunction:
    """The call of a quantised function: arguments to operands to result."""

    def __init__(self, op: Op, format_name: str) -> None:
        self.op, self.format_name = op, format_name
        self.name = f"{op.name}_{format_name}"
        self.operation = operation_of_function(op)
        names = list(self.operation.by_name)
        self.place_of_inplace = names.index("inplace") if "inplace" in names else None
        self.parsed: dict[str, QuantConfig] = {}

    def config(self, config: Mapping[str, Any] | QuantConfig) -> QuantConfig:
        """The typed configuration; a dictionary that was seen before is not parsed again."""
        if isinstance(config, QuantConfig):
            return self.check_format(config)
        if torch.compiler.is_compiling():
            self.parse(config)
        key = repr(config)  # generated code makes a new dictionary at each call
        if key not in self.parsed:
            self.parse(config)
        return self.parsed[key]

    @run_while_compiling
    def parse(self, config: Mapping[str, Any]) -> None:
        """Parse a dictionary and keep what it says; a compiler cannot record that."""
        key = repr(config)
        if key not in self.parsed:
            if len(self.parsed) >= CONFIGS_KEPT:
                self.parsed.clear()
            named = {"name": self.format_name} | dict(config)
            self.parsed[key] = self.check_format(parse_quant_config(self.op, named, self.name))

    def check_format(self, quant: QuantConfig) -> QuantConfig:
        """The configuration itself, unless it is meant for another format."""
        if quant.name != self.format_name and quant.format is not FORMATS[self.format_name]:
            raise ConfigError(f"{self.name} cannot take the format {quant.name!r}")
        return quant

    def call(
        self,
        quant: QuantConfig,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        formats: Mapping[str, Rounder] | None = None,
        cache: NoCache = NO_CACHE,
    ) -> Any:
        """The float function on rounded operands, in place if the arguments say so.

        Args:
            formats: what rounds the operands, if it is not what the configuration says.
        """
        if quant.bypass:
            formats = {}
        else:
            formats = quant.operands if formats is None else formats
            self.require_formats(quant, args, kwargs)
        place = self.place_of_inplace
        by_position = place is not None and place < len(args) and args[place]
        in_place = kwargs.get("inplace") or by_position
        if "inplace" in kwargs:
            kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}
        run = functools.partial(compute, self.operation, formats, cache)
        return written_back(run, self.operation, args, kwargs) if in_place else run(args, kwargs)

    def require_formats(
        self, quant: QuantConfig, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Raise if an operand that a call may lack is there, but without a format."""
        absent = self.op.optional.difference(quant.operands)
        if absent:
            given = self.op.bind(args, kwargs)
            for name, role in self.operation.by_name.items():
                if role in absent and isinstance(given.get(name), Tensor):
                    quant.require(self.op, role)


def _made_findable(parts: QuantizedFunction) -> Callable[..., Any]:
    """A plain function whose name and module lead to it, as torch.fx and pickle require."""

    def function(*args: Any, config: Mapping[str, Any] | QuantConfig, **kwargs: Any) -> Any:
        operands = (*args, *kwargs.values())
        if has_torch_function(operands):  # a tracer records the call as it stands
            return handle_torch_function(function, operands, *args, config=config, **kwargs)
        return parts.call(parts.config(config), args, kwargs)

    function.__name__ = function.__qualname__ = parts.name
    function.__module__ = f"{HOME}.quantized_funcs"
    described = f"{parts.op.description}, its operands rounded to the format {parts.format_name}."
    function.__doc__ = described
    function.op = parts.op  # type: ignore[attr-defined]
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
