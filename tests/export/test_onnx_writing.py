"""ONNX files give the engine's codes: in onnxruntime at every level, QONNX in its executor."""

import collections
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lowering_nets import EXAMPLES, example, integer, quantised
from random_networks import granular_network, random_network
from torch import Tensor, nn

from chop.errors import ChopError, ConfigError, GraphError
from chop.export import export
from chop.export.onnx.read.graph import load_qonnx
from chop.export.onnx.write import standard as onnx_form
from chop.export.onnx.write.standard import FILE, LEVELS, QuantiseDequantise, code_type
from chop.lowering import Engine, LoweringError, lower
from chop.models.vision import vgg7

onnx = pytest.importorskip("onnx", reason="pip install onnx onnxruntime qonnx")
runtime = pytest.importorskip("onnxruntime", reason="pip install onnx onnxruntime qonnx")
NO_QONNX = pytest.mark.skipif(not find_spec("qonnx"), reason="pip install onnx onnxruntime qonnx")
FORMS = ["onnx", pytest.param("qonnx", marks=NO_QONNX)]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgg7, "STAGES", (4, 4, 6))


def kinds(folder: Path) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in onnx.load(folder / FILE).graph.node)


@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_networks_are_equal(name: str, to: str, tmp_path: Path) -> None:
    graph, _ = example(name)
    done = export(graph, to, tmp_path / "o", rows=100)
    assert done.verified_rows == 100
    found = kinds(done.folder)
    assert found["QuantizeLinear" if to == "onnx" else "Quant"] or name == "words"
    assert onnx.load(done.folder / FILE).ir_version <= 13


@pytest.mark.parametrize(
    ("width", "to"),
    [(3, "onnx"), (8, "onnx"), *(pytest.param(n, "qonnx", marks=NO_QONNX) for n in range(2, 9))],
)
def test_widths(width: int, to: str, tmp_path: Path) -> None:
    rules = {"linear": integer(width, width // 2, width, width - 1, out=(width, 1))}
    graph, _ = example("jsc-mlp", rules=rules)
    done = export(graph, to, tmp_path / "o", rows=100)
    assert not {"Round", "Floor"} & set(kinds(done.folder)) or to == "onnx"


@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("modes", [{"rounding": "half_up"}, {"overflow": "wrap"}], ids=str)
def test_modes_are_written_out(modes: dict[str, str], to: str, tmp_path: Path) -> None:
    graph, _ = example("jsc-mlp", rules={"linear": integer(6, 3, 5, 3, **modes)})
    done = export(graph, to, tmp_path / "o", rows=100)
    assert kinds(done.folder)["Floor"]


def test_numbers_are_rounded_as_the_network_does(tmp_path: Path) -> None:
    graph, x = example("jsc-mlp")
    x = torch.cat([x * 5, torch.full((1, 16), 3e38), torch.full((1, 16), -float("inf")), x / 16])
    x[3] = torch.arange(16) / 32 - 0.25  # half-way
    folder = export(graph, "onnx", tmp_path / "o", rows=0).folder
    found = runtime.InferenceSession(str(folder / FILE)).run(None, {"x": x.numpy()})[0]
    assert torch.equal(torch.from_numpy(found), graph.model(x))


@pytest.mark.parametrize("out", [(8, 6), (8, 2), (16, 8)], ids=str)
def test_two_roundings_in_a_row_stay_two(out: tuple[int, int], tmp_path: Path) -> None:
    """onnxruntime would make one of two pairs of QuantizeLinear and DequantizeLinear."""
    graph, _ = example("jsc-mlp", rules={"linear": integer(out=out), "relu": integer(7, 5)})
    assert export(graph, "onnx", tmp_path / "o", rows=100).verified_rows


def test_fine_biases_and_wide_weights_are_not_rounded_by_others(tmp_path: Path) -> None:
    """onnxruntime would round them, where they stand between codes, to 32 and to 8 bits."""
    fine = integer()
    fine["config"] |= {"bias_width": 16, "bias_frac_width": 13}
    for rules in ({"conv2d": integer(14, 7, 14, 7)}, {"conv2d": fine}):
        graph, _ = example("pools", rules=rules)
        assert export(graph, "onnx", tmp_path / "o", rows=50).verified_rows


def test_sums_beyond_float32_are_computed_in_float64(tmp_path: Path) -> None:
    wide = integer(18, 9, 18, 12)
    for name in ("jsc-rs1923", "pools"):
        graph, _ = example(name, rules=dict.fromkeys(("linear", "conv1d", "conv2d"), wide))
        done = export(graph, "onnx", tmp_path / "o", rows=30)
        assert done.manifest["accumulator_bits"] > 24
        with pytest.raises(GraphError, match="needs more than 23 bits, which this form has no"):
            export(graph, "qonnx", tmp_path / "o", rows=0)


def test_codes_are_unsigned_of_8_or_16_bits() -> None:
    assert code_type(0, 15) == (np.uint8, 0)
    assert code_type(-8, 7) == (np.uint8, 128)
    assert code_type(-1, 128) == (np.uint16, 2**15)
    assert code_type(-1, 2**15) is None


@pytest.mark.parametrize("to", FORMS)
def test_random_networks(to: str, tmp_path: Path) -> None:
    done = 0
    for seed in range(5):
        graph, _ = random_network(seed)
        try:
            done += export(graph, to, tmp_path / "o", rows=20).verified_rows > 0
        except LoweringError:
            continue
        except GraphError as error:
            assert "which ONNX has no operator for" in str(error)  # noqa: PT017
    assert done > 2


@pytest.mark.parametrize("to", FORMS)
def test_widths_and_points_of_channels_and_elements(to: str, tmp_path: Path) -> None:
    done = 0
    for seed in range(4):
        graph, x = granular_network(seed)
        try:
            program = lower(graph)
        except LoweringError:
            continue
        folder = export(program, to, tmp_path / "o", rows=20).folder
        done += 1
        if to == "qonnx":
            again, _ = load_qonnx(folder / FILE)
            assert torch.equal(again.model(x).double(), Engine(program)(x)[0])
    assert done > 1


def test_numbers_before_a_product_are_not_rounded_to_8_bits(tmp_path: Path) -> None:
    """onnxruntime would make a MatMulNBits of a MatMul whose data no DequantizeLinear gives."""
    torch.manual_seed(0)
    rules = {"linear": integer(5, 0, 2, 2, overflow="wrap")}
    graph = quantised(nn.Linear(11, 4), torch.randn(4, 2, 11) * 6, rules)
    done = export(graph, "onnx", tmp_path / "o", rows=50)
    assert kinds(done.folder)["DequantizeLinear"]


class Twice(nn.Module):
    """One input, rounded in two ways, and two outputs, one of which is a constant beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)
        self.register_buffer("fixed", torch.tensor([[0.5, -1.0]]))

    def forward(self, output: Tensor) -> tuple[Tensor, Tensor]:
        left = self.one(output)
        return torch.cat([left, (left - left) + self.fixed], 1), self.other(output)


@pytest.mark.parametrize("to", FORMS)
def test_several_outputs_and_formats_of_one_input(to: str, tmp_path: Path) -> None:
    import chop.passes as passes

    graph = quantised(Twice(), torch.randn(4, 3), {"linear": integer()})
    other = {"by": "name", "other": integer(5, 1)}
    graph, _ = passes.quantize_transform_pass(graph, other)
    done = export(graph, to, tmp_path / "o", rows=50)
    model = onnx.load(done.folder / FILE)
    assert [edge.name for edge in model.graph.input] == ["output"]
    assert [edge.name for edge in model.graph.output] == ["output0", "output1"]


def test_a_wrong_form_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed weights of 8 bits saturate on processors without VNNI; here a scale is wrong."""
    graph, _ = example("jsc-mlp")
    right = QuantiseDequantise.rounded

    def coarse(self: Any, code: Any, x: str, to: Any, dtype: Any) -> str:
        from dataclasses import replace

        return right(self, code, x, replace(to, frac=to.frac - 1), dtype)

    monkeypatch.setattr(QuantiseDequantise, "rounded", coarse)
    with pytest.raises(GraphError, match=f"at {LEVELS[0]} [0-9]+ of 50 rows of 'output' differ"):
        export(graph, "onnx", tmp_path / "o", rows=50)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chop.export.onnx.write import code as onnx_code

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(onnx_code, "import_module", missing)
    program = lower(example("jsc-tiny")[0])
    for to in ("onnx", "qonnx"):
        with pytest.raises(ConfigError, match=r"onnx is not installed.*pip install onnx "):
            export(program, to, tmp_path / "o")
    assert list(tmp_path.iterdir()) == []


def test_a_format_that_onnx_cannot_round_to(tmp_path: Path) -> None:
    config = {"name": "log", "data_in_width": 4, "weight_width": 3, "bias_width": 4}
    graph = quantised(nn.Linear(4, 2), torch.zeros(2, 4), {"linear": {"config": config}})
    with pytest.raises(ChopError, match="'input' is rounded to 'log', which ONNX has no operator"):
        export(graph, "onnx", tmp_path / "o")
    assert onnx_form.style_of(lower(graph)).most_bits == 53
