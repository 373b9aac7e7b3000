"""Ranges are exact, the limit of 2**24 is where it is, and ties are found."""

import itertools

import numpy as np
import pytest
import torch
from lowering_nets import EXAMPLES, example, integer, quantised
from torch import nn

import chop.passes as passes
from chop.lowering import Engine, IntegerProgram, analyse, lower
from chop.lowering.ranges import bit_width, rounded_shift
from chop.models.vision import vgg7


def all_values(program: IntegerProgram) -> IntegerProgram:
    return IntegerProgram(program.inputs, program.steps, tuple(s.out.name for s in program.steps))


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_code_leaves_its_range(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgg7, "STAGES", (4, 4, 4))
    graph, x = example(name, 30)
    program = all_values(lower(graph))
    engine = Engine(program, "int64")
    sizes = (x, x * 30) if x.is_floating_point() else (x,)
    for rows in sizes:
        codes = engine.run(engine.quantise({"x": rows}))
        for step, found in zip(program.steps, codes, strict=True):
            assert (found.numpy() >= step.out.low).all(), step.out
            assert (found.numpy() <= step.out.high).all(), step.out


def test_the_range_of_a_linear_layer_is_reached() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.data = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]])
    layer.bias.data = torch.tensor([0.25, -1.0])
    graph = quantised(nn.Sequential(layer), torch.zeros(2, 3), {"linear": integer(3, 0, 6, 2)})
    program = lower(graph)
    every = torch.tensor(list(itertools.product(range(-4, 4), repeat=3)), dtype=torch.float32)
    (found,) = Engine(program).run(Engine(program).quantise({"input": every}))
    out = program.steps[-1].out
    assert out.low.tolist() == found.min(0).values.tolist()
    assert out.high.tolist() == found.max(0).values.tolist()


@pytest.mark.parametrize(("size", "exact"), [(257, True), (258, False)])
def test_float32_is_exact_up_to_24_bits(size: int, exact: bool) -> None:
    layer = nn.Linear(size, 1, bias=False)
    layer.weight.data = torch.full((1, size), 255.0)  # with an odd weight no bit is spare
    rules = {"linear": integer(9, 0, 10, 0)}
    graph = quantised(nn.Sequential(layer), torch.zeros(2, size), rules)
    program = lower(graph)
    wanted = 256 * 255 * size <= 2**24
    assert wanted == exact
    assert analyse(program).exact("float32") == exact
    assert analyse(program).exact("float64")
    assert analyse(program).accumulator_bits == bit_width(-256 * 255 * size, 255 * 255 * size)


def test_low_bits_that_are_never_set_do_not_count() -> None:
    layer = nn.Linear(512, 1, bias=False)
    layer.weight.data = torch.full((1, 512), 256.0)
    graph = quantised(nn.Sequential(layer), torch.zeros(2, 512), {"linear": integer(9, 0, 10, 0)})
    assert analyse(lower(graph)).exact("float32")


def test_ties_are_two_roundings_one_bit_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    apart = integer(8, 4, 6, 4, out=(8, 5))
    found = analyse(lower(quantised(model, torch.zeros(2, 4), {"linear": apart})))
    assert found.ties == (("_0", "_2"),)
    level = integer(8, 4, 6, 4, out=(8, 6))
    found = analyse(lower(quantised(model, torch.zeros(2, 4), {"linear": level})))
    assert found.ties == ()


def test_saturation_is_known() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    graph = quantised(model, torch.zeros(2, 4), {"linear": integer()})
    for weight, saturates in ((1.5, True), (0.125, False)):
        model[0].weight.data.fill_(weight)
        nodes = {each.node: each for each in analyse(lower(graph)).nodes}
        assert nodes["_1"].saturates == saturates


@pytest.mark.parametrize("rounding", ["half_even", "half_up"])
def test_shifts_round_as_numbers_do(rounding: str) -> None:
    values = np.arange(-70, 71)
    for shift in range(-2, 9):
        exact = values / 2.0**shift
        wanted = np.round(exact) if rounding == "half_even" else np.floor(exact + 0.5)
        assert (rounded_shift(values, np.int64(shift), rounding) == wanted).all()
    far = np.array([2**61, -(2**61)])
    assert (rounded_shift(far, np.int64(63), rounding) == 0).all()


def test_the_pass_reports_every_node() -> None:
    graph, x = example("jsc-mlp")
    _, info = passes.exactness_analysis_pass(graph)
    assert (info["float32"], info["float64"]) == (True, True)
    assert info["accumulator_bits"] == max(n["accumulator_bits"] for n in info["nodes"].values())
    assert set(info["nodes"]) == {n.name for n in graph.nodes if n.op == "call_module"}
    _, again = passes.exactness_analysis_pass(graph, {"dummy_in": {"x": x}})
    assert again == info
