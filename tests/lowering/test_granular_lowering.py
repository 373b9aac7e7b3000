"""Widths by channel or element in integer programs: data, weights, tables, moved inputs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lowering_nets import forward, quantised
from random_networks import granular_network
from torch import Tensor, nn

from chop.export import export
from chop.lowering import Engine, LoweringError, analyse, load_program, lower, save_program
from chop.lowering.program import Table

COUNT = int(os.environ.get("CHOP_RANDOM_NETWORKS", "12"))  # 2000 are checked before a release
STORED = 3


def test_random_networks(tmp_path: Path) -> None:
    exact = exported = 0
    for seed in range(COUNT):
        graph, x = granular_network(seed)
        try:
            program = lower(graph)
        except LoweringError:
            continue
        integers, fast = (Engine(program, how)(x)[0] for how in ("int64", "fast"))
        assert torch.equal(integers, fast), seed
        if analyse(program).exact("float32"):
            exact += 1
            assert torch.equal(forward(graph, x), integers), seed
            assert torch.equal(forward(graph, x[:2], 1), integers[:2]), seed
        if exported < STORED:
            again = load_program(save_program(program, tmp_path / f"{seed}"))
            assert torch.equal(Engine(again)(x)[0], integers), seed
            exported += export(program, "c", tmp_path / "c", inputs={"x": x}).verified_rows > 0
    assert exact > COUNT / 2
    assert exported == STORED


class Lambda(nn.Module):
    """What stands before and after a linear layer."""

    def __init__(self, before: Callable[[Tensor], Tensor], size: int) -> None:
        super().__init__()
        self.before, self.last = before, nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.before(x))
        return scores


def rule(data: dict[str, Any], **modes: str) -> dict[str, Any]:
    data = {f"data_in_{name}": each for name, each in (data | modes).items()}
    sizes = {"weight_width": 5, "weight_frac_width": 3, "bias_width": 5, "bias_frac_width": 3}
    return {"config": {"name": "integer", **data, **sizes}}


TWELVE = {
    "width": [0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 4, 5],
    "frac_width": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
    "signed": [1, 0, 1] * 4,
}
MOVED: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "flipped": lambda x: x.flip(1),
    "in another shape": lambda x: x.view(-1, 3, 4).permute(0, 2, 1).flatten(1),
    "a function of it": torch.tanh,
    "joined": lambda x: torch.cat([torch.relu(x[:, 6:]), torch.sigmoid(x[:, :3]), x[:, 3:6]], 1),
}


@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
@pytest.mark.parametrize("name", MOVED)
def test_an_input_that_is_moved_before_it_is_rounded(name: str, overflow: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 12) * 3
    inner = {"name": "integer", "data_in_width": 6, "data_in_frac_width": 3}
    rules: dict[str, Any] = {key: {"config": inner} for key in ("tanh", "relu", "sigmoid")}
    rules["linear"] = rule(TWELVE, overflow=overflow)
    graph = quantised(Lambda(MOVED[name], 12), x, rules)
    program = lower(graph)
    assert analyse(program).exact("float32")
    assert torch.equal(Engine(program)(x)[0], forward(graph, x))


def test_a_table_has_a_row_for_each_format() -> None:
    x = torch.randn(20, 12)
    rules = {"linear": rule(TWELVE), "tanh": {"config": {"name": "integer", "data_in_width": 6}}}
    program = lower(quantised(Lambda(torch.tanh, 12), x, rules))
    (table,) = (step for step in program.steps if isinstance(step, Table))
    assert len(table.table) == 12
    assert table.out.frac.tolist() == TWELVE["frac_width"]
    assert not table.table[table.rows[0]].any()


def twice(x: Tensor) -> Tensor:
    return x.unsqueeze(1).expand(-1, 2, -1).flatten(1)


def test_copies_of_an_element_with_two_formats_are_refused() -> None:
    x = torch.randn(4, 6)
    graph = quantised(Lambda(twice, 12), x, {"linear": rule(TWELVE)})
    message = "last rounds copies of one element to different widths: quantise what it reads"
    with pytest.raises(LoweringError, match=message):
        lower(graph)
    halves = {name: each[:6] * 2 for name, each in TWELVE.items()}
    graph = quantised(Lambda(twice, 12), x, {"linear": rule(halves)})
    assert torch.equal(Engine(lower(graph))(x)[0], forward(graph, x))


def test_formats_of_single_rows_are_refused() -> None:
    x = torch.randn(2, 12)
    data = {"width": [[3], [4]], "frac_width": 1}
    graph = quantised(Lambda(lambda x: x, 12), x, {"linear": rule(data)})
    with pytest.raises(
        LoweringError, match=r"last: an integer format .* tensor of shape \(1, 12\)"
    ):
        lower(graph)
    graph = quantised(Lambda(lambda x: x, 12), x, {"linear": rule({"width": [[3] * 12]})})
    assert torch.equal(Engine(lower(graph))(x)[0], forward(graph, x))


def test_scales_that_are_powers_of_two_are_fixed_point() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 12)
    config = {"name": "integer_scaled", "data_in_width": 6, "data_in_scale": 0.125}
    config |= {"weight_width": 5, "weight_scale": [[0.25], [0.125], [0.5]]}
    config |= {"bias_width": 6, "bias_scale": 0.25, "data_out_width": 6, "data_out_scale": 0.5}
    graph = quantised(Lambda(lambda x: x.flip(1), 12), x, {"linear": {"config": config}})
    program = lower(graph)
    assert analyse(program).exact("float32")
    assert torch.equal(Engine(program)(x)[0], forward(graph, x))
    for field, value in [("weight_scale", 0.1), ("data_in_zero_point", 1), ("bias_narrow", True)]:
        other = {"config": config | {field: value}}
        graph = quantised(Lambda(lambda x: x.flip(1), 12), x, {"linear": other})
        assert (Engine(lower(graph))(x)[0] - forward(graph, x)).abs().max() <= 0.5  # a code
