"""Optimisers, and the course of the learning rate over the epochs."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from chop.errors import TrainingError, suggestion
from chop.nn.bit_cost import learned_bits
from chop.training.settings import TrainingSettings

LOWEST_RATE = 1e-6
LARGEST_ROOT = 1e18
"""A number whose square weights of 32 bits can still hold."""
FUNCTIONAL: dict[type, Callable[..., None]] = {optim.Adam: adam, optim.AdamW: adamw}
GROUP_SETTINGS = ("lr", "weight_decay")
"""The settings that a group of parameters may have for itself."""
OWN_RATE = "initial_lr"
"""The key of a group, torch's own name for it, that keeps its rate before any schedule."""
BITS_FACTOR = 2
"""The rate of learned bits, where none is given, in learning rates of the run."""
FUSED_DEVICES = frozenset(("cpu", "cuda", "mps", "xpu"))


def make_optimiser(model: nn.Module, settings: TrainingSettings) -> optim.Optimizer:
    """The optimiser of a run, in its fused variant where the device has one."""
    groups = with_bits(parameter_groups(model), model, settings)
    rate, decay = settings.learning_rate, settings.weight_decay
    common: dict[str, Any] = {"lr": rate, "weight_decay": decay, "fused": can_be_fused(groups)}
    if settings.optimizer == "sgd":
        return with_own_rates(optim.SGD(groups, momentum=0.9, nesterov=True, **common))
    kind = optim.AdamW if settings.optimizer == "adamw" else optim.Adam
    return with_own_rates(kind(groups, **common))


def make_adam(groups: Iterable[tuple[Iterable[Tensor], float]]) -> optim.Optimizer:
    """Adam with a rate for each group of parameters, fused where the device can."""
    stated: list[dict[str, Any]] = [{"params": list(each), "lr": rate} for each, rate in groups]
    stated = [group for group in stated if group["params"]]
    return with_own_rates(optim.Adam(stated, fused=can_be_fused(stated)))


def can_be_fused(groups: list[dict[str, Any]]) -> bool:
    """Return whether the devices of all parameters have a fused step."""
    return all(
        value.device.type in FUSED_DEVICES and value.is_floating_point()
        for group in groups
        for value in group["params"]
    )


def with_own_rates(optimiser: optim.Optimizer) -> optim.Optimizer:
    """The optimiser, each group of which knows its rate before any schedule."""
    for group in optimiser.param_groups:
        group[OWN_RATE] = group["lr"]
    return optimiser


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """The parameters that training changes, in groups that may have separate settings.

    A model says which by a method `parameter_groups()`, as torch's optimisers take them; what it
    leaves out is trained with the settings of the run, in a group before the others.
    """
    wanted = trainable(model)
    method = getattr(model, "parameter_groups", list)
    if not callable(method):
        raise TrainingError("the model's parameter_groups is not a method; it must be one")
    stated = [checked_group(number, group) for number, group in enumerate(method())]
    taken: list[nn.Parameter] = [value for group in stated for value in group["params"]]
    check_members(taken, list(model.parameters()))
    for group in stated:
        group["params"] = [value for value in group["params"] if value.requires_grad]
    chosen = {id(value) for value in taken}
    rest = [value for value in wanted if id(value) not in chosen]
    return [group for group in ({"params": rest}, *stated) if group["params"]]


def with_bits(
    groups: list[dict[str, Any]], model: nn.Module, settings: TrainingSettings
) -> list[dict[str, Any]]:
    """The groups with learned bits in one with a separate rate, unless the model groups them."""
    bits = {id(value) for value in learned_bits(model)}
    unstated = groups[0]["params"] if groups[0].keys() == {"params"} else []
    chosen = [value for value in unstated if id(value) in bits]
    if not chosen:
        return groups
    rest = [value for value in unstated if id(value) not in bits]
    rate = settings.bits_learning_rate or BITS_FACTOR * settings.learning_rate
    own = {"params": chosen, "name": "bits", "lr": rate, "weight_decay": 0.0}
    return [group for group in ({"params": rest}, *groups[1:], own) if group["params"]]


def checked_group(number: int, group: Any) -> dict[str, Any]:
    """A group that a model states, if it is one; a copy, as torch adds to what it is given."""
    where = f"parameter_groups() of the model: group {number}"
    if not isinstance(group, Mapping) or "params" not in group:
        raise TrainingError(f"{where} must be a dictionary with 'params' (got {group!r:.60})")
    for name, value in group.items():
        if name not in ("params", "name", *GROUP_SETTINGS):
            raise TrainingError(
                f"{where}: unknown key {name!r}: {suggestion(str(name), GROUP_SETTINGS)}"
            )
        if name in GROUP_SETTINGS and not (
            isinstance(value, int | float) and 0 <= value < math.inf
        ):
            raise TrainingError(f"{where}: {name} must be a number from 0 up (got {value!r})")
    given = group["params"]
    params = [given] if isinstance(given, Tensor) else list(given)
    return {**group, "params": params}


def check_members(taken: list[nn.Parameter], parameters: list[nn.Parameter]) -> None:
    """Refuse a parameter that is in two groups, or that is not one of the model."""
    known = {id(value) for value in parameters}
    seen: set[int] = set()
    for value in taken:
        if id(value) not in known:
            raise TrainingError(
                "parameter_groups() of the model names what is not a parameter of it"
            )
        if id(value) in seen:
            raise TrainingError("parameter_groups() of the model names a parameter twice")
        seen.add(id(value))


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that training changes; a model without any is an error."""
    parameters = list(model.parameters())
    found = [value for value in parameters if value.requires_grad]
    if not found:
        why = "all its parameters are frozen" if parameters else "it has no parameters"
        raise TrainingError(f"the model cannot be trained: {why}")
    return found


def restore(optimiser: optim.Optimizer, saved: dict[str, Any]) -> None:
    """Give an optimiser the state of an interrupted run, whose groups must say the same."""
    asked = [dict(group) for group in optimiser.param_groups]
    optimiser.load_state_dict(saved)
    for number, (group, now) in enumerate(zip(optimiser.param_groups, asked, strict=True)):
        for name in (OWN_RATE, "weight_decay"):
            if group.setdefault(name, now[name]) != now[name]:
                shown = "lr" if name == OWN_RATE else name
                raise ValueError(
                    f"group {number} of its parameters has {shown} {group[name]}, not {now[name]}"
                )


REMAINING: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1.0 + math.cos(math.pi * done)) / 2.0,
}
"""The share of the way down to the lowest rate that is left when a share of epochs is done."""


def learning_rate(settings: TrainingSettings, epoch: int, highest: float | None = None) -> float:
    """The learning rate of an epoch; it never rises above the one that was asked for.

    Args:
        highest: what a group of parameters asks for in place of the run.
    """
    highest = settings.learning_rate if highest is None else highest
    lowest = min(LOWEST_RATE, highest)
    left = REMAINING[settings.scheduler](min(epoch / settings.max_epochs, 1.0))
    return lowest + (highest - lowest) * left


def decays_too_fast(settings: TrainingSettings, rate: float) -> bool:
    """Return whether the weight decay alone makes weights grow without end, or overflows."""
    if settings.optimizer == "adam":  # which divides by the square root of its squares' mean
        return settings.weight_decay > LARGEST_ROOT
    return rate * settings.weight_decay > 1


def set_learning_rates(optimiser: optim.Optimizer, settings: TrainingSettings, epoch: int) -> None:
    """Set the rate that each group of parameters has in an epoch."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate(settings, epoch, group[OWN_RATE])


def step_function(optimiser: optim.Optimizer) -> Callable[[], Any]:
    """`optimiser.step` without what it looks up again in every step, but for the rates.

    For a network of a hundred parameters that is a fifth of the time. The arithmetic is torch's
    own fused kernel, called through its functional form on the optimiser's own state.
    """
    functional = FUNCTIONAL.get(type(optimiser))
    if functional is None or not all(group["fused"] for group in optimiser.param_groups):
        return optimiser.step
    parameters: list[Tensor] = [
        value for group in optimiser.param_groups for value in group["params"]
    ]
    kernels: list[Callable[[], None]] = []

    def step() -> None:
        if kernels and all(value.grad is not None for value in parameters):
            for kernel in kernels:
                kernel()
            return
        optimiser.step()  # also makes the state, in the first step
        if all(optimiser.state[value] for value in parameters):
            kernels[:] = [
                group_kernel(functional, group, optimiser.state) for group in optimiser.param_groups
            ]

    return torch.no_grad()(step)


def group_kernel(
    functional: Callable[..., None], group: dict[str, Any], states: Mapping[Tensor, Any]
) -> Callable[[], None]:
    """A step of one group of parameters, each of which has a gradient."""
    parameters: list[Tensor] = group["params"]
    averages, squares, steps = (
        [states[value][key] for value in parameters] for key in ("exp_avg", "exp_avg_sq", "step")
    )
    names = ("weight_decay", "eps", "amsgrad", "maximize")
    fixed = {name: group[name] for name in names}
    beta1, beta2 = group["betas"]

    def kernel() -> None:
        functional(
            parameters, [value.grad for value in parameters], averages, squares, [], steps,
            fused=True, beta1=beta1, beta2=beta2, lr=group["lr"], **fixed,
        )  # fmt: skip

    return kernel
