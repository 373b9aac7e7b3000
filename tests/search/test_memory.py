"""What a search keeps of its results."""

from typing import Any

from search_cases import Searcher

from chop.search.spaces.reuse import Remembered
from chop.search.spaces.variants import ACTIVATION_BYTES, RUNS_KEPT


def remember(kept: Remembered[str], key: str, size: int) -> None:
    """Let a value come as often as it takes."""
    kept.put(key, key, size)
    kept.put(key, key, size)


def test_a_value_is_kept_when_it_comes_again() -> None:
    kept: Remembered[str] = Remembered(30)
    kept.put("a", "value", 10)
    assert kept.get("a") is None
    assert kept.used == 0
    kept.put("a", "value", 10)
    assert kept.get("a") == "value"
    assert kept.used == 10


def test_what_was_unused_for_longest_makes_room() -> None:
    kept: Remembered[str] = Remembered(30)
    for key in "abc":
        remember(kept, key, 10)
    kept.get("a")
    remember(kept, "d", 10)
    assert [kept.get(key) for key in "abcd"] == ["a", None, "c", "d"]
    assert kept.used == 30


def test_a_value_beyond_the_budget_is_not_kept() -> None:
    kept: Remembered[str] = Remembered(30)
    remember(kept, "a", 31)
    assert len(kept) == kept.used == 0


def test_forgetting_forgets_what_was_met_as_well() -> None:
    kept: Remembered[str] = Remembered(30)
    kept.put("a", "value", 10)
    kept.clear()
    kept.put("a", "value", 10)
    assert kept.get("a") is None


def test_a_small_network_keeps_the_results_of_some_runs_and_no_more(search_with: Searcher) -> None:
    search = search_with(sampler="brute")
    space: Any = search.space
    kept = space.variants.activations
    rows = 2 * 64 * (16 + 16 + 16 + 5 + 5) * 4  # 128 rows in two batches: x, and four layers
    assert kept.budget == RUNS_KEPT * rows < ACTIVATION_BYTES
    assert 0 < kept.used <= kept.budget
