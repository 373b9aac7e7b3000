"""Numbers for people: counts, shares, and scores with the interval that is 95 % sure."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict, model_serializer, model_validator

from chop.tasks import CLASSES, NUMBERS

UNKNOWN = "–"
LARGEST_NUMBER = 1e60  # what is drawn can be squared and multiplied without overflow
Z_95 = 1.959963984540054  # standard deviations on either side that hold 95 % of a normal curve
ACCURACY = CLASSES.primary_metric
SCORES = frozenset((CLASSES.primary_metric, NUMBERS.primary_metric))
"""The metrics whose intervals are known."""
SMALLEST_IN_FULL, LARGEST_IN_FULL = 1e-4, 1e9


def number(value: object, digits: int = 4) -> str:
    """Return a number as people write it: thousands apart, no more digits than mean something."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return UNKNOWN if value is None else str(value)
    if isinstance(value, int) and abs(value) >= 10**15:
        return f"{Decimal(value):.3g}"
    if not math.isfinite(value):
        return UNKNOWN if math.isnan(value) else "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def significant(value: float, digits: int = 4) -> str:
    """Return a number with so many digits that mean something, in full where that is short."""
    if not math.isfinite(value) or not SMALLEST_IN_FULL <= abs(value) < LARGEST_IN_FULL:
        return f"{value:.{digits}g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(places, 0)}f}"


def score_text(value: float, metric: str = ACCURACY) -> str:
    """Return the value of a primary metric: an accuracy with four decimals, or an error."""
    return f"{value:.4f}" if metric == ACCURACY else significant(value)


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Return metrics in one line."""
    return ", ".join(f"{name} {number(value)}" for name, value in metrics.items())


def quantity(count: int, thing: str) -> str:
    """Return how many of a thing there are: ``1 run``, ``2 runs``."""
    return f"{number(count)} {thing}" + ("" if count == 1 else "s")


def percent(share: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * share:.2f} %" if is_usable(share) else UNKNOWN


def is_usable(value: object) -> bool:
    """Return whether a value is a number that charts can be computed from."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < LARGEST_NUMBER


def wilson_interval(right: int, total: int, z: float = Z_95) -> tuple[float, float]:
    """Return the interval that holds the true fraction with 95 % confidence, after Wilson."""
    if total == 0:
        return 0.0, 1.0
    share, weight = right / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


class Measured(BaseModel):
    """A score, the rows that it was found on, and the interval that is 95 % sure.

    Files have the value under the name of the metric: ``{"accuracy": 0.75, "rows": …}``.
    """

    model_config = ConfigDict(frozen=True)

    metric: str = ACCURACY
    value: float
    rows: int
    low: float
    high: float

    @model_validator(mode="before")
    @classmethod
    def _read(cls, stored: Any) -> Any:
        known = isinstance(stored, Mapping) and next((n for n in SCORES if n in stored), None)
        if not known:
            return stored
        rest = {name: each for name, each in stored.items() if name != known}
        return {"metric": known, "value": stored[known], **rest}

    @model_serializer
    def _plain(self) -> dict[str, float | int]:
        return {self.metric: self.value, "rows": self.rows, "low": self.low, "high": self.high}

    @classmethod
    def of(cls, right: int, rows: int) -> "Measured":
        """Return the accuracy of so many predictions, `right` of which are right."""
        low, high = wilson_interval(right, rows)
        return cls(value=right / rows, rows=rows, low=low, high=high)

    @property
    def accuracy(self) -> float:
        """The value by the name that it has for classes."""
        return self.value

    @property
    def interval(self) -> str:
        """The interval in words."""
        return " to ".join(score_text(each, self.metric) for each in (self.low, self.high))

    def __str__(self) -> str:
        half = (self.high - self.low) / 2
        if self.metric == ACCURACY:
            return f"{self.value:.4f} ±{half:.4f}"
        return f"{significant(self.value)} ±{significant(half, 2)}"
