"""Searches that are killed and go on: what must be true of them."""

import collections
import contextlib
import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from chop.config.layers import read_toml, write_toml
from harden.kill_server import ROOT, Answer, Request, Server

EXAMPLE = ROOT / "configs" / "examples" / "jsc_toy_by_type.toml"
OWN_RUNNER = """
import os, time
from chop.search.spaces.space import key_of
from chop.search.runners import software_runner

@software_runner("noted", metrics=("noted",))
def noted(candidate):
    "Keep a record of every evaluation that has begun, outside of the study."
    file = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{os.getpid()} {key_of(candidate.config)}\\n".encode())
    os.close(file)
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return {"noted": 1.0}
"""
RESULTS = Path("out", "software", "search_ckpts")
STUDY = "search"
FEW = {"data_in_width": [3, 4, 6, 8], "weight_width": [2, 3, 4, 8], "bias_width": [2, 4, 8]}


@dataclass(frozen=True)
class Flavour:
    """What is searched: how, for how many trials, and how long each takes at least."""

    sampler: str
    trials: int
    pause: float = 0.0
    repeatable: bool = True
    """Whether an uninterrupted search sees exactly the same configurations."""
    widths: Mapping[str, list[int]] = field(default_factory=lambda: FEW)


FLAVOURS = {
    "quick": Flavour("random", 40),
    "slow": Flavour("random", 8, pause=0.12),
    "tpe": Flavour("tpe", 16, repeatable=False),
    "all": Flavour("brute", 48),
}


def project(folder: Path, flavour: Flavour, runner: str = OWN_RUNNER, **setup: Any) -> Path:
    """A folder with the configuration of a search, and the runner `noted` that it measures with."""
    folder.mkdir(parents=True)
    (folder / "own.py").write_text(runner)
    settings = read_toml(EXAMPLE) | {"batch_size": 64, "imports": ["own.py"]}
    del settings["passes"]
    settings["search"]["search_space"]["seed"]["seq_blocks_2"]["config"] |= flavour.widths
    strategy = settings["search"]["strategy"]
    strategy["sw_runner"] = {"noted": {}, "basic_evaluation": {"num_samples": 64}}
    chosen = {"sampler": flavour.sampler, "n_trials": flavour.trials, "plots": False}
    strategy["setup"] |= chosen | setup
    write_toml(folder / "run.toml", settings)
    return folder


def arguments(resume: bool) -> list[str]:
    """The command line of a search."""
    more = ["--import", "own.py", *(["--resume"] if resume else [])]
    return ["search", "--config", "run.toml", "--project-dir", ".", "--project", "out", *more]


@dataclass(frozen=True)
class Study:
    """What a study holds, as Optuna's own reader sees it."""

    finished: dict[str, tuple[int, list[float] | None]] = field(default_factory=dict)
    """Number and values of each trial that counts, by the key of its configuration."""
    doubled: int = 0
    running: int = 0


def read_study(folder: Path, results: Path = RESULTS) -> Study:
    """The study of a project; raises what Optuna raises if it cannot be read."""
    path = folder / results / "study.log"
    if not path.exists():
        return Study()
    storage = JournalStorage(JournalFileBackend(str(path)))
    with contextlib.suppress(KeyError):  # killed before the study had a name
        trials = optuna.load_study(study_name=STUDY, storage=storage).get_trials(deepcopy=False)
        counted = [t for t in trials if t.state.is_finished() and "void" not in t.user_attrs]
        finished = {t.user_attrs["key"]: (t.number, t.values) for t in counted}
        running = sum(not t.state.is_finished() for t in trials)
        return Study(finished, len(counted) - len(finished), running)
    return Study()


@dataclass
class Disturbed:
    """One study whose processes are killed, perhaps several times, and that then goes on."""

    server: Server
    folder: Path
    flavour: Flavour
    notes: Path | None = None
    """Where to note what was said and evaluated, if that is not the folder of the study."""
    variables: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    seen: Study = field(default_factory=Study)
    evaluated: collections.Counter[str] = field(default_factory=collections.Counter)

    def killed(self, processes: int = 1, **how: Any) -> tuple[bool, list[str]]:
        """Search until somebody is killed; whether that happened, and what is wrong."""
        answer, said = self.run(processes, **how)
        wrong = [
            f"process {place} ended with {code}: {said[place][-300:]}"
            for place, code in enumerate(answer.codes)
            if code not in (0, -9)
        ]
        wrong += [f"{answer.left_behind} processes went on alone"] if answer.left_behind else []
        return answer.killed, wrong + self.looked()

    def looked(self) -> list[str]:
        """Read the study, as it is now; what was there before and has changed."""
        try:
            now = read_study(self.folder)
        except Exception as error:  # noqa: BLE001  # whatever it is, the study cannot be read
            return [f"study unreadable: {type(error).__name__}: {error}"]
        counts = collections.Counter(self.evaluations())
        wrong = [
            f"trial {number} is lost or has changed"
            for key, (number, values) in self.seen.finished.items()
            if now.finished.get(key) != (number, values)
        ]
        wrong += [
            f"trial {self.seen.finished[key][0]} was evaluated again"
            for key in self.seen.finished
            if counts[key] > self.evaluated[key]
        ]
        wrong += [f"{now.doubled} configurations are stored twice"] if now.doubled else []
        self.seen, self.evaluated = now, counts
        return wrong

    def finished(self) -> list[str]:
        """Go on to the end; what is not as it should be."""
        answer, said = self.run(1)
        if answer.codes != [0]:
            return [f"--resume ended with {answer.codes}: {said[0][-300:]}"]
        return self.looked() + self.complete()

    def compared(self, reference: Path) -> list[str]:
        """What differs from a search that nobody disturbed."""
        values = [
            {key: values for key, (_, values) in study.finished.items()}
            for study in (read_study(reference), self.seen)
        ]
        return [] if values[0] == values[1] else ["other configurations or values than undisturbed"]

    def complete(self) -> list[str]:
        """What is missing from a study that is done, or from its files."""
        wrong = []
        if (found := len(self.seen.finished)) != self.flavour.trials:
            wrong.append(f"{found} trials in place of {self.flavour.trials}")
        if self.seen.running:
            wrong.append(f"{self.seen.running} trials are marked as running for ever")
        results = self.folder / RESULTS
        with (results / "trials.csv").open(encoding="utf-8", newline="") as table:
            counts = {"trials.csv": len(list(csv.DictReader(table)))}
        counts["log.json"] = len(json.loads((results / "log.json").read_text(encoding="utf-8")))
        wrong += [f"{name} has {n} trials" for name, n in counts.items() if n != found]
        if not json.loads((results / "best.json").read_text(encoding="utf-8")):
            wrong.append("best.json is empty")
        return wrong

    def run(self, processes: int = 1, **how: Any) -> tuple[Answer, list[str]]:
        """Start processes on the study; what each has said."""
        self.number += 1
        command = arguments(resume=self.number > 1 or processes > 1)
        variables = {"SEEN": str(self.noted / "seen.txt"), "PAUSE": str(self.flavour.pause)}
        request = Request(
            [command] * processes,
            str(self.folder),
            str(self.noted / "said"),
            f"run{self.number}",
            variables=variables | dict(self.variables),
            **how,
        )
        answer = self.server.run(request)
        said = [request.output(place).read_text(errors="replace") for place in range(processes)]
        return answer, said

    @property
    def noted(self) -> Path:
        """Where notes are kept."""
        return self.notes or self.folder

    def evaluations(self) -> list[str]:
        """The keys of the configurations that were evaluated, once for each time."""
        seen = self.noted / "seen.txt"
        lines = seen.read_text().splitlines() if seen.exists() else []
        return [line.partition(" ")[2] for line in lines]
