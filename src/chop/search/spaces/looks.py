"""Looks at a candidate on a growing share of the rows, for trials that may stop before the end.

Rows are taken in one random order, so that each look is at a sample without replacement of all of
them. What all rows can give lies between the bounds of a look, at the confidence that is asked for:
Wilson's interval for an accuracy, the normal approximation for a loss, both narrowed as the rows
that are left become few.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F

from chop.errors import DataError
from chop.figures import wilson_interval
from chop.search.spaces.samples import look_ends
from chop.search.spaces.space import Candidate


@dataclass(frozen=True)
class Look:
    """The result on some of the rows.

    Attributes:
        metrics: what these rows give.
        low: the least that all rows give, at the confidence asked for.
        high: the most.
    """

    rows: int
    of: int
    metrics: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]

    @property
    def is_last(self) -> bool:
        """Return whether these are all rows."""
        return self.rows == self.of


def looks_at_classes(candidate: Candidate, args: Any, risk: float) -> Iterator[Look]:
    """Yield looks at loss and accuracy, as `basic_evaluation` defines them; the last is exact.

    Args:
        risk: the probability that a bound of any look is wrong, for one metric and one side.
    """
    rows = candidate.context.mix_rows(args.data_loader, args.num_samples)
    of = sum(len(labels) for _, labels in candidate.context.batches(rows, args.num_samples))
    ends = look_ends(of)
    z = NormalDist().inv_cdf(1 - risk / max(1, len(ends) - 1))
    loss, squares, right, seen = 0.0, 0.0, 0, 0
    for scores, labels in candidate.predictions(rows, args.num_samples):
        if scores.ndim != 2:
            raise DataError("stop_dominated needs one label for each row, not one for each token")
        losses = F.cross_entropy(scores.float(), labels, reduction="none").double()
        loss, squares = loss + float(losses.sum()), squares + float(losses.square().sum())
        right += int((scores.argmax(dim=1) == labels).count_nonzero())
        seen += len(labels)
        if seen not in ends:
            continue
        left = math.sqrt((of - seen) / max(1, of - 1))  # the correction for a finite population
        mean, share = loss / seen, right / seen
        spread = z * left * math.sqrt(max(0.0, squares / seen - mean**2) / max(1, seen - 1))
        low, high = wilson_interval(right, seen, z * left)
        yield Look(
            seen, of, {"loss": mean, "accuracy": share},
            {"loss": mean - spread, "accuracy": low}, {"loss": mean + spread, "accuracy": high},
        )  # fmt: skip


def last_look(looks: Iterator[Look], is_enough: Callable[[Look], bool]) -> Look:
    """Return the first look that is enough, or else the last."""
    with torch.inference_mode():
        return next(look for look in looks if look.is_last or is_enough(look))


LOOKS = {"basic_evaluation": looks_at_classes}
"""The software runners that can look at a share of the rows."""
