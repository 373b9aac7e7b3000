"""Scales of any size: one definition of rounding, and the same integers in every form."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_quantize_whole import NETWORKS
from torch import Tensor, nn

import chop
from chop.errors import CheckpointError, ChopError, ConfigError, GraphError
from chop.export import export
from chop.lowering import Engine, analyse, load_program, lower, save_program
from chop.lowering.comparing import Simulation
from chop.lowering.engine import different_codes
from chop.lowering.from_graph import Lowering
from chop.lowering.program import Rescale, Table
from chop.numerics import FloatTensor, IntegerScaled
from chop.numerics.arithmetic import multiplier_and_shift, rescale_codes
from chop.passes.graph.transforms.quantize.free_scales import settle_scales
from chop.validation import parse
from chop.verbs.quantize.module import Quantized


def quantised(name: str) -> tuple[Quantized, Tensor]:
    model, x = NETWORKS[name]()
    found = chop.quantize(model, width=8, calibrate=[x], scales="free")
    assert found.info["scales"] == "free"
    return found, x


@pytest.mark.parametrize("name", ["resnet8", "ds-cnn", "lenet5", "cnn-small", "jsc-tiny"])
@torch.no_grad()
def test_simulation_and_integers_are_equal(name: str) -> None:
    network, x = quantised(name)
    lowering = Lowering(network.graph, {})
    program = lowering.program(cut_tail=True)
    steps = [step for step in program.steps if isinstance(step, Rescale)]
    assert steps
    assert all(step.in_integers for step in steps)
    both = [Engine(program, how) for how in ("fast", "int64")]
    (placeholder,) = (each.placeholder for each in program.inputs)
    codes, slow = (engine.run(engine.quantise({placeholder: x})) for engine in both)
    assert torch.equal(codes[0], slow[0])
    value = program.values[program.outputs[0]]
    assert not different_codes(network(x), both[0].numbers(codes)[0], value).any()
    assert analyse(program).exact("float64")
    if not any(isinstance(step, Table) for step in program.steps):  # which float32 computes
        Simulation(lowering, program).refuse_differences({placeholder: x}, codes)


@torch.no_grad()
def test_free_scales_are_nearer_to_floating_point() -> None:
    model, x = NETWORKS["ds-cnn"]()
    wanted = model(x)
    errors = [
        float(
            (chop.quantize(model, width=8, calibrate=[x], scales=how)(x) - wanted).square().mean()
        )
        for how in ("power_of_two", "free")
    ]
    assert errors[1] < errors[0]


def test_every_form_gives_the_same_codes(tmp_path: Path) -> None:
    network, x = quantised("jsc-tiny")
    program = lower(network.graph)
    again = load_program(save_program(program, tmp_path / "stored"))
    engines = [Engine(each) for each in (program, again)]
    results = [engine(x)[0] for engine in engines]
    assert torch.equal(*results)
    for to in ("c", "onnx", "verilog"):
        done = export(network.graph, to, tmp_path / to, rows=60)
        assert done.verified_rows == 60
        assert done.manifest["outputs"][0]["scale"]
    with pytest.raises(GraphError, match="more than 23 bits|too wide for this form"):
        export(network.graph, "qonnx", tmp_path / "qonnx", rows=10)


def test_a_program_with_a_damaged_scale_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    network, _ = quantised("jsc-tiny")
    folder = save_program(lower(network.graph), tmp_path / "stored")
    arrays = load_file(folder / "arrays.safetensors")
    name = next(key for key in arrays if key.endswith("/scale"))
    for wrong in (0.0, -1.0, float("inf"), float("nan"), 0.37):
        damaged = arrays | {name: torch.full_like(arrays[name], wrong)}
        save_file(damaged, folder / "arrays.safetensors")
        with pytest.raises(CheckpointError, match="scale"):
            load_program(folder)


@pytest.mark.parametrize("rounding", ["half_up", "half_even"])
def test_a_rescale_is_the_nearest_code(rounding: str) -> None:
    generator = np.random.default_rng(0)
    ratios = np.append(np.exp2(generator.uniform(-30, 6, 200)), [0.5, 1.0, 0.25, 3.0, 2.0**-40])
    multiplier, shift = multiplier_and_shift(ratios)
    assert np.allclose(multiplier * np.exp2(-shift.astype(float)), ratios, rtol=2.0**-23)
    assert (multiplier[-5:-1] == [1, 1, 1, 3]).all()
    codes = generator.integers(-(2**20), 2**20, (50, len(ratios)))
    found = rescale_codes(codes, multiplier, shift, rounding)
    exact = codes.astype(object) * multiplier.astype(object)
    for code, product, by in zip(
        found.reshape(-1), exact.reshape(-1), np.tile(shift, 50), strict=True
    ):
        rest = 2 * (product - (int(code) << int(by)))
        assert abs(rest) <= 1 << int(by)
        if by and abs(rest) == 1 << int(by):  # half-way
            assert rest < 0 if rounding == "half_up" else code % 2 == 0
    tensors = (torch.from_numpy(each) for each in (codes, multiplier, shift))
    assert torch.equal(rescale_codes(*tensors, rounding), torch.from_numpy(found))


def test_numbers_on_a_grid_are_rounded_in_integers() -> None:
    fmt = IntegerScaled(width=8, scale=0.1, grid=0.0123 * 0.017)
    codes = torch.arange(-2000, 2000)
    multiplier, shift = (
        torch.from_numpy(each) for each in multiplier_and_shift(0.0123 * 0.017 / np.float32(0.1))
    )
    wanted = rescale_codes(codes, multiplier, shift, "half_even").clamp(-128, 127)
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(fmt.steps((codes * (0.0123 * 0.017)).to(dtype)), wanted)
    assert fmt(torch.tensor(float("nan"))).isnan()
    with pytest.raises(ChopError, match="grid"):
        parse(IntegerScaled, {"width": 8, "scale": 0.1, "grid": 0.0}, "here")


class Sum(nn.Module):
    """Two layers whose results are added."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.other(x)


def test_numbers_of_unequal_scales_are_added_in_one_unit() -> None:
    x = torch.randn(8, 4)
    layer = {"name": "integer_scaled", "data_in_width": 8, "data_in_scale": 0.02}
    layer |= {
        "weight_width": 8,
        "weight_scale": 0.003,
        "bias_width": 16,
        "bias_scale": 0.003 * 0.02,
    }
    rules = {
        "by": "name",
        "one": {"config": layer},
        "other": {"config": layer | {"weight_scale": 0.004}},
    }
    network = chop.quantize(Sum(), x, rules)
    program = lower(network.graph)
    (found,), wanted = Engine(program)(x), network(x).double()
    unit = float(program.values[program.outputs[0]].unit)
    assert 0 < unit < 1e-6
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_scales_by_channel_and_zero_points_have_integers() -> None:
    torch.manual_seed(0)
    x = torch.rand(50, 4)
    layer = {"name": "integer_scaled", "data_in_width": 8, "data_in_scale": 0.004}
    layer |= {"data_in_signed": False, "data_in_zero_point": 3, "weight_width": 8}
    layer |= {
        "weight_scale": FloatTensor([[0.003], [0.005], [0.001]]),
        "bias_width": 24,
        "bias_scale": FloatTensor([1.2e-5, 2e-5, 4e-6]),
    }
    layer |= {"data_out_width": 8, "data_out_scale": 0.002, "data_out_zero_point": -7}
    network = chop.quantize(
        nn.Sequential(nn.Linear(4, 3)), x, {"by": "type", "linear": {"config": layer}}
    )
    settle_scales(network.graph)
    program = lower(network.graph)
    assert analyse(program).exact("float64")
    value = program.values[program.outputs[0]]
    assert value.limits == (-121, 134)
    assert not different_codes(network(x), Engine(program)(x)[0], value).any()
    off_grid = {"by": "type", "linear": {"config": layer | {"bias_scale": 1e-5}}}
    network = chop.quantize(nn.Sequential(nn.Linear(4, 3)), x, off_grid)
    settle_scales(network.graph)
    assert not analyse(lower(network.graph)).exact("float64")  # half a unit may be read as one


def test_free_scales_need_a_whole_network() -> None:
    with pytest.raises(ConfigError, match="scales='free' is for a network in integers"):
        chop.quantize(nn.Linear(2, 2), torch.zeros(1, 2), width=8, scales="free")
    with pytest.raises(ConfigError, match="scales"):
        chop.quantize(nn.Linear(2, 2), width=8, calibrate=[torch.ones(4, 2)], scales="fre")
