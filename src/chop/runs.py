"""The files of a run: what they are called, which versions there are, and the record of a run.

Actions write by these names, the report and the loaders read by them.
"""

import contextlib
import itertools
import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from chop.errors import ChopError, ConfigError, DataError, OutputError
from chop.files import check_nameable, create, hold, one_at_a_time, writable_folder, write_text
from chop.preprocessing import Preprocessing, from_plain
from chop.validation import parse

# In <project-dir>/<project>:
SOFTWARE, REPORT, FRONTS_CHART = "software", "report.html", "fronts.png"
# In software/: the folders of train, test, transform and search.
TRAINING, TESTS, TRANSFORM = "training_ckpts", "checkpoints", "transform"
SEARCH, COMPARISON, TENSORBOARD = "search_ckpts", "comparison", "tensorboard"
SENSITIVITY, FORMATS = "sensitivity", "formats"
# In the folder of a training run; a graph that was trained or transformed is a folder.
BEST_CHECKPOINT, LAST_CHECKPOINT = "best.ckpt", "last.ckpt"
TRAINING_LOG, LEARNING_CURVES = "training_log.csv", "learning_curves.png"
GRAPH, GRAPH_FILE = "transformed_ckpt", "graph.json"
EXPORT, MANIFEST = "export_{}", "manifest.json"
AGREEMENT_FILE, AGREEMENT_TABLE = "agreement.json", "agreement.csv"
# In the folder of tests:
TEST_RESULTS = "test_results.json"
# In the folder of a search: its study, or which study of a database it is, and its results.
JOURNAL, STUDY = "study.log", "study.json"
SEARCH_RECORD, BEST, LOG, TRIALS = "search.json", "best.json", "log.json", "trials.csv"
BEST_SETTINGS = "best_{}.toml"
# The same where settings are trained several times.
TRAININGS, REPEAT = "runs", "repeat_{}.json"
SETTINGS_TABLE, TRAININGS_TABLE, CURVES_TABLE = "study.csv", "runs.csv", "curves.csv"
# The same where widths are learned: saved graphs of the front, and what it takes to resume.
FRONT_GRAPHS, SNAPSHOT_GRAPH, MEMBER = "graphs", "epoch_{}", "member_{}"
LEARNING, LEARNING_TABLE = "learning", "learning.csv"
# In the folder of a comparison:
COMPARISON_FILE, COMPARISON_TABLE = "comparison.json", "comparison.csv"
COMPARISON_CHART = "comparison.png"
# In the folder of what layers lose by themselves, with a search that follows from it:
LAYERS_TABLE, LAYERS_FILE, SUGGESTED = "layers.csv", "layers.json", "search.toml"
# Beside the results of every action:
RUN_RECORD = "run_{}.json"

VERSION = re.compile(r"-v(\d+)$")
"""Nothing is overwritten: ``best.ckpt`` is followed by ``best-v1.ckpt``, folders likewise."""


def version_name(name: str, number: int) -> str:
    """The name of a version; the first, 0, has the name itself."""
    return f"{name}-v{number}" if number else name


def nth(path: Path, number: int) -> Path:
    """A version of a file or folder."""
    return with_suffix(path, version_name("", number))


def with_suffix(path: Path, suffix: str) -> Path:
    """The version of a file that `own_suffix` has told."""
    return path.with_name(f"{path.stem}{suffix}{path.suffix}")


def version_of(path: Path) -> int:
    """The number that a name ends in, 0 if in none."""
    found = VERSION.search(path.stem)
    return int(found[1]) if found else 0


def config_entry(config: Mapping[Any, Any], name: str) -> Any:
    """Return an entry of a trial's configuration, which a file has by the path of its tables."""
    return config.get(name, config.get((name,)))


def snapshot_name(config: Mapping[Any, Any]) -> str | None:
    """Return the name of the saved graph of a trial; None if it does not learn widths."""
    epoch, member = (config_entry(config, name) for name in ("epoch", "member"))
    if epoch is None:
        return None
    name = SNAPSHOT_GRAPH.format(epoch)
    return name if member is None else f"{MEMBER.format(member)}_{name}"


def latest(path: Path) -> Path:
    """The newest version of a file or folder; the first name if there is none."""
    there = path.parent.glob(f"{path.stem}-v*{path.suffix}")
    numbers = [n for each in there if nth(path, n := version_of(each)) == each]
    return nth(path, max(numbers, default=0))


def version_pattern(name: str) -> str:
    """A pattern that finds all versions of a name."""
    return f"{Path(name).stem}*{Path(name).suffix}"


def free_version(path: Path) -> Path:
    """The first version of a file or folder that does not exist yet."""
    return next(each for n in itertools.count() if not (each := nth(path, n)).exists())


def write_new(path: Path, text: str) -> Path:
    """Write a text file as a new version, even if two try at once; the name it got."""
    while not create(target := free_version(path), text):  # somebody was faster
        pass
    return target


def new_folder(path: Path) -> Path:
    """Make a folder as a new version, even if two try at once."""
    writable_folder(path.parent)
    while True:
        with contextlib.suppress(FileExistsError):  # somebody was faster
            folder = free_version(path)
            folder.mkdir()
            return folder


def own_folder(path: Path, first_file: str) -> Path:
    """A folder for new results: `path` if nothing is in it, else a new version.

    Args:
        first_file: is put into it at once, so that nobody else takes it for empty.
    """
    writable_folder(path.parent)
    with one_at_a_time(path.parent):
        is_empty = path.is_dir() and not any(path.iterdir())
        folder = writable_folder(path) if is_empty else new_folder(path)
        write_text(folder / first_file, "")
        return folder


@contextlib.contextmanager
def own_suffix(folder: Path, last: Path | None, resume: bool) -> Iterator[str]:
    """Yield the ending of a training run's names: nothing, ``-v1``, …, the same for no other run.

    A run holds its names by a lock while it is at work, as it may have written nothing yet. One
    that was killed between its first best and its first last checkpoint cannot be resumed; its
    names are used again.

    Args:
        last: the checkpoint that a run is resumed from.
        resume: whether a run is to be resumed, although it may have left no such checkpoint.
    """
    numbers = itertools.count() if not resume else [version_of(last) if last else 0]
    for number in numbers:
        names = [nth(folder / name, number) for name in (BEST_CHECKPOINT, LAST_CHECKPOINT)]
        suffix = version_name("", number)
        with hold(folder / f".run{suffix}.lock") as is_ours:
            if is_ours and (resume or not any(name.exists() for name in names)):
                yield suffix
                return
    raise OutputError(
        f"--resume: another run is at work in {folder}; wait for its end, or leave out "
        "--resume to start a new one"
    )


@dataclass(frozen=True)
class RunFolder:
    """The results of one project; of each kind the newest comes first."""

    folder: Path
    """The folder of the project."""
    software: Path

    @cached_property
    def training_logs(self) -> list[Path]:
        return self._newest_first(f"{TRAINING}/{version_pattern(TRAINING_LOG)}")

    @cached_property
    def test_results(self) -> list[Path]:
        return self._newest_first(f"{TESTS}/{version_pattern(TEST_RESULTS)}")

    @cached_property
    def graphs(self) -> list[Path]:
        """Folders of saved graphs, those that were transformed first."""
        places = (f"{each}/{version_pattern(GRAPH)}/{GRAPH_FILE}" for each in (TRANSFORM, TRAINING))
        return [folder for place in places for folder in self._folders(place)]

    @cached_property
    def front_graphs(self) -> list[Path]:
        """Folders of the graphs of fronts that were learned."""
        return self._folders(f"{version_pattern(SEARCH)}/{FRONT_GRAPHS}/*/{GRAPH_FILE}")

    @cached_property
    def exports(self) -> list[Path]:
        """Manifests of exports, beside the graphs."""
        return self._newest_first(f"*/{EXPORT.format('*')}/{MANIFEST}")

    @cached_property
    def agreements(self) -> list[Path]:
        """Folders of exports that were compared node by node."""
        return [each.parent for each in self.exports if (each.parent / AGREEMENT_FILE).is_file()]

    @cached_property
    def searches(self) -> list[Path]:
        """Folders of searches."""
        return self._folders(f"{version_pattern(SEARCH)}/{LOG}")

    @cached_property
    def comparisons(self) -> list[Path]:
        """Comparisons of samplers."""
        return self._newest_first(f"{version_pattern(COMPARISON)}/{COMPARISON_FILE}")

    @cached_property
    def sensitivities(self) -> list[Path]:
        """Folders of what layers lose by themselves."""
        return self._folders(f"{version_pattern(SENSITIVITY)}/{LAYERS_FILE}")

    @cached_property
    def format_comparisons(self) -> list[Path]:
        """Folders of formats compared."""
        return self._folders(f"{version_pattern(FORMATS)}/{FORMATS}.json")

    @cached_property
    def best_checkpoints(self) -> list[Path]:
        """The best checkpoints of training runs."""
        return self._newest_first(f"{TRAINING}/{version_pattern(BEST_CHECKPOINT)}")

    @cached_property
    def checkpoints(self) -> list[Path]:
        """The last checkpoints of training runs."""
        return self._newest_first(f"{TRAINING}/{version_pattern(LAST_CHECKPOINT)}")

    @cached_property
    def records(self) -> list[Path]:
        """Records of runs, in the folder itself and in those of the actions."""
        name = RUN_RECORD.format("*")
        return self._newest_first(name, f"*/{name}")

    @property
    def is_empty(self) -> bool:
        found = (self.training_logs, self.test_results, self.graphs, self.searches, self.records)
        return not any((*found, self.comparisons, self.sensitivities, self.format_comparisons))

    def _folders(self, pattern: str) -> list[Path]:
        return [path.parent for path in self._newest_first(pattern)]

    def _newest_first(self, *patterns: str) -> list[Path]:
        """Files by the version of their own name, else of their folder, the highest first."""
        paths = [path for pattern in patterns for path in self.software.glob(pattern)]
        return sorted(
            paths,
            key=lambda path: (version_of(path) or version_of(path.parent), str(path)),
            reverse=True,
        )

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


def open_run(folder: Path) -> RunFolder:
    """The run in a folder: that of a project, or the ``software`` in it."""
    check_nameable(folder, "the folder of a project")
    place = folder.expanduser()
    if not place.is_dir():
        what = "is a file" if place.exists() else "there is no such folder"
        raise ConfigError(f"{folder}: {what}; name the folder of a project")
    place = place.resolve()
    project = place.parent if place.name == SOFTWARE else place
    run = RunFolder(project, project / SOFTWARE)
    if not run.software.is_dir():
        inside = sorted(path.parent.name for path in place.glob(f"*/{SOFTWARE}") if path.is_dir())
        hint = f"name one of those in it: {', '.join(inside[:5])}" if inside else ""
        hint = hint or f"it has no folder {SOFTWARE!r}"
        raise ConfigError(f"{folder}: is not the folder of a project: {hint}")
    if run.is_empty:
        raise ConfigError(
            f"{folder}: holds no results yet; run ch train, test, transform or search"
        )
    return run


PACKAGES = ("machop", "torch", "lightning", "optuna", "pydantic", "numpy")
"""What decides the numbers."""
LARGEST = 64 * 2**20  # bytes; a larger record is some other file
Stored = TypeVar("Stored", bound=BaseModel)
Count = Annotated[int, Field(ge=0, lt=10**15)]
"""A number of things in a file."""


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
        """The scaling of the features, if the record tells."""
        return from_plain(self.preprocessing, f"run_{self.action}")

    def setting(self, name: str) -> Any:
        """The value in effect, None if the record does not tell."""
        return next((each.effective for each in self.settings if each.name == name), None)


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """The versions of Python and of packages; what is missing is left out."""
    found = {"python": platform.python_version()}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
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
        "versions": versions_of(PACKAGES),
        **record,
    }
    text = json.dumps(facts, indent=2, default=str) + "\n"
    return write_new(folder / RUN_RECORD.format(action), text)


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


def as_stored(schema: type[Stored], content: Any, where: str) -> Stored:
    """Return the content of a file as a table of these fields; else raise DataError in one line."""
    if not isinstance(content, dict):
        raise DataError(f"{where}: a table is expected")
    try:
        found = parse(schema, content, where)
        from_plain(getattr(found, "preprocessing", None), where)
        return found
    except ChopError as error:
        raise DataError(str(error)) from None


def read_stored(schema: type[Stored], path: Path, where: str = "") -> Stored:
    """The same of a JSON file; `where` names it, if more than its name does."""
    return as_stored(schema, read_json(path), where or path.name)
