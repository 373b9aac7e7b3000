"""Models computed in number formats without a graph: layers are replaced, functions are met.

What no tracer can follow still runs, so its products can be rounded as they come: a layer becomes
its quantised form, and a function that is called while a layer runs is computed by its own.
"""

import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from chop.nn.decomposed import decompose
from chop.nn.function import function_parts
from chop.nn.quant_config import QuantConfig
from chop.nn.quantized import QuantizedModule, quantize_module
from chop.nn.quantizers import Rounder
from chop.ops.op import Op, op_of_function, op_of_method, op_of_module

Site = tuple[str, str, tuple[str, int]]
"""Where a function is called: the module that runs, the operation, and the place in the code."""
Chooser = Callable[[Op, str | None], QuantConfig | None]
"""How an operation is quantised: that of the layer of a name, or a function, which has none."""
REFLECTED = {f"__r{name}__": f"__{name}__" for name in ("matmul", "add", "sub", "mul", "truediv")}
"""Operators whose second operand is asked, and the names of those that ask the first."""


class RoundedFunctions(TorchFunctionMode):
    """Computes functions in number formats while a layer of a model runs.

    Attributes:
        configs: what was chosen for each place in the code that calls a function.
        looks: in place of formats, what is shown each operand of an operation; for calibration.
        met: the functions that were computed in a number format, by operation.
        missed: products that were called in a form that cannot be quantised.
    """

    def __init__(self, choose: Chooser) -> None:
        super().__init__()
        self.choose = choose
        self.configs: dict[Site, QuantConfig | None] = {}
        self.looks: Callable[[Site, Op, QuantConfig], Mapping[str, Rounder]] | None = None
        self.met: set[str] = set()
        self.missed: set[str] = set()
        self.running: list[str] = []
        """The names of the modules that run now, the innermost last."""
        self.paused = 0

    def config(self, site: Site, op: Op) -> QuantConfig | None:
        """The configuration of a function at a place in the code, if it is quantised there."""
        if site not in self.configs:
            able = op.quantizable and op.function is not None
            self.configs[site] = self.choose(op, None) if able else None
        return self.configs[site]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do what is asked, on rounded operands where the function has a configuration."""
        kwargs = kwargs or {}
        op, args = operation_called(func, args)
        if op is None or self.paused or not any_float(args, kwargs):
            return func(*args, **kwargs)
        site = (self.running[-1], op.name, place_in_code())
        quant = self.config(site, op)
        if quant is None:
            return func(*args, **kwargs)
        if kwargs.get("out") is not None:
            self.missed.add(f"{op.name} with out=")
            return func(*args, **kwargs)
        self.met.add(op.name)
        given = {name: value for name, value in kwargs.items() if not name.startswith("_")}
        given.pop("out", None)
        if is_in_place(func):
            given["inplace"] = True
        formats = None if self.looks is None else self.looks(site, op, quant)
        return function_parts(op, quant.name).call(quant, args, given, formats)

    def __deepcopy__(self, memo: dict[int, Any]) -> "RoundedFunctions":
        copied = memo[id(self)] = RoundedFunctions(self.choose)
        copied.configs = dict(self.configs)
        return copied


class Scope:
    """Hooks that switch the rounding of functions when one module begins and ends to run."""

    def __init__(self, rounding: RoundedFunctions, name: str) -> None:
        self.rounding, self.name = rounding, name

    def start(self, module: nn.Module, args: Any) -> None:
        """A module begins to run: its functions are rounded."""
        self.rounding.running.append(self.name)
        if len(self.rounding.running) == 1:
            self.rounding.__enter__()  # type: ignore[no-untyped-call]

    def stop(self, module: nn.Module, args: Any, result: Any) -> None:
        """A module has run, or failed."""
        self.rounding.running.pop()
        if not self.rounding.running:
            self.rounding.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def pause(self, module: nn.Module, args: Any) -> None:
        """A quantised layer begins to run, which rounds by itself."""
        self.rounding.paused += 1

    def resume(self, module: nn.Module, args: Any, result: Any) -> None:
        """A quantised layer has run."""
        self.rounding.paused -= 1


def place_in_code() -> tuple[str, int]:
    """The function outside torch that has called one of torch, and where in it that is."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("torch."):
        frame = frame.f_back
    return frame.f_code.co_qualname, frame.f_lasti


def operation_called(func: Any, args: tuple[Any, ...]) -> tuple[Op | None, tuple[Any, ...]]:
    """The operation that a function or method of tensors computes, and its arguments in order."""
    name = str(getattr(func, "__name__", ""))
    if name in REFLECTED and len(args) == 2:
        name, args = REFLECTED[name], (args[1], args[0])
        return op_of_function(getattr(operator, name)), args
    try:
        found = op_of_function(func)
    except TypeError:  # some methods of tensors cannot be hashed
        found = None
    if found is None and getattr(torch.Tensor, name, None) is not None:
        written = getattr(operator, name, None) if name.startswith("__") else None
        found = op_of_method(name) if written is None else op_of_function(written)
    return found, args


def is_in_place(func: Any) -> bool:
    """True if a function stores its result in its first argument."""
    name = str(getattr(func, "__name__", ""))
    if name.startswith("__"):
        return name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
    return name.endswith("_")


def any_float(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if there is anything to round among the arguments."""
    given = [*args, *kwargs.values()]
    flat = [x for each in given for x in (each if isinstance(each, list | tuple) else (each,))]
    return any(isinstance(x, Tensor) and x.is_floating_point() for x in flat)


def quantize_untraced(
    model: nn.Module, choose: Chooser
) -> tuple[nn.Module, RoundedFunctions, dict[str, QuantizedModule]]:
    """The model with quantised layers, what rounds its functions, and those layers by name.

    The given model is taken apart: hand over a copy where it is to live on. Attention and
    transformers of torch have their decomposed forms, whose products are functions.
    """
    model = decompose(model)
    rounding = RoundedFunctions(choose)
    made: dict[nn.Module, QuantizedModule] = {}
    layers: dict[str, QuantizedModule] = {}
    for name, module in [*model.named_modules(remove_duplicate=False)]:
        if any(name.startswith(f"{outer}.") for outer in layers):
            continue
        quantised = made.get(module) or _quantise(module, name, choose)
        if quantised is None:
            continue
        made[module] = layers[name] = quantised
        if name:
            parent, _, own = name.rpartition(".")
            model.get_submodule(parent)._modules[own] = quantised
        else:
            model = quantised
    inside = {part for layer in made.values() for part in layer.modules()} - {*made.values()}
    for name, module in model.named_modules():
        scope = Scope(rounding, name)
        if module in made.values():
            module.register_forward_pre_hook(scope.pause)
            module.register_forward_hook(scope.resume, always_call=True)
        elif module not in inside:
            module.register_forward_pre_hook(scope.start)
            module.register_forward_hook(scope.stop, always_call=True)
    return model, rounding, layers


def _quantise(module: nn.Module, name: str, choose: Chooser) -> QuantizedModule | None:
    op = op_of_module(module)
    if op is None or op.module is None or not op.quantizable or any(module.children()):
        return None
    if getattr(module, "max_norm", None) is not None:  # it writes to its weight as it runs
        return None
    quant = choose(op, name)
    return None if quant is None else quantize_module(module, op, quant)
