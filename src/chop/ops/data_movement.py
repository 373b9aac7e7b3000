"""What computes nothing: values moved, selected, compared, described or made."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from chop.ops import composed, cost
from chop.ops.op import MaseType, Op, takes
from chop.ops.torch_names import named_functions, named_methods

IMPLICIT = MaseType.IMPLICIT_FUNC


def implicit(name: str, description: str, **facts: Any) -> Op:
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


def comparison(name: str, description: str, *operators: Any) -> Op:
    """A row for a comparison or a logical operation: truth values out, one FLOP an element."""
    return implicit(
        name,
        description,
        operators=operators,
        arguments=takes("input:data_in", "other:data_in"),
        cost=cost.elementwise(1),
    )


DROPOUTS = [
    implicit(name, description, module=module)
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
    implicit(
        name,
        description,
        mase_type=MaseType.BUILTIN_FUNC,
        aliases=aliases,
        arguments=takes("tensors:data_in", "dim"),
    )
    for name, aliases, description in (
        ("cat", ("concat", "concatenate"), "Tensors joined along a dimension"),
        ("stack", (), "Tensors joined along a new dimension"),
    )
]

MOVES = [
    implicit("view", "Another shape, same memory", aliases=("view_as",), aten=("_unsafe_view",)),
    implicit("reshape", "Another shape", aliases=("reshape_as",)),
    implicit("flatten", "Several dimensions made one", module=nn.Flatten, aliases=("ravel",)),
    implicit("unflatten", "One dimension made several", module=nn.Unflatten),
    implicit("transpose", "Two dimensions swapped", aliases=("swapaxes", "swapdims")),
    implicit("t", "A matrix transposed"),
    implicit("permute", "Dimensions in another order", aliases=("movedim",)),
    implicit("squeeze", "Dimensions of size one dropped"),
    implicit("unsqueeze", "A dimension of size one added"),
    implicit("expand", "Sizes of one repeated without copying", aliases=("expand_as",)),
    implicit("broadcast_to", "Expanded to a shape"),
    implicit("repeat", "Repeated along dimensions", aliases=("repeat_interleave",)),
    implicit("tile", "Repeated as tiles"),
    implicit("contiguous", "The same values in dense memory"),
    implicit("clone", "A copy", aten=("lift_fresh_copy",)),
    implicit("detach", "The same values without their gradient"),
    implicit(
        "getitem",
        "A part chosen by index",
        operators=(operator.getitem,),
        aten=("slice", "index"),
    ),
    implicit("setitem", "A part replaced", operators=(operator.setitem,)),
    implicit("getattr", "An attribute such as the shape", operators=(getattr,)),
    implicit("split", "Parts of given sizes", aliases=("split_with_sizes", "tensor_split")),
    implicit("chunk", "A given number of parts"),
    implicit("unbind", "Parts along a dimension"),
    implicit("narrow", "A range of a dimension"),
    implicit("select", "One index of a dimension"),
    implicit("index_select", "Indices of a dimension"),
    implicit("gather", "Elements chosen by index"),
    implicit("flip", "A dimension reversed"),
    implicit("roll", "A dimension rotated"),
    implicit("pad", "A border added", functions=(F.pad,), methods=(), aten=("constant_pad_nd",)),
    implicit("unfold", "Sliding windows", module=nn.Unfold, aten=("im2col",)),
    implicit("pixel_shuffle", "Channels moved to space", module=nn.PixelShuffle),
    implicit("pixel_unshuffle", "Space moved to channels", module=nn.PixelUnshuffle),
    implicit("channel_shuffle", "Channels interleaved", module=nn.ChannelShuffle),
    implicit(
        "where",
        "One or other by a condition",
        arguments=takes("condition", "input:data_in", "other:data_in"),
    ),
    implicit("masked_fill", "Chosen elements replaced"),
    implicit(
        "attention_mask",
        "Masks of attention as numbers to add to its scores",
        functions=(composed.attention_mask,),
        methods=(),
        arguments=takes("attn_mask", "key_padding_mask", "num_heads", "like"),
    ),
    implicit("tril", "Lower triangle"),
    implicit("triu", "Upper triangle"),
    implicit("argmax", "Index of the largest element", cost=cost.reduction),
    implicit("argmin", "Index of the smallest element", cost=cost.reduction),
    implicit("max_unpool1d", "Elements put back where a pool took them", module=nn.MaxUnpool1d),
    implicit("max_unpool2d", "Elements put back where a pool took them", module=nn.MaxUnpool2d),
    implicit("max_unpool3d", "Elements put back where a pool took them", module=nn.MaxUnpool3d),
]

FACTS = [
    implicit("size", "The shape or one size of it", aten=("sym_size",)),
    implicit("dim", "The number of dimensions"),
    implicit("numel", "The number of elements", aten=("sym_numel",)),
    implicit("item", "The only element as a number", aten=("_local_scalar_dense",)),
    implicit(
        "to", "Another device or number type", aliases=("type_as", "type"), aten=("_to_copy",)
    ),
    implicit("float", "As float32", functions=(), aliases=("half", "double", "bfloat16")),
    implicit("long", "As integers", functions=(), aliases=("int", "bool")),
    implicit("zeros", "Zeros", aliases=("zeros_like", "new_zeros")),
    implicit("ones", "Ones", aliases=("ones_like", "new_ones")),
    implicit("full", "One value", aliases=("full_like", "new_full")),
    implicit("arange", "Consecutive numbers"),
    implicit("tensor", "A tensor from numbers"),
    implicit(
        "_assert",
        "A check",
        functions=(torch._assert,),
        methods=(),
        aten=("_assert_async", "_assert_scalar", "_assert_tensor_metadata"),
    ),
]

COMPARISONS = [
    comparison("eq", "Equal", operator.eq),
    comparison("ne", "Not equal", operator.ne),
    comparison("lt", "Less", operator.lt),
    comparison("le", "Less or equal", operator.le),
    comparison("gt", "Greater", operator.gt),
    comparison("ge", "Greater or equal", operator.ge),
    comparison("logical_not", "Not", operator.not_, operator.invert),
    comparison("logical_and", "And", operator.and_),
    comparison("logical_or", "Or", operator.or_),
]

IDENTITY = implicit(
    "identity",
    "The input itself",
    mase_type=MaseType.MODULE_RELATED_FUNC,
    module=nn.Identity,
    functions=(),
    methods=(),
)

DATA_MOVEMENT = [IDENTITY, *DROPOUTS, *JOINS, *MOVES, *FACTS, *COMPARISONS]
