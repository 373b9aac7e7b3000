"""Running a model without leaving a trace on it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from chop.ir.graph.snapshot import Snapshot


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards the model is as before, bit for bit.

    Modes are restored module by module, because parts of a model may be frozen on purpose.
    """
    before = Snapshot(model)
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:  # not model.eval(), which exported modules refuse
        module.training = False
    try:
        # What is recorded in inference mode could not be used with gradients later.
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        before.restore()
