"""Which MASE type and operation a node has."""

import re
from collections.abc import Mapping
from typing import Any

from torch import fx, nn
from torch._ops import OpOverload

from chop.ops.op import MaseType, aten_name, op_of_node


def classify(node: fx.Node, modules: Mapping[str, nn.Module]) -> tuple[str, str]:
    """The type and the operation; what the table does not know keeps its own name.

    What is not torch's is a node only because the user said so: a `patched_func`. Of torch's, an
    unknown layer is a `module` and any other unknown call a `builtin_func`.
    """
    if node.op in ("placeholder", "output"):
        return node.op, node.op
    if node.op == "get_attr":
        constant = str(node.target).startswith("_tensor_constant")
        return (MaseType.IMPLICIT_FUNC.value, "constant") if constant else (node.op, node.op)
    op = op_of_node(node, modules)
    if op is not None:
        return op.mase_type.value, op.name
    if node.op == "call_module":
        layer = type(modules[str(node.target)])
        kind = MaseType.PATCHED_FUNC if is_users(layer) else MaseType.MODULE
        return kind.value, snake_case(layer.__name__)
    kind = MaseType.PATCHED_FUNC if is_users(node.target) else MaseType.BUILTIN_FUNC
    return kind.value, target_name(node.target)


def is_users(target: Any) -> bool:
    """Whether a function or class is neither torch's nor Python's own."""
    home = getattr(target, "__module__", None) or "torch"  # C functions of torch have none
    return home.partition(".")[0] not in ("torch", "math", "builtins", "_operator")


def target_name(target: Any) -> str:
    """The name of a function or method; of an ATen overload, without the overload."""
    if isinstance(target, OpOverload):
        return aten_name(target)
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def snake_case(name: str) -> str:
    """`MyBlock2d` as `my_block2d`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
