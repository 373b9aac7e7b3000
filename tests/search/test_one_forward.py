"""Trials compute what quantised modules and functions do, however the network is written."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from search_cases import PTQ
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.nn import forward
from chop.search.spaces import variants
from chop.search.spaces.mixed_precision import MixedPrecisionPTQ
from chop.search.spaces.space import SearchContext, every, make_space

ROWS = 64
WIDTHS = {"data_in_width": [4], "weight_width": [3, 5], "bias_width": [4]}
RULE = {"name": ["integer", None], **WIDTHS, "data_out_width": [6]}
FLOAT = {"default": {"config": {"name": [None]}}}


class Functions(nn.Module):
    """Private arguments, in place, by keyword, lists, and a parameter as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 16))

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(F.relu(x - 0.5, inplace=True), self.weight)
        y = torch.matmul(y, torch.eye(5)).add_(1)
        z = F.softmax(y, dim=1)
        return torch.einsum("ab,bc->ac", [z, torch.ones(5, 5)]) + torch.add(input=y, other=z)


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


class Layers(nn.Module):
    """Two inputs, a parametrised weight, a layer in place, and one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.last = nn.Bilinear(16, 16, 8), nn.Linear(8, 5, bias=False)
        self.scaled, self.relu = nn.Linear(8, 8), nn.ReLU(inplace=True)
        parametrize.register_parametrization(self.scaled, "weight", Half())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.relu(self.scaled(self.both(x, x))))
        return out


class Unrolled(nn.Module):
    """What fx cannot trace, so that the graph comes from torch.export; with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.shape[1] // 8):
            inside = (x > -1) & (x < 1)
            x = F.gelu(self.first(x.masked_fill(inside, 0.5))) + x
        out: Tensor = self.last(torch.atan2(x, torch.ones_like(x)))
        return out


CASES = [
    (Unrolled, ("linear", "gelu", "add")),
    (Functions, ("linear", "relu", "matmul", "add", "softmax", "einsum")),
    (Layers, ("bilinear", "linear", "relu")),
]


@pytest.mark.parametrize(("network", "ops"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_trials_equal_the_quantise_pass(
    network: type[nn.Module],
    ops: tuple[str, ...],
    context: SearchContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return forward.compute(*args)

    monkeypatch.setattr(variants, "compute", counted)
    monkeypatch.setattr("chop.nn.function.compute", counted)
    torch.manual_seed(1)
    own = SearchContext(network().eval(), context.model_info, context.data_module)
    space = make_space(PTQ, own, {"by": "type"}, FLOAT | {op: {"config": RULE} for op in ops})
    assert isinstance(space, MixedPrecisionPTQ)
    assert space.variants is not None
    rows = torch.cat([x for x, _ in own.batches("val_dataloader", ROWS)])
    configs = [
        space.config(picked) for picked, _ in zip(every(space.tree), range(40), strict=False)
    ]
    for config in configs[::3] + configs[:2]:
        calls.clear()
        scores = [each for each, _ in space.candidate(config).predictions("val_dataloader", ROWS)]
        model = space.quantise(config).eval()
        with torch.inference_mode():
            assert torch.equal(torch.cat(scores), model(rows))
    assert calls  # which were those of the one forward
