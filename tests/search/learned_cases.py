"""Small rows and networks whose widths learn, for the tests of the strategy ``learned``."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.dataset.data_module import TensorLoader
from chop.results.front import SearchResult
from chop.verbs.search.job import search

TABLES: dict[str, Any] = {
    "search_space": {"name": "graph/quantize/learned_widths"},
    "strategy": {
        "name": "learned",
        "sw_runner": {"basic_evaluation": {}},
        "hw_runner": {"ebops": {}},
        "setup": {
            "float_epochs": 2,
            "cycles": 2,
            "epochs": 3,
            "snapshots": 2,
            "cost_weight": [0.06, 4.2],
            "plots": False,
            "teacher": {"hidden": [16], "epochs": 2},
        },
        "metrics": {
            "accuracy": {"direction": "maximize"},
            "ebops": {"direction": "minimize"},
        },
    },
}


def tables(**setup: Any) -> dict[str, Any]:
    """``[search]``; keywords are keys of ``strategy.setup``, None leaves one out."""
    found = copy.deepcopy(TABLES)
    stated = found["strategy"]["setup"] | setup
    found["strategy"]["setup"] = {k: v for k, v in stated.items() if v is not None}
    return found


def rows(count: int = 256, *shape: int, classes: int = 3) -> dict[str, TensorLoader]:
    """Rows of which a linear function of the features tells the class."""
    shape = shape or (8,)
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(2 * count, *shape, generator=draw)
    rule = torch.randn(features[0].numel(), classes, generator=draw)
    labels = (features.flatten(1) @ rule).argmax(1)
    return {
        "train": TensorLoader(features[:count], labels[:count], 64, True),
        "val": TensorLoader(features[count:], labels[count:], 64),
    }


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def learn(
    folder: Path, model: nn.Module | None = None, data: Any = None, **more: Any
) -> SearchResult:
    """A search that learns widths; keywords that `search` does not know are keys of the setup."""
    known = {name: more.pop(name) for name in ("resume", "settings") if name in more}
    return search(model or mlp(), None, data or rows(), tables(**more), save_dir=folder, **known)


class Attention(nn.Module):
    """One head of attention over a short sequence, written as matrix products."""

    def __init__(self, width: int = 6, classes: int = 5) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.matmul(self.query(x), self.key(x).transpose(1, 2)).softmax(-1)
        scores: Tensor = self.out(torch.matmul(weights, self.value(x)).mean(1))
        return scores
