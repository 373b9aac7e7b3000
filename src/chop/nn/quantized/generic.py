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
from chop.nn.kept import KeptWeights
from chop.nn.quant_config import OUTPUT, QuantConfig, parse_quant_config
from chop.nn.rounding import HOME, rounded, written_back
from chop.numerics import FORMATS, NumberFormat
from chop.ops.op import Op
from chop.ops.table import OPS


class QuantizedModule(nn.Module):
    """A module whose operands are rounded before the operation of its float class runs.

    Its classes are made by `module_class`, its instances by `quantize_module` or by calling the
    class: ``LinearInteger(16, 5, config={"data_in_width": 8, ...})`` has new weights. Parameters
    stay in floating point and are rounded on the way in, so that training goes on updating them.

    Args:
        config: the flat dictionary of the labs, in which `name` may be left out.
        args, kwargs: the arguments of the float class.
    """

    op: ClassVar[Op]
    base: ClassVar[type[nn.Module]]
    """The float class."""
    fmt: ClassVar[type[NumberFormat]]

    _quant: QuantConfig
    _input_formats: tuple[NumberFormat | None, ...]
    _keyword_formats: dict[str, NumberFormat | None]
    _param_formats: tuple[tuple[str, NumberFormat, bool], ...]
    """Name, format and whether rounding twice gives the same."""
    _output_format: NumberFormat | None
    _kept: KeptWeights

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
        """The configuration; assigning another of the same kind of format takes effect at once."""
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
        formats = quant.operands
        present = [name for name in self.op.params if getattr(self, name, None) is not None]
        for name in present:
            quant.require(self.op, name)
        self._quant = quant
        self._input_formats = tuple(formats.get(role) for role in self.op.inputs)
        self._keyword_formats = {
            argument.name: formats.get(argument.role)
            for argument in self.op.arguments
            if argument.role in self.op.inputs
        }
        self._param_formats = tuple(
            (name, formats[name], not getattr(formats[name], "stochastic", False))
            for name in present
            if name in formats
        )
        self._output_format = formats.get(OUTPUT)
        self._kept = KeptWeights()

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as the flat dictionary of the labs."""
        return self._quant.as_dict()

    @property
    def bypass(self) -> bool:
        """Whether the module computes as its float class does."""
        return self._quant.bypass

    @bypass.setter
    def bypass(self, bypass: bool) -> None:
        self.quant = replace(self._quant, bypass=bypass)

    @property
    def x_quantizer(self) -> NumberFormat | None:
        """The format of the input."""
        return self._input_formats[0] if self._input_formats else None

    @property
    def w_quantizer(self) -> NumberFormat | None:
        """The format of the weight."""
        return self._quant.operands.get("weight")

    @property
    def b_quantizer(self) -> NumberFormat | None:
        """The format of the bias."""
        return self._quant.operands.get("bias")

    def get_quantized_weight(self) -> Tensor:
        """The weight as the operation sees it; gradients flow through to the weight itself."""
        weight: Tensor = self._seen("weight")
        return weight

    def get_quantized_bias(self) -> Tensor | None:
        """The bias as the operation sees it, if there is one."""
        bias: Tensor | None = self._seen("bias")
        return bias

    def _seen(self, name: str) -> Any:
        fmt = None if self.bypass else self._quant.operands.get(name)
        return rounded(fmt, getattr(self, name))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The operation of the float class on rounded operands."""
        if self._quant.bypass:
            return super().forward(*inputs, **kwargs)
        if self.__dict__.get("inplace"):
            return written_back(self._compute, self.op.arguments[0].name, inputs, kwargs)
        return self._compute(*inputs, **kwargs)

    def _compute(self, *inputs: Any, **kwargs: Any) -> Any:
        formats = self._input_formats
        operands = (*map(rounded, formats, inputs), *inputs[len(formats) :])
        if kwargs:
            kwargs = {
                name: rounded(self._keyword_formats.get(name), value)
                for name, value in kwargs.items()
            }
        if self._param_formats:
            result = self.base.forward(self._float_twin(), *operands, **kwargs)
        else:
            result = super().forward(*operands, **kwargs)
        return result if self._output_format is None else rounded(self._output_format, result)

    def _float_twin(self) -> nn.Module:
        """A module of the float class that shares everything but has rounded parameters.

        Plain attributes come before registered parameters, so the forward of the float class, even
        one that a user wrote, reads the rounded ones and updates the buffers of this module.
        """
        twin = self.base.__new__(self.base)
        twin.__dict__.update(self.__dict__)
        for name, fmt, repeatable in self._param_formats:
            weight = getattr(self, name)
            rounded_weight = self._kept.rounded(name, fmt, weight) if repeatable else fmt(weight)
            twin.__dict__[name] = rounded_weight
        return twin

    def train(self, mode: bool = True) -> "QuantizedModule":
        """Switch between training and evaluation."""
        self._kept.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantizedModule":
        self._kept.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        formats = "bypass" if self.bypass else _shown(self._quant.operands)
        return "; ".join(filter(None, (super().extra_repr(), formats)))

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__getstate__()  # type: ignore[no-untyped-call]
        return _blank, (self.op, self.fmt, self.base), state


def _shown(operands: Mapping[str, NumberFormat]) -> str:
    """Formats in a line, those that are equal together: ``data_in, weight: width=8``."""
    roles: dict[NumberFormat, list[str]] = {}
    for role, fmt in operands.items():
        roles.setdefault(fmt, []).append(role)
    return "; ".join(
        f"{', '.join(names)}: {', '.join(f'{k}={v}' for k, v in _settings(fmt).items())}"
        for fmt, names in roles.items()
    )


def _settings(fmt: NumberFormat) -> dict[str, Any]:
    return fmt.model_dump(exclude_defaults=True)


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
    cls = _quantized_class(module, op, quant.format)
    new = cls.__new__(cls)
    new.__dict__.update(
        (name, copy.copy(value) if isinstance(value, dict | set) else value)
        for name, value in module.__dict__.items()
    )
    new.quant = quant
    return new


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
