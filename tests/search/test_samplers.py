"""Samplers: seeded, distinct, and never stuck."""

from typing import Any

import pytest
from search_cases import Searcher, StoreMaker, space_of, tables

from chop.errors import ConfigError
from chop.search.config import parse_search
from chop.search.proposals import check_size
from chop.search.samplers import SAMPLERS, LearningSampler, Problem, Proposal, params_of
from chop.search.spaces.space import Choice, SearchContext, key_of, size
from chop.search.strategy import Search
from chop.search.study.trial import Outcome

WIDTH = Choice("width", (2, 4, 8))
TREE = (Choice("name", (None, "integer"), ((), (WIDTH,))), Choice("other", tuple(range(5))))
PROBLEM = Problem(TREE, ("maximize", "minimize"))


def sampler_names() -> list[Any]:
    pytest_gp = pytest.param("gp", marks=pytest.mark.skipif(not _scipy(), reason="no scipy"))
    return [pytest_gp if name == "gp" else name for name in sorted(SAMPLERS)]


def _scipy() -> bool:
    from importlib.util import find_spec

    return find_spec("scipy") is not None


def proposals(name: str, seed: int, count: int = 12) -> list[dict[str, int]]:
    sampler = SAMPLERS[name](seed, PROBLEM)
    found = []
    for _ in range(count):
        proposed = sampler.propose()
        assert proposed is not None
        assert proposed.params == params_of(TREE, proposed.picked)
        found.append(proposed.picked)
        values = [float(len(found) % 5), float(proposed.picked["other"])]
        sampler.learn(proposed, values, {"bound": values[0] - 3})
    return found


@pytest.mark.parametrize("name", sampler_names())
def test_a_seed_repeats_a_search(name: str) -> None:
    assert proposals(name, 1) == proposals(name, 1)


@pytest.mark.parametrize("name", ["random", "tpe", "nsgaii", "nsgaiii", "qmc"])
def test_another_seed_is_another_search(name: str) -> None:
    assert proposals(name, 1) != proposals(name, 2)


def test_qmc_covers_a_space_evenly() -> None:
    sampler = SAMPLERS["qmc"](0, Problem((Choice("a", (0, 1)), Choice("b", (0, 1))), ("minimize",)))
    cells = [tuple(sampler.propose().picked.values()) for _ in range(64)]  # type: ignore[union-attr]
    assert {cells.count(cell) for cell in set(cells)} == {16}


@pytest.mark.parametrize("name", ["brute", "grid"])
def test_enumeration_ends_after_every_configuration_came_once(name: str) -> None:
    sampler = SAMPLERS[name](0, PROBLEM)
    found = []
    while (proposed := sampler.propose()) is not None:
        found.append(key_of(proposed.picked))
    assert len(found) == len(set(found)) == size(TREE)


@pytest.mark.skipif(_scipy(), reason="scipy is installed")
def test_gp_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="pip install scipy"):
        SAMPLERS["gp"](0, PROBLEM)


def test_brute_force_refuses_absurd_sizes_unless_forced() -> None:
    with pytest.raises(ConfigError, match="100,001 configurations; set .*force = true"):
        check_size(100_001, "brute", force=False)
    check_size(100_001, "brute", force=True)
    check_size(10**30, "tpe", force=False)


@pytest.mark.parametrize("name", ["random", "tpe", "nsgaii", "nsgaiii", "qmc"])
def test_no_configuration_is_evaluated_twice_and_the_space_can_be_exhausted(
    name: str, search_with: Searcher
) -> None:
    found = search_with(sampler=name, n_trials=50)
    keys = [trial.user_attrs["key"] for trial in found.store.frozen_trials()]
    assert len(keys) == len(set(keys)) == found.size == 18


@pytest.mark.parametrize("name", ["tpe", "nsgaii"])
def test_a_sampler_that_repeats_itself_is_told_the_known_result(
    name: str, search_with: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[float] | None] = []
    learn = LearningSampler.learn

    def noted(self: LearningSampler, proposal: Proposal, values: Any, violations: Any) -> None:
        told.append(values)
        learn(self, proposal, values, violations)

    monkeypatch.setattr(LearningSampler, "learn", noted)
    found = search_with(sampler=name, n_trials=50)
    measured = [trial.values for trial in found.store.frozen_trials()]
    assert len(told) > found.progress.repeats > 0
    assert [values for values in told if values not in measured] == []


@pytest.mark.parametrize("name", ["random", "tpe", "qmc", "grid"])
def test_n_trials_counts_distinct_configurations(name: str, search_with: Searcher) -> None:
    found = search_with(sampler=name, n_trials=11)
    assert len({trial.user_attrs["key"] for trial in found.store.frozen_trials()}) == 11


def test_brute_force_takes_the_whole_space_whatever_n_trials_says(search_with: Searcher) -> None:
    found = search_with(sampler="brute", n_trials=3)
    assert len(found.store.frozen_trials()) == 18
    assert found.progress.repeats == 0


def test_a_stored_configuration_is_not_evaluated_again(
    search_with: Searcher, open_at: StoreMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    search_with(sampler="random", n_trials=7, seed=3)
    measured: list[str] = []
    from chop.search.spaces.measure import Measure

    before = Measure.__call__

    def counted(self: Measure, config: dict[str, Any]) -> Outcome:
        measured.append(key_of(config))
        return before(self, config)

    monkeypatch.setattr(Measure, "__call__", counted)
    found = search_with(sampler="tpe", n_trials=12, seed=4, store=open_at())
    assert len(measured) == len(set(measured)) == 5
    assert len(found.store.frozen_trials()) == 12


@pytest.mark.parametrize("name", ["random", "tpe", "nsgaii", "qmc"])
def test_the_seed_decides_the_whole_search(
    name: str, search_with: Searcher, open_at: StoreMaker
) -> None:
    first, second = (
        search_with(sampler=name, n_trials=10, seed=5, store=open_at(f"{n}.log")) for n in (1, 2)
    )
    numbers = [
        [trial.user_attrs["key"] for trial in each.store.frozen_trials()]
        for each in (first, second)
    ]
    assert numbers[0] == numbers[1]


def test_an_interrupted_random_search_sees_what_an_uninterrupted_one_does(
    search_with: Searcher, open_at: StoreMaker
) -> None:
    whole = search_with(sampler="random", n_trials=12, seed=6, store=open_at("whole.log"))
    search_with(sampler="random", n_trials=5, seed=6, store=open_at("parts.log"))
    parts = search_with(sampler="random", n_trials=12, seed=6, store=open_at("parts.log"))
    assert [t.values for t in whole.store.frozen_trials()] == [
        t.values for t in parts.store.frozen_trials()
    ]


@pytest.mark.parametrize("name", ["random", "qmc", "tpe", "nsgaii", "grid"])
def test_processes_with_one_seed_do_not_draw_the_same_for_long(
    name: str, context: SearchContext, open_at: StoreMaker
) -> None:
    """Each round both draw before either claims, so that one is always too late if they agree."""
    stated = tables(sampler=name, n_trials=12)
    widths = list(range(2, 22))  # so many that they agree by chance as good as never
    linear = stated["search_space"]["seed"]["linear"]["config"]
    linear |= {"data_in_width": widths, "weight_width": widths, "bias_width": widths}
    config = parse_search(stated)
    one, other = (Search(space_of(context, config), config, open_at(), seed=7) for _ in range(2))
    for _ in range(6):
        batches = [(each, each.proposals.batch(1)) for each in (one, other)]
        for each, batch in batches:
            with each.trials:
                each._send(batch)
                if not each.trials.is_idle:
                    each._tell(each.trials.finished(1.0))
    trials = one.store.storage.get_all_trials(one.store.study_id)
    void = [trial for trial in trials if "void" in trial.user_attrs]
    assert len(trials) == 12
    assert 1 <= len(void) <= 3, "half of all claims, if they go on drawing the same"


@pytest.mark.parametrize("name", ["brute", "grid"])
@pytest.mark.parametrize("losses", [[0], [0, 1, 2], [3, 17], [17]], ids=str)
def test_enumeration_is_complete_whatever_was_lost(name: str, losses: list[int]) -> None:
    sampler = SAMPLERS[name](0, PROBLEM)
    found = []
    while (proposed := sampler.propose()) is not None:
        if len(found) in losses:
            sampler.part_ways(str(len(found)))
        found.append(key_of(proposed.picked))
    assert len(found) == len(set(found)) == size(TREE)
