import itertools
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transform_nets import ConvNet, Mixed, Shared, graph_of, rule

import chop
from chop.errors import ChopError, ConfigError
from chop.nn.quantized import QuantizedModule
from chop.numerics import Integer, Log, MinifloatIEEE, NumberFormat
from chop.passes.graph import calibrate_transform_pass, quantize_transform_pass
from chop.passes.graph.interface import load_mase_graph, save_mase_graph_interface_pass

SCALES = range(-12, 30)


def wide(fmt: NumberFormat) -> NumberFormat:
    """The same step sizes, and a range that nothing here exceeds."""
    if isinstance(fmt, Integer):
        return fmt.model_copy(update={"width": 50, "signed": True})
    more = {"width": fmt.width + 3} | (
        {"exponent_width": fmt.exponent_width + 3} if isinstance(fmt, MinifloatIEEE) else {}
    )
    return fmt.model_copy(update=more)


def facts(fmt: NumberFormat, x: Tensor) -> tuple[float, float]:
    """The share of values whose code is the last one for want of others, and the squared error."""
    return (
        float((fmt(x) != wide(fmt)(x)).double().mean()),
        float((fmt(x).double() - x.double()).square().sum()),
    )


def best_scale(fmt: NumberFormat, x: Tensor, method: str) -> int:
    """What a loop over all scales finds."""
    found = {scale: facts(fmt.with_scale(scale), x) for scale in SCALES}
    allowed = 0.05 if method == "percentile" else 0.0
    finest = max(scale for scale, (share, _) in found.items() if share <= allowed)
    if method != "mse":
        return finest
    # A coarser one cannot be better, and is as good only if it has no use for its last codes.
    return min(range(finest, SCALES.stop), key=lambda scale: (found[scale][1], scale))


FORMATS = [
    Integer(width=3, frac_width=0),
    Integer(width=8, frac_width=0, rounding="half_up"),
    Log(width=4),
    MinifloatIEEE(width=6, exponent_width=3),
]


@pytest.mark.parametrize("method", ["min_max", "percentile", "mse"])
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_scales_are_those_that_a_loop_over_all_finds(fmt: NumberFormat, method: str) -> None:
    model = nn.Linear(40, 30)
    nn.init.normal_(model.weight, std=0.1)
    nn.init.normal_(model.bias, mean=3.0, std=5.0)
    batches = [{"input": torch.randn(20, 40) ** 3} for _ in range(3)]
    fields = fmt.model_dump() | {str(fmt.scale_field): "auto"}
    name = {Integer: "integer", Log: "log", MinifloatIEEE: "minifloat_ieee"}[type(fmt)]
    config = {
        f"{role}_{key}": value for role in ("data_in", "weight") for key, value in fields.items()
    }
    settings = {"method": method} | ({"percentile": 95} if method == "percentile" else {})
    graph, info = quantize_transform_pass(
        graph_of(nn.Sequential(model), 2, 40),
        {"linear": {"config": {"name": name, **config}}, "input_generator": batches,
         "calibrate": settings},
    )  # fmt: skip
    found = info["calibration"]["operands"]["_0"]
    seen = {
        "data_in": torch.cat([batch["input"] for batch in batches]),
        "weight": model.weight.detach(),
        "bias": model.bias.detach(),
    }
    layer = graph.model.get_submodule("0")
    assert isinstance(layer, QuantizedModule)
    for role, x in seen.items():
        scale = best_scale(fmt, x, method)
        chosen = layer.quant.operands[role]
        assert getattr(chosen, str(fmt.scale_field)) == found[role][fmt.scale_field] == scale
        assert found[role]["saturated"] == pytest.approx(facts(chosen, x)[0], abs=1e-12)
        assert (found[role]["min"], found[role]["max"]) == (x.min(), x.max())
        assert found[role]["calibrated"]
    assert graph.model(batches[0]["input"]).isfinite().all()


def test_each_channel_gets_the_scale_it_would_get_alone() -> None:
    model = ConvNet()
    for parameter in model.parameters():
        parameter.data *= 2.0 ** torch.arange(len(parameter)).reshape(
            -1, *(1,) * (parameter.dim() - 1)
        )
    batches = [{"x": torch.randn(6, 3, 8, 8) * torch.tensor([0.1, 1.0, 9.0]).reshape(3, 1, 1)}]
    auto = rule("integer", "data_in", "weight", width=5, frac_width="auto")
    args = {"default": auto, "input_generator": batches, "calibrate": {"per": "channel"}}
    graph, _ = quantize_transform_pass(graph_of(model, 2, 3, 8, 8), args)
    operands = graph.model.conv1.quant.operands
    fmt = Integer(width=5, frac_width=0)
    for role, x, shape in [
        ("weight", model.conv1.weight.detach(), (8, 1, 1, 1)),
        ("bias", model.conv1.bias.detach(), (8,)),
        ("data_in", batches[0]["x"].movedim(1, 0), (3, 1, 1)),
    ]:
        assert operands[role].frac_width.shape == shape
        alone = [best_scale(fmt, channel, "mse") for channel in x]
        assert operands[role].frac_width.array.flatten().tolist() == alone
    assert graph.model.fc.quant.operands["data_in"].frac_width.shape == (8,)
    only = {**args, "calibrate": {"per": {"weight": "channel"}}}
    graph, _ = quantize_transform_pass(graph, only)
    assert type(graph.model.conv1.quant.operands["data_in"].frac_width) is int
    assert graph.model.conv1.quant.operands["weight"].frac_width.shape == (8, 1, 1, 1)


def test_the_float_network_is_observed_whatever_form_it_has() -> None:
    """Operators in place, methods, functions: ranges are the same before and after quantising."""
    model = Mixed()
    batches = [{"x": torch.randn(8, 6)} for _ in range(2)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(batches[0]["x"].clone())
    auto = rule("integer", "data_in", "weight", "data_out", width=3, frac_width="auto")
    args = {"default": auto, "input_generator": batches}
    graph, info = quantize_transform_pass(graph_of(model, 2, 6), args)
    first = info["calibration"]["operands"]
    assert first["relu_1"]["data_out"]["max"] == pytest.approx(
        max(float(model(batch["x"].clone()).detach().max()) for batch in batches)
    )
    graph, again = calibrate_transform_pass(graph, {"input_generator": batches, "report": False})
    assert {
        role: each["max"] for roles in again["operands"].values() for role, each in roles.items()
    } == {role: each["max"] for roles in first.values() for role, each in roles.items()}
    assert not any(
        each["calibrated"] for roles in again["operands"].values() for each in roles.values()
    )
    assert torch.equal(model(batches[0]["x"].clone()), expected)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_nodes_that_share_a_layer_share_its_scales() -> None:
    model = Shared()
    x = torch.randn(16, 4) * 20
    auto = rule("integer", "data_in", "weight", width=6, frac_width="auto")
    args = {"linear": auto, "input_generator": [{"x": x}], "calibrate": {"method": "min_max"}}
    _, info = quantize_transform_pass(graph_of(model, 2, 4), args)
    found = info["calibration"]["operands"]
    assert found["fc"] == found["fc_1"]
    assert found["fc"]["data_in"]["max"] == x.max()  # larger than what tanh gives


def test_two_passes_do_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    batches = [{"x": torch.randn(9, 4)}]
    model = Shared()
    auto = {"linear": rule("integer", "data_in", "weight", frac_width="auto")}
    waiting, _ = quantize_transform_pass(graph_of(model, 2, 4), auto)
    with pytest.raises(ConfigError, match="frac_width of Integer is 'auto', and no batches"):
        waiting.model(batches[0]["x"])
    assert "wait for the pass calibrate (nodes fc, fc_1)" in capsys.readouterr().out
    done, info = calibrate_transform_pass(waiting, {"input_generator": batches})
    shown = capsys.readouterr().out
    at_once, _ = quantize_transform_pass(graph_of(model, 2, 4), auto | {"input_generator": batches})
    assert capsys.readouterr().out == shown
    assert "frac_width = " in shown
    assert "9 rows" in shown
    assert info["rows"] == 9
    assert torch.equal(done.model(batches[0]["x"]), at_once.model(batches[0]["x"]))
    _, info = calibrate_transform_pass(
        done, {"input_generator": batches, "operands": "all", "method": "min_max", "report": False}
    )
    assert all(each["calibrated"] for each in info["operands"]["fc"].values())


def test_rows_are_as_many_as_asked_for() -> None:
    batches = [{"x": torch.randn(7, 4)} for _ in range(4)]
    graph, _ = quantize_transform_pass(graph_of(Shared(), 2, 4), {"linear": rule("integer")})
    for asked, seen in ((10, 10), (None, 28), (1000, 28)):
        args = {"input_generator": iter(batches), "num_samples": asked, "report": False}
        assert calibrate_transform_pass(graph, args)[1]["rows"] == seen


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_more_than_one_per_cent_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "chop")
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU())
    nn.init.constant_(model[0].weight, 0.5)
    x = torch.full((20, 10), 0.5)
    x[0, :2] = 100.0  # one in a hundred
    config = {"default": rule("integer", "data_in", "weight", width=8, frac_width=4)}
    args = config | {"input_generator": [{"input": x}]}
    _, info = quantize_transform_pass(graph_of(model, 2, 10), args)
    found = info["calibration"]["operands"]
    assert found["_0"]["data_in"]["saturated"] == 0.01
    assert found["_1"]["data_in"]["min"] >= 0  # a ReLU needs no sign
    assert [words for words in warnings(caplog) if "'_0'" in words] == []
    x[1, 0] = 100.0
    caplog.clear()
    settings = {"calibrate": {"method": "min_max"}}
    _, info = quantize_transform_pass(graph_of(model, 2, 10), args | settings)
    assert warnings(caplog)[0] == (
        "node '_0': 1.5% of data_in saturate at frac_width = 4 on 20 rows; "
        "with frac_width = 0 it would be 0.0%"
    )
    assert info["calibration"]["operands"]["_0"]["data_in"]["better"] == 0
    caplog.clear()
    unsigned = rule("integer", "data_in", "weight", width=8, frac_width="auto", signed=False)
    args = {"linear": unsigned, "input_generator": [{"input": -x}]}
    quantize_transform_pass(graph_of(model, 2, 10), args)
    assert "which no scale covers" in warnings(caplog)[0]


def test_a_point_outside_the_width_is_told_unless_it_is_meant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "chop")

    def told(**more: Any) -> list[str]:
        caplog.clear()
        args = {"linear": rule("integer", "data_in", "weight", **more.pop("fields"))}
        quantize_transform_pass(graph_of(Shared(), 2, 4), args | more)
        return warnings(caplog)

    for outside in (9, -1):
        assert told(fields={"width": 8, "frac_width": outside}) == [
            "pass 'quantize': the binary point lies outside the width: "
            f"{role} of fc, fc_1: frac_width {outside} of width 8; if this is meant, set "
            'outside_width = true, and frac_width = "auto" to find one that fits'
            for role in ("data_in", "weight", "bias")
        ]
    assert told(fields={"width": 8, "frac_width": 9}, outside_width=True) == []
    for inside in (0, 4, 8, None, [4, 5, 6, 7]):
        assert told(fields={"width": 8, "frac_width": inside}) == []
    small = {
        "input_generator": [{"x": torch.rand(8, 4) / 1000}],
        "calibrate": {"method": "min_max"},
    }
    assert told(fields={"width": 8, "frac_width": "auto"}, **small) == []


def test_values_without_a_scale() -> None:
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.bias)
    x = torch.randn(8, 4)
    x[0, 0] = -math.inf
    args = {"linear": rule("integer", "data_in", "weight", frac_width="auto"),
            "input_generator": [{"input": x}], "calibrate": {"method": "min_max"}}  # fmt: skip
    graph, info = quantize_transform_pass(graph_of(nn.Sequential(model), 2, 4), args)
    operands = graph.model.get_submodule("0").quant.operands
    assert operands["bias"].frac_width == 4  # zeros tell nothing: half the width
    finite = x[x.isfinite()]
    assert operands["data_in"].frac_width == best_scale(operands["data_in"], finite, "min_max")
    assert info["calibration"]["operands"]["_0"]["data_in"]["min"] == finite.min()


def test_what_was_found_is_saved_with_the_graph(tmp_path: Path) -> None:
    x = torch.randn(8, 3, 8, 8)
    auto = rule("integer", "data_in", "weight", frac_width="auto")
    args = {"default": auto, "input_generator": [{"x": x}], "calibrate": {"per": "channel"}}
    graph, _ = quantize_transform_pass(graph_of(ConvNet(), 2, 3, 8, 8), args)
    save_mase_graph_interface_pass(graph, tmp_path / "graph")
    loaded = load_mase_graph(tmp_path / "graph")
    assert torch.equal(loaded.model(x), graph.model(x))
    (node,) = (each for each in loaded.nodes if each.name == "conv1")
    kept = node.meta["mase"]["software"]["args"]["data_in_0"]["stat"]["saturation"]
    assert kept == {"min": float(x.min()), "max": float(x.max()), "saturated": kept["saturated"]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "there are no batches to observe: give input_generator"),
    ({"input_generator": []}, "input_generator gives no rows"),
    ({"input_generator": [torch.ones(2, 4)]}, "batches should be dictionaries by input name"),
    ({"input_generator": [{"x": torch.full((2, 4), math.nan)}]}, "data_in of node 'fc' is NaN"),
    ({"input_generator": [{"x": torch.ones(2, 5)}]}, "node 'fc'"),
    ({"method": "max"}, "'min_max', 'percentile' or 'mse'"),
    ({"percentile": 99}, 'percentile is for method = "percentile"'),
    ({"method": "percentile", "percentile": 101}, "less than or equal to 100"),
    ({"num_samples": 0}, "num_samples"),
    ({"per": {"wieght": "channel"}}, "unknown operand 'wieght': did you mean 'weight'"),
    ({"per": "row"}, "per"),
]


@pytest.mark.parametrize(("args", "words"), BAD, ids=[words[:20] for _, words in BAD])
def test_a_mistake_is_one_line(args: dict[str, Any], words: str) -> None:
    auto = {"linear": rule("integer", "data_in", "weight", frac_width="auto")}
    graph, _ = quantize_transform_pass(graph_of(Shared(), 2, 4), auto)
    before = graph.model.fc
    with pytest.raises(ChopError) as caught:
        calibrate_transform_pass(graph, args)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert graph.model.fc is before


def test_nothing_quantised_and_no_such_scale() -> None:
    with pytest.raises(ChopError, match="nothing is quantised: run quantize_transform_pass"):
        calibrate_transform_pass(graph_of(Shared(), 2, 4), {"input_generator": []})
    for fields in ({"frac_width": "Auto"}, {"width": "auto"}):
        with pytest.raises(ConfigError, match="valid integer"):
            quantize_transform_pass(
                graph_of(Shared(), 2, 4), {"linear": rule("integer", "data_in", "weight", **fields)}
            )


def test_formats_without_a_scale_are_left_alone() -> None:
    """Blocks scale themselves; 8-bit floating point has a range, but nothing to choose."""
    x = torch.full((4, 16), 500.0)
    for name, saturated in (("float8_e4m3", 1.0), ("mxint8", None), ("binary", None)):
        args = {"linear": {"config": {"name": name}}, "input_generator": [{"input": x}]}
        _, info = quantize_transform_pass(graph_of(nn.Sequential(nn.Linear(16, 4)), 2, 16), args)
        found = info["calibration"]["operands"].get("_0", {})
        assert found.get("data_in", {}).get("saturated") == saturated


@pytest.mark.parametrize(
    "fmt",
    [
        Integer(width=4, frac_width=2),
        Integer(width=4, frac_width=-3, signed=False),
        Log(width=4),
        MinifloatIEEE(width=6, exponent_width=3, exponent_bias=2),
    ],
    ids=str,
)
def test_saturation_begins_where_rounding_needs_another_code(fmt: NumberFormat) -> None:
    assert fmt.saturation is not None
    low, high = fmt.saturation
    around = [b * (1 + d) for b, d in itertools.product((low, high), (-0.02, 0.0, 0.02))]
    x = torch.tensor(around, dtype=torch.float64)
    x = x if getattr(fmt, "signed", True) else x[x > 0]
    assert torch.equal((x < low) | (x >= high), fmt(x) != wide(fmt)(x))


def test_channels_and_operands_that_rows_do_not_show_are_named_with_their_range(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 3), nn.Linear(3, 2)
            nn.init.constant_(self.one.bias, -100.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(torch.relu(self.one(x)))

    rows = torch.rand(16, 4) * 2
    rows[:, 2] = 0
    with caplog.at_level("WARNING", "chop"):
        chop.quantize(Dead(), width=8, calibrate=[rows], verbose=True)
    said = [record.getMessage() for record in caplog.records]
    high = f"{float(rows.max()):.4g}"
    assert (
        "calibrate: 1 of 4 channels of input 'x' are zero in all 16 rows (2): they get the "
        f"range of the others, 0 to {high}"
    ) in said
    assert any("node 'two': data_in is zero on all 16 rows: it gets the usual" in s for s in said)
