"""The result of a search: its trials, the front of them, and what was found of the front.

``best.json`` has the front and what is known of it, ``log.json`` and ``trials.csv`` have all
trials, and ``search.json`` says what was searched for.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from optuna.study import Study

from chop.charts import embed_picture
from chop.errors import DataError
from chop.figures import ACCURACY, Measured, metrics_line, number
from chop.files import write_pieces, write_text
from chop.results.trials import (
    TrialRow,
    best_json,
    indent_json,
    known_of_front,
    log_pieces,
    read_best,
    require_whole,
    round_numbers,
    table_csv,
)
from chop.runs import (
    BEST,
    BEST_SETTINGS,
    EXPORT,
    JOURNAL,
    LOG,
    SEARCH_RECORD,
    TRIALS,
    read_json,
    read_stored,
)
from chop.search.front.accuracy import UNKNOWN, Accuracies, Judged, Start
from chop.search.front.hypervolume import best_of
from chop.search.front.verification import Marks, rows_to_compare
from chop.search.study.trial import SearchDescription, Trial
from chop.tables import ResultTable
from chop.validation import parse

if TYPE_CHECKING:
    from torch import fx

    from chop.export.exporting import Exported
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.search.spaces.space import SearchSpace

LARGEST_LOG = 256 * 2**20  # bytes: some hundred thousand trials
FRONT, DOMINATED, OUT = "front", "dominated", "out of bounds"
FRONT_PICTURE = "front.png"
MOST_ROWS = 5
FLOAT, START, TEST = "float", "start", "test "


@dataclass(frozen=True, repr=False)
class SearchResult(Sequence["Network"]):
    """The result of a search; as a sequence, the networks that no other beats, the best first.

    It shows itself as a table, in a notebook with a picture.

    Args:
        best: the trials of the front, in the order of ``best_0.toml`` and so on.
        problem: what was searched for and how.
        verified: whether the best trials compute what their integers do, by their numbers.
        judged: the scores of the best trials with their intervals, on test rows as well.
        start: the same of the network that the search started from.
        features: what was done to the features, as it is stored.
        folder: where the files are.
        space: what makes networks of trials.
    """

    trials: Sequence[Trial]
    best: Sequence[Trial]
    problem: SearchDescription = field(default_factory=SearchDescription)
    verified: Marks = field(default_factory=dict)
    judged: Judged = field(default_factory=dict)
    start: Start | None = None
    features: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    space: "SearchSpace | None" = None

    @classmethod
    def of(cls, study: Study, trials: Sequence[Any], problem: SearchDescription) -> "SearchResult":
        """Return what the stored trials of a study come to."""
        found = list(map(Trial.of, trials))
        require_whole(study, found)
        return cls(found, best_of(study, found), problem)

    @classmethod
    def load(cls, folder: Path) -> "SearchResult":
        """Read the result in a folder."""
        log = read_json(folder / LOG, LARGEST_LOG)
        if not isinstance(log, dict):
            raise DataError(f"{folder.name}: log.json must hold a table")
        where = f"{folder.name}/log.json"
        # Of many trials what was read is gone as soon as there is something smaller.
        trials = [TrialRow.trial(log.pop(place), f"{where}: {place}") for place in list(log)]
        rows, by_number = read_best(folder), {trial.number: trial for trial in trials}
        record = SearchRecord.load(folder)
        return cls(
            trials, [by_number[row.number] for row in rows if row.number in by_number], record,
            {row.number: row.verified for row in rows if row.verified is not None},
            {row.number: row.accuracies for row in rows if row.accuracies is not None},
            record.start, folder=folder,
        )  # fmt: skip

    def save(self, folder: Path) -> "SearchResult":
        """Write all files; what an earlier run of the study found of the front is kept in them."""
        verified, judged = known_of_front(folder, self.best)
        found = replace(self, folder=folder, verified=verified, judged=judged)
        found.save_front()
        write_pieces(folder / LOG, log_pieces(self.trials, len(self.problem.directions)))
        write_text(folder / TRIALS, table_csv(self.trials))
        found.save_record()
        return found

    def save_judged(self) -> None:
        """Write what was found of the front when the search was over."""
        self.save_front()
        self.save_record()

    def save_record(self) -> None:
        """Write ``search.json``."""
        start = None if self.start is None else self.start.model_dump()
        described = {**self.problem.model_dump(mode="json"), **self.features, "start": start}
        write_text(self.folder / SEARCH_RECORD, json.dumps(described, indent=2) + "\n")

    def save_front(self) -> None:
        """Write ``best.json``."""
        front = round_numbers(best_json(self.best))  # what is known of them stays exact
        for row in front.values():
            known = {"verified": self.verified, "accuracies": self.judged}
            row |= self.features
            row |= {
                name: marks[row["number"]].model_dump()
                for name, marks in known.items()
                if row["number"] in marks
            }
        write_text(self.folder / BEST, indent_json(front))

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that were searched for."""
        return list(self.problem.metrics)

    @property
    def space_size(self) -> int | None:
        """The number of configurations there are."""
        return self.problem.space_size

    @cached_property
    def complete(self) -> list[Trial]:
        """The trials that have a result."""
        return [trial for trial in self.trials if trial.is_complete]

    @property
    def failures(self) -> list[Trial]:
        """The trials that have none."""
        return [trial for trial in self.trials if not trial.is_complete]

    @cached_property
    def _front(self) -> frozenset[int]:
        return frozenset(trial.number for trial in self.best)

    def is_inside(self, trial: Trial) -> bool:
        """Return whether a trial is complete and within all bounds."""
        return trial.is_feasible and self.problem.allows(trial)

    def group(self, trial: Trial) -> str:
        """Return whether a trial is on the front, dominated or out of bounds."""
        if trial.number in self._front:
            return FRONT
        return DOMINATED if self.is_inside(trial) else OUT

    @cached_property
    def files(self) -> dict[int, str]:
        """The texts of ``best_<n>.toml``, by the numbers of their trials."""
        places = (self.folder / BEST_SETTINGS.format(place) for place in range(len(self.best)))
        found = zip((trial.number for trial in self.best), map(_text, places), strict=True)
        return {number: text for number, text in found if text is not None}

    @property
    def tested_metric(self) -> str:
        """The metric of test rows."""
        known = (self.start, *self.judged.values())
        return next((each.test.metric for each in known if each and each.test), ACCURACY)

    def columns(
        self, trials: Sequence[Trial], metrics: Sequence[str]
    ) -> dict[str, list[str | None]]:
        """Return the cells of each column: the network at the start, then some trials."""
        head: list[Accuracies] = [] if self.start is None else [self.start]
        known = [*head, *(self.judged.get(trial.number, UNKNOWN) for trial in trials)]
        none: list[str | None] = [None for _ in head]
        measured: list[Mapping[str, float]] = [{} for _ in head]
        measured += [trial.metrics for trial in trials]
        found = {"trial": none + [str(trial.number) for trial in trials]}
        for name in metrics:
            pairs = zip(known, measured, strict=True)
            found[name] = [_score(each, name, values.get(name)) for each, values in pairs]
        found[f"{TEST}{self.tested_metric}"] = [str(each.test) if each.test else None
                                                for each in known]  # fmt: skip
        marks = self.verified
        found["verified"] = none + [str(marks.get(t.number, "no")) if marks else None
                                    for t in trials]  # fmt: skip
        return found

    def shown_places(self, most: int = MOST_ROWS) -> list[int]:
        """Return the places of some points: the ends of the front, and some between."""
        last = len(self.best) - 1
        if last <= most:  # a line that says "1 more" takes the place of a row
            return list(range(last + 1))
        return [round(last * step / (most - 1)) for step in range(most)]

    def rows(self, places: Sequence[int] | None = None) -> ResultTable:
        """Return the front as a table: all its points, or those at some places."""
        chosen = range(len(self.best)) if places is None else places
        columns = self.columns([self.best[place] for place in chosen], self.metrics)
        if not any(each.equal is not None for each in self.verified.values()):
            columns["verified"] = [None for _ in columns["verified"]]
        names = [BEST_SETTINGS.format(place).partition(".")[0] for place in chosen]
        head = [] if self.start is None else [FLOAT if self.start.is_float else START]
        # What matters least goes first; the name and two objectives always stay.
        spare = ["trial", "verified", *reversed(self.metrics[2:]), f"{TEST}{self.tested_metric}"]
        stays = {name: each for name, each in columns.items()
                 if name in self.metrics or name == "trial" or any(each)}  # fmt: skip
        return ResultTable.of_columns({"": [*head, *names], **stays}, "The front", spare)

    def text(self, width: int) -> str:
        """Return the front for a terminal: some rows of it, as many columns as fit."""
        places = self.shown_places()
        more = len(self.best) - len(places)
        table = self.rows(places).text(width)
        return f"{table}\n{more} more in {BEST} and {TRIALS}" if more else table

    def __repr__(self) -> str:
        import shutil

        return self.text(shutil.get_terminal_size().columns)

    def _repr_html_(self) -> str:
        """Return the table and the picture, for notebooks."""
        return self.rows().html() + embed_picture(self.folder / FRONT_PICTURE, "The front")

    @overload
    def __getitem__(self, place: int) -> "Network": ...

    @overload
    def __getitem__(self, place: slice) -> "tuple[Network, ...]": ...

    def __getitem__(self, place: int | slice) -> "Network | tuple[Network, ...]":
        networks = tuple(Network(self, place) for place in range(len(self.best)))
        return networks[place]

    def __len__(self) -> int:
        return len(self.best)

    def __iter__(self) -> "Iterator[Network]":
        return iter(self[:])

    def report(self) -> Path:
        """Write the page of the whole run; return its path."""
        import chop

        page: Path = chop.report(self.folder.parent.parent)
        return page


def _score(known: Accuracies, metric: str, value: float | None) -> str | None:
    """Return a metric of a network; the primary one with its interval."""
    if known.chosen_by is not None and known.chosen_by.metric == metric:
        return str(known.chosen_by)
    return None if value is None else number(value)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, repr=False)
class Network:
    """One network of the front of a search."""

    result: SearchResult
    place: int

    @property
    def trial(self) -> Trial:
        """Return what was measured and chosen."""
        return self.result.best[self.place]

    @property
    def folder(self) -> Path:
        """Return where the results of the search are."""
        return self.result.folder

    @property
    def metrics(self) -> dict[str, float]:
        """All that was measured of it."""
        return self.trial.metrics

    @property
    def is_verified(self) -> bool:
        """Return whether its integers were seen to compute the same."""
        mark = self.result.verified.get(self.trial.number)
        return mark is not None and bool(mark.equal) and mark.promised

    @property
    def test(self) -> Measured | None:
        """The primary metric on test rows, with its interval, if there are any."""
        return self.result.judged.get(self.trial.number, UNKNOWN).test

    @property
    def test_accuracy(self) -> float | None:
        """The accuracy on test rows, if there are any; a regression has none."""
        return self.test.value if self.test and self.test.metric == ACCURACY else None

    @property
    def space(self) -> "SearchSpace":
        """Return what makes the network; only a search that was run just now has it."""
        if self.result.space is None:
            raise DataError(f"{self.folder.name}: a result that was read makes no networks")
        return self.result.space

    @cached_property
    def graph(self) -> "MaseGraph":
        """The quantised graph, with metadata."""
        return self.space.candidate(dict(self.trial.config)).graph

    @property
    def model(self) -> "fx.GraphModule":
        """The quantised module."""
        return self.graph.model

    def __repr__(self) -> str:
        return f"best_{self.place}: {metrics_line(self.metrics)}"

    def export(
        self, to: str, output: str | Path | None = None, *, rows: int = 2000, **settings: Any
    ) -> "Exported":
        """Write it as ``integer``, ``c``, ``onnx``, ``qonnx`` or ``verilog``, checked.

        Among the rows of the check are those for validation.

        Args:
            output: the folder; by default beside the results of the search.
            settings: for ``verilog``: stages, clock_ns, stream, synthesise, most_luts.
        """
        from chop.export.exporting import export

        target = output or self.folder / EXPORT.format(f"{to}_best_{self.place}")
        source = f"trial {self.trial.number} of {self.folder}"
        real = {"x": rows_to_compare(self.space.context)[:rows]}
        return export(
            self.graph, to, target, rows=rows, inputs=real, source=source,
            notes={"real": "rows for validation"}, **settings,
        )  # fmt: skip


class SearchRecord(SearchDescription):
    """The content of ``search.json``."""

    start: Start | None = None

    @classmethod
    def load(cls, folder: Path) -> "SearchRecord":
        """Read what was searched for: from ``search.json``, else from the journal of the study."""
        if (folder / SEARCH_RECORD).is_file():
            return read_stored(cls, folder / SEARCH_RECORD, f"{folder.name}/{SEARCH_RECORD}")
        journal = folder / JOURNAL
        return parse(cls, _journal(journal) if journal.is_file() else {}, journal.name)


def _journal(path: Path) -> dict[str, Any]:
    """Return directions and metrics of the last study in an Optuna journal."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        studies = JournalStorage(JournalFileBackend(str(path))).get_all_studies()
    except Exception as error:  # noqa: BLE001  # whatever a damaged journal makes Optuna raise
        raise DataError(f"{path.name}: cannot be read: {error}") from None
    if not studies:
        return {}
    attributes = studies[-1].user_attrs.get("problem", {})
    directions = [each.name.lower() for each in studies[-1].directions]
    return {"directions": directions, "metrics": attributes.get("metrics", {})}
