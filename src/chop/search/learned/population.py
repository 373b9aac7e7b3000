"""Several runs that learn widths as one search: an engine does them, and their fronts are merged.

A member runs for a while in some process, is packed and stored, and continues. So whatever dies, at
most that while is lost, and members need no folder in common.
"""

import csv
import math
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from chop.errors import SearchError, TrainingError
from chop.files import hold, replacing, write_text
from chop.logger import get_logger, silently
from chop.runs import FRONT_GRAPHS, JOURNAL, LEARNING_TABLE, MEMBER
from chop.search.engines.engine import ATTEMPTS, LONGEST_WAIT, Lost, Ticket, TrialEngine
from chop.search.engines.serial import Serial
from chop.search.learned.members import (
    DONE,
    STRETCH,
    Member,
    MemberRuns,
    Stretch,
    StretchRequest,
    members_of,
    unpack_state,
)
from chop.search.learned.search import LearnedSearch, drop_dominated
from chop.search.spaces.space import SearchSpace
from chop.search.strategy import Progress, Strategy
from chop.search.study.store import Store
from chop.search.study.trial import Outcome
from chop.search.study.workers import held_back, raise_if_interrupted
from chop.tables import as_csv

if TYPE_CHECKING:
    from chop.search.config import SearchConfig

logger = get_logger("chop")

STATE = f"{MEMBER}_seed_{{}}.tar"


def make_learned_search(
    space: SearchSpace, config: "SearchConfig", store: Store, engine: TrialEngine
) -> Strategy:
    """Make the search that learns widths: one run, or a population of them."""
    alone = LearnedSearch(space, config, store)
    return alone if alone.setup.population == 1 else Population(alone, config, engine)


class Population(Strategy):
    """Runs the members on an engine, stores what they have come to, and merges their fronts.

    Args:
        alone: the search that would be done without a population.
    """

    def __init__(
        self, alone: LearnedSearch, config: "SearchConfig", engine: TrialEngine | None = None
    ) -> None:
        self.alone, self.space, self.store = alone, alone.space, alone.store
        self.engine = engine or Serial()
        self.runs = MemberRuns(alone.context, config)
        self.members = members_of(alone.setup, alone.context.seed)
        self.files = alone.files
        self.timeout = alone.setup.timeout
        self.size = self.limit = alone.size * len(self.members)
        self.progress = Progress()
        self.errors: dict[Member, str] = {}
        """Why members could not go on."""
        self._tables: dict[Member, list[dict[str, Any]]] = {}
        """The figures of each epoch."""

    def check(self) -> None:
        """Do everything once; say so if members cannot start from different weights."""
        self.alone.check()
        if self.alone.setup.trains and self.runs.redraw_weights(0) is None:
            why = (
                "they are trained"
                if self.alone.context.is_trained
                else "a layer of it has no reset_parameters()"
            )
            logger.warning("All members start from the weights of this network: %s", why)

    def run(self) -> None:
        """Run all members that are not at their end; a second call finds nothing left to do."""
        self.files.folder.mkdir(parents=True, exist_ok=True)
        with hold(self.files.lock) as is_ours:
            if not is_ours:
                raise SearchError(f"another process learns widths in {self.files.folder}")
            waiting = deque(each for each in self.members if not self._is_done(each))
            if waiting:
                with held_back(), self.store.signs_of_life(), closing(self.engine):
                    self.engine.start(self.runs)
                    self._run_all(waiting)
                    drop_dominated(self.alone.space, self.store)
        if len(self.errors) == len(self.members):
            first = next(iter(self.errors.values()))
            raise TrainingError(f"every member failed; the first: {first}")

    def _run_all(self, waiting: deque[Member]) -> None:
        """Have as many members on their way as the engine has slots, until all are at their end."""
        started = time.monotonic()
        flying: dict[Ticket, tuple[Member, int]] = {}
        while waiting or flying:
            left = (self.timeout or math.inf) - (time.monotonic() - started)
            if left <= 0 and waiting:
                logger.info("The time is used up; %d members are not at their end", len(waiting))
                waiting.clear()
            while waiting and len(flying) < self.engine.slots:
                member = waiting.popleft()
                flying[self._send(member, min(STRETCH, left))] = (member, 1)
            for ticket, answers in self.engine.finished(LONGEST_WAIT):
                member, attempt = flying.pop(ticket)
                if isinstance(answers, Lost):
                    attempt += not answers.is_innocent
                    if attempt > ATTEMPTS:
                        raise SearchError(f"{member}: a process ended twice: {answers.reason}")
                    flying[self._send(member, STRETCH)] = (member, attempt)
                elif answers and not self._keep(member, answers[0].value):
                    waiting.appendleft(member)  # its process may still have what it needs
            slots = self.engine.slots
            self.progress.report(self.store, f"{slots} slots, {len(flying)} in flight")
            raise_if_interrupted()

    def _send(self, member: Member, seconds: float) -> Ticket:
        state = self._state(member)
        packed = state.read_bytes() if state.exists() else b""
        return self.engine.submit([StretchRequest(member, packed, seconds)])

    def _keep(self, member: Member, found: Stretch) -> bool:
        """Store what a member has come to; return whether that is its end.

        Its state comes last: a process that is killed before does the same again.
        """
        with unpacked(found.state, self.files.folder) as folder:
            self._take(member, folder)
        for request, outcome in found.trials:
            self.store.once(request, partial(return_it, outcome))
        with replacing(self._state(member)) as temporary:
            temporary.write_bytes(found.state)
        if found.error is not None:
            logger.warning("%s: %s", member, found.error)
            self.errors[member] = found.error
        elif found.is_done:
            logger.info("%s: %d networks after %d epochs", member, len(found.trials), found.epochs)
        return found.is_done or found.error is not None

    def _take(self, member: Member, folder: Path) -> None:
        """Take the saved graphs and the table of epochs out of the folder of a member."""
        above = self.files.folder.parent
        (above / FRONT_GRAPHS).mkdir(exist_ok=True)
        for graph in folder.glob(f"{FRONT_GRAPHS}/*"):
            if not (above / FRONT_GRAPHS / graph.name).exists():
                graph.rename(above / FRONT_GRAPHS / graph.name)
        self._read_table(member, folder)
        rows = [row for each in self.members for row in self._tables.get(each, [])]
        write_text(above / LEARNING_TABLE, as_csv(rows))

    def _read_table(self, member: Member, folder: Path) -> None:
        if (path := folder / LEARNING_TABLE).exists():
            with path.open(encoding="utf-8", newline="") as stream:
                self._tables[member] = [member.labels | row for row in csv.DictReader(stream)]

    def _state(self, member: Member) -> Path:
        """The file that a member continues from."""
        return self.files.folder / STATE.format(member.number, member.seed)

    def _is_done(self, member: Member) -> bool:
        """Return whether a member is at its end; refuse what is not a state of it."""
        path = self._state(member)
        if not path.exists():
            for other in self.files.folder.glob(STATE.format(member.number, "*")):
                raise SearchError(f"{other}: was begun with another seed than {member.seed}")
            return False
        try:
            with unpacked(path.read_bytes(), self.files.folder) as folder:
                if not (folder / JOURNAL).exists():
                    raise tarfile.ReadError("it holds no study")
                self._read_table(member, folder)
                return (folder / DONE).exists()
        except tarfile.TarError as error:
            raise SearchError(
                f"{path}: cannot be resumed from ({error}); remove it to run the member again"
            ) from None

    def start(self) -> nn.Module | None:
        """The float network of the first member after its training."""
        path = self._state(self.members[0])
        if not path.exists():
            return None
        with unpacked(path.read_bytes(), self.files.folder) as folder, silently():
            run = self.runs.open(self.members[0], folder)
            try:
                return run.float_network()
            finally:
                run.store.close()


def return_it(outcome: Outcome) -> Outcome:
    """Return what a member has measured."""
    return outcome


@contextmanager
def unpacked(state: bytes, beside: Path) -> Iterator[Path]:
    """The files of a member, in a folder that lasts as long as the block."""
    with tempfile.TemporaryDirectory(dir=beside, prefix=".member.", suffix=".tmp") as folder:
        unpack_state(state, Path(folder))
        yield Path(folder)
