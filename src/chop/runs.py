"""The files of a run: their names, their versions, and the record of what was run."""

import json
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from chop.errors import ChopError, ConfigError, DataError
from chop.files import write_new
from chop.preprocessing import Preprocessing, from_plain
from chop.validation import parse

PARTS = {
    "training_ckpts": "training_log*.csv",
    "checkpoints": "test_results*.json",
    "transform": "transformed_ckpt*/graph.json",
    ".": "search_ckpts*/log.json",
}
"""Where actions leave what the page shows, and the names of the files; versions end in ``-v1``."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one project; of each kind the newest comes first."""

    folder: Path
    """The folder of the project."""
    software: Path

    @cached_property
    def training_logs(self) -> list[Path]:
        return self._found("training_ckpts")

    @cached_property
    def test_results(self) -> list[Path]:
        return self._found("checkpoints")

    @cached_property
    def graphs(self) -> list[Path]:
        """Folders of saved graphs."""
        trained = newest_first(self.software.glob("training_ckpts/transformed_ckpt*/graph.json"))
        return [path.parent for path in (*self._found("transform"), *trained)]

    @cached_property
    def searches(self) -> list[Path]:
        """Folders of studies."""
        return [path.parent for path in self._found(".")]

    @cached_property
    def comparisons(self) -> list[Path]:
        """Comparisons of samplers."""
        return newest_first(self.software.glob("comparison*/comparison.json"))

    @cached_property
    def checkpoints(self) -> list[Path]:
        return newest_first(self.software.glob("training_ckpts/last*.ckpt"))

    @cached_property
    def records(self) -> list[Path]:
        """Records of runs, in the folder itself and in those of the actions."""
        return newest_first(
            [*self.software.glob("run_*.json"), *self.software.glob("*/run_*.json")]
        )

    @property
    def is_empty(self) -> bool:
        results = (self.training_logs, self.test_results, self.graphs, self.searches)
        return not any((*results, self.comparisons, self.records))

    def _found(self, part: str) -> list[Path]:
        return newest_first((self.software / part).glob(PARTS[part]))

    def short(self, path: str | None) -> str:
        """A stored path as seen from the project, if it is inside, wherever the project was."""
        parts = Path(path or "").parts
        for place, part in enumerate(parts):
            inside = Path(*parts[place + 1 :])
            if part == self.folder.name and inside.parts and (self.folder / inside).exists():
                return inside.as_posix()
        return path or ""

    def name_of(self, path: Path) -> str:
        """A path as seen from the project."""
        return path.relative_to(self.folder).as_posix()


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """Paths by the number of their version, the highest first."""
    return sorted(paths, key=lambda path: (_version(path), str(path)), reverse=True)


def _version(path: Path) -> int:
    numbers = re.findall(r"-v(\d+)(?=[./]|$)", f"{path.parent.name}/{path.name}")
    return int(numbers[-1]) if numbers else 0


def open_run(folder: Path) -> RunFolder:
    """The run in a folder: that of a project, or the ``software`` in it."""
    place = folder.expanduser()
    if not place.is_dir():
        what = "is a file" if place.exists() else "there is no such folder"
        raise ConfigError(f"{folder}: {what}; name the folder of a project")
    place = place.resolve()
    project = place.parent if place.name == "software" else place
    run = RunFolder(project, project / "software")
    if not run.software.is_dir():
        raise ConfigError(f"{folder}: is not the folder of a project: {_hint(place)}")
    if run.is_empty:
        raise ConfigError(
            f"{folder}: holds no results yet; run ch train, test, transform or search"
        )
    return run


def _hint(place: Path) -> str:
    inside = sorted(path.parent.name for path in place.glob("*/software") if path.is_dir())
    if inside:
        return f"name one of those in it: {', '.join(inside[:5])}"
    return "it has no folder 'software'"


PACKAGES = ("machop", "torch", "lightning", "optuna", "pydantic", "numpy")
"""What decides the numbers."""
LARGEST = 64 * 2**20  # bytes; a larger record is some other file


class SettingRecord(BaseModel):
    """One setting and who set it; a layer that did not holds an empty text."""

    name: str
    default: Any = None
    file: Any = ""
    command_line: Any = ""
    effective: Any = None

    @property
    def set_by(self) -> str:
        """The layer that won."""
        if self.command_line != "":
            return "command line"
        return "default" if self.file == "" else "file"


class RunRecord(BaseModel):
    """One run of one action; all but the action may be missing."""

    model_config = ConfigDict(extra="allow")

    action: str
    written: str | None = None
    command: list[str] = Field(default_factory=list)
    config_file: str | None = None
    settings: list[SettingRecord] = Field(default_factory=list)
    data: str | None = None
    fingerprint: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    preprocessing: dict[str, Any] | None = None

    @property
    def features(self) -> Preprocessing | None:
        """What was done to the features, if the record tells."""
        return from_plain(self.preprocessing, f"run_{self.action}")

    def setting(self, name: str) -> Any:
        """The value in effect, None if the record does not tell."""
        return next((each.effective for each in self.settings if each.name == name), None)


def versions() -> dict[str, str]:
    """The versions of Python and of what decides the numbers; what is missing is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def write_record(folder: Path, action: str, record: Mapping[str, Any]) -> Path:
    """Write ``run_<action>.json`` into `folder`, beside an earlier one; the file.

    Args:
        folder: ``<project>/software``.
        record: what `Layers.record` gives, and the facts that only the action knows: ``data`` and
            ``fingerprint``.
    """
    facts = {
        "action": action,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        **record,
    }
    text = json.dumps(facts, indent=2, default=str) + "\n"
    return write_new(folder / f"run_{action}.json", text)


def read_json(path: Path, largest: int = LARGEST) -> Any:
    """The content of a JSON file; one that is damaged raises DataError in one line."""
    try:
        if path.stat().st_size > largest:
            raise DataError(f"{path.name}: larger than {largest >> 20} MiB")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path.name}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name}: not valid JSON: {error}") from None


def read_record(path: Path) -> RunRecord:
    """The record in a file."""
    return as_record(read_json(path), path.name)


def as_record(content: Any, where: str) -> RunRecord:
    """A record from plain values."""
    if not isinstance(content, dict):
        raise DataError(f"{where}: a table is expected")
    try:
        record = parse(RunRecord, content, where)
        from_plain(record.preprocessing, where)
        return record
    except ChopError as error:
        raise DataError(str(error)) from None
