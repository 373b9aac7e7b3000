"""What the engine of clusters says and counts; `make harden` runs searches on one."""

import importlib.util
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from search_cases import StoreMaker, space_of, tables
from torch import nn

import chop
from chop.config.run import RunConfig
from chop.errors import ConfigError, SearchError
from chop.search.config import parse_search
from chop.search.engines import EngineChoice, make_engine
from chop.search.engines.dispatch import Dispatcher
from chop.search.engines.engine import (
    Answer,
    Finished,
    Lost,
    Payload,
    TrialEngine,
    evaluate_all,
)
from chop.search.engines.ray import READY, Cluster, RayEngine
from chop.search.engines.serial import Serial
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import SearchContext
from chop.search.strategy import Search
from chop.verbs.search import SearchRequest
from chop.verbs.search.job import check_search, with_engine


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ray>=2.50'"):
        make_engine(EngineChoice("ray"))


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ({"address": "auto"}, "address is for engine = 'ray'"),
        ({"gpus_per_trial": 1}, "gpus_per_trial is for engine = 'ray'"),
        ({"engine": "serial", "n_jobs": 2}, "one slot, not n_jobs = 2"),
        ({"engine": "dask"}, "engine"),
        ({"batch": 0}, "batch"),
    ],
)
def test_engines_that_make_no_sense_are_refused(setup: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_search(tables(**setup))


def test_the_command_line_names_the_engine() -> None:
    request = SearchRequest(engine="ray", address="auto", search=tables(n_jobs=2))
    check_search(request)
    setup = parse_search(with_engine(request)).strategy.setup
    assert setup.choice == EngineChoice("ray", 2, "auto")
    stated = RunConfig(search=tables(engine="ray", address="auto"))
    assert with_engine(stated) is stated.search


def test_a_file_alone_does_not_name_a_cluster_elsewhere() -> None:
    search = tables(engine="ray", address="10.0.0.1:6379")
    with pytest.raises(ConfigError, match="if you trust '10.0.0.1:6379', add --address"):
        check_search(SearchRequest(search=search))
    check_search(SearchRequest(search=search, address="10.0.0.1:6379"))


@pytest.mark.parametrize(
    ("gpus", "resources", "slots"),
    [
        (0, {"CPU": 6.0, "GPU": 1.0}, 6),
        (1, {"CPU": 6.0, "GPU": 2.0}, 2),
        (0.1, {"CPU": 64.0, "GPU": 3.0}, 30),
        (0.25, {"CPU": 6.0, "GPU": 2.0}, 6),
        (2, {"CPU": 8.0, "GPU": 5.0}, 2),
        (1, {"CPU": 8.0}, 1),
        (0, {}, 1),
    ],
)
def test_slots_follow_from_what_a_trial_needs(
    gpus: float, resources: dict[str, float], slots: int
) -> None:
    assert Cluster("auto", 4, gpus).count_slots(resources) == slots


def test_a_cluster_that_is_started_here_asks_for_a_new_token() -> None:
    one, other = (Cluster("local", 2).environment() for _ in range(2))
    assert one["RAY_AUTH_MODE"] == "token"
    assert len(one["RAY_AUTH_TOKEN"]) == 64
    assert one["RAY_AUTH_TOKEN"] != other["RAY_AUTH_TOKEN"]
    joined = Cluster("10.0.0.1:6379", 2).environment()
    assert "RAY_AUTH_TOKEN" not in joined  # it has the token of the cluster, if that has one
    assert {one["RAY_USAGE_STATS_ENABLED"], joined["RAY_USAGE_STATS_ENABLED"]} == {"0"}


def connected(address: str = "10.0.0.1:6379") -> tuple[RayEngine, Any]:
    """An engine, and the end of its connection that the relay has."""
    engine = RayEngine(Cluster(address, 2))
    engine._connection, theirs = multiprocessing.Pipe()
    return engine, theirs


def test_what_the_relay_says_is_taken() -> None:
    engine, relay = connected()
    ticket = engine.submit(["a"])
    assert relay.recv() == (ticket, ["a"])
    relay.send((READY, 5))
    relay.send((ticket, []))
    assert engine.finished(1.0) == [(ticket, [])]
    assert engine.slots == 5
    assert engine.finished(1.0) == []  # nothing is under way, so nothing is waited for


def test_a_lost_cluster_is_one_line() -> None:
    engine, relay = connected()
    engine.submit(["a"])
    relay.close()
    with pytest.raises(SearchError, match="10.0.0.1:6379.* is lost; what was evaluated is stored"):
        engine.finished(1.0)
    engine, relay = connected("auto")
    engine.submit(["a"])
    relay.send(Lost("no cluster at 'auto': nobody answers"))
    with pytest.raises(SearchError, match="engine ray: no cluster at 'auto': nobody answers"):
        engine.finished(1.0)


class Breaking(Serial):
    """Loses every batch of one trial so many times."""

    def __init__(self, lost: Lost, times: int) -> None:
        super().__init__()
        self.lost, self.times = lost, times

    def finished(self, timeout: float) -> Finished:
        found = super().finished(timeout)
        if found and self.times:
            self.times -= 1
            return [(ticket, self.lost) for ticket, _ in found]
        return found


@pytest.mark.parametrize(("is_innocent", "failed"), [(True, 0), (False, 1)])
def test_a_trial_answers_for_its_process_but_not_for_its_machine(
    is_innocent: bool, failed: int, context: SearchContext, open_at: StoreMaker
) -> None:
    config = parse_search(tables(n_trials=3, batch=1))
    engine = Breaking(Lost("gone", is_innocent=is_innocent), 2)
    engine.batch = 1
    search = Search(space_of(context, config), config, open_at(), engine=engine)
    search.run()
    trials = search.store.trials()
    assert len({each.key for each in trials}) == 3
    assert sum(not each.is_complete for each in trials) == failed


class Doubling:
    """A payload that doubles what it is asked."""

    def evaluator(self) -> Any:
        return lambda request: 2 * request


def test_independent_requests_are_answered_in_order_whatever_is_lost() -> None:
    assert evaluate_all(Serial(), Doubling(), [3, 1, 2]) == [6, 2, 4]
    assert evaluate_all(Breaking(Lost("gone"), 2), Doubling(), [3, 1, 2]) == [6, 2, 4]
    assert evaluate_all(Breaking(Lost("gone", is_innocent=True), 9), Doubling(), [3]) == [6]
    with pytest.raises(SearchError, match="ended 2 times: gone"):
        evaluate_all(Breaking(Lost("gone"), 2), Doubling(), [3])


def test_layers_are_measured_by_processes_as_by_one(tmp_path: Path) -> None:
    rows = [(torch.randn(32, 16), torch.arange(32) % 5)]
    network = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5))
    given: dict[str, Any] = {"train": rows, "val": rows, "widths": (2, 4), "project": tmp_path}
    one, two = (chop.sensitivity(network, **given, n_jobs=jobs) for jobs in (1, 2))
    assert one.points == two.points
    with pytest.raises(ConfigError, match="address is for engine = 'ray'"):
        chop.sensitivity(network, **given, address="auto")


class Counting(TrialEngine):
    """Has slots, and evaluates nothing."""

    slots = 4

    def start(self, payload: Payload) -> None: ...

    def submit(self, requests: Any) -> int:
        return 1

    def finished(self, timeout: float) -> list[tuple[int, list[Answer] | Lost]]:
        return []


def test_batches_have_the_size_that_is_stated(context: SearchContext, open_at: StoreMaker) -> None:
    config = parse_search(tables())
    engine = Counting()
    trials = Dispatcher(engine, open_at(), Measure(space_of(context, config), config))
    trials.seconds = 0.001
    assert trials.batch_size(1000) == 64
    engine.batch = 7
    assert trials.batch_size(1000) == 7
    assert trials.batch_size(8) == 2  # every slot gets a share of what is left


@pytest.mark.parametrize("strategy", ["tpe", [], {"setup": "tpe"}, {"setup": [{}]}])
def test_tables_of_another_shape_are_left_to_the_parser(strategy: object) -> None:
    tables = {"strategy": strategy}
    assert with_engine(RunConfig(search=tables)) == tables
