"""Modules computed in a number format: one class for all of them."""

import copy
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from chop.errors import ConfigError, suggestion
from chop.nn.forward import (
    HOME,
    Operation,
    WeightCache,
    compute,
    operation_of_layer,
    round_value,
    written_back,
)
from chop.nn.quant_config import QuantConfig, parse_quant_config
from chop.nn.quantizers import QUANTIZERS, Quantizer, Rounder, make_quantizers, parameter_of
from chop.numerics import FORMATS, NumberFormat
from chop.ops.op import Op, parameter_roles
from chop.ops.table import OPS


class QuantizedModule(nn.Module):
    """A module whose operands are rounded before the operation of its float class runs.

    Its classes are made by `module_class`, its instances by `quantize_module` or by calling the
    class: ``LinearInteger(16, 5, config={"data_in_width": 8, ...})`` has new weights. Parameters
    stay in floating point and are rounded on the way in, so that training still updates them.
    Where a format has a quantiser with a state, the module owns it: ``quantizers.weight``.

    Args:
        config: the flat dictionary of the labs, in which `name` may be left out.
        args, kwargs: the arguments of the float class.
    """

    op: ClassVar[Op]
    operation: ClassVar[Operation]
    base: ClassVar[type[nn.Module]]
    """The float class."""
    fmt: ClassVar[type[NumberFormat]]

    _quant: QuantConfig
    _formats: Mapping[str, Rounder]
    """What rounds each operand: its format, or the quantiser that the format has."""
    _kept: WeightCache

    def __init__(
        self, *args: Any, config: Mapping[str, Any] | QuantConfig | None = None, **kwargs: Any
    ) -> None:
        kind = type(self).__name__
        if config is None:
            raise ConfigError(f"{kind} needs config={{...}}, a dictionary such as quantize takes")
        super().__init__(*args, **kwargs)
        if not isinstance(config, QuantConfig):
            name = next(name for name, fmt in FORMATS.items() if fmt is self.fmt)
            config = parse_quant_config(self.op, {"name": name, **config}, kind)
        self.quant = config

    @property
    def quant(self) -> QuantConfig:
        """The configuration; assigning another of the same kind of format takes effect at once.

        A quantiser stays, with what it has learned, while the format of its operand is the same.
        """
        return self._quant

    @quant.setter
    def quant(self, quant: QuantConfig) -> None:
        if quant.format is not self.fmt:
            raise ConfigError(f"{type(self).__name__} cannot take the format {quant.name!r}")
        if getattr(self, "max_norm", None) is not None:
            raise ConfigError(
                f"{self.base.__name__} with max_norm writes to its weight as it runs, so it cannot "
                "be quantised"
            )
        for name, role in parameter_roles(self.op, self).items():
            quant.require(self.op, role)
            quant.require_shape(self.op, role, getattr(self, name).shape)
        formats = quant.operands
        known = self.quantizers_by_role
        same = {r: q for r, q in known.items() if self._quant.operands[r] == formats.get(r)}
        stateful = any(type(f).quantizer is not NumberFormat.quantizer for f in formats.values())
        made = make_quantizers(self, formats, same) if stateful else {}
        if known:
            del self._modules[QUANTIZERS]
        if made:
            self.add_module(QUANTIZERS, nn.ModuleDict(made))
        self._quant = quant
        self._formats = {**formats, **made} if made else formats
        self._kept = WeightCache()

    @property
    def quantizers_by_role(self) -> dict[str, Quantizer]:
        """The quantisers with a state, by the operand that each rounds; there need be none."""
        formats = self.__dict__.get("_formats", {})
        return {role: each for role, each in formats.items() if isinstance(each, Quantizer)}

    @property
    def frozen(self) -> Mapping[str, NumberFormat]:
        """The plain format of each operand that rounds to the same bits as what rounds it now."""
        return {
            role: each.freeze_on(parameter_of(self, role)) if isinstance(each, Quantizer) else each
            for role, each in self._formats.items()
        }

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as the flat dictionary of the labs."""
        return self._quant.as_dict()

    @property
    def bypass(self) -> bool:
        """True if the module computes as its float class does."""
        return self._quant.bypass

    @bypass.setter
    def bypass(self, bypass: bool) -> None:
        self.quant = replace(self._quant, bypass=bypass)

    @property
    def x_quantizer(self) -> Rounder | None:
        """The format or quantiser that rounds the input."""
        return self._formats.get(self.op.inputs[0]) if self.op.inputs else None

    @property
    def w_quantizer(self) -> Rounder | None:
        """The format or quantiser that rounds the weight."""
        return self._formats.get("weight")

    @property
    def b_quantizer(self) -> Rounder | None:
        """The format or quantiser that rounds the bias."""
        return self._formats.get("bias")

    def get_quantized_weight(self) -> Tensor:
        """The weight as the operation sees it; gradients flow through to the weight itself."""
        weight: Tensor = self._rounded_value("weight")
        return weight

    def get_quantized_bias(self) -> Tensor | None:
        """The bias as the operation sees it, if there is one."""
        bias: Tensor | None = self._rounded_value("bias")
        return bias

    def _rounded_value(self, name: str) -> Any:
        fmt = None if self.bypass else self._formats.get(name)
        return round_value(fmt, getattr(self, name))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The operation of the float class on rounded operands."""
        if self._quant.bypass:
            return super().forward(*inputs, **kwargs)
        if self.__dict__.get("inplace"):
            return written_back(self._compute, self.operation, inputs, kwargs)
        return self._compute(inputs, kwargs)

    def _compute(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return compute(self.operation, self._formats, self._kept, args, kwargs, self)

    def train(self, mode: bool = True) -> "QuantizedModule":
        """Switch between training and evaluation."""
        self._kept.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantizedModule":
        self._kept.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        formats = "bypass" if self.bypass else _formats_line(self._quant.operands)
        return "; ".join(filter(None, (super().extra_repr(), formats)))

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__getstate__()  # type: ignore[no-untyped-call]
        return _blank, (self.op, self.fmt, self.base), state


def _formats_line(operands: Mapping[str, NumberFormat]) -> str:
    """Formats in a line, those that are equal together: ``data_in, weight: width=8``."""
    roles: dict[NumberFormat, list[str]] = {}
    for role, fmt in operands.items():
        roles.setdefault(fmt, []).append(role)
    return "; ".join(
        f"{', '.join(names)}: {', '.join(f'{k}={v}' for k, v in fmt.shown().items())}"
        for fmt, names in roles.items()
    )


def _blank(op: Op, fmt: type[NumberFormat], base: type[nn.Module]) -> QuantizedModule:
    cls = module_class(op, fmt, base)
    return cls.__new__(cls)


def module_class(
    op: Op, fmt: type[NumberFormat], base: type[nn.Module] | None = None
) -> type[QuantizedModule]:
    """The class of an operation in a number format: ``LinearInteger``.

    Args:
        base: the float class, if it is one that derives from that of the operation.
    """
    base = base or op.module
    if base is None or not op.quantizable:
        raise ConfigError(f"operation {op.name!r} has no module that can be quantised")
    return _class_on(op, fmt, base)  # type: ignore[arg-type]  # mypy: a class is hashable


@functools.cache
def _class_on(op: Op, fmt: type[NumberFormat], base: type[nn.Module]) -> type[QuantizedModule]:
    findable = base is op.module and base.__module__.startswith("torch.")
    home = f"{HOME}.quantized_modules.{op.name}" if findable else "chop.nn.quantized"
    name = f"{base.__name__}{fmt.label}"
    fields = {"op": op, "base": base, "fmt": fmt, "__module__": home, "__doc__": fmt.__doc__}
    fields["operation"] = operation_of_layer(op, base)
    return type(name, (QuantizedModule, base), fields)


def quantize_module(module: nn.Module, op: Op, quant: QuantConfig) -> QuantizedModule:
    """A quantised module to take the place of `module`.

    It shares the parameters and buffers themselves, so optimisers and tied weights stay connected
    and no memory is spent; it has its own lists of them, of hooks and of submodules. Quantise a
    `copy.deepcopy` where the float module is to live on by itself.
    """
    if op.module is None or not isinstance(module, op.module):
        raise ConfigError(f"{type(module).__name__} is not the operation {op.name!r}")
    if isinstance(module, LazyModuleMixin):
        raise ConfigError(f"{type(module).__name__} has no shape yet: run the model once first")
    new = own_shell(module, _quantized_class(module, op, quant.format))
    assert isinstance(new, QuantizedModule)
    new.quant = quant
    return new


def watched_module(
    module: nn.Module, op: Op, quant: QuantConfig, looks: Mapping[str, Any]
) -> QuantizedModule:
    """A twin of a layer in evaluation mode, whose operands are shown to functions.

    Args:
        looks: what is called with each operand in place of its format, and gives what is to be
            computed with.
    """
    twin = quantize_module(module, op, quant)
    twin.training = False
    twin._formats = looks
    return twin


def float_module(module: nn.Module) -> nn.Module:
    """A module of the float class that shares everything else; `module` itself if it is float."""
    if not isinstance(module, QuantizedModule):
        return module
    outer = type(module)
    cls = module.base
    if "op" not in vars(outer):  # a pruned layer has a class that torch made for it alone
        own = dict(vars(outer)) | {"__module__": parametrize.__name__}
        cls = type(f"Parametrized{module.base.__name__}", (module.base,), own)
    shell = own_shell(module, cls)
    if module.quantizers_by_role:
        del shell._modules[QUANTIZERS]
    for name in QuantizedModule.__annotations__:
        shell.__dict__.pop(name, None)
    return shell


def own_shell(module: nn.Module, cls: type[nn.Module] | None = None) -> nn.Module:
    """A module that shares parameters, buffers and submodules but has its own lists of them.

    A graph shares its layers with the model it was made from, which must not change.

    Args:
        cls: the class of the new module, if it is another.
    """
    cls = cls or type(module)
    shell = cls.__new__(cls)
    shell.__dict__.update(
        (name, copy.copy(value) if isinstance(value, dict | set) else value)
        for name, value in module.__dict__.items()
    )
    return shell


def _quantized_class(module: nn.Module, op: Op, fmt: type[NumberFormat]) -> type[QuantizedModule]:
    """The quantised class for a module that may be quantised already, pruned, or both."""
    outer = type(module)
    parametrized = parametrize.is_parametrized(module)
    inner: type[nn.Module] = outer.__bases__[0] if parametrized else outer
    base = inner.base if issubclass(inner, QuantizedModule) else inner
    cls = module_class(op, fmt, base)
    if not parametrized:
        return cls
    # torch keeps a parametrised weight as a property of a class made for the one module, and takes
    # the first base of that class when the parametrisation is removed.
    own = {
        name: value for name, value in vars(outer).items() if name not in ("__module__", "__doc__")
    }
    return type(f"Parametrized{cls.__name__}", (cls,), own)


def modules_of_classes(package: str) -> dict[str, ModuleType]:
    """A Python module for each operation, in which its quantised classes are found by name.

    They are put where an import looks first, so that ``import package.linear`` finds them.
    """
    found: dict[str, ModuleType] = {}
    for op in OPS.values():
        if op.module is not None and op.quantizable:
            module = module_from_spec(ModuleSpec(f"{package}.{op.name}", None))
            module.__doc__ = f"Every quantised form of `{op.name}`, found by name."
            module.__getattr__ = named_classes(op.name)  # type: ignore[method-assign]
            sys.modules[module.__name__] = found[op.name] = module
    return found


def named_classes(op_name: str) -> Callable[[str], type[QuantizedModule]]:
    """The `__getattr__` of a module in which the quantised forms of an operation are found."""

    def find(name: str) -> type[QuantizedModule]:
        op = OPS[op_name]
        prefix = op.module.__name__ if op.module else ""
        known = {f"{prefix}{fmt.label}": fmt for fmt in FORMATS.values()}
        if name not in known:
            message = f"no quantised {op_name!r} is called {name!r}: {suggestion(name, known)}"
            raise AttributeError(message)
        return module_class(op, known[name])

    return find
