"""A search survives: real processes, real signals, and trials that fail."""

import collections
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from warm import WarmRun

from chop.config.layers import read_toml, write_toml
from chop.search.study.storage import Place, open_store

EXAMPLE = Path(__file__).parents[2] / "configs" / "examples" / "jsc_toy_by_type.toml"
OWN = """
import os, time
from chop.search.runners import software_runner

@software_runner("slow", metrics=("slowness",))
def slow(candidate):
    "Take a while, and keep a record of it."
    block = candidate.config["seq_blocks_2"]["config"]
    with open(os.environ["SEEN"], "a") as file:
        file.write(f"{os.getpid()} {sorted(block.items(), key=str)}\\n")
    deadline = time.monotonic() + 600
    crew = int(os.environ["CREW"])
    while len({line.split()[0] for line in open(os.environ["SEEN"])}) < crew:
        time.sleep(0.02)  # until so many processes are at work
        if time.monotonic() > deadline:
            break
    time.sleep(0.12)
    return {"slowness": 0.12}

@software_runner("moody", metrics=("mood",))
def moody(candidate):
    "Fail now and then."
    block = candidate.config["seq_blocks_2"]["config"]
    if block["weight_width"] == 2:
        raise MemoryError("no room for it")
    if block["weight_width"] == 4:
        return {"mood": float("nan")}
    return {"mood": 1.0}
"""


class Project:
    """One project folder, and processes of ``ch search`` in it."""

    def __init__(self, folder: Path, runner: str, crew: int = 1, **setup: Any) -> None:
        self.folder = folder
        self.crew = crew
        self.seen = folder / "seen.txt"
        self.seen.touch()
        (folder / "own.py").write_text(OWN)
        settings = read_toml(EXAMPLE) | {"batch_size": 64, "imports": [str(folder / "own.py")]}
        strategy = settings["search"]["strategy"]
        strategy["sw_runner"] = {runner: {}, "basic_evaluation": {"num_samples": 64}}
        strategy["setup"] |= setup
        del settings["passes"]
        write_toml(folder / "run.toml", settings)

    def start(self, *arguments: str) -> WarmRun:
        command = ["search", "--config", "run.toml", "--import", "own.py"]
        command += ["--project-dir", ".", "--project", "out", *arguments]
        return WarmRun(*command, cwd=self.folder, SEEN=str(self.seen), CREW=str(self.crew))

    def evaluations(self) -> list[str]:
        return self.seen.read_text().splitlines()

    def configs(self) -> list[str]:
        return [line.partition(" ")[2] for line in self.evaluations()]

    def workers(self) -> set[str]:
        return {line.partition(" ")[0] for line in self.evaluations()}

    def wait_for(self, count: int, process: WarmRun) -> None:
        deadline = time.monotonic() + 600
        while len(self.evaluations()) < count:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    @property
    def results(self) -> Path:
        return self.folder / "out" / "software" / "search_ckpts"

    def trials(self) -> list[Any]:
        place = Place(str(self.results / "study.log"), "search")
        return open_store(place, ["maximize", "minimize"], {}, create=False).frozen_trials()


def finished(process: WarmRun) -> str:
    output = "".join(process.communicate())
    assert process.returncode == 0, output
    return output


def test_kill_9_loses_at_most_the_trial_under_way_and_resume_goes_on(tmp_path: Path) -> None:
    project = Project(tmp_path, "slow", sampler="random", n_trials=12, plots=False)
    first = project.start()
    project.wait_for(5, first)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    kept = len(project.trials())
    begun = len(project.evaluations())
    assert begun - 1 <= kept <= begun
    output = finished(project.start("--resume"))
    assert "12 distinct configurations of 18 were evaluated" in output
    trials = project.trials()
    assert len({trial.user_attrs["key"] for trial in trials}) == len(trials) == 12
    again = [config for config, n in collections.Counter(project.configs()).items() if n > 1]
    assert len(project.evaluations()) - 12 == len(again) == begun - kept


def test_processes_share_the_work_and_take_over_from_one_that_is_killed(tmp_path: Path) -> None:
    project = Project(tmp_path, "slow", crew=3, sampler="brute", plots=False)
    first = project.start()
    project.wait_for(1, first)
    others = [project.start("--resume"), project.start("--resume")]
    deadline = time.monotonic() + 600
    while len(project.workers()) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert {str(each.pid) for each in (first, *others)} == project.workers()
    os.killpg(others[0].pid, signal.SIGKILL)
    others[0].communicate()
    outputs = [finished(first), finished(others[1])]
    trials = project.trials()
    assert len({trial.user_attrs["key"] for trial in trials}) == len(trials) == 18
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    twice = len(project.evaluations()) - 18
    assert twice <= 1  # the trial under way in the process that was killed
    assert any("18 distinct configurations of 18" in output for output in outputs)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_cleanly_with_the_results_so_far(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    project = Project(tmp_path, "slow", sampler="tpe", n_trials=18, n_jobs=2, plots=False)
    process = project.start()
    project.wait_for(4, process)
    os.kill(process.pid, number)
    output = "".join(process.communicate(timeout=600))
    assert process.returncode == code, output
    assert "ch: interrupted; what was finished is kept" in output
    assert not list(tmp_path.rglob("*.tmp"))
    assert "Traceback" not in output
    assert "Best trial(s):" in output
    log = json.loads((project.results / "log.json").read_text())
    assert 2 <= len(log) < 18  # two were under way
    assert json.loads((project.results / "best.json").read_text())


def test_a_trial_that_fails_is_recorded_and_the_search_goes_on(tmp_path: Path) -> None:
    project = Project(tmp_path, "moody", sampler="brute", plots=False)
    output = finished(project.start())
    assert "18 distinct configurations of 18 were evaluated, 12 of them failed" in output
    reasons = collections.Counter(t.user_attrs.get("reason") for t in project.trials())
    assert reasons == {"MemoryError: no room for it": 6, "SearchError: mood is nan": 6, None: 6}
