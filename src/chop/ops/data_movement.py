"""What computes nothing: values moved, selected, compared, described or made."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from chop.ops import composed, cost
from chop.ops.op import MaseType, Op, Order, Reads, takes
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


def moved(name: str, description: str, order: Order = Order.KEPT, **facts: Any) -> Op:
    """A row for a function that gives elements of its operand in other places."""
    return implicit(name, description, order=order, **{"reads": Reads.MOVED} | facts)


def same(name: str, description: str, **facts: Any) -> Op:
    """A row for what gives, in evaluation, the numbers that it is given."""
    return implicit(name, description, reads=Reads.SAME, **facts)


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
    same(name, description, module=module)
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
    moved(
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
    moved("view", "Another shape, same memory", aliases=("view_as",), aten=("_unsafe_view",)),
    moved("reshape", "Another shape", aliases=("reshape_as",)),
    moved("flatten", "Several dimensions made one", module=nn.Flatten, aliases=("ravel",)),
    moved("unflatten", "One dimension made several", module=nn.Unflatten),
    moved("transpose", "Two dimensions swapped", Order.ANY, aliases=("swapaxes", "swapdims")),
    moved("t", "A matrix transposed", Order.ANY),
    moved("permute", "Dimensions in another order", Order.ANY, aliases=("movedim",)),
    moved("squeeze", "Dimensions of size one dropped"),
    moved("unsqueeze", "A dimension of size one added"),
    moved("expand", "Sizes of one repeated without copying", Order.ANY, aliases=("expand_as",)),
    moved("broadcast_to", "Expanded to a shape", Order.ANY),
    moved("repeat", "Repeated along dimensions", aliases=("repeat_interleave",)),
    moved("tile", "Repeated as tiles"),
    same("contiguous", "The same values in dense memory", order=Order.DENSE),
    same("clone", "A copy", aten=("lift_fresh_copy",)),
    same("detach", "The same values without their gradient"),
    moved(
        "getitem",
        "A part chosen by index",
        Order.ANY,
        operators=(operator.getitem,),
        aten=("slice", "index"),
    ),
    implicit("setitem", "A part replaced", operators=(operator.setitem,)),
    implicit(
        "getattr",
        "An attribute such as the shape",
        operators=(getattr,),
        reads=Reads.SHAPE,
    ),
    moved("split", "Parts of given sizes", Order.ANY, aliases=("split_with_sizes", "tensor_split")),
    moved("chunk", "A given number of parts", Order.ANY),
    moved("unbind", "Parts along a dimension", Order.ANY),
    moved("narrow", "A range of a dimension", Order.ANY),
    moved("select", "One index of a dimension", Order.ANY),
    moved("index_select", "Indices of a dimension"),
    implicit("gather", "Elements chosen by index"),
    moved("flip", "A dimension reversed", Order.ANY),
    moved("roll", "A dimension rotated", Order.ANY),
    moved("pad", "A border added", functions=(F.pad,), methods=(), aten=("constant_pad_nd",)),
    implicit("unfold", "Sliding windows", module=nn.Unfold, aten=("im2col",), reads=Reads.SUMMED),
    moved("pixel_shuffle", "Channels moved to space", module=nn.PixelShuffle),
    moved("pixel_unshuffle", "Space moved to channels", module=nn.PixelUnshuffle),
    moved("channel_shuffle", "Channels interleaved", module=nn.ChannelShuffle),
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
    implicit("size", "The shape or one size of it", reads=Reads.SHAPE, aten=("sym_size",)),
    implicit("dim", "The number of dimensions", reads=Reads.SHAPE),
    implicit("numel", "The number of elements", reads=Reads.SHAPE, aten=("sym_numel",)),
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

IDENTITY = same(
    "identity",
    "The input itself",
    mase_type=MaseType.MODULE_RELATED_FUNC,
    module=nn.Identity,
    functions=(),
    methods=(),
)

DATA_MOVEMENT = [IDENTITY, *DROPOUTS, *JOINS, *MOVES, *FACTS, *COMPARISONS]
