"""Testing: the numbers, the printed report and the stored one."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import train_bench as bench
from torch import nn
from train_bench import MemoryLogger

from chop import actions
from chop.cli import main
from chop.dataset import MaseDataModule
from chop.errors import DataError, TrainingError
from chop.figures import wilson_interval
from chop.models import get_model_info
from chop.training.metrics import (
    Evaluation,
    accuracy,
    evaluate_model,
    summed_loss,
)


class Fixed(nn.Module):
    """Knows the answer: the class is the sign of the sum of the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.scale * x.flatten(1).sum(dim=1, keepdim=True)
        return torch.cat([-total, total], dim=1)


def run(model: nn.Module, **given: object) -> Evaluation:
    data = MaseDataModule("toy_tiny", 1000)
    result: Evaluation = actions.test(
        model, get_model_info("toy"), data, data.dataset_info, **given
    )
    return result


def test_a_perfect_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(Fixed(), save_path=tmp_path)
    assert (result.accuracy, result.rows) == (1.0, 10_240)
    assert result.confusion.diagonal().sum() == 10_240
    shown = capsys.readouterr().out
    for text in ("Testing model 'toy'...", "Test rows: 10,240", "Testing is completed"):
        assert text in shown
    stored = json.loads((tmp_path / "test_results.json").read_text())
    assert stored["test_acc_epoch"] == 1.0
    assert stored["test_loss_epoch"] == pytest.approx(result.loss)
    assert stored["confusion_matrix"] == result.confusion.tolist()
    run(Fixed(), save_path=tmp_path)
    assert (tmp_path / "test_results-v1.json").exists()


@pytest.mark.parametrize("split", ["test", "val"])
def test_figures_are_called_after_the_rows_they_are_of(
    split: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = MemoryLogger()
    result = run(Fixed(), save_path=tmp_path, split=split, visualizer=logged)
    names = {f"{split}_acc_epoch", f"{split}_loss_epoch"}
    stored = json.loads((tmp_path / "test_results.json").read_text())
    assert {name for name in stored if name.endswith("_epoch")} == names
    assert stored[f"{split}_acc_epoch"] == result.accuracy
    assert stored["split"] == split
    assert [set(metrics) for _, metrics in logged.logged] == [names]
    shown = capsys.readouterr().out.splitlines()
    labels = [line.split()[0] for line in shown if "_epoch" in line]
    assert labels == [f"{split}_acc_epoch", f"{split}_loss_epoch"]


@pytest.mark.parametrize("precision", ["32", "64", "bf16-mixed"])
def test_precision_is_that_of_the_run_and_not_of_the_model(precision: str) -> None:
    seen = []
    model = Fixed()
    model.register_forward_hook(lambda module, args, out: seen.append((args[0] @ args[0].mT).dtype))
    assert run(model, precision=precision).accuracy == 1.0
    wanted = {"32": torch.float32, "64": torch.float64, "bf16-mixed": torch.bfloat16}
    assert seen[0] == torch.float32  # the first look
    assert set(seen[1:]) == {wanted[precision]}
    assert model.scale.dtype == torch.float32


def test_rows_are_where_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that computes nothing, as there is none here that does."""
    seen = {}

    def look(
        model: nn.Module, batches: Iterator[Any], device: torch.device, targets: Any
    ) -> Evaluation:
        (weight,) = model.parameters()
        features, labels = next(batches)
        seen.update(model=weight.device, rows=features.device, labels=labels.device, asked=device)
        return Evaluation(0.5, torch.eye(2))

    meta = torch.device("meta")
    monkeypatch.setattr("chop.training.job.device_of", lambda accelerator: meta)
    monkeypatch.setattr("chop.training.job.evaluate_model", look)
    model = Fixed()
    run(model)
    assert set(seen.values()) == {meta}
    assert model.scale.device.type == "cpu"


def test_scores_that_are_no_numbers_are_one_line() -> None:
    model = Fixed()
    model.scale.data.fill_(torch.inf)
    with pytest.raises(TrainingError, match="the test loss is nan: some scores"):
        run(model)


@pytest.mark.parametrize("classes", [2, 5, 7, 8, 20])
@pytest.mark.parametrize("rows", [1, 255, 256, 4_000])
def test_the_summed_loss_is_that_of_torch(rows: int, classes: int) -> None:
    torch.manual_seed(0)
    logits, labels = 9 * torch.randn(rows, classes), torch.randint(classes, (rows,))
    exact = F.cross_entropy(logits.double(), labels, reduction="sum")
    torch.testing.assert_close(summed_loss(logits, labels).double(), exact, rtol=1e-6, atol=1e-6)


def test_the_numbers_are_those_of_torch(tmp_path: Path) -> None:
    model = bench.toy_model()
    data = MaseDataModule("toy_tiny", 1000)
    features, labels = data.test_dataset.tensors  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = model.eval()(features)
    result = run(model)
    assert result.accuracy == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert result.loss == pytest.approx(
        float(nn.functional.cross_entropy(logits, labels)), rel=1e-5
    )
    for label in (0, 1):
        rows = labels == label
        share = float((logits.argmax(1)[rows] == label).float().mean())
        assert result.per_class[label] == pytest.approx(share)
        assert int(result.confusion[label].sum()) == int(rows.sum())


def test_evaluate_leaves_the_mode_of_the_model_alone() -> None:
    model = bench.dropout_model().train()
    batches = list(MaseDataModule("toy_tiny", 2048).test_dataloader())
    assert evaluate_model(model, batches).loss == evaluate_model(model, batches).loss
    assert model.training
    with pytest.raises(DataError, match="no rows"):
        evaluate_model(model, [])


def test_accuracy_is_the_fraction_right() -> None:
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert float(accuracy(logits, torch.tensor([0, 1, 1]))) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        (81, 100, 0.7222, 0.8749),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 2, 0.0945, 0.9055),
    ],
)
def test_the_confidence_interval_is_wilsons(
    right: int, total: int, low: float, high: float
) -> None:
    assert wilson_interval(right, total) == pytest.approx((low, high), abs=1e-4)


def test_a_class_without_rows_has_no_accuracy() -> None:
    result = Evaluation(0.5, torch.tensor([[3, 1], [0, 0]]))
    assert math.isnan(result.per_class[1])
    assert result.as_dict()["per_class_accuracy"] == {"0": 0.75, "1": None}


def test_the_command_line_tests_what_it_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["jsc-tiny", "jsc-sim", "--project-dir", str(tmp_path), "--project", "p"]
    common += ["--batch-size", "1024", "--accelerator", "cpu"]
    assert main(["train", *common, "--max-epochs", "1", "--learning-rate", "1e-2"]) == 0
    software = tmp_path / "p" / "software"
    load = ["--load", str(software / "training_ckpts" / "best.ckpt"), "--load-type", "pl"]
    capsys.readouterr()
    assert main(["test", *common, *load]) == 0
    trained = capsys.readouterr().out
    assert "Loaded pytorch lightning checkpoint from" in trained
    assert "stand-in" in trained, "the rows must be named as what they are"
    assert "UNTRAINED" not in trained
    assert main(["test", *common]) == 0
    assert "UNTRAINED" in capsys.readouterr().out
    first, second = (
        json.loads((software / "checkpoints" / name).read_text())
        for name in ("test_results.json", "test_results-v1.json")
    )
    assert first["test_acc_epoch"] > 0.4
    assert first["test_loss_epoch"] < second["test_loss_epoch"]
    assert list(software.glob("tensorboard/lightning_logs/version_*/events*"))
