"""Trainings of one setting, each kept in a separate file as soon as it is done.

A study of 12 settings and 10 repeats is 120 trainings, and none of them is done twice: a repeat is
a function of its setting and its seed, and its result is a file. So a process that is killed loses
the training that it was doing, and the repeats of a setting are parts that an engine evaluates in
any process.
"""

import copy
import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from chop.files import write_text
from chop.logger import get_logger, silently
from chop.runs import REPEAT, TRAININGS
from chop.search.metrics import METRICS, STATISTICS, TRAINED
from chop.search.spaces.afresh import fresh_weights, with_batch_size
from chop.search.spaces.space import Candidate, key_of
from chop.training.metrics import evaluate_model
from chop.training.settings import TrainingSettings
from chop.validation import parse

logger = get_logger("chop")

BATCH_SIZE = "batch_size"
LINES_EVERY = 10.0
"""Seconds between two lines that tell how far a setting is."""
LONGEST_NAME = 100


class Training(BaseModel):
    """One training of one setting, as its file holds it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str = ""
    """Stands for all that decides the result: network, data, setting, seed, rows measured on."""
    config: dict[str, Any]
    repeat: int = 0
    seed: int = 0
    accuracy: float
    loss: float
    train_accuracy: float
    train_loss: float = math.nan
    seconds: float
    history: list[dict[str, int | float]]
    """The learning curves: a table for each epoch, as in ``training_log.csv``."""


@dataclass(frozen=True)
class MeasuredRows:
    """The rows that a trained network is measured on."""

    data_loader: str
    num_samples: int | None


class Repeats:
    """The trainings of one setting, in whatever process and whenever they were done."""

    _told: ClassVar[float] = time.monotonic()
    """When a line was last written, whatever setting it was about."""

    def __init__(self, candidate: Candidate, count: int, rows: MeasuredRows) -> None:
        self.candidate = candidate
        self.count = count
        self.rows = rows
        self._found: dict[int, Training] = {}

    def complete(self) -> list[Training]:
        """Return every repeat; those that are not done yet are trained."""
        for repeat in self._unknown():
            self.keep(self.evaluate(repeat))
        return [self._found[repeat] for repeat in range(self.count)]

    def missing(self) -> list[int]:
        """Return the repeats that are not done; none without a folder, as nothing could be kept."""
        return [] if self.folder is None else self._unknown()

    def _unknown(self) -> list[int]:
        return [repeat for repeat in range(self.count) if self._finished_training(repeat) is None]

    def keep(self, value: Training) -> None:
        """Keep a training in its file."""
        self._found[value.repeat] = value
        path = self._path(value.repeat)
        if path is not None:
            write_text(path, value.model_dump_json(indent=1) + "\n")
        self._tell()

    @cached_property
    def folder(self) -> Path | None:
        """Return where the files of this setting are; a search without a folder keeps none."""
        above = self.candidate.context.folder
        if above is None:
            return None
        folder = above / TRAININGS / name_of(self.candidate.config)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @cached_property
    def _problem(self) -> dict[str, Any]:
        context = self.candidate.context
        return {
            "network": repr(context.model),
            "data": context.data_module.fingerprint,
            "rows": [self.rows.data_loader, self.rows.num_samples],
            "config": self.candidate.config,
        }

    def _identity(self, repeat: int) -> str:
        return key_of({**self._problem, "seed": self._seed(repeat)})

    def _seed(self, repeat: int) -> int:
        """The same for all settings, so that they are compared on the same initial weights."""
        return self.candidate.context.seed + repeat

    def _path(self, repeat: int) -> Path | None:
        return None if self.folder is None else self.folder / REPEAT.format(repeat)

    def _finished_training(self, repeat: int) -> Training | None:
        """A repeat that is done, in any process."""
        path = self._path(repeat)
        if repeat not in self._found and path is not None and path.exists():
            run = read_run(path)
            if run is not None and run.identity == self._identity(repeat):
                self._found[repeat] = run
        return self._found.get(repeat)

    def _tell(self) -> None:
        """Write a line now and then, as a setting of many epochs takes long."""
        now = time.monotonic()
        if now - Repeats._told > LINES_EVERY:
            Repeats._told = now
            setting = ", ".join(f"{name} {value}" for name, value in self.candidate.config.items())
            done = self.count - len(self._unknown())
            logger.info("%s: %d of %d repeats are done", setting, done, self.count)

    def evaluate(self, number: int) -> Training:
        """Train a repeat; nothing is kept."""
        from chop.training.fit import fit_in_memory
        from chop.training.job import Job

        context, config, seed = self.candidate.context, self.candidate.config, self._seed(number)
        began = time.perf_counter()
        model = fresh_weights(copy.deepcopy(self.candidate.model), seed)
        data = with_batch_size(context.data_module, config.get(BATCH_SIZE), seed)
        settings = training_settings(config, seed, context.device)
        with silently():
            history = fit_in_memory(Job(model, data, Path(), context.model_info.name), settings)
        batches = context.batches(self.rows.data_loader, self.rows.num_samples)
        result = evaluate_model(model.to(context.device), batches, context.device).metrics()
        return Training(
            identity=self._identity(number),
            config=config,
            repeat=number,
            seed=seed,
            accuracy=result["accuracy"],
            loss=result["loss"],
            train_accuracy=history[-1]["train_acc"],
            train_loss=history[-1]["train_loss"],
            seconds=time.perf_counter() - began,
            history=history,
        )


def read_run(path: Path) -> Training | None:
    """The training in a file; one that is damaged is told of and counts as not done."""
    try:
        return Training.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error).partition("\n")[0]
        logger.warning("%s: not the result of a training (%s); it is done again", path, reason)
        return None


def stored_runs(folder: Path) -> list[Training]:
    """All trainings of a study, setting by setting."""
    paths = sorted(folder.glob(f"{TRAININGS}/*/{REPEAT.format('*')}"))
    runs = [run for path in paths if (run := read_run(path)) is not None]
    return sorted(runs, key=lambda run: (name_of(run.config), run.repeat))


def summarise_trainings(runs: Sequence[Training]) -> dict[str, float]:
    """Mean, standard deviation, best and worst of everything that trainings are measured by."""
    found: dict[str, float] = {}
    for name in TRAINED:
        values = [float(getattr(run, name)) for run in runs]
        best, worst = min(values), max(values)
        if METRICS[name].direction == "maximize":
            best, worst = worst, best
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        numbers = (statistics.fmean(values), spread, best, worst)
        found |= {f"{name}{kind}": n for kind, n in zip(("", *STATISTICS), numbers, strict=True)}
    return found


def name_of(config: Mapping[str, Any]) -> str:
    """A name for the files of a setting that tells what it is, and is different for each."""
    words = "_".join(f"{name}-{value}" for name, value in sorted(config.items()))
    plain = re.sub(r"[^\w.+-]", "", words)[:LONGEST_NAME]
    return f"{plain}_{key_of(config)[:6]}"


def training_settings(
    config: Mapping[str, Any], seed: int, device: torch.device | None = None
) -> TrainingSettings:
    """The settings of a training; the batch size belongs to the data."""
    given = {name: value for name, value in config.items() if name != BATCH_SIZE}
    accelerator = "cpu" if device is None or device.type == "cpu" else "auto"
    return parse(
        TrainingSettings, {**given, "seed": seed, "accelerator": accelerator}, "search space"
    )
