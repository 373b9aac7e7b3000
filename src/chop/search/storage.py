"""Where a study is kept: a journal file, a database, or a proxy in front of one."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import optuna

from chop.errors import ConfigError, SearchError
from chop.search.config import Direction
from chop.search.store import Store

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

JOURNAL = "study.log"
GRPC_PORT = 13000  # Optuna's own default
PROBLEM = "problem"
PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds between attempts to open a database


@dataclass(frozen=True)
class Place:
    """A study: its storage and its name there; whatever process opens it finds the same."""

    storage: str
    """The path of a journal file, or a URL."""
    study_name: str

    @property
    def is_file(self) -> bool:
        return "://" not in self.storage


def open_store(
    place: Place, directions: list[Direction], problem: Mapping[str, Any], *, create: bool = True
) -> Store:
    """The study at a place, made if it is not there.

    Args:
        problem: what is searched and measured; a stored study of another problem is refused.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage, journal = _storage(place)
    try:
        study = (
            optuna.create_study(
                storage=storage,
                study_name=place.study_name,
                directions=directions,
                load_if_exists=True,
            )
            if create
            else optuna.load_study(storage=storage, study_name=place.study_name)
        )
    except KeyError:
        raise SearchError(f"{shown(place)}: there is no study {place.study_name!r}") from None
    _check_problem(study, place, problem)
    return Store(storage, study, journal)


def study_names(storage: str) -> list[str]:
    """The names of the studies in a database."""
    found, _ = _storage(Place(storage, ""))
    return [study.study_name for study in found.get_all_studies()]


def shown(place: Place) -> str:
    """The place without the password that a URL may hold."""
    parts = urlsplit(place.storage)
    if parts.password is None:
        return place.storage
    return place.storage.replace(f":{parts.password}@", ":…@")


def _check_problem(study: optuna.Study, place: Place, problem: Mapping[str, Any]) -> None:
    stored = study.user_attrs.get(PROBLEM)
    if stored is None:
        study.set_user_attr(PROBLEM, dict(problem))
        return
    for name, value in problem.items():
        if stored.get(name) != value:
            raise SearchError(
                f"{shown(place)}: the stored study had another {name}, so its trials cannot be "
                "compared with new ones; start a new study without --resume"
            )


def _storage(place: Place) -> tuple["BaseStorage", Any]:
    from optuna.storages import JournalStorage

    from chop.search.journal import Journal

    if place.is_file:
        Path(place.storage).parent.mkdir(parents=True, exist_ok=True)
        journal = Journal(place.storage)
        return JournalStorage(journal), journal
    if place.storage.startswith("grpc://"):
        return _proxy(place.storage), None
    url = place.storage
    if url.startswith("postgresql://"):  # SQLAlchemy would ask for the driver of long ago
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)
    try:
        return _database(url), None
    except ImportError as error:
        missing = error.name or str(error)
        raise ConfigError(f"storage {shown(place)}: install {missing} to reach it") from None
    except Exception as error:  # noqa: BLE001  # each driver has errors of its own
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"storage {shown(place)}: cannot be opened: {reason}") from None


def _database(url: str) -> "BaseStorage":
    """A study database; processes that start together all make its tables, and one is first."""
    from optuna.storages import get_storage
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    for pause in PAUSES:
        try:
            return get_storage(url)
        except (IntegrityError, ProgrammingError):
            time.sleep(pause)
    return get_storage(url)


def _proxy(url: str) -> "BaseStorage":
    from optuna.exceptions import ExperimentalWarning
    from optuna.storages import GrpcStorageProxy

    parts = urlsplit(url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return GrpcStorageProxy(host=parts.hostname or "localhost", port=parts.port or GRPC_PORT)
