"""Parameters and buffers of a layer by the names that the layer knows them by."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from chop.nn.quantizers import QUANTIZERS


def module_parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters by the names the layer knows them by, parametrised (pruned) ones included."""
    seen = set()
    for name, parameter in module.named_parameters():
        plain = plain_name(name)
        if plain not in seen and not name.startswith(f"{QUANTIZERS}."):
            seen.add(plain)
            yield plain, parameter if plain == name else attribute(module, plain)


def module_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers that are data: no call counters, no masks and no state of a quantiser."""
    for name, buffer in module.named_buffers():
        if name.startswith(f"{QUANTIZERS}."):
            continue
        if not name.endswith("num_batches_tracked") and "parametrizations." not in name:
            yield name, buffer


def plain_name(name: str) -> str:
    """`parametrizations.weight.original` is the `weight`."""
    before, found, after = name.partition("parametrizations.")
    return before + after.partition(".")[0] if found else name


def attribute(module: nn.Module, name: str) -> Any:
    """An attribute by its dotted name."""
    owner, _, last = name.rpartition(".")
    return getattr(module.get_submodule(owner), last)
