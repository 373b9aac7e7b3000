"""The strategy ``learned``: a training run whose snapshots are the trials of a study."""

import copy
import math
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import nn

from chop.dataset.inputs import remember_rows
from chop.errors import ChopError, ConfigError, SearchError, TrainingError
from chop.figures import significant
from chop.files import hold, write_text
from chop.ir.graph.mase_graph import MaseGraph
from chop.logger import get_logger, silently
from chop.passes.graph.interface import load_mase_graph, save_mase_graph_interface_pass
from chop.runs import FRONT_GRAPHS, LEARNING, LEARNING_TABLE
from chop.search.front.hypervolume import best_of, front_of
from chop.search.learned.learning import Learning, Snapshots, score_of
from chop.search.learned.moves import find_chain
from chop.search.learned.networks import (
    add_normalisations,
    check_teacher,
    fold_normalisations,
    make_teacher,
    train_float,
)
from chop.search.learned.polish import Polish, spread_points, take_some
from chop.search.learned.rows import Rows, join_batches
from chop.search.learned.schedule import PolishedSnapshot, Schedule, Snapshot
from chop.search.learned.setup import LearnedSetup, PolishSetup
from chop.search.learned.space import LearnedWidthsSpace
from chop.search.learned.state import (
    LearningFiles,
    fitting,
    read_snapshot,
    remove_snapshot,
    resume,
)
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import Batch, Candidate, SearchSpace, key_of
from chop.search.strategy import Progress, Strategy
from chop.search.study.store import Store
from chop.search.study.trial import TrialRequest
from chop.search.study.workers import at_any_moment, held_back
from chop.tables import as_csv
from chop.tasks import CLASSES, NUMBERS, task_named
from chop.training.loop import Loop
from chop.training.optimisers import trainable

if TYPE_CHECKING:
    from chop.search.config import SearchConfig

logger = get_logger("chop")

CERTAINTY = {
    CLASSES.primary_metric: (0.5, 0.02, "an accuracy"),
    NUMBERS.primary_metric: (math.sqrt(math.pi / 2 - 1), 0.05, "a mean absolute error"),
}
"""Of what decides: the deviation of one row (of an error relative to its mean, if it is normal),
half the interval from which on points of a front are chosen by chance, and its name."""
ENOUGH_ROWS = 1_000
"""Rows from which on moves of bits that pay on them mostly pay on others, too."""
SURE = 1.96
"""Standard deviations on each side that 95 of 100 measurements lie within."""


class LearnedSearch(Strategy):
    """Trains the network, its teacher and its widths, and measures snapshots.

    Of the snapshots of a cycle those become trials that no earlier one is better than, by the
    score on validation rows and the estimated cost; their trials have the exact figures.

    Args:
        labels: entries of the configurations of all trials that tell this run from others.
    """

    def __init__(
        self,
        space: SearchSpace,
        config: "SearchConfig",
        store: Store,
        labels: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        setup = config.strategy.setup
        assert isinstance(setup, LearnedSetup)  # the configuration was checked
        assert isinstance(space, LearnedWidthsSpace)
        self.space: LearnedWidthsSpace = space
        self.context = space.context
        self.store, self.setup, self.labels = store, setup, dict(labels)
        self.schedule = Schedule(setup)
        polish = setup.polish
        rounds = polish.points * polish.rounds if polish else 0
        self.size = self.limit = setup.cycles * setup.snapshots + rounds
        self.progress = Progress()
        self.measure = Measure(space, config, in_full=True)
        self.history: list[dict[str, Any]] = []
        """The figures of each epoch."""
        self._is_done = False
        self._float: nn.Module | None = None
        if self.context.folder is None:
            raise SearchError("widths are learned in a folder: name one")
        self.files = LearningFiles(self.context.folder / LEARNING)
        self.task = task_named(self.context.task)
        self.validation = self._validation_rows()

    def _validation_rows(self) -> list[Batch]:
        """The rows by which snapshots are chosen."""
        data = self.context.data_module
        if not data.dataset_info.validation_split_available:
            raise ConfigError(
                f"data set {data.name!r} has no validation rows, by which snapshots are chosen"
            )
        return join_batches(self.context.batches("val_dataloader", None))

    def _warn_of_few_rows(self) -> None:
        rows = sum(len(labels) for _, labels in self.validation)
        deviation, wide, words = CERTAINTY[self.task.primary_metric]
        interval = SURE * deviation / math.sqrt(max(rows, 1))
        if interval > wide:
            logger.warning(
                "%d validation rows are few to choose points by: %s is known to "
                "±%.1f %% only (95 %%); points that are closer are chosen by chance",
                rows, words, 100 * interval,
            )  # fmt: skip

    def check(self) -> None:
        """Do everything once with the untrained network, so that it fails now or not at all."""
        self._warn_of_few_rows()
        try:
            with silently(), tempfile.TemporaryDirectory() as folder:
                if self.setup.trains:
                    trainable(self.context.model)
                if self.setup.teacher is not None:
                    check_teacher(make_teacher(self.setup.teacher, self.context), self.context)
                graph = self.space.quantised(fold_normalisations(self.context, self._network()))
                learning = Learning(graph, self.setup, Rows(self.context))
                learning.rehearse()
                frozen = learning.freeze(learning.model.state_dict(), learning.sample)
                place = save(frozen, Path(folder) / "graph")
                outcome = self.measure.of(lambda: self.space.stored(place, {}))
        except ChopError as error:
            raise ConfigError(f"widths of this network cannot be learned: {error}") from None
        if outcome.reason is not None:
            raise ConfigError(f"widths of this network cannot be learned: {outcome.reason}")
        self._warn_of_chance_moves(learning, frozen)

    def _warn_of_chance_moves(self, learning: Learning, frozen: MaseGraph) -> None:
        polish = self.setup.polish
        if polish is None or not polish.rows or find_chain(frozen) is None:
            return
        rows, _ = take_some(learning.rows.batches(0, learning.model), polish.rows)
        if len(rows) < ENOUGH_ROWS:
            logger.warning(
                "polish tries moves of bits on %s rows, too few to tell many of them from chance: "
                "%s or more would (polish.rows, and rows to train on)",
                f"{len(rows):,}", f"{ENOUGH_ROWS:,}",
            )  # fmt: skip

    def _network(self) -> nn.Module:
        """A copy of the network that came, which knows how its rows are scaled."""
        model = self.context.pristine().to(self.context.device)
        remember_rows(model, self.context.data_module)
        return model

    def run(self) -> None:
        """Train what is not trained; a second call finds nothing left to do."""
        for _ in self.steps():
            pass

    def steps(self) -> Generator[None]:
        """Train what is not trained, and pause after each epoch and each polished network."""
        if self._is_done:
            return
        started = time.monotonic()
        self.files.folder.mkdir(parents=True, exist_ok=True)
        with hold(self.files.lock) as is_ours:
            if not is_ours:
                raise SearchError(f"another process learns widths in {self.files.folder}")
            with held_back(), self.store.signs_of_life():
                learning, loop = self._begin()
                try:
                    yield from self._learn(learning, loop, started)
                finally:
                    self._write_table()
                if self.setup.polish is not None:
                    yield from self._polish(self.setup.polish, learning, started)
                drop_dominated(self.space, self.store)
                self._is_done = True

    def _begin(self) -> tuple[Learning, Loop]:
        """Train the float network; return what learns widths, where it was last."""
        with at_any_moment():
            rows = self._rows()
            graph = self.space.quantised(self._trained(rows))
            learning = Learning(graph, self.setup, rows, self.setup.float_epochs)
            loop = learning.loop(
                Snapshots(learning, self.files, self.task.primary_metric, self._score)
            )
            self.history = learning.history
            self.history += resume(loop, self.files.last)
        if loop.epoch:
            logger.info("Resuming after epoch %d of %d", loop.epoch, self.schedule.epochs)
        return learning, loop

    def _rows(self) -> Rows:
        """The training rows with what is to be learned of them."""
        setup = self.setup.teacher
        if setup is None:
            return Rows(self.context)
        teacher = make_teacher(setup, self.context)
        if setup.epochs:
            logger.info("Training the teacher for %d epochs", setup.epochs)
        trained = train_float(
            "teacher", teacher, Rows(self.context), setup.learning_rate, setup.epochs,
            self.files.teacher,
        )  # fmt: skip
        logger.info("Teacher: validation %s %s", self.task.words, significant(self._score(trained)))
        return Rows(self.context, trained, setup.share)

    def _trained(self, rows: Rows) -> MaseGraph:
        """The float network after its training, normalisations folded."""
        model, setup = self._network(), self.setup
        if setup.float_epochs:
            if setup.normalise:
                model = add_normalisations(self.context.graph(model)).model
            logger.info("Training the float network for %d epochs", setup.float_epochs)
            rate, path = setup.float_learning_rate, self.files.network
            train_float("float network", model, rows, rate, setup.float_epochs, path)
        logger.info(
            "Float network: validation %s %s", self.task.words, significant(self._score(model))
        )
        self._float = copy.deepcopy(model)
        return fold_normalisations(self.context, model)

    def start(self) -> nn.Module | None:
        """The float network after its training."""
        return self._float

    def float_network(self) -> nn.Module | None:
        """The float network, read from its file if it was trained, else trained now."""
        self.files.folder.mkdir(parents=True, exist_ok=True)
        self._trained(self._rows())
        return self._float

    def _score(self, model: nn.Module) -> float:
        return score_of(model, self.validation, self.context.targets)

    def _learn(self, learning: Learning, loop: Loop, started: float) -> Iterator[None]:
        """Train all epochs that are not done; snapshots become trials at the end of a cycle."""
        for cycle in range(self.setup.cycles):
            if self.schedule.end(cycle) <= len(self.history):
                self._choose(cycle, learning)  # what a process that was killed has left
        for epoch in range(loop.epoch, self.schedule.epochs):
            if self.setup.timeout and time.monotonic() - started > self.setup.timeout:
                logger.info("The time is used up after epoch %d", epoch)
                break
            try:
                with at_any_moment():
                    loop.run_epoch()
            except TrainingError:
                self._choose(self.schedule.cycle(epoch), learning)
                raise
            if self.schedule.ends_cycle(epoch):
                self._end_cycle(self.schedule.cycle(epoch), learning)
                if self.history[-1]["ebops"] == 0:
                    logger.warning("All widths are zero after epoch %d: it ends here", epoch + 1)
                    break
            yield

    def _polish(self, setup: PolishSetup, learning: Learning, started: float) -> Iterator[None]:
        """Polish networks of the front; one that a process did not come to the end of, again."""
        found = [row for row in self._front() if self._place(row).exists()]
        chosen = spread_points(found, setup.points)
        for place, row in enumerate(chosen):
            first = self.schedule.epochs + place * setup.rounds + 1
            snapshots = [
                PolishedSnapshot(first + number, row["cycle"], row["cost_weight"], row["epoch"])
                for number in range(setup.rounds)
            ]
            if all(key_of(self._config(each)) in self.store.done for each in snapshots):
                continue
            if self.setup.timeout and time.monotonic() - started > self.setup.timeout:
                logger.info("The time is used up after %d polished networks", place)
                break
            graph = load_mase_graph(self._place(row))
            weight = row["cost_weight"] / learning.widths.start_ebops
            begun = (
                self.setup.float_epochs + self.schedule.epochs + place * setup.rounds * setup.epochs
            )
            rounds = Polish(graph, learning.rows.after(begun), setup, weight).rounds()
            for snapshot in snapshots:
                with at_any_moment():
                    polished = next(rounds)
                self._measure(snapshot, polished)
            self.progress.report(self.store, "")
            logger.info("Polished %d of %d networks of the front", place + 1, len(chosen))
            yield

    def _front(self) -> list[dict[str, Any]]:
        """The epochs whose networks no other is better than, by what is known of all."""
        sign = -1 if self.task.direction == "maximize" else 1
        known = [row for row in self.history if self.task.primary_metric in row]
        points = [(sign * row[self.task.primary_metric], row["ebops"]) for row in known]
        front = set(front_of(points))
        return [row for row, point in zip(known, points, strict=True) if point in front]

    def _end_cycle(self, cycle: int, learning: Learning) -> None:
        self._choose(cycle, learning)
        last = self.history[-1]
        logger.info(
            "Cycle %d of %d: cost weight %.3g, validation %s %s, about %s EBOPs",
            cycle + 1, self.setup.cycles, last["cost_weight"], self.task.words,
            significant(last[self.task.primary_metric]), f"{last['ebops']:,.0f}",
        )  # fmt: skip
        self._write_table()

    def _write_table(self) -> None:
        """Write what is known of all epochs."""
        assert self.context.folder is not None
        write_text(self.context.folder / LEARNING_TABLE, as_csv(self.history))

    def _choose(self, cycle: int, learning: Learning) -> None:
        """Make trials of the snapshots of a cycle, counted from 0, that may be on the front."""
        decides, upto = self.task.primary_metric, self.schedule.end(cycle)
        sign = -1 if self.task.direction == "maximize" else 1
        points = {
            row["epoch"]: (sign * row[decides], row["ebops"])
            for row in self.history
            if decides in row and row["epoch"] <= upto
        }
        front = set(front_of(list(points.values())))
        for snapshot in self.schedule.snapshots_of(cycle):
            path = self.files.snapshot(snapshot.epoch)
            if points.get(snapshot.epoch) in front:
                self._try(snapshot, path, learning)
            remove_snapshot(path)
        self.progress.report(self.store, "")

    def _try(self, snapshot: Snapshot, path: Path, learning: Learning) -> None:
        """Freeze, save and measure a snapshot, unless that was done before."""
        config = self._config(snapshot)
        state = None if key_of(config) in self.store.done else read_snapshot(path)
        if state is None:
            return
        with fitting(path):
            frozen = learning.freeze(state, learning.rows.everything())
        self._measure(snapshot, frozen)

    def _measure(self, snapshot: Snapshot, frozen: MaseGraph) -> None:
        """Save a frozen network and measure it."""
        config = self._config(snapshot)
        with silently():
            save(frozen, self.space.place(config))
        request = TrialRequest(key_of(config), config, {}, {})
        candidate = Candidate(self.context, config, lambda: frozen.model)  # what was just saved
        self.store.once(request, lambda: self.measure.of(lambda: candidate))

    def _config(self, snapshot: Snapshot) -> dict[str, Any]:
        """The configuration of the trial of a snapshot."""
        return self.labels | snapshot.config()

    def _place(self, row: Mapping[str, Any]) -> Path:
        """The folder of the frozen graph of an epoch."""
        return self.space.place(self.labels | {"epoch": row["epoch"]})


def drop_dominated(space: LearnedWidthsSpace, store: Store) -> None:
    """Remove the saved graphs of trials that are not on the front."""
    kept = {space.place(trial.config) for trial in best_of(store.study, store.trials())}
    assert space.context.folder is not None
    for folder in set((space.context.folder / FRONT_GRAPHS).glob("*")) - kept:
        shutil.rmtree(folder, ignore_errors=True)


def save(graph: MaseGraph, place: Path) -> Path:
    """Save a frozen graph in a folder, in place of what was there."""
    save_mase_graph_interface_pass(graph, {"save_dir": place, "replace": True, "add_value": False})
    return place
