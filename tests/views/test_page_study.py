"""Studies of training on the page: mean and spread of each setting, and its learning curves."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from report_pages import logged, page_of, put

from chop.results.settings import TrainedSetting, read_settings, varying_names
from chop.verbs.report import report


def training(size: int, accuracy: float, **changes: Any) -> dict[str, Any]:
    return {
        "config": {"batch_size": size, "optimizer": "adam", "max_epochs": 2},
        "accuracy": accuracy,
        "loss": 1 - accuracy,
        "train_accuracy": accuracy,
        "seconds": 2.0,
        "history": [
            {"epoch": epoch, "val_acc_epoch": accuracy + epoch / 10, "val_loss_epoch": 0.5}
            for epoch in range(2)
        ],
    } | changes


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two settings, trained twice each."""
    folder = tmp_path / "p/software/search_ckpts"
    rows = {}
    for place, (size, accuracies) in enumerate({64: (0.6, 0.8), 256: (0.5, 0.52)}.items()):
        for repeat, accuracy in enumerate(accuracies):
            put(folder / f"runs/{size}/repeat_{repeat}.json", training(size, accuracy))
        config = training(size, 0)["config"]
        rows[str(place)] = logged(place, sum(accuracies) / 2, 1, user_attrs_sampled_config=config)
    put(folder / "log.json", rows)
    put(folder / "best.json", {"0": {"number": 0}})
    put(
        folder / "best_0.toml",
        'model = "jsc-tiny"\nseed = 3\nbatch_size = 64\ntraining_optimizer = "adam"\n'
        "max_epochs = 2\n",
    )
    return folder


def test_settings_with_mean_and_spread_the_best_first(study: Path) -> None:
    page = page_of(report(study.parents[1]))
    assert page.sections == ["search-0", "study-0"]
    words = " ".join(page.texts["study-0"].split())
    assert "2 settings, each trained up to 2 times" in words
    assert words.index("64 2 0.7000 ± 0.1414 0.8000 0.6000") < words.index("256 2 0.5100 ± 0.0141")
    assert "optimizer" not in words  # it is the same everywhere
    assert [
        attrs["aria-label"] for tag, attrs in page.tags if tag == "svg" and "mean" in str(attrs)
    ] == ["Validation accuracy, mean and range", "Validation loss, mean and range"]
    assert sum(str(attrs.get("class")).startswith("band ") for _, attrs in page.tags) == 4


def test_curves_are_means_over_the_trainings(study: Path) -> None:
    settings = read_settings(study)
    assert varying_names(settings) == ["batch_size"]
    by_size = {each.config["batch_size"]: each for each in settings}
    assert by_size[64].curve("val_acc_epoch", max) == [(0, 0.8), (1, 0.9)]
    assert by_size[64].curve("val_acc_epoch", min) == [(0, 0.6), (1, pytest.approx(0.7))]
    assert isinstance(by_size[256], TrainedSetting)


def test_what_is_copied_is_named_as_on_the_command_line(study: Path) -> None:
    data = page_of(report(study.parents[1])).json["search-0-data"]
    assert tomllib.loads(data["head"]) == {"model": "jsc-tiny", "seed": 3}
    assert data["keys"] == [["batch_size"], ["training_optimizer"], ["max_epochs"]]
    assert data["prefix"] == []
    assert data["metrics"][0]["unit"] == "fraction of rows"


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        json.dumps(training(64, 1e80)),
        json.dumps(training(64, 0.5, history=[{"a": "b"}])),
    ],
)
def test_a_damaged_training_costs_the_study_only(study: Path, content: str) -> None:
    put(study / "runs/64/repeat_1.json", content)
    page = page_of(report(study.parents[1]))
    assert page.sections == ["search-0", "problems"]
    assert "repeat_1.json" in page.texts["problems"]
