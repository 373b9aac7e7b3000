"""Networks that reproduce rows: trained without odd ones, which their errors tell."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chop
from chop.cli import main
from chop.dataset import MaseDataModule
from chop.errors import ConfigError, UnknownNameError
from chop.models import get_model
from chop.preprocessing import Targets, set_preprocessing
from chop.training.results import RegressionTally, area_under_curve

FEATURES = 12


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Rows on a plane of three dimensions, and some beside it."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 3)) @ rng.normal(size=(3, FEATURES))
    odd = rng.random(len(rows)) < 0.2
    rows[odd] = rng.normal(size=(int(odd.sum()), FEATURES))
    path = tmp_path / "machine.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*(f"f{place}" for place in range(FEATURES)), "state"])
        writer.writerows(
            [*row, "odd" if is_odd else "fine"] for row, is_odd in zip(rows, odd, strict=True)
        )
    return path


def test_training_sees_no_odd_row_and_each_row_is_its_own_target(machine: Path) -> None:
    options = {"path": machine, "label_column": "state"}
    classes = MaseDataModule("csv", 64, **options)
    data = MaseDataModule("csv", 64, **options, task="regression", odd_class="odd")
    info = data.dataset_info
    assert (info.num_targets, info.num_classes, info.regression) == (FEATURES, None, True)
    odd = classes.dataset_info.class_names.index("odd")
    for split in ("train", "validation", "test"):
        rows, labels = classes.split(split).tensors
        found, wanted = data.split(split).tensors
        kept = labels != odd if split == "train" else torch.ones_like(labels, dtype=torch.bool)
        assert torch.equal(found, rows[kept])
        assert torch.equal(wanted[:, :-1], rows[kept])
        assert torch.equal(wanted[:, -1], (labels[kept] == odd).float())


def test_the_classes_of_a_data_set_are_known_by_its_description() -> None:
    data = MaseDataModule("toy_tiny", 64, task="regression", odd_class="1")
    assert data.dataset_info.num_targets == data.split("train").tensors[0][0].numel()
    model = get_model("autoencoder-ad", "regression", dataset_info=data.dataset_info)
    rows, labels = next(iter(data.test_dataloader()))
    assert model.eval()(rows).shape == labels[:, :-1].shape


def test_pairs_are_counted_as_auc_means() -> None:
    torch.manual_seed(0)
    errors, odd = torch.randint(0, 8, (200,)).double(), torch.rand(200) < 0.3
    pairs = errors[odd][:, None] - errors[~odd][None]
    expected = float((pairs > 0).double().mean() + (pairs == 0).double().mean() / 2)
    halves = [(errors[:90], odd[:90]), (errors[90:], odd[90:])]
    found = area_under_curve(halves)
    assert found is not None
    assert found.value == pytest.approx(expected, abs=1e-12)
    assert found.low < found.value < found.high
    assert area_under_curve([(errors[odd], odd[odd])]) is None
    perfect = area_under_curve([(odd.double(), odd)])
    assert perfect is not None
    assert (perfect.value, perfect.high) == pytest.approx((1.0, 1.0))
    assert 0.8 < perfect.low < 1.0  # few rows are no proof


def test_from_a_file_to_the_errors_of_its_rows(machine: Path, tmp_path: Path) -> None:
    given = ["--dataset-path", str(machine), "--label-column", "state", "--odd-class", "odd"]
    fast = ["--max-epochs", "6", "--batch-size", "32", "--learning-rate", "1e-2"]
    words = ["train", "autoencoder-ad", "csv", *given, "--task", "regression", *fast]
    assert main([*words, "--project", "ad"]) == 0
    assert main(["test", "--load", "mase_output/ad"]) == 0  # the project knows the odd class
    folder = tmp_path / "mase_output" / "ad" / "software"
    (file,) = folder.rglob("test_results.json")
    result = json.loads(file.read_text())
    low, high = result["auc_95_percent_interval"]
    assert 0.8 < result["test_auc_epoch"] <= 1.0
    assert low < high
    assert result["odd_rows"] + result["rows"] == 80  # a fifth of the file
    assert main(["quantize", "--load", "mase_output/ad", "--width", "8"]) == 0
    assert main(["test", "--load", str(folder / "transform" / "transformed_ckpt")]) == 0
    results = [json.loads(each.read_text()) for each in folder.rglob("test_results*.json")]
    assert len(results) == 2
    assert results[0]["test_auc_epoch"] == pytest.approx(results[1]["test_auc_epoch"], abs=0.05)
    assert main(["predict", "--load", "mase_output/ad", str(machine), "-o", "out.csv"]) == 0
    with Path("out.csv").open() as stream:
        errors = [(float(row["error"]), row["state"]) for row in csv.DictReader(stream)]
    means = {state: np.mean([e for e, s in errors if s == state]) for state in ("odd", "fine")}
    assert means["odd"] > 2 * means["fine"]


def test_a_search_takes_the_area_as_its_objective(machine: Path) -> None:
    options = {"path": machine, "label_column": "state", "task": "regression"}
    data = MaseDataModule("csv", 64, **options, odd_class="odd")
    model = get_model("toy_mlp", "regression", dataset_info=data.dataset_info)
    set_preprocessing(model, data.preprocessing)
    loaders = {"train": data.train_dataloader(), "val": data.val_dataloader()}
    few: dict[str, Any] = {"objectives": ("auc", "average_bitwidth"), "n_trials": 2}
    front = chop.search(model, **loaders, **few, strategy="random")
    assert all(0 <= point.trial.software["auc"] <= 1 for point in front)


def test_odd_rows_are_left_out_of_errors() -> None:
    counted = RegressionTally(Targets((0.0,), (1.0,), own=True))
    rows = torch.zeros(4, 3)
    marks = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    counted.add(rows + torch.tensor([[1.0], [1.0], [9.0], [0.5]]), torch.cat([rows, marks], 1))
    result = counted.result()
    assert (result.rows, result.mae, result.loss) == (2, 1.0, 1.0)
    counted.share(lambda sums: 2 * sums)  # of two processes, whose ranks cannot be added up
    assert (counted.result().auc, counted.result().mae) == (None, 1.0)
    assert len(result.errors) == 1  # all features together: some hardly vary
    assert result.auc is not None
    assert result.auc.value == 0.5


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"odd_class": "odd"}, ConfigError, "write task 'regression'"),
        ({"odd_class": "od", "task": "regression"}, UnknownNameError, "did you mean 'odd'"),
        ({"odd_class": "odd,fine", "task": "regression"}, ConfigError, "nothing is left"),
        ({"odd_class": "odd", "task": "regression", "augment": "flip"}, ConfigError, "--augment"),
    ],
)
def test_mistakes_are_said_in_one_line(
    machine: Path, options: dict[str, str], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        MaseDataModule("csv", 8, path=machine, label_column="state", **options).setup()
