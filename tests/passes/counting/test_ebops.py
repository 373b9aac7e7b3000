"""EBOPs against loops over single multiplications, with bits read off strings."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop import MaseGraph
from chop.errors import GraphError
from chop.ir.graph.recorder import run_graph
from chop.nn.quantized import QuantizedModule
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    count_operations_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.analysis.flops import report_counts
from chop.passes.graph.analysis.flops.ebops import Counter, EbopsCount, ebops
from chop.passes.graph.analysis.flops.products import enclosed_bits
from chop.passes.graph.utils import get_mase_op

FIXED = {
    "name": "integer", "data_in_width": 6, "data_in_frac_width": 3, "weight_width": 5,
    "weight_frac_width": 4, "bias_width": 6, "bias_frac_width": 3,
}  # fmt: skip
KINDS = {"linear", "conv1d", "conv2d", "matmul", "bmm", "mul"}
ROWS = 9


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def quantised(net: nn.Module, x: Tensor, config: dict[str, Any] = FIXED) -> MaseGraph:
    """The graph of a network, every product of which is quantised."""
    graph, _ = init_metadata_analysis_pass(MaseGraph(net.eval()))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})
    kinds = KINDS & {get_mase_op(node) for node in graph.nodes}
    rules = {kind: {"config": config} for kind in kinds}
    graph, _ = quantize_transform_pass(graph, {"by": "type", **rules})
    return graph


def thinned(net: nn.Module, share: float = 0.2) -> nn.Module:
    """The network with most of its weights zero, so that some neurons have no reader."""
    torch.manual_seed(3)
    for parameter in net.parameters():
        if parameter.dim() > 1:
            parameter.copy_(torch.randn(parameter.shape) * (torch.rand_like(parameter) < share))
    return net


def bits_of_number(number: float) -> int:
    """The bits between the first and the last one of the binary digits of a magnitude."""
    return len(bin(abs(int(number * 2**40)))[2:].strip("0"))


def bits_of_channel(numbers: list[float]) -> int:
    """The bits of the largest magnitude without the zeros that all of them end in."""
    codes = [abs(int(number * 2**20)) for number in numbers]
    while any(codes) and not any(code % 2 for code in codes):
        codes = [code // 2 for code in codes]
    return max(codes).bit_length()


def linear_products(layer: Any, x: Tensor) -> Iterator[tuple[tuple[int, ...], float, int]]:
    """For each multiplication the place of its result, its weight and its input channel."""
    weight = layer.get_quantized_weight()
    for place in itertools.product(*map(range, x.shape[1:-1]), range(len(weight))):
        for channel in range(weight.shape[1]):
            yield place, float(weight[place[-1], channel]), channel


def conv_products(layer: Any, x: Tensor) -> Iterator[tuple[tuple[int, ...], float, int]]:
    """The same for a convolution; what meets a zero of the padding is no multiplication."""
    weight, sizes = layer.get_quantized_weight(), x.shape[2:]
    inside, per_group = weight.shape[1], len(weight) // layer.groups
    out = layer(x).shape[1:]
    for place in itertools.product(*map(range, out)):
        for offset in itertools.product(range(inside), *map(range, weight.shape[2:])):
            channel = place[0] // per_group * inside + offset[0]
            position = [
                p * s - pad + k * d
                for p, s, pad, k, d in zip(
                    place[1:], layer.stride, layer.padding, offset[1:], layer.dilation, strict=True
                )
            ]
            if all(0 <= p < size for p, size in zip(position, sizes, strict=True)):
                yield place, float(weight[place[0]][offset]), channel


def live_places(graph: MaseGraph, name: str, x: Tensor) -> Tensor:
    """Which results of a layer change the output of the network of ones and zeros.

    Every weight is one or zero and every number positive, so that nothing cancels.
    """
    layers = {n: m for n, m in graph.model.named_modules() if isinstance(m, QuantizedModule)}
    before = {n: (m.weight.detach().clone(), m.bias.detach().clone()) for n, m in layers.items()}
    hooked = layers[name]
    try:
        for layer in layers.values():
            ones = (layer.get_quantized_weight() != 0).float()
            layer.bypass = True
            layer.weight.data, layer.bias.data = ones, torch.ones_like(layer.bias)
        shape = hooked_output(graph, hooked, x).shape[1:]
        plain = graph.model(torch.ones_like(x[:1]))
        live = torch.zeros(shape, dtype=torch.bool)
        for place in itertools.product(*map(range, shape)):

            def poke(module: nn.Module, args: Any, out: Tensor, at: Any = place) -> Tensor:
                out = out.clone()
                out[0][at] += 1
                return out

            handle = hooked.register_forward_hook(poke)
            live[place] = bool((graph.model(torch.ones_like(x[:1])) != plain).any())
            handle.remove()
        return live
    finally:
        for n, layer in layers.items():
            layer.bypass = False
            layer.weight.data, layer.bias.data = before[n]


def hooked_output(graph: MaseGraph, layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer gives for one row."""
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, args, out: seen.append(out))
    graph.model(torch.ones_like(x[:1]))
    handle.remove()
    return seen[0]


def counted_one_by_one(graph: MaseGraph, x: Tensor) -> dict[str, int]:
    """The EBOPs of every layer, multiplication by multiplication."""
    inputs: dict[str, Tensor] = {}
    layers = {n: m for n, m in graph.model.named_modules() if isinstance(m, QuantizedModule)}
    handles = [
        m.register_forward_pre_hook(lambda module, args, n=n: inputs.update({n: args[0]}))
        for n, m in layers.items()
    ]
    graph.model(x)
    for handle in handles:
        handle.remove()
    found = {}
    for name, layer in layers.items():
        data = layer.x_quantizer(inputs[name])
        is_linear = isinstance(layer, nn.Linear)
        channels = data.movedim(-1 if is_linear else 1, 0).flatten(1)
        bits = [bits_of_channel(channel.tolist()) for channel in channels]
        products = (linear_products if is_linear else conv_products)(layer, inputs[name])
        live = live_places(graph, name, x)
        found[name] = sum(
            bits_of_number(weight) * bits[channel]
            for place, weight, channel in products
            if live[place]
        )
    return found


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(5, 8), nn.Linear(8, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.three(torch.relu(self.two(F.relu(self.one(x)))))


class Images(nn.Module):
    """Stride, padding, dilation, groups, pools, and a flattened image read in part."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.two = nn.Conv2d(4, 6, (1, 3), padding=(0, 2), dilation=(1, 2), groups=2)
        self.pool, self.head = nn.AvgPool2d(2), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.two(self.one(x).relu())))
        return self.head(torch.flatten(x, 1)[:, :24])


class Sequences(nn.Module):
    """A convolution over time, a linear layer at each moment, and branches that are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(3, 4, 2, stride=2), nn.Linear(4, 4)
        self.three = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(self.one(x).permute(0, 2, 1))
        left, right = x.chunk(2, dim=-1)
        return self.three(torch.cat([left, right + left, left[..., 1:], right[..., :1]], -1))


@pytest.mark.parametrize(
    ("net", "shape"), [(Mlp, (5,)), (Images, (2, 9, 8)), (Sequences, (3, 8))],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_each_multiplication_is_counted(net: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(ROWS, *shape)
    graph = quantised(thinned(net()), x)
    before = {name: value.clone() for name, value in graph.model.state_dict().items()}
    wanted = counted_one_by_one(graph, x)
    whole, parts = ebops(graph, [x]), ebops(graph, [{"x": x[:4]}, {"x": x[4:]}])
    assert whole == parts == EbopsCount(wanted, {}, ROWS)
    assert whole.total == sum(wanted.values())
    assert all(torch.equal(value, before[n]) for n, value in graph.model.state_dict().items())


def test_there_are_dead_neurons_in_what_was_counted() -> None:
    x = torch.randn(ROWS, 5)
    graph = quantised(thinned(Mlp()), x)
    assert 0 < live_places(graph, "one", x).sum() < 8


def test_bits_of_numbers_are_those_of_their_digits() -> None:
    numbers = torch.randint(-300, 300, (200,)) * 2.0 ** torch.randint(-9, 3, (200,))
    assert enclosed_bits(numbers).tolist() == [bits_of_number(n) for n in numbers.tolist()]


class Attention(nn.Module):
    """Products of two activations, one with a number and one with a constant."""

    def __init__(self, bmm: bool) -> None:
        super().__init__()
        self.multiply = torch.bmm if bmm else torch.matmul
        self.register_buffer("mix", torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.multiply(x, x.transpose(-2, -1)) * 0.375
        return torch.matmul(self.multiply(scores.softmax(-1), x), self.mix)


@pytest.mark.parametrize("bmm", [False, True])
def test_products_of_two_activations_count_the_bits_of_both(bmm: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(ROWS, 2, 4)
    graph = quantised(Attention(bmm), x)
    layer = quantised(Mlp(), torch.zeros(1, 5)).modules["one"]
    first, second = layer.x_quantizer, layer.w_quantizer
    scores, scaled, mixed, _ = steps_of(graph, x)
    soft, every = scaled.softmax(-1), range(4)
    two = range(2)
    left, right, in_soft, in_scores = (
        [[bits_of_channel(fmt(v)[:, i, j].tolist()) for j in range(v.shape[2])] for i in two]
        for fmt, v in ((first, x), (second, x), (first, soft), (first, scores))
    )
    weight = second(graph.modules[""].mix)
    channels = [bits_of_channel(first(mixed)[..., k].flatten().tolist()) for k in every]
    products = (
        sum(left[i][k] * right[j][k] for i in two for j in two for k in every),
        sum(2 * in_scores[i][j] for i in two for j in two),
        sum(in_soft[i][k] * right[k][j] for i in two for j in every for k in two),
        2 * sum(bits_of_number(float(w)) * channels[k] for k in every for w in weight[k]),
    )
    assert list(ebops(graph, [x]).nodes.values()) == list(products)


def steps_of(graph: MaseGraph, x: Tensor) -> list[Tensor]:
    """What each quantised function gives."""
    found: list[Tensor] = []

    def keep(node: Any, result: Any) -> None:
        if "config" in node.kwargs:
            found.append(result)

    run_graph(graph, {"x": x}, after=keep)
    return found


class Forked(nn.Module):
    """A layer whose neurons are read in ways that only some rules can tell."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.one, self.two, self.how = nn.Linear(4, 4), nn.Linear(4, 1), how

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        match self.how:
            case "pool":
                return self.two(F.max_pool1d(y.unsqueeze(-1), 1).squeeze(-1))
            case "softmax":
                return self.two(y.softmax(-1))
            case "in place":
                torch.relu_(y)
                return self.two(y)
            case "view":
                z = torch.zeros_like(x)
                z[:, :2].copy_(y[:, 1:3])
                return self.two(z)
            case "norm":
                return self.two(F.layer_norm(y, (4,)))
            case "unread":
                return self.two(x)
            case "twice":
                return self.two(y) + y[:, 1:2]
        raise AssertionError


@pytest.mark.parametrize(
    ("how", "live"),
    [("pool", [0]), ("softmax", [0, 1, 2, 3]), ("in place", [0, 1, 2, 3]), ("norm", [0, 1, 2, 3]),
     ("view", [1, 2]), ("unread", []), ("twice", [0, 1])],
)  # fmt: skip
def test_what_is_read_in_a_way_that_cannot_be_told_costs(how: str, live: list[int]) -> None:
    net = Forked(how)
    net.two.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    x = torch.randn(ROWS, 4)
    graph = quantised(net, x)
    every = quantised(nn.Sequential(net.one), x)
    layer = every.modules["0"]
    bits = [bits_of_channel(layer.x_quantizer(x)[:, k].tolist()) for k in range(4)]
    weight = layer.get_quantized_weight()
    wanted = sum(bits_of_number(float(weight[o, k])) * bits[k] for o in live for k in range(4))
    assert ebops(graph, [x]).nodes["one"] == wanted


GRANULAR = {
    "per channel": {
        "data_in_width": [3, 0, 6, 5, 4], "data_in_frac_width": [1, -9, 3, 4, 2],
        "weight_width": [[4], [3], [5]], "weight_frac_width": [[2], [3], [4]],
    },
    "per element": {
        "weight_width": [[4, 0, 3, 2, 5], [0, 0, 0, 0, 1], [5, 4, 3, 2, 1]],
        "weight_frac_width": [[3, 9, 2, 2, 4], [0, 0, 0, 0, 1], [4, 3, 2, 1, 1]],
    },
    "unsigned and wrapped": {
        "data_in_signed": [True, False, True, False, True], "data_in_overflow": "wrap",
        "data_in_rounding": "half_up",
    },
    "scales that are powers of two": {
        "name": "integer_scaled", "data_in_width": 6, "data_in_scale": 0.125,
        "weight_width": 5, "weight_scale": [[0.25], [0.5], [0.0625]],
        "bias_width": 6, "bias_scale": 0.125,
    },
    "binary": {"name": "binary", "data_in_bipolar": True, "weight_bipolar": True},
    "ternary": {"name": "ternary", "data_in_mean": 0.5, "weight_max": 0.4},
}  # fmt: skip


@pytest.mark.parametrize("config", GRANULAR.values(), ids=GRANULAR)
def test_every_kind_of_integer_format_is_counted(config: dict[str, Any]) -> None:
    torch.manual_seed(1)
    x = torch.randn(ROWS, 5)
    rule = config if "name" in config else FIXED | config
    graph = quantised(nn.Sequential(nn.Linear(5, 3)), x, rule)
    found = ebops(graph, [x])
    assert found == EbopsCount({"_0": counted_one_by_one(graph, x)["0"]}, {}, ROWS)
    assert found.total > 0


def test_the_bits_of_a_channel_are_those_of_all_positions() -> None:
    """Also where each position has a binary point, and the codes of one channel do not line up."""
    x = torch.tensor([[[0.75, 4.0]]])
    points = {"data_in_width": [[4, 5]], "data_in_frac_width": [[2, 1]], "weight_frac_width": 0}
    net = nn.Conv1d(1, 1, 1, bias=False)
    net.weight.fill_(1)
    graph = quantised(nn.Sequential(net), x, FIXED | points)
    assert ebops(graph, [x]).nodes == {"_0": 2 * 5}  # 0.75 and 4 are 3 and 16 quarters


class Mixed(nn.Module):
    """One layer that is counted, and what cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.gru = nn.Linear(4, 4), nn.Linear(4, 4), nn.GRU(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(self.one(x))
        return F.scaled_dot_product_attention(y, y, y) + self.gru(x)[0]


def test_what_cannot_be_counted_says_why() -> None:
    x = torch.randn(ROWS, 2, 4)
    graph, _ = init_metadata_analysis_pass(MaseGraph(Mixed().eval()))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})
    attention = {"name": "integer", "query_width": 8, "key_width": 8, "value_width": 8}
    rules = {"one": {"config": FIXED}, "scaled_dot_product_attention": {"config": attention}}
    graph, _ = quantize_transform_pass(graph, {"by": "name", **rules})
    _, info = count_operations_analysis_pass(graph, {"input_generator": [{"x": x}]})
    assert info["nodes"]["two"]["ebops"] is None
    assert info["total"]["ebops"] == info["nodes"]["one"]["ebops"] > 0
    assert info["ebops"] == {
        "rows": ROWS,
        "uncounted": [
            {"node": "two", "reason": "it is not quantised"},
            {"node": "scaled_dot_product_attention",
             "reason": "no rule says which numbers scaled_dot_product_attention multiplies"},
            {"node": "gru", "reason": "it is not quantised"},
        ],
    }  # fmt: skip
    assert "EBOPs not counted: two, it is not quantised." in report_counts(info)


@pytest.mark.parametrize(
    ("reason", "config"),
    [
        ("its weight has a scale", {"name": "ternary", "weight_scaling_factor": True,
                                    "data_in_mean": 0.5}),
        ("its weight has a scale that is not a power of two",
         {"name": "integer_scaled", "data_in_width": 6, "data_in_scale": 0.5,
          "weight_width": 5, "weight_scale": 0.3, "bias_width": 6, "bias_scale": 0.3}),
        ("its weight is rounded at random", {"name": "binary", "data_in_bipolar": True,
                                             "weight_bipolar": True, "weight_stochastic": True}),
        ("(Log) are no integers times one power of two", {"name": "log", "data_in_width": 6,
                                                          "weight_width": 6}),
    ],
)  # fmt: skip
def test_formats_without_integers_are_refused(reason: str, config: dict[str, Any]) -> None:
    x = torch.randn(ROWS, 5)
    found = ebops(quantised(nn.Sequential(nn.Linear(5, 3)), x, config), [x])
    assert found.nodes == {}
    assert reason in found.uncounted["_0"]


def test_rows_are_needed_and_their_number_is_kept_to() -> None:
    x = torch.randn(ROWS, 5)
    graph = quantised(Mlp(), x)
    with pytest.raises(GraphError, match="none is given"):
        ebops(graph, [])
    pass_args = {"input_generator": [{"x": x}], "num_samples": 4, "report": False}
    _, info = count_operations_analysis_pass(graph, pass_args)
    assert info["ebops"]["rows"] == 4
    assert info["total"]["ebops"] == ebops(graph, [x[:4]]).total
    _, without = count_operations_analysis_pass(graph, {"report": False})
    assert "ebops" not in without["total"]


def test_small_batches_are_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(ROWS, 5)
    graph = quantised(Mlp(), x)
    sizes: list[int] = []
    see = Counter.see
    monkeypatch.setattr(
        Counter, "see", lambda self, batch: sizes.append(len(batch["x"])) or see(self, batch)
    )
    assert ebops(graph, x.split(2)) == ebops(graph, [x])
    monkeypatch.setattr("chop.passes.graph.analysis.flops.ebops.AT_ONCE", 15)
    assert ebops(graph, x.split(2)).rows == ROWS
    assert sizes == [ROWS, ROWS, 4, 4, 1]


def test_a_number_that_is_none_is_not_counted() -> None:
    x = torch.randn(ROWS, 5)
    graph = quantised(Mlp(), x)
    found = ebops(graph, [x.index_fill(1, torch.tensor([2]), torch.nan)])
    assert "not a number" in found.uncounted["one"]
