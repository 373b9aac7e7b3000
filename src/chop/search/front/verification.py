"""Comparison of the networks of a front with their integers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from chop.errors import ChopError, DataError, SearchError
from chop.logger import get_logger
from chop.lowering import BrokenPromiseError, compare
from chop.search.spaces.space import SearchContext, SearchSpace, make_space
from chop.search.study.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor, nn

    from chop.search.config import SearchConfig

logger = get_logger("chop")

TRAINING_RUNNERS = frozenset({"basic_train", "regression_train", "hyperparameter_training"})
MOST_NUMBERS = 2**22
"""Elements of the rows that are compared at most: more would take longer than a trial."""


class Verified(BaseModel):
    """The result of comparing a network with its integers, as ``best.json`` has it."""

    model_config = ConfigDict(frozen=True)

    equal: bool | None = None
    """Whether all outputs were equal; None if they were not compared."""
    rows: int = 0
    promised: bool = False
    """The analysis says that they are equal for every input."""
    accumulator_bits: int = 0
    numbers: int = 0
    """Outputs that were compared."""
    different: int = 0
    predictions: int = 0
    """Rows whose largest output is another."""
    reason: str | None = None
    """Why nothing was compared, or where the first difference is."""

    @property
    def is_broken(self) -> bool:
        """A difference where there must be none."""
        return self.promised and self.equal is False

    def __str__(self) -> str:
        if self.equal is None:
            return "no"
        if self.is_broken:
            return "WRONG"
        if self.promised:
            return f"{self.rows:,} rows"
        return f"inexact: {self.different:,} of {self.numbers:,} outputs differ"


Marks = Mapping[int, Verified]
"""What was found of trials, by their numbers."""


def verify_model(build: "Callable[[], nn.Module]", features: "Tensor") -> Verified:
    """Compare the model that `build` makes with its integers; what is in the way is the reason."""
    try:
        found = compare(build().cpu(), features)
    except BrokenPromiseError as error:
        return Verified(equal=False, promised=True, reason=str(error))
    except ChopError as error:
        return Verified(reason=str(error))
    return Verified(equal=not found.different, **asdict(found))


@dataclass(frozen=True)
class FrontCheck:
    """Compares configurations with their integers; what the workers of an engine are given."""

    context: SearchContext
    config: "SearchConfig"

    def evaluator(self) -> Callable[[dict[str, Any]], Verified]:
        """Return what compares a configuration in this process."""
        stated = self.config.search_space
        return check_of(make_space(stated.name, self.context, stated.setup, stated.seed))


def check_of(space: SearchSpace) -> Callable[[dict[str, Any]], Verified]:
    """Return what compares a configuration of a space with its integers."""
    rows = rows_to_compare(space.context)
    return lambda config: verify_model(lambda: space.candidate(config).model, rows)


def verify_best(
    space: SearchSpace,
    best: Sequence[Trial],
    wanted: Literal["integer", "none"] | None,
    known: Marks,
    check: Callable[[list[dict[str, Any]]], list[Verified]] | None = None,
) -> dict[int, Verified]:
    """Compare the best trials with their integers on rows for validation, by their numbers.

    Args:
        wanted: ``verify`` of ``[search.strategy]``.
        known: what was found earlier in the same study.
        check: compares several configurations at once; by default one after another, here.
    """
    if wanted == "none" or not best:
        return {}
    new = [trial for trial in best if trial.number not in known]
    configs = [dict(trial.config) for trial in new]
    if check is None or len(new) < 2:
        marks = list(map(check_of(space), configs)) if new else []
    else:
        marks = check(configs)
    fresh = {trial.number: mark for trial, mark in zip(new, marks, strict=True)}
    found = {trial.number: (fresh | dict(known))[trial.number] for trial in best}
    is_whole = all(each.equal for each in found.values())
    level = logging.WARNING if wanted == "integer" and not is_whole else logging.INFO
    said = summary(found) if is_whole or not space.advice else f"{summary(found)}; {space.advice}"
    logger.log(level, "Verified: %s", said)
    return found


def require_agreement(found: Marks) -> None:
    """Raise if a network differs from its integers where it must not."""
    for number, each in found.items():
        if each.is_broken:
            raise SearchError(f"trial {number}: {each.reason}")


def rows_to_compare(context: SearchContext) -> "Tensor":
    """Rows for validation, or for training where there are none; as many as are quick."""
    size = max(1, next(iter(context.dummy_in.values()))[0].numel())
    most = max(1, MOST_NUMBERS // size)
    try:
        batches = context.first_batches("val_dataloader", most)
    except DataError:
        batches = context.first_batches("train_dataloader", most)
    return torch.cat([features for features, _ in batches]).cpu()


def summary(found: Marks) -> str:
    """In a line what was verified, and what stands in the way of the first that was not."""
    equal = [each for each in found.values() if each.equal and each.promised]
    words = f"{len(equal)} of {len(found)} best trials compute in integers what was simulated"
    if equal:
        words += f", on {equal[0].rows:,} rows"
    other = next(((n, each) for n, each in found.items() if each not in equal), None)
    if other is None:
        return words
    number, each = other
    return f"{words}; trial {number}: {each.reason or each}"
