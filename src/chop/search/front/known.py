"""What an earlier run of a study found of its best trials, as ``best.json`` has it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from chop.errors import DataError
from chop.runs import BEST, as_stored, read_json
from chop.search.study.trial import Trial


class KnownPoint(BaseModel):
    """The part of an entry that says which trial it is; a subclass says what was found of it."""

    number: int
    sampled_config: dict[str, Any]


Known = TypeVar("Known", bound=KnownPoint)


def known_points(folder: Path, best: Iterable[Trial], schema: type[Known]) -> list[Known]:
    """The entries of these trials that hold all fields of `schema`."""
    if not (folder / BEST).is_file():
        return []
    configs = {trial.number: trial.config for trial in best}
    wanted = schema.model_fields.keys()
    try:
        entries = [each for each in read_json(folder / BEST).values() if wanted <= each.keys()]
        points = [as_stored(schema, each, BEST) for each in entries]
    except (DataError, AttributeError, TypeError):  # a damaged file is written again in any case
        return []
    return [each for each in points if configs.get(each.number) == each.sampled_config]
