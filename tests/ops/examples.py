"""An example of every quantisable operation, as a module and as a function call.

The roles of arguments are written here a second time on purpose: they are what the table must say.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.numerics import FORMATS
from chop.ops.composed import masked_softmax
from chop.ops.op import Op
from chop.ops.table import OPS

MODULE_OPS = [op for op in OPS.values() if op.quantizable and op.module]
FUNCTION_OPS = [op for op in OPS.values() if op.quantizable and op.functions]
FORMAT_NAMES = sorted(FORMATS)
SETTINGS = {
    "width": 8,
    "frac_width": 4,
    "exponent_width": 4,
    "exponent_bias_width": 8,
    "block_size": [4],
    "scale": 0.1,
}
ROLES = ("data_in", "weight", "bias")


def config_of(format_name: str, **more: Any) -> dict[str, Any]:
    """A configuration that serves every operation."""
    fields = FORMATS[format_name].model_fields
    given = [name for name in fields if fields[name].is_required()]
    keys = {f"{role}_{name}": SETTINGS[name] for role in ROLES for name in given}
    return {"name": format_name} | keys | more


def positive(*shape: int) -> Tensor:
    """Numbers that no format makes zero or negative, for logarithms and divisors."""
    return 1.5 + 0.5 * torch.rand(*shape)


def place(dims: int) -> tuple[int, ...]:
    return (6, 5, 4)[:dims]


def module_example(op: Op, bias: bool = True) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A small module of the operation in evaluation mode, and its inputs."""
    torch.default_generator.manual_seed(0)
    module, inputs = _module_and_inputs(op, bias)
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.2, 0.7)
    return module.eval(), inputs


def _module_and_inputs(op: Op, bias: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    assert op.module is not None
    cls: Any = op.module
    dims = int(op.name[-2]) if op.name.endswith("d") and op.name[-2].isdigit() else 0
    image = torch.randn(2, 4, *place(dims or 2))
    sequence = torch.randn(3, 2, 6)
    special: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
        "linear": lambda: (cls(6, 3, bias=bias), (torch.randn(4, 6),)),
        "bilinear": lambda: (cls(3, 4, 2, bias=bias), (torch.randn(5, 3), torch.randn(5, 4))),
        "embedding": lambda: (cls(7, 3), (torch.tensor([[1, 2], [0, 6]]),)),
        "interpolate": lambda: (cls(scale_factor=2, mode="bilinear"), (image,)),
        "layer_norm": lambda: (cls(6, bias=bias), (torch.randn(2, 3, 6),)),
        "rms_norm": lambda: (cls(6), (torch.randn(2, 3, 6),)),
        "group_norm": lambda: (cls(2, 4, affine=bias), (image,)),
        "threshold": lambda: (cls(0.1, 0.5), (torch.randn(2, 3),)),
        "prelu": lambda: (cls(4), (image,)),
        "softmax2d": lambda: (cls(), (torch.randn(2, 3, 4, 4),)),
        **dict.fromkeys(("lstm", "gru", "rnn"), lambda: (cls(6, 4, bias=bias), (sequence,))),
        **{f"{kind}_cell": lambda: (cls(6, 4, bias=bias), (torch.randn(3, 6),))
           for kind in ("lstm", "gru", "rnn")},
    }  # fmt: skip
    if op.name in special:
        return special[op.name]()
    if op.name.startswith("conv"):
        return cls(4, 6, 3, stride=2, padding=1, groups=2, bias=bias), (image,)
    if "_norm" in op.name:
        return cls(4, affine=bias), (image,)
    if "pool" in op.name:
        return cls(*_pool_settings(op.name)), (image,)
    settings = {"dim": -1} if op.name in ("softmax", "softmin", "log_softmax", "glu") else {}
    return cls(**settings), (torch.randn(3, 6),)


def _pool_settings(name: str) -> tuple[int, ...]:
    if name.startswith("adaptive"):
        return (2,)
    if name.startswith("lp"):
        return (2, 2)
    return (2, 2)


@dataclass
class Call:
    """A call of a float function, with the role of each argument that is an operand."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    roles: tuple[str | None, ...] = ("data_in",)
    kwargs: dict[str, Any] = field(default_factory=dict)
    keyword_roles: dict[str, str] = field(default_factory=dict)

    def run(self, rounding: Callable[[str, Tensor], Tensor]) -> Any:
        """The function on arguments that `rounding` has been applied to."""
        roles = self.roles + (None,) * (len(self.args) - len(self.roles))
        args = [
            rounded_parts(rounding, role, value) if role else value
            for role, value in zip(roles, self.args, strict=True)
        ]
        named = {
            name: rounding(self.keyword_roles[name], value) if name in self.keyword_roles else value
            for name, value in self.kwargs.items()
        }
        return self.function(*args, **named)


def rounded_parts(rounding: Callable[[str, Tensor], Tensor], role: str, value: Any) -> Any:
    """A tensor rounded, also inside a tuple."""
    if isinstance(value, tuple):
        return tuple(rounded_parts(rounding, role, part) for part in value)
    return rounding(role, value) if isinstance(value, Tensor) else value


TWO = ("data_in", "data_in")
CELL = ("data_in", "hidden", "weight", "weight", "bias", "bias")
PRODUCT = ("data_in", "weight")
ADDED = ("bias", "data_in", "weight")
LAYER = ("data_in", "weight", "bias")
STATISTICS = ("data_in", None, None, "weight", "bias")


def function_example(op: Op) -> Call:
    """A call of the operation as a function."""
    torch.default_generator.manual_seed(0)
    return _calls().get(op.name) or _generic_call(op)


def _calls() -> dict[str, Call]:
    x, w, b = torch.randn(4, 6), torch.randn(3, 6), torch.randn(3)
    batch, other = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    image, four = torch.randn(2, 4, 6, 5), torch.randn(4)
    ranges = (torch.zeros(4), torch.ones(4))
    query = torch.randn(2, 2, 3, 4)
    return {
        "linear": Call(F.linear, (x, w, b), LAYER),
        "bilinear": Call(F.bilinear, (x, x, torch.randn(3, 6, 6), b), (*TWO, "weight", "bias")),
        "embedding": Call(F.embedding, (torch.tensor([0, 2]), w), (None, "weight")),
        "interpolate": Call(F.interpolate, (image,), kwargs={"scale_factor": 2.0}),
        "batch_norm": Call(F.batch_norm, (image, *ranges, four, four), STATISTICS),
        "instance_norm": Call(F.instance_norm, (image, None, None, four, four), STATISTICS),
        "layer_norm": Call(F.layer_norm, (batch, (4,), four, four), ("data_in", None, *LAYER[1:])),
        "group_norm": Call(F.group_norm, (image, 2, four, four), ("data_in", None, *LAYER[1:])),
        "rms_norm": Call(F.rms_norm, (batch, (4,), four), ("data_in", None, "weight")),
        "prelu": Call(F.prelu, (image, four), PRODUCT),
        "threshold": Call(F.threshold, (x, 0.1, 0.5)),
        "matmul": Call(torch.matmul, (batch, other), PRODUCT),
        "mm": Call(torch.mm, (x, w.T), PRODUCT),
        "mv": Call(torch.mv, (x, w[0]), PRODUCT),
        "bmm": Call(torch.bmm, (batch, other), PRODUCT),
        "baddbmm": Call(torch.baddbmm, (torch.randn(2, 3, 5), batch, other), ADDED),
        "addmm": Call(torch.addmm, (b, x, w.T), ADDED),
        "addmv": Call(torch.addmv, (b, w, x[0]), ADDED),
        "addbmm": Call(torch.addbmm, (torch.randn(3, 5), batch, other), ADDED),
        "dot": Call(torch.dot, (x[0], w[0]), PRODUCT),
        "inner": Call(torch.inner, (x, w), PRODUCT),
        "outer": Call(torch.outer, (x[0], b), PRODUCT),
        "tensordot": Call(torch.tensordot, (batch, other, ((0, 2), (0, 1))), PRODUCT),
        "vecdot": Call(torch.linalg.vecdot, (x, w[0]), PRODUCT),
        "einsum": Call(torch.einsum, ("bij,bjk->bik", batch, other), (None, *PRODUCT)),
        "scaled_dot_product_attention": Call(
            F.scaled_dot_product_attention, (query, query + 1, query * 2), ("query", "key", "value")
        ),
        "norm": Call(torch.norm, (x,)),
        "masked_softmax": Call(masked_softmax, (x, x > 0, -1)),
        **{f"{kind}_cell": cell_call(kind, gates) for kind, gates in GATES.items()},
        "clamp": Call(torch.clamp, (x, -0.5, 0.5)),
        "max": Call(torch.max, (x, x.flip(0)), TWO),
        "min": Call(torch.min, (x, x.flip(0)), TWO),
    }


GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def cell_call(kind: str, gates: int) -> Call:
    state = torch.randn(2, 3)
    weights = (torch.randn(gates * 3, 6), torch.randn(gates * 3, 3))
    biases = (torch.randn(gates * 3), torch.randn(gates * 3))
    function = getattr(torch, {"rnn": "rnn_tanh_cell"}.get(kind, f"{kind}_cell"))
    hidden = (state, torch.randn(2, 3)) if kind == "lstm" else state
    return Call(function, (torch.randn(2, 6), hidden, *weights, *biases), CELL)


def _generic_call(op: Op) -> Call:
    function = op.functions[0]
    dims = int(op.name[-2]) if op.name.endswith("d") and op.name[-2].isdigit() else 2
    image = torch.randn(2, 4, *place(dims))
    if op.name.startswith("conv"):
        transposed = "transpose" in op.name
        weight = torch.randn(4, 3, *[3] * dims) if transposed else torch.randn(6, 2, *[3] * dims)
        settings = {"stride": 2, "padding": 1, "groups": 2}
        return Call(function, (image, weight, torch.randn(6)), LAYER, settings)
    if "pool" in op.name:
        settings = {"output_size": 2} if op.name.startswith("fractional") else {}
        return Call(
            function, (image, *_pool_settings(op.name)[: 2 - len(settings)]), kwargs=settings
        )
    if op.inputs == TWO:
        return Call(function, (positive(4, 6), positive(4, 6)), TWO)
    dim = {"dim": 1} if op.name in NEEDS_DIM else {}
    return Call(function, (positive(4, 6),), kwargs=dim)


NEEDS_DIM = {"softmax", "softmin", "log_softmax", "glu", "logsumexp", "amax", "amin", "cumsum"}
