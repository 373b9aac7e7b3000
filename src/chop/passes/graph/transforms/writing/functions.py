"""Forms of functions."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from chop.ir.call import NodeCall
from chop.ops.composed import attention_mask, masked_softmax
from chop.ops.op import Reads
from chop.passes.graph.transforms.fusion import recorded_result_shape
from chop.passes.graph.transforms.writing.nodes import (
    NotCovered,
    Rewriting,
    map_dimension,
    written_as,
)

HIDES = -1e4
"""Numbers below this, added to what a softmax reads, hide it."""


def is_transposed(node: fx.Node) -> bool:
    """Return True for an attribute of a tensor that is the tensor with dimensions swapped."""
    return node.target is getattr and node.args[1] in ("T", "mT")


@written_as("getattr")
def write_transposed(of: Rewriting) -> Any:
    """Two dimensions swapped."""
    if not is_transposed(of.call.node):
        raise NotCovered
    return of.proxy().transpose(-2, -1)


@written_as("glu")
def write_glu(of: Rewriting) -> Any:
    """Half gates half."""
    parts = of.proxy().chunk(2, of.dim(default=-1))
    return parts[0] * parts[1].sigmoid()


@written_as("instance_norm1d", "instance_norm2d", "instance_norm3d", "instance_norm")
def write_instance_norm(of: Rewriting) -> Any:
    """A group for each channel, where the statistics are those of the sample."""
    if of.setting("track_running_stats", False) or of.setting("use_input_stats", True) is False:
        raise NotCovered
    affine = of.parameter("weight"), of.parameter("bias")
    return F.group_norm(of.proxy(), of.shape[1], *affine, of.setting("eps", 1e-5))


@written_as("softmin", "softmax2d", "softmax")
def write_softmax(of: Rewriting) -> Any:
    """The softmax of other numbers, or of what a mask leaves visible."""
    assert of.call.op is not None
    if of.call.op.name == "softmax2d":
        return F.softmax(of.proxy(), -3)
    if of.call.op.name == "softmin":
        return F.softmax(-of.proxy(), of.dim())
    logits, visible = visible_part(of)
    node = of.tracer.graph.call_function(masked_softmax, (logits.node, visible.node, of.dim()))
    return fx.Proxy(node, of.tracer)


def visible_part(of: Rewriting) -> tuple[Any, Any]:
    """Return what a softmax reads before it was masked, and truth values of what is visible."""

    def proxy(value: Any) -> Any:
        return fx.Proxy(value, of.tracer)

    source = of.call.node.all_input_nodes[0]
    call = NodeCall.of(source, of.call.modules) if source.op.startswith("call_") else None
    name = call.op.name if call is not None and call.op is not None else ""
    values = list(call.arguments.values()) if call is not None else []
    if name == "masked_fill" and hides(values[2]):
        return proxy(values[0]), ~proxy(values[1])
    if name == "where" and hides(values[2]):
        return proxy(values[1]), proxy(values[0])
    if name == "where" and hides(values[1]):
        return proxy(values[2]), ~proxy(values[0])
    hidden = (
        next((each for each in values[:2] if hides_some(each)), None) if name == "add" else None
    )
    if hidden is None:
        raise NotCovered
    logits = next(each for each in values if each is not hidden)
    mask = proxy(hidden)
    return proxy(logits) + mask.clamp(min=HIDES) * (mask > HIDES), mask > HIDES


def hides_some(value: Any) -> bool:
    """Return True for a constant, or a part of one, with numbers that hide what reads them."""
    while isinstance(value, fx.Node) and value.op.startswith("call_") and value.all_input_nodes:
        op = NodeCall.of(value).op
        if op is None or op.reads not in (Reads.MOVED, Reads.SAME):
            return False
        value = value.all_input_nodes[0]
    if not isinstance(value, fx.Node) or value.op != "get_attr" or not value.graph.owning_module:
        return False
    stored = operator.attrgetter(str(value.target))(value.graph.owning_module)
    return stored.is_floating_point() and float(stored.min()) < HIDES


def hides(value: Any) -> bool:
    """Return True for a number, or a constant of one, that hides what it is put in the place of."""
    if isinstance(value, fx.Node) and value.op == "call_function":
        value = next((each for each in value.args if isinstance(each, int | float)), value)
    if isinstance(value, fx.Node) and value.op == "get_attr" and value.graph.owning_module:
        stored = operator.attrgetter(str(value.target))(value.graph.owning_module)
        value = float(stored.max()) if isinstance(stored, Tensor) and stored.numel() else value
    return isinstance(value, int | float) and value < HIDES


@written_as("log_softmax")
def write_log_softmax(of: Rewriting) -> Any:
    """Differences from the largest, less the logarithm of the sum of their exponentials."""
    dim, x = of.dim(), of.proxy()
    apart = x - x.amax(dim, True)
    return apart - apart.exp().sum(dim, True).log()


@written_as("logsumexp")
def write_logsumexp(of: Rewriting) -> Any:
    """The largest, and the logarithm of the sum of exponentials of differences from it."""
    dim, x = of.dim(), of.proxy()
    largest, kept = x.amax(dim, True), bool(of.setting("keepdim", False))
    found = largest + (x - largest).exp().sum(dim, True).log()
    return found if kept else found.squeeze(dim)


@written_as("var", "std")
def write_variance(of: Rewriting) -> Any:
    """The mean of squared differences from the mean."""
    assert of.call.op is not None
    dim, x, kept = of.dim(), of.proxy(), bool(of.setting("keepdim", False))
    lost = of.setting("correction", int(of.setting("unbiased", True)))
    count = of.shape[dim]
    if not isinstance(lost, int) or count <= lost:
        raise NotCovered
    apart = x - x.mean(dim, True)
    found = (apart * apart).mean(dim, kept) * (count / (count - lost))
    return found.sqrt() if of.call.op.name == "std" else found


@written_as("norm")
def write_norm(of: Rewriting) -> Any:
    """The root of the sum of squares."""
    if of.setting("p", of.setting("ord", 2)) not in (2, 2.0, "fro", None):
        raise NotCovered
    x = of.proxy()
    return (x * x).sum(of.dim(), bool(of.setting("keepdim", False))).sqrt()


def of_length_one(of: Rewriting, node: Any, dim: int) -> Any:
    """Return numbers divided by their root mean square, and by the root of their count."""
    shape = recorded_result_shape(node)
    if shape is None:
        raise NotCovered
    x: Any = fx.Proxy(node, of.tracer)
    count, is_last = shape[dim], dim % len(shape) == len(shape) - 1
    turned = x if is_last else x.transpose(dim, -1)
    found = F.rms_norm(turned, (count,), None, 1e-12) * count**-0.5
    return found if is_last else found.transpose(dim, -1)


@written_as("normalize")
def write_normalised(of: Rewriting) -> Any:
    """Numbers divided by their length."""
    named: Any = dict(zip(("input", "p", "dim"), of.call.node.args, strict=False))
    named |= of.call.node.kwargs
    if named.get("p", 2.0) != 2 or not isinstance(named.get("dim", 1), int):
        raise NotCovered
    return of_length_one(of, named["input"], named.get("dim", 1))


@written_as("cosine_similarity")
def write_cosine(of: Rewriting) -> Any:
    """The sum of products of numbers divided by their lengths."""
    named: Any = dict(zip(("x1", "x2", "dim"), of.call.node.args, strict=False))
    named |= of.call.node.kwargs
    dim = named.get("dim", 1)
    one, other = (of_length_one(of, named[name], dim) for name in ("x1", "x2"))
    return (one * other).sum(dim)


@written_as("clamp_max", "clamp_min")
def write_limit(of: Rewriting) -> Any:
    """A limit on one side."""
    source: Any
    source, value = of.call.node.args
    side = str(getattr(of.call.node.target, "__name__", of.call.node.target)).partition("_")[2]
    return fx.Proxy(source, of.tracer).clamp(**{side: value})


@written_as("max", "min")
def write_extreme(of: Rewriting) -> Any:
    """The largest of a dimension without its place, or the larger of two."""
    assert of.call.op is not None
    largest, node = of.call.op.name == "max", of.call.node
    second = list(of.call.arguments.values())[1:2]
    if second and isinstance(second[0], fx.Node):
        return (torch.maximum if largest else torch.minimum)(of.proxy(0), of.proxy(1))
    dim = of.dim("other") if "other" in of.call.arguments else of.dim()
    chosen = [user for user in node.users if takes_values(user)]
    if not second or len(chosen) != len(node.users):
        raise NotCovered
    kept = list(of.call.arguments.values())[2:3] or [of.setting("keepdim", False)]
    found: Any = (torch.amax if largest else torch.amin)(of.proxy(), dim, bool(kept[0]))
    for user in chosen:
        found.node.meta = dict(user.meta)
        user.replace_all_uses_with(found.node)
    return found


def takes_values(user: fx.Node) -> bool:
    """Return True for a node that takes the numbers of a pair of numbers and places."""
    chosen = user.args[1:2] == (0,) and user.target is operator.getitem
    return chosen or (user.target is getattr and user.args[1:2] == ("values",))


@written_as("where", "masked_fill")
def write_choice(of: Rewriting) -> Any:
    """Both, each times whether it is chosen."""
    assert of.call.op is not None
    if of.call.op.name == "where":
        chosen, one, other = (of.proxy(place) for place in range(3))
    else:
        other, chosen, one = (of.proxy(place) for place in range(3))
    if any(isinstance(each, int | float) and abs(each) > -HIDES for each in (one, other)):
        raise NotCovered
    if any(hides(getattr(each, "node", None)) for each in (one, other)):
        raise NotCovered
    share = chosen.float()
    return share * one + (1 - share) * other


@written_as("attention_mask")
def write_attention_mask(of: Rewriting) -> Any:
    """A mask that is the same for every row, which is computed once."""
    mask, padding, heads, like = (*of.call.node.args, *of.call.node.kwargs.values())
    if isinstance(padding, fx.Node) and padding.op != "get_attr":
        raise NotCovered
    rank = len(recorded_result_shape(like) or ()) if isinstance(like, fx.Node) else 0
    constant = of.constant(torch.zeros((1,) * rank)).node
    args = (mask, padding, heads, constant)
    return fx.Proxy(of.tracer.graph.call_function(attention_mask, args), of.tracer)


@written_as("div")
def write_quotient(of: Rewriting) -> Any:
    """A product with the reciprocal of what varies."""
    divisor = list(of.call.arguments.values())[1]
    if not isinstance(divisor, fx.Node) or divisor.op == "get_attr" or of.setting("rounding_mode"):
        raise NotCovered
    facts = divisor.meta["mase"]["common"]["results"].get("data_out_0", {})
    if "torch_dtype" not in facts:  # a number
        raise NotCovered
    return of.proxy(0) * of.proxy(1).reciprocal()


@written_as("addmm", "baddbmm")
def write_added_product(of: Rewriting) -> Any:
    """A product of matrices, and a sum."""
    if of.setting("beta", 1) != 1 or of.setting("alpha", 1) != 1:
        raise NotCovered
    return torch.matmul(of.proxy(1), of.proxy(2)) + of.proxy(0)


@written_as("cumsum")
def write_running_sum(of: Rewriting) -> Any:
    """A product with a triangle of ones."""
    return map_dimension(of, of.proxy(), of.dim(), torch.ones(2 * [of.shape[of.dim()]]).tril())
