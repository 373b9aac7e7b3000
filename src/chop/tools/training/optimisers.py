"""Optimisers, and the course of the learning rate over the epochs."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from chop.errors import TrainingError
from chop.tools.training.settings import TrainingSettings

LOWEST_RATE = 1e-6
LARGEST_ROOT = 1e18
"""A number whose square weights of 32 bits can still hold."""
FUNCTIONAL: dict[type, Callable[..., None]] = {optim.Adam: adam, optim.AdamW: adamw}
FUSED_DEVICES = frozenset(("cpu", "cuda", "mps", "xpu"))


def make_optimiser(model: nn.Module, settings: TrainingSettings) -> optim.Optimizer:
    """The optimiser of a run, in its fused variant where the device has one."""
    parameters = trainable(model)
    fused = all(
        value.device.type in FUSED_DEVICES and value.is_floating_point() for value in parameters
    )
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "sgd":
        return optim.SGD(
            parameters, lr=rate, momentum=0.9, nesterov=True, weight_decay=decay, fused=fused
        )
    kind = optim.AdamW if settings.optimizer == "adamw" else optim.Adam
    return kind(parameters, lr=rate, weight_decay=decay, fused=fused)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that training changes; a model without any is an error."""
    parameters = list(model.parameters())
    found = [value for value in parameters if value.requires_grad]
    if not found:
        why = "all its parameters are frozen" if parameters else "it has no parameters"
        raise TrainingError(f"the model cannot be trained: {why}")
    return found


REMAINING: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1.0 + math.cos(math.pi * done)) / 2.0,
}
"""How much of the way down to the lowest rate is left when a share of the epochs is done."""


def learning_rate(settings: TrainingSettings, epoch: int) -> float:
    """The learning rate of an epoch; it never rises above the one that was asked for."""
    lowest = min(LOWEST_RATE, settings.learning_rate)
    left = REMAINING[settings.scheduler](min(epoch / settings.max_epochs, 1.0))
    return lowest + (settings.learning_rate - lowest) * left


def decays_too_fast(settings: TrainingSettings, rate: float) -> bool:
    """Whether the weight decay alone makes weights grow without end, or overflows."""
    if settings.optimizer == "adam":  # which divides by the square root of its squares' mean
        return settings.weight_decay > LARGEST_ROOT
    return rate * settings.weight_decay > 1


def set_learning_rate(optimiser: optim.Optimizer, rate: float) -> None:
    """Set the rate of every group of parameters."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def step_function(optimiser: optim.Optimizer) -> Callable[[], Any]:
    """`optimiser.step` for one learning rate, without what it looks up anew in every step.

    For a network of a hundred parameters that is a fifth of the time. The arithmetic is torch's
    own fused kernel, called through its functional form on the optimiser's own state.
    """
    functional = FUNCTIONAL.get(type(optimiser))
    group = optimiser.param_groups[0]
    if functional is None or not group["fused"]:
        return optimiser.step
    parameters: list[Tensor] = group["params"]
    names = ("lr", "weight_decay", "eps", "amsgrad", "maximize")
    fixed = {name: group[name] for name in names}
    beta1, beta2 = group["betas"]
    lists: list[list[Tensor]] = []

    def step() -> None:
        gradients = [value.grad for value in parameters]
        if not lists or any(gradient is None for gradient in gradients):
            optimiser.step()  # also makes the state, in the first step
            state = [optimiser.state[value] for value in parameters if optimiser.state[value]]
            if len(state) == len(parameters):
                lists[:] = [
                    [one[key] for one in state] for key in ("exp_avg", "exp_avg_sq", "step")
                ]
            return
        averages, squares, steps = lists
        functional(
            parameters, gradients, averages, squares, [], steps,
            fused=True, beta1=beta1, beta2=beta2, **fixed,
        )  # fmt: skip

    return torch.no_grad()(step)
