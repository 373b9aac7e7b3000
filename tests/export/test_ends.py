"""Raw features in and the class out of circuits, against float32 and NumPy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from circuits import needs
from torch import nn

import chop
from chop.errors import ChopError
from chop.export.ends import RawFormat, rows_with_ends, with_class, with_scaling
from chop.export.exporting import export
from chop.export.rows import checked_rows
from chop.export.verilog import bench
from chop.export.verilog.synthesis import DEVICE_SIZES
from chop.lowering import Engine, IntegerProgram, lower
from chop.preprocessing import Preprocessing

PIXELS = Preprocessing("channels", (0.4, 0.6), (0.2, 0.3), 255.0)
FEATURES = Preprocessing("features", (3.0, -2.0, 0.0), (1.5, 0.7, 4.0))


@pytest.fixture(scope="module")
def networks() -> dict[str, IntegerProgram]:
    torch.manual_seed(0)
    image = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5))
    plain = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():  # two scores are always equal
        plain[2].weight[2], plain[2].bias[2] = plain[2].weight[1], plain[2].bias[1]
    shapes = {"image": (image, (2, 4, 4)), "plain": (plain, (3,))}
    return {
        name: lower(chop.quantize(net, width=4, calibrate=[torch.randn(32, *shape)]).graph)
        for name, (net, shape) in shapes.items()
    }


@pytest.fixture(autouse=True)
def icarus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "simulator_found", lambda: "iverilog")


@pytest.mark.parametrize("name", ["image", "plain"])
def test_the_class_is_the_first_of_the_largest(
    networks: dict[str, IntegerProgram], name: str
) -> None:
    program = networks[name]
    rows = checked_rows(program, 200)
    (found,) = Engine(with_class(program), "int64").run(rows.codes)
    scores = Engine(program).numbers(rows.outputs)[0].numpy()
    assert np.array_equal(found.numpy()[:, 0], scores.argmax(1))
    assert len(set(scores.argmax(1))) > 1
    if name == "plain":
        assert (scores[:, 1] == scores[:, 2]).all()


@pytest.mark.parametrize(
    ("name", "raw", "scaling"), [("image", "u8", PIXELS), ("plain", "s8.4", FEATURES)]
)
def test_raw_features_are_scaled_as_in_float(
    networks: dict[str, IntegerProgram], name: str, raw: str, scaling: Preprocessing
) -> None:
    program, form = networks[name], RawFormat.parse(raw)
    made = with_scaling(program, form, scaling)
    rows = rows_with_ends(checked_rows(program, 100), made, form, scaling, argmax=False)
    (found,) = Engine(made, "int64").run(rows.codes)
    assert torch.equal(found, rows.outputs[0])
    assert len(rows.codes["raw"].unique()) > 50


@needs("iverilog")
@pytest.mark.parametrize("folded", [True, False])
def test_circuits_with_both_ends_are_simulated(
    networks: dict[str, IntegerProgram], folded: bool, tmp_path: Path
) -> None:
    name, raw, scaling = ("image", "u8", PIXELS) if folded else ("plain", "s8.4", FEATURES)
    settings = {"raw": raw, "argmax": True, "preprocessing": scaling, "folded": folded}
    done = export(networks[name], "verilog", tmp_path / "v", rows=12, **settings)
    assert done.verified_rows == 12
    top = (done.folder / "top.sv").read_text()
    assert "raw" in top.split("module")[0]
    assert "class" in top.split("module")[0]


def test_ends_that_cannot_be_are_refused(networks: dict[str, IntegerProgram]) -> None:
    for settings, words in (
        ({"raw": "u8"}, "nothing says how"),
        ({"raw": "float"}, "such as u8 or s10.4, not 'float'"),
        ({"raw": "u16"}, "at most 10"),
        ({"raw": "u8", "preprocessing": FEATURES}, "do not have 3 features"),
        ({"device": "ecp5-1k"}, "unknown device 'ecp5-1k'"),
    ):
        with pytest.raises(ChopError, match=words):
            export(networks["image"], "verilog", rows=0, folded=True, **settings)


def test_a_device_that_is_too_small_is_named() -> None:
    size = DEVICE_SIZES["ecp5-25k"]
    size.refuse("ecp5-25k", 10_500, 28.0)
    with pytest.raises(ChopError, match="about 11,000 look-up .*has as much as 10,560 .*288"):
        size.refuse("ecp5-25k", 11_000, 1.0)
    with pytest.raises(ChopError, match="memories .* about 70 RAMB36, and ecp5-25k has as much as"):
        size.refuse("ecp5-25k", 1_000, 70.0)


def test_images_of_another_size_and_float_parts_are_refused(tmp_path: Path) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(1, 2, 3), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.last(torch.fft.fft(self.conv(x)).real.flatten(1))
            return found

    half = chop.quantize(Half(), width=4, calibrate=[torch.randn(8, 1, 4, 4)])
    with pytest.raises(ChopError, match="fft"):
        export(half, "verilog", tmp_path / "half", rows=0, folded=True)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    whole = chop.quantize(net, width=4, calibrate=[torch.randn(8, 1, 4, 4)])
    with pytest.raises(ChopError, match=r"rows of \[1, 4, 4\], not \[1, 5, 5\]"):
        export(whole, "verilog", tmp_path / "v", inputs={"x": torch.randn(4, 1, 5, 5)}, folded=True)
    assert not list(tmp_path.iterdir())
