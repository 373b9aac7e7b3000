"""Each method against its definition, on small matrices; none changes the given model."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transform_nets import graph_of

from chop.dataset.info import get_dataset_info
from chop.errors import ChopError
from chop.models import get_model
from chop.numerics import FORMATS, NumberFormat
from chop.passes.graph import PASSES
from chop.passes.graph.transforms.methods.least_squares import (
    channels_of_block,
    clip_for_inputs,
    round_for_inputs,
)
from chop.passes.graph.transforms.methods.low_rank import factors
from chop.passes.graph.transforms.methods.rotate import signed_hadamard
from chop.passes.graph.transforms.methods.table import FEW_BIT_METHODS, parse_methods, quantise_by

FOUR_BITS: list[NumberFormat] = [
    FORMATS["integer"](width=4, frac_width=3),
    FORMATS["mxfp4"](),
    FORMATS["nvfp4"](),
    FORMATS["block_fp"](width=4, block_size=(16,)),
    FORMATS["block_minifloat"](width=4, exponent_width=2, block_size=(3, 8)),
    FORMATS["log"](width=4),
    FORMATS["ternary"](scaling_factor=True),
]


def correlated(columns: int, places: int = 400, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(columns, columns, generator=generator, dtype=torch.float64)
    return mix @ torch.randn(columns, places, generator=generator, dtype=torch.float64)


def product_error(weight: Tensor, other: Tensor, x: Tensor) -> float:
    return float(((other - weight).double().flatten(1) @ x).norm())


@pytest.mark.parametrize("fmt", FOUR_BITS, ids=repr)
def test_gptq_errs_less_than_the_nearest_numbers_of_any_format(fmt: NumberFormat) -> None:
    generator = torch.Generator().manual_seed(3)
    weight, x = torch.randn(24, 64, generator=generator) * 0.3, correlated(64)
    chosen = round_for_inputs(weight, [x], fmt)
    assert torch.equal(fmt.round_to(chosen), chosen)
    assert product_error(weight, chosen, x) < product_error(weight, fmt.round_to(weight), x)


def test_gptq_of_two_columns_is_the_definition() -> None:
    """The larger column is rounded first; the other one makes up for its error by least squares."""
    fmt = FORMATS["integer"](width=8, frac_width=0)
    x = torch.tensor([[3.0, 0.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    weight = torch.tensor([[10.4, 20.0]])
    damping = 0.01 * float(x.square().sum(1).mean())
    error = 10.4 - 10.0
    moved = 20 + error * float(x[0] @ x[1]) / (float(x[1] @ x[1]) + damping)
    assert round_for_inputs(weight, [x], fmt).tolist() == [[10.0, round(moved)]]


def test_columns_of_a_block_are_found_without_knowing_the_format() -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    sizes = {"integer": 1, "mxfp4": 32, "block_fp": 16, "log": 1, "ternary": 64}
    for name, size in sizes.items():
        fmt = next(each for each in FOUR_BITS if isinstance(each, FORMATS[name]))
        assert channels_of_block(fmt, weight) == size
    assert channels_of_block(FORMATS["nvfp4"]().fixed_on(weight), weight) == 16
    assert channels_of_block(FORMATS["nvfp4"](), weight) == 64


def test_gptq_of_groups_is_that_of_each_group() -> None:
    fmt, weight = (
        FOUR_BITS[0],
        torch.randn(6, 4, 1, 2, generator=torch.Generator().manual_seed(5)) * 0.3,
    )
    x = [correlated(8, seed=seed) for seed in (1, 2)]
    together = round_for_inputs(weight, x, fmt)
    errors = [
        product_error(weight[rows], together[rows], each)
        for rows, each in zip((slice(3), slice(3, 6)), x, strict=True)
    ]
    nearest = fmt.round_to(weight)
    assert errors[0] < product_error(weight[:3], nearest[:3], x[0])
    assert errors[1] < product_error(weight[3:], nearest[3:], x[1])


def test_clipping_takes_the_share_that_errs_least_in_each_block() -> None:
    fmt = FORMATS["block_fp"](width=3, block_size=(8,))
    weight = torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
    weight[0, 3] *= 1.5
    clipped = clip_for_inputs(weight, torch.ones_like(weight), fmt)
    for row in range(4):
        for start in (0, 8):
            block = weight[row : row + 1, start : start + 8]
            errors = [
                float((fmt.round_to(block.clamp(-s * block.abs().max(), s * block.abs().max()))
                       - block).square().sum())
                for s in (1 - step / 20 for step in range(11))
            ]  # fmt: skip
            found = fmt.round_to(clipped)[row : row + 1, start : start + 8]
            assert float((found - block).square().sum()) == pytest.approx(min(errors))
    assert not torch.equal(clipped, weight)


def test_low_rank_factors_are_the_best_of_their_rank() -> None:
    error, sizes = correlated(12, 10).T, torch.linspace(0.1, 3, 12, dtype=torch.float64)
    low, high = factors(error, sizes, 3)
    _, values, _ = torch.linalg.svd(error * sizes)
    left = (error - high @ low) * sizes
    assert float(left.norm()) == pytest.approx(float(values[3:].norm()))
    low, high = factors(error, sizes, 10)
    assert torch.allclose(high @ low, error)


def test_a_rotation_is_orthogonal_with_equal_magnitudes() -> None:
    for size in (2, 32):
        matrix = signed_hadamard(size)
        assert torch.allclose(matrix @ matrix.T, torch.eye(size, dtype=torch.float64))
        assert torch.allclose(matrix.abs(), torch.full_like(matrix, size**-0.5))


class Block(nn.Module):
    """A norm that three layers read, and two layers with a ReLU between."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.one, self.two = nn.Linear(24, 16), nn.Linear(24, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        result: Tensor = self.down(torch.relu(self.up(self.one(x) * self.two(x))))
        return result


def block() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = Block().eval()
    with torch.no_grad():
        model.norm.weight.mul_(torch.linspace(0.2, 3, 24))
        model.norm.bias.normal_()
        model.norm.weight[4] *= 50  # an outlier channel, folded back exactly
        for layer in (model.one, model.two):
            layer.weight[:, 4] /= 50
        model.norm.bias[4] *= 50
    return model, torch.randn(128, 24)


CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2), nn.ReLU(),
    nn.Flatten(), nn.Linear(54, 3),
)  # fmt: skip


@pytest.mark.parametrize("name", ["smooth", "awq", "rotate"])
def test_what_comes_before_rounding_leaves_float_outputs(name: str) -> None:
    models = [block(), (CONVOLUTIONS.eval(), torch.randn(64, 4, 8, 8))]
    for model, x in models:
        before = copy.deepcopy(model.state_dict())
        inputs = "x" if isinstance(model, Block) else "input"
        graph = graph_of(copy.deepcopy(model), **{inputs: x})
        args: dict[str, Any] = {} if name == "rotate" else {"input_generator": [{inputs: x}]}
        if name == "awq":
            names = [node.name for node in graph.nodes if node.op == "call_module"]
            args["formats"] = dict.fromkeys(names, FORMATS["mxfp4"]())
        graph, info = PASSES[name](graph, args)
        assert all(info.values())
        with torch.no_grad():
            assert torch.allclose(graph.model(x), model(x), rtol=1e-5, atol=1e-5)
        assert all(torch.equal(a, model.state_dict()[key]) for key, a in before.items())


def test_smoothing_makes_channels_and_columns_alike() -> None:
    model, x = block()
    graph = graph_of(copy.deepcopy(model), x=x)
    graph, _ = PASSES["smooth"](graph, {"input_generator": [{"x": x}]})
    with torch.no_grad():
        read = graph.model.get_submodule("norm")(x).abs().amax(0)
        weights = [graph.model.get_submodule(name).weight for name in ("one", "two")]
    columns = torch.stack([each.abs().amax(0) for each in weights]).amax(0)  # type: ignore[operator]
    assert torch.allclose(read, columns, rtol=1e-4)  # a strength of one half


def lab(model: nn.Module, x: Tensor, method: str, config: dict[str, Any]) -> Any:
    name = "x" if isinstance(model, Block) else "input"
    graph = graph_of(copy.deepcopy(model), **{name: x})
    rules = {"by": "type", "default": {"config": config, "only": ["linear", "conv2d"]},
             "input_generator": [{name: x}]}  # fmt: skip
    quantise = lambda each: PASSES["quantize"](each, rules)  # noqa: E731
    return quantise_by(graph, quantise, [{name: x}], parse_methods(method))


@pytest.mark.parametrize("method", [*FEW_BIT_METHODS, "rotate+gptq+lqer+bias"])
@pytest.mark.parametrize("config", [{"name": "mxfp4"}, {"name": "nvfp4"}], ids=str)
def test_every_method_serves_block_formats(method: str, config: dict[str, Any]) -> None:
    model, x = block()
    plain, _ = lab(model, x, "rtn", config)
    graph, info = lab(model, x, method, config)
    with torch.no_grad():
        wanted = model(x)
        errors = [float((each.model(x) - wanted).norm()) for each in (plain, graph)]
    if method in ("smooth", "rotate", "gptq", "lqer", "rotate+gptq+lqer+bias"):
        assert errors[1] < errors[0]
    assert set(info["methods"]) == set(method.split("+")) - {"rtn"}


def test_what_methods_are_not_is_said() -> None:
    assert parse_methods("gptq+rotate") == ("rotate", "gptq")
    for wrong in ("gptk", "rtn+gptq", ""):
        with pytest.raises(ChopError, match="method"):
            parse_methods(wrong)
    graph = graph_of(block()[0], x=block()[1])
    with pytest.raises(ChopError, match="give formats"):
        PASSES["awq"](graph, {"input_generator": [{"x": block()[1]}]})


def test_a_decoder_is_rotated_as_a_whole() -> None:
    torch.manual_seed(1)
    model = get_model("decoder-tiny", "lm", dataset_info=get_dataset_info("agreement-lm")).eval()
    tokens = torch.randint(1, 50, (4, 15))
    graph = graph_of(copy.deepcopy(model), x=tokens)
    graph, info = PASSES["rotate"](graph, {"block": 16})
    assert len(info["rotated"]) == 13
    assert set(info["rotated"].values()) == {16}
    with torch.no_grad():
        assert torch.allclose(graph.model(tokens), model(tokens), atol=1e-5)
