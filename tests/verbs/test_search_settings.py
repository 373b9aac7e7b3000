"""The studies of lab 1 as one command: real processes, killed and resumed, to the same numbers."""

import csv
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from warm import WarmRun

from chop.actions import search
from chop.cli import main
from chop.config.layers import checked_file, read_toml, write_toml
from chop.dataset import MaseDataModule
from chop.errors import ChopError
from chop.models import get_model, get_model_info
from chop.search.config import parse_search
from chop.search.spaces.space import SearchContext, make_space

EXAMPLES = Path(__file__).parents[2] / "configs" / "examples"


@pytest.mark.parametrize(
    ("name", "settings", "repeats"), [("jsc_tiny_study", 12, 10), ("jsc_tiny_study_grid", 19, 3)]
)
def test_the_examples_are_the_studies_of_the_lab(name: str, settings: int, repeats: int) -> None:
    config = parse_search(checked_file(EXAMPLES / f"{name}.toml")["search"])
    stated = config.search_space
    space = make_space(stated.name, context(), stated.setup, stated.seed)
    assert space.size == settings
    assert config.strategy.sw_runner["hyperparameter_training"]["repeats"] == repeats
    assert config.strategy.setup.n_jobs == 2


def context() -> SearchContext:
    data = MaseDataModule("jsc-sim", batch_size=64)
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    return SearchContext(model, get_model_info("jsc-tiny"), data)


class Study:
    """The twelve settings of the example with larger batches and fewer epochs and repeats."""

    repeats = 2

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = read_toml(EXAMPLES / "jsc_tiny_study.toml") | {"learning_rate": 0.5}
        space = settings["search"]["search_space"]
        space["setup"]["fixed"] = {"batch_size": 4096, "learning_rate": 1e-3, "max_epochs": 2}
        space["seed"]["epochs"]["max_epochs"] = [2, 3, 4]
        space["seed"]["batches"]["batch_size"] = [2048, 3072, 4096, 6144, 8192, 10240]
        runner = {"repeats": self.repeats, "num_samples": 2000}
        settings["search"]["strategy"]["sw_runner"]["hyperparameter_training"] = runner
        write_toml(folder / "run.toml", settings)
        settings["search"]["strategy"]["setup"] = {"sampler": "brute", "plots": False}
        write_toml(folder / "alone.toml", settings)

    def start(self, project: str, *arguments: str) -> WarmRun:
        where = ("--project-dir", ".", "--project", project)
        return WarmRun("search", "--config", "run.toml", *where, *arguments, cwd=self.folder)

    def results(self, project: str) -> Path:
        return self.folder / project / "software" / "search_ckpts"

    def runs(self, project: str) -> dict[str, bytes]:
        found = self.results(project).glob("runs/*/repeat_*.json")
        return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in found}

    def table(self, project: str, name: str) -> list[dict[str, str]]:
        with (self.results(project) / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def timeless(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in rows]


def test_a_study_that_is_killed_goes_on_and_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    study = Study(tmp_path)
    first = study.start("killed")
    deadline = time.monotonic() + 600
    while len(study.runs("killed")) < 5:
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    kept = study.runs("killed")
    assert 5 <= len(kept) < 24
    second = study.start("killed", "--resume")
    printed = second.communicate(timeout=600)[0]
    assert second.returncode == 0, printed
    assert "12 distinct configurations of 12 were evaluated, 0 of them failed" in printed
    assert "Settings of jsc-tiny on jsc-sim, best first by accuracy (maximize)" in printed
    assert "UNTRAINED" not in printed
    after = study.runs("killed")
    assert len(after) == 24
    # The time of each training is in its file, so one that was done again would not be the same.
    assert {name: after[name] for name in kept} == kept
    where = ("--project-dir", str(tmp_path), "--project", "whole")
    assert main(["search", "--config", str(tmp_path / "alone.toml"), *where]) == 0
    for name in ("study.csv", "runs.csv", "curves.csv"):
        one, other = (timeless(study.table(project, name)) for project in ("killed", "whole"))
        assert one == other
    check_files(study.results("killed"), study.table("killed", "study.csv"))


def check_files(folder: Path, rows: list[dict[str, str]]) -> None:
    assert {row["repeats"] for row in rows} == {"2"}
    assert {row["learning_rate"] for row in rows} == {"1e-06", "1e-05", "0.0001", "0.001", "0.01"}
    accuracies = [float(row["accuracy_mean"]) for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    pictures = {str(path.relative_to(folder)) for path in folder.rglob("*.png")}
    assert {"curves.png", "settings.png"} < pictures
    assert len([name for name in pictures if name.startswith("curves/")]) == 12
    record = json.loads((folder / "run_search.json").read_text(encoding="utf-8"))
    assert record["action"] == "search"
    assert record["search"]["space_size"] == 12
    assert record["search"]["directions"] == ["maximize"]
    assert list(record["search"]["metrics"]) == ["accuracy"]
    assert record["search"]["repeats"] >= 0
    assert not list(folder.parent.glob("run_search*.json"))
    best = read_toml(folder / "best_0.toml")
    assert [str(best[name]) for name in ("batch_size", "learning_rate", "max_epochs")] == [
        rows[0][name] for name in ("batch_size", "learning_rate", "max_epochs")
    ]


def test_the_best_setting_is_a_file_for_ch_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = read_toml(EXAMPLES / "jsc_tiny_study.toml") | {"training_optimizer": "adamw"}
    settings["search"]["search_space"] = {
        "name": "train/hyperparameters",
        "seed": {"learning_rate": [1e-3, 1e-2], "precision": ["32"]},
    }
    settings["search"]["strategy"]["setup"] |= {"n_jobs": 1, "plots": False}
    settings["search"]["strategy"]["sw_runner"] = {"hyperparameter_training": {"num_samples": 500}}
    write_toml(tmp_path / "run.toml", settings)
    where = ("--project-dir", str(tmp_path), "--project", "out", "--report-to", "none")
    # What the run itself states holds for all trainings of the study.
    stated = ("--max-epochs", "1", "--batch-size", "8192")
    assert main(["search", "--config", str(tmp_path / "run.toml"), *where, *stated]) == 0
    folder = tmp_path / "out" / "software" / "search_ckpts"
    log = json.loads((folder / "log.json").read_text(encoding="utf-8"))
    configs = [entry["user_attrs_sampled_config"] for entry in log.values()]
    assert configs == [
        {"optimizer": "adamw", "max_epochs": 1, "learning_rate": rate, "precision": "32"}
        for rate in (1e-3, 1e-2)
    ]
    assert not list(folder.rglob("*.png"))
    capsys.readouterr()
    assert main(["train", "--config", str(folder / "best_0.toml"), *where]) == 0
    (log_file,) = (tmp_path / "out" / "software").glob("training_ckpts/training_log.csv")
    (epoch,) = csv.DictReader(log_file.read_text(encoding="utf-8").splitlines())
    assert epoch["step"] == "8"
    best = json.loads((folder / "best.json").read_text(encoding="utf-8"))["0"]["sampled_config"]
    assert float(epoch["learning_rate"]) == best["learning_rate"]


def run(folder: Path, fixed: dict[str, Any], **kwargs: Any) -> Any:
    data = MaseDataModule("jsc-sim", batch_size=8192)
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    tables = {
        "search_space": {
            "name": "train/hyperparameters",
            "setup": {"fixed": {"max_epochs": 1, **fixed}},
            "seed": {"learning_rate": [1e-3]},
        },
        "strategy": {
            "sw_runner": {"hyperparameter_training": {"num_samples": 500}},
            "setup": {"sampler": "brute", "plots": False},
            "metrics": {"loss": {"direction": "minimize"}},
        },
    }
    return search(model, get_model_info("jsc-tiny"), data, tables, save_dir=folder, **kwargs)


def test_a_study_goes_on_with_its_own_settings_only(tmp_path: Path) -> None:
    first = run(tmp_path / "s", {})
    torch.manual_seed(99)  # the weights of the model make no difference, as each run has its own
    again = run(tmp_path / "s", {}, resume=True)
    assert [t.values for t in again.trials] == [t.values for t in first.trials]
    with pytest.raises(ChopError, match="another search space"):
        run(tmp_path / "s", {"weight_decay": 0.1}, resume=True)
    with pytest.raises(ChopError, match="another seed"):
        run(tmp_path / "s", {}, resume=True, seed=5)
