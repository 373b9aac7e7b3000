"""Scores of the predictions for a table with labels, counted piece by piece."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from chop.dataset.tables.pieces import Piece, TableFile
from chop.figures import Measured
from chop.logger import get_logger
from chop.preprocessing import Preprocessing
from chop.tasks import CLASS_NUMBER, NUMBERS, PREDICTION, Columns, Task
from chop.training.results import RegressionTally

logger = get_logger("chop")


class Score:
    """The score on the rows that have labels; without labels, nothing."""

    @staticmethod
    def of(task: Task, table: TableFile, label: str | None, known: Preprocessing | None) -> "Score":
        """Return the score of a task."""
        if task is NUMBERS:
            names = [name for name in (label or "").split(",") if name in table.names]
            return ErrorOfNumbers([table.names.index(name) for name in names], known)
        if label is None or label not in table.names:
            return Score()
        return Accuracy(label, table.names.index(label), known.classes if known else ())

    def add(self, piece: Piece, good: Tensor, outputs: Tensor, columns: Columns) -> None:
        """Count the rows of a piece; `good` tells those that could be predicted."""

    def result(self) -> Measured | None:
        """Return what was measured, if anything was."""
        return None


class Accuracy(Score):
    """The share of labels that are predicted, which may be names of classes or their numbers."""

    def __init__(self, label: str, place: int, classes: Sequence[str]) -> None:
        self.label = label
        self.place = place
        self.classes = classes
        self.labelled = 0
        self.right = dict.fromkeys((PREDICTION, CLASS_NUMBER), 0)
        self.met: set[str] = set()

    def add(self, piece: Piece, good: Tensor, outputs: Tensor, columns: Columns) -> None:
        true = [_label(text) for text in piece.columns[self.place].texts()]
        chosen = [row for row in good.nonzero()[:, 0].tolist() if true[row]]
        self.labelled += len(chosen)
        numbers = {str(place) for place in range(outputs.shape[1])}
        named = {CLASS_NUMBER: numbers, PREDICTION: set(self.classes) or numbers}
        for name in self.right.keys() & columns.keys():
            found = columns[name]
            self.right[name] += sum(true[row] == found[row] for row in chosen)
            if any(true[row] in named[name] for row in chosen):
                self.met.add(name)

    def result(self) -> Measured | None:
        for name, right in self.right.items():
            if name in self.met:
                return Measured.of(right, self.labelled)
        if self.labelled:
            logger.warning("No label in column %r is a class of the model", self.label)
        return None


class ErrorOfNumbers(Score):
    """The distance of numbers from labels, on the rows that have all of them."""

    def __init__(self, places: Sequence[int], known: Preprocessing | None) -> None:
        self.places = places
        self.tally = RegressionTally(known.targets if known is not None else None)
        self.labelled = 0

    def add(self, piece: Piece, good: Tensor, outputs: Tensor, columns: Columns) -> None:
        if len(self.places) != outputs.shape[1]:
            return
        labels = torch.from_numpy(piece.matrix(self.places))
        chosen = labels.isfinite().all(dim=1) & good
        self.labelled += int(chosen.sum())
        if chosen.any():
            self.tally.add(outputs[chosen], labels[chosen])

    def result(self) -> Measured | None:
        return self.tally.result().primary if self.labelled else None


@lru_cache(256)
def _label(text: str) -> str:
    """A label as the names of classes have it: ``1.0`` is ``1``."""
    plain = text.strip(" '\"\r")
    try:
        return str(int(float(plain))) if float(plain).is_integer() else plain
    except (ValueError, OverflowError):
        return plain
