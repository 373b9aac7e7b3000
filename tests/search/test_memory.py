"""What a search keeps of its results."""

from chop.search.memory import LARGE, Remembered


def test_small_values_are_kept_at_once() -> None:
    kept: Remembered[str] = Remembered(10 * LARGE)
    kept.put("a", "value", LARGE - 1)
    assert kept.get("a") == "value"
    assert kept.used == LARGE - 1


def test_large_values_are_kept_when_they_come_again() -> None:
    kept: Remembered[str] = Remembered(10 * LARGE)
    kept.put("a", "value", LARGE)
    assert kept.get("a") is None
    kept.put("a", "value", LARGE)
    assert kept.get("a") == "value"


def test_what_was_unused_for_longest_makes_room() -> None:
    kept: Remembered[str] = Remembered(30)
    for key in "abc":
        kept.put(key, key, 10)
    kept.get("a")
    kept.put("d", "d", 10)
    assert [kept.get(key) for key in "abcd"] == ["a", None, "c", "d"]
    assert kept.used == 30


def test_a_value_beyond_the_budget_is_not_kept() -> None:
    kept: Remembered[str] = Remembered(30)
    kept.put("a", "a", 31)
    assert len(kept) == kept.used == 0


def test_forgetting_forgets_what_was_met_as_well() -> None:
    kept: Remembered[str] = Remembered(10 * LARGE)
    kept.put("a", "value", LARGE)
    kept.clear()
    kept.put("a", "value", LARGE)
    assert kept.get("a") is None
