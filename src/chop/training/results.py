"""Results of running a network over labelled rows, and those of one that predicts numbers.

Errors are in the units of the labels. The results of classifiers are in `metrics`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from tabulate import tabulate
from torch import Tensor

from chop.figures import Z_95, Measured, score_text, wilson_interval
from chop.masking import printable
from chop.preprocessing import Targets
from chop.tasks import NUMBERS, Task, as_rows, restore_units

if TYPE_CHECKING:
    from chop.lowering import Agreement


class Result(ABC):
    """The result of running a network over labelled rows, whatever its task is."""

    loss: float
    agreement: "Agreement | None"
    task: ClassVar[Task]
    unit: ClassVar[str] = "rows"
    """What is counted."""
    digits: ClassVar[str] = ".6f"
    """How numbers are shown."""

    rows: int
    interval: tuple[float, float]
    """Of what decides, with 95 % confidence."""

    @property
    @abstractmethod
    def value(self) -> float:
        """The primary metric of the task: accuracy, or mean absolute error."""

    @property
    def primary(self) -> Measured:
        """The primary metric with its interval."""
        low, high = self.interval
        metric, rows = self.task.primary_metric, self.rows
        return Measured(metric=metric, value=self.value, rows=rows, low=low, high=high)

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Everything by the names that searches have for it."""

    @abstractmethod
    def figures(self, split: str) -> dict[str, float]:
        """Return the figures of a split by their names there; the primary metric is first."""

    @abstractmethod
    def details(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Return further facts as plain values."""

    @abstractmethod
    def table(self, class_names: Sequence[str]) -> list[str]:
        """Return the table of classes or targets as lines of text."""

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self.facts())
        return f"{type(self).__name__}({facts})"

    def _repr_html_(self) -> str:
        """Return the measurements as a table for notebooks."""
        return str(tabulate(self.facts(), [], "html", disable_numparse=True))

    def facts(self) -> list[tuple[str, str]]:
        """Return the measurements with their names, as text."""
        (first, value), *others = [
            (name.removesuffix("_epoch").strip("_"), score_text(value, self.task.primary_metric))
            for name, value in self.figures("").items()
        ]
        return [
            (first, f"{value} ({self.primary.interval})"),
            *others,
            (self.unit, f"{self.rows:,}"),
            *([] if self.agreement is None else [("in integers", str(self.agreement))]),
        ]

    def as_dict(self, class_names: Sequence[str] = (), split: str = "test") -> dict[str, Any]:
        """The result as plain values, for JSON."""
        return {
            **self.figures(split),
            "rows": self.rows,
            f"{self.task.primary_metric}_95_percent_interval": list(self.interval),
            **self.details(class_names),
            **({} if self.agreement is None else {"integers": asdict(self.agreement)}),
        }


class AnyTally(Protocol):
    """A counter of batches; `share` adds what other processes have counted."""

    def add(self, outputs: Tensor, labels: Tensor) -> None: ...

    def share(self, summed: Callable[[Tensor], Tensor]) -> None: ...

    def result(self) -> Result: ...


@dataclass(frozen=True)
class TargetError:
    """The errors of one target, in its own units."""

    mae: float
    """The mean absolute error."""
    mse: float
    """The mean squared error."""
    r2: float
    """The share of the variance that is explained; predicting the mean of the rows explains 0."""

    @property
    def rmse(self) -> float:
        """The root of the mean squared error."""
        return math.sqrt(self.mse)


@dataclass(frozen=True, repr=False)
class RegressionEvaluation(Result):
    """The result of predicting numbers; of several targets each error is the mean over them.

    Args:
        loss: the mean squared error of targets as they are scaled for training.
        errors: of each target.
        interval: the 95 % confidence interval of the mean absolute error.
        names: of the targets, if they have any.
        agreement: that of the simulation with integers, if those were evaluated.
    """

    loss: float
    rows: int
    errors: tuple[TargetError, ...]
    interval: tuple[float, float]
    names: tuple[str, ...] = ()
    agreement: "Agreement | None" = None
    auc: Measured | None = None
    """How well large errors tell odd rows, where each row is its own target."""

    task: ClassVar[Task] = NUMBERS
    digits: ClassVar[str] = ".6g"

    @property
    def mae(self) -> float:
        return self._mean("mae")

    @property
    def mse(self) -> float:
        return self._mean("mse")

    @property
    def rmse(self) -> float:
        return self._mean("rmse")

    @property
    def r2(self) -> float:
        return self._mean("r2")

    def _mean(self, name: str) -> float:
        values: list[float] = [getattr(each, name) for each in self.errors]
        return sum(values) / max(len(values), 1)

    @property
    def value(self) -> float:
        return self.mae

    def metrics(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in NUMBERS.metrics}

    def figures(self, split: str) -> dict[str, float]:
        shown = {name: getattr(self, name) for name in ("mae", "rmse", "r2", "loss")}
        shown |= {} if self.auc is None else {"auc": self.auc.value}
        return {f"{split}_{name}_epoch": value for name, value in shown.items()}

    def details(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Return the errors of each target."""
        facts: dict[str, Any] = {"task": NUMBERS.name}
        if self.auc is not None:  # targets are the features, of which there may be many
            low, high, odd = self.auc.low, self.auc.high, self.auc.rows - self.rows
            return facts | {"auc_95_percent_interval": [low, high], "odd_rows": odd}
        measured = [{name: getattr(each, name) for name in NUMBERS.metrics} for each in self.errors]
        return facts | {"per_target": dict(zip(self._titles(), measured, strict=True))}

    def table(self, class_names: Sequence[str]) -> list[str]:
        """The errors of each target as lines of text, if there are several."""
        if self.auc is not None:
            odd = f"{self.auc.rows - self.rows:,} odd rows, which other figures leave out"
            return ["", f"AUC {self.auc}: errors of the rows above tell them from {odd}"]
        if len(self.errors) < 2:
            return []
        rows = [
            [printable(title), f"{each.mae:.6g}", f"{each.rmse:.6g}", f"{each.r2:.4f}"]
            for title, each in zip(self._titles(), self.errors, strict=True)
        ]
        headers, sides = ["target", "mae", "rmse", "r2"], ["left", "right", "right", "right"]
        text = tabulate(rows, headers, "simple", disable_numparse=True, colalign=sides)
        return ["", text]

    def _titles(self) -> Sequence[str]:
        return self.names or [str(place) for place in range(len(self.errors))]


class RegressionTally:
    """Errors of all rows summed on the device, read once at the end.

    Args:
        targets: how the network scales what it predicts.
    """

    def __init__(self, targets: Targets | None = None) -> None:
        self.targets = targets
        self.rows = torch.zeros((), dtype=torch.int64)
        self.sums = torch.zeros(4, 1)
        """Of each target: absolute errors, squared ones, labels, and squared labels."""
        self.spread = torch.zeros(())
        """The sum of the squares of the mean absolute error of each row."""
        self.marked: list[tuple[Tensor, Tensor]] = []
        """The squared errors of rows that are their own targets, and which of these are odd."""

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Count one batch."""
        exact = torch.float32 if outputs.is_mps else torch.float64  # mps has no doubles
        labels = as_rows(labels).to(exact)
        if self.targets is not None and self.targets.own:
            odd, labels = labels[:, -1] > 0, self.targets.without_marks(labels)
            self.marked.append(((outputs.to(exact) - labels).square().mean(dim=1), odd))
            outputs, labels = outputs[~odd], labels[~odd]
        errors = restore_units(outputs.to(exact), self.targets) - labels
        # Of labels far from zero the variance would be a difference of two large numbers.
        away = labels if self.targets is None else labels - labels.new_tensor(self.targets.mean)
        parts = torch.stack([errors.abs(), errors.square(), away, away.square()])
        device = outputs.device
        self.sums = self.sums.to(device, exact) + parts.sum(dim=1)
        self.spread = self.spread.to(device, exact) + parts[0].mean(dim=1).square().sum()
        self.rows = self.rows.to(device) + len(labels)

    def share(self, summed: Callable[[Tensor], Tensor]) -> None:
        """Add what other processes have counted."""
        own = int(self.rows)
        self.rows, self.sums = summed(self.rows), summed(self.sums)
        self.spread = summed(self.spread)
        if int(self.rows) != own:  # ranks of rows cannot be added up
            self.marked = []

    def result(self) -> RegressionEvaluation:
        """Return the result of the rows counted so far."""
        rows = int(self.rows)
        means = self.sums.cpu().double() / max(rows, 1)
        if self.targets and self.targets.own:  # one feature may hardly vary
            spread = means[3] - means[2].square()
            means = torch.stack([*means[:2], 0 * spread, spread]).mean(dim=1, keepdim=True)
        errors = tuple(_error(*each) for each in means.t().tolist())
        scales = self.targets.scale if self.targets else (1.0,) * len(errors)
        scaled = [e.mse / scale**2 for e, scale in zip(errors, scales, strict=True)]
        mae = float(means[0].mean())
        variance = max(float(self.spread) / max(rows, 1) - mae**2, 0.0)
        half = Z_95 * math.sqrt(variance / max(rows - 1, 1))
        return RegressionEvaluation(
            sum(scaled) / len(scaled) if rows else math.nan, rows, errors,
            (max(0.0, mae - half), mae + half),
            () if self.targets is None else self.targets.names,
            auc=area_under_curve(self.marked),
        )  # fmt: skip


def area_under_curve(marked: Sequence[tuple[Tensor, Tensor]]) -> Measured | None:
    """Return the share of pairs of an odd and a usual row where the odd one has the larger error.

    Half of the ties count. The interval is DeLong's. None if one kind of rows is missing.
    """
    if not marked:
        return None
    errors, odd = (torch.cat(each).cpu() for each in zip(*marked, strict=True))
    kinds = errors[odd].sort().values, errors[~odd].sort().values
    if not all(map(len, kinds)):
        return None
    above, below = (_share_below(*kinds), 1 - _share_below(*reversed(kinds)))
    auc = float(above.mean())
    variance = sum(float(each.var()) / len(each) for each in (above, below) if len(each) > 1)
    half, few = Z_95 * math.sqrt(variance), min(map(len, kinds))
    low, high = max(0.0, auc - half), min(1.0, auc + half)
    if not half:  # all pairs are on one side, which few rows do by chance
        low, high = wilson_interval(round(auc * few), few)
    return Measured(metric="auc", value=auc, rows=len(errors), low=low, high=high)


def _share_below(errors: Tensor, others: Tensor) -> Tensor:
    """Return for each error which share of others, in order, is smaller; ties count half."""
    places = [torch.searchsorted(others, errors, right=right) for right in (False, True)]
    return (places[0] + places[1]).double() / (2 * len(others))


def _error(absolute: float, squared: float, mean: float, square: float) -> TargetError:
    """The errors of one target from the means over its rows."""
    variance = max(square - mean**2, 0.0)
    if variance > 0:
        return TargetError(absolute, squared, 1 - squared / variance)
    return TargetError(absolute, squared, 0.0 if squared else 1.0)
