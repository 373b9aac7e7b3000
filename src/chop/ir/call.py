"""A node of a graph with its operands: its operation, formats, float form, and what it overwrites.

Whatever looks at what a node calls asks a `NodeCall`: counting, calibration, lowering, the trials
of a search.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

from torch import fx, nn

from chop.nn.function import function_parts
from chop.nn.quant_config import QuantConfig, parse_quant_config
from chop.nn.quantized import QuantizedCall, QuantizedModule, float_module
from chop.nn.quantized.generic import watched_module
from chop.numerics import NumberFormat
from chop.ops.op import Op, op_of_node, writes_in_place

Formats = Mapping[str, NumberFormat]
"""The number format of each operand that is rounded, by role; what is missing is not rounded."""

FLOAT_FORM = "float_form"
"""The key of `node.meta` under which a quantised function node keeps what it was."""
FLOAT_RECORDS = "float_records"
"""The key of `node.meta` for types and precisions as they were in floating point."""


class FloatForm(NamedTuple):
    """A function or method node as it was before it was quantised."""

    op: str
    target: Any
    added: tuple[str, ...]
    """Keyword arguments that quantisation gave it."""
    removed: dict[str, Any]
    """Keyword arguments that quantisation took from it: private ones, such as `_stacklevel`."""


def module_of_node(node: fx.Node) -> Any:
    """The module that a node calls, looked up in the model that the node belongs to."""
    owner = node.graph.owning_module
    if node.op != "call_module" or owner is None:
        return None
    return owner.get_submodule(str(node.target))


@dataclass(frozen=True, eq=False)
class NodeCall:
    """A node with its operation, the module it calls and its arguments.

    Attributes:
        op: the row of the table; None for what it does not know, and for nodes that call nothing.
        module: the module of a `call_module` node.
    """

    node: fx.Node
    op: Op | None
    module: nn.Module | None
    modules: Mapping[str, nn.Module]

    @classmethod
    def of(cls, node: fx.Node, modules: Mapping[str, nn.Module] | None = None) -> Self:
        """The call of a node.

        Args:
            modules: those of the graph, by name; by default, the one that the node calls is found
                in the model that the node belongs to.
        """
        if modules is None:
            modules = {str(node.target): module_of_node(node)}
        module = modules[str(node.target)] if node.op == "call_module" else None
        return cls(node, op_of_node(node, modules), module, modules)

    @property
    def layer(self) -> nn.Module | None:
        """The module whose parameters are operands; a function that owns quantisers has none."""
        return None if isinstance(self.module, QuantizedCall) else self.module

    @cached_property
    def quant(self) -> QuantConfig | None:
        """The configuration of a quantised node; None if it computes in floating point."""
        if isinstance(self.module, QuantizedModule):
            return None if self.module.bypass else self.module.quant
        target: Any = self.node.target
        config: Any = self.node.kwargs.get("config")
        op = getattr(target, "op", None)  # of a quantised function
        if self.node.op != "call_function" or not isinstance(op, Op):
            return None
        if isinstance(config, Mapping):
            named = {"name": target.__name__.removeprefix(f"{op.name}_")} | dict(config)
            config = parse_quant_config(op, named, f"node {self.node.name!r}")
        return config if isinstance(config, QuantConfig) and not config.bypass else None

    @cached_property
    def formats(self) -> Formats:
        """The formats that operands are rounded to, those that learn as they are now."""
        if isinstance(self.module, QuantizedModule):
            return {} if self.module.bypass else self.module.frozen
        return {} if self.quant is None else self.quant.operands

    @cached_property
    def roles(self) -> dict[str, str | None]:
        """The role of each argument by name; None for a setting."""
        return {} if self.op is None else {each.name: each.role for each in self.op.arguments}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call of the node by name, without the configuration of formats."""
        if isinstance(getattr(self.node.target, "op", None), Op):
            kwargs = {name: value for name, value in kwargs.items() if name != "config"}
        if self.op is None:
            return {f"arg_{index}": value for index, value in enumerate(args)} | dict(kwargs)
        return self.op.bind(args, kwargs, is_layer=self.layer is not None)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, in the order of the call: nodes, or values."""
        return self.bind(self.node.args, self.node.kwargs)

    @property
    def in_float(self) -> Callable[..., Any]:
        """A function that computes the node without rounding, from its arguments but `config`."""
        target: Any = self.node.target
        if self.layer is not None:
            return float_module(self.layer)
        if self.module is not None or isinstance(getattr(target, "op", None), Op):
            assert self.op is not None
            assert self.op.function is not None
            return self.op.function
        if self.node.op == "call_method":
            return lambda tensor, *args, **kwargs: getattr(tensor, target)(*args, **kwargs)
        return target  # type: ignore[no-any-return]

    def rounded_by(
        self, rounders: Mapping[str, Any], quant: QuantConfig | None = None
    ) -> Callable[..., Any]:
        """A function that computes the node in evaluation mode on operands that others round.

        Args:
            rounders: what is called with each operand in place of its format, by role; it may also
                only look at the operand, and give it back.
            quant: the kind of format, for a node that is not quantised.
        """
        quant = quant or self.quant
        assert self.op is not None
        assert quant is not None
        if self.layer is not None:
            return watched_module(self.layer, self.op, quant, rounders)
        parts = function_parts(self.op, quant.name)
        in_place = {"inplace": True} if writes_in_place(self.node) else {}

        def run(*args: Any, **kwargs: Any) -> Any:
            # fx records private arguments, which the quantise pass drops too.
            named = {k: v for k, v in kwargs.items() if k != "config" and not k.startswith("_")}
            return parts.call(quant, args, named | in_place, rounders)

        return run

    @property
    def in_place(self) -> bool:
        """True if the node stores its result in its first argument."""
        if self.layer is not None:
            return bool(getattr(self.layer, "inplace", False))
        return writes_in_place(self.node) or bool(self.arguments.get("inplace"))

    @property
    def overwritten_nodes(self) -> list[fx.Node]:
        """The node whose result this one overwrites, and those that may share its memory.

        What only moves values may give a view of what it reads. Empty unless the node is in place.
        """
        found: list[fx.Node] = []
        source = next(iter(self.node.all_input_nodes), None) if self.in_place else None
        while source is not None:
            found.append(source)
            op = op_of_node(source, self.modules)
            may_view = source.op.startswith("call_") and (op is None or not op.quantizable)
            source = next(iter(source.all_input_nodes), None) if may_view else None
        return found
