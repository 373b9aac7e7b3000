"""What a model is made of, remembered so that it can be put back bit for bit."""

import random
import sys
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from chop.nn.forward import INTEGERS

# Objects of these packages are left alone: a logger or a trainer is no part of a model, and a
# quantised layer has a cache that is worth keeping.
NOT_THE_USERS = {"torch", "chop", "lightning", *sys.stdlib_module_names}
SCALARS = (bool, int, float, complex, str, bytes)
REGISTRIES = ("_parameters", "_buffers", "_modules")


class KeptTensor(NamedTuple):
    """A tensor, the memory it uses and a copy of what is in it."""

    tensor: Tensor
    memory: Tensor
    copy: Tensor
    requires_grad: bool

    def restore(self) -> None:
        """Give the tensor its memory and its values back; an untouched one stays untouched."""
        if self.tensor.data_ptr() != self.memory.data_ptr():  # `weight.data = other`
            self.tensor.data = self.memory
        if not same_bits(self.memory, self.copy):
            with torch.no_grad():
                self.tensor.copy_(self.copy)
        if self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)


class KeptContainer(NamedTuple):
    """A dictionary, list or set, and what was in it."""

    path: str
    container: Any
    contents: list[Any]

    def restore(self) -> None:
        """Fill the container as it was, in the same order."""
        if not self.container and not self.contents:  # most dictionaries of hooks are empty
            return
        now = contents_of(self.container)
        if len(now) != len(self.contents) or not all(map(same_entry, now, self.contents)):
            self.container.clear()
            fill = getattr(self.container, "update", None) or self.container.extend
            fill(self.contents)

    def changed(self) -> list[str]:
        """The paths of entries that are not what they were."""
        now = contents_of(self.container)
        if not isinstance(self.container, dict):
            same = len(now) == len(self.contents) and all(map(same_value, now, self.contents))
            return [] if same else [self.path]
        before, after = dict(self.contents), dict(now)
        return [
            joined(self.path, key)
            for key in before | after
            if (key in before) != (key in after) or not same_value(before[key], after[key])
        ]


class Snapshot:
    """A model's attributes, hooks, modes and tensors, and the state of random numbers.

    It looks into dictionaries, lists and sets that a model holds, and into objects of the user's
    own classes. Tensors are copied, because a write through ``.data`` leaves no other sign.
    """

    def __init__(self, model: nn.Module) -> None:
        self.containers: list[KeptContainer] = []
        self.tensors: list[KeptTensor] = []
        # A scripted module does not show its tensors among its attributes.
        self._remember([*model.named_parameters(), *model.named_buffers(), ("", model)])
        devices = {kept.tensor.get_device() for kept in self.tensors if kept.tensor.is_cuda}
        self.cuda = [(device, torch.cuda.get_rng_state(device)) for device in sorted(devices)]
        self.torch = torch.get_rng_state()
        self.python, self.numpy = random.getstate(), np.random.get_state()

    def _remember(self, todo: list[tuple[str, Any]]) -> None:
        seen: set[int] = set()
        while todo:
            path, value = todo.pop()
            if value is None or type(value) in SCALARS or id(value) in seen:
                continue
            seen.add(id(value))
            tensor, container = tensor_of(value), container_of(value)
            if tensor is not None:
                kept = KeptTensor(
                    tensor, tensor.data, tensor.detach().clone(), tensor.requires_grad
                )
                self.tensors.append(kept)
            elif container is not None:
                contents = contents_of(container)
                self.containers.append(KeptContainer(path, container, contents))
                todo.extend(inside(path, container, contents))
            elif type(value) is tuple:
                todo.extend((path, item) for item in value)

    def restore(self) -> None:
        """Make the model what it was."""
        for container in self.containers:
            container.restore()
        for tensor in self.tensors:
            tensor.restore()
        for device, state in self.cuda:
            torch.cuda.set_rng_state(state, device)
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        np.random.set_state(self.numpy)

    def changed(self) -> list[str]:
        """The attributes that are not what they were, by dotted name; values are not looked at."""
        return [path for kept in self.containers for path in kept.changed()]

    def drew_random_numbers(self) -> bool:
        """Whether a random number was drawn on the CPU."""
        drawn = random.getstate() != self.python
        return drawn or not torch.equal(torch.get_rng_state(), self.torch)


def tensor_of(value: Any) -> Tensor | None:
    """A tensor or array of numbers that has values to lose, as a tensor."""
    if isinstance(value, Tensor):
        return None if value.is_meta or is_lazy(value) else value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.flags.writeable:
        return torch.from_numpy(value)
    return None


def container_of(value: Any) -> Any:
    """What can be changed about a value: itself, or the dictionary of its attributes."""
    if isinstance(value, dict | list | set | deque):
        return value
    if isinstance(value, Tensor):
        return None
    if isinstance(value, nn.Module):
        # Running a lazy layer is what makes it a layer: that is not undone.
        lazy = any(map(is_lazy, value.parameters(recurse=False)))
        return None if lazy else vars(value)
    package = type(value).__module__.partition(".")[0]
    if package in NOT_THE_USERS and not isinstance(value, SimpleNamespace):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else None


def contents_of(container: Any) -> list[Any]:
    """The entries of a container in order: pairs for a dictionary."""
    return list(container.items() if isinstance(container, dict) else container)


def inside(path: str, container: Any, contents: list[Any]) -> Iterator[tuple[str, Any]]:
    """What a container holds, with its path."""
    if isinstance(container, dict):
        yield from ((joined(path, key), value) for key, value in contents)
    else:
        yield from ((path, value) for value in contents)


def joined(path: str, name: Any) -> str:
    """A dotted name; torch's own dictionaries of parts are no step of it."""
    if name in REGISTRIES:
        return path
    return f"{path}.{name}" if path else str(name)


def same_entry(one: Any, other: Any) -> bool:
    """Whether two entries of a container are the same objects."""
    if type(one) is tuple and type(other) is tuple and len(one) == len(other) == 2:
        return one[0] is other[0] and one[1] is other[1]
    return one is other


def same_value(one: Any, other: Any) -> bool:
    """Whether two entries are the same object or equal numbers or texts."""
    return one is other or (type(one) is type(other) and type(one) in SCALARS and one == other)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same bits: -0.0 differs from 0.0, NaN equals itself."""
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if one.layout is torch.strided and not one.is_quantized:
        integers = INTEGERS[one.element_size()]
        one, other = one.view(integers), other.view(integers)
    return torch.equal(one, other)
