"""How many threads a network is worth."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

SMALL_FLOPS = 10_000_000
"""Below this many operations for a batch, a second thread costs more than it brings.

Measured with multilayer perceptrons and small convolutional networks on two cores: 1.0 times the
speed at 3 million operations, 1.1 to 1.4 at 10 million, 1.6 at 140 million. The choice depends on
the network alone and not on a measurement, as the number of threads can change the last bit of a
sum, and a seed must give the same weights every time.
"""


def forward_operations(model: nn.Module, features: Tensor) -> tuple[int, int]:
    """The multiplications and additions of one batch, and the classes that come out."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        logits = model(features)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        raise ValueError("it does not return one row of numbers for each row")
    return int(counter.get_total_flops()), logits.shape[1]


@contextlib.contextmanager
def using_threads(count: int | None, operations: int) -> Iterator[int]:
    """Run with `count` threads, or with as many as the network is worth."""
    before = torch.get_num_threads()
    chosen = count or (1 if operations < SMALL_FLOPS else before)
    torch.set_num_threads(chosen)
    try:
        yield chosen
    finally:
        torch.set_num_threads(before)
