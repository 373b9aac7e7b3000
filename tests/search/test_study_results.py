"""What a study of settings leaves behind: tables, files, pictures."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_cases import space_of
from study_cases import SETTING, study_tables

from chop.errors import ChopError
from chop.results import settings_charts as study_plots
from chop.results.settings import (
    StudyOfSettings,
    TrainedSetting,
    heading,
    read_study,
    study_table,
)
from chop.results.settings_charts import curve_of, draw_study, groups_of
from chop.search.config import parse_search
from chop.search.spaces.space import SearchContext
from chop.search.strategy import Search
from chop.search.study.storage import Place, open_store
from chop.search.sweeps.hyperparameters import Hyperparameters
from chop.search.sweeps.trainings import Repeats, Training

SWEEPS = {
    "epochs": {"max_epochs": [1, 2]},
    "rates": {"learning_rate": [1e-4, 0.01, 1e30]},
}


def space_with(context: SearchContext, seed: dict[str, Any]) -> Hyperparameters:
    space = space_of(context, parse_search(study_tables(seed)))
    assert isinstance(space, Hyperparameters)
    return space


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Done:
    """A finished study in a folder; one setting diverges, one is unfinished."""

    def __init__(self, context: SearchContext, folder: Path) -> None:
        self.folder = folder
        self.config = parse_search(study_tables(SWEEPS))
        own = dataclasses.replace(context, folder=folder)
        self.space = space_of(own, self.config)
        store = open_store(Place(str(folder / "study.log"), "s"), ["maximize"], {})
        self.search = Search(self.space, self.config, store)
        self.search.run()
        self.trials = store.frozen_trials()

    def study(self, without: int = 0) -> StudyOfSettings:
        assert isinstance(self.space, Hyperparameters)
        return read_study(self.folder, self.space, self.config, self.trials[without:])


@pytest.fixture(scope="module")
def done(context: SearchContext, tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(context, tmp_path_factory.mktemp("study"))


def test_sweeps_share_their_centre(context: SearchContext) -> None:
    space = space_with(context, SWEEPS)
    assert space.size == len(space.settings) == 4
    configs = [space.config({"setting": n}) for n in range(4)]
    changed = [{k: v for k, v in each.items() if v != SETTING[k]} for each in configs]
    assert changed == [
        {"max_epochs": 1}, {}, {"learning_rate": 1e-4}, {"learning_rate": 1e30},
    ]  # fmt: skip


def test_a_grid_in_a_sweep_and_values_of_its_own(context: SearchContext) -> None:
    seed = {
        "both": {"max_epochs": [1, 2], "learning_rate": [0.1, 0.01]},
        "sizes": {"batch_size": [64, 128], "max_epochs": 5},
    }
    assert space_with(context, seed).size == 6


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        ({"a": {"learning_rate": [1.0]}, "max_epochs": [1]}, "'max_epochs' stands beside the sw"),
        ({"a": {}}, "seed.a: there is no setting"),
        ({"a": {"learning_rate": []}}, "nothing to choose from"),
        ({"a": {"learningrate": [1.0]}}, "did you mean 'learning_rate'"),
        ({"batch_size": [0]}, "batch_size must be a whole number"),
        ({"batch_size": [True]}, "batch_size must be a whole number"),
        ({"max_epochs": [0]}, "max_epochs"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(seed: dict[str, Any], message: str) -> None:
    with pytest.raises(ChopError, match=message):
        parse_search(study_tables(seed))


def test_the_table_has_the_best_first_and_what_failed_last(done: Done) -> None:
    study = done.study()
    assert [each.state for each in study] == ["COMPLETE"] * 3 + ["FAIL"]
    accuracies = [each.metrics["accuracy"] for each in study.settings[:3]]
    assert accuracies == sorted(accuracies, reverse=True)
    printed = study_table(study)
    head, _, *rows = printed.splitlines()
    assert [cell.strip() for cell in head.strip("|").split("|")] == [
        "learning_rate", "max_epochs", "repeats", "accuracy", "best", "worst", "loss", "best",
        "worst", "train acc.", "s / run",
    ]  # fmt: skip
    best = study.settings[0].metrics
    assert f"{best['accuracy']:.4f} ± {best['accuracy_spread']:.4f}" in rows[0]
    assert "failed" in rows[3]
    assert "All with batch_size 8192" in printed
    assert "TrainingError: the loss is not a finite number" in printed
    assert "best first by accuracy (maximize)" in heading(study, done.config)


def test_a_setting_under_way_is_shown_with_what_it_has(done: Done) -> None:
    study = done.study(without=1)
    assert [each.state for each in study] == ["COMPLETE"] * 2 + ["UNFINISHED", "FAIL"]
    assert "| 2 of 2 " in study_table(study)


def test_files_hold_every_number(done: Done, tmp_path: Path) -> None:
    study = done.study()
    study.save(tmp_path)
    settings = rows_of(tmp_path / "study.csv")
    assert [row["rank"] for row in settings] == ["1", "2", "3", "4"]
    best = study.settings[0]
    runs = rows_of(tmp_path / "runs.csv")
    own = [
        float(row["accuracy"])
        for row in runs
        if all(row[name] == str(value) for name, value in best.config.items())
    ]
    assert len(own) == 2
    assert float(settings[0]["accuracy_mean"]) == pytest.approx(np.mean(own))
    assert float(settings[0]["accuracy_spread"]) == pytest.approx(np.std(own, ddof=1))
    assert float(settings[0]["accuracy_best"]) == max(own)
    assert float(settings[0]["accuracy_worst"]) == min(own)
    assert settings[0]["updates"] == str(8 * int(settings[0]["max_epochs"]))
    assert settings[3]["reason"].startswith("TrainingError")
    epochs = rows_of(tmp_path / "curves.csv")
    assert len(epochs) == sum(int(row["max_epochs"]) for row in runs)
    last = [row for row in epochs if row["epoch"] == "1" and row["learning_rate"] == "0.01"]
    assert len(last) == 2
    assert all(float(row["learning_rate_of_epoch"]) < 0.01 for row in last)
    assert {row["step"] for row in last} == {"16"}


def test_pictures(done: Done, tmp_path: Path) -> None:
    paths = draw_study(tmp_path, done.study())
    assert [path.parent.name for path in paths[:3]] == ["curves"] * 3
    assert [path.name for path in paths[3:]] == ["curves.png", "settings.png"]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for path in paths)


def histories(*losses: list[float]) -> TrainedSetting:
    runs = [
        Training(
            identity="", config={}, repeat=place, seed=place, accuracy=0, loss=0,
            train_accuracy=0, train_loss=0, seconds=1,
            history=[
                {"epoch": n, "step": n, "train_loss": loss, "train_acc": 1 / (1 + loss)}
                for n, loss in enumerate(each)
            ],
        )
        for place, each in enumerate(losses)
    ]  # fmt: skip
    return TrainedSetting({}, {}, runs, "COMPLETE")


def test_a_curve_is_the_mean_of_those_that_ran_so_long() -> None:
    curve = curve_of(histories([3.0, 2.0, 1.0], [5.0, 4.0]), "train_loss")
    assert curve is not None
    assert curve.epochs.tolist() == [1, 2, 3]
    assert curve.mean.tolist() == [4.0, 3.0, 1.0]
    assert curve.spread.tolist() == pytest.approx([2**0.5, 2**0.5, 0.0])
    assert curve_of(histories([1.0]), "val_loss_epoch") is None


def grid_study(context: SearchContext, seed: dict[str, Any]) -> StudyOfSettings:
    space = space_with(context, seed)
    configs = space.settings.values()
    run = histories([1.0]).runs[0]
    settings = [TrainedSetting(config, {}, [run], "COMPLETE") for config in configs]
    return StudyOfSettings("title", 1, settings, space.sweeps)


@pytest.mark.parametrize(
    ("seed", "groups"),
    [
        (SWEEPS, [(["max_epochs"], 2), (["learning_rate"], 3)]),
        (
            {"a": {"max_epochs": [1, 2], "learning_rate": [0.1, 0.2]}, "b": {"max_epochs": [3]}},
            [(["max_epochs"], 2), (["max_epochs"], 2), (["max_epochs"], 1)],
        ),
        ({"learning_rate": [1e-3]}, [(["learning_rate"], 1)]),
        (
            {"max_epochs": [1, 2], "learning_rate": [0.1, 0.2, 0.3]},
            [(["learning_rate"], 3), (["learning_rate"], 3)],
        ),
    ],
)
def test_curves_are_drawn_in_groups_that_differ_in_one_thing(
    context: SearchContext, seed: dict[str, Any], groups: list[tuple[list[str], int]]
) -> None:
    study = grid_study(context, seed)
    found = groups_of(study, study.settings)
    assert [(group.names, len(group.settings)) for group in found] == groups


def test_a_large_grid_is_drawn_in_part(
    context: SearchContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_plots, "MOST_PICTURES", 1)
    monkeypatch.setattr(study_plots, "MOST_GROUPS", 2)
    monkeypatch.setattr(study_plots, "MOST_CURVES", 3)
    monkeypatch.setattr(study_plots, "MOST_RANKED", 5)
    study = grid_study(context, {"max_epochs": [1, 2, 3], "learning_rate": [1e-3, 1e-2, 0.1, 1.0]})
    paths = draw_study(tmp_path, study)
    assert [path.parent.name == "curves" for path in paths] == [True, False, False]
    figure = study_plots._overview(study, study.settings)
    assert "2 of 3 groups" in figure.get_suptitle()
    assert [len(panel.lines) for panel in figure.axes] == [3] * 4
    assert "the best 5 of 12" in study_plots._ranking(study, study.settings).get_suptitle()


def test_without_a_folder_nothing_is_written(
    context: SearchContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = parse_search(study_tables({"learning_rate": [0.01]}, repeats=1))
    space = space_of(context, config)
    found = Search(space, config, open_store(Place("study.log", "s"), ["maximize"], {})).measure(
        space.config({"learning_rate": 0})
    )
    assert found.values is not None
    assert {path.name for path in tmp_path.iterdir()} == {"study.log", "study.log.members"}
    assert Repeats(space.candidate({}), 1, None).folder is None  # type: ignore[arg-type]
