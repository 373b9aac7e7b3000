"""A program that is wrong in one place is noticed: the comparison of the other tests can fail."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from lowering_nets import example, forward, integer

from chop.lowering import Engine, IntegerProgram, Step, lower
from chop.lowering.program import Clamp, Product, Requantise

Mutation = Callable[[Any], Step]


def mutated(program: IntegerProgram, kind: type[Step], change: Mutation) -> IntegerProgram:
    """The program with its first step of a kind changed."""
    place = next(i for i, step in enumerate(program.steps) if isinstance(step, kind))
    steps = list(program.steps)
    steps[place] = change(steps[place])
    return replace(program, steps=tuple(steps))


MUTATIONS: dict[str, tuple[type[Step], Mutation]] = {
    "rounding": (Requantise, lambda step: replace(step, rounding="half_up")),
    "shift": (Requantise, lambda step: replace(step, shift=step.shift + 1)),
    "overflow": (Requantise, lambda step: replace(step, overflow="wrap")),
    "bound": (Requantise, lambda step: replace(step, high=step.high - 1)),
    "weight": (Product, lambda step: replace(step, weight=step.weight + (step.weight == 1))),
    "bias": (Product, lambda step: replace(step, bias=step.bias + 1)),
    "relu": (Clamp, lambda step: replace(step, low=step.low - 40)),
}


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("arithmetic", ["int64", "fast"])
def test_a_mutation_is_caught(name: str, arithmetic: Any) -> None:
    graph, x = example("jsc-mlp", 400, {"linear": integer(4, 2, 6, 4)})
    program = lower(graph)
    wrong = mutated(program, *MUTATIONS[name])
    wanted = forward(graph, x)
    assert torch.equal(Engine(program, arithmetic)(x)[0], wanted)
    assert not torch.equal(Engine(wrong, arithmetic)(x)[0], wanted)
