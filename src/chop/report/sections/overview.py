"""What was run: command, settings and who set them, seed, versions, data."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chop.errors import ChopError, DataError
from chop.preprocessing import Preprocessing
from chop.report.html import (
    Markup,
    Section,
    Tile,
    counted,
    folded,
    joined,
    number,
    table,
    tag,
)
from chop.runs import RunFolder, RunRecord, SettingRecord, as_stored, read_json, read_stored

Facts = dict[str, str]

SIMULATED = "jsc-sim"
STAND_IN = "Simulated stand-in data, not the JSC data set: accuracies on it are not JSC results."
ORDER = ("train", "test", "transform", "search")


def read_records(run: RunFolder, problems: list[str]) -> list[RunRecord]:
    """The records of a run, also those inside results that were written without one."""
    found: list[RunRecord] = []
    for path in run.records:
        try:
            found.append(read_stored(RunRecord, path))
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
    return as_stored(RunRecord, {"action": "test"} | _plain(inner, path), path.name)


def _of_checkpoint(path: Path) -> RunRecord:
    """The record that a checkpoint of training holds."""
    from chop.models.weights import read_checkpoint

    content = read_checkpoint(path)
    ours = _plain(content.get("chop") if isinstance(content, dict) else None, path)
    known = {"action": "train", "versions": ours.get("versions", {})}
    return as_stored(RunRecord, known | _plain(ours.get("record"), path), path.name)


def _plain(record: Any, path: Path) -> dict[str, Any]:
    """What a result holds of its run, if it does."""
    if record is not None and not isinstance(record, dict):
        raise DataError(f"{path.name}: its record of the run is no table")
    return record or {}


def overview(records: list[RunRecord]) -> Section | None:
    """The section, if any record is there."""
    if not records:
        return None
    runs: dict[str, list[RunRecord]] = {}
    for record in records:
        runs.setdefault(record.action, []).append(record)
    shared = _shared(records)
    body = joined(
        [
            *_data(records),
            *_features(records),
            _list(shared),
            *(_runs(each, shared) for each in runs.values()),
        ]
    )
    return Section("run", "What was run", body, _tiles(records))


def _shared(records: list[RunRecord]) -> Facts:
    """What all runs have in common, to be said once."""
    first, *others = [_facts(record) for record in records]
    return {name: value for name, value in first.items() if all(
        each.get(name) == value for each in others)}  # fmt: skip


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


def _features(records: list[RunRecord]) -> list[Markup]:
    """What was done to the features: a sentence, and the constants behind a fold."""
    found = {each.constants: each for record in records if (each := record.features) is not None}
    return [features_table(each) for each in found.values()]


def features_table(known: Preprocessing) -> Markup:
    """Mean and deviation of each feature or channel."""
    rows = [
        (known.names[place] if known.names else str(place), number(mean), number(scale))
        for place, (mean, scale) in enumerate(zip(known.mean, known.scale, strict=True))
    ]
    headers = (known.kind.removesuffix("s").capitalize(), "Mean", "Deviation")
    return folded(f"Features: {known}", table(headers, rows, "Scaling of the features"))


def _runs(records: list[RunRecord], shared: Facts) -> Markup:
    """The latest run of an action, and those before it behind a fold."""
    *earlier, latest = records
    title = f"{counted(len(earlier), 'earlier run')} of ch {latest.action}"
    before = [_record(record, shared) for record in reversed(earlier)]
    return joined(
        [_record(latest, shared), folded(title, *before, is_minor=True) if earlier else None]
    )


def _facts(record: RunRecord) -> Facts:
    """What is said of a run beside its command and its settings."""
    seed = record.setting("seed")
    facts = {
        "Written": record.written,
        "Configuration file": record.config_file,
        "Seed": None if seed is None else str(seed),
        "Versions": ", ".join(f"{name} {v}" for name, v in record.versions.items()),
    }
    return {name: value for name, value in facts.items() if value}


def _list(facts: Facts) -> Markup | None:
    shown = [joined([tag("dt", name), tag("dd", value)]) for name, value in facts.items()]
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
         tag("span", each.set_by, class_="word"), _overruled(each))
        for each in chosen
    ]  # fmt: skip
    headers = ("Setting", "In effect", "Set by", "Instead of")
    set_here = table(headers, rows, "Settings", text_columns=4)
    defaults = [(each.name, _value(each.effective)) for each in others]
    as_ever = table(("Setting", "Default"), defaults, "Defaults", text_columns=2)
    words = counted(len(others), "setting")
    is_open = record.action == "train"  # the one whose settings a reader asks for first
    return joined(
        [
            folded(f"{counted(len(chosen), 'setting')} set by the file or the command line",
                   set_here, is_open=is_open) if chosen else None,
            folded(f"{words} as by default", as_ever, is_minor=True) if others else None,
        ]
    )  # fmt: skip


def _overruled(setting: SettingRecord) -> str:
    """The values that lost."""
    by_file = setting.set_by == "command line" and setting.file != ""
    file = [f"{_value(setting.file)} (file)"] if by_file else []
    return ", ".join([*file, f"{_value(setting.default)} (default)"])


def _value(value: object) -> str:
    return "none" if value is None else str(value)
