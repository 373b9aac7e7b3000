"""Load: four processes on one study for 2,000 trials, in a journal file and in PostgreSQL.

Every evaluation is noted outside of the study, so that one that was lost or done twice shows. The
throughput is that of the time in which all processes are at work, as a ratio to one process.
"""

import collections
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chop.search.study.storage import Place, open_store
from harden import postgres
from harden.common import Row, share
from harden.kill_search import RESULTS, Disturbed, Flavour, project
from harden.kill_server import Answer, Server

PART = "load"
TRIALS, WORKERS = 2_000, 4
RUNNER = """
import os, time
from chop.search.spaces.space import key_of
from chop.search.runners import software_runner

def note(text):
    file = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{os.getpid()} {text} {time.monotonic()}\\n".encode())
    os.close(file)

def everybody():
    with open(os.environ["SEEN"]) as file:
        return {line.split()[0] for line in file}

def wait():
    deadline = time.monotonic() + 600
    while len(everybody()) < int(os.environ["CREW"]) and time.monotonic() < deadline:
        time.sleep(0.01)

waited = False

@software_runner("noted", metrics=("noted",))
def noted(candidate):
    "Note every evaluation; begin when all processes are there."
    global waited
    if not waited:
        note("here")
        wait()
        waited = True
    note(key_of(candidate.config))
    time.sleep(float(os.environ["PAUSE"]))
    return {"noted": 1.0}
"""
MANY = {
    "data_in_width": [2, 3, 4, 5, 6, 7, 8, 10, 12, 14],
    "weight_width": [2, 3, 4, 5, 6, 7, 8, 10, 12, 14],
    "bias_width": [2, 3, 4, 5, 6, 7, 8, 10, 12, 14],
    "data_in_frac_width": [1, 2, 3],
    "weight_frac_width": [1, 2, 3],
}
"""9,000 configurations."""
JOURNAL = "journal file"
LIMIT = 3_600.0


@dataclass(frozen=True)
class Load:
    """One way to put a study under load.

    Attributes:
        pause: seconds that a trial waits, as one on other hardware would.
        by_hand: start the processes one by one, all with the same seed, and not with n_jobs.
    """

    what: str
    pause: float
    storage: str | None = None
    by_hand: bool = False


@dataclass(frozen=True)
class Measured:
    """What became of a study under load."""

    wrong: list[str]
    rate: float
    void: int


def measured(server: Server, folder: Path, load: Load, trials: int, workers: int) -> Measured:
    """Search with so many processes, and look at what they have done."""
    flavour = Flavour("random", trials, load.pause, widths=MANY)
    jobs = 1 if load.by_hand else workers
    place = {"storage": load.storage, "study_name": folder.name} if load.storage else {}
    work = project(folder, flavour, RUNNER, n_jobs=jobs, **place)
    study = Disturbed(server, work, flavour, variables={"CREW": str(workers)})
    answer, said = study.run(workers if load.by_hand else 1, limit=LIMIT)
    wrong = ended(answer, said)
    lines = [line.split() for line in (work / "seen.txt").read_text().splitlines()]
    moments = [float(moment) for _, text, moment in lines if text != "here"]
    begun = max(float(moment) for _, text, moment in lines if text == "here")
    workers_seen = len({pid for pid, _, _ in lines})
    if workers_seen != workers:
        wrong.append(f"{workers_seen} of {workers} processes took part")
    stored = Place(
        load.storage or str(work / RESULTS / "study.log"), place.get("study_name") or "search"
    )
    found, void = counted(stored)
    wrong += losses([text for _, text, _ in lines if text != "here"], found, trials)
    return Measured(wrong, len(moments) / (max(moments) - begun), void)


def ended(answer: Answer, said: list[str]) -> list[str]:
    """Processes that did not end as they should."""
    return [
        f"process {place} ended with {code}: {said[place][-300:]}"
        for place, code in enumerate(answer.codes)
        if code != 0
    ]


def counted(place: Place) -> tuple[list[str], int]:
    """The keys of all complete trials, and how many claims were void."""
    store = open_store(place, ["maximize", "minimize"], {}, create=False)
    trials = store.storage.get_all_trials(store.study_id, deepcopy=False)
    complete = [t.user_attrs["key"] for t in trials if t.state.name == "COMPLETE"]
    void = sum("void" in trial.user_attrs for trial in trials)
    engine = getattr(getattr(store.storage, "_backend", None), "engine", None)
    if engine is not None:
        store.storage.remove_session()
        engine.dispose()
    return complete, void


def losses(evaluated: list[str], stored: list[str], trials: int) -> list[str]:
    """What was lost or done twice: evaluations noted outside against trials in the study."""
    wrong = []
    twice = [key for key, times in collections.Counter(evaluated).items() if times > 1]
    if twice:
        wrong.append(f"{len(twice)} configurations were evaluated twice, {twice[0]} for one")
    if lost := set(evaluated) - set(stored):
        wrong.append(f"{len(lost)} evaluations are not in the study")
    if len(set(stored)) != len(stored):
        wrong.append(f"{len(stored) - len(set(stored))} trials are stored twice")
    if len(stored) != trials:
        wrong.append(f"{len(stored)} trials in place of {trials}")
    return wrong


def row(server: Server, folder: Path, load: Load, trials: int) -> Row:
    """One line of the table: a study under load, and the same with one process."""
    one = measured(server, folder / "one", load, max(trials // WORKERS, 1), 1)
    four = measured(server, folder / "four", load, trials, WORKERS)
    wrong = one.wrong + four.wrong
    figure = (
        f"{four.rate / one.rate:.2f} times one process ({four.rate:.0f} to {one.rate:.0f} trials/s)"
    )
    return Row(
        PART, load.what, trials, len(wrong), tuple(wrong), f"{figure}, {four.void} void claims"
    )


def run(scale: float) -> Iterable[Row]:
    """All ways to put a study under load."""
    trials = share(TRIALS, scale)
    folder = Path(tempfile.mkdtemp(prefix="chop-load-"))
    try:
        with Server() as server:
            for load in (
                Load(f"{JOURNAL}, trials without a pause", 0.0),
                Load(f"{JOURNAL}, trials of 20 ms", 0.02),
                Load(f"{JOURNAL}, processes of one seed", 0.005, by_hand=True),
            ):
                yield row(server, folder / load.what, load, trials)
            yield in_postgresql(server, folder, trials)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_postgresql(server: Server, folder: Path, trials: int) -> Row:
    """The same in a database, where one can be started."""
    what = "PostgreSQL, trials of 20 ms"
    if reason := postgres.missing():
        return Row(PART, what, 0, 0, figure=f"not tried: {reason}")
    with postgres.server() as database:
        place = f"{database.url}/postgres"
        return row(server, folder / "postgresql", Load(what, 0.02, place), trials)
