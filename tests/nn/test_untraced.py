"""`chop.quantize`: a quantised model in one call, with a graph and without one."""

import copy
import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import chop
from chop.errors import ConfigError, GraphError
from chop.verbs.quantize.module import Quantized

PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::convolution")


class Branching(nn.Module):
    """Decides by a value, which no tracer can follow, and multiplies in many ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.own = nn.Parameter(torch.randn(8, 8) / 3)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) if x.sum() > 0 else self.other(x)
        x = F.linear(x, self.own) + x @ self.own
        x = torch.matmul(x, x.transpose(1, 2)) @ x / 8
        x = x + torch.einsum("...i,ij->...j", x, self.own)
        x = F.scaled_dot_product_attention(x, x, x)
        attended, _ = self.attention(x, x, x)
        result: Tensor = self.last(attended.mean(1))
        return result


class OffGrid(TorchDispatchMode):
    """Notes the products of which an operand is not a multiple of a step."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.step, self.products, self.found = step, 0, set[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func._schema.name in PRODUCTS:
            self.products += 1
            for x in args:
                if isinstance(x, Tensor) and bool((x / self.step % 1 != 0).any()):
                    self.found.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def model() -> Branching:
    torch.manual_seed(0)
    return Branching()


ROWS = torch.linspace(-2, 2.5, 4 * 5 * 8).reshape(4, 5, 8)


def test_every_product_is_rounded_and_trained(model: Branching) -> None:
    before = copy.deepcopy(model.state_dict())
    config = {"name": "integer"} | {
        f"{role}_{k}": v
        for role in ("data_in", "weight", "scores")
        for k, v in {"width": 16, "frac_width": 8}.items()
    }
    q = chop.quantize(model, rules={"default": {"config": config}}, trace=False)
    with torch.no_grad(), OffGrid(2.0**-8) as seen:
        rounded = q(ROWS)
    assert seen.products >= 9
    assert not seen.found
    with torch.no_grad(), OffGrid(2.0**-8) as seen:
        torch.testing.assert_close(rounded, model(ROWS), atol=0.1, rtol=0)
    assert seen.found  # so that this can fail
    q(ROWS).square().sum().backward()
    q(-ROWS).square().sum().backward()  # the other branch
    assert all(value.grad is not None and value.grad.any() for value in q.parameters())
    assert list(q.state_dict()) == list(before)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert all(value.grad is None for value in model.parameters())


def test_calibration_without_a_graph(model: Branching) -> None:
    plain = chop.quantize(model, width=8, trace=False)
    fitted = chop.quantize(model, width=8, trace=False, calibrate=[(ROWS, None), (-ROWS, None)])
    with torch.no_grad():
        errors = [float((each(ROWS) - model(ROWS)).abs().max()) for each in (plain, fitted)]
        assert errors[1] < errors[0]
        assert torch.equal(copy.deepcopy(fitted)(ROWS), fitted(ROWS))
    assert not any(layer.quant.is_open for layer in fitted.untraced.layers.values())


def test_what_no_batch_has_reached_is_said(
    model: Branching, caplog: pytest.LogCaptureFixture
) -> None:
    rows = ROWS if ROWS.sum() > 0 else -ROWS
    chop.quantize(model, width=8, trace=False, calibrate=[(rows, None)])
    unseen = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    words = "no batch of calibrate has come there; its scales are the usual ones"
    assert unseen == [f"layer 'other': {words}"]
    caplog.clear()
    chop.quantize(model, width=8, trace=False, calibrate=[(ROWS, None), (-ROWS, None)])
    assert not [each for each in caplog.records if each.levelno == logging.WARNING]


def test_it_says_what_it_cannot(model: Branching, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "chop"):
        q = chop.quantize(model, width=8, trace=False, verbose=True)
    assert "saving as a graph" in q.untraced.cannot
    assert caplog.messages[-1] == str(q.untraced)
    q(ROWS)
    assert q.untraced.functions == ["einsum", "linear", "matmul", "scaled_dot_product_attention"]


def test_a_failed_call_leaves_no_rounding_behind(model: Branching) -> None:
    q = chop.quantize(model, width=4, trace=False)
    with pytest.raises(RuntimeError):
        q(torch.randn(4, 5, 7))
    x = torch.randn(3, 3)
    assert torch.equal(x @ x, torch.mm(x, x))
    assert not q.untraced.rounding.running
    with torch.no_grad():
        assert torch.equal(q(ROWS), chop.quantize(model, width=4, trace=False)(ROWS))


def test_with_a_graph_it_is_the_pass(model: Branching) -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    rows = ROWS.flatten(0, 1)
    q = chop.quantize(net, width=8, calibrate=[(rows, None)], products_only=True)
    assert isinstance(q, Quantized)
    assert set(q.info["quantized"].values()) == {"LinearInteger"}
    with torch.no_grad():
        untraced = chop.quantize(net, width=8, calibrate=[rows], trace=False)
        assert torch.equal(q(rows), untraced(rows))
    shared = chop.quantize(net, rows, width=8, share=True)
    assert {*shared.model.parameters()} == {*net.parameters()}
    assert {*q.model.parameters()}.isdisjoint(net.parameters())


def test_rules_by_name_without_a_graph(model: Branching) -> None:
    rule = {"config": {"name": "integer", "data_in_width": 8, "weight_width": 8}}
    q = chop.quantize(model, rules={"by": "name", "last": rule}, trace=False)
    assert [*q.untraced.layers] == ["last"]
    q = chop.quantize(model, rules={"by": "regex_name", "(fir|la)st": rule}, trace=False)
    assert [*q.untraced.layers] == ["first", "last"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either width=8 or rules"),
        ({"width": 8, "rules": {}}, "either width=8 or rules"),
        ({"width": 8}, "give an example of the inputs"),
        ({"width": 8, "calibrate": [3]}, "a batch is a dictionary"),
        ({"rules": {"by": "name", "lst": {"config": {"name": None}}}, "trace": False}, "'last'"),
    ],
)
def test_mistakes(model: Branching, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chop.quantize(model, **given)


def test_what_cannot_be_traced_says_how_else(model: Branching) -> None:
    with pytest.raises(GraphError, match=r"trace=False") as caught:
        chop.quantize(model, ROWS, width=8)
    assert "test_untraced.py, line" in str(caught.value)
