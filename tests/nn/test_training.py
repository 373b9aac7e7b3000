"""Quantisation-aware training works in every format."""

import pytest
import torch
from ops.examples import FORMAT_NAMES, config_of
from torch import Tensor, nn

from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import quantize_module
from chop.ops.op import op_of_module


def network(format_name: str) -> nn.Sequential:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(8, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Linear(16, 3),
    )
    for name, module in model.named_children():
        op = op_of_module(module)
        assert op is not None
        quant = parse_quant_config(op, config_of(format_name), "test")
        setattr(model, name, quantize_module(module, op, quant))
    return model


def task() -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    x = torch.randn(128, 8)
    return x, (x @ torch.randn(8, 3)).argmax(1)


@pytest.mark.parametrize("format_name", FORMAT_NAMES)
def test_the_loss_falls(format_name: str) -> None:
    model, (x, y) = network(format_name), task()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
