"""Optuna's journal file, made to survive a process that is killed at any moment."""

import contextlib
import fcntl
import json
import os
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BufferedRandom
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import FrozenTrial

FLUSH_EVERY = 1.0
ENCODER = json.JSONEncoder(separators=(",", ":"))
CREATE_TRIAL = 4  # Optuna's code for the record of a new trial


class Journal(BaseJournalBackend):
    """A journal file that Optuna and its dashboard can read.

    It differs from Optuna's own in three ways. The lock is the kernel's, which lets go when its
    holder dies; Optuna's is a file that a killed process leaves behind, so that the others wait
    for half a minute. A line that a killed process has written in part is taken out before the
    next is added; Optuna would find its file damaged for ever. And several records can be written
    together, at the price of one.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._reader = JournalFileBackend(path)
        self._together: list[dict[str, Any]] | None = None
        self._flushed = 0.0
        self._members = os.open(f"{path}.members", os.O_RDWR | os.O_CREAT, 0o666)
        weakref.finalize(self, os.close, self._members)
        fcntl.flock(
            self._members, fcntl.LOCK_SH
        )  # waits until whoever is alone has stored its batch

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The records from a number on; none while records are collected to be written."""
        if self._together is not None:
            return iter(())
        return self._reader.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add records; this process may end at any moment, a power cut loses the last second."""
        if self._together is not None:
            self._together += logs
            return
        self.append_lines([ENCODER.encode(log) for log in logs])

    def append_lines(self, lines: list[str]) -> None:
        """Add records that are texts already."""
        text = "".join(f"{line}\n" for line in lines)
        with open(self.path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # closing the file releases it
            _cut_torn_line(file)
            file.write(text.encode())
            file.flush()
            self._flush(file.fileno())

    def _flush(self, descriptor: int) -> None:
        """See to it that the disk has everything, once a second: that can take milliseconds."""
        if time.monotonic() - self._flushed > FLUSH_EVERY:
            os.fsync(descriptor)
            self._flushed = time.monotonic()

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other process takes part; while that is so, none can join until the end.

        Every process holds a shared lock on a file of its own; who can make it exclusive is alone.
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

    Optuna writes the options of each choice out anew for every trial, which takes longer than a
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


def _cut_torn_line(file: BufferedRandom) -> None:
    """Leave the file at its end, which is the end of a line."""
    end = file.seek(0, os.SEEK_END)
    start = end
    while start:
        file.seek(start - 1)
        if file.read(1) == b"\n":
            break
        start -= 1
    if start < end:
        file.truncate(start)
    file.seek(start)
