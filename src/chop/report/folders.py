"""Which files of a run there are."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from chop.errors import ConfigError

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
