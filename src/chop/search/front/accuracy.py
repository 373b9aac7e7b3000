"""Intervals of the scores of a front, and scores of it and the float network on test rows.

A score is the primary metric: the accuracy of classes, the mean absolute error of numbers.

Test rows are looked at when the search is over: nothing is chosen by them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from chop.figures import ACCURACY, Measured
from chop.logger import get_logger
from chop.nn.quantized import QuantizedModule
from chop.search.spaces.space import SearchContext, SearchSpace
from chop.search.study.trial import Trial
from chop.tasks import IGNORED, NUMBERS, task_named
from chop.training.metrics import evaluate_model

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = get_logger("chop")

TEST_ROWS = "test_dataloader"
MOST_POINTS = 50
"""Points of a front that are tested: each takes as long as a trial."""


class Accuracies(BaseModel):
    """The scores of one network: on the rows that the search chooses by, and on test rows."""

    model_config = ConfigDict(frozen=True)

    chosen_by: Measured | None = None
    test: Measured | None = None


class Start(Accuracies):
    """The same of the network that a search started from, which need not be a float one."""

    is_float: bool = True

    @property
    def name(self) -> str:
        """Return what it is called."""
        return "float network" if self.is_float else "network at the start"


Judged = Mapping[int, Accuracies]
"""What is known of trials, by their numbers."""
UNKNOWN = Accuracies()


class Judge:
    """Measures scores beyond those that a search was told to measure.

    Args:
        loader, num_samples: the rows by which the search chooses.
    """

    def __init__(self, space: SearchSpace, loader: str, num_samples: int | None) -> None:
        self.space = space
        self.chosen_by = space.context.batches(loader, num_samples)
        if loader == TEST_ROWS:
            logger.warning(
                "The search chooses by test rows, so its results are too good: write "
                'data_loader = "val_dataloader" for its software runner'
            )

    @property
    def context(self) -> SearchContext:
        return self.space.context

    def of_front(self, best: Sequence[Trial], known: Judged) -> dict[int, Accuracies]:
        """The scores of the best trials; those that were `known` are not measured again."""
        rows = sum(predictions_in(labels) for _, labels in self.chosen_by)
        found = {}
        for place, trial in enumerate(best):
            before = known.get(trial.number, UNKNOWN)
            share = trial.software.get(ACCURACY)
            chosen_by = (
                before.chosen_by if share is None else Measured.of(round(share * rows), rows)
            )
            test = before.test
            if test is None and place < MOST_POINTS:
                test = self._test(partial(self._model, trial))
            if chosen_by is None and self.is_regression and place < MOST_POINTS:
                # A mean tells no interval, so the rows are measured again.
                chosen_by = self._measure(self._model(trial), self.chosen_by)
            found[trial.number] = Accuracies(chosen_by=chosen_by, test=test)
        return found

    @property
    def is_regression(self) -> bool:
        return task_named(self.context.task) is NUMBERS

    def of_start(self, model: "nn.Module | None") -> Start | None:
        """The same of the network that the search started from."""
        if model is None:
            return None
        return Start(
            chosen_by=self._measure(model, self.chosen_by),
            test=self._test(lambda: model),
            is_float=not any(isinstance(part, QuantizedModule) for part in model.modules()),
        )

    def _model(self, trial: Trial) -> "nn.Module":
        return self.space.candidate(dict(trial.config)).model

    def _test(self, build: "Callable[[], nn.Module]") -> Measured | None:
        if not self.context.data_module.dataset_info.test_split_available:
            return None
        batches = self.context.data_module.test_dataloader()  # not kept: there may be many rows
        return self._measure(build(), batches)

    def _measure(self, model: "nn.Module", batches: "Iterable[tuple[Tensor, Tensor]]") -> Measured:
        context = self.context
        return evaluate_model(model, copies(batches), context.device, context.targets).primary


def predictions_in(labels: "Tensor") -> int:
    """Count the predictions that labels ask for: one for each row, or each token that has one."""
    if labels.ndim == 1 or labels.is_floating_point():
        return len(labels)
    return int((labels != IGNORED).sum())


def copies(batches: "Iterable[tuple[Tensor, Tensor]]") -> "Iterator[tuple[Tensor, Tensor]]":
    """Batches whose inputs a model may change."""
    for features, labels in batches:
        yield features.clone(), labels
