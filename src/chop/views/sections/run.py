"""The runs of a project: commands, settings and who set them, learning curves, test results."""

import csv
import math
import shlex
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from chop.errors import ChopError, DataError
from chop.figures import is_usable, number, percent, quantity
from chop.markup import Markup, details, join_markup, tag
from chop.preprocessing import Preprocessing, from_plain
from chop.results.evaluation import (
    SPLITS,
    EvaluationRecord,
    evaluations_table,
    score_text_on_page,
)
from chop.runs import RunFolder, RunRecord, SettingRecord, as_stored, read_json, read_stored
from chop.tables import ResultTable
from chop.tasks import task_of_history
from chop.training.report import best_epoch, curves_of, learning_chart
from chop.views.section import Section, Tile
from chop.views.svg import line_chart

Facts = dict[str, str]
Rows = list[dict[str, float]]

SIMULATED = "jsc-sim"
STAND_IN = "Simulated stand-in data, not the JSC data set: accuracies on it are not JSC results."
ORDER = ("train", "test", "transform", "search")


def read_records(run: RunFolder, problems: list[str]) -> list[RunRecord]:
    """The records of a run, also those inside results that were written without one."""
    found: list[RunRecord] = []

    def read(reader: Callable[[Path], RunRecord], path: Path) -> None:
        try:
            found.append(reader(path))
        except ChopError as error:
            problems.append(str(error))

    for path in run.records:
        read(partial(read_stored, RunRecord), path)
    known = {record.action for record in found}
    if "train" not in known and run.checkpoints:
        read(_of_checkpoint, run.checkpoints[0])
    if "test" not in known and run.test_results:
        read(_of_test, run.test_results[0])
    place = {action: number for number, action in enumerate(ORDER)}
    return sorted(found, key=lambda each: (place.get(each.action, len(ORDER)), each.written or ""))


def _of_test(path: Path) -> RunRecord:
    """The record that a test result holds."""
    content = read_json(path)
    inner = content.get("run") if isinstance(content, dict) else None
    return as_stored(RunRecord, {"action": "test"} | _plain(inner, path), path.name)


def _of_checkpoint(path: Path) -> RunRecord:
    """The record that a checkpoint of training holds."""
    from chop.models.weights import read_checkpoint

    content = read_checkpoint(path)
    ours = _plain(content.get("chop") if isinstance(content, dict) else None, path)
    known = {"action": "train", "versions": ours.get("versions", {})}
    return as_stored(RunRecord, known | _plain(ours.get("record"), path), path.name)


def _plain(record: Any, path: Path) -> dict[str, Any]:
    """Return the record of the run in a result, if it has one."""
    if record is not None and not isinstance(record, dict):
        raise DataError(f"{path.name}: its record of the run is not a table")
    return record or {}


def overview(records: list[RunRecord]) -> Section | None:
    """The section, if any record is there."""
    if not records:
        return None
    runs: dict[str, list[RunRecord]] = {}
    for record in records:
        runs.setdefault(record.action, []).append(record)
    first, *others = [_facts(record) for record in records]
    shared = {name: v for name, v in first.items() if all(each.get(name) == v for each in others)}
    features = {each.constants: each for record in records if (each := record.features) is not None}
    parts = [*_data(records), *map(features_table, features.values()), _list(shared)]
    body = join_markup([*parts, *(_runs(each, shared) for each in runs.values())])
    note = tag("p", tag("strong", STAND_IN), class_="warning") if is_simulated(records) else None
    return Section(
        "run", "What was run", body, _tiles(records), comes_first=True, is_folded=True, note=note
    )


def is_simulated(records: Iterable[RunRecord]) -> bool:
    """Return whether any run was on the data that stands in for the real set."""
    return any(
        record.setting("dataset") == SIMULATED or (record.data or "").startswith(f"{SIMULATED}:")
        for record in records
    )


def _tiles(records: list[RunRecord]) -> tuple[Tile, ...]:
    model = next((record.setting("model") for record in records if record.setting("model")), None)
    data = next((each.setting("dataset") for each in records if each.setting("dataset")), "")
    note = "simulated stand-in" if is_simulated(records) else ""
    subject = " on ".join(str(each) for each in (model, data) if each)
    return (Tile("Model and data", subject, note, rank=0),) if subject else ()


def _data(records: list[RunRecord]) -> list[Markup]:
    """Each data set once, with its fingerprint."""
    sources = {(each.data or "", each.fingerprint or "") for each in records} - {("", "")}
    rows = [(data, tag("code", fingerprint)) for data, fingerprint in sorted(sources)]
    headers = ("Data", "Fingerprint (SHA-256 of the rows)")
    return [ResultTable(headers, rows, "Data sets", text_columns=2).html()] if rows else []


def features_table(known: Preprocessing) -> Markup:
    """Return the scaling of the features: a sentence, and the constants behind a fold."""
    rows = [
        (known.names[place] if known.names else str(place), number(mean), number(scale))
        for place, (mean, scale) in enumerate(zip(known.mean, known.scale, strict=True))
    ]
    headers = (known.kind.removesuffix("s").capitalize(), "Mean", "Deviation")
    return details(
        f"Features: {known}", ResultTable(headers, rows, "Scaling of the features").html()
    )


def _runs(records: list[RunRecord], shared: Facts) -> Markup:
    """The latest run of an action, and those before it behind a fold."""
    *earlier, latest = records
    title = f"{quantity(len(earlier), 'earlier run')} of ch {latest.action}"
    before = [_record(record, shared) for record in reversed(earlier)]
    return join_markup(
        [_record(latest, shared), details(title, *before, is_minor=True) if earlier else None]
    )


def _facts(record: RunRecord) -> Facts:
    """Return the facts of a run beside its command and its settings."""
    seed = record.setting("seed")
    facts = {
        "Written": record.written,
        "Configuration file": record.config_file,
        "Seed": None if seed is None else str(seed),
        "Versions": ", ".join(f"{name} {v}" for name, v in record.versions.items()),
    }
    return {name: value for name, value in facts.items() if value}


def _list(facts: Facts) -> Markup | None:
    shown = [join_markup([tag("dt", name), tag("dd", value)]) for name, value in facts.items()]
    return tag("dl", *shown) if shown else None


def _record(record: RunRecord, shared: Facts) -> Markup:
    own = {name: value for name, value in _facts(record).items() if name not in shared}
    return tag(
        "article",
        tag("h3", f"ch {record.action}"),
        _command(record.command) if record.command else None,
        _list(own),
        _settings(record),
        class_="record",
    )


def _command(words: list[str]) -> Markup:
    """The command as it was typed; lines break between words only."""
    shown = [tag("span", shlex.quote(word), class_="word") for word in words]
    return tag("pre", tag("code", *(piece for word in shown for piece in (word, " "))))


def _settings(record: RunRecord) -> Markup | None:
    """The settings somebody set, who did, and the others, each behind a fold."""
    chosen = [each for each in record.settings if each.set_by != "default"]
    others = [each for each in record.settings if each.set_by == "default"]
    rows = [
        (each.name, tag("strong", _value(each.effective)),
         tag("span", each.set_by, class_="word"), _overruled_values(each))
        for each in chosen
    ]  # fmt: skip
    headers = ("Setting", "In effect", "Set by", "Instead of")
    set_here = ResultTable(headers, rows, "Settings", text_columns=4).html()
    defaults = [(each.name, _value(each.effective)) for each in others]
    as_ever = ResultTable(("Setting", "Default"), defaults, "Defaults", text_columns=2).html()
    words = quantity(len(others), "setting")
    is_open = record.action == "train"  # the one whose settings a reader asks for first
    return join_markup(
        [
            details(f"{quantity(len(chosen), 'setting')} set by the file or the command line",
                   set_here, is_open=is_open) if chosen else None,
            details(f"{words} as by default", as_ever, is_minor=True) if others else None,
        ]
    )  # fmt: skip


def _overruled_values(setting: SettingRecord) -> str:
    """The values that lost."""
    by_file = setting.set_by == "command line" and setting.file != ""
    file = [f"{_value(setting.file)} (file)"] if by_file else []
    return ", ".join([*file, f"{_value(setting.default)} (default)"])


def _value(value: object) -> str:
    return "none" if value is None else str(value)


def learning_curves(run: RunFolder) -> Section | None:
    """The section, if a training run has finished an epoch."""
    logs = [(path, rows) for path in run.training_logs if (rows := read_log(path))]
    if not logs:
        return None
    newest, *older = [(run.name_of(path), training_charts(rows)) for path, rows in logs]
    parts = [newest[1], *(details(f"Earlier: {name}", body) for name, body in older)]
    rows = logs[0][1]
    task = task_of_history(rows)
    score, epochs = best_epoch(rows).get(task.epoch_column()), quantity(len(rows), "epoch")
    label = "Epochs" if score is None else f"Validation {task.words}"
    value = number(len(rows)) if score is None else score_text_on_page(task, score)
    tile = Tile(label, value, f"of the trained network, best of {epochs}", rank=2)
    return Section("training", "Learning curves", join_markup(parts), (tile,))


def read_log(path: Path) -> Rows:
    """The epochs of a run; cells that are no numbers are left out."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            table = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path.name}: cannot be read: {error}") from None
    rows = [{name: _float(cell) for name, cell in row.items() if name} for row in table]
    clean = [{name: v for name, v in row.items() if is_usable(v)} for row in rows]
    return [row for row in clean if "epoch" in row]


def _float(cell: object) -> float:
    try:
        return float(str(cell))
    except ValueError:
        return math.nan


def training_charts(rows: Rows) -> Markup:
    """The best epoch in a sentence, and a chart for each kind of number that the rows have."""
    best, seconds = best_epoch(rows), sum(row.get("seconds", 0.0) for row in rows)
    words = f"{quantity(len(rows), 'epoch')} in {number(round(seconds, 1))} s."
    if "val_loss_epoch" in best:
        task = task_of_history(rows)
        score = score_text_on_page(task, best.get(task.epoch_column(), math.nan))
        words += (
            f" The best is epoch {number(best['epoch'])}: validation loss "
            f"{number(best['val_loss_epoch'])}, {task.words} {score}."
        )
    found = [learning_chart(rows, curves) for curves in curves_of(rows)]
    figures = [line_chart(chart) for chart in found if chart.series]
    return join_markup([tag("p", words), tag("div", *figures, class_="charts")])


def test_section(run: RunFolder) -> Section | None:
    """The section, if anything was tested."""
    found = [(path, read_stored(EvaluationRecord, path)) for path in run.test_results]
    if not found:
        return None
    best_path, best = found[0]
    parts = [
        evaluations_table(
            [(path.name, run.short(each.load_name), each) for path, each in found]
        ).html()
    ]
    known = from_plain(best.preprocessing, best_path.name)
    parts += [tag("p", f"Features of {best_path.name}: {known}.")] if known else []
    newest, *older = [(path.name, confusion(result)) for path, result in found]
    parts += [newest[1]] if newest[1] else []
    parts += [details(f"Confusion matrix of {name}", body) for name, body in older if body]
    network = run.short(best.load_name) or "the model as it was"
    detail = ", ".join(filter(None, (best.interval, f"of {network}")))
    label = SPLITS.get(best.split, SPLITS["test"]).format(best.task.words)
    tile = Tile(label[0].upper() + label[1:], best.score, detail)
    return Section("test", "Test results", join_markup(parts), (tile,))


def confusion(result: EvaluationRecord) -> Markup | None:
    """The matrix as a table; the share of its row colours a cell."""
    matrix, names = result.confusion_matrix, result.class_names
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        return None
    names = names if len(names) == len(matrix) else [str(i) for i in range(len(matrix))]
    rows = []
    for place, (name, row) in enumerate(zip(names, matrix, strict=True)):
        share = percent(row[place] / sum(row)) if sum(row) else "no rows"
        rows.append([tag("th", name, scope="row"), *_cells(row, names, name), share])
    headers = ("true ↓ / predicted →", *names, "accuracy")
    words = (
        "Confusion matrix: rows are the true classes, columns the predicted ones. "
        "The fuller the colour, the larger the share of the row."
    )
    shown = ResultTable(headers, rows, "Confusion matrix", is_matrix=True).html()
    return tag("figure", tag("h3", "Confusion matrix"), shown, tag("figcaption", words))


def _cells(row: list[int], names: list[str], true: str) -> list[Markup]:
    total = sum(row) or 1
    return [
        tag(
            "td",
            number(count),
            class_="number heat",
            style=f"--t:{70 * count / total:.0f}%",
            title=f"{number(count)} of class {true} taken for {name}: {percent(count / total)}",
        )
        for name, count in zip(names, row, strict=True)
    ]
