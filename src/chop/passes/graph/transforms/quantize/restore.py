"""The way back from quantised to floating point."""

from typing import Any, NamedTuple

from torch import fx, nn
from torch.nn.utils import parametrize

from chop.nn.quantized import QuantizedModule
from chop.passes.graph.transforms.pruning.masks import own_shell

FLOAT_FORM = "float_form"
"""The key of `node.meta` under which a quantised function node keeps what it was."""


class FloatForm(NamedTuple):
    """A function or method node as it was before it was quantised."""

    op: str
    target: Any
    added: tuple[str, ...]
    """Keyword arguments that quantisation gave it."""
    removed: dict[str, Any]
    """Keyword arguments that quantisation took from it: private ones, such as `_stacklevel`."""


def float_module(module: nn.Module) -> nn.Module:
    """A module of the float class that shares everything else; `module` itself if it is float."""
    if not isinstance(module, QuantizedModule):
        return module
    shell = own_shell(module, float_class(module))
    for name in QuantizedModule.__annotations__:
        shell.__dict__.pop(name, None)
    return shell


def float_class(module: QuantizedModule) -> type[nn.Module]:
    """The class before quantisation; a pruned layer has one of its own, made by torch."""
    outer = type(module)
    if "op" in vars(outer):
        return module.base
    own = dict(vars(outer)) | {"__module__": parametrize.__name__}
    return type(f"Parametrized{module.base.__name__}", (module.base,), own)


def restore_function(node: fx.Node) -> None:
    """Make a quantised function node what it was, on the arguments it has now."""
    form: FloatForm = node.meta.pop(FLOAT_FORM)
    node.op, node.target = form.op, form.target
    kept = {key: value for key, value in node.kwargs.items() if key not in form.added}
    node.kwargs = {**kept, **form.removed}
