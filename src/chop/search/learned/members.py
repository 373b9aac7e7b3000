"""The members of a population: what each of them is, and a stretch of its run, in any process."""

import io
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from chop.errors import ChopError, SearchError
from chop.logger import silently
from chop.runs import JOURNAL
from chop.search.learned.search import LearnedSearch
from chop.search.learned.setup import LearnedSetup
from chop.search.spaces.afresh import fresh_weights, with_batch_size
from chop.search.spaces.space import SearchContext, make_space
from chop.search.study.storage import Place, open_store
from chop.search.study.trial import Outcome, TrialRequest, request_of

if TYPE_CHECKING:
    from chop.search.config import SearchConfig

DONE = "done"
"""The empty file in the folder of a member that has come to its end."""
STRETCH = 30.0
"""Seconds after which a member is stored and continued, as a request of its own."""
LEAST_WORK = 10.0
"""How much longer a stretch is at least than what it takes to begin it."""


@dataclass(frozen=True)
class Member:
    """One run of a population.

    Attributes:
        number: from 1 on; the first is the run that a search without a population would be.
        cost_weight: in the first cycle and in the last.
    """

    number: int
    seed: int
    cost_weight: tuple[float, float]

    @property
    def labels(self) -> dict[str, Any]:
        """Return what the configuration of each of its trials says of it."""
        return {"member": self.number, "seed": self.seed}

    def __str__(self) -> str:
        return f"Member {self.number} (seed {self.seed})"


def members_of(setup: LearnedSetup, seed: int) -> list[Member]:
    """Return the members of a population, whose seeds count up from one."""
    schedules = setup.schedules or [setup.cost_weight]
    return [
        Member(place + 1, seed + place, (first, last))
        for place in range(setup.population)
        for first, last in [schedules[place % len(schedules)]]
    ]


@dataclass(frozen=True)
class StretchRequest:
    """A request to an engine: a member is to go on from where it was stored.

    Attributes:
        state: its folder, packed; empty at the beginning.
        seconds: after which it pauses.
    """

    member: Member
    state: bytes = b""
    seconds: float = STRETCH


@dataclass(frozen=True)
class Stretch:
    """The state of a member.

    Attributes:
        state: its folder, packed.
        trials: all that it has measured so far.
        epochs: that it has trained its widths.
        error: why it cannot go on.
    """

    state: bytes
    trials: tuple[tuple[TrialRequest, Outcome], ...]
    epochs: int
    is_done: bool
    error: str | None = None


@dataclass(frozen=True)
class MemberRuns:
    """Runs members, each in a folder that is packed when it pauses; what workers are given."""

    context: SearchContext
    config: "SearchConfig"

    def evaluator(self) -> Callable[[StretchRequest], Stretch]:
        """Return what runs a member for a while."""
        return self.advance

    def advance(self, request: StretchRequest) -> Stretch:
        """Run a member from where it was, until it pauses, ends or fails."""
        error, is_done = None, False
        with tempfile.TemporaryDirectory() as name, silently():
            folder = Path(name)
            if request.state:
                unpack_state(request.state, folder)
            run = self.open(request.member, folder)
            steps, begun = run.steps(), time.monotonic()
            pause = begun + request.seconds
            try:
                for count, _ in enumerate(steps):
                    now = time.monotonic()
                    if count == 0:  # the first step has also read and trained what comes before
                        pause = max(pause, begun + LEAST_WORK * (now - begun))
                    if now >= pause:
                        break
                else:
                    is_done = True
                    (folder / DONE).touch()
            except ChopError as failed:
                error = str(failed)
            finally:
                steps.close()
            trials = tuple(
                (request_of(each), Outcome.of(each)) for each in run.store.frozen_trials()
            )
            run.store.close()
            return Stretch(pack_state(folder), trials, len(run.history), is_done, error)

    def open(self, member: Member, folder: Path) -> LearnedSearch:
        """Return the run of a member in its folder."""
        setup: Any = self.config.strategy.setup
        own = {"population": 1, "schedules": [], "cost_weight": list(member.cost_weight)}
        alone = setup.model_copy(update={**own, "timeout": None})
        strategy = self.config.strategy.model_copy(update={"setup": alone})
        config = self.config.model_copy(update={"strategy": strategy})
        stated = config.search_space
        context = self.context_of(member, folder)
        space = make_space(stated.name, context, stated.setup, stated.seed)
        store = open_store(Place(str(folder / JOURNAL), "member"), list(config.directions), {})
        store.sync()
        store.free_the_dead()
        return LearnedSearch(space, config, store, member.labels)

    def context_of(self, member: Member, folder: Path) -> SearchContext:
        """Return what a member works on: the first one all as it came, others by their seeds.

        Batches come in another order, and a network that came untrained has other weights.
        """
        context = replace(self.context, folder=folder)
        if member.number == 1:
            return context
        data = with_batch_size(context.data_module, None, member.seed)
        model = self.redraw_weights(member.seed) or context.model
        return replace(context, model=model, data_module=data, seed=member.seed, kept={}, _rows={})

    def redraw_weights(self, seed: int) -> nn.Module | None:
        """Return the network with other initial weights; None if they mean something, or stay."""
        if self.context.is_trained or not self.config.strategy.setup.trains:
            return None
        try:
            return fresh_weights(self.context.pristine(), seed).eval()
        except SearchError:  # a layer that does not say how: `Population.check` tells
            return None


def pack_state(folder: Path) -> bytes:
    """Return the files of a folder as one archive, which is the same for the same files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            archive.addfile(_entry(path, folder), io.BytesIO(path.read_bytes()))
    return stream.getvalue()


def _entry(path: Path, folder: Path) -> tarfile.TarInfo:
    found = tarfile.TarInfo(str(path.relative_to(folder)))
    found.size = path.stat().st_size
    return found


def unpack_state(state: bytes, folder: Path) -> None:
    """Write the files of an archive into a folder; none of them can leave it."""
    with tarfile.open(fileobj=io.BytesIO(state), mode="r:") as archive:
        archive.extractall(folder, filter="data")
