"""Conditions on sizes: a closed language, never evaluated as Python."""

import pytest

from chop.ir.graph.conditions import holds, parse_condition, sizes_in

SHAPES = {"x": (4, 7), "y": (2, 7)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x[0] % 2 == 0", True),
        ("(x[0] * x[1]) // y[0] == 14", True),
        ("min(512, x[1]) == x[1] or y[0] == 3", True),
        ("not x[0] < 5", False),
        ("2 <= y[0] <= max(1, x[0] - 3)", False),
        ("-x[0] + 4 == 0 and x[1] != 6", True),
    ],
)
def test_a_condition_is_true_or_not(text: str, value: bool) -> None:
    assert holds(text, SHAPES) is value


def test_the_sizes_that_it_speaks_of() -> None:
    assert sizes_in("x[0] == min(y[1], x[1])") == {("x", 0), ("y", 1), ("x", 1)}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "x", "x[0", "x[y[0]]", "x[0] ** 9", "open('f')",
        "x.shape[0] == 1", "[1 for _ in x]", "min(x[0], key=y)", "'a' == 'a'",
        "x[0] if x[1] else 1", "1" * 3000, "lambda: 1", "x[-1] == 2", "True.real",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a condition on sizes"):
        parse_condition(text)
