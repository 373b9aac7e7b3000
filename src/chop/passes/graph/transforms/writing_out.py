"""Operations without integers of their own, written out as ones that have them.

Each form is a function of what a node reads. It is recorded in the place of the node, so that what
is between its parts is rounded, too. A node whose settings no form covers stays as it is.
"""

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.proxy import GraphAppendingTracer

from chop.ir.call import NodeCall
from chop.ir.graph.mase_graph import MaseGraph
from chop.ops.op import Reads
from chop.ops.stepwise import masked_softmax
from chop.passes.graph.transforms.folding import record_again
from chop.passes.graph.transforms.fusion import recorded_result_shape

HIDES = -1e4
"""Numbers below this, added to what a softmax reads, hide it."""
PADS = ("ReflectionPad", "ReplicationPad", "ConstantPad", "ZeroPad", "CircularPad")
ALIKE = {"rtol": 1e-4, "atol": 1e-5}


class NotCovered(Exception):
    """Settings that no form covers."""


@dataclass(frozen=True, eq=False)
class Written:
    """One node that is written out: what it reads, and how it is set."""

    call: NodeCall
    graph: MaseGraph
    tracer: GraphAppendingTracer

    def setting(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the layer or an argument of the function."""
        if self.call.layer is not None:
            return getattr(self.call.layer, name, default)
        found = self.call.arguments.get(name, default)
        if isinstance(found, fx.Node) and found.op == "get_attr":
            return fx.Proxy(found, self.tracer)
        return found

    def proxy(self, name: str | int = 0) -> Any:
        """Return what the node reads, by its place or name; numbers as they are."""
        values = self.call.arguments
        found = list(values.values())[name] if isinstance(name, int) else values.get(name)
        return fx.Proxy(found, self.tracer) if isinstance(found, fx.Node) else found

    @property
    def shape(self) -> list[int]:
        """The recorded shape of the first operand."""
        found = recorded_result_shape(self.call.node.all_input_nodes[0])
        if found is None:
            raise NotCovered
        return list(found)

    def dim(self, name: str = "dim", default: Any = None) -> int:
        """Return a dimension, counted from the end."""
        found = self.setting(name, default)
        if isinstance(found, list | tuple) and len(found) == 1:
            (found,) = found
        if not isinstance(found, int) or isinstance(found, bool):
            raise NotCovered
        rank = len(self.shape)
        return found % rank - rank

    def constant(self, tensor: Tensor) -> Any:
        """Return numbers that are the same for every row, as a buffer of the network."""
        name = f"written_{sum(1 for _ in self.graph.model.buffers())}"
        self.graph.model.register_buffer(name, tensor.detach().clone())
        return fx.Proxy(self.tracer.graph.get_attr(name), self.tracer)

    def stored(self, name: str) -> Any:
        """Return a parameter of the layer or function, None if there is none."""
        if self.call.layer is None:
            return self.setting(name)
        if getattr(self.call.layer, name, None) is None:
            return None
        return fx.Proxy(
            self.tracer.graph.get_attr(f"{self.call.node.target}.{name}"), self.tracer
        )

    def layer(self, module: nn.Module, x: Any) -> Any:
        """Return the result of a new layer."""
        name = f"written_{len(self.graph.model._modules)}"
        self.graph.model.add_submodule(name, module)
        return fx.Proxy(self.tracer.graph.call_module(name, (x.node,)), self.tracer)

    def run(self, x: Tensor) -> Tensor:
        """Return what the node computes of a tensor in place of its first operand."""
        first = self.call.node.all_input_nodes[0]
        if len(self.call.node.all_input_nodes) > 1:
            raise NotCovered
        args, kwargs = fx.node.map_arg(
            (self.call.node.args, self.call.node.kwargs), lambda n: x if n is first else n
        )
        with torch.no_grad():
            found: Tensor = self.call.in_float(*args, **kwargs)
        return found


Form = Callable[[Written], Any]
FORMS: dict[str, Form] = {}


def written_as(*names: str) -> Callable[[Form], Form]:
    """Decorator for the form of operations."""

    def add(function: Form) -> Form:
        FORMS.update(dict.fromkeys(names, function))
        return function

    return add


def write_out(graph: MaseGraph) -> list[str]:
    """Write out every node that has a form; return their names."""
    found = []
    for node in list(graph.nodes):
        call = NodeCall.of(node, graph.modules) if node.op.startswith("call_") else None
        form = None if call is None else form_of(call)
        if call is None or form is None:
            continue
        with graph.fx_graph.inserting_before(node):
            tracer = GraphAppendingTracer(graph.fx_graph)
            try:
                result = form(Written(call, graph, tracer))
            except NotCovered:
                continue
        result.node.meta = dict(node.meta)  # shapes, until they are recorded again
        node.replace_all_uses_with(result.node)
        found.append(node.name)
    if found:
        graph.fx_graph.eliminate_dead_code()
        graph.fx_graph.lint()
        graph.model.recompile()
        graph.model.delete_all_unused_submodules()
        record_again(graph)
    return found


def form_of(call: NodeCall) -> Form | None:
    """Return the form of a node, if it has one."""
    if call.op is not None:
        return FORMS.get(call.op.name)
    if call.node.target is F.normalize:
        return write_normalised
    return write_padding if type(call.module).__name__.startswith(PADS) else None


@written_as("glu")
def write_glu(of: Written) -> Any:
    """Half gates half."""
    parts = of.proxy().chunk(2, of.dim(default=-1))
    return parts[0] * parts[1].sigmoid()


@written_as("instance_norm1d", "instance_norm2d", "instance_norm3d", "instance_norm")
def write_instance_norm(of: Written) -> Any:
    """A group for each channel, where the statistics are those of the sample."""
    if of.setting("track_running_stats", False) or of.setting("use_input_stats", True) is False:
        raise NotCovered
    affine = of.stored("weight"), of.stored("bias")
    return F.group_norm(of.proxy(), of.shape[1], *affine, of.setting("eps", 1e-5))


@written_as("softmin", "softmax2d", "softmax")
def write_softmax(of: Written) -> Any:
    """The softmax of other numbers, or of what a mask leaves visible."""
    assert of.call.op is not None
    if of.call.op.name == "softmax2d":
        return F.softmax(of.proxy(), -3)
    if of.call.op.name == "softmin":
        return F.softmax(-of.proxy(), of.dim())
    logits, visible = visible_part(of)
    node = of.tracer.graph.call_function(masked_softmax, (logits.node, visible.node, of.dim()))
    return fx.Proxy(node, of.tracer)


def visible_part(of: Written) -> tuple[Any, Any]:
    """Return what a softmax reads before it was masked, and truth values of what is visible."""
    source = of.call.node.all_input_nodes[0]
    call = NodeCall.of(source, of.call.modules) if source.op.startswith("call_") else None
    name = call.op.name if call is not None and call.op is not None else ""
    values = list(call.arguments.values()) if call is not None else []
    if name == "masked_fill" and hides(values[2]):
        return fx.Proxy(values[0], of.tracer), ~fx.Proxy(values[1], of.tracer)
    if name == "where" and hides(values[2]):
        return fx.Proxy(values[1], of.tracer), fx.Proxy(values[0], of.tracer)
    hidden = next((each for each in values[:2] if hides_some(each)), None) if name == "add" else None
    if hidden is None:
        raise NotCovered
    logits = next(each for each in values if each is not hidden)
    mask = fx.Proxy(hidden, of.tracer)
    return fx.Proxy(logits, of.tracer) + mask.clamp(min=HIDES) * (mask > HIDES), mask > HIDES


def hides_some(value: Any) -> bool:
    """Return True for a constant, or a part of one, with numbers that hide what they are added to."""
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
def write_log_softmax(of: Written) -> Any:
    """Differences from the largest, less the logarithm of the sum of their exponentials."""
    dim, x = of.dim(), of.proxy()
    apart = x - x.amax(dim, True)
    return apart - apart.exp().sum(dim, True).log()


@written_as("logsumexp")
def write_logsumexp(of: Written) -> Any:
    """The largest, and the logarithm of the sum of exponentials of differences from it."""
    dim, x = of.dim(), of.proxy()
    largest, kept = x.amax(dim, True), bool(of.setting("keepdim", False))
    found = largest + (x - largest).exp().sum(dim, True).log()
    return found if kept else found.squeeze(dim)


@written_as("var", "std")
def write_variance(of: Written) -> Any:
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
def write_norm(of: Written) -> Any:
    """The root of the sum of squares."""
    if of.setting("p", of.setting("ord", 2)) not in (2, 2.0, "fro", None):
        raise NotCovered
    x = of.proxy()
    return (x * x).sum(of.dim(), bool(of.setting("keepdim", False))).sqrt()


def write_normalised(of: Written) -> Any:
    """Numbers divided by their length: by their root mean square, and by the root of their count."""
    named = dict(zip(("input", "p", "dim", "eps"), of.call.node.args, strict=False))
    named |= of.call.node.kwargs
    x, rank = fx.Proxy(named["input"], of.tracer), len(of.shape)
    dim = named.get("dim", 1)
    if named.get("p", 2.0) != 2 or not isinstance(dim, int):
        raise NotCovered
    count, is_last = of.shape[dim], dim % rank == rank - 1
    turned = x if is_last else x.transpose(dim, -1)
    found = F.rms_norm(turned, (count,), None, 1e-12) * count**-0.5
    return found if is_last else found.transpose(dim, -1)


@written_as("max", "min")
def write_extreme(of: Written) -> Any:
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
    found = (torch.amax if largest else torch.amin)(of.proxy(), dim, bool(kept[0]))
    for user in chosen:
        found.node.meta = dict(user.meta)
        user.replace_all_uses_with(found.node)
    return found


def takes_values(user: fx.Node) -> bool:
    """Return True for a node that takes the numbers of a pair of numbers and places."""
    chosen = user.args[1:2] == (0,) and user.target is operator.getitem
    return chosen or (user.target is getattr and user.args[1:2] == ("values",))


@written_as("where", "masked_fill")
def write_choice(of: Written) -> Any:
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


@written_as("addmm", "baddbmm")
def write_added_product(of: Written) -> Any:
    """A product of matrices, and a sum."""
    if of.setting("beta", 1) != 1 or of.setting("alpha", 1) != 1:
        raise NotCovered
    return torch.matmul(of.proxy(1), of.proxy(2)) + of.proxy(0)


@written_as("cumsum")
def write_running_sum(of: Written) -> Any:
    """A product with a triangle of ones."""
    return along(of, of.proxy(), of.dim(), torch.ones(2 * [of.shape[of.dim()]]).tril())


def along(of: Written, x: Any, dim: int, matrix: Tensor) -> Any:
    """Return a linear map of one dimension; places are chosen where that is all it does."""
    rows, columns = matrix.shape
    if rows == columns and torch.equal(matrix, torch.eye(rows)):
        return x
    if bool((matrix.count_nonzero(1) == 1).all()) and bool((matrix.sum(1) == 1).all()):
        return x.index_select(dim, of.constant(matrix.argmax(1)))
    if dim == -1:
        return F.linear(x, of.constant(matrix))
    return F.linear(x.transpose(dim, -1), of.constant(matrix)).transpose(dim, -1)


@written_as("interpolate", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def write_resized(of: Written) -> Any:
    """A linear map of each dimension in turn, which a run of the node on unit vectors shows."""
    sizes = of.shape[2:]
    wanted = list(recorded_result_shape(of.call.node) or ())[2:]
    assert of.call.op is not None
    pools = of.call.op.name != "interpolate"
    if pools and not any(a % b for a, b in zip(sizes, wanted, strict=True)):
        raise NotCovered  # windows of equal sizes are a pool
    total = of.run(torch.ones(1, 1, *sizes))[0, 0]
    x, check = of.proxy(), torch.randn(2, 1, *sizes)
    found = check
    for axis, size in enumerate(sizes):
        unit = torch.eye(size).reshape(size, 1, *(size if n == axis else 1 for n in range(len(sizes))))
        shown = of.run(unit.expand(-1, 1, *sizes).contiguous())[:, 0].movedim(axis + 1, -1)
        matrix = (shown.reshape(size, -1, wanted[axis])[:, 0] / total.flatten()[0]).T.contiguous()
        place = axis - len(sizes)
        x = along(of, x, place, matrix)
        found = F.linear(found.transpose(place, -1), matrix).transpose(place, -1)
    if not torch.allclose(found * total, of.run(check), **ALIKE):
        raise NotCovered
    return x


@written_as("avg_pool1d", "avg_pool2d", "avg_pool3d")
def write_average_pool(of: Written) -> Any:
    """A pool of windows of one size, times what their sizes differ by."""
    counts = of.setting("count_include_pad", True) and not of.setting("divisor_override")
    if counts and not of.setting("ceil_mode", False):
        raise NotCovered
    sizes, wanted = of.shape[2:], list(recorded_result_shape(of.call.node) or ())[2:]
    dims = len(sizes)

    def each(name: str, default: Any) -> list[int]:
        value = of.setting(name) or default
        return list(value) * (dims // len(value)) if isinstance(value, list | tuple) else [value] * dims

    kernel, padding = each("kernel_size", 1), each("padding", 0)
    stride = each("stride", kernel)
    after = [(out - 1) * s + k - n - p for out, s, k, n, p in
             zip(wanted, stride, kernel, sizes, padding, strict=True)]  # fmt: skip
    around = [e for pair in reversed(list(zip(padding, after, strict=True))) for e in pair]
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
    ones = torch.ones(1, 1, *sizes)
    share = of.run(ones) / pool(F.pad(ones, around), kernel, stride)
    x = F.pad(of.proxy(), around) if any(around) else of.proxy()
    pooled = pool(x, kernel, stride)
    return pooled if bool((share == 1).all()) else pooled * of.constant(share)


def write_padding(of: Written) -> Any:
    """What a layer puts around, as the function does."""
    layer: Any = of.call.module
    x, around = fx.Proxy(of.call.node.args[0], of.tracer), list(layer.padding)
    kind = type(layer).__name__
    modes = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}
    mode = next((mode for name, mode in modes.items() if kind.startswith(name)), "constant")
    return F.pad(x, around, mode, getattr(layer, "value", 0.0) if mode == "constant" else None)


@written_as("conv1d", "conv2d", "conv3d")
def write_convolution(of: Written) -> Any:
    """What is around first, where it is not zeros or not the same on both sides."""
    layer: Any = of.call.layer
    if layer is None or layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        raise NotCovered
    around = list(layer._reversed_padding_repeated_twice)
    if layer.padding_mode == "zeros" and around[::2] == around[1::2]:
        raise NotCovered
    plain = copy.copy(layer)
    plain.padding, plain.padding_mode = (0,) * len(layer.kernel_size), "zeros"
    plain._reversed_padding_repeated_twice = [0] * len(around)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return of.layer(plain, F.pad(of.proxy(), around, mode))
