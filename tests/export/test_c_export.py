"""The C of a network compiles without a warning and gives the engine's codes."""

import hashlib
import json
import re
import subprocess
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lowering_nets import EXAMPLES, example, integer, quantised
from random_networks import random_network
from torch import Tensor, nn

import chop
from chop.errors import ConfigError, GraphError
from chop.export import EXPORT_TARGETS, export
from chop.export.c import source as c_source
from chop.export.c import target as c_target
from chop.export.c.code import c_type
from chop.export.c.costs import WeightMatrix, choose_forms
from chop.export.c.entries import FloatEntries
from chop.export.c.source import c_program, source_text
from chop.lowering import LoweringError, lower
from chop.lowering.program import Requantise
from chop.models.vision import vgg7
from chop.preprocessing import Preprocessing, Targets


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
        "model.c",
        "model.h",
        "model_test.c",
        "manifest.json",
    }


@pytest.mark.parametrize("rounding", ["half_even", "half_up"])
@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
def test_modes(rounding: str, overflow: str, tmp_path: Path) -> None:
    config = integer(6, 3, 5, 3, rounding=rounding, overflow=overflow)
    graph, _ = example("jsc-mlp", rules={"linear": config})
    assert export(graph, "c", tmp_path / "c").verified_rows == 2000


class LimitedAlike(nn.Module):
    """Two layers read the same numbers, one of them with limits for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        limited = torch.clamp(self.a(x), -2, 2)
        both: Tensor = self.b(limited) + self.c(limited)
        return both


def test_roundings_alike_with_one_limit_and_with_one_for_each_channel(tmp_path: Path) -> None:
    sizes = integer(8, 3)["config"]
    rules: dict[str, Any] = {name: {"config": sizes} for name in "ab"}
    rules |= {"by": "name", "c": {"config": sizes | {"data_in_width": [5, 6, 7, 8]}}}
    q = chop.quantize(LimitedAlike().eval(), torch.randn(2, 6), rules)
    done = export(q.graph, "c", tmp_path / "c", rows=60)
    assert done.verified_rows == 60


def test_sums_of_more_than_32_bits(tmp_path: Path) -> None:
    graph, _ = example("jsc-mlp", rules={"linear": integer(18, 9, 18, 12)})
    done = export(graph, "c", tmp_path / "c")
    assert done.manifest["accumulator_bits"] > 32
    assert not done.manifest["float32_is_exact"]
    assert "int64_t sum" in (done.folder / "model.c").read_text()


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
        model = nn.Sequential(*(nn.Linear(28, 28) for _ in range(depth)))
        program = lower(quantised(model, torch.randn(3, 28), {"linear": integer()}))
        made, entries = c_program(program), FloatEntries(program)
        texts.append(source_text(made, entries, "layers", ""))
    few, many = (text.count("static void ") for text in texts)
    assert many < few + 3  # of types that not every layer has
    assert texts[1].count("    layer") > 25


def test_the_test_program_runs_by_itself(tmp_path: Path) -> None:
    graph, _ = example("jsc-tiny")
    folder = export(graph, "c", tmp_path / "c", rows=0).folder
    command = ["cc", "-std=c99", "model.c", "model_test.c", "-o", "run"]
    subprocess.run(command, cwd=folder, check=True)
    row = " ".join(["3"] * 16)
    printed = subprocess.run(
        [folder / "run"], input=row, capture_output=True, text=True, check=True
    )
    assert len(printed.stdout.split()) == 5


def test_memory_is_the_callers(tmp_path: Path) -> None:
    graph, _ = example("pools")
    done = export(graph, "c", tmp_path / "c", rows=20)
    assert not re.search(r"^static (?!const|inline|MODEL|void|int|unsigned|union)",
                         (done.folder / "model.c").read_text(), re.MULTILINE)  # fmt: skip
    facts = done.manifest["c"]
    assert facts["reentrant"]
    buffers = facts["memory"]["buffers"]
    assert facts["scratch_bytes"] >= max(each["offset"] + each["bytes"] for each in buffers)
    for one in buffers:
        for other in buffers:
            together = one["from"] <= other["to"] and other["from"] <= one["to"]
            apart = one["offset"] + one["bytes"] <= other["offset"]
            apart |= other["offset"] + other["bytes"] <= one["offset"]
            assert one is other or apart or not together


def test_scratch_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    folder = export(example("jsc-tiny")[0], "c", tmp_path / "c", rows=0).folder
    (folder / "main.c").write_text("""
#include "model.h"
#include <stdio.h>
static uint64_t memory[MODEL_SCRATCH_BYTES / 8 + 2];
int main(void) {
    int8_t input[MODEL_INPUT_SIZE] = {0};
    int32_t output[MODEL_OUTPUT_SIZE];
    printf("%d ", model_predict(input, (void *)output, memory));
    printf("%d ", model_predict(input, (void *)output, (char *)memory + 1));
    printf("%d", model_predict(input, (void *)output, 0));
    return 0;
}
""")
    for macro, wanted in (("-DX", "0 1 1"), ("-DMODEL_STATIC_SCRATCH", "0 1 0")):
        command = ["cc", "-std=c99", "-w", macro, "model.c", "main.c", "-o", "run"]
        subprocess.run(command, cwd=folder, check=True)
        shown = subprocess.run([folder / "run"], capture_output=True, text=True, check=True)
        assert shown.stdout == wanted


@pytest.mark.parametrize("name", ["2nd", "a-b", "int", "", "a" * 42])
def test_a_name_that_c_does_not_take(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a name for C"):
        export(example("jsc-tiny")[0], "c", tmp_path / "c", name=name)


def test_a_name_of_ones_own(tmp_path: Path) -> None:
    done = export(example("jsc-tiny")[0], "c", tmp_path / "c", rows=20, name="jets")
    assert {"jets.c", "jets.h", "jets_test.c"} <= {each.name for each in done.folder.iterdir()}
    assert (
        "int jets_predict_class(const float *features, void *scratch);"
        in (done.folder / "jets.h").read_text()
    )


def test_features_are_scaled_as_for_training(tmp_path: Path) -> None:
    scaling = Preprocessing(
        "features", tuple(i / 7 for i in range(16)), tuple(0.3 + i / 5 for i in range(16)), 3.0,
        classes=("g", 'q"\\', "t??/", "w", "zé"),
    )  # fmt: skip
    done = export(example("jsc-mlp")[0], "c", tmp_path / "c", preprocessing=scaling)
    text = (done.folder / "model.h").read_text()
    assert "#define MODEL_CLASSES 5" in text
    assert "scaled as for training" in text
    assert done.verified_rows == 2000


def test_numbers_that_are_predicted_are_scaled_back(tmp_path: Path) -> None:
    targets = Targets((0.1, 2.0, -3.0, 0.7, 0.0), (1.5, 0.3, 7.0, 1.0, 0.01))
    scaling = Preprocessing("features", (0.0,) * 16, (1.0,) * 16, targets=targets)
    assert export(example("jsc-mlp")[0], "c", tmp_path / "c", preprocessing=scaling).verified_rows


def test_the_header_is_for_cpp_too(tmp_path: Path) -> None:
    folder = export(example("jsc-mlp")[0], "c", tmp_path / "c", rows=0).folder
    (folder / "use.cpp").write_text('#include "model.h"\nint main() { return MODEL_OK; }\n')
    subprocess.run(["g++", "-Wall", "-Werror", "use.cpp", "-o", "use"], cwd=folder, check=True)


def test_rounding_comes_before_maxima_and_nothing_is_stored_in_32_bits() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Flatten(), nn.Linear(8 * 64, 4))  # fmt: skip
    rules = {name: integer(8, 4, 8, 6) for name in ("conv2d", "linear")}
    program = lower(quantised(model, torch.randn(2, 3, 16, 16), rules))
    made = c_program(program)
    kinds = [[type(step).__name__ for step in layer.steps] for layer in made.layers]
    assert kinds == [["Convolution", "Requantise"], ["Pool", "Move"], ["Product"]]
    assert made.scratch_bytes < 8 * 256 + 3 * 256 + 4 * 256 + 600


def test_every_form_of_weights_gives_the_same_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer has the next of the forms that its weights allow; some weights are zero."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 3, stride=2), nn.ReLU(),
        nn.Conv2d(5, 7, 1), nn.Conv2d(7, 4, 2), nn.ReLU(), nn.Conv2d(4, 6, 2), nn.Flatten(),
        nn.Linear(24, 19), nn.ReLU(), nn.Linear(19, 18), nn.Linear(18, 17), nn.ReLU(),
        nn.Linear(17, 9), nn.Linear(9, 3),
    )  # fmt: skip
    for layer in (each for each in model if hasattr(each, "weight")):
        layer.weight.data *= (torch.rand_like(layer.weight) < 0.4) * 3
    rules = {name: integer(8, 4, 2, 1, rounding="half_up") for name in ("conv2d", "linear")}
    program = lower(quantised(model, torch.randn(2, 3, 9, 9), rules))
    forms = ("packed 2", "packed 4", "packed 6", "sparse", "code")
    chosen: dict[str, str] = {}

    def each_form(matrices: dict[str, WeightMatrix], optimise: str) -> dict[str, str]:
        for (name, matrix), form in zip(matrices.items(), cycle(forms), strict=False):
            assert form in matrix.forms
            chosen[name] = form
        return chosen

    monkeypatch.setattr(c_source, "choose_forms", each_form)
    done = export(program, "c", tmp_path / "c", rows=300)
    assert done.verified_rows == 300
    assert done.manifest["verified"]["distinct_outputs"] > 50
    assert sorted(chosen.values()) == sorted(2 * forms)


@pytest.mark.parametrize(
    "facts",
    [
        {"kernel_size": 3, "padding": 1, "stride": 4},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 2, "dilation": 3},
        {"kernel_size": (5, 2), "padding": (1, 0), "dilation": (1, 2), "stride": 3},
    ],
)
def test_a_single_window_beside_the_map_or_around_it(facts: dict[str, Any], tmp_path: Path) -> None:
    """A window that gives one pixel need not be the whole map that it reads from."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU(), nn.Conv2d(3, 5, **facts))
    graph = quantised(model, torch.randn(2, 2, 4, 4), {"conv2d": integer(8, 4, 8, 5)})
    done = export(graph, "c", tmp_path / "c", rows=100)
    assert done.manifest["verified"]["distinct_outputs"] > 50


class JoinedUp(nn.Module):
    """Maps of two sizes joined channel by channel, as U-Net does."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.up = nn.Conv2d(2, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 2, 2)
        self.last = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.last(torch.cat([self.up(nn.functional.max_pool2d(x, 2)), x], 1))


def test_maps_joined_channel_by_channel_are_tables_and_not_a_loop_for_each_pixel(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    rules = {name: integer(8, 4, 8, 5) for name in ("conv2d", "conv_transpose2d")}
    graph = quantised(JoinedUp(), torch.randn(2, 2, 12, 12), rules)
    done = export(graph, "c", tmp_path / "c", rows=50)
    assert done.manifest["verified"]["distinct_outputs"] > 25
    assert (tmp_path / "c" / "model.c").read_text().count("for (") < 60


def test_zeros_and_few_magnitudes_are_statements_and_dense_bytes_are_rows() -> None:
    dense = np.random.default_rng(0).integers(-128, 128, (32, 32))
    sparse = np.where(np.arange(1024).reshape(32, 32) % 9 == 0, 4, 0)
    for weight, by_size, by_speed in ((dense, "rows", "rows"), (sparse, "sparse", "code")):
        found = {"y": WeightMatrix(weight, 1, 2**20)}
        assert choose_forms(found, "size") == {"y": by_size}
        assert choose_forms(found, "speed") == {"y": by_speed}
    few = {"y": WeightMatrix(dense // 16, 1, 2**20)}
    assert choose_forms(few, "size") == {"y": "packed 4"}


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
    with pytest.raises(LoweringError, match="_1 has no tables"):
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
