"""Hypervolumes, by hand and against a count of cells."""

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.search.front.hypervolume import front_of, hypervolume, hypervolume_history, worst_of


def test_by_hand() -> None:
    assert hypervolume([(1.0, 3.0), (2.0, 1.0)], (4.0, 4.0)) == 3 * 1 + 2 * 2
    assert hypervolume([(2.0,), (1.0,)], (4.0,)) == 3
    assert hypervolume([(5.0, 5.0)], (4.0, 4.0)) == 0
    assert front_of([(1, 3), (2, 1), (2, 3), (1, 3)]) == [(1, 3), (2, 1)]


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_it_is_the_number_of_cells_that_are_dominated(dimensions: int, data: st.DataObject) -> None:
    cell = st.tuples(*[st.integers(0, 4)] * dimensions)
    points = [tuple(map(float, p)) for p in data.draw(st.lists(cell, max_size=6))]
    covered = sum(
        any(all(x <= c for x, c in zip(p, corner, strict=True)) for p in points)
        for corner in product(range(5), repeat=dimensions)
    )
    assert hypervolume(points, (5.0,) * dimensions) == covered


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_history_is_the_volume_of_each_beginning(dimensions: int, data: st.DataObject) -> None:
    cell = st.tuples(*[st.integers(0, 6)] * dimensions)  # the last is as bad as the reference
    points = [tuple(map(float, p)) for p in data.draw(st.lists(cell, max_size=8))]
    reference = (5.0,) * dimensions
    expected = [hypervolume(points[: end + 1], reference) for end in range(len(points))]
    assert hypervolume_history(points, reference) == expected


@pytest.mark.parametrize("dimensions", [2, 3])
def test_the_history_of_many_points(dimensions: int) -> None:
    rng = random.Random(0)
    points = [tuple(float(rng.randrange(20)) for _ in range(dimensions)) for _ in range(250)]
    reference = (20.0,) * dimensions
    history = hypervolume_history(points, reference)
    assert len(history) == len(points)
    for end in (1, 99, 100, 101, 180, 250):
        assert history[end - 1] == hypervolume(points[:end], reference)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_front_is_what_no_other_point_dominates(dimensions: int, data: st.DataObject) -> None:
    cell = st.tuples(*[st.integers(0, 4)] * dimensions)
    points = data.draw(st.lists(cell, max_size=12))

    def is_beaten(point: tuple[int, ...]) -> bool:
        return any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True))
            for other in points
        )

    assert front_of(points) == sorted({point for point in points if not is_beaten(point)})


def test_the_history_never_falls_and_ends_at_the_whole() -> None:
    points = [(3.0, 3.0), (4.0, 4.0), (1.0, 4.0), (2.0, 2.0)]
    history = hypervolume_history(points, (5.0, 5.0))
    assert history == sorted(history)
    assert history[-1] == hypervolume(points, (5.0, 5.0))
    assert all(w > 4 for w in worst_of(points))
