"""Quantised functions whose quantisers have a state: modules that own them."""

import functools
from typing import Any, ClassVar

from torch import nn

from chop.nn.forward import operation_of_function
from chop.nn.function import QuantizedFunction, function_parts
from chop.nn.quant_config import QuantConfig
from chop.nn.quantized.generic import QuantizedModule, own_shell
from chop.numerics import FORMATS, NumberFormat
from chop.ops.op import Op


class QuantizedCall(QuantizedModule):
    """A module that is called as a quantised function is; parameters are arguments, as there."""

    base = nn.Module
    parts: ClassVar[QuantizedFunction]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The function on operands that the quantisers round."""
        return self.parts.call(self._quant, args, kwargs, self._formats, self._kept)

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__getstate__()  # type: ignore[no-untyped-call]
        return _blank, (self.op, self.fmt), state


def quantized_call(
    op: Op, quant: QuantConfig, before: nn.Module | None = None
) -> QuantizedCall | None:
    """The quantised function of an operation as a module; None if none of its formats has a state.

    Args:
        before: what the same node called earlier; its quantisers stay where formats are the same.
    """
    cls = _call_class(op, quant.format)
    call = own_shell(before) if type(before) is cls else cls(config=quant)
    assert isinstance(call, QuantizedCall)
    call.quant = quant
    return call if call.quantizers_by_role else None


@functools.cache
def _call_class(op: Op, fmt: type[NumberFormat]) -> type[QuantizedCall]:
    name = "".join(part.capitalize() for part in op.name.split("_")) + fmt.label
    known_as = next(each for each, registered in FORMATS.items() if registered is fmt)
    fields = {"op": op, "operation": operation_of_function(op), "fmt": fmt}
    fields |= {"parts": function_parts(op, known_as)}
    fields |= {"__module__": "chop.nn.quantized", "__doc__": fmt.__doc__}
    return type(name, (QuantizedCall,), fields)


def _blank(op: Op, fmt: type[NumberFormat]) -> QuantizedCall:
    cls = _call_class(op, fmt)
    return cls.__new__(cls)
