"""Activations: one tensor in, one of the same shape out."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ops import cost, stepwise
from chop.ops.op import MaseType, Op, Reads, takes
from chop.ops.torch_names import named_functions, named_methods


def activation_row(
    name: str, module: type[nn.Module], flops: int, *settings: str, **facts: Any
) -> Op:
    """An activation: its functions and methods are those of torch with its name.

    Args:
        flops: FLOPs for each element.
        settings: further arguments of the function, in order.
        facts: other fields of the row.
    """
    fields: dict[str, Any] = {
        "mase_type": MaseType.MODULE_RELATED_FUNC,
        "description": f"Activation {name}, element by element",
        "functions": named_functions(name),
        "methods": named_methods(name),
        "arguments": takes("input:data_in", *settings),
        "cost": cost.elementwise_cost(flops),
        "reads": Reads.PLACE,
    }
    return Op(name=name, module=module, **fields | facts)


def dtype_third(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the arguments of `torch.softmax`, where a private one comes third in `F`."""

    def run(
        input: Tensor,  # noqa: A002 -- the name that callers use
        dim: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        return function(input, dim, dtype=dtype)

    return run


PRELU = Op(
    name="prelu",
    mase_type=MaseType.MODULE_RELATED_FUNC,
    description="Activation prelu, with a learned slope",
    module=nn.PReLU,
    functions=named_functions("prelu"),
    methods=named_methods("prelu"),
    arguments=takes("input:data_in", "weight:"),
    aten=("_prelu_kernel",),
    params=("weight",),
    cost=cost.elementwise_cost(2),
    reads=Reads.PLACE,
)

ACTIVATIONS = [
    # Negative inputs give zero anyway, so the sign bit is better spent on range.
    activation_row(
        "relu",
        nn.ReLU,
        1,
        "inplace",
        unsigned=frozenset({"data_in"}),
        selects=True,
        limits=True,
        never_negative=True,
        homogeneous=True,
    ),
    activation_row("relu6", nn.ReLU6, 2, "inplace", selects=True, limits=True, never_negative=True),
    activation_row("leaky_relu", nn.LeakyReLU, 2, "negative_slope", "inplace", homogeneous=True),
    PRELU,
    activation_row(
        "rrelu", nn.RReLU, 2, "lower", "upper", "training", "inplace", aten=("rrelu_with_noise",)
    ),
    activation_row("elu", nn.ELU, 3, "alpha", "inplace"),
    activation_row("celu", nn.CELU, 4, "alpha", "inplace"),
    activation_row("selu", nn.SELU, 4, "inplace"),
    activation_row("gelu", nn.GELU, 5),
    activation_row("silu", nn.SiLU, 4, "inplace"),
    activation_row("mish", nn.Mish, 5, "inplace"),
    activation_row("sigmoid", nn.Sigmoid, 3, never_negative=True),
    activation_row("logsigmoid", nn.LogSigmoid, 3, aten=("log_sigmoid", "log_sigmoid_forward")),
    activation_row("tanh", nn.Tanh, 4),
    activation_row("tanhshrink", nn.Tanhshrink, 5),
    activation_row(
        "hardtanh", nn.Hardtanh, 2, "min_val", "max_val", "inplace", selects=True, limits=True
    ),
    activation_row("hardswish", nn.Hardswish, 5, "inplace"),
    activation_row("hardsigmoid", nn.Hardsigmoid, 4, "inplace", never_negative=True),
    activation_row("hardshrink", nn.Hardshrink, 2, "lambd"),
    activation_row("softshrink", nn.Softshrink, 3, "lambd"),
    activation_row("softplus", nn.Softplus, 3, "beta", "threshold"),
    activation_row("softsign", nn.Softsign, 3),
    activation_row("threshold", nn.Threshold, 1, "threshold", "value", "inplace"),
    activation_row(
        "glu",
        nn.GLU,
        4,
        "dim",
        description="Gated linear unit: half gates half",
        reads=Reads.ALL,
    ),
    activation_row(
        "softmax",
        nn.Softmax,
        5,
        "dim",
        description="Exponentials that sum to one",
        run=stepwise.softmax,
        forward=stepwise.layer_form(stepwise.softmax, "dim"),
        inner=("data_in", stepwise.TABLE),
        unsigned=frozenset({stepwise.TABLE}),
        never_negative=True,
        reads=Reads.ALL,
        aten=("_softmax",),
    ),
    activation_row(
        "softmin",
        nn.Softmin,
        6,
        "dim",
        description="Softmax of the negated input",
        reads=Reads.ALL,
    ),
    activation_row(
        "log_softmax",
        nn.LogSoftmax,
        5,
        "dim",
        description="Logarithm of softmax",
        run=dtype_third(F.log_softmax),
        reads=Reads.ALL,
        aten=("_log_softmax",),
    ),
    activation_row(
        "softmax2d",
        nn.Softmax2d,
        5,
        mase_type=MaseType.MODULE,
        description="Softmax over the channels of each place",
        reads=Reads.ALL,
    ),
]
