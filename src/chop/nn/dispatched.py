"""The products that run when a model is called: all that torch dispatches, from any caller.

A table of operations knows the functions that were entered; what torch dispatches is what is
computed. So a product in an unknown function is seen here like any other.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from chop.nn.quant_config import OUTPUT, QuantConfig
from chop.nn.untraced import operation_called

Macs = Callable[..., int]
"""The MACs of a call, from its arguments and `out_val`, its result."""


def each_meets_all(one: Any, other: Any, *_: Any, out_val: Any, **__: Any) -> int:
    """One MAC for each index of the last dimension of the first operand, for each output."""
    return int(out_val.numel() * one.shape[-1])


def after_addend(rule: Macs) -> Macs:
    """The rule for operands that come after what their product is added to."""

    def macs(start: Any, *args: Any, **kwargs: Any) -> int:
        return rule(*args, **kwargs)

    return macs


def weighted_rows(weight: Any, indices: Any, *rest: Any, **kwargs: Any) -> int:
    """One MAC for each element of the rows that a bag of embeddings weights."""
    is_weighted = len(rest) > 4 and isinstance(rest[4], Tensor)
    return int(indices.numel() * weight.shape[-1]) if is_weighted else 0


def summed_batches(one: Any, other: Any, **_: Any) -> int:
    """The MACs of all matrix products of a batch, which are added up."""
    return int(one.numel() * other.shape[-1])


UNKNOWN_TO_TORCH: dict[str, Macs] = {
    **dict.fromkeys(("mv", "_cdist_forward", "_euclidean_dist"), each_meets_all),
    **dict.fromkeys(("dot", "vdot"), lambda one, other, **_: one.numel()),
    **dict.fromkeys(("addmv", "_sparse_addmm", "sspaddmm"), after_addend(each_meets_all)),
    "_addmm_activation": after_addend(each_meets_all),
    "hspmm": each_meets_all,
    "addr": lambda start, one, other, *_, **__: one.numel() * other.numel(),
    "addbmm": after_addend(summed_batches),
    "conv_tbc": lambda x, weight, *_, out_val, **__: out_val.numel() * prod(weight.shape[:2]),
    "_trilinear": lambda x, weight, *_, out_val, **__: 2 * out_val.numel() * prod(weight.shape[1:]),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), weighted_rows),
}  # fmt: skip
"""MACs of the operators with products for which `torch.utils.flop_counter` has no rule."""
AFTER_WHAT_IS_ADDED = frozenset((
    "addmm", "baddbmm", "addmv", "addbmm", "addr", "_sparse_addmm", "sspaddmm",
    "_addmm_activation",
))  # fmt: skip
WRITTEN_AS_MUL = frozenset(("outer", "ger", "kron", "vecdot", "linalg_vecdot", "einsum", "inner"))
"""Functions that may run as an element-wise multiplication, which is a product in them alone."""
COPIES = frozenset((
    "_reshape_copy", "_to_copy", "_unsafe_view", "cat", "clone", "constant_pad_nd", "flip",
    "gather", "im2col", "index", "index_select", "neg", "pixel_shuffle", "reflection_pad1d",
    "reflection_pad2d", "repeat", "replication_pad1d", "replication_pad2d", "roll", "stack",
    "unsafe_split",
))  # fmt: skip
"""Operators that give the numbers of their operand in another order, besides views."""
SCALINGS = frozenset(("mul", "div"))
"""Operators that a scalar as the other factor makes a scaling, which leaves numbers rounded."""


@dataclass
class ProductsSeen:
    """The products of one place: a node, or a layer."""

    macs: int = 0
    rounded: int = 0
    """MACs of which both operands were rounded."""
    half_rounded: int = 0
    bitops: int = 0
    """MACs times the widths of their operands, as the type of numbers has them."""
    unknown: int = 0
    """MACs of functions that no rule can name."""
    names: dict[str, int] = field(default_factory=dict)
    """Functions or operators with MACs on an operand that was not rounded, and how many."""

    def add(self, macs: int, rounded: int, name: str) -> None:
        """Add a product of which so many operands were rounded."""
        self.macs += macs
        self.rounded += macs if rounded == 2 else 0
        self.half_rounded += macs if rounded == 1 else 0
        if rounded < 2:
            self.names[name] = self.names.get(name, 0) + macs


class ProductWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the products that run, and those whose operands are rounded, by the place they run at.

    Args:
        is_rounded: whether an operand is rounded; if nothing is given, those that went through
            `mark`, however they were moved since.
    """

    def __init__(self, is_rounded: Callable[[Tensor], bool] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_rounded = is_rounded or self.is_marked
        self.place: Any = ""
        self.function: Any = None
        """The function of torch that runs now, if any."""
        self.in_call = 0
        """The products that ran in it so far."""
        self.seen: dict[Any, ProductsSeen] = {}
        self.marks = WeakIdKeyDictionary()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what skips the compiler imports it first, which takes seconds

    def mark(self, operand: Tensor) -> Tensor:
        """Stand in for rounding: a copy of an operand that counts as rounded."""
        copied = operand.clone()
        if operand.is_floating_point():
            self.marks[copied] = True
        return copied

    def is_marked(self, operand: Tensor) -> bool:
        """True if an operand is a marked one, or was moved from one."""
        return operand in self.marks

    @property
    def total(self) -> ProductsSeen:
        """The products of all places."""
        whole = ProductsSeen()
        for part in self.seen.values():
            for name in ("macs", "rounded", "half_rounded", "bitops", "unknown"):
                setattr(whole, name, getattr(whole, name) + getattr(part, name))
            for name, macs in part.names.items():
                whole.names[name] = whole.names.get(name, 0) + macs
        return whole

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator and look at what it multiplies."""
        result = func(*args, **(kwargs or {}))
        packet = getattr(func, "_overloadpacket", func)
        name = str(getattr(packet, "__name__", packet))
        rule = flop_registry.get(packet)
        known = UNKNOWN_TO_TORCH.get(name)
        if rule is not None:
            macs = rule(*args, **(kwargs or {}), out_val=result) // 2
            self._add(macs, operands(name, args), f"aten.{name}")
        elif known is not None:
            self._add(known(*args, **(kwargs or {}), out_val=result), operands(name, args), name)
        elif name == "mul" and self._in_a_product and not is_scaling(args):
            self._add(result.numel(), list(args[:2]), name)
        elif self.marks and self._only_moves(func, name, args):
            for each in pytree.tree_leaves(result):
                if isinstance(each, Tensor):
                    self.marks[each] = True
        return result

    @property
    def _in_a_product(self) -> bool:
        return getattr(self.function, "__name__", "") in WRITTEN_AS_MUL

    @property
    def _is_out_of_reach(self) -> bool:
        """True if the product is one that no rule can round.

        Its function may be unknown, or have made an operand that it gives no name to.
        """
        op = None if self.function is None else operation_called(self.function, ())[0]
        return op is None or not op.quantizable or bool(self.in_call and not op.inner)

    def _add(self, macs: int, factors: list[Tensor], name: str) -> None:
        if not macs:
            return
        pairs, bits = len(factors) - 1, 8 * factors[0].element_size()
        rounded = sum(map(self.is_rounded, factors))
        seen = self.seen.setdefault(self.place, ProductsSeen())
        name = (
            name
            if self.function is None or rounded == len(factors) == 2
            else function_name_of(self.function)
        )
        seen.bitops += macs * bits**2
        seen.unknown += macs if rounded < 2 and self._is_out_of_reach else 0
        self.in_call += 1
        seen.add(macs // pairs, min(rounded, 2), name)
        for _ in range(pairs - 1):  # a third operand meets what the first two make
            seen.add(macs // pairs, min(rounded, 1), name)

    def _only_moves(self, func: Any, name: str, args: Any) -> bool:
        """True if what an operator gives are the numbers of marked tensors."""
        moves = getattr(func, "is_view", False) or name in COPIES or adds_zero(name, args)
        if not moves and not (name in SCALINGS and is_scaling(args)):
            return False
        tensors = [each for each in pytree.tree_leaves(args) if isinstance(each, Tensor)]
        numbers = [each for each in tensors if each.is_floating_point()]
        full = [each for each in numbers if each.dim()] or numbers
        return bool(full) and all(map(self.is_marked, full))


def adds_zero(name: str, args: Any) -> bool:
    """True if an operator adds the number 0.0, which only makes +0.0 of -0.0."""
    return name == "add" and len(args) == 2 and type(args[1]) is float and args[1] == 0.0


def marks_for(quant: QuantConfig, watch: ProductWatch) -> dict[str, Any]:
    """A function that marks each operand that a configuration rounds; results are not operands."""
    return {role: watch.mark for role in quant.operands if role != OUTPUT}


def operands(name: str, args: tuple[Any, ...]) -> list[Tensor]:
    """The tensors that an operator multiplies."""
    first = 1 if name in AFTER_WHAT_IS_ADDED else 0
    count = 3 if name == "_trilinear" else 2
    if name.startswith("_embedding_bag"):
        return [args[0], args[6]] if len(args) > 6 else []
    return [each for each in args[first : first + count] if isinstance(each, Tensor)]


def is_scaling(args: tuple[Any, ...]) -> bool:
    """True if one of two factors is a number, or a tensor with one number."""
    return any(not isinstance(each, Tensor) or not each.dim() for each in args[:2])


class FunctionNames(TorchFunctionMode):
    """Tells a watch which function of torch has been called."""

    def __init__(self, watch: ProductWatch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do what is asked."""
        self.watch.function, self.watch.in_call = func, 0
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.watch.function = None


def function_name_of(func: Any) -> str:
    """The name of a function as a user writes it."""
    name = getattr(func, "__name__", "")
    return str(resolve_name(func) or name).replace("torch.functional.", "torch.")


@contextlib.contextmanager
def plain_operators() -> Iterator[None]:
    """Run attention and recurrent layers by products, which can be watched."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own settings
            with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def watched_products(is_rounded: Callable[[Tensor], bool] | None = None) -> Iterator[ProductWatch]:
    """Watch the products of what runs inside."""
    with plain_operators(), torch.inference_mode(False), torch.no_grad():
        watch = ProductWatch(is_rounded)
        with FunctionNames(watch), watch:
            yield watch
