"""Folded circuits, simulated under backpressure against the engine."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from circuits import needs
from torch import nn

import chop
from chop.errors import ChopError, ConfigError, GraphError
from chop.export.exporting import export
from chop.export.rows import checked_rows
from chop.export.verilog import bench
from chop.export.verilog.folded.builder import NodeBuilder
from chop.export.verilog.folded.circuit import check_circuit, plan_circuit, write_circuit
from chop.export.verilog.folded.nodes import Matrix
from chop.export.verilog.target import Hardware
from chop.lowering import IntegerProgram, lower


class Around(nn.Module):
    """A way around two convolutions, pools side by side and overlapping, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu, self.pool, self.over = nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1)
        self.linear = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.first(x))
        x = self.relu(x + self.two(self.relu(self.one(x))))
        found: torch.Tensor = self.linear(self.over(self.pool(x)).flatten(1))
        return found


def separable() -> nn.Module:
    """Strides, channels each by themselves, a table, an average, sizes that do not divide."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.ReLU(),
        nn.Conv2d(4, 6, 1), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


def small() -> nn.Module:
    """A convolution and a linear layer."""
    layers = (nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 8))
    return nn.Sequential(*layers)


class Sequence(nn.Module):
    """A row as a sequence, a way around a convolution, three values side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 2, 3, padding=1), nn.Conv1d(2, 2, 3, padding=1)
        self.relu, self.linear = nn.ReLU(), nn.Linear(48, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.first(x.unsqueeze(1)))
        y = self.relu(x + self.second(x))
        found: torch.Tensor = self.linear(
            torch.cat([x, y, self.relu(self.second(y))], 1).flatten(1)
        )
        return found


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "around": (Around, (2, 5, 6)),
    "separable": (separable, (2, 9, 7)),
    "sequence": (Sequence, (8,)),
    "small": (small, (2, 4, 4)),
}


@pytest.fixture(scope="module")
def programs() -> dict[str, IntegerProgram]:
    torch.manual_seed(0)
    found = {}
    for name, (make, shape) in NETS.items():
        rows = torch.randn(32, *shape)
        found[name] = lower(chop.quantize(make(), width=5, calibrate=[rows]).graph)
    return found


@pytest.fixture(autouse=True)
def icarus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "simulator_found", lambda: "iverilog")


@needs("iverilog")
@pytest.mark.parametrize(
    ("name", "cycles"),
    [("around", 600), ("separable", 400), ("sequence", 400), ("separable", 99), ("sequence", 10)],
)
def test_images_are_equal_under_backpressure_in_the_cycles_asked_for(
    programs: dict[str, IntegerProgram], name: str, cycles: int, tmp_path: Path
) -> None:
    hardware = Hardware(folded=True, cycles=cycles)
    done = export(programs[name], "verilog", tmp_path / "v", rows=3, options=hardware)
    assert done.verified_rows == 3
    circuit = done.manifest["circuit"]
    assert circuit["cycles_per_image"] <= cycles
    counted = int(done.manifest["checked_with"].split("interval of ")[1].split()[0])
    assert counted <= 1.05 * circuit["cycles_per_image"] + 5


def other_word(folder: Path, kind: str) -> None:
    """Another bit in the first word of a memory of the last layer, which nothing rounds."""
    path = max(folder.glob(f"{kind}_*.hex"), key=lambda path: int(path.stem.split("_")[1]))
    first, rest = path.read_text().split("\n", 1)
    path.write_text(f"{int(first, 16) ^ 1:0{len(first)}x}\n{rest}")


CHANGES = {
    "another stride of an address": ("blocks", "across + DW*CF;", "across + DW*CF + 1;"),
    "ready although there is no room": ("blocks", "s_ready = ~full;\n  //", "s_ready = 1;\n  //"),
    "sums go on while nobody takes them": ("blocks", ".go(go & live[L-1])", ".go(live[L-1])"),
    "a beat twice": ("blocks", "m_valid <= there;", "m_valid <= there | (m_valid & s_valid);"),
    "a beat is lost": ("blocks", "assign go = ~m_valid | m_ready;", "assign go = 1;"),
    "a column too many": ("blocks", "across < W*CF", "across <= W*CF"),
    "a row is given up too early": ("blocks", "first < top", "first <= top"),
    "another slot after an image": ("blocks", "base <= base + H", "base <= base + H + 1"),
    "a bias too late": ("blocks", "live[L-3] & tail[L-3]", "live[L-2] & tail[L-2]"),
    "a function goes on while nobody takes it": ("top", ".enable(go", ".enable(1'b1 | go"),
    "another rounding": ("primitives", "wire over =", "wire over = 0 &"),
    "ties to odd": ("primitives", "q[0] & (|", "~q[0] & (|"),
}  # fmt: skip


@needs("iverilog")
def test_mutations_are_seen(programs: dict[str, IntegerProgram], tmp_path: Path) -> None:
    for name in ("weights", "bias", *CHANGES):
        is_fast = name == "a function goes on while nobody takes it"  # its reader has no buffer
        program, cycles = programs["separable" if is_fast else "small"], 99 if is_fast else 300
        plan, rows = plan_circuit(program, cycles, 10**6), checked_rows(program, 3)
        (folder := tmp_path / name.replace(" ", "_")).mkdir()
        write_circuit(plan, folder, {})
        if name in CHANGES:
            file, before, after = CHANGES[name]
            text = (folder / f"{file}.sv").read_text()
            assert before in text, name
            (folder / f"{file}.sv").write_text(text.replace(before, after))
        else:
            other_word(folder, name)
        with pytest.raises(GraphError, match="verilog: "):
            pytest.fail(f"{name}: {check_circuit(plan, folder, rows)}")


@needs("iverilog")
def test_a_queue_that_is_too_small_is_named(
    programs: dict[str, IntegerProgram], tmp_path: Path
) -> None:
    program = programs["around"]
    ((edge, depth),) = plan_circuit(program, 600, 10**6).queues.items()
    assert depth >= 24
    plan = plan_circuit(program, 600, 10**6, {edge: 4})
    write_circuit(plan, tmp_path, {})
    with pytest.raises(GraphError, match=f"deadlock: beats wait for ever from {edge}"):
        check_circuit(plan, tmp_path, checked_rows(program, 2))


@pytest.mark.parametrize("kind", ["folded", "stream"])
def test_a_bench_for_cocotb_names_the_ports_of_its_module(
    programs: dict[str, IntegerProgram], kind: str, tmp_path: Path
) -> None:
    small = lower(chop.quantize(nn.Linear(3, 2), width=4, calibrate=[torch.randn(8, 3)]).graph)
    program, top = (programs["small"], "top") if kind == "folded" else (small, "top_axis")
    done = export(program, "verilog", tmp_path / "v", rows=0, cocotb=True, **{kind: True})
    text = (done.folder / f"{top}.sv").read_text()
    header = text[text.index(f"module {top} (") : text.index(");", text.index(f"module {top} ("))]
    bench_text = (done.folder / "test_top.py").read_text()
    compile(bench_text, "test_top.py", "exec")
    named = set(re.findall(r"dut\.(\w+)", bench_text))
    assert len(named) >= 8
    assert named <= set(re.findall(r"\w+", header))
    assert f"COCOTB_TOPLEVEL = {top}\n" in (done.folder / "Makefile").read_text()
    with pytest.raises(ConfigError, match="cocotb drives streams"):
        Hardware(cocotb=True)


def test_less_time_takes_more_at_once(programs: dict[str, IntegerProgram]) -> None:
    costs = [plan_circuit(programs["around"], cycles, 10**6) for cycles in (5000, 600)]
    slow, fast = (sum(fold.gives * fold.reads for fold in plan.folds.values()) for plan in costs)
    assert slow < fast
    nodes = NodeBuilder(programs["around"]).build()
    matrices = [node for node in nodes.values() if isinstance(node, Matrix)]
    assert sum(node.macs for node in matrices) == 30 * 4 * 9 * (2 + 4 + 4) + 24


def test_what_cannot_be_met_is_said(programs: dict[str, IntegerProgram]) -> None:
    program = programs["around"]
    with pytest.raises(GraphError, match="50 cycles .* the slowest layer takes 56"):
        plan_circuit(program, 50, 10**6)
    with pytest.raises(GraphError, match="would need about .* and 50 are allowed"):
        plan_circuit(program, None, 50)
    with pytest.raises(ConfigError, match="cycles are for a folded circuit"):
        Hardware(cycles=3)
    with pytest.raises(ConfigError, match="not for a folded circuit"):
        Hardware(folded=True, stages=2)
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 2))
    quantised = chop.quantize(model, width=5, calibrate=[torch.randn(8, 4, 4, 4)])
    with pytest.raises(ChopError, match="_0 cannot be folded: it has 2 groups"):
        export(quantised, "verilog", rows=0, folded=True)


def test_look_up_tables_choose_the_cycles(programs: dict[str, IntegerProgram]) -> None:
    plans = [plan_circuit(programs["separable"], None, luts) for luts in (1500, 3000)]
    assert plans[0].cycles > plans[1].cycles
    with pytest.raises(GraphError):
        plan_circuit(programs["separable"], plans[0].cycles - 1, 1500)
    assert np.isfinite(plans[0].cycles)
