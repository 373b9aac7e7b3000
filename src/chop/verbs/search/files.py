"""What a search leaves: where it is, what is written and what is printed."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.config.layers import write_toml
from chop.errors import GraphError, SearchError
from chop.files import filled, write_text
from chop.loading.records import HUB
from chop.logger import RESULT, get_logger
from chop.results.table import metrics_line
from chop.runs import (
    BEST_SETTINGS,
    FRONT_GRAPHS,
    JOURNAL,
    SOFTWARE,
    STUDY,
    latest,
    numbered,
    own_folder,
    write_search_record,
)
from chop.search.config import SearchConfig
from chop.search.runners import EvaluationArgs
from chop.search.spaces.space import SearchSpace
from chop.search.study.storage import Place, shown, study_names
from chop.search.sweeps.hyperparameters import Hyperparameters
from chop.tasks import TASKS
from chop.verbs.common.next_commands import command, export_words, show_next

if TYPE_CHECKING:
    from chop.results.table import Front
    from chop.search.front.verification import Marks
    from chop.search.strategy import Strategy
    from chop.search.study.trial import Trial

logger = get_logger("chop")

EVALUATIONS = frozenset(task.runner for task in TASKS.values())
"""The runners that measure a network as it is."""
MOST_TRIED = 3
"""Networks of a front that are asked whether they can be exported."""


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


@dataclass(frozen=True)
class SearchResult:
    """What a search has found, and where it is written."""

    folder: Path
    best: "Sequence[Trial]"
    trials: "list[Trial]"
    space_size: int
    repeats: int
    """Proposals of the sampler that were known already and not evaluated again."""
    description: dict[str, Any] = field(default_factory=dict)
    """What was searched for and how, as it is stored."""
    features: dict[str, Any] = field(default_factory=dict)
    """What was done to the features, as it is stored."""
    front: "Front | None" = None
    """What was found of the best trials when the search was over."""
    space: SearchSpace | None = field(default=None, repr=False)
    """What makes networks of trials."""

    @property
    def verified(self) -> "Marks":
        """Whether the integers of the best trials agree, by the number of the trial."""
        return {} if self.front is None else self.front.verified


@dataclass(frozen=True)
class SearchReport:
    """Writes and prints what a search has found.

    Args:
        settings: of the run, for the files ``best_<n>.toml``.
        features: what was done to the features, as it is stored.
        verbose: print the best trials with all metrics, in the form of the labs.
    """

    config: SearchConfig
    found: "Strategy"
    folder: Path
    settings: Mapping[str, Any]
    features: dict[str, Any]
    verbose: bool = False

    def written(self, is_over: bool) -> SearchResult:
        """Write and print everything.

        Args:
            is_over: whether the search has come to its end, so that the best trials are judged.
        """
        from chop.results.files import write_results
        from chop.results.table import Front
        from chop.search.front.verification import require_agreement

        store, repeats = self.found.store, self.found.progress.repeats
        trials = store.trials()
        best = write_results(self.folder, store.study, trials, self.features)
        write_tables(self.folder, self.found.space, best, self.settings)
        description = self.config.description(self.found.size, repeats).model_dump(mode="json")
        write_search_record(self.folder, {**description, **self.features})
        metrics = list(self.config.metrics)
        if self.config.strategy.setup.plots:
            from chop.search.front.hypervolume import draw_plots

            draw_plots(self.folder, store.study, trials, metrics)
        front = Front(best, metrics)
        if is_over:
            front = self._judged(front)
            start = None if front.start is None else front.start.model_dump()
            write_search_record(self.folder, {**description, **self.features, "start": start})
        self._tell(trials, front)
        require_agreement(front.verified)
        return SearchResult(
            self.folder, best, trials, self.found.size, repeats, description, self.features, front,
            self.found.space,
        )  # fmt: skip

    def _judged(self, front: "Front") -> "Front":
        """Compare the best trials with their integers and test them; what is known is not redone.

        What was trained for a trial is measured with weights that nobody has kept, so that there
        is nothing to compare or test.
        """
        from chop.results.files import write_best
        from chop.search.front.accuracy import Judge, known_accuracies
        from chop.search.front.verification import TRAINING_RUNNERS, known_marks, verify_best

        strategy, best, space = self.config.strategy, front.best, self.found.space
        if space.starts_afresh or not TRAINING_RUNNERS.isdisjoint(strategy.sw_runner) or not best:
            return front
        marks = verify_best(space, best, strategy.verify, known_marks(self.folder, best))
        front = replace(front, verified=marks)
        for runner, args in self.config.software():
            if isinstance(args, EvaluationArgs) and runner.name in EVALUATIONS:
                judge = Judge(space, args.data_loader, args.num_samples)
                judged = judge.of_front(best, known_accuracies(self.folder, best))
                front = replace(front, judged=judged, start=judge.of_start(self.found.start()))
        write_best(self.folder, best, self.features, front.verified, front.judged)
        return front

    def _tell(self, trials: "list[Trial]", front: "Front") -> None:
        """Print what was found, or raise if nothing was."""
        failed = [trial for trial in trials if not trial.is_complete]
        logger.info(
            "%d distinct configurations of %s were evaluated, %d of them failed; "
            "%d proposals were repeats",
            len(trials), f"{self.found.size:,}", len(failed), self.found.progress.repeats,
        )  # fmt: skip
        if failed:
            logger.warning("Trial %d failed: %s", failed[0].number, failed[0].reason)
        logger.info("%s", self._table(trials, front), extra=RESULT)
        logger.info("The results are in %s", self.folder, extra=RESULT)
        if self.folder.parent.name == SOFTWARE and front.best:
            show_next(self._next_commands(front))
        if trials and len(failed) == len(trials):
            raise SearchError(f"every trial failed; the first: {failed[0].reason}")

    def _next_commands(self, front: "Front") -> list[str]:
        """Return what to do with a front; a network that is not saved needs the code that makes it.

        Where weights were trained for a trial and not kept, that means to train again.
        """
        from chop.search.front.verification import TRAINING_RUNNERS

        report = command("report", self.folder.parent.parent)
        is_saved = (self.folder / FRONT_GRAPHS).is_dir()
        code = () if is_saved else self.settings.get("imports", ())
        settings = self.folder / BEST_SETTINGS.format(0)
        if not (settings.is_file() and (is_saved or self._is_buildable())):
            return [report]  # a space or a module of the user's, which no file names
        if self.found.space.starts_afresh:
            return [report, command("train", "--config", settings, imports=code)]
        if not TRAINING_RUNNERS.isdisjoint(self.config.strategy.sw_runner):
            return [report, command("transform", "--config", settings, imports=code)]
        found = self._exportable(front)
        if found is None:
            return [report]
        place, words = found
        load = self.folder / BEST_SETTINGS.format(place) if place else self.folder
        return [report, command("export", "--load", load, *words, imports=code)]

    def _is_buildable(self) -> bool:
        """Return whether the command line can make the network and its rows from their names."""
        from chop.catalogue import stored

        model, known = str(self.settings["model"]), stored()
        is_model = model in known["models"] or model.startswith(HUB) or "imports" in self.settings
        return is_model and self.settings["dataset"] in known["datasets"]

    def _exportable(self, front: "Front") -> tuple[int, list[str]] | None:
        """Return the place of the best network that can be exported, and what is to be said of it.

        Only the first are tried: each takes as long as a trial.
        """
        in_integers = [
            (place, trial)
            for place, trial in enumerate(front.best)
            if (mark := front.verified.get(trial.number)) is None or mark.equal is not None
        ]
        for place, trial in in_integers[:MOST_TRIED]:
            with contextlib.suppress(GraphError):
                graph = self.found.space.candidate(dict(trial.config)).graph
                return place, export_words(graph)
        return None

    def _table(self, trials: "list[Trial]", front: "Front") -> str:
        """The best trials for a reader; of a study of settings the table of the settings."""
        from chop.results.files import best_table
        from chop.results.settings import is_study
        from chop.results.table import front_table

        space = self.found.space
        if isinstance(space, Hyperparameters) and is_study(self.config):
            return self._study(space, trials)
        if self.verbose:
            return f"Best trial(s):\n{best_table(front.best, front.verified)}"
        return f"Best trial(s):\n{front_table(front, shutil.get_terminal_size().columns)}"

    def _study(self, space: Hyperparameters, trials: "list[Trial]") -> str:
        """Write the tables and pictures of a study of settings; the table of the settings."""
        from chop.results.settings import heading, read_study, study_table, write_study

        study = read_study(self.folder, space, self.config, trials)
        write_study(self.folder, study)
        if self.config.strategy.setup.plots:
            from chop.results.settings_charts import draw_study

            draw_study(self.folder, study)
        return f"{heading(study, self.config)}\n{study_table(study)}"


def write_tables(
    folder: Path, space: SearchSpace, best: "Sequence[Trial]", settings: Mapping[str, Any]
) -> None:
    """``best_0.toml`` and so on: the run with the configuration of each best trial."""
    written = set()
    for place, trial in enumerate(best):
        if table := space.toml_of(dict(trial.config)):
            path = folder / BEST_SETTINGS.format(place)
            words = f"Trial {trial.number}: {metrics_line(trial.metrics)}"
            write_toml(path, {**settings, **table}, words)
            written.add(path)
    for old in set(folder.glob(BEST_SETTINGS.format("*"))) - written:
        old.unlink(missing_ok=True)
