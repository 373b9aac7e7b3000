"""A search that learns widths: trials, files, resuming, and what it says of mistakes."""

import copy
import csv
import json
import logging
import shutil
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from learned_cases import Attention, learn, rows, tables
from torch import nn

from chop.errors import ChopError, ConfigError, TrainingError
from chop.files import read_safetensors, write_safetensors
from chop.loading.networks import load_model
from chop.models import get_model
from chop.models.vision import vgg7
from chop.models.weights import read_checkpoint
from chop.nn.quantized import QuantizedModule
from chop.numerics import Integer
from chop.results.front import SearchResult
from chop.search.config import parse_search
from chop.search.learned import space
from chop.search.learned.rows import join_batches
from chop.search.learned.schedule import Schedule
from chop.search.learned.search import LearnedSearch
from chop.search.learned.setup import LearnedSetup
from chop.training.loop import Loop
from chop.training.parts import EpochLoss
from chop.verbs.compare import compare_fronts
from chop.verbs.report import report


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def found(project: Path) -> SearchResult:
    return learn(project / "software" / "search_ckpts", plots=True)


def test_snapshots_are_trials_with_exact_figures(found: SearchResult) -> None:
    assert found.space_size == 4
    assert 1 <= len(found.best) <= len(found.trials) <= 4
    for trial in found.trials:
        assert trial.is_complete
        assert set(trial.config) == {"cycle", "epoch", "cost_weight"}
        assert trial.hardware["ebops"] == int(trial.hardware["ebops"]) > 0
    assert {trial.config["cycle"] for trial in found.trials} == {1, 2}


def test_the_files_are_those_of_every_search(found: SearchResult) -> None:
    names = {path.name for path in found.folder.iterdir()}
    assert {"study.log", "search.json", "best.json", "log.json", "trials.csv"} <= names
    assert {"best_0.toml", "front.png", "metrics.png", "learning.csv", "graphs"} <= names
    assert json.loads((found.folder / "search.json").read_text())["sampler"] == "learned widths"
    with (found.folder / "learning.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [int(row["epoch"]) for row in table] == [1, 2, 3, 4, 5, 6]
    assert [bool(row["accuracy"]) for row in table] == [False, True, True] * 2
    assert not list((found.folder / "learning").glob("snapshot_*"))


def test_the_graphs_of_the_front_are_plain_and_measure_the_same(found: SearchResult) -> None:
    saved = {path.name for path in (found.folder / "graphs").iterdir()}
    assert saved == {f"epoch_{trial.config['epoch']}" for trial in found.best}
    validation = rows()["val"]
    for place, trial in enumerate(found.best):
        settings = tomllib.loads((found.folder / f"best_{place}.toml").read_text())
        model = load_model(settings["load_name"], settings["load_type"]).eval()
        assert settings["passes"] == {"count_operations": {}}
        layers = [layer for layer in model.modules() if isinstance(layer, QuantizedModule)]
        assert len(layers) == 3
        assert all(layer.fmt is Integer for layer in layers)
        with torch.no_grad():
            right = model(validation.features).argmax(1) == validation.labels
        assert float(right.float().mean()) == pytest.approx(trial.software["accuracy"])


def test_searches_are_compared_on_one_picture(
    found: SearchResult,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "chop"):
        other = learn(project / "software" / "search_ckpts", cycles=1, teacher=None)
    (warning,) = [r.message for r in caplog.records if "validation rows are few" in r.message]
    assert "256 validation rows" in warning
    assert "±6.1 %" in warning
    assert other.folder.name == "search_ckpts-v1"
    page = report(project).read_text(encoding="utf-8")
    assert "Searches compared" in page
    picture, fronts = compare_fronts([project])
    assert picture.stat().st_size > 1000
    names = {"learned widths (search_ckpts)", "learned widths (search_ckpts-v1)"}
    assert set(fronts.trials) == names
    assert max(fronts.shares().values()) <= 1
    assert set(fronts.chart().series) == names
    from chop.cli import main

    capsys.readouterr()
    assert main(["compare", str(project), "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == str(project / "fronts.png")
    assert main(["compare", *[str(project)] * 3, "--quiet"]) == 0
    assert main(["compare", str(project / "software")]) == 0
    assert "hypervolume" in capsys.readouterr().out


class Killed(BaseException):
    """Stands for a signal that no code can catch."""


def facts(result: SearchResult) -> dict[str, Any]:
    """All that an uninterrupted run and a resumed one must have in common, to the last bit."""
    graphs = {
        path.parent.name: {n: t.tolist() for n, t in read_safetensors(path).items()}
        for path in sorted((result.folder / "graphs").rglob("weights.safetensors"))
    }
    trials = [(t.config, t.software, t.hardware, t.values) for t in result.trials]
    return {
        "trials": trials,
        "graphs": graphs,
        "table": (result.folder / "learning.csv").read_text(),
    }


@pytest.mark.parametrize(
    ("owner", "method", "calls"),
    [
        (Loop, "save", 3),  # in the training of the float network
        (LearnedSearch, "_choose", 0),  # at the end of a cycle, before it has trials
        (Loop, "save", 9),  # in the second cycle
    ],
)
def test_a_killed_run_resumes_bit_for_bit(
    found: SearchResult,
    owner: Any,
    method: str,
    calls: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, left = getattr(owner, method), [calls]

    def killed(self: Any, *args: Any) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, killed)
        with pytest.raises(Killed):
            learn(tmp_path / "s")
    assert facts(learn(tmp_path / "s", resume=True)) == facts(found)


def write_earlier(path: Path, state: dict[str, Any]) -> None:
    """Write a state in the format that came before checkpoints: tensors, and JSON of the rest."""
    tensors: dict[str, torch.Tensor] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[f"{len(tensors)}"] = value.contiguous().clone()
            return {"tensor": f"{len(tensors) - 1}"}
        if isinstance(value, dict):
            return {str(key): plain(each) for key, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, list | tuple) else value

    text = json.dumps(plain(state))
    held = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    write_safetensors(path, {"plain": held, **tensors})


def test_a_run_of_an_earlier_version_resumes_bit_for_bit(
    found: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, left = Loop.save, [8]  # until the second cycle

    def killed(self: Loop, path: Path) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        save(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "save", killed)
        with pytest.raises(Killed):
            learn(tmp_path / "s")
    for path in (tmp_path / "s" / "learning").glob("*.ckpt"):
        content = read_checkpoint(path)
        state = content
        if "state_dict" in content:
            ours = content["chop"]
            learned = ours.get("learned_widths", {"widths": None, "start_ebops": 0.0})
            weights = content["state_dict"].items()
            state = {
                "epochs": content["epoch"] + 1,
                "history": ours["history"],
                "model": {name.removeprefix("model."): value for name, value in weights},
                "optimiser": content["optimizer_states"][0],
                "widths": learned["widths"],
                "start_ebops": learned["start_ebops"],
            }
        write_earlier(path.with_suffix(".safetensors"), state)
        path.unlink()
    assert facts(learn(tmp_path / "s", resume=True)) == facts(found)


def test_a_finished_run_has_nothing_left_to_do(
    found: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(found.folder, tmp_path / "s")
    monkeypatch.setattr(Loop, "train_epoch", None)
    assert facts(learn(tmp_path / "s", resume=True)) == facts(found)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("strategy/setup/cost_weight", [-1e-6, 1e-3], "more than 0"),
        ("strategy/setup/cost_weight", [0.1, 1e60], "less than 3e"),
        ("strategy/setup/cost_weight", [0.1, 0.1], "grows nowhere"),
        ("strategy/setup/cost_weight", [0.1, 0.01], "grows nowhere"),
        ("strategy/setup/cost_weight", [0.1, float("nan")], "cost_weight"),
        ("strategy/setup/snapshots", 4, "no 4 snapshots"),
        ("strategy/setup/cycle", 4, "did you mean 'cycles'"),
        ("strategy/setup/n_trials", 4, "unknown key 'n_trials'"),
        ("strategy/setup/learning_rate", -1, "learning_rate"),
        ("strategy/setup/teacher", {}, "no network is named"),
        ("strategy/setup/teacher/model", "jsc-s", "leave out one"),
        ("strategy/setup/teacher/epochs", 0, "untrained"),
        ("strategy/name", "lerned", "did you mean 'learned'"),
        ("strategy/name", "optuna", "searched by the strategy 'learned'"),
        ("search_space/seed/linear/config/name", "integer", "cannot learn its widths"),
        ("search_space/seed/linear/config/name", "integer_traned", "did you mean"),
        ("search_space/seed/linnear/config/name", "integer_trained", "did you mean 'linear'"),
        ("search_space/seed/linear", 3, "a table 'config'"),
    ],
)
def test_a_mistake_is_one_line(path: str, value: Any, message: str) -> None:
    given = tables()
    *steps, last = path.split("/")
    inner = given
    for step in steps:
        inner = inner.setdefault(step, {})
    inner[last] = value
    before = copy.deepcopy(given)
    with pytest.raises(ChopError) as caught:
        parse_search(given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(given) == str(before)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "none of the operations"),
        (nn.Sequential(nn.Linear(8, 3).requires_grad_(False)), "cannot be learned"),
    ],
    ids=["nothing multiplies", "frozen"],
)
def test_a_network_that_cannot_learn_says_so_before_training(
    model: nn.Module, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ChopError, match=message):
        learn(tmp_path / "s", model)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({"model": "jsc-x"}, "unknown model 'jsc-x'"),
        ({"model": "jsc-tiny"}, "takes rows of features"),
        ({"hidden": [4], "load_name": "nowhere.ckpt"}, "nowhere.ckpt"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_before_training(
    teacher: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ChopError, match=message):
        learn(tmp_path / "s", teacher=teacher)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_counted_is_refused_before_training(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.GRU(6, 6, batch_first=True)
            self.out = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.out(self.steps(x)[0].mean(1))
            return scores

    with pytest.raises(ConfigError, match="steps: it is not quantised"):
        learn(tmp_path / "s", Mixed(), rows(128, 4, 6), teacher=None)
    assert not list(tmp_path.iterdir())


def test_a_nan_names_its_epoch_and_leaves_the_last_good_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = EpochLoss.mean
    calls: Iterator[int] = iter(range(1, 100))

    def diverges(self: EpochLoss) -> float:
        loss = original(self)
        return float("nan") if next(calls) == 2 + 6 else loss  # two are of the float network

    monkeypatch.setattr(EpochLoss, "mean", diverges)
    with pytest.raises(TrainingError, match=r"epoch 6 \(cycle 2\).*up to epoch 5 are kept"):
        learn(tmp_path / "s", teacher=None)
    best = json.loads((tmp_path / "s" / "best.json").read_text())
    epochs = {point["sampled_config"]["epoch"] for point in best.values()}
    assert epochs
    assert epochs <= {2, 3, 5}
    assert {path.name for path in (tmp_path / "s" / "graphs").iterdir()} >= {
        f"epoch_{epoch}" for epoch in epochs
    }


def test_a_nan_before_any_snapshot_promises_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EpochLoss, "mean", lambda self: float("nan"))
    with pytest.raises(TrainingError, match=r"epoch 1 \(cycle 1\).*There was no snapshot before"):
        learn(tmp_path / "s", teacher=None, float_epochs=0)


def test_rows_without_gradients_are_run_in_large_batches() -> None:
    small = [(torch.rand(64, 16), torch.arange(64)) for _ in range(200)]
    large = join_batches(small)
    assert [len(features) for features, _ in large] == [8_192, 4_608]
    for part in (0, 1):
        assert torch.equal(*(torch.cat([each[part] for each in found]) for found in (small, large)))
    images = [(torch.rand(2, 3, 256, 256), torch.arange(2)) for _ in range(2)]
    assert join_batches(images) is images  # a batch is large enough


NETWORKS = {
    "jsc-tiny": (16,),
    "jsc-tiny-x10": (16,),
    "jsc-new": (16,),
    "jsc-rs1923": (16,),
    "attention": (4, 6),
    "vgg7": (3, 8, 8),
}


def network(name: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    torch.manual_seed(0)
    if name == "attention":
        return Attention()
    if name == "vgg7":  # narrow, but with one width for each channel, as at its full size
        monkeypatch.setattr(vgg7, "STAGES", (8, 8, 16))
        monkeypatch.setattr(space, "MOST_ELEMENTS", 1000)
        return vgg7.VGG7((3, 8, 8), 5)
    return get_model(name)


@pytest.mark.parametrize("name", NETWORKS)
def test_other_networks_learn_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"cycles": 2, "epochs": 1, "snapshots": 1, "cost_weight": [0.5, 50.0]}
    result = learn(
        tmp_path / "s", network(name, monkeypatch), rows(256, *NETWORKS[name], classes=5),
        float_epochs=1, teacher=None, bits_learning_rate=0.3, **short,
    )  # fmt: skip
    assert not [trial.reason for trial in result.trials if not trial.is_complete]
    first, *_, last = result.trials
    assert last.hardware["ebops"] < first.hardware["ebops"]


def test_the_schedule_grows_the_cost_and_restarts_the_rates() -> None:
    setup = LearnedSetup(cycles=4, epochs=5, snapshots=2, cost_weight=[0.01, 8.0])
    schedule = Schedule(setup)
    weights = [schedule.cost_weight(epoch) for epoch in range(0, 20, 5)]
    assert weights[0] == 0.01
    assert weights[-1] == 8.0
    ratios = [after / before for before, after in pairwise(weights)]
    assert ratios == pytest.approx([ratios[0]] * 3, rel=1e-4)
    assert schedule.rate_factor(5.0) == pytest.approx(setup.restart_decay)
    assert schedule.rate_factor(4.999) == pytest.approx(0.02, rel=0.01)
    assert schedule.rate_factor(0.0) < 0.1
    assert [each.epoch for each in schedule.snapshots_of(1)] == [9, 10]
    longer = Schedule(setup.model_copy(update={"first_epochs": 8}))
    assert longer.epochs == 23
    assert [longer.cycle(epoch) for epoch in (0, 7, 8, 12, 13)] == [0, 0, 1, 1, 2]
    assert [each.epoch for each in longer.snapshots_of(0)] == [7, 8]
    assert [each.epoch for each in longer.snapshots_of(1)] == [12, 13]
    assert longer.rate_factor(7.999) == pytest.approx(0.02, rel=0.01)
    assert longer.rate_factor(8.0) == pytest.approx(setup.restart_decay)
