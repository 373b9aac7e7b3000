"""What has no integers is refused in one line that names the node and says what would help."""

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_nets import integer, quantised
from torch import Tensor, nn

from chop.errors import DataError
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import Engine, LoweringError, lower
from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import quantize_module
from chop.ops.table import OPS


class Calls(nn.Module):
    """A linear layer, then a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(self.linear(x))
        return result


X = torch.randn(3, 4)
DATA_ONLY = {"config": {"name": "binary", "data_in_bipolar": True}}
WIDE = integer(12, 6, 12, 6)
BLOCKS = {
    "config": {"name": "block_fp"}
    | {f"{role}_{field}": value
       for role in ("data_in", "weight", "bias")
       for field, value in (("width", 8), ("exponent_width", 8), ("block_size", [4]))}
}  # fmt: skip


def lowered(function: Any, rules: dict[str, Any], **how: Any) -> Any:
    return lower(quantised(Calls(function), X, rules), **how)


@pytest.mark.parametrize(
    ("function", "rules", "message"),
    [
        (torch.relu, {"relu": integer()}, "linear reads the input 'x' in floating point: quantise"),
        (torch.relu, {"linear": DATA_ONLY}, "linear has its weight in floating point: quantise"),
        (
            torch.sigmoid,
            {"linear": WIDE},
            "sigmoid would be a table of [0-9,]+ entries, and 65,536 are the most: quantise sigm",
        ),
        (lambda x: F.softmax(x, -1), {"linear": integer()}, "softmax has no tables"),
        (lambda x: x / x, {"linear": integer()}, "truediv divides by something that varies"),
        (
            lambda x: x.flatten(0, 1),
            {"linear": integer()},
            "flatten moves elements between the rows",
        ),
        (lambda x: x.sum(0), {"linear": integer()}, "sum_1 has no rule in integers"),
        (torch.log, {"linear": integer(), "log": integer()}, "infinite or not a number"),
    ],
)
def test_refusals(function: Any, rules: dict[str, Any], message: str) -> None:
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(LoweringError, match=pattern) as caught:
        lowered(function, rules)
    assert "\n" not in str(caught.value)


def test_data_in_blocks_is_refused() -> None:
    with pytest.raises(LoweringError, match="linear: BlockFP shares exponents within blocks"):
        lowered(torch.relu, {"linear": BLOCKS})


def test_an_input_that_nothing_rounds_is_refused() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(LoweringError, match=re.escape("quantise _0 (its data_in)")):
        lower(quantised(model, X, {"linear": integer()}))


def test_floating_point_after_the_end_can_be_cut_off() -> None:
    graph = quantised(Calls(lambda x: F.softmax(x, -1)), X, {"linear": integer()})
    program = lower(graph, cut_tail=True)
    assert program.tail == ("softmax",)
    assert program.outputs == ("linear",)
    scores = Engine(program)(X)[0]
    assert torch.equal(F.softmax(scores.float(), -1), graph.model(X))


def test_floating_point_in_the_middle_cannot_be_cut_off() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 2))
    graph = quantised(model, X, {"linear": integer()})
    program = lower(graph, cut_tail=True)
    assert program.tail == ("_1", "_2")
    with pytest.raises(LoweringError, match="_1 has no tables"):
        lower(graph)


TABLE = (
    r"_1 would be a table of [0-9,]+ entries, and 65,536 are the most: quantise _1 \(its data_in, "
    r"or the data_out of what it reads\) to fewer bits, 16 at most, or "
)
ENDED = r"end the program before it with cut_tail \(leaves off _2"
SOFTMAX = r"_1 has no tables \(softmax\): give it a table_width, or "


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Sigmoid()], rf"{TABLE}leave it off with cut_tail$"),
        (
            [nn.Sigmoid(), nn.Linear(4, 3), nn.ReLU(), nn.ReLU()],
            rf"{TABLE}{ENDED} and 2 more nodes, too\)$",
        ),
        ([nn.Softmax(-1), nn.Linear(4, 3)], rf"{SOFTMAX}{ENDED}, too\)$"),
    ],
)
def test_advice_is_true_in_the_middle(layers: list[nn.Module], message: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), *layers)
    with pytest.raises(LoweringError, match=message):
        lower(quantised(model, X, {"linear": WIDE}))


class Doubled(nn.Linear):
    """A linear layer that does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_what_a_rule_cannot_see_is_refused() -> None:
    op = OPS["linear"]
    quant = parse_quant_config(op, integer()["config"], "test")
    graph = MaseGraph(nn.Sequential(quantize_module(Doubled(4, 2), op, quant)))
    with pytest.raises(LoweringError, match="_0: Doubled has its own forward"):
        lower(graph, {"input": X})
    graph = quantised(nn.Sequential(nn.Linear(4, 2)), X, {"linear": integer()})
    graph.modules["0"].register_forward_pre_hook(lambda layer, inputs: inputs)
    with pytest.raises(LoweringError, match="_0 has hooks, as pruned activations have"):
        lower(graph)


def test_shapes_must_be_known() -> None:
    graph = MaseGraph(nn.Sequential(nn.Linear(4, 2)))
    with pytest.raises(LoweringError, match="the shape of the input 'input' is not known"):
        lower(graph)


def test_in_place_functions_change_what_others_read() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            z = F.relu(y, inplace=True)
            return y + z

    graph = quantised(Net(), X, {"linear": integer(), "add": integer()})
    assert torch.equal(Engine(lower(graph))(X)[0], graph.model(X).double())


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ({}, "the codes of 'x' are missing"),
        ({"x": torch.zeros(2, 3, dtype=torch.int64)}, r"'x' has rows of \[4\], not \[3\]"),
        ({"x": torch.full((2, 4), 128)}, "codes of 'x' must lie between -128 and 127"),
    ],
)
def test_codes_that_do_not_fit_are_refused(codes: dict[str, Tensor], message: str) -> None:
    engine = Engine(lowered(torch.relu, {"linear": integer()}))
    with pytest.raises(DataError, match=message):
        engine.run(codes)


def test_a_last_function_of_too_many_bits_names_who_reads_it() -> None:
    graph = quantised(Calls(torch.exp), X, {"linear": integer(8, 3, 6, 4)})
    with pytest.raises(LoweringError, match="output reads a function .* needs [0-9]+ bits .* cut_"):
        lower(graph)
    assert lower(graph, cut_tail=True).tail == ("exp",)
