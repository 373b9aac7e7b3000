"""The folder of a search, the files written there, and the lines printed."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.config.layers import write_toml
from chop.errors import GraphError, SearchError
from chop.figures import metrics_line
from chop.files import remove_if_empty, write_text
from chop.loading.records import HUB
from chop.logger import RESULT, get_logger
from chop.results.front import SearchResult
from chop.runs import (
    BEST_SETTINGS,
    FRONT_GRAPHS,
    JOURNAL,
    SOFTWARE,
    STUDY,
    latest,
    own_folder,
    version_name,
)
from chop.search.config import SearchConfig
from chop.search.runners import EvaluationArgs
from chop.search.spaces.space import SearchSpace
from chop.search.study.storage import Place, masked_storage, study_names
from chop.search.sweeps.hyperparameters import Hyperparameters
from chop.tasks import TASKS
from chop.verbs.common.next_commands import command, export_words, show_next

if TYPE_CHECKING:
    from chop.search.front.verification import Verified
    from chop.search.strategy import Strategy
    from chop.search.study.trial import Trial

logger = get_logger("chop")

EVALUATIONS = frozenset(task.runner for task in TASKS.values())
"""The runners that measure a network as it is."""
MOST_TRIED = 3
"""Networks of a front that are asked whether they can be exported."""


def study_place(config: SearchConfig, save_dir: Path, resume: bool) -> tuple[Place, Path]:
    """Return the study and the folder of its results; without `resume` both are new."""
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
    free = next(each for n in range(len(taken) + 1) if (each := version_name(name, n)) not in taken)
    place = Place(setup.storage, free)
    folder = own_folder(save_dir, STUDY)
    facts = {"storage": masked_storage(place), "study_name": free}
    write_text(folder / STUDY, json.dumps(facts, indent=2) + "\n")
    return place, folder


@contextlib.contextmanager
def undone_if_it_fails(folder: Path, is_new: bool) -> Iterator[None]:
    """Take back what `own_folder` did and a study without trials, if the block fails.

    Args:
        is_new: whether the folder was made for this search.
    """
    with remove_if_empty(folder) if is_new else contextlib.nullcontext():
        try:
            yield
        except BaseException:
            for name in (STUDY, JOURNAL, f"{JOURNAL}.members"):
                (folder / name).unlink(missing_ok=True)
            raise


@dataclass(frozen=True)
class SearchReport:
    """Writes and prints what a search has found.

    Args:
        settings: of the run, for the files ``best_<n>.toml``.
        features: what was done to the features, as it is stored.
        verbose: print the best trials with all metrics, in the form of the labs.
        check: compares configurations with their integers, several at once.
    """

    config: SearchConfig
    found: "Strategy"
    folder: Path
    settings: Mapping[str, Any]
    features: dict[str, Any]
    verbose: bool = False
    check: "Callable[[list[dict[str, Any]]], list[Verified]] | None" = None

    def write(self, is_over: bool) -> SearchResult:
        """Write and print everything.

        Args:
            is_over: whether the search has come to its end, so that the best trials are judged.
        """
        from chop.search.front.verification import require_agreement

        store, size, repeats = self.found.store, self.found.size, self.found.progress.repeats
        trials = store.trials()
        described = self.config.description(size, repeats, trials)
        found = SearchResult.of(store.study, trials, described)
        found = replace(found, features=self.features, space=self.found.space).save(self.folder)
        write_tables(self.folder, self.found.space, found.best, self.settings)
        if self.config.strategy.setup.plots:
            from chop.results.front_charts import draw_front

            draw_front(found, self.folder)
        if is_over:
            judged = self._judge(found)
            if judged != found:
                judged.save_judged()
            found = judged
        self._tell(found)
        require_agreement(found.verified)
        return found

    def _judge(self, found: SearchResult) -> SearchResult:
        """Compare the best trials with their integers and test them; what is known is not redone.

        What was trained for a trial is measured with weights that nobody has kept, so that there
        is nothing to compare or test.
        """
        from chop.search.front.accuracy import Judge
        from chop.search.front.verification import TRAINING_RUNNERS, verify_best

        strategy, best, space = self.config.strategy, found.best, self.found.space
        if space.starts_afresh or not TRAINING_RUNNERS.isdisjoint(strategy.sw_runner) or not best:
            return found
        judged, start = {}, None
        marks = verify_best(space, best, strategy.verify, found.verified, self.check)
        for runner, args in self.config.software():
            if isinstance(args, EvaluationArgs) and runner.name in EVALUATIONS:
                judge = Judge(space, args.data_loader, args.num_samples)
                judged = judge.of_front(best, found.judged)
                start = judge.of_start(self.found.start())
        return replace(found, verified=marks, judged=judged, start=start)

    def _tell(self, found: SearchResult) -> None:
        """Print what was found, or raise if nothing was."""
        failed = found.failures
        logger.info(
            "%d distinct configurations of %s were evaluated, %d of them failed; "
            "%d proposals were repeats",
            len(found.trials), f"{self.found.size:,}", len(failed), self.found.progress.repeats,
        )  # fmt: skip
        if found.problem.savings:
            logger.info("%s", found.problem.savings)
        if failed:
            logger.warning("Trial %d failed: %s", failed[0].number, failed[0].reason)
        logger.info("%s", self._table(found), extra=RESULT)
        logger.info("The results are in %s", self.folder, extra=RESULT)
        if self.folder.parent.name == SOFTWARE and found.best:
            show_next(self._next_commands(found))
        if found.trials and len(failed) == len(found.trials):
            raise SearchError(f"every trial failed; the first: {failed[0].reason}")

    def _next_commands(self, front: SearchResult) -> list[str]:
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
        from chop.catalogue import read_catalogue

        model, known = str(self.settings["model"]), read_catalogue()
        is_model = model in known["models"] or model.startswith(HUB) or "imports" in self.settings
        return is_model and self.settings["dataset"] in known["datasets"]

    def _exportable(self, front: SearchResult) -> tuple[int, list[str]] | None:
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

    def _table(self, found: SearchResult) -> str:
        """The best trials for a reader; of a study of settings the table of the settings."""
        from chop.results.settings import is_study
        from chop.views.terminal import best_table

        space = self.found.space
        if isinstance(space, Hyperparameters) and is_study(self.config):
            return self._study(space, found.trials)
        if self.verbose:
            return f"Best trial(s):\n{best_table(found.best, found.verified)}"
        return f"Best trial(s):\n{found!r}"

    def _study(self, space: Hyperparameters, trials: "Sequence[Trial]") -> str:
        """Write the tables and pictures of a study of settings; the table of the settings."""
        from chop.results.settings import heading, read_study, study_table

        study = read_study(self.folder, space, self.config, trials)
        study.save(self.folder)
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
