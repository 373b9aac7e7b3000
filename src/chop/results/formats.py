"""Number formats and methods on one network: what each combination stores, and what it loses."""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from chop.charts import LineChart, write_png
from chop.figures import Z_95, significant
from chop.files import write_text
from chop.runs import Count, read_stored
from chop.tables import ResultTable, as_csv

FORMAT_TABLE, FORMAT_FILE, FORMAT_CHART = "formats.csv", "formats.json", "formats.png"
FORMAT_JOURNAL = "points.jsonl"
"""What was measured, before all of it was."""
PERPLEXITY, ACCURACY, ERROR = "perplexity", "accuracy", "mae"
NEAREST = "rtn"
"""The method that the others are compared with."""


class FormatPoint(BaseModel):
    """A network with its products in one format by one method, measured row by row."""

    model_config = ConfigDict(frozen=True)

    format: str
    operands: str
    """What is rounded, to how many bits: ``w4a8``; without numbers where the format has its own."""
    method: str
    weight_bits: float | None = None
    """Bits of a rounded weight, its part of what is shared and of low-rank matrices included."""
    data_bits: float | None = None
    """Bits of a rounded number that flows, likewise."""
    snr: dict[str, float] = Field(default_factory=dict)
    """The signal-to-noise ratio of each layer's results in decibels."""
    seconds: float = 0.0
    """The time of quantising, calibration included."""
    losses: tuple[float, ...] = Field((), repr=False)
    """The cost of each row: 1 for a wrong class, nats of a token, or the distance of a number."""
    problem: str | None = None
    """Why it could not be measured."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The name of a combination."""
        return self.format, self.operands, self.method

    @property
    def least_snr(self) -> float | None:
        """The ratio of the layer that is changed most."""
        return min(self.snr.values(), default=None)


class FormatComparison(BaseModel):
    """Formats by methods. It shows itself as a table."""

    model_config = ConfigDict(frozen=True)

    metric: str
    rows_measured: Count
    split: str = "validation"
    calibration_rows: Count = 0
    calibration_seconds: float = 0.0
    """The time of running the calibration rows once through the network in floating point."""
    start: FormatPoint
    """The network as it came."""
    points: tuple[FormatPoint, ...]
    folder: Path | None = Field(None, exclude=True)

    @classmethod
    def load(cls, folder: Path) -> "FormatComparison":
        """Read what was saved in a folder."""
        found = read_stored(cls, folder / FORMAT_FILE, f"{folder.name}/{FORMAT_FILE}")
        return found.model_copy(update={"folder": folder})

    def save(self, folder: Path) -> "FormatComparison":
        """Write formats.json, formats.csv and formats.png; return the same with its folder."""
        write_text(folder / FORMAT_FILE, json.dumps(self.model_dump(), indent=1) + "\n")
        write_text(folder / FORMAT_TABLE, as_csv([self.as_row(point) for point in self.points]))
        write_png(folder / FORMAT_CHART, [[self.chart()]])
        return self.model_copy(update={"folder": folder})

    @property
    def points_measured(self) -> list[FormatPoint]:
        """The combinations that could be measured."""
        return [point for point in self.points if point.problem is None]

    @cached_property
    def by_key(self) -> dict[tuple[str, str, str], FormatPoint]:
        """The measured combinations by their names."""
        return {point.key: point for point in self.points_measured}

    def score(self, point: FormatPoint) -> tuple[float, float, float]:
        """Return the score of a combination, and the interval that is 95 % sure."""
        mean, half = mean_and_half(point.losses)
        numbers = (mean, mean - half, mean + half)
        if self.metric == PERPLEXITY:
            value, low, high = (math.exp(min(each, 700.0)) for each in numbers)
            return value, low, high
        if self.metric == ACCURACY:
            return 1 - mean, max(1 - mean - half, 0.0), min(1 - mean + half, 1.0)
        return numbers

    def difference(self, point: FormatPoint, other: FormatPoint) -> tuple[float, float]:
        """Return by how much a combination costs more than another, and half its 95 % interval.

        Both are compared row by row, so that what is hard for both counts for neither.
        """
        return mean_and_half([a - b for a, b in zip(point.losses, other.losses, strict=True)])

    def verdict(self, point: FormatPoint, other: FormatPoint) -> str:
        """Return whether a combination is better or worse than another by more than chance."""
        mean, half = self.difference(point, other)
        return "same" if abs(mean) <= half else "better" if mean < 0 else "worse"

    def loss_to_float(self, point: FormatPoint) -> tuple[float, float]:
        """Return what is lost to floating point, in points or as a share, and half its interval."""
        mean, half = self.difference(point, self.start)
        if self.metric == PERPLEXITY:
            return math.expm1(min(mean, 700.0)), half * math.exp(min(mean, 700.0))
        scale = mean_and_half(self.start.losses)[0] if self.metric == ERROR else 1.0
        return (mean / scale, half / scale) if scale else (mean, half)

    def nearest(self, point: FormatPoint) -> FormatPoint | None:
        """Return the same format rounded to nearest, if it was measured."""
        return self.by_key.get((point.format, point.operands, NEAREST))

    def share_won_back(self, point: FormatPoint) -> float | None:
        """Return the share that a method wins back of what rounding to nearest loses."""
        nearest = self.nearest(point)
        lost = 0.0 if nearest is None else self.loss_to_float(nearest)[0]
        return (
            1 - self.loss_to_float(point)[0] / lost if lost > 0 and nearest is not point else None
        )

    def rows(self) -> ResultTable:
        """Return a row for each combination."""
        heads = [
            "format", "operands", "method", "weight bits", "data bits", "least SNR", self.metric,
            "lost %", "than float", "than rtn",
        ]  # fmt: skip
        return ResultTable(heads, list(self._rows()), "Formats and methods", 3, ("least SNR",))

    def _rows(self) -> Iterator[list[str]]:
        start, low, high = self.score(self.start)
        yield ["float", "", "", "", "", "", score_in_words(start, low, high), "", "", ""]
        for point in self.points:
            head = [point.format, point.operands, point.method]
            if point.problem is not None:
                yield [*head, "", "", "", point.problem, "", "", ""]
                continue
            nearest = self.nearest(point)
            lost, half = self.loss_to_float(point)
            yield [
                *head,
                "-" if point.weight_bits is None else f"{point.weight_bits:.2f}",
                "-" if point.data_bits is None else f"{point.data_bits:.2f}",
                "-" if point.least_snr is None else f"{point.least_snr:.1f}",
                score_in_words(*self.score(point)),
                f"{100 * lost:.2f} ±{100 * half:.2f}",
                self.verdict(point, self.start),
                "" if nearest is None or nearest is point else self.verdict(point, nearest),
            ]

    def as_row(self, point: FormatPoint) -> dict[str, Any]:
        """Return a combination as it stands in the table of numbers."""
        row: dict[str, Any] = point.model_dump(exclude={"losses", "snr"})
        if point.problem is None:
            row |= dict(zip((self.metric, "low", "high"), self.score(point), strict=True))
            row |= dict(zip(("lost", "lost_half"), self.loss_to_float(point), strict=True))
        return row | {"least_snr": point.least_snr}

    def caption(self) -> str:
        """Return what the numbers of the table mean, in sentences."""
        kind = {PERPLEXITY: "per cent of perplexity", ACCURACY: "points of accuracy"}
        return (
            f"Products in each format by each method, on the same {self.rows_measured:,} "
            f"{self.split} rows; scales and methods saw {self.calibration_rows:,} rows. Lost: "
            f"{kind.get(self.metric, 'per cent of error')}, beside floating point, 95 % sure. "
            "Better, worse: by more than chance on the same rows. Bits count what is shared."
        )

    def chart(self) -> LineChart:
        """Return the score over the bits of a weight, a line for each method."""
        series: dict[str, list[tuple[float, float]]] = {}
        for point in self.points_measured:
            if point.weight_bits is not None:
                place = (point.weight_bits, self.score(point)[0])
                series.setdefault(point.method, []).append(place)
        marks = dict.fromkeys(series, "o")
        found = {name: sorted(places) for name, places in series.items()}
        title = f"Formats by methods, {self.metric}"
        return LineChart(
            title, "bits of a weight", self.metric, found, marks=marks,  # type: ignore[arg-type]
            named_levels={"float": self.score(self.start)[0]},
        )  # fmt: skip

    def __repr__(self) -> str:
        width = shutil.get_terminal_size().columns
        return f"{self.caption()}\n{self.rows().text(width)}"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        """Return the table, for notebooks."""
        return self.rows().html()


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of numbers, and half the interval of it that is 95 % sure."""
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.fsum((each - mean) ** 2 for each in values) / max(count - 1, 1)
    return mean, Z_95 * math.sqrt(spread / count)


def score_in_words(value: float, low: float, high: float) -> str:
    """Return a score with half the width of its interval."""
    return f"{significant(value)} ±{significant((high - low) / 2, 2)}"
