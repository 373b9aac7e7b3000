"""The engine computes what the simulation does, bit by bit, wherever the analysis says exact."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lowering_nets import EXAMPLES, JETS, example, forward, integer, quantised, settled
from torch import Tensor, nn

from chop.dataset.physical.jsc_sim import jsc_sim
from chop.lowering import Engine, analyse, lower
from chop.models.physical.jet_substructure import JSC_MLP, JSC_New
from chop.models.vision import vgg7

ROLES = ("data_in", "weight", "bias")


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgg7, "STAGES", (8, 16, 24))


@pytest.mark.parametrize("name", EXAMPLES)
def test_simulation_and_engine_are_equal_in_batches_of_any_size(name: str) -> None:
    graph, x = example(name)
    program = lower(graph)
    assert analyse(program).exact("float32"), analyse(program)
    exact, fast = (Engine(program, how)(x)[0] for how in ("int64", "fast"))
    for size in (1, 7, len(x)):
        assert torch.equal(forward(graph, x, size), exact)
    assert torch.equal(exact, fast)
    assert len(torch.unique(exact)) > 5  # no network of constants


@pytest.fixture(scope="module")
def jet_rows() -> Tensor:
    request: Any = SimpleNamespace(preprocessing=None)
    return torch.from_numpy(np.array(jsc_sim(request).test[0], dtype=np.float32))


@pytest.mark.parametrize("model", [JSC_MLP, JSC_New])
def test_all_test_rows_of_jsc_sim(model: Any, jet_rows: Tensor) -> None:
    rules = dict.fromkeys(("linear", "batch_norm1d"), integer(8, 4, 8, 6))
    graph = quantised(settled(model(JETS), jet_rows[:500]), jet_rows, rules)
    program = lower(graph)
    assert analyse(program).exact("float32")
    numbers = Engine(program)(jet_rows)[0]
    assert len(jet_rows) == 20_000
    assert torch.equal(forward(graph, jet_rows), numbers)
    assert torch.equal(forward(graph, jet_rows[:100], 1), numbers[:100])
    assert torch.equal(forward(graph, jet_rows[:700], 7), numbers[:700])


@pytest.mark.parametrize("name", ["jsc-mlp", "pools"])
@pytest.mark.parametrize("rounding", ["half_even", "half_up"])
@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
@pytest.mark.parametrize("frac", [-1, 3, 6])
def test_every_mode(name: str, rounding: str, overflow: str, frac: int) -> None:
    modes = {"rounding": rounding, "overflow": overflow}
    config = integer(6, frac, 5, 3, **modes)
    rules = dict.fromkeys(("linear", "conv2d", "batch_norm2d", "avg_pool2d"), config)
    graph, x = example(name, 20, rules)
    program = lower(graph)
    assert analyse(program).exact("float32")
    assert torch.equal(forward(graph, x), Engine(program, "int64")(x)[0])
    assert torch.equal(forward(graph, x), Engine(program)(x)[0])


def test_double_precision_where_single_is_not_enough() -> None:
    x = torch.randn(200, 16, dtype=torch.float64)
    graph = quantised(JSC_MLP(JETS).double(), x, {"linear": integer(16, 12, 16, 14)})
    program = lower(graph)
    found = analyse(program)
    assert (found.exact("float32"), found.exact("float64")) == (False, True)
    assert found.accumulator_bits > 25
    exact = Engine(program, "int64")(x)[0]
    assert torch.equal(forward(graph, x), exact)
    assert torch.equal(Engine(program)(x)[0], exact)
    single = forward(
        quantised(graph.model.float(), x.float(), {"linear": integer(16, 12, 16, 14)}), x.float()
    )
    assert not torch.equal(single, exact)  # the analysis was right not to call float32 exact


DISGUISES = {
    "ternary": {"data_in_mean": 1.0, "weight_width": 2},
    "binary": {f"{role}_bipolar": True for role in ROLES},
    "log": {"data_in_width": 4, "weight_width": 3, "bias_width": 4},
    "minifloat_ieee": {
        f"{role}_{field}": value
        for role in ROLES
        for field, value in (("width", 6), ("exponent_width", 3))
    },
}


@pytest.mark.parametrize("name", DISGUISES)
def test_formats_that_are_integers_in_disguise(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(100, 6) * 2
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    graph = quantised(model, x, {"linear": {"config": {"name": name, **DISGUISES[name]}}})
    program = lower(graph)
    assert analyse(program).exact("float32")
    assert torch.equal(forward(graph, x), Engine(program, "int64")(x)[0])


def test_the_input_may_have_codes_that_are_given() -> None:
    graph, x = example("jsc-mlp")
    engine = Engine(lower(graph))
    codes = engine.quantise({"x": x})
    (name,) = codes
    assert codes[name].dtype is torch.int64
    assert torch.equal(engine.numbers(engine.run(codes))[0], engine(x)[0])


def test_a_program_can_be_read() -> None:
    graph, _ = example("jsc-tiny")
    text = str(lower(graph))
    assert text.splitlines()[0].startswith("input x: 16 frac 4 in -128..127 = x as width 8")
    assert "seq_blocks_2: 16 frac 4" in text
    assert "= table(" in text
    assert "= product(" in text


class Parts(nn.Module):
    """A function of which one part has a smaller range than the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        third = self.layer(x) / 3
        return torch.cat([third[:, 2:], third[:, :2].flip(1)], 1)


def test_a_part_of_a_function_has_the_codes_of_its_own_range() -> None:
    torch.manual_seed(0)
    model, x = Parts(), torch.randn(30, 4)
    model.layer.weight.data[2:] /= 4
    graph = quantised(model, x, {"linear": integer(8, 4, 8, 6)})
    program = lower(graph)
    assert torch.equal(forward(graph, x), Engine(program)(x)[0])


class Turned(nn.Module):
    """Batch normalisation of what lies in memory with its channels last, or in their order."""

    def __init__(self, in_order: bool) -> None:
        super().__init__()
        self.in_order = in_order
        self.layer, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x).transpose(1, 2)
        scores: Tensor = self.norm(x.contiguous() if self.in_order else x)
        return scores


@pytest.mark.parametrize("in_order", [True, False])
def test_other_kernels_for_other_layouts_are_not_called_exact(in_order: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 5, 6)
    graph = quantised(settled(Turned(in_order), x), x, dict.fromkeys(
        ("linear", "batch_norm1d"), integer()
    ))  # fmt: skip
    program = lower(graph)
    same = torch.equal(forward(graph, x), Engine(program)(x)[0])
    assert (analyse(program).exact("float32"), same) == (in_order, in_order)


class Padded(nn.Module):
    """Zeros around the input, and around a function of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(F.pad(x, (1, 1)))
        scores: Tensor = self.last(F.pad(hidden / 3, (1, 1)))
        return scores


def test_zeros_around_are_rounded_where_the_format_has_none() -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 4)
    bipolar = {"config": {"name": "binary", **DISGUISES["binary"]}}
    graph = quantised(Padded(), x, {"linear": bipolar})
    assert torch.equal(forward(graph, x), Engine(lower(graph))(x)[0])
