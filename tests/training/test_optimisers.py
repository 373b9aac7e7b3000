"""Groups of parameters, each with its own rate and decay, against torch's optimisers alone."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import train_bench as bench
from torch import Tensor, nn, optim

from chop.dataset import MaseDataModule
from chop.errors import CheckpointError, TrainingError
from chop.training.optimisers import make_optimiser, parameter_groups, step_function
from chop.training.settings import TrainingSettings

EPOCHS, RATE, DECAY = 3, 0.01, 0.02
PLAIN: dict[str, Callable[..., optim.Optimizer]] = {
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "sgd": lambda groups, **given: optim.SGD(groups, momentum=0.9, nesterov=True, **given),
}
LEFT: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1.0 + math.cos(math.pi * done)) / 2.0,
}


class Grouped(nn.Module):
    """The second layer has its own rate and decay, and so has a scale; the rest is not named."""

    rate = 0.3

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 2)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.two(F.relu(self.one(x.flatten(1))))
        return logits * self.scale

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [
            {"params": self.two.parameters(), "lr": self.rate, "weight_decay": 0.0},
            {"params": self.scale, "lr": 1e-7, "name": "scale"},
        ]


def trained_by_torch(optimizer: str, scheduler: str, accumulate: int = 1) -> Grouped:
    """The loop as anyone would write it, with torch's own groups."""
    model = Grouped()
    optimiser = PLAIN[optimizer](
        [
            {"params": model.one.parameters(), "lr": RATE, "weight_decay": DECAY},
            {"params": model.two.parameters(), "lr": Grouped.rate, "weight_decay": 0.0},
            {"params": [model.scale], "lr": 1e-7, "weight_decay": DECAY},
        ],
        fused=True,
    )
    highest = [group["lr"] for group in optimiser.param_groups]
    loader = MaseDataModule("toy_tiny", 1024).train_dataloader()
    for epoch in range(EPOCHS):
        for group, rate in zip(optimiser.param_groups, highest, strict=True):
            lowest = min(1e-6, rate)
            group["lr"] = lowest + (rate - lowest) * LEFT[scheduler](epoch / EPOCHS)
        batches = list(loader)
        for start in range(0, len(batches), accumulate):
            part = batches[start : start + accumulate]
            optimiser.zero_grad()
            for x, y in part:
                (F.cross_entropy(model(x), y) / len(part)).backward()
            optimiser.step()
    return model


def run(folder: Path, model: nn.Module | None = None, **given: Any) -> Any:
    settings = {"learning_rate": RATE, "weight_decay": DECAY, "max_epochs": EPOCHS, **given}
    return bench.run(folder, model or Grouped(), **settings)


def same(last: Path, model: nn.Module) -> bool:
    found = bench.weights(last)
    return all(torch.equal(found[f"model.{n}"], value) for n, value in model.state_dict().items())


@pytest.mark.parametrize("scheduler", sorted(LEFT))
@pytest.mark.parametrize("optimizer", sorted(PLAIN))
def test_groups_are_trained_as_torch_trains_them(
    optimizer: str, scheduler: str, tmp_path: Path
) -> None:
    result = run(tmp_path, optimizer=optimizer, scheduler=scheduler)
    assert same(result.last, trained_by_torch(optimizer, scheduler))


@pytest.mark.parametrize("optimizer", sorted(PLAIN))
def test_groups_survive_an_interruption(optimizer: str, tmp_path: Path) -> None:
    given = {"optimizer": optimizer, "scheduler": "constant", "accumulate_grad_batches": 3}
    for epochs in (1, EPOCHS):
        result = run(tmp_path, resume=True, max_epochs=epochs, **given)
    assert same(result.last, trained_by_torch(optimizer, "constant", accumulate=3))


def test_a_run_with_other_groups_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, max_epochs=1, scheduler="constant")
    monkeypatch.setattr(Grouped, "rate", 0.2)
    with pytest.raises(CheckpointError, match=r"group 1 of its parameters has lr 0\.3, not 0\.2"):
        run(tmp_path, resume=True, scheduler="constant")
    monkeypatch.setattr(Grouped, "parameter_groups", list)
    with pytest.raises(CheckpointError, match="different number of parameter groups"):
        run(tmp_path, resume=True, scheduler="constant")


def test_a_checkpoint_of_before_groups_is_gone_on_with(tmp_path: Path) -> None:
    given = {"max_epochs": 2, "scheduler": "constant", "learning_rate": RATE}
    whole = bench.run(tmp_path / "whole", **given)
    first = bench.run(tmp_path / "parts", **{**given, "max_epochs": 1})
    content = torch.load(first.last, weights_only=True)
    del content["optimizer_states"][0]["param_groups"][0]["initial_lr"]
    torch.save(content, first.last)
    rest = bench.run(tmp_path / "parts", resume=True, **given)
    assert bench.same(whole.last, rest.last)


def test_every_rate_is_logged(tmp_path: Path) -> None:
    memory = bench.MemoryLogger()
    run(tmp_path, visualizer=memory, log_every_n_steps=10, max_epochs=1, scheduler="constant")
    names = {"lr-Adam/pg1", "lr-Adam/pg2", "lr-Adam/scale"}
    assert all(memory.steps_with(name) == [10] for name in names)


@pytest.mark.parametrize("optimizer", sorted(PLAIN))
def test_a_group_that_a_step_leaves_out(optimizer: str) -> None:
    """Gradients may be missing in some steps, which the short way to step must notice."""
    models = [Grouped(), Grouped()]
    settings = TrainingSettings(optimizer=optimizer, learning_rate=RATE, weight_decay=DECAY)
    optimisers = [make_optimiser(model, settings) for model in models]
    steps = [step_function(optimisers[0]), optimisers[1].step]
    for number in range(6):
        x = torch.randn(5, 4)
        for model, step in zip(models, steps, strict=True):
            model.zero_grad()
            out = model(x) if number % 3 else model.one(x)
            out.square().mean().backward()
            step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_frozen_parameters_and_empty_groups_are_left_out() -> None:
    model = Grouped()
    model.two.requires_grad_(False)
    groups = parameter_groups(model)
    assert [[value.shape for value in group["params"]] for group in groups] == [
        [model.one.weight.shape, model.one.bias.shape],
        [model.scale.shape],
    ]


OTHER = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (lambda m: [m.one.weight], "group 0 must be a dictionary with 'params'"),
        (lambda m: [{"params": m.scale, "rate": 1}], "unknown key 'rate'"),
        (lambda m: [{"params": m.scale, "lr": -1}], "lr must be a number from 0 up (got -1)"),
        (lambda m: [{"params": m.scale, "weight_decay": math.inf}], "weight_decay must be"),
        (lambda m: [{"params": m.scale}, {"params": [m.scale]}], "names a parameter twice"),
        (lambda m: [{"params": OTHER}], "what is not a parameter of it"),
    ],
)
def test_mistakes_in_groups_are_named_before_anything_is_written(
    groups: Callable[[Any], list[Any]],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Grouped, "parameter_groups", groups)
    with pytest.raises(TrainingError) as caught:
        run(tmp_path / "run")
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()
