"""Reductions, extremes, einsum and transposed convolutions in integers equal the simulation."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lowering_nets import forward, integer, quantised
from torch import Tensor, nn

from chop.export import export
from chop.lowering import Engine, LoweringError, analyse, lower

SHAPE = (3, 4, 2)
FIXED = torch.tensor([0.5, -1.25, 2.0, 0.75]).repeat(6).reshape(4, 6)
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda x, y: x.sum(2),
    "sum of two dims": lambda x, y: torch.sum(x, (1, -1), keepdim=True),
    "mean by a shift": lambda x, y: x.mean(dim=2),
    "mean by a table": lambda x, y: x.mean((1, 3)),
    "amax": lambda x, y: x.amax((1, 2)),
    "amin": lambda x, y: torch.amin(x, -1, keepdim=True),
    "maximum": torch.maximum,
    "minimum": lambda x, y: torch.minimum(x, y[:, :1]),
    "minimum with constants": lambda x, y: torch.minimum(x, torch.tensor([0.25, -1.5])),
    "einsum with constants": lambda x, y: torch.einsum("bcij,ik->bkcj", x, FIXED),
    "einsum, constants first": lambda x, y: torch.einsum("ik,bcij->bjkc", FIXED, x),
    "einsum, shared with constants": lambda x, y: torch.einsum("bcij,ij->bci", x, FIXED[:, :2]),
    "einsum of two": lambda x, y: torch.einsum("bcij,bckj->bcki", x, y),
    "einsum, outer": lambda x, y: torch.einsum("bcij,bdkj->bikcd", x, y),
}


class Two(nn.Module):
    """Two values, and a function of them."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.one(x), self.other(x))


def check(graph: Any, x: Tensor) -> Any:
    program = lower(graph)
    integers, fast = (Engine(program, how)(x)[0] for how in ("int64", "fast"))
    assert torch.equal(integers, fast)
    assert analyse(program).exact("float32")
    assert torch.equal(forward(graph, x), integers)
    assert torch.equal(forward(graph, x, 1), integers)
    return program


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, tmp_path: Path) -> None:
    for seed in range(3):
        dice = random.Random(seed)
        torch.manual_seed(seed)
        x = torch.randn(7, *SHAPE) * 2
        width = dice.randint(3, 7)
        modes = {"rounding": dice.choice(["half_even", "half_up"])}
        rule = integer(width, dice.randint(0, 4), 5, dice.randint(1, 4), **modes)
        kinds = ("linear", "einsum", *(name.split()[:1] if seed or "table" in name else ()))
        out = integer(8, 3, out=(6, 2)) if "table" in name else rule
        program = check(quantised(Two(FUNCTIONS[name]), x, dict.fromkeys(kinds, out)), x)
    if name in ("minimum", "einsum of two"):
        assert export(program, "c", tmp_path / "c", rows=30).verified_rows == 30


@pytest.mark.parametrize("seed", range(8))
def test_transposed_convolutions(seed: int) -> None:
    dice = random.Random(seed)
    torch.manual_seed(seed)
    dims, groups = dice.choice([1, 2, 2, 3]), dice.choice([1, 2])
    stride = dice.randint(1, 3)
    kind: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    layer = kind(
        2 * groups, 3 * groups, dice.randint(1, 3), stride=stride, padding=dice.randint(0, 1),
        output_padding=dice.randint(0, stride - 1), dilation=dice.randint(stride, 3),
        groups=groups, bias=dice.random() < 0.5,
    )  # fmt: skip
    x = torch.randn(3, 2 * groups, *[4, 3, 2][:dims])
    name = f"conv_transpose{dims}d"
    check(quantised(nn.Sequential(layer), x, {name: integer(6, 3, 5, 3)}), x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, y: x.mean(), "mean has no rule in integers over the rows of the batch"),
        (lambda x, y: x.amax((0, 1)), "amax has no rule in integers over the rows"),
        (lambda x, y: torch.einsum("bcij,acij->ba", x, y), "einsum has no rule in integers for"),
        (lambda x, y: torch.einsum("bcij->bc", x), "einsum has no rule in integers but for two"),
    ],
)
def test_refusals(function: Any, message: str) -> None:
    graph = quantised(Two(function), torch.randn(2, *SHAPE), {"linear": integer()})
    with pytest.raises(LoweringError, match=message):
        lower(graph)
