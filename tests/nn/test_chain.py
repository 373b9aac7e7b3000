"""Chains of linear layers trained as one node: the numbers of their layers, bit for bit."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.chain import HeldChain, SpreadFixedPoint, held_chain, linear_chain
from chop.nn.learned import LearnedWidths
from chop.nn.learned_nodes import LearnedChain
from chop.numerics import Integer
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    freeze_transform_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)


def mlp(bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 9, bias), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(inplace=True),
        nn.Linear(7, 3),
    )  # fmt: skip


def learning(model: nn.Module, **settings: Any) -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(MaseGraph(model))
    x = {"dummy_in": {"x": torch.randn(4, 6)}}
    graph, _ = add_common_metadata_analysis_pass(graph, x)
    config = {"name": "integer_trained", "data_in_frac_width": 2.0, **settings}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    return graph


def rows() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(50, 6, generator=draw), torch.randint(3, (50,), generator=draw)


def calls_of(monkeypatch: pytest.MonkeyPatch, node: type[torch.autograd.Function]) -> list[int]:
    """Note each call of a node."""
    calls, own = [], node.forward

    def forward(*args: Any) -> Any:
        calls.append(1)
        return own(*args)

    monkeypatch.setattr(node, "forward", staticmethod(forward))
    return calls


def train(model: nn.Module, cost: Any, steps: int = 12) -> dict[str, Tensor]:
    x, y = rows()
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y) + cost()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {**model.state_dict(), "loss": loss.detach()}


@pytest.mark.parametrize("settings", [{}, {"weight_granularity": "channel"}, {"bias": False}])
def test_widths_learn_as_layer_by_layer(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bias = settings.pop("bias", True)
    graph = learning(mlp(bias), **settings)
    found = []
    calls = calls_of(monkeypatch, LearnedChain)
    for together in (True, False):
        if not together:
            monkeypatch.setattr("chop.nn.learned.can_take", lambda links, x: False)
        model = copy.deepcopy(graph).model
        widths = LearnedWidths(model, refresh=3)
        found.append(train(model, lambda: 1e-5 * widths.cost))  # noqa: B023  # used at once
        found[-1]["cost"] = widths.value
        widths.remove()
    assert len(calls) == 11  # the first step finds out what meets what
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("bias", [True, False])
def test_weights_train_within_formats_as_layer_by_layer(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = learning(mlp(bias))
    widths = LearnedWidths(graph.model)
    widths.calibrate([rows()[0][:20]])  # others saturate
    widths.remove()
    graph, _ = freeze_transform_pass(graph)
    other = copy.deepcopy(graph).model
    calls = calls_of(monkeypatch, HeldChain)
    with held_chain(graph.model) as is_chain:
        found = train(graph.model, lambda: 0.0)
    assert is_chain
    assert len(calls) == 12
    wanted = train(other, lambda: 0.0)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert len(calls) == 12  # afterwards layers compute again


def test_numbers_are_rounded_exactly_next_to_half_way() -> None:
    fmt = Integer(width=6, frac_width=2, rounding="half_up")
    below = torch.nextafter(torch.tensor(0.125), torch.tensor(0.0))
    near = torch.arange(-9, 9, 0.125)
    x = torch.cat([near, torch.nextafter(near, near - 1), torch.nextafter(near, near + 1),
                   below[None], -below[None]])  # fmt: skip
    assert torch.equal(SpreadFixedPoint.of(fmt, x.shape, x).round_exactly(x), fmt(x))


def test_what_watches_a_layer_is_called() -> None:
    model = learning(mlp()).model
    widths, seen = LearnedWidths(model), []
    train(model, lambda: widths.cost * 0, 2)
    layer = next(each for each in model.modules() if isinstance(each, nn.Linear))
    watch = layer.register_forward_hook(lambda *call: seen.append(call))
    train(model, lambda: widths.cost * 0, 2)
    assert len(seen) == 2
    watch.remove()
    model(rows()[0].requires_grad_()).sum().backward()
    assert len(seen) == 2


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


def test_other_networks_are_no_chains() -> None:
    assert linear_chain(learning(mlp()).model) is not None
    assert linear_chain(learning(Twice()).model) is None
    ends = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
    assert linear_chain(learning(ends).model) is None
    assert linear_chain(learning(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))).model) is None  # fmt: skip  # noqa: E501
    assert linear_chain(mlp()) is None
