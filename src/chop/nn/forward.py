"""The one forward of everything that is quantised: operands are rounded, the float operation runs.

Quantised modules, quantised functions and the trials of a search all compute by `compute`. What
they remember of earlier calls is a cache that they hand to it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from chop.errors import ConfigError
from chop.nn.quant_config import OUTPUT
from chop.nn.quantizers import Rounder
from chop.numerics import NumberFormat
from chop.ops.op import Op
from chop.ops.stepwise import round_in

HOME = "chop.passes.graph.transforms.quantize"
"""Where users find quantised modules and functions, as the labs print it."""
SCALARS = (int, float, complex, str, type(None))
LISTS = (list, tuple)
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Operation(NamedTuple):
    """An operation the way it is called, as a layer or as a function."""

    function: Callable[..., Any]
    """The float function, or the forward of the float class, which takes the layer first."""
    roles: tuple[str | None, ...]
    """The operand that each positional argument is; None for a setting."""
    by_name: Mapping[str, str | None]
    """The same for arguments by keyword; the first is the one that is overwritten in place."""
    rest: str | None = None
    """The operand that all further positional arguments are."""
    params: tuple[str, ...] = ()
    """The parameters of the layer that take part."""
    inner: tuple[str, ...] = ()
    """The operands that the function makes itself; it is handed what rounds them."""
    parameters: Callable[[nn.Module], dict[str, str]] | None = None
    """The parameters of a layer with their roles, where these are not `params`."""


def operation_of_layer(op: Op, layer: type[nn.Module]) -> Operation:
    """The operation as a layer of this float class computes it."""
    known = {role for role in op.inputs if role not in op.inner or role == "data_in"}
    roles = {a.name: a.role if a.role in known else None for a in op.arguments}
    places = tuple(role if role in known else None for role in op.inputs)
    function = op.forward or layer.forward
    return Operation(function, places, roles, None, op.params, op.inner, op.parameters)


def operation_of_function(op: Op) -> Operation:
    """The operation as a function computes it, to which parameters are arguments like others."""
    assert op.function is not None
    return Operation(
        op.function,
        tuple(argument.role for argument in op.arguments if not argument.rest),
        {argument.name: argument.role for argument in op.arguments},
        next((argument.role for argument in op.arguments if argument.rest), None),
        inner=op.inner if op.run is not None else (),
    )


def round_value(fmt: Rounder | None, value: Any) -> Any:
    """`value` in the format: floating-point tensors are rounded, also inside lists.

    Numbers are constants of the program and integer tensors are exact: both stay as they are.
    """
    if fmt is None or isinstance(value, SCALARS):
        return value
    if isinstance(value, PackedSequence):
        raise ConfigError("a quantised layer takes a padded tensor, not a packed sequence")
    if isinstance(value, LISTS):
        return type(value)([round_value(fmt, item) for item in value])
    return round_in(value, fmt) if value.is_floating_point() or value.is_complex() else value


def round_parameter(fmt: Rounder, weight: Tensor) -> Tensor:
    """A rounded parameter as its codes have it: most formats have no code for -0.0."""
    return fmt(weight) + 0.0


class NoCache:
    """The cache of `compute` that rounds operands at every call."""

    data = staticmethod(round_value)

    def weight(self, layer: nn.Module, name: str, fmt: Rounder, weight: Tensor) -> Tensor:
        """A parameter of a layer in a format."""
        return round_parameter(fmt, weight)

    def float_twin(self, layer: Any) -> nn.Module:
        """A module of the float class that shares everything, for rounded parameters to be set.

        Plain attributes come before registered parameters, so the forward of the float class, even
        one that a user wrote, reads the rounded ones and updates the buffers of the layer.
        """
        twin: nn.Module = layer.base.__new__(layer.base)
        twin.__dict__.update(layer.__dict__)
        return twin


NO_CACHE = NoCache()


def compute(
    operation: Operation,
    formats: Mapping[str, Rounder],
    cache: NoCache,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    layer: nn.Module | None = None,
) -> Any:
    """The result of an operation for operands in these formats.

    Args:
        formats: what rounds each operand, by role; an operand that is not mentioned stays as it is.
        layer: the layer that the operation's parameters belong to.
    """
    function, roles, by_name, rest, params, inner, parameters = operation
    data, find = cache.data, formats.get
    operands = [*map(data, map(find, roles), args)]  # type: ignore[arg-type]  # None has no format
    if len(args) > len(roles):
        further = None if rest is None else find(rest)
        operands += [data(further, x) for x in args[len(roles) :]]
    if kwargs:
        kwargs = {name: data(find(by_name.get(name)), x) for name, x in kwargs.items()}  # type: ignore[arg-type]
    if inner:
        kwargs = {**kwargs, "rounders": {role: find(role) for role in inner if role in formats}}
    if layer is None:
        result = function(*operands, **kwargs)
    elif not params:
        result = function(layer, *operands, **kwargs)
    else:
        twin = cache.float_twin(layer)
        named = (
            zip(params, params, strict=True) if parameters is None else parameters(layer).items()
        )
        for name, role in named:
            twin.__dict__[name] = _operand(layer, name, find(role), cache)
        result = function(twin, *operands, **kwargs)
    fmt = find(OUTPUT)
    return result if fmt is None else round_value(fmt, result)


def _operand(layer: nn.Module, name: str, fmt: Rounder | None, cache: NoCache) -> Tensor | None:
    """A parameter of a layer, rounded if it has a format."""
    weight: Tensor | None = layer._parameters.get(name)
    if weight is None:  # absent, or worked out at each use, as in a pruned layer
        weight = getattr(layer, name, None)
    if weight is None or fmt is None:
        return weight
    return cache.weight(layer, name, fmt, weight)


def written_back(
    run: Callable[[tuple[Any, ...], Mapping[str, Any]], Any],
    operation: Operation,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Tensor:
    """The result of `run`, stored in the first argument as the float operation would.

    It works on a copy, because the gradient of rounding may need the argument as it was.
    """
    if args:
        target: Tensor = args[0]
        return target.copy_(run((target.clone(), *args[1:]), kwargs))
    first = next(iter(operation.by_name))
    target = kwargs[first]
    return target.copy_(run((), {**kwargs, first: target.clone()}))


class RoundedWeight(NamedTuple):
    """One rounded parameter, with the bits of what it was made from."""

    fmt: NumberFormat
    dtype: torch.dtype
    bits: NDArray[Any] | Tensor
    rounded: Tensor


class WeightCache(NoCache):
    """Rounds each parameter of a layer once, until a bit of the parameter changes.

    Writing through ``weight.data`` or NumPy leaves no trace on a parameter, not even in its version
    counter. So the parameter is compared with a copy of what was rounded, bit by bit: on a CPU that
    takes a third of the time of rounding to fixed point and a fraction of that of block formats.
    The price is memory: two more tensors of the size of the parameter, until training resumes.
    Only plain parameters are remembered, and only while no gradient flows through them; a weight
    that is computed at each use, as in a pruned layer, is rounded at each use. So is one that a
    quantiser rounds, whose state may change as well, or a format that rounds by chance.
    """

    def __init__(self) -> None:
        self._kept: dict[str, RoundedWeight] = {}

    def weight(self, layer: nn.Module, name: str, fmt: Rounder, weight: Tensor) -> Tensor:
        if not _can_be_kept(weight):
            return round_parameter(fmt, weight)
        bits = _bits(weight)
        kept = self._kept.get(name)
        if kept is not None and kept.fmt is fmt and _serves(kept, weight.dtype, bits):
            return kept.rounded
        result = round_parameter(fmt, weight)
        if isinstance(fmt, NumberFormat) and not getattr(fmt, "stochastic", False):
            copied = bits.clone() if isinstance(bits, Tensor) else bits.copy()
            self._kept[name] = RoundedWeight(fmt, weight.dtype, copied, result)
        return result

    def clear(self) -> None:
        """Forget everything, to free memory."""
        self._kept.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> "WeightCache":
        return WeightCache()

    def __reduce__(self) -> tuple[type["WeightCache"], tuple[()]]:
        return WeightCache, ()  # neither copies nor files need what can be computed again


def _can_be_kept(weight: Tensor) -> bool:
    if type(weight) is not nn.Parameter or weight.is_meta or torch.compiler.is_compiling():
        return False
    return not (weight.requires_grad and torch.is_grad_enabled())


def _bits(weight: Tensor) -> NDArray[Any] | Tensor:
    """The memory of `weight` as integers, so that -0.0 differs from 0.0 and NaN equals itself."""
    bits = weight.detach().view(INTEGERS[weight.element_size()])
    return bits.numpy() if weight.is_cpu else bits  # NumPy compares several times faster


def _serves(kept: RoundedWeight, dtype: torch.dtype, bits: NDArray[Any] | Tensor) -> bool:
    """True if what was kept is what rounding would give now."""
    # A tensor made in inference mode may not enter a graph of gradients later.
    if kept.dtype is not dtype or kept.rounded.is_inference() != torch.is_inference_mode_enabled():
        return False
    if isinstance(bits, Tensor) or isinstance(kept.bits, Tensor):
        return _same_on_a_device(kept.bits, bits)
    return kept.bits.shape == bits.shape and bool((kept.bits == bits).all())


def _same_on_a_device(one: NDArray[Any] | Tensor, other: NDArray[Any] | Tensor) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    return one.device == other.device and torch.equal(one, other)
