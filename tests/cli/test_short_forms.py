"""``ch train my_net.py:Net my_data.csv``: a model and rows of one's own, without registration."""

import csv
from pathlib import Path

import pytest
import torch

from chop.cli import main
from chop.config.layers import spelled_out
from chop.errors import ConfigError
from chop.models.info import MODELS

NET = """
from torch import nn

class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    def forward(self, x):
        return self.layers(x)
"""
SETTINGS = """
batch_size = 50
[passes.quantize]
by = "type"
linear.config = {name = "integer", data_in_width = 8, weight_width = 8}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS))  # without what is added when this ends
    with Path("rows.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["a", "b", "c", "y"])
        for row in torch.randn(200, 3).tolist():
            writer.writerow([*row, "up" if sum(row) > 0 else "down"])
    return tmp_path


def test_a_model_and_rows_of_ones_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_net.py").write_text(NET.format(name="ShortFormNet"))
    Path("run.toml").write_text(SETTINGS)
    words = ["my_net.py:ShortFormNet", "rows.csv", "--label-column", "y"]
    where = ["--config", "run.toml", "--project", "p"]
    assert main(["train", *words, *where, "--max-epochs", "1"]) == 0
    assert main(["transform", *words, *where, "--load", "mase_output/p"]) == 0
    assert "before, " in capsys.readouterr().out
    assert main(["test", *words, *where, "--load", "mase_output/p"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["my_net.py:Nett", "rows.csv"], "has no class or function 'Nett': known are SecondNet"),
        (["nothere.py:Net", "rows.csv"], "nothere.py: there is no such Python file to import"),
        (["jsc-tiny", "nothere.csv"], "there is no file or folder nothere.csv"),
        (["jsc-tiny", "rows.csv", "--dataset-path", "x.csv"], "both name the rows"),
    ],
)  # fmt: skip
def test_mistakes(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    Path("my_net.py").write_text(NET.format(name="SecondNet"))
    Path("x.csv").write_text("a\n")
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("mase_output").exists()


def test_a_file_cannot_have_code_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_net.py").write_text("raise SystemExit('ran')")
    Path("run.toml").write_text('model = "my_net.py:Net"\ndataset = "jsc-sim"\n')
    assert main(["train", "--config", "run.toml"]) == 2
    assert "unknown model 'my_net.py:Net'" in capsys.readouterr().err


def test_short_forms() -> None:
    given = {"model": "a/b.py:Net", "dataset": "rows.NPZ", "imports": ["x.py"]}
    assert spelled_out(given) == {
        "model": "Net",
        "dataset": "npz",
        "dataset_path": "rows.NPZ",
        "imports": ["x.py", "a/b.py:Net"],
    }
    assert spelled_out({"model": "hf:bert"}) == {"model": "hf:bert"}
    with pytest.raises(ConfigError):
        spelled_out({"dataset": "x.csv", "dataset_path": "y.csv"})
