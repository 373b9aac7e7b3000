"""The storage of a study: a journal file, a database, or a proxy in front of one."""

import contextlib
import fcntl
import logging
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection

from chop.errors import ConfigError, SearchError
from chop.files import regular
from chop.masking import masked_url, without_secrets
from chop.search.metrics import Direction
from chop.search.study.patience import Patience, StorageLost, make_patient, may_be_opened
from chop.search.study.store import Store, close

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from chop.search.study.journal import Journal

PROXY = "grpc://"
GRPC_PORT = 13000  # Optuna's own default
PROBLEM = "problem"
DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql"}
"""What reaches a database whose URL names no driver; SQLAlchemy would take those of long ago."""
PACKAGES = {"psycopg": "'psycopg[binary]'", "MySQLdb": "mysqlclient", "grpc": "grpcio"}
"""What to install for a module, where that has another name."""
OPENING = 0x63686F70
"""Names the lock in a PostgreSQL database that is held while one process opens it."""
LONGEST_OPENING = 60
"""Seconds to wait for others to open a database."""
LONGEST_ANSWER = 60.0
"""Seconds in which a proxy has to answer, unless its URL says ``?timeout=``."""
LIBPQ = ("postgresql+psycopg", "postgresql+psycopg2")
LIMITS = {
    "connect_timeout": 10,  # seconds
    "tcp_user_timeout": 30_000,  # milliseconds
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""When libpq takes a server for gone that says nothing at all; the system would wait for long."""
LONGEST_NAMING = 5.0
"""Seconds in which the process that makes a study has to say what it is for."""


@dataclass(frozen=True)
class Place:
    """A study: its storage and its name there; whatever process opens it finds the same."""

    storage: str
    """The path of a journal file, or a URL."""
    study_name: str

    @property
    def is_file(self) -> bool:
        """Return whether the study is in a journal file."""
        return "://" not in self.storage

    @property
    def may_fork(self) -> bool:
        """Return whether a process that has it open may fork: threads of gRPC would be lost."""
        return not self.storage.startswith(PROXY)


def open_store(
    place: Place,
    directions: list[Direction],
    problem: Mapping[str, Any],
    *,
    create: bool = True,
    objectives: Sequence[str] = (),
) -> Store:
    """The study at a place, made if it is not there.

    Args:
        problem: what is searched and measured; a stored study of another problem is refused.
        objectives: the names of what is optimised, for Optuna's dashboard and its pictures.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage, journal = _storage(place)
    with contextlib.ExitStack() as if_it_fails:
        if_it_fails.callback(close, storage)
        is_new = create and _make_study(storage, place.study_name, directions)
        try:
            study = optuna.load_study(storage=storage, study_name=place.study_name)
        except KeyError:
            raise SearchError(
                f"{masked_storage(place)}: there is no study {place.study_name!r}"
            ) from None
        if is_new:
            study.set_user_attr(PROBLEM, dict(problem))
            if objectives:
                _name_objectives(study, objectives)
        elif problem:
            _check_problem(study, place, problem)
        if_it_fails.pop_all()
    return Store(storage, study, journal)


def _name_objectives(study: optuna.Study, names: Sequence[str]) -> None:
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.set_metric_names(list(names))


def _make_study(storage: "BaseStorage", name: str, directions: list[Direction]) -> bool:
    """Make a study if it is not there; of several processes that try, one is told that it did."""
    with contextlib.suppress(KeyError):
        storage.get_study_id_from_name(name)
        return False
    try:
        storage.create_new_study([StudyDirection[each.upper()] for each in directions], name)
    except DuplicatedStudyError:
        return False
    return True


def study_names(storage: str) -> list[str]:
    """The names of the studies in a database."""
    found, _ = _storage(Place(storage, ""))
    names = [study.study_name for study in found.get_all_studies()]
    close(found)
    return names


def masked_storage(place: Place) -> str:
    """The place without the password that a URL may hold."""
    return masked_url(place.storage)


def _check_problem(study: optuna.Study, place: Place, problem: Mapping[str, Any]) -> None:
    deadline = time.monotonic() + LONGEST_NAMING
    while (stored := study.user_attrs.get(PROBLEM)) is None:
        if time.monotonic() > deadline:
            if study.get_trials(deepcopy=False):
                raise SearchError(
                    f"{masked_storage(place)}: study {study.study_name!r} does not say what its "
                    "trials are of, so it is not ours; start a new study without --resume"
                )
            # Who made it was killed before it could say so.
            study.set_user_attr(PROBLEM, dict(problem))
            return
        time.sleep(0.05)
    for name, value in problem.items():
        if stored.get(name) != value:
            raise SearchError(
                f"{masked_storage(place)}: the stored study had another {name}, so its trials "
                "cannot be compared with new ones; start a new study without --resume"
            )


def _storage(place: Place) -> tuple["BaseStorage", Any]:
    from chop.search.study.journal import JournalStudies

    if place.is_file:
        journal = _journal(place.storage)
        try:
            return JournalStudies(journal), journal
        except OSError as error:
            raise SearchError(f"{place.storage}: cannot be read: {error.strerror}") from None
        except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
            raise SearchError(
                f"{place.storage}: is not a study: record {journal.records_read} makes no sense "
                f"({type(error).__name__}: {error})"
            ) from None
    try:
        reach = _proxy if place.storage.startswith(PROXY) else _database
        opened = Patience(place.storage, may_be_opened)(lambda: reach(place.storage))
        return make_patient(opened, Patience(place.storage)), None
    except StorageLost:
        raise
    except ImportError as error:
        missing = error.name or getattr(error.__cause__, "name", None) or str(error)
        package = PACKAGES.get(missing, missing)
        raise ConfigError(
            f"storage {masked_storage(place)}: needs {missing}: pip install {package}"
        ) from None
    except Exception as error:  # noqa: BLE001  # each driver has its own errors
        reason = without_secrets(str(error).strip().partition("\n")[0], place.storage)
        raise ConfigError(f"storage {masked_storage(place)}: cannot be opened: {reason}") from None


def _journal(name: str) -> "Journal":
    """The journal in a file, which is made if it is not there."""
    from chop.search.study.journal import Journal

    path = Path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Journal(str(regular(path) if path.exists() else path))
    except (OSError, ValueError) as error:  # a ValueError for a name that no file can have
        reason = error.strerror if isinstance(error, OSError) else error
        raise SearchError(f"{name}: cannot be opened: {reason}") from None


def _database(url: str) -> "BaseStorage":
    from optuna.storages import RDBStorage, get_storage
    from sqlalchemy import make_url

    kind, separator, rest = url.partition("://")
    if kind in DRIVERS:
        url = f"{kind}+{DRIVERS[kind]}{separator}{rest}"
    parsed = make_url(url)
    limits = LIMITS if parsed.drivername in LIBPQ else {}
    arguments = {name: limit for name, limit in limits.items() if name not in parsed.query}
    # It logs a traceback for each connection that is found broken when it is put back.
    if not logging.getLogger("chop").isEnabledFor(logging.DEBUG):
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    with _one_at_a_time(url):
        return get_storage(RDBStorage(url, engine_kwargs={"connect_args": arguments}))


@contextlib.contextmanager
def _one_at_a_time(url: str) -> Iterator[None]:
    """Keep others from opening a database while this process does.

    Optuna looks which of its tables are there and makes the others. Of processes that do so at
    the same time all but one fail, on a table or a type that another has just made.
    """
    from sqlalchemy import NullPool, create_engine, make_url, text

    kind, file = make_url(url).get_backend_name(), make_url(url).database
    if kind == "postgresql":  # the server lets go of the lock when its holder dies
        with create_engine(url, poolclass=NullPool).begin() as connection:
            connection.execute(text(f"SET LOCAL lock_timeout = '{LONGEST_OPENING}s'"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({OPENING})"))
            yield
    elif kind == "sqlite" and file:
        folder = os.open(Path(file).parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    else:
        yield


def _proxy(url: str) -> "BaseStorage":
    from optuna.exceptions import ExperimentalWarning
    from optuna.storages import GrpcStorageProxy

    parts, longest = urlsplit(url), _longest_answer(url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        proxy = GrpcStorageProxy(host=parts.hostname or "localhost", port=parts.port or GRPC_PORT)
    try:
        proxy.wait_server_ready(longest)
    except ConnectionError:
        proxy.close()
        raise ConnectionError(f"no Optuna proxy answers within {longest:g} s") from None
    return proxy


def _longest_answer(url: str) -> float:
    """Return the seconds that a proxy has for its first answer."""
    stated = parse_qs(urlsplit(url).query).get("timeout", [str(LONGEST_ANSWER)])[-1]
    try:
        seconds = float(stated)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"storage {url}: timeout is a number of seconds, not {stated!r}")
    return seconds
