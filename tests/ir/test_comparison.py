"""With an example, a graph gives what its model gives, or there is none."""

import copy
import itertools
import logging
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import chop
from chop.errors import GraphError
from chop.ir.graph.aten import SPECIAL, method
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.shapes import ShapedGraphModule
from chop.ops.op import is_aten
from chop.verbs.transform.passes import transform

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))


def steps(x: Any) -> Tensor:
    """What a stand-in cannot be told from: fx takes the other branch, without a word."""
    return torch.relu(x) if isinstance(x, Tensor) else torch.tanh(x)


class Typed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return steps(x)


class Shaped(nn.Module):
    """Loses a dimension by fx, as language models did that ask for the last tokens."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x if isinstance(x, Tensor) else x[:, 0]}


class Nested(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor | int]]:
        return 2 * x, {"rows": x.shape[0], "mean": steps(x).mean()}


class Keyed(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"a": x} | ({} if isinstance(x, Tensor) else {"b": x})


class Undefined(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return steps(x) / 0


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if isinstance(x, Tensor) else x @ x


class Modal(nn.Module):
    """Function dropout in training mode: by fx it would stay on after eval()."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training)


class LastDigit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 2**-23 * isinstance(x, Tensor))


FOLLOWED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a branch": (Typed, r"the output\[\d, \d, \d\] is -?[\d.e-]+, not [\d.]+;"),
    "a shape": (Shaped, r"logits has the shape \(2, 8\), not \(2, 6, 8\);"),
    "a part": (Nested, r"output\[1\]\.mean is -?[\d.]+, not [\d.]+;"),
    "a key": (Keyed, r"the output is a dictionary of a, b, not a dictionary of a;"),
    "an infinity": (Undefined, r"the output\[\d, \d, \d\] is -inf, not nan;"),
    "an error": (Fails, r"node 'matmul' cannot run: .*;"),
    "the mode": (Modal, r"the output\[\d, \d, \d\] is (\S+), not \S+;"),
    "the last digit": (LastDigit, r"the output\[\d, \d, \d\] is (\S+), not (?!\1;)\S+;"),
}


@pytest.mark.parametrize("kind", FOLLOWED)
def test_export_is_tried_where_the_graph_of_fx_is_not_the_model(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, said = FOLLOWED[kind]
    model = make()
    with caplog.at_level(logging.WARNING, "chop"):
        graph = MaseGraph(model, example_inputs={"x": X})
    assert isinstance(graph.model, ShapedGraphModule)
    begin = f"the graph that torch.fx makes of {type(model).__name__} is not the model: "
    assert re.fullmatch(f"{begin}{said} using torch.export instead", caplog.messages[-1])
    found, wanted = graph.model.eval()(X), model.eval()(X)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


class Hidden(nn.Module):
    """Sees through every stand-in."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) if type(x) is Tensor else torch.tanh(x)


IN_BOTH = (
    r"the graph that torch\.fx makes of Hidden is not the model: the output\[.*\] is \S+, not \S+; "
    r"the graph that torch\.export makes of Hidden is not the model: the output\[[^\n]*"
)


def test_a_model_that_neither_follows_is_refused_by_name(tmp_path: Path) -> None:
    rows = torch.utils.data.TensorDataset(X, torch.zeros(2, dtype=torch.long))
    loader = torch.utils.data.DataLoader(rows, 2)
    ways: list[Callable[[], object]] = [
        lambda: MaseGraph(Hidden(), example_inputs=X),
        lambda: chop.quantize(Hidden(), X, width=8),
        lambda: transform(Hidden(), None, loader, {}, save_dir=tmp_path),
    ]
    for way in ways:
        with pytest.raises(GraphError) as refused:
            way()
        assert re.fullmatch(IN_BOTH, str(refused.value))
    assert not list(tmp_path.iterdir())


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.drop(self.norm(x)) * self.calls


class WritesInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x, inplace=True)


class NotANumber(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        return (x - x) / (x - x), float("nan")


class Noisy(nn.Module):
    """Draws before and while the graph runs, so that the graph draws other numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(8) + torch.rand_like(x) + random.random()


CALLS = itertools.count()


class Unsteady(nn.Module):
    """Differs from call to call by rounding, as sums in an order that threads decide."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 2**-22 * next(CALLS))


@dataclass
class Scores:
    scores: Tensor
    loss: None = None


class Wrapped(nn.Module):
    def forward(self, x: Tensor) -> Scores:
        return Scores(2 * x)


class Padded(nn.Module):
    """In evaluation mode, torch's own kernels leave out what is padded."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.arange(6) >= 4
        return self.encoder(x, src_key_padding_mask=padding + torch.zeros_like(x[..., 0]).bool())


SAME = [Padded, Counted, WritesInput, NotANumber, Noisy, Unsteady, Wrapped]


@pytest.mark.parametrize("kind", SAME)
def test_what_fx_follows_stays_its_graph_and_nothing_is_touched(kind: type[nn.Module]) -> None:
    model, x = kind(), X.clone()
    state, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    graph = MaseGraph(model, example_inputs={"x": x})
    assert not isinstance(graph.model, ShapedGraphModule)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.equal(x, X)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in (*model.modules(), *graph.model.modules()))


def test_a_model_that_fails_on_the_example_is_named() -> None:
    with pytest.raises(GraphError, match=r"cannot trace Linear: .* fails so too when it is called"):
        MaseGraph(nn.Linear(3, 3), example_inputs=X)


class Attention(nn.Module):
    """As nanoGPT has it: `contiguous` is for kernels that lay out their result otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.size()
        assert length <= 16
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (part.view(rows, length, 2, width // 2).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(rows, length, width))


class Places(nn.Module):
    """As DINOv3 has it."""

    def forward(self, x: Tensor) -> Tensor:
        height, width = (torch.arange(size).float() for size in x.shape[1:])
        assert len(height) > 1
        down, across = torch.meshgrid(height, width, indexing="ij")
        return x * torch.cartesian_prod(width, width).sum() + down - across.view(torch.int32)


def test_an_exported_graph_can_be_quantised_whatever_its_views() -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    quantised = chop.quantize(model, X, width=16)
    assert isinstance(quantised.model, ShapedGraphModule)
    torch.testing.assert_close(quantised(X), model(X), rtol=0, atol=0.05)


def test_functions_that_take_any_number_of_tensors_are_lifted() -> None:
    graph = MaseGraph(Places(), example_inputs=X)
    assert torch.equal(graph.model(X), Places()(X))
    assert not [node for node in graph.nodes if is_aten(node)]


def test_a_lifted_graph_that_cannot_run_is_said_when_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SPECIAL, "meshgrid", method("no_such_method"))
    with pytest.raises(
        GraphError,
        match=r"^the graph that torch\.export makes of Places is not the model: node "
        r"'no_such_method' cannot run: .* has no attribute 'no_such_method'; [^\n]*$",
    ):
        MaseGraph(Places(), example_inputs=X)
