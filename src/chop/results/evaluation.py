"""Evaluations, as ``ch test`` stores them."""

import math
from collections.abc import Sequence
from typing import Any

from pydantic import AliasChoices, BaseModel, Field, model_validator

from chop.figures import is_usable, number
from chop.runs import Count
from chop.tables import ResultTable
from chop.tasks import CLASSES, NUMBERS, Task

SPLITS = {"test": "test {}", "val": "validation {}", "all": "{} on all rows"}
"""Words for the primary metric of a split."""
LOSSES = {CLASSES.name: "Loss (nats)", NUMBERS.name: "Loss"}
FURTHER = {"auc": "AUC", "r2": "R²", "perplexity": "Perplexity"}
"""Further columns of results."""


def score_text_on_page(task: Task, value: float) -> str:
    """Return the primary metric as every part of the page writes it."""
    if task is NUMBERS or not is_usable(value):
        return number(value)
    return f"{value:.4f}"


def in_split(stem: str) -> AliasChoices:
    """The names of a figure in the results of all splits."""
    return AliasChoices(*(f"{split}_{stem}_epoch" for split in SPLITS))


class EvaluationRecord(BaseModel):
    """The content of a file of ``ch test``."""

    accuracy: float | None = Field(None, validation_alias=in_split(CLASSES.stem))
    mae: float | None = Field(None, validation_alias=in_split(NUMBERS.stem))
    r2: float | None = Field(None, validation_alias=in_split("r2"))
    auc: float | None = Field(None, validation_alias=in_split("auc"))
    loss: float | None = Field(None, validation_alias=in_split("loss"))
    perplexity: float | None = Field(None, validation_alias=in_split("perplexity"))
    unit: str = ""
    """What is counted, if it is not rows: tokens of a language model."""
    rows: Count
    accuracy_95_percent_interval: tuple[float, float] | None = None
    mae_95_percent_interval: tuple[float, float] | None = None
    per_class_accuracy: dict[str, float | None] = Field(default_factory=dict)
    class_names: list[str] = Field(default_factory=list)
    confusion_matrix: list[list[Count]] = Field(default_factory=list)
    load_name: str | None = None
    split: str = "test"
    preprocessing: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_a_score(self) -> "EvaluationRecord":
        if self.accuracy is None and self.mae is None:
            raise ValueError("it has neither an accuracy nor a mean absolute error")
        return self

    @property
    def task(self) -> Task:
        return CLASSES if self.mae is None else NUMBERS

    @property
    def score(self) -> str:
        """The primary metric as text."""
        value = self.accuracy if self.mae is None else self.mae
        return score_text_on_page(self.task, math.nan if value is None else value)

    @property
    def interval(self) -> str:
        """The interval of the primary metric, if it is known."""
        found = self.accuracy_95_percent_interval or self.mae_95_percent_interval
        return " to ".join(score_text_on_page(self.task, each) for each in found or ())


def evaluations_table(
    found: Sequence[tuple[str, str | None, EvaluationRecord]],
) -> ResultTable:
    """Return a row for each evaluation: its name, the network, and what was measured."""
    words = found[0][2].task.words
    headers = ["Result", "Tested", words[0].upper() + words[1:], "95 % confidence",
               LOSSES[found[0][2].task.name], "Rows"]  # fmt: skip
    rows = [
        [name, network or "the model as it was", result.score, result.interval,
         number(result.loss), f"{number(result.rows)} {result.split} {result.unit}".rstrip()]
        for name, network, result in found
    ]  # fmt: skip
    for field, header in FURTHER.items():
        if any(getattr(result, field) is not None for *_, result in found):
            headers.append(header)
            for row, (*_, result) in zip(rows, found, strict=True):
                row.append(number(getattr(result, field)))
    return ResultTable(headers, rows, "Test results", text_columns=2)
