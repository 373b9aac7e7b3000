"""What a search says while it is under way."""

from search_cases import Searcher

from chop.search.results.files import Lines


def test_the_ends_of_the_front_are_as_measured_and_not_as_scaled(search_with: Searcher) -> None:
    store = search_with(sampler="brute").store
    trials = [each.user_attrs for each in store.counted()]
    bits = min(each["hardware_metrics"]["average_bitwidth"] for each in trials)
    right = max(each["software_metrics"]["accuracy"] for each in trials)
    shown = Lines(18, ["accuracy", "average_bitwidth"]).best(store)
    assert shown.endswith(f"best accuracy {right:.4g}, average_bitwidth {bits:.4g}")
