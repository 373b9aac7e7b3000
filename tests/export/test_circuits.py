"""A netlist computes what the engine does; plans, schedules and names are what they say."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from circuits import outputs_of
from lowering_nets import EXAMPLES, example, integer, quantised
from random_networks import random_network

from chop.errors import ConfigError
from chop.export.exporting import export
from chop.export.rows import checked_rows
from chop.export.verilog.adders import plan_adders, signed_digits
from chop.export.verilog.build import layer_names, netlist_of
from chop.export.verilog.estimate import estimated_luts, luts
from chop.export.verilog.netlist import Add, CircuitError, LookupTable, Netlist, Port, Round
from chop.export.verilog.schedule import schedule_netlist
from chop.export.verilog.target import Hardware, headers
from chop.lowering import Engine, IntegerProgram, LoweringError, lower
from chop.models.vision import vgg7

ROWS = 200
SMALL = [name for name in EXAMPLES if name not in ("vgg7", "vgg7-fused", "jsc-rs1923", "jsc-mlp")]


def assert_equal_to_engine(program: IntegerProgram) -> Netlist:
    net, codes = netlist_of(program), checked_rows(program, ROWS).codes
    found = outputs_of(net, [each.reshape(ROWS, -1).numpy() for each in codes.values()])
    for ours, wanted in zip(found, Engine(program).run(codes), strict=True):
        assert np.array_equal(ours, wanted.reshape(ROWS, -1).numpy())
    return net


@pytest.mark.parametrize("name", SMALL)
def test_a_netlist_computes_what_the_engine_does(name: str) -> None:
    assert_equal_to_engine(lower(example(name)[0]))


def test_random_networks() -> None:
    kinds = set()
    for seed in range(16):
        try:
            program = lower(random_network(seed)[0])
        except LoweringError:
            continue
        if max(value.size for value in program.values.values()) < 100:
            kinds |= {type(signal).__name__ for signal in assert_equal_to_engine(program).alive()}
    assert len(kinds) == 8  # every kind of signal occurred


@pytest.mark.parametrize("rounding", ["half_even", "half_up"])
@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
def test_modes(rounding: str, overflow: str) -> None:
    config = integer(5, 2, 4, 3, rounding=rounding, overflow=overflow)
    rules = dict.fromkeys(("linear", "relu", "batch_norm1d"), config)
    program = lower(example("jsc-new", rules=rules)[0])
    rounds = [each for each in assert_equal_to_engine(program).alive() if isinstance(each, Round)]
    assert any(each.even for each in rounds) == (rounding == "half_even")
    assert any(each.wraps for each in rounds) == (overflow == "wrap")


def test_formats_of_single_channels_and_weights() -> None:
    """What a search that learns widths gives: some of them 0."""
    torch.manual_seed(0)
    dice = np.random.default_rng(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU()), torch.randn(50, 6)
    sizes = {"data_in": (6,), "weight": (5, 6)}
    config: dict[str, Any] = {"name": "integer", "bias_width": 6, "bias_frac_width": 4}
    for role, shape in sizes.items():
        config[f"{role}_width"] = dice.integers(0, 6, shape).tolist()
        config[f"{role}_frac_width"] = dice.integers(0, 4, shape).tolist()
    net = assert_equal_to_engine(lower(quantised(model, x, {"linear": {"config": config}})))
    assert len({each.width for each in net.alive() if isinstance(each, Port)}) > 2


def test_a_number_is_a_sum_of_signed_powers_no_two_of_them_neighbours() -> None:
    for value in range(-300, 300):
        digits = list(signed_digits(value))
        assert sum(sign << shift for shift, sign in digits) == value
        assert all(b - a > 1 for (a, _), (b, _) in pairwise(digits))


def test_shared_sums_are_made_once() -> None:
    matrix = np.array([[1, 1, 0, 4], [1, 1, 2, 0], [-2, -2, 0, 1], [0, 0, 0, 0]])
    plan = plan_adders(matrix, [(-8, 7)] * 4)
    assert len(plan.sums) == 4  # x0 + x1 once, and one more for each row
    assert plan.rows[3] is None


def test_the_depth_of_a_tree_is_bounded() -> None:
    generator = np.random.default_rng(0)
    plan = plan_adders(generator.integers(-7, 8, (12, 20)), [(0, 15)] * 20)
    depth = [0] * 20
    for first, second, _, _ in plan.sums:
        depth.append(1 + max(depth[first], depth[second]))
    assert max(depth) <= 7  # at most 40 digits in a row: six levels, and one more for sharing


def test_stages_and_clock() -> None:
    rules = dict.fromkeys(("linear", "batch_norm1d"), integer(4, 2, 4, 2))
    net = netlist_of(lower(example("jsc-new", rules=rules)[0]))
    plans = [schedule_netlist(net, stages) for stages in (0, 1, 2, 4, 8)]
    assert [plan.latency for plan in plans] == [0, 1, 2, 4, 8]
    periods = [plan.period for plan in plans]
    assert periods == sorted(periods, reverse=True)
    assert periods[-1] < periods[1] / 3
    assert schedule_netlist(net).latency == 3  # one for each linear layer
    timed = schedule_netlist(net, clock_ns=8.0)
    assert timed.period <= 8.0
    assert timed.latency > 1
    with pytest.raises(CircuitError, match=r"longer than clock_ns = 0\.1"):
        schedule_netlist(net, clock_ns=0.1)
    for signal in net.alive():  # nothing is read before it is there
        for operand in signal.operands:
            assert timed.available(operand, signal.layer) <= timed.cycles[signal]


def test_names_from_files_are_made_harmless() -> None:
    program = lower(example("jsc-new")[0])
    evil = ["a; endmodule //", "a_ endmodule __", "\n`include", "table"]
    named = [replace(step, node=evil[n % 4]) for n, step in enumerate(program.steps)]
    names = layer_names(replace(program, steps=tuple(named)))
    assert all(name.isidentifier() and name.isascii() for name in names)
    assert len(set(names)) == len(names)  # neighbours differ, and so does what comes again


def test_dead_and_constant_channels_cost_nothing() -> None:
    program = lower(example("jsc-tiny")[0])
    (product,) = (step for step in program.steps if type(step).__name__ == "Product")
    weight = product.weight.copy()
    weight[:, 3:] = 0
    steps = [replace(product, weight=weight) if step is product else step
             for step in program.steps]  # fmt: skip
    net = netlist_of(replace(program, steps=tuple(steps)))
    assert {each.element for each in net.alive() if isinstance(each, Port)} == {0, 1, 2}


def test_widths_are_of_exact_ranges() -> None:
    """7 x is 8 x - x: the range of the difference is that of 7 x, not of two unrelated numbers."""
    net = Netlist()
    x = net.signal(Port, "inputs", (0, 15), 0, 0)
    (seven,) = plan_adders(np.array([[7]]), [(0, 15)]).applied(net, "layer", [x])
    assert isinstance(seven.signal, Add)
    assert seven.limits == (0, 105)


@pytest.mark.parametrize("negative", [False, True])
def test_a_sign_is_not_extended_where_an_adder_is_saved(negative: bool) -> None:
    net = Netlist()
    net.inputs = [[(-512, 511), (-8, 7), (-8, 7)]]
    wide, narrow, other = (
        net.signal(Port, "inputs", ends, 0, place) for place, ends in enumerate(net.inputs[0])
    )
    short = net.add("layer", narrow, other.times(-1 if negative else 1))
    net.outputs = [[net.plain("layer", net.add("layer", wide, short.times(2)))]]
    adders = [each for each in net.alive() if isinstance(each, Add)]
    assert [(each.raised, each.full_adders) for each in adders] == [(False, 4), (True, 5)]
    assert replace(adders[1], raised=False).full_adders == 9
    codes = np.stack(np.meshgrid(range(-512, 512, 73), range(-8, 8), range(-8, 8)), -1)
    rows = codes.reshape(-1, 3)
    (found,) = outputs_of(net, [rows])
    sign = -1 if negative else 1
    assert np.array_equal(found[:, 0], rows[:, 0] + 2 * (rows[:, 1] + sign * rows[:, 2]))


def test_equal_bits_of_a_table_are_estimated_once() -> None:
    port = Port("inputs", -4, 3, 0, 0)
    assert luts(LookupTable("layer", 0, 7, port, (0, 0, 0, 0, 0, 7, 7, 7))) == 1
    assert (
        luts(LookupTable("layer", -4, 5, port, (-4, -3, -2, -1, 0, 5, 2, 3))) == 1
    )  # others are wires
    assert luts(LookupTable("layer", 0, 2, port, (0, 2, 1, 0, 1, 0, 2, 1))) == 2


def test_the_estimate_grows_with_the_widths() -> None:
    found = [
        estimated_luts(netlist_of(lower(example("jsc-tiny", rules={"linear": config})[0])))
        for config in (integer(4, 2, 3, 2), integer(4, 2, 5, 3), integer(8, 4, 6, 4))
    ]
    assert found == sorted(found)
    assert found[0] > 50


def test_what_is_too_large_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgg7, "STAGES", (8, 8, 8))
    graph, _ = example("vgg7", 8)
    with pytest.raises(CircuitError, match=r"look-up tables of six inputs, and 5,000 are allowed"):
        export(graph, "verilog", rows=0, options=Hardware(most_luts=5000))
    tiny, _ = example("jsc-tiny")
    with pytest.raises(
        CircuitError, match=r"about [\d,]+ look-up tables of six inputs, and 50 are allowed"
    ):
        export(tiny, "verilog", rows=0, options=Hardware(most_luts=50))


def test_settings_that_are_wrong() -> None:
    with pytest.raises(ConfigError, match="stages or clock_ns, not both"):
        Hardware(stages=1, clock_ns=5)
    with pytest.raises(ConfigError, match="stages must be 0 to 1,000"):
        Hardware(stages=-1)
    with pytest.raises(ConfigError, match="clock_ns must be more than 0"):
        Hardware(clock_ns=0)
    graph, _ = example("jsc-tiny")
    with pytest.raises(ConfigError, match="settings of hardware are for verilog, not for c"):
        export(graph, "c", options=Hardware(stages=1))
    with pytest.raises(ConfigError, match="a stream needs a clock"):
        export(graph, "verilog", rows=0, options=Hardware(stages=0, stream=True))


def test_heads_of_files_are_comments_whatever_names_say() -> None:
    program = lower(example("jsc-new")[0])
    evil = "x\nendmodule /* `include */ module"
    steps = tuple(replace(step, node=f"{n} {evil}", out=replace(step.out, name=f"{n} {evil}"))
                  for n, step in enumerate(program.steps))  # fmt: skip
    names = {old.out.name: new.out.name for old, new in zip(program.steps, steps, strict=True)}
    steps = tuple(replace(step, sources=tuple(names.get(each, each) for each in step.sources))
                  for step in steps)  # fmt: skip
    named = replace(program, steps=steps, outputs=tuple(names[each] for each in program.outputs))
    for text in headers(named, "3 cycles").values():
        for line in text.splitlines():
            assert line.startswith(("// ", "/* verilator lint_off "))
            assert "`" not in line
    assert_equal_to_engine(named)
