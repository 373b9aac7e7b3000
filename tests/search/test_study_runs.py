"""Repeats of a setting: each is a file, trained once, by whoever comes first."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from search_cases import space_of
from study_cases import SETTING, study_tables

from chop.dataset import MaseDataModule
from chop.search.config import parse_search
from chop.search.engines import EngineChoice, make_engine
from chop.search.spaces.afresh import with_batch_size
from chop.search.spaces.space import Candidate, SearchContext, SearchSpace, every
from chop.search.strategy import Search
from chop.search.study.storage import Place, open_store
from chop.search.sweeps.trainings import (
    MeasuredRows,
    Repeats,
    Training,
    name_of,
    read_run,
    stored_runs,
    summarise_trainings,
)

ROWS = MeasuredRows("val_dataloader", 512)


def repeats_in(
    context: SearchContext, folder: Path | None, count: int = 2, **changes: Any
) -> Repeats:
    own = dataclasses.replace(context, folder=folder, **changes)
    return Repeats(Candidate(own, SETTING, own.pristine), count, ROWS)


def numbers(run: Training) -> dict[str, Any]:
    """All of a run that may not differ when it is done again."""
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in run.history]
    return run.model_dump(exclude={"seconds", "history"}) | {"history": history}


def test_a_repeat_is_a_file_with_its_seed_and_its_curves(
    context: SearchContext, tmp_path: Path
) -> None:
    runs = repeats_in(context, tmp_path, seed=7).complete()
    assert [run.seed for run in runs] == [7, 8]
    assert [len(run.history) for run in runs] == [2, 2]
    assert {"epoch", "step", "train_loss", "train_acc", "val_loss_epoch", "val_acc_epoch"} <= set(
        runs[0].history[0]
    )
    assert runs[0].accuracy != runs[1].accuracy
    assert stored_runs(tmp_path) == runs
    files = {path.name for path in (tmp_path / "runs" / name_of(SETTING)).iterdir()}
    assert files == {"repeat_0.json", "repeat_1.json"}


def test_a_rerun_gives_the_same_numbers_and_a_stored_one_is_not_done_again(
    context: SearchContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = repeats_in(context, tmp_path / "a").complete()
    again = repeats_in(context, tmp_path / "b").complete()
    without_files = repeats_in(context, None).complete()
    assert [*map(numbers, again)] == [*map(numbers, first)] == [*map(numbers, without_files)]
    monkeypatch.setattr(Repeats, "evaluate", lambda self, number: pytest.fail("trained again"))
    assert repeats_in(context, tmp_path / "a").complete() == first


def test_what_is_damaged_or_of_another_study_is_done_again(
    context: SearchContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = repeats_in(context, tmp_path).complete()
    path = tmp_path / "runs" / name_of(SETTING) / "repeat_1.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert read_run(path) is None
    assert "not the result of a training" in capsys.readouterr().out
    assert [*map(numbers, repeats_in(context, tmp_path).complete())] == [*map(numbers, first)]
    other = repeats_in(context, tmp_path, count=1, seed=3).complete()
    assert other[0].seed == 3
    assert other[0].accuracy != first[0].accuracy


def search_of(
    context: SearchContext, folder: Path, rate: float, slots: int
) -> tuple[Search, SearchSpace]:
    """A search of one setting with two repeats."""
    config = parse_search(study_tables({"learning_rate": [rate]}))
    space = space_of(dataclasses.replace(context, folder=folder), config)
    store = open_store(Place(str(folder / "study.log"), "s"), ["maximize"], {})
    return Search(space, config, store, engine=make_engine(EngineChoice(slots=slots))), space


def test_processes_share_the_repeats_of_a_setting(context: SearchContext, tmp_path: Path) -> None:
    search, _ = search_of(context, tmp_path, 0.01, slots=2)
    evaluated = []
    evaluate = Repeats.evaluate

    def noted(self: Repeats, number: int) -> Training:
        evaluated.append(number)  # in a worker, so that this process does not see it
        return evaluate(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Repeats, "evaluate", noted)
        search.run()
    assert evaluated == []
    assert [run.repeat for run in stored_runs(tmp_path)] == [0, 1]
    (trial,) = search.store.frozen_trials()
    assert trial.user_attrs["software_metrics"] == summarise_trainings(stored_runs(tmp_path))
    alone, _ = search_of(context, tmp_path / "alone", 0.01, slots=1)
    alone.run()
    runs = [[*map(numbers, stored_runs(folder))] for folder in (tmp_path, tmp_path / "alone")]
    assert runs[0] == runs[1]


def test_a_setting_that_cannot_be_trained_fails_once(
    context: SearchContext, tmp_path: Path
) -> None:
    search, _ = search_of(context, tmp_path, 1e30, slots=2)
    search.run()
    (trial,) = search.store.frozen_trials()
    assert trial.state.name == "FAIL"
    assert trial.user_attrs["reason"]
    assert stored_runs(tmp_path) == []


def test_repeats_that_are_there_are_not_sent(context: SearchContext, tmp_path: Path) -> None:
    first, _ = search_of(context, tmp_path, 0.01, slots=1)
    first.run()
    before = [run.seconds for run in stored_runs(tmp_path)]
    (tmp_path / "study.log").unlink()
    again, space = search_of(context, tmp_path, 0.01, slots=2)
    assert again.measure.parts(space.config(next(every(space.tree)))) == []
    again.run()
    assert [run.seconds for run in stored_runs(tmp_path)] == before


def test_other_batches_are_cut_from_the_same_rows(data: MaseDataModule) -> None:
    twin = with_batch_size(data, 1000, 5)
    assert twin.splits is data.splits
    assert len(next(iter(twin.val_dataloader()))[1]) == 1000
    assert data.batch_size == 64


def test_the_summary_of_runs(context: SearchContext) -> None:
    (run,) = repeats_in(context, None, count=1).complete()
    runs = [run.model_copy(update={"accuracy": a, "loss": 1 - a}) for a in (0.5, 0.7, 0.6)]
    found = summarise_trainings(runs)
    assert found["accuracy"] == pytest.approx(0.6)
    assert found["accuracy_spread"] == pytest.approx(0.1)
    assert (found["accuracy_best"], found["accuracy_worst"]) == (0.7, 0.5)
    assert (found["loss_best"], found["loss_worst"]) == pytest.approx((0.3, 0.5))
    assert summarise_trainings(runs[:1])["accuracy_spread"] == 0.0


def test_names_of_files_tell_settings_apart() -> None:
    long = {f"setting_{n}": n / 7 for n in range(40)}
    other = copy.deepcopy(long) | {"setting_39": 0.5}
    assert name_of(long) != name_of(other)
    assert len(name_of(long)) < 120
    assert name_of({"learning_rate": 1e-5, "batch_size": 16}).startswith(
        "batch_size-16_learning_rate-1e-05_"
    )
