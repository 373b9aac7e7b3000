"""Recurrent layers in a number format: weights, inputs and, at each step, the hidden state."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from chop.errors import ConfigError
from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import QuantizedModule, quantize_module
from chop.ops.op import op_of_module

FINE: dict[str, Any] = {"name": "integer"} | {
    f"{role}_{field}": value
    for role in ("data_in", "weight", "bias")
    for field, value in (("width", 40), ("frac_width", 30))
}
COARSE: dict[str, Any] = {
    "name": "integer", "data_in_width": 6, "data_in_frac_width": 3, "weight_width": 6,
    "weight_frac_width": 4, "hidden_width": 5, "hidden_frac_width": 4,
}  # fmt: skip


def quantised(layer: nn.Module, config: dict[str, Any]) -> QuantizedModule:
    op = op_of_module(layer)
    assert op is not None
    return quantize_module(layer, op, parse_quant_config(op, config, "test"))


LAYERS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm deep both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm projected": (nn.LSTM, {"num_layers": 2, "proj_size": 3}),
    "gru both ways": (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "gru without bias": (nn.GRU, {"bias": False}),
    "rnn": (nn.RNN, {"num_layers": 2}),
    "rnn relu": (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
    "lstm cell": (nn.LSTMCell, {}),
    "gru cell": (nn.GRUCell, {"bias": False}),
    "rnn cell": (nn.RNNCell, {"nonlinearity": "relu"}),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("rank", [2, 3])
def test_in_a_format_that_rounds_nothing_away_it_is_the_float_layer(name: str, rank: int) -> None:
    torch.manual_seed(0)
    cls, settings = LAYERS[name]
    layer = cls(6, 5, **settings).eval()
    x = torch.randn(4, 6) if rank == 2 or "cell" in name else torch.randn(4, 3, 6)
    new = quantised(layer, FINE)
    expected = layer(x)
    torch.testing.assert_close(tree_leaves(new(x)), tree_leaves(expected))
    state = expected[1] if isinstance(expected, tuple) and "cell" not in name else expected
    torch.testing.assert_close(tree_leaves(new(x, state)), tree_leaves(layer(x, state)))


def grid(x: Tensor, frac: int) -> bool:
    scaled = x.detach() * 2**frac
    return bool((scaled == scaled.round()).all())


class Watch(torch.overrides.TorchFunctionMode):
    """The operands of every linear map."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            self.seen.append((args[0], args[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [n for n in LAYERS if "projected" not in n])
def test_both_operands_of_every_product_are_on_their_grids(name: str) -> None:
    cls, settings = LAYERS[name]
    new = quantised(cls(6, 5, **settings), COARSE)
    x = torch.randn(4, 6) if "cell" in name else torch.randn(3, 4, 6)
    with Watch() as watch:
        new(x)
    assert len(watch.seen) > 1
    assert all(grid(data, 4) and grid(weight, 4) for data, weight in watch.seen)
    new.bypass = True
    with Watch() as watch:
        new(x)
    assert not watch.seen  # torch's own kernel


def test_the_hidden_state_is_rounded_step_by_step() -> None:
    """Against cells of torch that are given a rounded state at each step."""
    torch.manual_seed(1)
    layer = nn.LSTM(3, 4)
    new = quantised(layer, COARSE)
    formats = new.quant.operands
    cell = nn.LSTMCell(3, 4)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        role = name.partition("_")[0]
        getattr(cell, name).data = formats[role](getattr(layer, f"{name}_l0").detach())
    x = torch.randn(5, 2, 3)
    h = c = torch.zeros(2, 4)
    for step in x:
        h, c = cell(formats["data_in"](step), (formats["hidden"](h), c))
    _, (found_h, found_c) = new(x)
    torch.testing.assert_close((found_h[0], found_c[0]), (h, c))


def test_gradients_reach_every_weight() -> None:
    new = quantised(nn.GRU(3, 4, num_layers=2, bidirectional=True), COARSE)
    new(torch.randn(5, 2, 3))[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in new.parameters())


def test_a_packed_sequence_is_refused() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 6), torch.randn(2, 6)])
    with pytest.raises(ConfigError, match="takes a padded tensor, not a packed sequence"):
        quantised(nn.LSTM(6, 5), COARSE)(packed)
