"""Several runs that learn widths as one search: members, their files, and the spread over them."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from learned_cases import learn, mlp, rows, tables

from chop.errors import ChopError, ConfigError, SearchError, TrainingError
from chop.results.front import SearchResult
from chop.results.front_charts import spread_charts
from chop.search.config import parse_search
from chop.search.engines import local
from chop.search.front.spread import spread_of
from chop.search.front.verification import Verified
from chop.search.learned import members, population
from chop.search.learned.members import MemberRuns, Stretch, StretchRequest, members_of
from chop.search.learned.setup import LearnedSetup
from chop.search.spaces.space import SearchContext
from chop.verbs.report import report
from chop.verbs.search.job import SearchJob, search

SHORT = {"teacher": None, "float_epochs": 1, "epochs": 2, "snapshots": 1}


def of_trials(result: SearchResult, member: int | None = None) -> list[Any]:
    """What was measured, in an order that does not depend on who came first."""
    found = [
        (sorted(trial.config.items()), trial.metrics)
        for trial in result.trials
        if member in (None, trial.config["member"])
    ]
    return sorted(found, key=str)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("population")


@pytest.fixture(scope="module")
def found(project: Path) -> SearchResult:
    return learn(project / "software" / "search_ckpts", population=3, plots=True, **SHORT)


def test_the_front_is_that_of_all_members(found: SearchResult) -> None:
    assert {(t.config["member"], t.config["seed"]) for t in found.trials} == {
        (1, 0),
        (2, 1),
        (3, 2),
    }
    saved = {path.name for path in (found.folder / "graphs").iterdir()}
    names = (f"member_{t.config['member']}_epoch_{t.config['epoch']}" for t in found.best)
    assert saved == set(names)
    assert all(mark.equal for mark in found.verified.values())
    assert len(found.verified) == len(found.best)
    with (found.folder / "learning.csv").open(newline="") as stream:
        table = [(row["member"], row["seed"], row["epoch"]) for row in csv.DictReader(stream)]
    assert table == [(f"{n}", f"{n - 1}", f"{e}") for n in (1, 2, 3) for e in (1, 2, 3, 4)]
    assert found.start is not None


def test_the_first_member_is_the_search_without_a_population(
    found: SearchResult, tmp_path: Path
) -> None:
    alone = learn(tmp_path, **SHORT)
    first = [trial for trial in found.trials if trial.config["member"] == 1]
    assert [trial.metrics for trial in alone.trials] == [trial.metrics for trial in first]
    others = [trial.metrics for trial in found.trials if trial.config["member"] == 2]
    assert [trial.metrics for trial in alone.trials] != others


def test_the_spread_over_seeds_is_a_band_on_the_plot_and_the_page(
    found: SearchResult, project: Path
) -> None:
    (chart,) = spread_charts(found)
    (name,) = chart.bands
    assert name == "median, best and worst of 3 members"
    band = chart.bands[name]
    for (x, low), (_, high), (_, middle) in zip(
        band.high, band.low, chart.series[name], strict=True
    ):
        assert low <= middle <= high, x
    assert (found.folder / "spread.png").stat().st_size > 1000
    assert "Spread over seeds" in report(project).read_text(encoding="utf-8")
    (again,) = spread_charts(SearchResult.load(found.folder))
    assert again.bands[name].low == [(x, pytest.approx(y)) for x, y in band.low]


def test_members_that_pause_after_every_epoch_come_to_the_same(
    found: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "LEAST_WORK", 0.0)
    monkeypatch.setattr(population, "STRETCH", 0.0)
    checked, check = [], SearchJob.check_front

    def counting(self: SearchJob, configs: list[dict[str, Any]]) -> list[Verified]:
        checked.extend(configs)
        return check(self, configs)

    monkeypatch.setattr(SearchJob, "check_front", counting)
    same = learn(tmp_path, population=3, n_jobs=2, **SHORT)
    assert of_trials(same) == of_trials(found)
    assert checked == [trial.config for trial in same.best]
    assert list(same.verified.values()) == list(found.verified.values())
    table = "learning.csv"
    assert (tmp_path / table).read_text() == (found.folder / table).read_text()


def test_a_killed_population_resumes_and_may_grow(
    found: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "LEAST_WORK", 0.0)
    monkeypatch.setattr(population, "STRETCH", 0.0)
    advance, calls = MemberRuns.advance, []

    def dying(self: MemberRuns, request: StretchRequest) -> Stretch:
        calls.append(request.member.number)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return advance(self, request)

    monkeypatch.setattr(MemberRuns, "advance", dying)
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path, population=2, **SHORT)
    calls += [0] * 4
    grown = learn(tmp_path, population=3, resume=True, **SHORT)
    assert of_trials(grown) == of_trials(found)
    before = len(calls)
    again = learn(tmp_path, population=3, resume=True, **SHORT)
    assert of_trials(again) == of_trials(found)
    assert len(calls) == before


def test_a_worker_that_dies_costs_a_stretch(
    found: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, advance = tmp_path / "died", MemberRuns.advance

    def dying(self: MemberRuns, request: StretchRequest) -> Stretch:
        if not mark.exists():
            mark.touch()
            local.os._exit(3)
        return advance(self, request)

    monkeypatch.setattr(MemberRuns, "advance", dying)
    same = learn(tmp_path / "search", population=3, n_jobs=2, **SHORT)
    assert mark.exists()
    assert of_trials(same) == of_trials(found)


def test_schedules_are_taken_in_turn() -> None:
    setup = LearnedSetup(population=3, schedules=[[0.1, 1.0], [0.2, 2.0]])
    costs = [each.cost_weight for each in members_of(setup, 7)]
    assert costs == [(0.1, 1.0), (0.2, 2.0), (0.1, 1.0)]
    assert [each.seed for each in members_of(setup, 7)] == [7, 8, 9]


def test_other_members_draw_weights_unless_they_were_loaded() -> None:
    config = parse_search(tables(population=2))
    data = rows()
    context = SearchContext(mlp(), None, data)  # type: ignore[arg-type]
    drawn = MemberRuns(context, config).redraw_weights(3)
    assert drawn is not None
    assert not drawn[0].weight.equal(context.model[0].weight)  # type: ignore[index]
    loaded = dataclasses.replace(context, is_trained=True)
    assert MemberRuns(loaded, config).redraw_weights(3) is None


def test_a_member_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = MemberRuns.advance

    def failing(self: MemberRuns, request: StretchRequest) -> Stretch:
        found = advance(self, request)
        is_first = request.member.number == 1
        return (
            dataclasses.replace(found, error="no finite number", trials=()) if is_first else found
        )

    monkeypatch.setattr(MemberRuns, "advance", failing)
    result = learn(tmp_path / "one", population=2, **SHORT)
    assert {trial.config["member"] for trial in result.trials} == {2}
    monkeypatch.setattr(
        MemberRuns,
        "advance",
        lambda self, _: Stretch(members.pack_state(tmp_path), (), 0, False, "bad"),
    )
    with pytest.raises(TrainingError, match="every member failed; the first: bad"):
        learn(tmp_path / "two", population=2, **SHORT)


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ({"n_jobs": 2}, "engine 'local' is for the runs of a population"),
        ({"schedules": [[0.1, 1.0]]}, "schedules are for the runs of a population"),
        ({"population": 2, "schedules": [[1.0, 0.1]]}, "schedules: grows nowhere"),
        ({"population": 0}, "population"),
        ({"population": 2, "address": "auto"}, "address is for engine = 'ray'"),
    ],
)
def test_what_cannot_be_a_population_is_refused(setup: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_search(tables(**setup))


@pytest.mark.parametrize("content", [b"", b"no archive", b"\0" * 700])
def test_a_damaged_state_is_named(content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    learn(folder, population=2, **SHORT)
    state = folder / "learning" / "member_2_seed_1.tar"
    state.write_bytes(content)
    with pytest.raises(ChopError, match="member_2_seed_1.tar: cannot be resumed from"):
        learn(folder, population=2, resume=True, **SHORT)


def test_another_seed_is_refused(found: SearchResult) -> None:
    with pytest.raises(SearchError, match="was begun with another seed"):
        search(
            mlp(), None, rows(), tables(population=3, **SHORT), save_dir=found.folder,
            resume=True, seed=5,
        )  # fmt: skip


def test_the_spread_begins_where_every_member_has_a_point() -> None:
    one = [(-0.5, 10.0), (-0.7, 20.0), (-0.6, 30.0)]
    two = [(-0.4, 5.0), (-0.6, 15.0), (-0.9, 40.0)]
    found = spread_of([one, two])
    assert found is not None
    assert found.all == [(10.0, -0.5), (15.0, -0.6), (20.0, -0.7), (40.0, -0.9)]
    assert found.best == found.all
    assert found.worst == [(10.0, -0.4), (15.0, -0.5), (20.0, -0.6), (40.0, -0.7)]
    middle = [(x, pytest.approx(y)) for x, y in found.median]
    assert middle == [
        (10.0, -0.45), (15.0, -0.55), (20.0, -0.65), (40.0, -0.8),
    ]  # fmt: skip
    assert spread_of([one]) is None
    assert spread_of([one, []]) is None
