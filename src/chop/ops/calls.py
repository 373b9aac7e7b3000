"""From the values of one call to the shapes that its cost is counted from."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from chop.ops.cost import Call, Shape
from chop.ops.op import Op


def call_of_module(op: Op, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Call:
    """The shapes of a module call."""
    params = {name: getattr(module, name, None) for name in op.params}
    return Call(
        inputs=tuple(shape_of(value) for value in inputs if isinstance(value, Tensor)),
        output=shape_of(output),
        params={name: shape_of(value) for name, value in params.items() if value is not None},
        module=module,
    )


def call_of_function(op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Call:
    """The shapes of a function or method call; the tensor of a method is the first of `args`."""
    roles = {argument.name: argument.role for argument in op.arguments}
    bound = op.bind(args, kwargs)
    inputs: list[Shape] = []
    params: dict[str, Shape] = {}
    order = list(roles | bound)  # a call may name its arguments in any order
    for name in sorted(bound, key=order.index):
        role, value = roles.get(name), bound[name]
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, Tensor) and role in op.params:
                params[str(role)] = shape_of(tensor)
            elif isinstance(tensor, Tensor):
                inputs.append(shape_of(tensor))
    return Call(tuple(inputs), shape_of(output), params, bound)


def shape_of(value: Any) -> Shape:
    """The shape of a tensor, or of the first of several."""
    if isinstance(value, list | tuple):
        return shape_of(value[0]) if value else ()
    return tuple(value.shape) if isinstance(value, Tensor) else ()
