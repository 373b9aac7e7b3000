"""The tree of choices: exact sizes, every configuration once, stable keys."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.search.spaces.space import Choice, every, flat, key_of, size, values, walk


@st.composite
def trees(draw: Any, depth: int = 2, path: str = "") -> tuple[Choice, ...]:
    found = []
    for place in range(draw(st.integers(1, 2))):
        options = tuple(range(draw(st.integers(1, 3))))
        name = f"{path}{place}"
        then = tuple(
            draw(trees(depth - 1, f"{name}.{o}.")) if depth and draw(st.booleans()) else ()
            for o in options
        )
        found.append(Choice(name, options, then))
    return tuple(found)


@settings(deadline=None, max_examples=50)
@given(trees())
def test_every_configuration_comes_once_and_size_counts_them(tree: tuple[Choice, ...]) -> None:
    picked = list(every(tree))
    assert len(picked) == size(tree) == len({tuple(sorted(each.items())) for each in picked})


@settings(deadline=None, max_examples=50)
@given(trees(), st.randoms())
def test_a_walk_is_one_of_them(tree: tuple[Choice, ...], random: Any) -> None:
    walked = walk(tree, lambda choice: random.randrange(len(choice.options)))
    assert walked in list(every(tree))
    assert values(tree, walked).keys() == walked.keys() <= {choice.name for choice in flat(tree)}


def test_an_option_brings_its_own_choices() -> None:
    width = Choice("width", (2, 4, 8))
    tree = (Choice("name", (None, "integer"), ((), (width,))), Choice("other", (0, 1)))
    assert size(tree) == (1 + 3) * 2
    assert {"name": 0, "other": 0} in list(every(tree))
    assert walk(tree, lambda choice: 1) == {"name": 1, "width": 1, "other": 1}


@pytest.mark.parametrize("options", [(), (4, 4), ([1, 2], [1, 2])])
def test_nothing_and_twice_the_same_are_no_choice(options: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match="width"):
        Choice("width", options)


def test_true_and_one_are_different_options() -> None:
    assert len(Choice("bypass", (True, 1)).options) == 2


def test_keys_do_not_depend_on_the_order_of_tables() -> None:
    assert key_of({"a": 1, "b": {"c": None}}) == key_of({"b": {"c": None}, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 1.0}) != key_of({"a": "1"})
