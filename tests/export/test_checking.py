"""The checks of an export find what is wrong: a mutation each of writers, rules and rows."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lowering_nets import example, integer, quantised
from torch import nn

from chop.errors import DataError, GraphError
from chop.export import export
from chop.export.onnx.write import steps as onnx_steps
from chop.export.onnx.write.steps import RoundingTarget
from chop.export.rows import KINDS, REAL, checked_rows
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import BrokenPromiseError, lower
from chop.lowering.builder import ProgramBuilder
from chop.lowering.program import Product, Requantise, Step

NO_ONNX = pytest.mark.skipif(not find_spec("onnxruntime"), reason="pip install onnx onnxruntime")
NO_QONNX = pytest.mark.skipif(not find_spec("qonnx"), reason="pip install onnx onnxruntime qonnx")
FORMS = [pytest.param("onnx", marks=NO_ONNX), pytest.param("qonnx", marks=NO_QONNX)]


@pytest.fixture(scope="module")
def small() -> MaseGraph:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    return quantised(net, torch.zeros(2, 4), {"linear": integer(6, 3, 5, 3)})


MUTATIONS: dict[str, Callable[[RoundingTarget], RoundingTarget]] = {
    "four more fraction bits and limits 16 times wider": lambda to: replace(
        to, frac=to.frac + 4, low=to.low * 16, high=to.high * 16 + 15
    ),
    "one fraction bit less": lambda to: replace(to, frac=to.frac - 1),
    "limits twice as wide": lambda to: replace(to, low=to.low * 2, high=to.high * 2 + 1),
    "the smallest code is missing": lambda to: replace(to, low=to.low + 1),
    "ties are rounded up": lambda to: replace(to, rounding="half_up"),
    "overflow wraps around": lambda to: replace(to, overflow="wrap"),
}


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("to", FORMS)
def test_inputs_that_are_rounded_otherwise_are_found(
    to: str, name: str, small: MaseGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mutated(*args: Any, **fields: Any) -> RoundingTarget:
        made = RoundingTarget(*args, **fields)
        return MUTATIONS[name](made) if made.unknown else made

    assert export(small, to, tmp_path / "right", rows=200).verified_rows == 200
    monkeypatch.setattr(onnx_steps, "RoundingTarget", mutated)
    with pytest.raises(GraphError, match=r"of 200 rows of 'output' differ from the engine"):
        export(small, to, tmp_path / "wrong", rows=200)
    assert not (tmp_path / "wrong").exists()


@NO_ONNX
@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
def test_a_number_right_beside_a_tie_is_not_rounded_up(overflow: str, tmp_path: Path) -> None:
    """Adding a half in float32 would: the check has such rows, and the file has to be right."""
    torch.manual_seed(0)
    rule = integer(4, 1, 5, 3, rounding="half_up", overflow=overflow)
    graph = quantised(nn.Sequential(nn.Linear(8, 3)), torch.zeros(2, 8), {"linear": rule})
    rows = checked_rows(lower(graph), 300).numbers["input"]
    scaled = rows * 2
    assert (torch.floor(scaled + 0.5) != torch.floor(scaled.double() + 0.5)).any()
    assert export(graph, "onnx", tmp_path / "o", rows=300).verified_rows == 300


LOWERINGS: dict[str, tuple[type[Step], Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "a shift that is off by one": (Requantise, lambda own: {"shift": np.array(own["shift"] + 1)}),
    "another rounding": (Requantise, lambda own: {"rounding": "half_up"}),
    "a bit of each weight": (Product, lambda own: {"weight": own["weight"] ^ 1}),
    "no bias": (Product, lambda own: {"bias": own["bias"] * 0}),
}


@pytest.mark.parametrize(
    ("name", "width"),
    [*((name, 6) for name in LOWERINGS), ("a shift that is off by one", 16), ("no bias", 16)],
)
def test_a_wrong_lowering_is_not_equal_to_the_engine_alone(
    name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine and every file would agree; at 16 bits only float64 is exact."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    rule = integer(width, width // 2, width, width - 2)
    graph = quantised(net, torch.zeros(2, 4), {"linear": rule})
    done = export(graph, "integer", tmp_path / "right", rows=200)
    assert done.manifest["verified"]["graph_in"] == ("float32" if width == 6 else "float64")
    emit, (kind, changed) = ProgramBuilder.emit, LOWERINGS[name]

    def emit_otherwise(self: ProgramBuilder, step: type[Step], *args: Any, **own: Any) -> Any:
        own |= changed(own) if step is kind else {}
        return emit(self, step, *args, **own)

    monkeypatch.setattr(ProgramBuilder, "emit", emit_otherwise)
    message = (
        r"the graph, simulated in float.., differs from its integers in _[02] on \d+ of 200 rows"
    )
    with pytest.raises(BrokenPromiseError, match=message):
        export(graph, "integer", tmp_path / "wrong", rows=200)
    assert not (tmp_path / "wrong").exists()
    # The integers by themselves are consistent, which is all that C can be checked for.
    assert export(lower(graph), "c", tmp_path / "alone", rows=200).verified_rows == 200


def test_the_manifest_says_what_was_compared(small: MaseGraph, tmp_path: Path) -> None:
    x = torch.randn(30, 4)
    done = export(small, "integer", tmp_path / "p", rows=200, inputs={"input": x})
    verified = json.loads((done.folder / "manifest.json").read_text())["verified"]
    assert verified["compared"] == {"graph": 200, "engine": 200, "file": 200}
    assert verified["not_compared"] == {}
    assert verified["graph_in"] == "float32"
    assert verified["kinds"] == {REAL: 30} | dict.fromkeys(KINDS, 34)
    numbers = checked_rows(lower(small), 200, {"input": x}).numbers["input"]
    assert torch.equal(numbers[:30], x)
    assert verified["distinct_outputs"] == len(small.model(numbers).unique(dim=0)) > 1
    assert done.warnings == []


def test_what_was_not_compared_says_why(small: MaseGraph, tmp_path: Path) -> None:
    told = [
        export(lower(small), "integer", tmp_path / "p", rows=20),
        export(small, "integer", tmp_path / "p", rows=0),
        export(example("branches", rules={"linear": integer(14, 7, 14, 9)})[0], "integer",
               tmp_path / "p", rows=20),
    ]  # fmt: skip
    reasons = [each.manifest["verified"]["not_compared"].get("graph") for each in told]
    assert reasons[:2] == ["it is not there, only its integers", "--rows 0 says so"]
    assert "may round the sums of" in reasons[2]
    assert all("graph" not in each.manifest["verified"]["compared"] for each in told)
    assert "Graph: not compared, as it is not there, only its integers" in told[0].said


def test_a_tail_that_is_cut_off_is_left_out_of_the_comparison(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    graph = quantised(net, torch.zeros(2, 4), {"linear": integer()})
    done = export(graph, "integer", tmp_path / "p", rows=20, cut_tail=True)
    assert done.manifest["verified"]["compared"]["graph"] == 20


def test_a_constant_network_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    net[0].weight.data *= 1e-6
    net[0].bias.data.fill_(1.0)
    graph = quantised(net, torch.zeros(2, 4), {"linear": integer()})
    done = export(graph, "integer", tmp_path / "p", rows=2000)
    words = "all 2,000 rows gave the same output: the network may be constant"
    assert done.warnings == [words]
    assert words in caplog.text
    assert done.manifest["verified"]["distinct_outputs"] == 1


@pytest.mark.parametrize(
    "rule",
    [integer(6, 3), integer(6, 3, signed=False), integer(6, -2), integer(3, 9, overflow="wrap"),
     integer(30, 12), {"config": {"name": "log", "data_in_width": 6, "data_in_exponent_bias": 3,
                                  "weight_width": 6, "weight_exponent_bias": 3}}],
    ids=["signed", "unsigned", "coarse", "wrap", "wide", "log"],
)  # fmt: skip
def test_rows_are_of_every_kind(rule: dict[str, Any]) -> None:
    torch.manual_seed(0)
    graph = quantised(nn.Sequential(nn.Linear(4, 3)), torch.zeros(2, 4), {"linear": rule})
    program = lower(graph)
    (each,) = program.inputs
    rows = checked_rows(program, 500)
    numbers = rows.numbers["input"].double().numpy()
    with np.errstate(over="ignore"):
        codes = np.nan_to_num(numbers * 2.0**each.value.frac)
    low, high = each.value.limits
    assert len(rows) == sum(rows.kinds.values()) == 500
    assert ((codes % 1 != 0) & (codes % 1 != 0.5)).any()  # off the grid
    assert ((codes == low).all(1) & (rows.flat_codes == low).all(1)).any()
    assert ((codes == high).all(1) & (rows.flat_codes == high).all(1)).any()
    assert ((codes > high).all(1)).any()
    assert ((codes < low).all(1)).any()
    assert (codes == 0).all(1).any()
    if rule["config"]["name"] == "integer":
        ties = codes[1 :: len(KINDS)]
        assert (ties % 1 == 0.5).all()
        assert {-1, 1} <= {int(np.sign(side)) for side in (codes[3 :: len(KINDS)] % 1 - 0.5).flat}
    again = checked_rows(program, 500)
    assert torch.equal(again.numbers["input"], rows.numbers["input"])
    few = checked_rows(program, 5)
    assert set(few.kinds) == set(KINDS)


def test_an_input_that_is_rounded_in_two_ways_has_rows_for_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.one(x), self.other(x)], 1)

    graph = MaseGraph(Twice().eval())
    import chop.passes as passes

    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(
        graph, {"dummy_in": {"x": torch.zeros(2, 4)}}
    )
    rules = {"one": integer(6, 3), "other": integer(28, 20)}
    graph, _ = passes.quantize_transform_pass(graph, {"by": "name", **rules})
    program = lower(graph)
    codes = [np.ldexp(checked_rows(program, 100).numbers["x"].numpy(), n) for n in (3, 20)]
    assert checked_rows(program, 100).numbers["x"].dtype == torch.float64
    assert all((each % 1 == 0.5).all(1).any() for each in codes)


def test_rows_that_do_not_fit_are_refused(small: MaseGraph, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'input' has rows of \[4\], not \[5\]"):
        export(lower(small), "integer", tmp_path / "p", inputs={"input": torch.zeros(3, 5)})
    with pytest.raises(DataError, match="the input 'input' is missing"):
        both = {"a": torch.zeros(3, 4), "b": torch.zeros(3, 4)}
        export(lower(small), "integer", tmp_path / "p", inputs=both)
    assert not (tmp_path / "p").exists()
