"""The loss of each layer of a network by itself at several widths."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chop.charts import LineChart
from chop.errors import DataError
from chop.figures import SCORES, Measured, is_usable
from chop.files import write_text
from chop.runs import LAYERS_FILE, LAYERS_TABLE, Count, read_stored
from chop.tables import ResultTable, as_csv
from chop.tasks import CLASSES, NUMBERS

TOLERATED = {CLASSES.primary_metric: 0.005, NUMBERS.primary_metric: 0.02}
"""What a width may cost and still be enough: half a point of accuracy, or an error 2 % larger."""
LONGEST_NAME, LINE = 24, 79
MOST_LINES = 8


class LayerAtWidth(BaseModel):
    """One layer at one width, everything else as it was; files have the score by its metric."""

    model_config = ConfigDict(frozen=True)

    layer: str
    operation: str
    parameters: Count
    width: Annotated[int, Field(ge=1, lt=1000)]
    score: float
    """The accuracy, or the mean absolute error."""
    lost: float
    """The accuracy that it costs, or by which share the error grows, on the same rows."""
    low: float
    """95 % sure, as is `high`."""
    high: float
    bits_saved: Annotated[int, Field(gt=-(10**15), lt=10**15)]
    share_saved: float
    """The share that it saves of the bits of all parameters."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, stored: Any) -> Any:
        named = isinstance(stored, Mapping) and next((n for n in SCORES if n in stored), None)
        return {**stored, "score": stored[named]} if named else stored

    def as_row(self, metric: str) -> dict[str, Any]:
        """Return it as it is in files."""
        return {metric if k == "score" else k: value for k, value in self.model_dump().items()}

    def lost_text(self, with_interval: bool) -> str:
        """Return what is lost, in points or per cent."""
        points = f"{round(100 * self.lost, 1) + 0.0:.1f}"  # no negative zero
        return f"{points} ±{50 * (self.high - self.low):.1f}" if with_interval else points


class Sensitivity(BaseModel):
    """The loss of each layer by itself. It shows itself as a table."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    start: Measured
    """The network as it came."""
    points: tuple[LayerAtWidth, ...] = Field(min_length=1, alias="layers")
    search: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """A search that follows from it: the tables of ``[search]``."""
    folder: Path | None = Field(None, exclude=True)

    @model_validator(mode="after")
    def _is_whole(self) -> "Sensitivity":
        sizes = {len(found) for found in self.layers.values()}
        if sizes != {len(self.widths)} or len(self.points) != len(self.layers) * len(self.widths):
            raise ValueError("not every layer has every width once")
        if self.start.metric not in TOLERATED:
            raise ValueError("it has neither an accuracy nor a mean absolute error")
        return self

    @classmethod
    def load(cls, folder: Path) -> "Sensitivity":
        """Read what was saved in a folder."""
        where = f"{folder.name}/{LAYERS_FILE}"
        found = read_stored(cls, folder / LAYERS_FILE, where)
        for point in found.points:
            if not all(map(is_usable, (point.lost, point.low, point.high, point.share_saved))):
                raise DataError(f"{where}: {point.layer}: what it loses is not a number")
        return found

    def save(self, folder: Path) -> "Sensitivity":
        """Write layers.csv and layers.json into a folder; return the same with its folder."""
        rows = [point.as_row(self.start.metric) for point in self.points]
        facts = {
            "start": self.start.model_dump(),
            "tolerated": self.tolerance,
            "enough": {layer: self.enough(layer) for layer in self.layers},
            "layers": rows,
        }
        write_text(folder / LAYERS_TABLE, as_csv(rows))
        write_text(folder / LAYERS_FILE, json.dumps(facts, indent=2) + "\n")
        return self.model_copy(update={"folder": folder})

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths that were tried."""
        return tuple(dict.fromkeys(point.width for point in self.points))

    @property
    def layers(self) -> dict[str, dict[int, LayerAtWidth]]:
        """The points of each layer by their width."""
        found: dict[str, dict[int, LayerAtWidth]] = {}
        for point in self.points:
            found.setdefault(point.layer, {})[point.width] = point
        return found

    @property
    def tolerance(self) -> float:
        """Return the most that a width may cost and still be enough."""
        return TOLERATED[self.start.metric]

    def enough(self, layer: str) -> int | None:
        """Return the narrowest width from which on no width costs more than is tolerated."""
        found, points = None, self.layers[layer]
        for width in sorted(self.widths, reverse=True):
            if points[width].lost > self.tolerance:
                break
            found = width
        return found

    def rows(self, *, with_intervals: bool = True, longest: int | None = None) -> ResultTable:
        """Return a row for each layer; names of layers may be cut to so many characters."""
        heads = ["layer with bits:", *map(str, self.widths), "enough", "saves"]
        return ResultTable(heads, list(self._rows(with_intervals, longest)), "Each layer alone")

    def _rows(self, with_intervals: bool, longest: int | None) -> Iterator[list[str]]:
        for layer, found in self.layers.items():
            enough = self.enough(layer)
            saves = "-" if enough is None else f"{found[enough].share_saved:.1%}"
            is_long = longest is not None and len(layer) > longest
            name = f"…{layer[1 - (longest or 0) :]}" if is_long else layer
            lost = [found[width].lost_text(with_intervals) for width in self.widths]
            yield [name, *lost, str(enough or "none"), saves]

    @property
    def what_is_lost(self) -> str:
        """Return what the numbers of the table are."""
        if self.start.metric == NUMBERS.primary_metric:
            return f"Per cent more {NUMBERS.words} (of {self.start})"
        return f"Points of accuracy lost (of {100 * self.start.value:.1f})"

    def caption(self) -> str:
        """Return what the numbers of the table mean, in sentences."""
        widest = max((point.high - point.low) / 2 for point in self.points)
        unit = "per cent" if self.start.metric == NUMBERS.primary_metric else "points"
        return (
            f"{self.what_is_lost} where one layer alone has so many bits, on the same "
            f"{self.start.rows:,} validation rows, 95 % sure to ±{100 * widest:.1f} or better. "
            f"Enough: costs at most {100 * self.tolerance:g} {unit}. Saves: of the bits of all "
            "parameters."
        )

    def chart(self) -> LineChart:
        """Return what the layers lose that lose most, over the bits that they have."""
        layers = self.layers
        most = sorted(layers, key=lambda layer: -max(p.lost for p in layers[layer].values()))
        drawn = [layer for layer in layers if layer in most[:MOST_LINES]]
        more = f", the {len(drawn)} layers that lose most" if len(drawn) < len(layers) else ""
        series = {
            layer: [(float(width), 100 * layers[layer][width].lost) for width in self.widths]
            for layer in drawn
        }
        return LineChart(f"Each layer alone{more}", "bits", self.what_is_lost, series)

    def __repr__(self) -> str:
        width = shutil.get_terminal_size().columns
        text = self.rows(longest=LONGEST_NAME).text()
        if max(map(len, text.splitlines())) > width:
            text = self.rows(with_intervals=False, longest=LONGEST_NAME).text()
        return f"{textwrap.fill(self.caption(), LINE)}\n{text}"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        """Return the table, for notebooks."""
        return self.rows().html()
