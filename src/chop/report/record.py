"""What was run, stored beside what came of it: ``run_<action>.json``."""

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from chop.errors import ChopError, DataError
from chop.files import write_new
from chop.preprocessing import Preprocessing, from_plain
from chop.validation import parse

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
