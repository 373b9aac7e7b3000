"""Operations without integers are written out: the same numbers, and then whole in integers."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import chop
from chop.export import export
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import add_common_metadata_analysis_pass, init_metadata_analysis_pass
from chop.passes.graph.transforms.whole import nodes_of_rows
from chop.passes.graph.transforms.writing import balance_products, write_out


class Calls(nn.Module):
    """A layer and then any function of what it gives."""

    def __init__(self, function: Callable[[Tensor], Any], layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.function = layer, function
        self.register_buffer("mask", torch.ones(4, 4).tril())

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x))


def rows_of(*shape: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    return lambda: (nn.Linear(shape[-1], shape[-1]), torch.randn(40, *shape))


def images() -> tuple[nn.Module, Tensor]:
    return nn.Conv2d(2, 4, 1), torch.randn(40, 2, 6, 6)


def hidden(x: Tensor) -> Tensor:
    mask = torch.ones(4, 4).tril()
    return torch.softmax((x @ x.transpose(-2, -1)).masked_fill(mask == 0, -torch.inf), -1) @ x


def added(x: Tensor) -> Tensor:
    mask = torch.full((4, 4), -torch.inf).triu(1)
    return torch.softmax(x @ x.mT / 2 + mask, -1) @ x


WORDS, FEATURES = rows_of(4, 6), rows_of(6)
FORMS: dict[str, tuple[Callable[[Tensor], Any], Callable[[], tuple[nn.Module, Tensor]]]] = {
    "glu": (lambda x: F.glu(x), FEATURES),
    "log_softmax": (lambda x: F.log_softmax(x, -1), FEATURES),
    "logsumexp": (lambda x: torch.logsumexp(x, 1, keepdim=True), FEATURES),
    "std": (lambda x: x.std(1), WORDS),
    "norm": (lambda x: x.norm(dim=-1), WORDS),
    "normalize": (lambda x: F.normalize(x, dim=1), WORDS),
    "cosine": (lambda x: F.cosine_similarity(x[:, 0], x[:, 1]), WORDS),
    "max": (lambda x: x.max(1)[0] + x.max(dim=1).values, WORDS),
    "maximum": (lambda x: torch.max(x, 0.5 * x), WORDS),
    "where": (lambda x: torch.where(x > 0.1, x, 0.2 * x), FEATURES),
    "clamp_max": (lambda x: x.clamp_max(0.3), FEATURES),
    "cumsum": (lambda x: x.cumsum(1), WORDS),
    "quotient": (lambda x: x / (1 + x * x), FEATURES),
    "masked_fill": (hidden, WORDS),
    "divided by a size": (lambda x: x / math.sqrt(x.size(-1)), WORDS),
    "added mask": (added, WORDS),
    "argmax": (lambda x: x.argmax(1), FEATURES),
    "joined and balanced": (lambda x: torch.cat([-x[:, 3:], x[:, :3]], 1) * (40 * x), FEATURES),
    "unfold": (lambda x: x.unfold(1, 3, 2), FEATURES),
    "zeros": (lambda x: torch.cat([x, torch.zeros_like(x)], 1), FEATURES),
    "nearest": (lambda x: F.interpolate(x, size=(9, 12)), images),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), images),
    "bicubic": (
        lambda x: F.interpolate(x, size=(4, 4), mode="bicubic", align_corners=True), images,
    ),
    "uneven pool": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), images),
    "pool at the edge": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), images,
    ),
    "instance norm": (lambda x: F.instance_norm(x), images),
    "reflection": (nn.ReflectionPad2d(2), images),
    "circular": (nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"), images),
    "even kernel": (nn.Conv2d(4, 2, 2, padding="same"), images),
}  # fmt: skip


def case(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    function, layer_and_rows = FORMS[name]
    layer, x = layer_and_rows()
    return Calls(function, layer).eval(), x


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", FORMS)
def test_what_is_written_out_computes_the_same(name: str, tmp_path: Path) -> None:
    model, x = case(name)
    graph = MaseGraph(model, example_inputs={"x": x})
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})
    write_out(graph, nodes_of_rows(graph), 8)
    balance_products(graph, [{"x": x}])
    torch.testing.assert_close(graph.model(x), model(x), rtol=1e-4, atol=1e-5)
    network = chop.quantize(model, width=8, calibrate=[x])
    assert network.info["in_float"] == {}
    done = export(network, "integer", tmp_path / "o", rows=30, inputs={"x": x})
    assert done.verified_rows == 30
    assert done.manifest["verified"]["compared"]["graph"] == 30


def test_gates_beside_large_numbers_keep_their_bits() -> None:
    torch.manual_seed(0)
    model = Calls(lambda x: 60 * x * torch.sigmoid(x), nn.Linear(6, 6)).eval()
    x = torch.randn(200, 6)
    found, wanted = chop.quantize(model, width=8, calibrate=[x])(x), model(x)
    assert (found - wanted).norm() < 0.05 * wanted.norm()


def test_large_means_are_taken_by_dimension() -> None:
    model = Calls(lambda x: x.mean((2, 3)), nn.Conv2d(2, 4, 1)).eval()
    x = torch.randn(30, 2, 24, 24)
    assert chop.quantize(model, width=8, calibrate=[x]).info["in_float"] == {}


def test_weights_that_are_computed_are_stored_and_the_model_stays_as_it_is() -> None:
    torch.manual_seed(0)
    made = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
    model, x = nn.Sequential(made, nn.ReLU()).eval(), torch.randn(50, 6)
    network = chop.quantize(model, width=8, calibrate=[x])
    assert network.info["in_float"] == {}
    assert (network(x) - model(x)).abs().max() < 0.1
    assert nn.utils.parametrize.is_parametrized(made)
