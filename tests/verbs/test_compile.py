"""``ch train --compile`` and ``ch test --compile``."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from chop.actions import test as evaluate
from chop.actions import train
from chop.devices import compile_calls
from chop.errors import ConfigError

FEATURES = torch.linspace(-2, 2, 40 * 4).reshape(40, 4).sin()
LABELS = (FEATURES.sum(1) > 0).long()


@pytest.fixture
def by_eager(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Calls of `compile`, which records as ever but runs what it recorded without C++."""
    asked: list[dict[str, Any]] = []
    original = nn.Module.compile

    def recorded(self: nn.Module, **settings: Any) -> None:
        asked.append(settings)
        original(self, backend="aot_eager", **settings)

    monkeypatch.setattr(nn.Module, "compile", recorded)
    monkeypatch.setenv("CXX", sys.executable)  # which is found
    return asked


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def loaders() -> dict[str, Any]:
    rows = TensorDataset(FEATURES, LABELS)
    whole = torch.utils.data.DataLoader(rows, batch_size=16)  # the last batch is smaller
    return {"train": whole, "val": whole, "test": whole}


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.parameters()]


def test_resumed_training_takes_the_same_steps(
    tmp_path: Path, by_eager: list[dict[str, Any]]
) -> None:
    settings = {"learning_rate": 0.01, "compile": True, "scheduler": "constant"}
    whole, parts, plain = network(), network(), network()
    train(whole, data_module=loaders(), save_path=tmp_path / "a", max_epochs=2, **settings)
    train(parts, data_module=loaders(), save_path=tmp_path / "b", max_steps=4, **settings)
    parts = network()
    more = {"resume": True, "max_epochs": 2, **settings}
    train(parts, data_module=loaders(), save_path=tmp_path / "b", **more)
    settings["compile"] = False
    train(plain, data_module=loaders(), save_path=tmp_path / "c", max_epochs=2, **settings)
    assert by_eager == [{"dynamic": False}] * 3
    for one, other, without in zip(weights(whole), weights(parts), weights(plain), strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, without)
    assert whole._compiled_call_impl is None
    with pytest.raises(ConfigError, match="compile is False, but the run"):
        train(parts, data_module=loaders(), save_path=tmp_path / "b", **more | {"compile": False})


def test_tested_alike(by_eager: list[dict[str, Any]]) -> None:
    model = network()
    result = evaluate(model, data_module=loaders(), compile=True)
    assert by_eager == [{"dynamic": False}]
    plain = evaluate(model, data_module=loaders())
    assert torch.equal(result.confusion, plain.confusion)
    with pytest.raises(ConfigError, match="integers are not compiled"):
        evaluate(model, data_module=loaders(), compile=True, exact=True)


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="C\\+\\+ compiler, and 'no-such-compiler' was not found"):
        train(network(), data_module=loaders(), save_path=tmp_path / "run", compile=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="was not found"), compile_calls(network(), wanted=True):
        pass


def test_what_is_not_compiled(tmp_path: Path, by_eager: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="several processes are not compiled"):
        train(network(), data_module=loaders(), save_path=tmp_path, compile=True, devices=2)
