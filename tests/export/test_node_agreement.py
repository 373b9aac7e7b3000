"""Forms compared node by node: noise, equal codes, and the first node that differs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import chop
from chop import passes
from chop.cli import main
from chop.errors import ConfigError, GraphError, UnknownNameError
from chop.export.targets import EXPORT_TARGETS
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import IntegerProgram
from chop.results.agreement import AgreementByNode
from chop.verbs.export.agreement import compare_nodes
from chop.verbs.export.saved import export_graph_file
from chop.views.sections.agreement import agreement_section


@pytest.fixture(scope="module")
def rows() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(20, 4)


@pytest.fixture(scope="module")
def quantised(rows: Tensor) -> Any:
    layers = [nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2)]
    return chop.quantize(nn.Sequential(*layers).eval(), width=8, calibrate=[rows])


def test_every_form_is_equal_in_every_node(quantised: Any, rows: Tensor) -> None:
    found = quantised.agreement(rows)
    assert [each.node for each in found.nodes] == ["_0", "_1", "_2", "_3", "_4"]
    assert all(set(each.forms.values()) == {"equal"} for each in found.nodes if each.node != "_3")
    assert found.nodes[3].forms == {}  # tanh has codes when the next layer rounds it
    assert found.forms == ["simulation", "c", "onnx"]
    assert found.differences == {}
    assert all(20 < each.snr < 80 for each in found.nodes)


def test_more_bits_are_less_noise(quantised: Any, rows: Tensor) -> None:
    model = nn.Sequential(nn.Linear(4, 5)).eval()
    noise = [
        chop.quantize(model, width=width, calibrate=[rows]).agreement(rows, ()).nodes[0].snr
        for width in (4, 8)
    ]
    assert noise[0] + 15 < noise[1]


def test_the_first_node_that_differs_is_named(
    quantised: Any, rows: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = EXPORT_TARGETS["c"]
    write = target.write

    def write_wrong(program: IntegerProgram, options: Any, folder: Path) -> Any:
        wrong = [
            replace(step, bias=step.bias + 1)
            if step.node == "_2" and hasattr(step, "bias")
            else step
            for step in program.steps
        ]
        return write(replace(program, steps=tuple(wrong)), options, folder)

    monkeypatch.setattr(target, "write", write_wrong)
    found = quantised.agreement(rows, ("c",))
    assert found.differences == {"c": "_2"}
    states = {each.node: each.forms.get("c") for each in found.nodes}
    assert states == {"_0": "equal", "_1": "equal", "_2": "differs", "_3": None, "_4": "after"}
    assert "c differs from the engine first in _2" in str(found)


def test_what_cannot_be_run_says_why(
    quantised: Any, rows: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EXPORT_TARGETS["c"], "missing", lambda: "no compiler is here")
    found = quantised.agreement(rows, ("c",))
    assert found.not_compared == {"c": "no compiler is here"}
    assert found.forms == ["simulation"]


def test_mistakes_are_one_line(quantised: Any, rows: Tensor) -> None:
    with pytest.raises(UnknownNameError, match="export 'onx'"):
        quantised.agreement(rows, ("onx",))
    graph = MaseGraph(nn.Sequential(nn.Linear(4, 2)), example_inputs=rows)
    with pytest.raises(GraphError, match="_0 has its weight in floating point|quantise"):
        compare_nodes(graph, {"input": rows})


def test_an_export_has_it_and_the_page_shows_it(
    quantised: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "project"
    place = run / "software/transform/transformed_ckpt"
    passes.save_mase_graph_interface_pass(quantised.graph, place)
    words = ["export", "--load", str(run), "--to", "integer", "--rows", "20", "--agreement"]
    assert main(words) == 0
    assert "equal to the engine in all 4 nodes with codes" in capsys.readouterr().out
    folder = run / "software/transform/export_integer"
    found = AgreementByNode.load(folder)
    assert found.rows_compared == 256  # made, as no record names a data set
    assert AgreementByNode.model_validate(found.model_dump()) == found
    shown = agreement_section(folder)
    assert "_4" in shown.body
    assert shown.tiles[0].value == "equal"
    assert main(["report", str(run)]) == 0
    assert "Node by node" in (run / "report.html").read_text()
    with pytest.raises(
        ConfigError, match="--agreement needs a graph, and .* is an integer program"
    ):
        export_graph_file(folder, "c", tmp_path / "again", agreement=True)
    assert not (tmp_path / "again").exists()
