"""Tracing a model, or recording a run of it, leaves it as it was, bit for bit."""

import logging
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph, MaseTracer
from chop.ir.graph.recorder import preserve_model, run_graph
from chop.passes.graph import add_common_metadata_analysis_pass, init_metadata_analysis_pass


class Tally:
    def __init__(self) -> None:
        self.count = 0
        self.last: Any = None


class Part(nn.Module):
    """A part with every kind of state that a forward may change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("m", torch.tensor([-0.0, float("nan")]), persistent=False)
        self.layer = nn.Linear(4, 4)
        self.plain = torch.zeros(2)
        self.array = np.zeros(2)
        self.count = 0
        self.seen: list[Any] = []
        self.kept: dict[str, Any] = {"a": (1, [2])}
        self.names = {"x"}
        self.space = SimpleNamespace(calls=0)
        self.tally = Tally()
        self.gone = 1


class Rebinding(Part):
    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        self.m = self.m * 2
        return self.layer(x) * self.n


class Everything(Part):
    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        self.plain.add_(1)
        self.plain.data.add_(1)
        self._buffers["m"].mul_(-1)
        self._parameters["new"] = nn.Parameter(torch.zeros(1))
        self.layer._parameters["weight"].data.clamp_(-0.01, 0.01)
        self.layer._parameters["bias"].data = torch.ones(4)
        self.array += 1
        self.count += 1
        self.seen.append(x)
        self.kept["a"][1].append(x)
        self.kept["b"] = x
        self.names.add("y")
        self.space.calls += 1
        self.tally.count += 1
        self.tally.last = x
        self.training = not self.training
        self.layer.eval()
        self.layer.register_forward_hook(lambda *_: None)
        self.register_buffer("added", torch.zeros(1))
        self.extra = x
        del self.gone
        noise = torch.randn(4) + random.random() + float(np.random.rand())
        return self.layer(x) * self.n + noise


class ThenFails(Everything):
    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        if x.sum() > 0:
            return x
        return -x


class NeedsShapes(Rebinding):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(len(x)):
            x = super().forward(x)
        return x


class Outer(nn.Module):
    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.part(x)))


def state(model: nn.Module) -> dict[str, Any]:
    """Everything there is to know of a model, in a form that can be compared."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            found[f"{path}:{name}"] = frozen(value)
    found["state_dict"] = frozen(dict(model.state_dict()))
    found["tensors"] = [id(each) for each in (*model.parameters(), *model.buffers())]
    found["random"] = (
        torch.get_rng_state().tolist(),
        random.getstate(),
        str(np.random.get_state()),
    )
    return found


def frozen(value: Any) -> Any:
    if isinstance(value, Tensor):
        bits = value.detach().cpu().numpy().tobytes()
        return value.data_ptr(), bits, value.requires_grad
    if isinstance(value, np.ndarray):
        return id(value), value.tobytes()
    if isinstance(value, dict):
        return [(key, frozen(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, Tally | SimpleNamespace):
        return id(value), frozen(vars(value))
    return value if isinstance(value, int | str | type(None)) else id(value)


PARTS = [Rebinding, Everything, ThenFails, NeedsShapes]
EXAMPLE = {"x": torch.randn(3, 4)}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("example", [None, EXAMPLE], ids=["fx", "with-examples"])
@pytest.mark.parametrize("training", [True, False])
def test_tracing_leaves_the_model_as_it_was(
    part: type[Part], example: dict[str, Tensor] | None, training: bool
) -> None:
    for model in (part(), Outer(part())):
        model.train(training)
        model.register_forward_hook(lambda *_: None)
        before = state(model)
        try:
            MaseGraph(model, example_inputs=example)
            failed = False
        except GraphError:
            failed = True
        after = state(model)
        assert {key for key in before | after if before.get(key) != after.get(key)} == set()
        if part in (Rebinding, Everything):
            assert not failed
        if part is ThenFails:
            assert failed


@pytest.mark.parametrize("part", [Rebinding, Everything, NeedsShapes])
@pytest.mark.parametrize("whole", [False, True], ids=["traced", "leaf"])
def test_a_recorded_run_leaves_the_model_as_it_was(part: type[Part], whole: bool) -> None:
    model = Outer(part())
    before = state(model)
    tracer = MaseTracer((Part,)) if whole else None
    graph = MaseGraph(model, tracer=tracer, example_inputs=EXAMPLE)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": EXAMPLE})
    run_graph(graph, EXAMPLE)
    after = state(model)
    assert {key for key in before | after if before.get(key) != after.get(key)} == set()


class Clipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.layer.weight.data.clamp_(-0.01, 0.01)
        return self.layer(x)


def test_weights_that_a_forward_writes_are_restored() -> None:
    model = Clipped()
    before = model.layer.weight.detach().clone()
    run_graph(MaseGraph(model), EXAMPLE)
    assert torch.equal(model.layer.weight, before)


@pytest.mark.parametrize("example", [None, EXAMPLE], ids=["fx", "export"])
def test_a_graph_writes_the_buffers_that_its_model_writes(
    example: dict[str, Tensor] | None,
) -> None:
    model = (Rebinding if example is None else NeedsShapes)().eval()
    x = EXAMPLE["x"]
    graph = MaseGraph(model, example_inputs=example)
    assert graph.model.get_buffer("n") is model.n  # shared, as parameters are
    assert graph.model.get_parameter("layer.weight") is model.layer.weight
    results = [graph.model(x), graph.model(x)]
    assert model.n == (2 if example is None else 6)
    model.n.zero_()
    for result in results:
        torch.testing.assert_close(model(x), result)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (Rebinding, []),
        (Everything, ["count", "seen", "kept.b", "names", "space.calls", "tally.count", "random"]),
    ],
)
def test_what_a_graph_does_not_do_is_said(
    part: type[Part], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "chop"):
        MaseGraph(part())
    assert bool(caplog.text) == bool(told)
    for name in told:
        assert name in caplog.text


def test_an_untouched_tensor_is_not_written_to() -> None:
    """A write would spoil a backward pass that the user has yet to do."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    loss = model(torch.randn(3, 4)).sum()
    versions = [value._version for value in (*model.parameters(), *model.buffers())]
    with preserve_model(model):
        model(torch.randn(3, 4))
    assert [value._version for value in (*model.parameters(), *model.buffers())] == versions
    loss.backward()
