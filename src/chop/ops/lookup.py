"""From a module, a function, a method name or a node to the operation it is."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from torch import fx, nn

from chop.errors import RegistrationError
from chop.ops.op import Op
from chop.ops.table import OPS

Key = TypeVar("Key")


class Indexes(NamedTuple):
    """The table the other way round."""

    modules: dict[type[nn.Module], Op]
    functions: dict[Callable[..., Any], Op]
    methods: dict[str, Op]


def op_of_module(module: nn.Module) -> Op | None:
    """The operation of a module: that of its class or of the nearest class it derives from.

    Quantised and pruned modules derive from the float class, so they are the same operation.
    """
    modules = _indexes(len(OPS)).modules
    return next((modules[base] for base in type(module).__mro__ if base in modules), None)


def op_of_function(function: Callable[..., Any]) -> Op | None:
    """The operation of a function, found by identity; a quantised function carries its own."""
    own = getattr(function, "op", None)
    return own if isinstance(own, Op) else _indexes(len(OPS)).functions.get(function)


def op_of_method(name: str) -> Op | None:
    """The operation of a tensor method."""
    return _indexes(len(OPS)).methods.get(name)


def op_of_node(node: fx.Node, modules: Mapping[str, nn.Module]) -> Op | None:
    """The operation of a node; inputs, outputs, attributes and what is unknown have none."""
    target: Any = node.target
    match node.op:
        case "call_module":
            return op_of_module(modules[target])
        case "call_function":
            return op_of_function(target)
        case "call_method":
            return op_of_method(target)
    return None


def writes_in_place(node: fx.Node) -> bool:
    """Whether a function or method node stores its result in its first argument."""
    target: Any = node.target
    if node.op == "call_method":
        return bool(target.endswith("_") and not target.endswith("__"))
    if node.op != "call_function":
        return False
    name = getattr(target, "__name__", "")
    in_place_operator = getattr(target, "__module__", "") == "_operator" and name in IN_PLACE
    return in_place_operator or (name.endswith("_") and not name.endswith("__"))


IN_PLACE = frozenset({"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"})


@lru_cache(maxsize=1)
def _indexes(size: int) -> Indexes:
    """The indexes of the table while it has `size` rows: rows are only ever added."""
    ops = OPS.values()
    return Indexes(
        _index((op.module, op) for op in ops if op.module),
        _index((function, op) for op in ops for function in op.functions),
        _index((name, op) for op in ops for name in op.methods),
    )


def _index(pairs: Iterable[tuple[Key, Op]]) -> dict[Key, Op]:
    index: dict[Key, Op] = {}
    for key, op in pairs:
        if index.setdefault(key, op) is not op:
            other = index[key].name
            raise RegistrationError(f"operations {other!r} and {op.name!r} both claim {key!r}")
    return index
