"""A quantised model and its integers, side by side."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph
from chop.errors import GraphError
from chop.lowering import InIntegers, compare, program
from chop.nn.quantized import QuantizedModule
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)

FEW_BITS = {"width": 8, "frac_width": 4}
MANY_BITS = {"width": 17, "frac_width": 14}


def quantised(layers: list[nn.Module], **widths: Any) -> nn.Module:
    """A network whose linear layers are quantised."""
    torch.manual_seed(0)
    graph, _ = init_metadata_analysis_pass(MaseGraph(nn.Sequential(*layers).eval()))
    example = {"dummy_in": {"input": torch.zeros(2, 6)}}
    graph, _ = add_common_metadata_analysis_pass(graph, example)
    roles = ("data_in", "weight", "bias")
    config = {f"{role}_{key}": value for role in roles for key, value in widths.items()}
    rule = {"config": {"name": "integer", **config}}
    return quantize_transform_pass(graph, {"by": "type", "linear": rule})[0].model


@pytest.fixture
def features() -> Tensor:
    return torch.randn(500, 6, generator=torch.Generator().manual_seed(1))


def layers(*last: nn.Module) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(6, 64), nn.ReLU(inplace=True), nn.Linear(64, 5), *last]


def test_an_exact_simulation_gives_the_integers(features: Tensor) -> None:
    model = quantised(layers(), **FEW_BITS)
    both = InIntegers(model, features)
    with torch.no_grad():
        assert torch.equal(both(features), model(features).double())
    found = both.agreement
    assert (found.rows, found.numbers, found.different, found.predictions) == (500, 2500, 0, 0)
    assert found.promised
    assert found == compare(model, features)
    assert str(found) == "the simulation is exact for every input, and was on 500 rows"


def test_a_softmax_at_the_end_is_computed_from_the_integers(features: Tensor) -> None:
    model = quantised(layers(nn.Softmax(-1)), **FEW_BITS)
    both = InIntegers(model, features)
    with torch.no_grad():
        assert torch.equal(both(features), model(features))
    assert both.agreement.numbers == 2500
    assert [node.name for node in both.cut] == ["_2"]


def test_where_nothing_is_promised_the_difference_is_counted(features: Tensor) -> None:
    model = quantised(layers(), **MANY_BITS)
    found = compare(model, features)
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(features.double())
        apart = int((model(features).double() != truth).sum())
    assert not found.promised
    assert found.accumulator_bits > 24
    assert found.different == apart > 0
    assert f"{apart:,} of 2,500 outputs" in str(found)


def test_a_broken_promise_names_the_first_node_that_differs(
    features: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantised(layers(nn.Linear(5, 5)), **FEW_BITS)
    right = program.Product.__init__

    def wrong(self: Any, node: str, *args: Any, **fields: Any) -> None:
        if node == "_2":
            fields["weight"] = fields["weight"] + 1
        right(self, node, *args, **fields)

    monkeypatch.setattr(program.Product, "__init__", wrong)
    with pytest.raises(GraphError, match="differs from the integers in _2, at a batch size of 1,"):
        compare(model, features)


def test_models_are_left_as_they_were(features: Tensor) -> None:
    model = quantised(layers(nn.Dropout()), **FEW_BITS).train()
    compare(model, features)
    assert model.training
    assert any(isinstance(each, QuantizedModule) for each in model.modules())
