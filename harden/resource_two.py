"""Two runs into one project at once."""

import json
from collections.abc import Iterator
from pathlib import Path

from chop.models.weights import read_checkpoint
from harden import kill_search, kill_train
from harden.kill_server import Server
from harden.resource_common import Done, configured, forked
from harden.resource_disk import ACTIONS

PROJECT = Path("out", "software")


def two_runs(server: Server, folder: Path, rounds: int) -> Iterator[tuple[str, list[str]]]:
    """Both must end well, each with results of its own that are whole."""
    for number in range(rounds):
        yield f"train twice, round {number}", trained(server, folder / f"train-{number}")
        yield f"search twice, round {number}", searched(server, folder / f"search-{number}")
        yield f"test twice, round {number}", tested(server, folder / f"test-{number}")
        yield f"transform twice, round {number}", transformed(server, folder / f"graph-{number}")
    yield "train --resume while it trains", resumed(server, folder / "resumed")


def both(server: Server, runs: list[list[str]], folder: Path) -> tuple[list[Done], list[str]]:
    """Start two runs at the same moment; what is wrong with how they ended."""
    done = forked(server, runs, folder)
    return done, [each for one in done for each in one.expect(0)]


def trained(server: Server, folder: Path) -> list[str]:
    """Two runs with seeds of their own: neither may overwrite what the other has written."""
    work = kill_train.project(folder)
    runs = [[*kill_train.arguments("adam"), "--seed", seed] for seed in ("1", "2")]
    _, wrong = both(server, runs, work)
    seeds: list[set[int]] = []
    for suffix in ("", "-v1"):
        names = [f"best{suffix}.ckpt", f"last{suffix}.ckpt"]
        missing = [name for name in names if not (work / kill_train.CHECKPOINTS / name).exists()]
        if missing:
            return [*wrong, f"missing: {missing}"]
        found = [read_checkpoint(work / kill_train.CHECKPOINTS / name) for name in names]
        seeds.append({content["chop"]["seed"] for content in found})
    if sorted(map(sorted, seeds)) != [[1], [2]]:
        wrong.append(f"the checkpoints of two runs are mixed: seeds {seeds}")
    return wrong + records(work, "train")


def searched(server: Server, folder: Path) -> list[str]:
    """Two searches that do not ask for --resume have a study each."""
    flavour = kill_search.FLAVOURS["quick"]
    work = kill_search.project(folder, flavour)
    study = kill_search.Disturbed(server, work, flavour)
    variables = {"SEEN": str(work / "seen.txt"), "PAUSE": "0"}
    done = forked(server, [kill_search.arguments(resume=False)] * 2, work, variables=variables)
    wrong = [each for one in done for each in one.expect(0)]
    for name in ("search_ckpts", "search_ckpts-v1"):
        if not (log := work / PROJECT / name / "log.json").exists():
            return [*wrong, f"{name} is missing"]
        found = len(json.loads(log.read_text(encoding="utf-8")))
        wrong += [] if found == flavour.trials else [f"{name} has {found} trials"]
    return wrong + study.looked() + records(work, "search")


def tested(server: Server, folder: Path) -> list[str]:
    """Two tests write a result each."""
    folder.mkdir(parents=True)
    _, wrong = both(server, [ACTIONS["test"]] * 2, folder)
    results = sorted(path.name for path in (folder / PROJECT / "checkpoints").glob("*.json"))
    if results != ["test_results-v1.json", "test_results.json"]:
        wrong.append(f"the results are {results}")
    return wrong + records(folder, "test")


def transformed(server: Server, folder: Path) -> list[str]:
    """Two transforms save a graph each."""
    folder.mkdir(parents=True)
    configured(folder)
    _, wrong = both(server, [ACTIONS["transform"]] * 2, folder)
    graphs = sorted(str(path.parent) for path in (folder / PROJECT).rglob("graph.json"))
    if len(graphs) != 2:
        wrong.append(f"the graphs are {graphs}")
    return wrong + records(folder, "transform")


def records(folder: Path, action: str) -> list[str]:
    """Both runs must have left what was run."""
    found = len(list((folder / PROJECT).rglob(f"run_{action}*.json")))
    return [] if found == 2 else [f"{found} records of 2 runs"]


def resumed(server: Server, folder: Path) -> list[str]:
    """Going on with a run that is still at work is refused in one line."""
    work = kill_train.project(folder)
    runs = [[*kill_train.arguments("adam", resume=True), "--max-epochs", "40"]] * 2
    done = forked(server, runs, work)
    codes = sorted(str(one.code) for one in done)
    if codes != ["0", "2"]:
        return [f"ended with {codes}: {done[0].err} {done[1].err}"]
    refusal = next(one for one in done if one.code)
    return refusal.refused("another run")
