"""Where the files of a search are, and the configurations that `ch transform` can read."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.config.layers import write_toml
from chop.errors import SearchError
from chop.files import filled, new_folder, one_at_a_time, writable_folder, write_text
from chop.search.config import SearchConfig
from chop.search.spaces.space import SearchSpace
from chop.search.study.storage import JOURNAL, Place, shown, study_names
from chop.tools.logger import get_logger

if TYPE_CHECKING:
    from chop.search.study.trial import Trial

logger = get_logger("chop")

STUDY = "study.json"
"""Which study in which database the results in a folder are of."""


def study_place(config: SearchConfig, save_dir: Path, resume: bool) -> tuple[Place, Path]:
    """Where the study is and where its results go; without `resume` both are new."""
    setup = config.strategy.setup
    if setup.storage is None:
        folder = latest(save_dir) if resume else own_folder(save_dir, JOURNAL)
        if not resume and folder != save_dir:
            logger.info("%s holds a study; this one goes to %s", save_dir, folder.name)
        return Place(str(folder / JOURNAL), setup.study_name or "search"), folder
    name = setup.study_name or save_dir.parent.parent.name or "search"
    if resume:
        return Place(setup.storage, name), latest(save_dir)
    taken = set(study_names(setup.storage))
    if setup.study_name is not None and name in taken:
        raise SearchError(
            f"the storage holds a study {name!r}; go on with it with --resume, or give "
            "search.strategy.setup.study_name another value"
        )
    free = next(each for n in range(len(taken) + 1) if (each := _nth(name, n)) not in taken)
    place = Place(setup.storage, free)
    folder = own_folder(save_dir, STUDY)
    facts = {"storage": shown(place), "study_name": free}
    write_text(folder / STUDY, json.dumps(facts, indent=2) + "\n")
    return place, folder


def own_folder(save_dir: Path, first_file: str) -> Path:
    """A folder for a new search: `save_dir` if nothing is in it, else the next name that is free.

    Args:
        first_file: what is put into it at once, so that nobody else takes it for empty.
    """
    writable_folder(save_dir.parent)
    with one_at_a_time(save_dir.parent):
        is_empty = save_dir.is_dir() and not any(save_dir.iterdir())
        folder = writable_folder(save_dir) if is_empty else new_folder(save_dir)
        write_text(folder / first_file, "")
        return folder


@contextlib.contextmanager
def undone_if_it_fails(folder: Path, is_new: bool) -> Iterator[None]:
    """Take back what `own_folder` did and a study without trials, if the block fails.

    Args:
        is_new: whether the folder was made for this search.
    """
    with filled(folder) if is_new else contextlib.nullcontext():
        try:
            yield
        except BaseException:
            for name in (STUDY, JOURNAL, f"{JOURNAL}.members"):
                (folder / name).unlink(missing_ok=True)
            raise


def _nth(name: str, n: int) -> str:
    return f"{name}-v{n}" if n else name


def latest(folder: Path) -> Path:
    """The newest version of a folder; the folder itself if there is none."""
    pattern = re.compile(rf"{re.escape(folder.name)}-v(\d+)")
    versions = {
        int(match[1]): path
        for path in folder.parent.glob(f"{folder.name}-v*")
        if (match := pattern.fullmatch(path.name))
    }
    return versions[max(versions)] if versions else folder


def search_facts(config: SearchConfig, space_size: int, repeats: int) -> dict[str, Any]:
    """What was searched for and how, which the trials alone do not tell."""
    return config.description(space_size, repeats).model_dump(mode="json")


def write_facts(
    folder: Path, config: SearchConfig, space_size: int, repeats: int, features: Mapping[str, Any]
) -> None:
    """Write ``search.json``."""
    facts = {**search_facts(config, space_size, repeats), **features}
    write_text(folder / "search.json", json.dumps(facts, indent=2) + "\n")


def write_tables(
    folder: Path, space: SearchSpace, best: "list[Trial]", settings: Mapping[str, Any]
) -> None:
    """``best_0.toml`` and so on: the run with the configuration of each best trial."""
    written = set()
    for place, trial in enumerate(best):
        tables = space.toml_of(dict(trial.config))
        if tables:
            written.add(folder / f"best_{place}.toml")
            write_toml(folder / f"best_{place}.toml", {**settings, **tables})
    for old in set(folder.glob("best_*.toml")) - written:
        old.unlink(missing_ok=True)
