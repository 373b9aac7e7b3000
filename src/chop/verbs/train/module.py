"""`chop.train`: train any module on any loaders."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from chop.logger import quietly
from chop.runs import SOFTWARE, TRAINING
from chop.verbs.common.rows import (
    adapt,
    in_full,
    in_one_word,
    module_of,
    module_project,
    one_line,
    splits,
)
from chop.verbs.train.training import train as train_action

if TYPE_CHECKING:
    from chop.training.fit import TrainingResult


def train_module(  # noqa: PLR0913  # all but the first by name
    model: nn.Module,
    train: Iterable[Any],
    val: Iterable[Any] | None = None,
    *,
    task: str | None = None,
    max_epochs: int | None = None,
    learning_rate: float = 1e-3,
    project: str | Path | None = None,
    verbose: bool = False,
    **settings: Any,
) -> "TrainingResult":
    """Train a model, as ``ch train`` does; it has the weights of the last epoch afterwards.

    Args:
        train, val: loaders of pairs (inputs, labels), or of dictionaries with ``labels``.
        task: ``classification``, ``language_modeling`` or ``regression``. By default labels tell
            it: real numbers (a float dtype) are to be predicted, whole numbers are classes.
        max_epochs: 20 if nothing is said; `epochs` is the same.
        project: the folder of the run; by default ``mase_output/<class of the model>``.
        verbose: show what is done, as the command does.
        settings: as for `chop.actions.train`: optimizer, weight_decay, scheduler, seed, resume …
            The words of ``ch train`` are understood as well.
    """
    model = module_of(model, "train")
    in_full(model, "train")
    folder = module_project(project, model) / SOFTWARE / TRAINING
    given = in_one_word("train", {"max_epochs": max_epochs, **settings})
    with quietly(not verbose), one_line("train"):
        what = adapt(model, splits(train=train, val=val), task)
        return train_action(
            what.model, data_module=what.rows, task=what.task.name, save_path=folder,
            learning_rate=learning_rate, **given,
        )  # fmt: skip
