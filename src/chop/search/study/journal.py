"""The journal file of a study: appended by several processes, read once."""

import contextlib
import fcntl
import gc
import json
import os
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache, lru_cache
from io import BufferedRandom
from sys import intern
from typing import Any, BinaryIO

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.storages.journal._storage import JournalStorageReplayResult
from optuna.trial import FrozenTrial

from chop.errors import OutputError, SearchError
from chop.logger import get_logger

logger = get_logger("chop")

FLUSH_EVERY = 1.0
SUM = b',"sum":"%08x"}\n'
"""How the line of a record ends: with the CRC-32 of the line without it, begun with its place.

So a line that was changed is noticed, and so is one that was moved, left out or put in before
others. Optuna reads over it.
"""
ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
OPTIONS = b',"intermediate_values":{},"distributions":{'
"""What stands before the options of a finished trial, in the order of `FinishedTrials`."""
CREATE_TRIAL = 4  # Optuna's code for the record of a new trial


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Put Python's garbage collector off while many small objects are made that live on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_JOURNALS: "weakref.WeakSet[Journal]" = weakref.WeakSet()
# A fork would keep the locks of a parent that has died.
os.register_at_fork(after_in_child=lambda: [journal.leave() for journal in list(_JOURNALS)])


class Journal(BaseJournalBackend):
    """A journal file that Optuna and its dashboard can read.

    It differs from Optuna's own in four ways. The lock is the kernel's, which lets go when its
    holder dies; Optuna's is a file that a killed process leaves behind, so that the others wait
    for half a minute. A line that a killed process has written in part is taken out before the
    next is added; Optuna would find its file damaged for ever. Every line has a checksum, so that
    damage is noticed and its place is named, also if it is only the order of the lines. And several
    records can be written together, at the price of one.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._read = (0, 0)
        """How many records were read, and where the next one begins."""
        self._end_is_checked = False
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o666))
        self._together: list[dict[str, Any]] | None = None
        self._flushed = 0.0
        self._members = os.open(f"{path}.members", os.O_RDWR | os.O_CREAT, 0o666)
        self.leave: Callable[[], object] = weakref.finalize(self, os.close, self._members)
        """Lets go of the file of members."""
        _JOURNALS.add(self)
        # Waits until a process that is alone has stored its batches.
        fcntl.flock(self._members, fcntl.LOCK_SH)

    @property
    def records_read(self) -> int:
        """Return how many records were read so far."""
        return self._read[0]

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The records from a number on; none while records are collected to be written."""
        if self._together is not None:
            return iter(())
        return self._records_from(log_number_from)

    def _records_from(self, first: int) -> Iterator[dict[str, Any]]:
        with open(self.path, "rb") as file:
            number, place = self._read if self._read[0] == first else (0, 0)
            file.seek(place)
            while line := _whole_line(file):
                record = _record(line, place)
                if record is None:
                    if self._is_mended(number, place):
                        yield from self._records_from(number)
                    return
                number, place = number + 1, place + len(line)
                if number > first:
                    self._read = number, place
                    yield record

    def _is_mended(self, number: int, place: int) -> bool:
        """Return whether a line that seemed damaged is whole once nobody writes; else raise.

        The last line may be damaged: a crash has torn it, and who writes next takes it out.
        """
        with open(self.path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            file.seek(place)
            if line := _whole_line(file):
                if _record(line, place) is not None:
                    return True
                if file.read(1):
                    raise SearchError(
                        f"{self.path}: line {number + 1} is damaged; put back a copy of the file, "
                        "or start a new study without --resume"
                    )
        return False

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add records; this process may end at any moment, a power cut loses the last second."""
        if self._together is not None:
            self._together += logs
            return
        self.append_lines([ENCODER.encode(log) for log in logs])

    @property
    def size(self) -> int:
        """The bytes that the file has."""
        return os.stat(self.path).st_size

    def append_lines(self, lines: list[str]) -> tuple[int, int]:
        """Add records that are texts already; where they begin in the file, and where they end."""
        with _one_line(self.path):
            return self._append(lines)

    def _append(self, lines: list[str]) -> tuple[int, int]:
        with open(self.path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # closing the file releases it
            start = self._cut(file)
            content = _as_bytes(lines, start)
            try:
                _write_all(file.fileno(), content, start)
                self._flush(file.fileno())
            except OSError:
                file.truncate(start)  # no half of a record, on which others would stumble
                raise
            return start, start + len(content)

    def _cut(self, file: BufferedRandom) -> int:
        """Take out a record that a crash has torn, and say so; where the next one goes."""
        end = file.seek(0, os.SEEK_END)
        _cut_torn_line(file)
        if not self._end_is_checked:
            _cut_damaged_line(file)
            self._end_is_checked = True
        start = file.tell()
        if start < end:
            logger.warning(
                "%s: its last record was cut off, as by a crash: %d bytes of it are taken out",
                self.path, end - start,
            )  # fmt: skip
        return start

    def _flush(self, descriptor: int) -> None:
        """See to it that the disk has everything, once a second: that can take milliseconds."""
        if time.monotonic() - self._flushed > FLUSH_EVERY:
            os.fsync(descriptor)
            self._flushed = time.monotonic()

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Yield whether no other process takes part; if so, none can join until the end.

        Every process holds a shared lock on the file of members; one that can make it exclusive is
        alone.
        """
        try:
            fcntl.flock(self._members, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_alone = True
        except BlockingIOError:
            is_alone = False
            fcntl.flock(self._members, fcntl.LOCK_SH)  # the failed attempt has let go of it
        try:
            yield is_alone
        finally:
            fcntl.flock(self._members, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Write the records of the block at its end, in one go."""
        self._together = []
        try:
            yield
        finally:
            records, self._together = self._together, None
            if records:
                self.append_logs(records)


class FinishedTrials:
    """Records of finished trials, as Optuna's storage writes them.

    Optuna writes the options of each choice out again for every trial, which takes longer than a
    small network does; here that is done once.
    """

    def __init__(self, study_id: int, worker: str) -> None:
        self.study_id = study_id
        self.worker = worker
        self._texts: dict[tuple[int, ...], tuple[list[BaseDistribution], str]] = {}

    def line(self, trial: FrozenTrial) -> str:
        """The line of the journal that adds a trial."""
        several = len(trial.values or ()) > 1
        record = {
            "op_code": CREATE_TRIAL,
            "worker_id": self.worker,
            "study_id": self.study_id,
            "datetime_start": _universal(trial.datetime_start),
            "state": int(trial.state),
            "value": None if several else trial.value,
            "values": trial.values if several else None,
            "datetime_complete": _universal(trial.datetime_complete),
            "params": {
                name: trial.distributions[name].to_internal_repr(value)
                for name, value in trial.params.items()
            },
            "user_attrs": trial.user_attrs,
            "system_attrs": trial.system_attrs,
            "intermediate_values": {},
        }
        return f'{ENCODER.encode(record)[:-1]},"distributions":{self._text(trial)}}}'

    def _text(self, trial: FrozenTrial) -> str:
        """All choices of a trial with their options."""
        choices = trial.distributions
        key = tuple(map(id, choices.values()))
        if key not in self._texts:  # they are kept, so that no others can come to have their ids
            texts = {name: distribution_to_json(each) for name, each in choices.items()}
            self._texts[key] = list(choices.values()), ENCODER.encode(texts)
        return self._texts[key][1]


def _universal(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


@contextlib.contextmanager
def _one_line(path: str) -> Iterator[None]:
    """Say in one line that the disk is full, or whatever else keeps the file from growing."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}; the trials in it are intact, "
            "and --resume continues from them"
        ) from None


def _write_all(descriptor: int, content: bytes, place: int) -> None:
    """Write bytes at a place; a disk may take a part of them before it is full."""
    left = memoryview(content)
    while left:
        taken = os.pwrite(descriptor, left, place)
        left, place = left[taken:], place + taken


def _as_bytes(lines: list[str], place: int) -> bytes:
    """Records as they stand in the file from a place on."""
    stored = bytearray()
    for line in map(str.encode, lines):
        stored += line[:-1] + SUM % zlib.crc32(line, _begin(place + len(stored)))
    return bytes(stored)


def _begin(place: int) -> int:
    """Return what the checksum of a line at this place begins with."""
    return place % 2**32


def _whole_line(file: BinaryIO) -> bytes:
    """The next line; nothing at the end, or if another process is still writing it."""
    line = file.readline()
    return line if line.endswith(b"\n") else b""


def _record(line: bytes, place: int) -> dict[str, Any] | None:
    """The record in a line; None if it is damaged. Optuna's own lines have no checksum."""
    size = len(SUM % 0)
    start, end = line[:-size], line[-size:]
    if end[:8] == SUM[:8] and end != SUM % zlib.crc32(b"}", zlib.crc32(start, _begin(place))):
        return None
    try:
        record = _parse_start(start) if end[:8] == SUM[:8] else json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and "op_code" in record else None


def _parse_start(start: bytes) -> Any:
    """The record that a line begins with, all but the last brace of it.

    Most of the line of a finished trial are the options of its choices. They come last, are the
    same in line after line, and are read once.
    """
    head, mark, options = start.rpartition(OPTIONS)
    if mark:
        with contextlib.suppress(ValueError):
            return json.loads(head + b"}") | {"distributions": _options(options)}
    return json.loads(start + b"}")


@lru_cache(maxsize=100)
def _options(text: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(b"{" + text)
    return found


def _cut_torn_line(file: BufferedRandom) -> None:
    """Leave the file at its end, which is the end of a line."""
    end = file.seek(0, os.SEEK_END)
    start = _line_start(file, end)
    if start < end:
        file.truncate(start)
    file.seek(start)


def _cut_damaged_line(file: BufferedRandom) -> None:
    """Take out the last line if it is damaged, as what a crash has torn need not be its end."""
    end = file.tell()
    start = _line_start(file, end - 1)
    file.seek(start)
    if start < end and _record(file.read(end - start), start) is None:
        file.truncate(start)
    file.seek(0, os.SEEK_END)


def _line_start(file: BufferedRandom, place: int) -> int:
    """Return where the line begins that a place is in."""
    while place > 0:
        file.seek(place - 1)
        if file.read(1) == b"\n":
            break
        place -= 1
    return max(place, 0)


class JournalStudies(JournalStorage):
    """Optuna's storage, in which trials share what is the same in all of them."""

    def __init__(self, journal: Journal) -> None:
        with journal.together():  # nothing is read yet
            super().__init__(journal)
        self._replay_result = Replay(self._worker_id_prefix)
        with self._thread_lock, no_collections():
            self._sync_with_backend()


class Replay(JournalStorageReplayResult):
    """The state that the records of a journal come to.

    Optuna makes the options of every choice again for every trial. That is most of the time that
    reading takes, and most of the memory that trials do.
    """

    def _apply_create_trial(self, log: dict[str, Any]) -> None:
        options, chosen = log.get("distributions", {}), log.get("params", {})
        trial_id = len(self._trials)
        super()._apply_create_trial({**log, "distributions": {}, "params": {}})
        if trial_id in self._trials:  # else its study was deleted
            trial = self._trials[trial_id]
            shared = _distributions(tuple(options.items()))
            # Optuna adds to those of a trial that is under way.
            trial.distributions = shared if trial.state.is_finished() else dict(shared)
            trial.params = {
                intern(name): shared[name].to_external_repr(place) for name, place in chosen.items()
            }


@lru_cache(maxsize=1_000)  # a tree of choices may have any number of sets that come up together
def _distributions(options: tuple[tuple[str, str], ...]) -> dict[str, BaseDistribution]:
    return {intern(name): _distribution(text) for name, text in options}


_distribution = cache(json_to_distribution)
