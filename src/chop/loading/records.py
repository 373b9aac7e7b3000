"""Facts about a network from the records of its project."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.errors import ChopError, ConfigError
from chop.runs import SOFTWARE, RunFolder, RunRecord, read_stored

HUB = "hf:"  # as in `chop.models.info`, which imports torch
OF_MODEL = ("model", "task")
OF_ROWS = ("dataset", "dataset_path", "label_column", "odd_class", "task", "seed", "batch_size")
"""The seed, too: it says which rows of a file are trained on. Batches are those of the training."""


def project_of(path: Path) -> Path | None:
    """The folder of the project that a file or folder is in, if it is in one."""
    place = path.expanduser().resolve()
    if (place / SOFTWARE).is_dir():
        return place
    inside = [each.parent for each in (place, *place.parents) if each.name == SOFTWARE]
    return inside[0] if inside else None


def newest_record(project: Path) -> RunRecord | None:
    """The newest record of a project that names a model; damaged ones are passed over."""
    found = []
    for path in RunFolder(project, project / SOFTWARE).records:
        try:
            record = read_stored(RunRecord, path)
        except ChopError:
            continue
        if record.setting("model"):
            found.append(record)
    return max(found, key=lambda each: each.written or "", default=None)


def left_out(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were not given and that the project of ``--load`` knows.

    Where a model and a data set are named nothing is: a command that is complete stays what it is.
    Otherwise the results go to that project, unless another is named.

    Args:
        given: the settings of file and command line.
    """
    if not given.get("load_name") or (given.get("model") and given.get("dataset")):
        return {}
    project = project_of(Path(given["load_name"]))
    record = newest_record(project) if project is not None else None
    if project is None or record is None:
        return {}
    wanted = [*(() if given.get("model") else OF_MODEL), *(() if given.get("dataset") else OF_ROWS)]
    known = {name: record.setting(name) for name in wanted if not given.get(name)}
    if not (given.get("project") or given.get("project_dir")):
        known |= {"project": project.name, "project_dir": str(project.parent)}
    return {name: value for name, value in known.items() if value is not None}


def require_code(name: str, known: Mapping[str, Any], load: str, action: str) -> None:
    """Refuse a model of a project that needs code, which is not run unasked.

    Args:
        name: of the model.
        known: the models that need no code.
    """
    if name.lower() in known or name.startswith(HUB):  # what a hub has is `chop.models.hub`'s
        return
    project = project_of(Path(load))
    record = newest_record(project) if project is not None else None
    words = [word for word in (record.command if record else []) if word.endswith(f".py:{name}")]
    word = words[0] if words else f"my_net.py:{name}"
    raise ConfigError(
        f"the model {name!r} of {load} is made by a file of yours, which runs only if it is "
        f"named: write ch {action} {word} --load {load} …"
    )
