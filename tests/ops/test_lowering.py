"""An operation can be given a lowering beside its cost, by code above the table."""

from collections.abc import Iterator

import pytest
from torch import nn

from chop.dataset import get_dataset_info
from chop.errors import RegistrationError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import rules  # noqa: F401  # registers ours before the table is emptied
from chop.models import get_model
from chop.ops import OPS, lowering, op_of_module, op_of_node
from chop.ops.op import LOWERINGS


@pytest.fixture(autouse=True)
def _own_lowerings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOWERINGS, "_entries", {})


def test_a_lowering_is_found_by_the_operation() -> None:
    @lowering("linear", "relu")
    def steps(layer: nn.Module) -> Iterator[str]:
        yield type(layer).__name__

    assert OPS["linear"].lowering is steps
    assert OPS["conv2d"].lowering is None
    graph = MaseGraph(get_model("jsc-tiny", "cls", dataset_info=get_dataset_info("jsc-sim")))
    found = [op_of_node(node, graph.modules) for node in graph.nodes]
    lowered = [op.name for op in found if op and op.lowering]
    assert lowered == ["relu", "linear", "relu"]
    linear = op_of_module(nn.Linear(2, 2))
    assert linear is not None
    assert linear.lowering is not None
    assert list(linear.lowering(nn.Linear(2, 2))) == ["Linear"]


def test_mistakes_are_named() -> None:
    with pytest.raises(UnknownNameError, match="unknown operation 'linaer': did you mean 'linear'"):
        lowering("linaer")
    lowering("linear")(lambda: None)
    with pytest.raises(RegistrationError, match="lowering 'linear' is already registered"):
        lowering("linear")(lambda: None)
