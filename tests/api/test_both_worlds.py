"""Python and the command line have the same words, and each verb takes what another gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import chop
from chop.lowering import Engine, load_program


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_quantised_network_is_exported_as_it_is(tmp_path: Path) -> None:
    rows = torch.randn(50, 3)
    q = chop.quantize(network(), rows, width=6)
    done = chop.export(q, to="integer", output=tmp_path / "program")
    found = Engine(load_program(done.folder))(rows)
    assert torch.equal(found[0].double(), q(rows).double())
    circuit = chop.export(q, to="verilog", output=tmp_path / "circuit", stages=2, rows=0)
    assert circuit.manifest["circuit"]["latency_cycles"] == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"graph": network()}, r"takes what chop.quantize gives, .* not Sequential$"),
        ({"graph": chop.quantize(network(), torch.zeros(1, 3), width=6).model}, "not Sequential$"),
        ({"graph": "mase_output/toy"}, "not str$"),
        ({"stagse": 2}, "unknown setting 'stagse': did you mean 'stages'?"),
        ({"stages": 2}, "settings of hardware are for verilog, not for c"),
    ],
)
def test_mistakes_of_an_export(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    q = chop.quantize(network(), torch.zeros(1, 3), width=6)
    with pytest.raises(chop.errors.ConfigError, match=message):
        chop.export(**{"graph": q, "to": "c", "output": tmp_path / "p", **given})
    assert not list(tmp_path.iterdir())


class Turned(nn.Module):
    """Multiplies by a matrix, which the program stores turned."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, self.weight)


def test_a_weight_that_lies_in_another_order_is_stored(tmp_path: Path) -> None:
    rows = torch.randn(20, 3)
    q = chop.quantize(Turned(), rows, width=6)
    done = chop.export(q, to="integer", output=tmp_path / "program")
    found = Engine(load_program(done.folder))(rows)
    assert torch.equal(found[0].double(), q(rows).double())
