"""Numbers at the edge: what each action does with data and models that are hardly any."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from chop.config.layers import write_toml
from chop.dataset.info import DATASETS
from chop.models.info import MODELS
from chop.models.weights import read_state_dict
from chop.passes.graph import load_mase_graph
from chop.search.samplers import SAMPLERS
from harden import numbers_data as data
from harden.common import Row, share
from harden.in_process import ch

MODELS_FILE = Path(__file__).with_name("numbers_models.py")
ACTIONS = ("train", "test", "transform", "search")
DONE = ""
"""The action succeeds, and all numbers it stores are finite."""
WIDTHS = {f"{role}_width": 8 for role in ("data_in", "weight", "bias")}
SPACE = {"name": ["integer", "NA"], **{key: [4, 8] for key in WIDTHS}}
ONE_POINT = {"name": ["integer"], **{key: [8] for key in WIDTHS}}


@dataclass(frozen=True)
class Condition:
    """Something out of the ordinary, and how each action must end.

    Attributes:
        ends: for each action `DONE`, or words of the one line it must end with.
        also: what must hold of the project folder of an action that succeeded.
    """

    name: str
    ends: Mapping[str, str]
    source: data.Source = field(default_factory=data.csv)
    model: str = "harden-plain"
    options: tuple[str, ...] = ()
    cost: str = "average_bitwidth"
    seed: Mapping[str, Any] = field(default_factory=lambda: SPACE)
    sampler: str = "random"
    also: Callable[[str, Path], None] | None = None


def always(end: str, **but: str) -> dict[str, str]:
    """The same end for every action, `but` for some."""
    return {action: but.get(action, end) for action in ACTIONS}


def one_trial(action: str, project: Path) -> None:
    """A search must have evaluated one configuration, once."""
    (log,) = project.rglob("log.json")
    assert len(json.loads(log.read_text(encoding="utf-8"))) == 1, "not one trial"


def rare_is_reported(action: str, project: Path) -> None:
    """A class without rows to test on has no accuracy, rather than one of 0."""
    if action == "test":
        (path,) = project.rglob("test_results.json")
        results = json.loads(path.read_text(encoding="utf-8"))
        tested = {name: sum(row) for name, row in zip(
            results["class_names"], results["confusion_matrix"], strict=True)}  # fmt: skip
        shares = results["per_class_accuracy"]
        assert len(shares) == data.CLASSES + 1, "a class is missing"
        assert [shares[name] is None for name in tested] == [not n for n in tested.values()]


NAN, INF = float("nan"), float("inf")
BAD_VALUE = always("values that are missing or not finite")
TOO_FEW = always("too few; give at least")
NO_BATCH = "batch normalisation needs two rows"
CONDITIONS = [
    Condition("nothing out of the ordinary", always(DONE)),
    Condition("NaN in a CSV file", BAD_VALUE, data.csv(data.one(NAN))),
    Condition("infinity in a CSV file", BAD_VALUE, data.csv(data.one(INF))),
    Condition("a number beyond float32", BAD_VALUE, data.csv(data.one(1e39))),
    Condition("an empty cell", always("column 'f0'"), data.csv(missing="")),
    Condition("NaN in an archive", BAD_VALUE, data.npz(data.set_at("x", (5, 1), NAN))),
    Condition("-infinity in an archive", BAD_VALUE, data.npz(data.set_at("x", (5, 1), -INF))),
    Condition("NaN as a label", always("label column"), data.npz(data.set_at("y", 5, NAN))),
    Condition(
        "NaN in rows of a user's data set", always("not finite"), data.named("harden-not-finite"),
    ),
    Condition("a column that does not vary", always(DONE), data.csv(data.column(1, 7.0))),
    Condition("no column that varies", always(DONE), data.csv(data.constant)),
    Condition("a column that hardly varies", always(DONE), data.csv(data.hardly_varying)),
    Condition("the largest numbers of float32", always(DONE), data.csv(data.largest)),
    Condition("the smallest numbers of float32", always(DONE), data.csv(data.smallest)),
    *(
        Condition(f"a class only in {split}", always(DONE), data.csv(data.rare_class(place)),
                  also=rare_is_reported)
        for place, split in enumerate(("training", "validation", "test"))
    ),
    Condition("rows of one class", always("all rows are of one class"), data.csv(data.one_class)),
    Condition("one row in a file", TOO_FEW, data.csv(count=1)),
    Condition("no row in a file", always("has no rows"), data.csv(count=0)),
    Condition("an empty file", always("rows.csv"), data.text("")),
    Condition("one row in each split", always(DONE), data.named("harden-one-row")),
    Condition(
        "one row in each split, with BatchNorm", always(DONE, train=NO_BATCH),
        data.named("harden-one-row"), "harden-batchnorm",
    ),
    Condition(
        "no validation or test rows",
        always(DONE, test="no test split", search="no validation split"),
        data.named("harden-train-only"),
    ),
    Condition("batch size 1", always(DONE), options=("--batch-size", "1")),
    Condition(
        "batch size 1 with BatchNorm1d", always(DONE, train=NO_BATCH),
        model="harden-batchnorm", options=("--batch-size", "1"),
    ),
    Condition(
        "batch size 1 with BatchNorm2d of one place", always(DONE, train=NO_BATCH),
        data.npz(data.unchanged, image=True), "harden-pixels", ("--batch-size", "1"),
    ),
    Condition(
        "a last batch of one row with BatchNorm", always(DONE),
        model="harden-batchnorm", options=("--batch-size", "9"),
    ),
    Condition("a batch larger than the data", always(DONE), options=("--batch-size", "1000000")),
    Condition(
        "a model with no parameters", always(DONE, train="no parameters"),
        model="harden-bare", cost="activation_bitwidth",
    ),
    Condition(
        "no parameters, and their bits asked for", always(DONE, train="no parameters",
                                                         search="average_bitwidth is nan"),
        model="harden-bare",
    ),
    Condition("all parameters frozen", always(DONE, train="frozen"), model="harden-frozen"),
    Condition("shared layers and weights", always(DONE), model="harden-shared"),
    Condition(
        "no node that can be quantised", always(DONE, train="no parameters",
                                                transform="no operation would be rounded",
                                                search="can be quantised"),
        model="harden-moves", cost="activation_bitwidth",
    ),
    Condition(
        "scores that are NaN",
        always(DONE, train="not a finite number", test="not finite numbers", search="loss is nan"),
        model="harden-undefined",
    ),
    *(
        Condition(f"one point to search, {sampler}", {"search": DONE}, seed=ONE_POINT,
                  sampler=sampler, also=one_trial)
        for sampler in sorted(SAMPLERS)
    ),
]  # fmt: skip


def run(scale: float) -> Iterator[Row]:
    """Every condition through every action; a share of them for a small scale."""
    every = max(1, round(len(CONDITIONS) / share(len(CONDITIONS), scale)))
    for condition in CONDITIONS[::every]:
        yield tried(condition)


def tried(condition: Condition) -> Row:
    """What the actions do under a condition."""
    failures = []
    for action, end in condition.ends.items():
        problem = attempt(condition, action, end)
        failures += [f"ch {action}: {problem}"] if problem else []
    figure = "; ".join(sorted(set(condition.ends.values()) - {DONE}))
    return Row(
        "numbers", condition.name, len(condition.ends), len(failures), tuple(failures), figure
    )


def attempt(condition: Condition, action: str, end: str) -> str:
    """Run an action; what is wrong with the way it ended, or nothing."""
    with tempfile.TemporaryDirectory() as name, registries_kept():
        folder = Path(name)
        code, error = ch(arguments(condition, action, folder), folder)
        project = folder / "out" / "p"
        if end != DONE:
            return refused_well(code, error, end, project)
        if code != 0:
            return f"exit code {code}: {error.strip()}"
        try:
            FINITE[action](project)
            if condition.also is not None:
                condition.also(action, project)
        except (AssertionError, ValueError, OSError) as problem:
            return f"{type(problem).__name__}: {problem}"
    return ""


def refused_well(code: int, error: str, words: str, project: Path) -> str:
    """What is wrong with an error: it must be one line with these words, and leave nothing."""
    lines = error.strip().splitlines()
    if code != 2 or len(lines) != 1 or not lines[0].startswith("ch: "):
        return f"exit code {code} and {len(lines)} lines, not 2 and 1: {error.strip()[-300:]}"
    if words not in lines[0]:
        return f"{words!r} is not in {lines[0]!r}"
    left = [*project.rglob("*.ckpt"), *project.rglob("test_results*.json")]
    return f"{left[0]} is left behind" if left else ""


def arguments(condition: Condition, action: str, folder: Path) -> list[str]:
    """What ``ch`` is told."""
    write_toml(folder / "run.toml", tables(condition))
    return [
        action, condition.model, *condition.source(folder), "--config", str(folder / "run.toml"),
        "--import", str(MODELS_FILE), *condition.options,
    ]  # fmt: skip


def tables(condition: Condition) -> dict[str, Any]:
    """The configuration of a run: what transform and search do."""
    metrics = {
        "accuracy": {"scale": 1.0, "direction": "maximize"},
        condition.cost: {"scale": 1.0, "direction": "minimize"},
    }
    return {
        "max_epochs": 2,
        "passes": {
            "quantize": {"by": "type", "default": {"config": {"name": "integer", **WIDTHS}}},
            "count_operations": {},
            "calculate_avg_bits": {},
        },
        "search": {
            "search_space": {
                "name": "graph/quantize/mixed_precision_ptq",
                "setup": {"by": "type"},
                "seed": {"default": {"config": dict(condition.seed)}},
            },
            "strategy": {
                "name": "optuna",
                "sw_runner": {"basic_evaluation": {"data_loader": "val_dataloader"}},
                "hw_runner": {condition.cost: {}},
                "setup": {"n_trials": 3, "sampler": condition.sampler, "plots": False},
                "metrics": metrics,
            },
        },
    }


@contextlib.contextmanager
def registries_kept() -> Iterator[None]:
    """Take back what the user's file registers, so that nobody else meets it."""
    registries: list[Any] = [MODELS, DATASETS]
    before = [dict(registry) for registry in registries]
    try:
        yield
    finally:
        for registry, entries in zip(registries, before, strict=True):
            registry._entries.clear()
            registry._entries.update(entries)
        for name in [name for name in sys.modules if name.startswith("chop_user.")]:
            del sys.modules[name]


def finite_weights(project: Path) -> None:
    """Training must have kept weights that are numbers."""
    checkpoints = sorted(project.rglob("*.ckpt"))
    assert len(checkpoints) == 2, f"{len(checkpoints)} checkpoints"
    for path in checkpoints:
        for name, value in read_state_dict(path).items():
            assert bool(torch.isfinite(value.float()).all()), f"{path.name}: {name} is not finite"


def finite_results(project: Path) -> None:
    """Testing must have stored numbers, and the file must be JSON as others read it."""
    (path,) = project.rglob("test_results.json")
    strict_json(path)


def finite_trials(project: Path) -> None:
    """Search must have stored trials, as JSON that others can read."""
    for path in project.rglob("*.json"):
        strict_json(path)
    assert list(project.rglob("log.json")), "no trials are stored"


def strict_json(path: Path) -> Any:
    """The content of a file without NaN and infinities, which JSON does not have."""

    def refuse(word: str) -> None:
        raise ValueError(f"{path.name} holds {word}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def loadable_graph(project: Path) -> None:
    """Transforming must have left a graph that can be loaded."""
    (path,) = project.rglob("transformed_ckpt")
    load_mase_graph(path)


FINITE = {
    "train": finite_weights,
    "test": finite_results,
    "transform": loadable_graph,
    "search": finite_trials,
}
