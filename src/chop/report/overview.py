"""What was run: command, settings and who set them, seed, versions, data."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chop.errors import ChopError, DataError
from chop.report.folders import RunFolder
from chop.report.markup import Markup, Section, Tile, folded, joined, table, tag
from chop.report.record import RunRecord, as_record, read_json, read_record

SIMULATED = "jsc-sim"
STAND_IN = "Simulated stand-in data, not the JSC data set: accuracies on it are not JSC results."
ORDER = ("train", "test", "transform", "search")


def read_records(run: RunFolder, problems: list[str]) -> list[RunRecord]:
    """The records of a run, also those inside results that were written without one."""
    found: list[RunRecord] = []
    for path in run.records:
        try:
            found.append(read_record(path))
        except ChopError as error:
            problems.append(str(error))
    known = {record.action for record in found}
    if "train" not in known and run.checkpoints:
        found += _tried(_of_checkpoint, run.checkpoints[0], problems)
    if "test" not in known and run.test_results:
        found += _tried(_of_test, run.test_results[0], problems)
    return sorted(found, key=_place)


def _place(record: RunRecord) -> tuple[int, str]:
    """Where a record comes on the page: by action, then by time."""
    place = ORDER.index(record.action) if record.action in ORDER else len(ORDER)
    return place, record.written or ""


def _tried(read: Any, path: Path, problems: list[str]) -> list[RunRecord]:
    try:
        return [read(path)]
    except ChopError as error:
        problems.append(str(error))
        return []


def _of_test(path: Path) -> RunRecord:
    """The record that a test result holds."""
    content = read_json(path)
    inner = content.get("run") if isinstance(content, dict) else None
    return as_record({"action": "test", **(inner or {})}, path.name)


def _of_checkpoint(path: Path) -> RunRecord:
    """The record that a checkpoint of training holds."""
    from chop.models.weights import read_checkpoint

    content = read_checkpoint(path)
    ours = content.get("chop", {}) if isinstance(content, dict) else {}
    if not isinstance(ours, dict):
        raise DataError(f"{path.name}: holds no record of its run")
    record = ours.get("record") or {}
    return as_record({"action": "train", "versions": ours.get("versions", {}), **record}, path.name)


def overview(records: list[RunRecord]) -> Section | None:
    """The section, if any record is there."""
    if not records:
        return None
    runs: dict[str, list[RunRecord]] = {}
    for record in records:
        runs.setdefault(record.action, []).append(record)
    body = joined([*_data(records), *(_runs(each) for each in runs.values())])
    return Section("run", "What was run", body, _tiles(records))


def is_simulated(records: Iterable[RunRecord]) -> bool:
    """Whether any run was on the data that stands in for the real set."""
    return any(
        record.setting("dataset") == SIMULATED or (record.data or "").startswith(f"{SIMULATED}:")
        for record in records
    )


def _tiles(records: list[RunRecord]) -> tuple[Tile, ...]:
    model = next((record.setting("model") for record in records if record.setting("model")), None)
    data = next((each.setting("dataset") for each in records if each.setting("dataset")), "")
    note = "simulated stand-in" if is_simulated(records) else ""
    tiles = [Tile("Model", str(model))] if model else []
    return (*tiles, Tile("Data set", str(data), note)) if data else tuple(tiles)


def _data(records: list[RunRecord]) -> list[Markup]:
    """Each data set once, with its fingerprint."""
    sources = {(each.data or "", each.fingerprint or "") for each in records} - {("", "")}
    parts = [tag("p", tag("strong", STAND_IN), class_="warning")] if is_simulated(records) else []
    rows = [(data, tag("code", fingerprint)) for data, fingerprint in sorted(sources)]
    if rows:
        headers = ("Data", "Fingerprint (SHA-256 of the rows)")
        parts.append(table(headers, rows, "Data sets", text_columns=2))
    return parts


def _runs(records: list[RunRecord]) -> Markup:
    """The latest run of an action, and those before it behind a fold."""
    *earlier, latest = records
    title = f"{len(earlier)} earlier runs of ch {latest.action}"
    folds = [folded(title, *map(_record, reversed(earlier)))] if earlier else []
    return joined([_record(latest), *folds])


def _record(record: RunRecord) -> Markup:
    seed = record.setting("seed")
    facts = [
        ("Written", record.written),
        ("Configuration file", record.config_file),
        ("Seed", None if seed is None else str(seed)),
        ("Versions", ", ".join(f"{name} {v}" for name, v in record.versions.items()) or None),
    ]
    shown = [joined([tag("dt", name), tag("dd", value)]) for name, value in facts if value]
    return tag(
        "article",
        tag("h3", f"ch {record.action}"),
        _command(record.command) if record.command else None,
        tag("dl", *shown) if shown else None,
        _settings(record),
        class_="record",
    )


def _command(words: list[str]) -> Markup:
    """The command as it was typed; lines break between words only."""
    shown = [tag("span", shlex.quote(word), class_="word") for word in words]
    return tag("pre", tag("code", *(piece for word in shown for piece in (word, " "))))


def _settings(record: RunRecord) -> Markup | None:
    """The settings somebody set, and the others behind a fold."""
    if not record.settings:
        return None
    chosen = [each for each in record.settings if each.set_by != "default"]
    others = [each for each in record.settings if each.set_by == "default"]
    headers = ("Setting", "In effect", "Set by", "Default", "File", "Command line")
    rows = [
        (each.name, _value(each.effective), tag("span", each.set_by, class_="word"),
         _value(each.default), _value(each.file), _value(each.command_line))
        for each in chosen
    ]  # fmt: skip
    defaults = [(each.name, _value(each.effective)) for each in others]
    return joined(
        [
            table(headers, rows, "Settings", text_columns=6) if rows else None,
            folded(
                f"{len(others)} settings at their defaults",
                table(("Setting", "Default"), defaults, "Defaults", text_columns=2),
            )
            if defaults
            else None,
        ]
    )


def _value(value: object) -> str:
    return "none" if value is None else str(value)
