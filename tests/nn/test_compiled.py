"""`torch.compile` records what is quantised without a break, and gives the bits of eager."""

import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop import MaseGraph
from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import quantize_module
from chop.numerics import FORMATS, IntegerScaled, NumberFormat
from chop.numerics.arithmetic import run_while_compiling
from chop.numerics.elementwise import ElementFormat
from chop.ops.table import OPS
from chop.passes.graph import add_common_metadata_analysis_pass, init_metadata_analysis_pass
from chop.passes.graph.transforms.quantize import quantize_transform_pass

ELEMENTWISE: dict[str, list[dict[str, Any]]] = {
    "integer": [
        {"width": 8, "frac_width": 4},
        {"width": 6, "frac_width": 3, "signed": False},
        {"width": 5, "frac_width": 7, "rounding": "half_up"},
        {"width": 4, "frac_width": 1, "overflow": "wrap", "rounding": "half_up"},
        {"width": 30, "frac_width": 10},
        {"width": [8, 0, 3, 5], "frac_width": [4, 0, -1, 9], "signed": [True, True, False, True]},
        {"width": [8, 6, 3, 5], "frac_width": 2, "rounding": "half_up", "overflow": "wrap"},
    ],
    "integer_scaled": [
        {"width": 8, "scale": 0.07},
        {"width": 6, "scale": [0.1, 0.2, 0.3, 0.7], "zero_point": 3, "narrow": True},
    ],
    "minifloat_ieee": [{"width": 8, "exponent_width": 4}, {"width": 12, "exponent_width": 8}],
    "minifloat_denorm": [{"width": 8, "exponent_width": 4}],
    "float8_e4m3": [{}],
    "float8_e5m2": [{}],
    "log": [{"width": 5}, {"width": 8, "exponent_bias": 30}],
}


def formats() -> list[NumberFormat]:
    """A format of each kind that rounds each element by itself, in all of its modes."""
    return [FORMATS[name](**fields) for name, all_of in ELEMENTWISE.items() for fields in all_of]


def hard_numbers() -> Tensor:
    """Codes of all formats here, what lies half way, the numbers next to both, and extremes."""
    small = torch.arange(-(2.0**9), 2.0**9) / 2
    powers = torch.exp2(torch.arange(-40.0, 40.0))
    steps = torch.arange(1.0, 2.0, 1 / 16)
    floats = (powers[:, None] * steps).flatten()
    scaled = torch.cat([small * s for s in (1.0, 2.0**-3, 2.0**-9, 0.07, 0.1, 0.3)])
    known = torch.cat([scaled, floats, -floats, powers * 2**0.5])
    finfo = torch.finfo(torch.float32)
    ends = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, finfo.max, finfo.tiny, 1e-45]
    near = [known, known.nextafter(known + 1), known.nextafter(known - 1), torch.tensor(ends)]
    found = torch.cat(near)
    return found[: len(found) // 4 * 4].reshape(-1, 4)


def same_bits(one: Tensor, other: Tensor) -> bool:
    kind = torch.int32 if one.dtype == torch.float32 else torch.int64
    nans = one.isnan() & other.isnan()  # one of many that mean the same
    return bool(((one.view(kind) == other.view(kind)) | nans).all())


def test_every_element_wise_format_is_here() -> None:
    known = {n for n, f in FORMATS.items() if issubclass(f, ElementFormat | IntegerScaled)}
    assert known - {"fixed"} == ELEMENTWISE.keys()  # another name of integer


def test_the_mark_is_that_of_torch() -> None:
    marked = torch.compiler.assume_constant_result(lambda: None)
    assert vars(run_while_compiling(lambda: None)) == vars(marked)


@pytest.mark.filterwarnings("ignore:.*deprecated")  # in torch itself, as it is imported
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_compiled_rounding_gives_the_bits_of_eager() -> None:
    """All in one function, which takes the C++ compiler a few seconds."""
    x = hard_numbers()
    fresh = formats()  # have rounded nothing yet
    compiled = torch.compile(lambda x: [fmt(x) for fmt in fresh], fullgraph=True)
    for fmt, got in zip(fresh, compiled(x), strict=True):
        assert same_bits(got, fmt(x)), fmt


class Network(nn.Module):
    """Layers and functions, one of each way in which something is quantised."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv1d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        scores = x @ x.transpose(1, 2)
        x = F.relu(torch.matmul(scores, x) + x)
        x = F.scaled_dot_product_attention(x, x, x)
        x *= 0.5
        result: Tensor = self.conv(x)
        return result


@pytest.mark.parametrize("name", ["integer", "minifloat_ieee", "log"])  # of each kind of kernel
def test_a_network_is_recorded_whole_and_trains_alike(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4)
    graph, _ = init_metadata_analysis_pass(MaseGraph(Network()))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})
    fields = ELEMENTWISE[name][0]
    given = {f"{role}_{k}": v for role in ("data_in", "weight") for k, v in fields.items()}
    rule = {"by": "type", "default": {"config": {"name": name, **given}}}
    graph, info = quantize_transform_pass(graph, rule)
    assert len(info["quantized"]) >= 8
    torch._dynamo.reset()
    compiled = torch.compile(graph.model, fullgraph=True, backend="aot_eager")
    graph.model.eval()
    with torch.no_grad():
        assert torch.equal(compiled(x), graph.model(x))
    graph.model.train()
    found = [gradients(graph.model, run, x) for run in (compiled, graph.model)]
    for got, right in zip(*found, strict=True):
        assert torch.equal(got, right)
        assert right.any()


def gradients(model: nn.Module, run: Any, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    run(x).square().sum().backward()
    return [value.grad.clone() for value in (x, *model.parameters()) if value.grad is not None]


def test_a_changed_weight_or_format_is_seen() -> None:
    op = OPS["linear"]
    config = {"name": "integer", "data_in_width": 8, "weight_width": 8}
    layer = quantize_module(nn.Linear(4, 2), op, parse_quant_config(op, config, "here"))
    compiled = torch.compile(layer.eval(), fullgraph=True, backend="eager")
    x = torch.randn(3, 4)
    with torch.no_grad():
        before = compiled(x)
        layer.weight.data.mul_(3.0)
        assert torch.equal(compiled(x), layer(x))
        assert not torch.equal(compiled(x), before)
        layer.quant = parse_quant_config(op, {**config, "weight_width": 3}, "here")
        assert torch.equal(compiled(x), layer(x))
