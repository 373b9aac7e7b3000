"""The C of a network compiles without a warning and gives the engine's codes."""

import hashlib
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lowering_nets import EXAMPLES, example, integer, quantised
from random_networks import random_network
from torch import nn

from chop.errors import ConfigError, GraphError
from chop.export import EXPORT_TARGETS, export
from chop.export.c import steps as c
from chop.export.c import target as c_target
from chop.export.c.code import c_type
from chop.lowering import LoweringError, lower
from chop.lowering.program import Requantise
from chop.models.vision import vgg7


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgg7, "STAGES", (4, 4, 6))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "vgg7-fused"])
def test_2000_rows_are_equal(name: str, tmp_path: Path) -> None:
    graph, _ = example(name)
    rows = 200 if name == "vgg7" else 2000
    done = export(graph, "c", tmp_path / "c", rows=rows)
    assert done.verified_rows == rows
    assert {p.name for p in done.folder.iterdir()} == {
        "predict.c",
        "predict_test.c",
        "manifest.json",
    }


@pytest.mark.parametrize("rounding", ["half_even", "half_up"])
@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
def test_modes(rounding: str, overflow: str, tmp_path: Path) -> None:
    config = integer(6, 3, 5, 3, rounding=rounding, overflow=overflow)
    graph, _ = example("jsc-mlp", rules={"linear": config})
    assert export(graph, "c", tmp_path / "c").verified_rows == 2000


def test_sums_of_more_than_32_bits(tmp_path: Path) -> None:
    graph, _ = example("jsc-mlp", rules={"linear": integer(18, 9, 18, 12)})
    done = export(graph, "c", tmp_path / "c")
    assert done.manifest["accumulator_bits"] > 32
    assert not done.manifest["float32_is_exact"]
    assert "int64_t sum" in (done.folder / "predict.c").read_text()


def test_random_networks(tmp_path: Path) -> None:
    done = 0
    for seed in range(6):
        graph, x = random_network(seed)
        try:
            program = lower(graph)
        except LoweringError:
            continue
        done += export(program, "c", tmp_path / "c", inputs={"x": x}).verified_rows > 0
    assert done > 3


class Unread(nn.Module):
    """Two branches are joined, and one of them is cut off before anything has rounded it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([torch.sigmoid(self.one(x)), torch.tanh(self.other(x))], 1)
        result: torch.Tensor = self.last(both[:, :4])
        return result


def test_what_nothing_reads_gives_no_warning(tmp_path: Path) -> None:
    graph = quantised(Unread(), torch.randn(3, 4), {"linear": integer()})
    assert export(graph, "c", tmp_path / "c", rows=20).verified_rows == 20


def test_limits_the_wrong_way_round(tmp_path: Path) -> None:
    """As in PyTorch, the upper one is what comes out."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(-0.5, 0.5))
    graph = quantised(model, torch.randn(3, 4), {"linear": integer()})
    graph.modules["1"].min_val = 1.5
    done = export(graph, "c", tmp_path / "c", rows=20)
    assert done.manifest["outputs"][0]["low"] == done.manifest["outputs"][0]["high"] == 128


def test_equal_steps_share_a_function() -> None:
    """A sanitising compiler takes minutes for a thousand layers otherwise."""
    texts = []
    for depth in (6, 30):
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)))
        program = lower(quantised(model, torch.randn(3, 4), {"linear": integer()}))
        texts.append(c.c_source(program, "layers").text)
    few, many = (text.count("static void ") for text in texts)
    assert many < few + 3  # of types that not every layer has
    assert texts[1].count("    step") > 50


def test_the_test_program_runs_by_itself(tmp_path: Path) -> None:
    graph, _ = example("jsc-tiny")
    folder = export(graph, "c", tmp_path / "c", rows=0).folder
    command = ["cc", "-std=c99", "predict.c", "predict_test.c", "-o", "run"]
    subprocess.run(command, cwd=folder, check=True)
    row = " ".join(["3"] * 16)
    printed = subprocess.run(
        [folder / "run"], input=row, capture_output=True, text=True, check=True
    )
    assert len(printed.stdout.split()) == 5


@pytest.mark.parametrize("on_stack", [True, False])
def test_buffers_are_shared_only_where_they_are_large(
    on_stack: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _ = example("pools")
    if not on_stack:
        monkeypatch.setattr(c, "MOST_ON_STACK", 100)
    done = export(graph, "c", tmp_path / "c", rows=20)
    text = (done.folder / "predict.c").read_text()
    assert bool(re.search(r"^static struct buffers", text, re.MULTILINE)) != on_stack
    assert text.startswith("/* A quantised network")
    assert ("Re-entrant" if on_stack else "Not for several threads") in text.splitlines()[0]
    assert done.manifest["reentrant"] == on_stack
    assert done.manifest["buffer_bytes"] > 100


def test_the_manifest_says_what_was_checked(tmp_path: Path) -> None:
    graph, x = example("jsc-tiny")
    first = export(graph, "c", tmp_path / "c", rows=0)
    (tmp_path / "plain").mkdir()
    assert first.folder.stat().st_mode == (tmp_path / "plain").stat().st_mode
    second = export(graph, "c", tmp_path / "c", inputs={"x": x})
    assert first.manifest["verified"]["rows"] == 0
    assert second.folder.name == "c-v1"
    written = json.loads((second.folder / "manifest.json").read_text())
    verified = written["verified"]
    assert (verified["rows"], verified["against"]) == (2000, "engine")
    assert verified["source"] == "given inputs; made rows, seed 0"
    assert verified["kinds"]["real"] == 60
    assert written["inputs"][0]["format"]["width"] == 8
    assert written["inputs"][0]["type"] == "int8_t"
    for name, digest in written["files"].items():
        assert hashlib.sha256((second.folder / name).read_bytes()).hexdigest() == digest


def test_an_export_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = example("jsc-mlp")
    program = lower(graph)
    steps = [
        replace(step, rounding="half_up") if isinstance(step, Requantise) else step
        for step in program.steps
    ]
    wrong = replace(program, steps=tuple(steps))
    write = EXPORT_TARGETS["c"].write
    monkeypatch.setattr(EXPORT_TARGETS["c"], "write", lambda program, *rest: write(wrong, *rest))
    with pytest.raises(GraphError, match=r"of 2000 rows differ from the engine, the first is row"):
        export(program, "c", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = example("jsc-tiny")
    monkeypatch.setattr(c_target.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="no C compiler 'cc' was found"):
        export(graph, "c", tmp_path / "c")
    assert export(graph, "c", tmp_path / "c", rows=0).verified_rows == 0


def test_mistakes(tmp_path: Path) -> None:
    graph, _ = example("jsc-tiny")
    with pytest.raises(ConfigError, match="unknown export 'cc'"):
        export(graph, "cc", tmp_path / "c")
    with pytest.raises(ConfigError, match="rows must be 0 or more"):
        export(graph, "c", tmp_path / "c", rows=-1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1))
    softmax = quantised(model, torch.zeros(2, 4), {"linear": integer()})
    with pytest.raises(LoweringError, match="_1 has no rule in integers"):
        export(softmax, "c", tmp_path / "c")
    assert export(softmax, "c", tmp_path / "c", cut_tail=True).manifest["cut_off"] == ["_1"]


def test_the_program_itself(tmp_path: Path) -> None:
    graph, _ = example("pools")
    assert export(graph, "integer", tmp_path / "program").verified_rows == 2000


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [(0, 127, "int8_t"), (0, 255, "uint8_t"), (-1, 128, "int16_t"), (0, 2**31, "uint32_t"),
     (-(2**31), 0, "int32_t"), (-1, 2**40, "int64_t")],
)  # fmt: skip
def test_types(low: int, high: int, name: str) -> None:
    assert c_type(low, high) == name
