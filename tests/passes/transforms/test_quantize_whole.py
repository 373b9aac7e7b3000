"""Networks whole in integers by one pass: what they compute in integers is what they simulate."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transform_nets import graph_of

import chop
from chop.ir.call import NodeCall
from chop.lowering import LOWERINGS
from chop.lowering.comparing import compare_with_integers
from chop.lowering.from_graph import SymbolicCall
from chop.models import get_model
from chop.passes.graph import PASSES
from chop.passes.graph.transforms.quantize.one_line import FormatSpec, one_line_rules

whole = PASSES["quantize_whole"]
RULES = one_line_rules(FormatSpec("integer", 8), calibrated=True, products_only=False)


def warmed(model: nn.Module, *shape: int) -> tuple[nn.Module, Tensor]:
    """A network whose norms have seen rows, and some rows."""
    torch.manual_seed(1)
    x = torch.randn(16, *shape)
    with torch.no_grad():
        model.train()(x)
    return model.eval(), x


def by_name(name: str, *shape: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    size = {"image_size": shape} if len(shape) > 1 else {"num_features": shape[0]}
    return lambda: warmed(get_model(name, dataset_info={**size, "num_classes": 5}), *shape)


class Branches(nn.Module):
    """Concatenation, a sum with what was normalised, a sigmoid, an average."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.left, self.right = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, 1)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.relu(x))
        both = torch.cat([self.left(x), torch.sigmoid(self.right(x))], 1)
        return self.last(both.mean((2, 3)))


NETWORKS = {
    "resnet8": by_name("resnet8", 3, 8, 8),
    "ds-cnn": by_name("ds-cnn", 1, 12, 6),
    "lenet5": by_name("lenet5", 1, 16, 16),
    "cnn-small": by_name("cnn-small", 1, 8, 8),
    "jsc-tiny": by_name("jsc-tiny", 16),
    "jsc-new": by_name("jsc-new", 16),
    "autoencoder-ad": by_name("autoencoder-ad", 12),
    "branches": lambda: warmed(Branches(), 2, 6, 6),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_whole_and_close_to_float(name: str) -> None:
    model, x = NETWORKS[name]()
    argument = "x" if name in ("branches", "jsc-tiny", "jsc-new") else "input"
    graph, info = whole(graph_of(model, **{argument: x}), RULES | {
        "input_generator": [{argument: x}]
    })  # fmt: skip
    assert info["in_float"] == {}
    assert not any("BatchNorm" in type(each).__name__ for each in graph.model.modules())
    expected, found = model(x), graph.model(x)
    assert (found - expected).norm() < 0.1 * expected.norm()
    agreement = compare_with_integers(graph.model, x)
    assert agreement.different == 0
    assert agreement.rows == len(x)


class Dense(nn.Module):
    """Layers that read the input beside what was made of it, joined twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(5, 2, 1)
        self.pool, self.last = nn.MaxPool2d(2), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.first(x), x], 1)
        all_three = torch.cat([self.second(torch.relu(both)), both], 1)
        return self.last(self.pool(torch.nn.functional.pad(all_three, (1, 1))).mean((2, 3)))


def test_what_moves_and_joins_an_input_rounds_it_at_any_depth() -> None:
    model, x = warmed(Dense(), 2, 6, 6)
    graph, info = whole(graph_of(model, x=x), RULES | {"input_generator": [{"x": x}]})
    assert info["in_float"] == {}
    assert compare_with_integers(graph.model, x).different == 0


def test_torch_errors_in_lowering_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = warmed(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), 3)

    def fail(call: SymbolicCall) -> None:
        raise RuntimeError("shapes cannot be multiplied\nC++ frames")

    graph = graph_of(model, input=x)
    monkeypatch.setitem(LOWERINGS._entries, "linear", fail)
    _, info = whole(graph, RULES | {"input_generator": [{"input": x}]})
    assert info["in_float"] == {"_0": "has no integers: shapes cannot be multiplied"}


class Mean(nn.Module):
    """A mean over the rows of a batch, in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x - x.mean())


def test_products_after_floats_are_not_left_off_in_silence() -> None:
    model, x = warmed(Mean(), 3)
    _, info = whole(graph_of(model, x=x), RULES | {"input_generator": [{"x": x}]})
    assert list(info["in_float"]) == ["mean"]


def test_what_cannot_be_negative_has_no_sign() -> None:
    layers = [nn.Linear(3, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 8), nn.Linear(8, 2)]
    model, x = warmed(nn.Sequential(*layers), 3)
    points = []
    for config in ({}, {"data_in_signed": True}):
        default = {"config": RULES["default"]["config"] | config}
        rules = RULES | {"default": default, "input_generator": [{"input": x}]}
        graph, info = whole(graph_of(model, input=x), rules)
        assert info["in_float"] == {}
        assert compare_with_integers(graph.model, x).different == 0
        first, after, last = (graph.model.get_submodule(each).quant.operands for each in "034")
        assert first["data_in"].signed
        assert last["data_in"].signed
        assert after["data_in"].signed == bool(config)
        points.append(after["data_in"].frac_width)
    assert points[0] == points[1] + 1


def test_a_bias_adds_no_bits_below_those_of_products() -> None:
    model, x = warmed(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 3)
    graph, _ = whole(graph_of(model, input=x), RULES | {"input_generator": [{"input": x}]})
    for name in "02":
        fmt = graph.model.get_submodule(name).quant.operands
        point = fmt["data_in"].arrays[1] + fmt["weight"].arrays[1].reshape(-1)
        assert (fmt["bias"].arrays[1] <= point).all()
        assert fmt["bias"].width == 16


class Placed(nn.Module):
    """Positions added to what is read, computed once by what has no integers."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.last = nn.Embedding(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.last(x + self.places(places.cumsum(0) - places.cumsum(0) + places))


def test_what_does_not_depend_on_the_input_may_be_anything() -> None:
    model, x = warmed(Placed(), 4, 3)
    graph, info = whole(graph_of(model, x=x), RULES | {"input_generator": [{"x": x}]})
    assert info["in_float"] == {}
    assert compare_with_integers(graph.model, x).different == 0


class SmallToken(nn.Module):
    """A row that is small beside the others, standardised, as the class token of DeiT is."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.cat([torch.full((1, 8), 0.02), torch.ones(4, 8)]))
        self.deep, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.place
        return self.last(self.norm(self.deep(x) * self.place + x))[:, 0]


def test_rows_that_are_small_beside_others_survive_a_norm() -> None:
    torch.manual_seed(0)
    model, rows = SmallToken(), torch.randn(64, 5, 8)
    done = chop.quantize(model, width=8, calibrate=[rows])
    with torch.no_grad():
        wanted, found = model(rows), done(rows)
    assert done.info["in_float"] == {}
    assert float((found - wanted).norm() / wanted.norm()) < 0.1
    calibration = done.info["calibration"]["operands"]
    assert calibration["add"]["data_in"]["frac_width"] > 6


def test_a_rule_of_a_user_has_tables_and_biases_too_and_keeps_its_width() -> None:
    torch.manual_seed(0)
    model, rows = SmallToken(), torch.randn(64, 5, 8)
    done = chop.quantize(model, width=8, calibrate=[rows], rule={"layer_norm": 10})
    assert done.info["in_float"] == {}
    quant = NodeCall.of(
        next(n for n in done.graph.nodes if n.name == "norm"), done.graph.modules
    ).quant
    assert quant is not None
    assert {role: fmt.width for role, fmt in quant.operands.items()} == {
        "data_in": 10, "weight": 10, "bias": 20, "table": 14,
    }  # fmt: skip


class Rotary(nn.Module):
    """Rows turned by the angle of their place, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.places: Tensor
        self.register_buffer("places", torch.arange(40.0).unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        angles = self.places * torch.tensor([1.0, 0.1, 0.01])
        angles = torch.cat([angles, angles], -1)
        turned = torch.cat([-x[..., 3:], x[..., :3]], -1)
        return self.last(x * angles.cos() + turned * angles.sin())


def test_what_does_not_depend_on_rows_is_not_rounded_before_it_is_read() -> None:
    torch.manual_seed(0)
    model, rows = Rotary(), torch.randn(32, 40, 4)
    done = chop.quantize(model, width=8, calibrate=[rows])
    assert done.info["in_float"] == {}
    assert not {"mul", "cos", "sin"} & set(done.info["quantized"])
    assert {"mul_1", "mul_2", "add"} <= set(done.info["quantized"])
    with torch.no_grad():
        wanted, found = model(rows), done(rows)
    assert float((found - wanted).norm() / wanted.norm()) < 0.03
    compare_with_integers(done.model, rows)
