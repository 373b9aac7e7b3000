"""The journal of a study: its checksums, and damaged lines."""

import os
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from chop.errors import SearchError
from chop.results.front import SearchResult
from chop.search.study.journal import Journal
from chop.search.study.storage import Place, open_store
from chop.search.study.trial import MEASURED, SearchDescription


@pytest.mark.parametrize("lost", ["sampled_config", "hardware_metrics"])
def test_a_trial_whose_metrics_are_gone_is_named(lost: str, tmp_path: Path) -> None:
    study = optuna.create_study(study_name="a", directions=["maximize"])
    metrics = {name: {"accuracy": 1.0} for name in ("sampled_config", *MEASURED)}
    for attrs in (metrics, {name: value for name, value in metrics.items() if name != lost}):
        study.add_trial(optuna.create_trial(value=1.0, user_attrs=attrs))
    study.add_trial(
        optuna.create_trial(state=TrialState.FAIL, user_attrs={"sampled_config": {}})
    )  # a failed trial has no metrics
    whole, damaged, failed = study.trials
    problem = SearchDescription(directions=("maximize",))
    SearchResult.of(study, [whole, failed], problem).save(tmp_path)
    with pytest.raises(SearchError, match=f"study 'a': trial 1 has no {lost}: part of the study"):
        SearchResult.of(study, [whole, damaged, failed], problem)


def journal_of(path: Path, trials: int = 4) -> list[str]:
    store = open_store(Place(str(path), "s"), ["maximize"], {"a": 1})
    for _ in range(trials):
        trial = store.study.ask({"x": optuna.distributions.IntDistribution(0, 9)})
        store.study.tell(trial, 1.5)
    return path.read_text().splitlines()


def trials_of(path: Path) -> int:
    return len(open_store(Place(str(path), "s"), ["maximize"], {"a": 1}).study.trials)


def test_optuna_reads_a_journal_with_checksums(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    assert all(',"sum":"' in line for line in journal_of(path))
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    storage = optuna.storages.JournalStorage(backend)
    assert len(optuna.load_study(study_name="s", storage=storage).trials) == 4


def test_a_damaged_line_in_a_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    lines = journal_of(path)
    number = next(n for n, line in enumerate(lines) if "1.5" in line)
    lines[number] = lines[number].replace("1.5", "1.7")  # JSON as good as any
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(SearchError, match=rf"study\.log: line {number + 1} is damaged"):
        trials_of(path)


@pytest.mark.parametrize("damage", ["torn", "flipped"])
def test_a_damaged_last_line_is_survived(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    lines = journal_of(path)
    good = "\n".join(lines) + "\n"
    path.write_text(good + (lines[-1][:20] if damage == "torn" else lines[-1][:-9] + "0\n"))
    assert trials_of(path) == 4
    Journal(str(path)).append_logs([{"op_code": 2, "worker_id": "w", "study_id": 0,
                                     "user_attr": {"b": 2}}])  # fmt: skip
    assert path.read_text().startswith(good)
    assert len(path.read_text().splitlines()) == len(lines) + 1
    assert trials_of(path) == 4


@pytest.mark.parametrize("line", ['{"op_code":99,"worker_id":"x"}', "5", "[" * 99999])
def test_a_line_of_a_journal_that_makes_no_sense_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    lines = journal_of(path)
    path.write_text("\n".join([*lines[:3], line, *lines[3:]]) + "\n")
    with pytest.raises(SearchError, match=r"study\.log"):
        trials_of(path)


def test_a_journal_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(SearchError, match=name):
            open_store(Place(str(tmp_path / name), "s"), ["maximize"], {})
