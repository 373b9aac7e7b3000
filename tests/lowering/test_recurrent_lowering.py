"""Recurrent layers by tables, step by step: near to floating point, and equal in integers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import chop
from chop.lowering.comparing import compare_with_integers

LAYERS: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(5, 6, batch_first=True),
    "lstm of two layers and ways": lambda: nn.LSTM(5, 3, 2, batch_first=True, bidirectional=True),
    "lstm with projection": lambda: nn.LSTM(5, 8, proj_size=6, batch_first=True),
    "gru": lambda: nn.GRU(5, 6, batch_first=True),
    "rnn": lambda: nn.RNN(5, 6, batch_first=True),
    "rnn with relu": lambda: nn.RNN(5, 6, batch_first=True, nonlinearity="relu", bias=False),
}


class Reader(nn.Module):
    """A recurrent layer, and a linear layer on what it gives at the end."""

    def __init__(self, layer: nn.Module, of_state: bool) -> None:
        super().__init__()
        self.layer, self.of_state = layer, of_state
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs, last = self.layer(x)
        if not self.of_state:
            return self.out(outputs[:, -1])
        state = last[0] if isinstance(self.layer, nn.LSTM) else last
        return self.out(state[-1])


class Cells(nn.Module):
    """Two cells, one after the other, for two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(5, 6), nn.GRUCell(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden, cell = self.first(x[:, 0])
        hidden, cell = self.first(x[:, 1], (hidden, cell))
        return self.second(hidden + cell)


def rows() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(40, 3, 5)


def check(model: nn.Module, least: float) -> None:
    """Quantise, and compare with floating point and with integers."""
    x = rows()
    quantised = chop.quantize(model.eval(), width=8, calibrate=[x])
    assert quantised.info["in_float"] == {}
    with torch.no_grad():
        wanted, found = model(x), quantised(x)
    assert (wanted.var() / (wanted - found).var()).log10() * 10 > least
    agreement = compare_with_integers(quantised.model, x)
    assert agreement.promised
    assert agreement.different == 0


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("kind", "of_state"), [*((kind, False) for kind in LAYERS), ("lstm", True), ("gru", True)]
)
def test_recurrent_layers_are_in_integers(kind: str, of_state: bool) -> None:
    torch.manual_seed(0)
    check(Reader(LAYERS[kind](), of_state), 28)


def test_cells_are_in_integers() -> None:
    torch.manual_seed(0)
    check(Cells(), 28)


@pytest.mark.parametrize("to", ["c", "onnx"])
def test_files_of_recurrent_layers_are_equal(tmp_path: Path, to: str) -> None:
    torch.manual_seed(0)
    model, x = Reader(nn.LSTM(5, 6, batch_first=True), False).eval(), rows()
    quantised = chop.quantize(model, width=8, calibrate=[x])
    done = chop.export(quantised, to, tmp_path / to, inputs={"x": x}, rows=60)
    assert done.manifest["verified"]["compared"] == {"graph": 60, "file": 60, "engine": 60}
