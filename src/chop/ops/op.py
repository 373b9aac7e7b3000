"""The row of an operation, and the way to it from a module, a function, a method or a node.

`OPS` is the table. The rows stand beside this file and are put into it by `chop.ops.table`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, fx, nn
from torch._ops import OpOverload

from chop.errors import RegistrationError
from chop.ops.cost import PRODUCTS, CallShapes, CostRule, Shape, multihead_attention, unknown_cost
from chop.registry import Registry

Key = TypeVar("Key")
Lowering = Callable[..., Any]
IN_PLACE = frozenset({"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul",
                      "iand", "ior", "ixor", "ilshift", "irshift"})  # fmt: skip


class MaseType(StrEnum):
    """The kind of a node, as the labs name it."""

    MODULE_RELATED_FUNC = "module_related_func"
    """A function of `torch.nn.functional` and the module that wraps it."""
    MODULE = "module"
    """A module that has no function."""
    BUILTIN_FUNC = "builtin_func"
    """A function that has no module."""
    IMPLICIT_FUNC = "implicit_func"
    """A function that moves, selects or describes values and computes none."""
    PATCHED_FUNC = "patched_func"
    """A function or module that the user declared to be one node."""
    PLACEHOLDER = "placeholder"
    GET_ATTR = "get_attr"
    OUTPUT = "output"


class Reads(StrEnum):
    """The elements of its operands that an element of a result depends on."""

    SAME = "the same element"
    """The one in the same place, which it is."""
    PLACE = "its place"
    """Those in the same place."""
    MOVED = "another place"
    """One that was in another place, which it is."""
    SUMMED = "a sum"
    """Some that are added: the gradient of the others is zero."""
    CHANNEL = "its channel"
    """Those of its channel."""
    SHAPE = "the shape"
    """None: the result says something of the shape."""
    ALL = "all"
    """Any of them, for all that is known."""


class Order(StrEnum):
    """The order in which the elements of a result lie in memory."""

    KEPT = "as they were"
    DENSE = "of the dimensions, or with channels last"
    ANY = "perhaps another, or with gaps"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a function: its name and, if it is an operand, its role."""

    name: str
    role: str | None = None
    rest: bool = False
    """Whether it stands for all positional arguments that follow."""


def takes(*arguments: str) -> tuple[Argument, ...]:
    """Arguments in a few words: ``input:data_in``, ``weight:``, ``stride``, ``*operands:weight``.

    What follows the colon is the role; nothing after it means that name and role are the same.
    """
    return tuple(_argument(text) for text in arguments)


def _argument(text: str) -> Argument:
    name, colon, role = text.lstrip("*").partition(":")
    return Argument(name, (role or name) if colon else None, rest=text.startswith("*"))


@dataclass(frozen=True, eq=False, kw_only=True)
class Op:
    """One operation, whichever way it is written; two operations are equal if they are the same."""

    name: str
    mase_type: MaseType
    description: str
    module: type[nn.Module] | None = None
    functions: tuple[Callable[..., Any], ...] = ()
    """The functions that compute it; the first takes every argument that the others take."""
    methods: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()
    """Names of ATen operators that compute it, besides its own name and those of its methods."""
    arguments: tuple[Argument, ...] = takes("input:data_in")
    """The arguments of the functions, in order; a method's tensor is the first."""
    inputs: tuple[str, ...] = ("data_in",)
    """Roles of the tensors that flow in, in the order in which a module takes them."""
    params: tuple[str, ...] = ()
    """Parameters of the module that take part, each a role of the same name."""
    inner: tuple[str, ...] = ()
    """Roles of operands that it makes itself between its products and rounds if a format is set."""
    parameters: Callable[[nn.Module], dict[str, str]] | None = None
    """The parameters of a module with their roles, where several have one role."""
    forward: Callable[..., Any] | None = None
    """The forward of the module, written so that the `inner` operands can be rounded."""
    optional: frozenset[str] = frozenset()
    """Parameters that a call may lack, so that a configuration need not mention them."""
    unsigned: frozenset[str] = frozenset()
    """Roles that are rounded without a sign unless the configuration says otherwise."""
    quantizable: bool = True
    """Whether it can be computed in a number format; what only moves values cannot."""
    selects: bool = False
    """Whether each result is one of the numbers that it reads, or a limit: no bits are added."""
    limits: bool = False
    """Whether it only cuts numbers off at bounds, so that it can be rounded with what it reads."""
    never_negative: bool = False
    """Whether no result is below zero, whatever it reads."""
    homogeneous: bool = False
    """Whether each channel by itself gives twice the result for twice the input."""
    standardises: bool = False
    """Whether rows are divided by their own size: small ones have to be as exact as large ones."""
    run: Callable[..., Any] | None = None
    """The function form, where it is not simply the first of `functions`."""
    cost: CostRule = unknown_cost
    reads: Reads = Reads.ALL
    order: Order = Order.KEPT
    dims: int = 0
    """The number of dimensions that come after the channels."""
    summed: Mapping[str, int] | None = None
    """For a product of two operands, the dimension of each that its sums run over, by role.

    A product of elements has none; None if it is not known which numbers are multiplied.
    """
    channels: Mapping[str, int] = field(default_factory=dict)
    """The dimension of the channels of each operand and of the result, by role."""

    @property
    def multiplies(self) -> bool:
        """True if it is made of products of its operands, as layers with weights are."""
        return self.cost in PRODUCTS

    @property
    def may_multiply(self) -> bool:
        """True if it has products, or may have some that the table does not know."""
        known = self.multiplies or self.summed is not None
        return known or self.cost in (multihead_attention, unknown_cost)

    @property
    def keeps_sign(self) -> bool:
        """True if it gives no number below zero where it reads none."""
        return self.selects or self.reads in (Reads.SAME, Reads.MOVED, Reads.SUMMED)

    @property
    def sums_products(self) -> bool:
        """True for a sum of products of two operands, the only ones whose widths can be learned."""
        return bool(self.summed)

    @property
    def has_weight_matrix(self) -> bool:
        """True if its weight has a row for each output channel, a column for each input one."""
        return self.sums_products and "weight" in self.params

    @property
    def lowering(self) -> Lowering | None:
        """The rule that makes steps of an integer program of it, or of all that read alike."""
        return LOWERINGS.get(self.name) or LOWERINGS.get(self.reads)

    def channel_shape(self, role: str, shape: Shape) -> Shape:
        """The shape of one number for each channel of an operand; () if it has no channels."""
        axis = self.channels.get(role)
        if axis is None and role in self.params and len(shape) == 1:
            axis = 0
        if axis is None or not -len(shape) <= axis < len(shape):
            return ()
        return (shape[axis], *(1,) * (-1 - axis if axis < 0 else len(shape) - 1 - axis))

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of all operands, whose names begin the keys of a configuration."""
        return self.inputs + self.params

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function that computes it from plain arguments, if there is one."""
        return self.run or (self.functions[0] if self.functions else None)

    def bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_layer: bool = False
    ) -> dict[str, Any]:
        """The arguments of a call by name; those that have none are numbered.

        Args:
            is_layer: the call is that of a module, which has the parameters itself.
        """
        known = [each for each in self.arguments if not (is_layer and each.role in self.params)]
        bound: dict[str, Any] = {}
        for index, value in enumerate(args):
            argument = known[index] if index < len(known) else Argument(f"arg_{index}")
            if argument.rest:
                bound[argument.name] = args[index:]
                break
            bound[argument.name] = value
        return bound | dict(kwargs)

    def __reduce__(self) -> tuple[Callable[[str], "Op"], tuple[str]]:
        return _row_of, (self.name,)  # copies and pickles of a row are the row itself


def _row_of(name: str) -> Op:
    return OPS[name]


OPS: Registry[Op] = Registry("operation")
LOWERINGS: Registry[Lowering] = Registry("lowering")


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Decorator for a rule that turns operations into steps of an integer program.

    Args:
        names: operations, or one of `Reads` for those that read so and have no rule of their own.
    """
    for name in names:
        if not isinstance(name, Reads):
            OPS[name]  # which says what is near, if there is no such operation
    return LOWERINGS.register(*names)


class Indexes(NamedTuple):
    """The table the other way round."""

    modules: dict[type[nn.Module], Op]
    functions: dict[Callable[..., Any], Op]
    methods: dict[str, Op]
    aten: dict[str, Op]


def op_of_module(module: nn.Module) -> Op | None:
    """The operation of a module: that of its class or of the nearest class it derives from.

    Quantised and pruned modules derive from the float class, so they are the same operation; a
    quantised function that is a module names its operation itself.
    """
    own = getattr(type(module), "op", None)
    if isinstance(own, Op):
        return own
    modules = _indexes(len(OPS)).modules
    return next((modules[base] for base in type(module).__mro__ if base in modules), None)


def op_of_function(function: Callable[..., Any]) -> Op | None:
    """The operation of a function, found by identity; a quantised function names it itself."""
    if isinstance(function, OpOverload):  # which torch.export leaves
        return _indexes(len(OPS)).aten.get(aten_name(function))
    own = getattr(function, "op", None)
    return own if isinstance(own, Op) else _indexes(len(OPS)).functions.get(function)


def parameter_roles(op: Op, module: nn.Module) -> dict[str, str]:
    """The parameters of a layer that take part in its operation, each with its role."""
    if op.parameters is not None:
        return op.parameters(module)
    return {name: name for name in op.params if getattr(module, name, None) is not None}


def aten_name(function: OpOverload) -> str:
    """The name of an ATen operator, without the overload."""
    return function._schema.name.partition("::")[2]


def op_of_method(name: str) -> Op | None:
    """The operation of a tensor method."""
    return _indexes(len(OPS)).methods.get(name)


def op_of_node(node: fx.Node, modules: Mapping[str, nn.Module]) -> Op | None:
    """The operation of a node, whether torch.fx or torch.export made it.

    Inputs, outputs, attributes and what is unknown have none.
    """
    target: Any = node.target
    match node.op:
        case "call_module":
            return op_of_module(modules[target])
        case "call_function":
            return op_of_function(target)
        case "call_method":
            return op_of_method(target)
    return None


def is_aten(node: fx.Node) -> bool:
    """True if a node came from torch.export; such functions may order their arguments otherwise."""
    return isinstance(node.target, OpOverload)


def writes_in_place(node: fx.Node) -> bool:
    """True if a function or method node stores its result in its first argument."""
    target: Any = node.target
    if node.op == "call_method":
        return bool(target.endswith("_") and not target.endswith("__"))
    if node.op != "call_function":
        return False
    name = aten_name(target) if is_aten(node) else getattr(target, "__name__", "")
    if (
        getattr(target, "__module__", "") == "_operator"
    ):  # in which and_, or_ and not_ write nothing
        return name in IN_PLACE
    return bool(name.endswith("_") and not name.endswith("__"))


@lru_cache(maxsize=1)
def _indexes(size: int) -> Indexes:
    """The indexes of the table while it has `size` rows: rows are only ever added."""
    ops = OPS.values()
    return Indexes(
        _index((op.module, op) for op in ops if op.module),
        _index((function, op) for op in ops for function in op.functions),
        _index((name, op) for op in ops for name in op.methods),
        _index((name, op) for op in ops for name in (op.name, *op.methods, *op.aten)),
    )


def _index(pairs: Iterable[tuple[Key, Op]]) -> dict[Key, Op]:
    index: dict[Key, Op] = {}
    for key, op in pairs:
        if index.setdefault(key, op) is not op:
            other = index[key].name
            raise RegistrationError(f"operations {other!r} and {op.name!r} both claim {key!r}")
    return index


def call_of_module(op: Op, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> CallShapes:
    """The shapes of a module call."""
    return CallShapes(
        inputs=tuple(tensor_shape(value) for value in inputs if isinstance(value, Tensor)),
        output=tensor_shape(output),
        params={name: tensor_shape(getattr(module, name)) for name in parameter_roles(op, module)},
        module=module,
    )


def call_of_function(
    op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> CallShapes:
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
                params[str(role)] = tensor_shape(tensor)
            elif isinstance(tensor, Tensor):
                inputs.append(tensor_shape(tensor))
    return CallShapes(tuple(inputs), tensor_shape(output), params, bound)


def tensor_shape(value: Any) -> Shape:
    """The shape of a tensor, or of the first of several."""
    if isinstance(value, list | tuple):
        return tensor_shape(value[0]) if value else ()
    return tuple(value.shape) if isinstance(value, Tensor) else ()
