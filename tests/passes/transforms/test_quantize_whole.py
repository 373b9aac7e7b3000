"""Networks whole in integers by one pass: what they compute in integers is what they simulate."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transform_nets import graph_of

from chop.lowering.comparing import compare_with_integers
from chop.models import get_model
from chop.passes.graph import PASSES
from chop.passes.graph.transforms.quantize.one_line import FormatSpec, one_line_rules

whole = PASSES["quantize_whole"]
RULES = one_line_rules(FormatSpec("integer", 8), calibrated=True, products_only=False)


def warmed(model: nn.Module, *shape: int) -> tuple[nn.Module, Tensor]:
    """A network whose norms have seen rows, and some rows."""
    torch.manual_seed(1)
    x = torch.randn(16, *shape)
    with torch.no_grad():
        model.train()(x)
    return model.eval(), x


def by_name(name: str, *shape: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    size = {"image_size": shape} if len(shape) > 1 else {"num_features": shape[0]}
    return lambda: warmed(get_model(name, dataset_info={**size, "num_classes": 5}), *shape)


class Branches(nn.Module):
    """Concatenation, a sum with what was normalised, a sigmoid, an average."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.left, self.right = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, 1)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.relu(x))
        both = torch.cat([self.left(x), torch.sigmoid(self.right(x))], 1)
        return self.last(both.mean((2, 3)))


NETWORKS = {
    "resnet8": by_name("resnet8", 3, 8, 8),
    "ds-cnn": by_name("ds-cnn", 1, 12, 6),
    "lenet5": by_name("lenet5", 1, 16, 16),
    "cnn-small": by_name("cnn-small", 1, 8, 8),
    "jsc-tiny": by_name("jsc-tiny", 16),
    "jsc-new": by_name("jsc-new", 16),
    "autoencoder-ad": by_name("autoencoder-ad", 12),
    "branches": lambda: warmed(Branches(), 2, 6, 6),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_whole_and_close_to_float(name: str) -> None:
    model, x = NETWORKS[name]()
    argument = "x" if name in ("branches", "jsc-tiny", "jsc-new") else "input"
    graph, info = whole(graph_of(model, **{argument: x}), RULES | {
        "input_generator": [{argument: x}]
    })  # fmt: skip
    assert info["in_float"] == {}
    assert not any("BatchNorm" in type(each).__name__ for each in graph.model.modules())
    expected, found = model(x), graph.model(x)
    assert (found - expected).norm() < 0.1 * expected.norm()
    agreement = compare_with_integers(graph.model, x)
    assert agreement.different == 0
    assert agreement.rows == len(x)
