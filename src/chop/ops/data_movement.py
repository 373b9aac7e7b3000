"""Operations that compute nothing: values moved, selected, compared, described or made."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from chop.ops import composed, cost
from chop.ops.op import MaseType, Op, Order, Reads, takes
from chop.ops.torch_names import named_functions, named_methods

IMPLICIT = MaseType.IMPLICIT_FUNC


def implicit_row(name: str, description: str, **facts: Any) -> Op:
    """A row for a function that leaves values as they are."""
    names = (name, *facts.pop("aliases", ()))
    fields: dict[str, Any] = {
        "mase_type": IMPLICIT,
        "functions": named_functions(*names) + facts.pop("operators", ()),
        "methods": named_methods(*names),
        "cost": cost.free,
        "quantizable": False,
    }
    return Op(name=name, description=description, **fields | facts)


def movement_row(name: str, description: str, order: Order = Order.KEPT, **facts: Any) -> Op:
    """A row for a function that gives elements of its operand in other places."""
    return implicit_row(name, description, order=order, **{"reads": Reads.MOVED} | facts)


def identity_row(name: str, description: str, **facts: Any) -> Op:
    """A row for what gives, in evaluation, the numbers that it is given."""
    return implicit_row(name, description, reads=Reads.SAME, **facts)


def comparison_row(name: str, description: str, *operators: Any) -> Op:
    """A row for a comparison or a logical operation: truth values out, one FLOP an element."""
    return implicit_row(
        name,
        description,
        operators=operators,
        arguments=takes("input:data_in", "other:data_in"),
        cost=cost.elementwise_cost(1),
    )


DROPOUTS = [
    identity_row(name, description, module=module)
    for name, module, description in (
        ("dropout", nn.Dropout, "Elements set to zero at random in training"),
        ("dropout1d", nn.Dropout1d, "Channels set to zero at random in training"),
        ("dropout2d", nn.Dropout2d, "Channels set to zero at random in training"),
        ("dropout3d", nn.Dropout3d, "Channels set to zero at random in training"),
        ("alpha_dropout", nn.AlphaDropout, "Dropout that keeps mean and variance"),
        ("feature_alpha_dropout", nn.FeatureAlphaDropout, "Alpha dropout of whole channels"),
    )
]

JOINS = [
    movement_row(
        name,
        description,
        order,
        mase_type=MaseType.BUILTIN_FUNC,
        aliases=aliases,
        arguments=takes("tensors:data_in", "dim"),
    )
    for name, order, aliases, description in (
        ("cat", Order.KEPT, ("concat", "concatenate"), "Tensors joined along a dimension"),
        ("stack", Order.DENSE, (), "Tensors joined along a new dimension"),
    )
]

MOVES = [
    movement_row(
        "view", "Another shape, same memory", aliases=("view_as",), aten=("_unsafe_view",)
    ),
    movement_row("reshape", "Another shape", aliases=("reshape_as",)),
    movement_row("flatten", "Several dimensions made one", module=nn.Flatten, aliases=("ravel",)),
    movement_row("unflatten", "One dimension made several", module=nn.Unflatten),
    movement_row(
        "transpose", "Two dimensions swapped", Order.ANY, aliases=("swapaxes", "swapdims")
    ),
    movement_row("t", "A matrix transposed", Order.ANY),
    movement_row("permute", "Dimensions in another order", Order.ANY, aliases=("movedim",)),
    movement_row("squeeze", "Dimensions of size one dropped"),
    movement_row("unsqueeze", "A dimension of size one added"),
    movement_row(
        "expand", "Sizes of one repeated without copying", Order.ANY, aliases=("expand_as",)
    ),
    movement_row("broadcast_to", "Expanded to a shape", Order.ANY),
    movement_row("repeat", "Repeated along dimensions", aliases=("repeat_interleave",)),
    movement_row("tile", "Repeated as tiles"),
    identity_row("contiguous", "The same values in dense memory", order=Order.DENSE),
    identity_row("clone", "A copy", aten=("lift_fresh_copy",)),
    identity_row("detach", "The same values without their gradient"),
    movement_row(
        "getitem",
        "A part chosen by index",
        Order.ANY,
        operators=(operator.getitem,),
        aten=("slice", "index"),
    ),
    implicit_row("setitem", "A part replaced", operators=(operator.setitem,)),
    implicit_row(
        "getattr",
        "An attribute such as the shape",
        operators=(getattr,),
        reads=Reads.SHAPE,
    ),
    movement_row(
        "split", "Parts of given sizes", Order.ANY, aliases=("split_with_sizes", "tensor_split")
    ),
    movement_row("chunk", "A given number of parts", Order.ANY),
    movement_row("unbind", "Parts along a dimension", Order.ANY),
    movement_row("narrow", "A range of a dimension", Order.ANY),
    movement_row("select", "One index of a dimension", Order.ANY),
    movement_row("index_select", "Indices of a dimension"),
    implicit_row("gather", "Elements chosen by index"),
    movement_row("flip", "A dimension reversed", Order.ANY),
    movement_row("roll", "A dimension rotated", Order.ANY),
    movement_row(
        "pad", "A border added", functions=(F.pad,), methods=(), aten=("constant_pad_nd",)
    ),
    implicit_row(
        "unfold", "Sliding windows", module=nn.Unfold, aten=("im2col",), reads=Reads.SUMMED
    ),
    movement_row("pixel_shuffle", "Channels moved to space", module=nn.PixelShuffle),
    movement_row("pixel_unshuffle", "Space moved to channels", module=nn.PixelUnshuffle),
    movement_row("channel_shuffle", "Channels interleaved", module=nn.ChannelShuffle),
    implicit_row(
        "where",
        "One or other by a condition",
        arguments=takes("condition", "input:data_in", "other:data_in"),
    ),
    implicit_row("masked_fill", "Chosen elements replaced"),
    implicit_row(
        "attention_mask",
        "Masks of attention as numbers to add to its scores",
        functions=(composed.attention_mask,),
        methods=(),
        arguments=takes("attn_mask", "key_padding_mask", "num_heads", "like"),
    ),
    implicit_row("tril", "Lower triangle"),
    implicit_row("triu", "Upper triangle"),
    implicit_row(
        "argmax",
        "Index of the largest element",
        cost=cost.reduction_cost,
        arguments=takes("input:data_in", "dim", "keepdim"),
    ),
    implicit_row(
        "argmin",
        "Index of the smallest element",
        cost=cost.reduction_cost,
        arguments=takes("input:data_in", "dim", "keepdim"),
    ),
    implicit_row("max_unpool1d", "Elements put back where a pool took them", module=nn.MaxUnpool1d),
    implicit_row("max_unpool2d", "Elements put back where a pool took them", module=nn.MaxUnpool2d),
    implicit_row("max_unpool3d", "Elements put back where a pool took them", module=nn.MaxUnpool3d),
]

FACTS = [
    implicit_row("size", "The shape or one size of it", reads=Reads.SHAPE, aten=("sym_size",)),
    implicit_row("dim", "The number of dimensions", reads=Reads.SHAPE),
    implicit_row("numel", "The number of elements", reads=Reads.SHAPE, aten=("sym_numel",)),
    implicit_row("item", "The only element as a number", aten=("_local_scalar_dense",)),
    implicit_row(
        "to", "Another device or number type", aliases=("type_as", "type"), aten=("_to_copy",)
    ),
    implicit_row("float", "As float32", functions=(), aliases=("half", "double", "bfloat16")),
    implicit_row("long", "As integers", functions=(), aliases=("int", "bool")),
    implicit_row("zeros", "Zeros", aliases=("zeros_like", "new_zeros")),
    implicit_row("ones", "Ones", aliases=("ones_like", "new_ones")),
    implicit_row("full", "One value", aliases=("full_like", "new_full")),
    implicit_row("arange", "Consecutive numbers"),
    implicit_row("tensor", "A tensor from numbers"),
    implicit_row(
        "_assert",
        "A check",
        functions=(torch._assert,),
        methods=(),
        aten=("_assert_async", "_assert_scalar", "_assert_tensor_metadata"),
    ),
]

COMPARISONS = [
    comparison_row("eq", "Equal", operator.eq),
    comparison_row("ne", "Not equal", operator.ne),
    comparison_row("lt", "Less", operator.lt),
    comparison_row("le", "Less or equal", operator.le),
    comparison_row("gt", "Greater", operator.gt),
    comparison_row("ge", "Greater or equal", operator.ge),
    comparison_row("logical_not", "Not", operator.not_, operator.invert),
    comparison_row("logical_and", "And", operator.and_),
    comparison_row("logical_or", "Or", operator.or_),
]

IDENTITY = identity_row(
    "identity",
    "The input itself",
    mase_type=MaseType.MODULE_RELATED_FUNC,
    module=nn.Identity,
    functions=(),
    methods=(),
)

DATA_MOVEMENT = [IDENTITY, *DROPOUTS, *JOINS, *MOVES, *FACTS, *COMPARISONS]
