"""Where the files of a search are, and the configurations that `ch transform` can read."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.config.layers import write_toml
from chop.errors import SearchError
from chop.files import filled, write_text
from chop.runs import BEST_SETTINGS, JOURNAL, STUDY, latest, numbered, own_folder
from chop.search.config import SearchConfig
from chop.search.spaces.space import SearchSpace
from chop.search.study.storage import Place, shown, study_names
from chop.tools.logger import get_logger

if TYPE_CHECKING:
    from chop.search.study.trial import Trial

logger = get_logger("chop")


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
            f"the storage holds a study {name!r}; continue it with --resume, or give "
            "search.strategy.setup.study_name another value"
        )
    free = next(each for n in range(len(taken) + 1) if (each := numbered(name, n)) not in taken)
    place = Place(setup.storage, free)
    folder = own_folder(save_dir, STUDY)
    facts = {"storage": shown(place), "study_name": free}
    write_text(folder / STUDY, json.dumps(facts, indent=2) + "\n")
    return place, folder


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


def describe(config: SearchConfig, space_size: int, repeats: int) -> dict[str, Any]:
    """What was searched for and how, which the trials alone do not tell."""
    return config.description(space_size, repeats).model_dump(mode="json")


def write_tables(
    folder: Path, space: SearchSpace, best: "list[Trial]", settings: Mapping[str, Any]
) -> None:
    """``best_0.toml`` and so on: the run with the configuration of each best trial."""
    tables = [space.toml_of(dict(trial.config)) for trial in best]
    written = {folder / BEST_SETTINGS.format(n): each for n, each in enumerate(tables) if each}
    for path, table in written.items():
        write_toml(path, {**settings, **table})
    for old in set(folder.glob(BEST_SETTINGS.format("*"))) - written.keys():
        old.unlink(missing_ok=True)
