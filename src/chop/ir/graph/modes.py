"""Running a model without leaving a trace on it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards each module's mode and buffer is as before.

    Modes are restored module by module, because parts of a model may be frozen on purpose.
    Buffers are copied because a forward may count its calls in one; they are small. So are weights
    that a forward writes to.
    """
    modes = [(module, module.training) for module in model.modules()]
    written = [*model.buffers(), *renormalised(model)]
    buffers = [(buffer, version(buffer), buffer.detach().clone()) for buffer in written]
    for module, _ in modes:  # not model.eval(), which exported modules refuse
        module.training = False
    try:
        # Tensors made in inference mode do not tell when they are overwritten.
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for buffer, known, before in buffers:
                if known is None or buffer._version != known:
                    buffer.copy_(before)


def renormalised(model: nn.Module) -> Iterator[Tensor]:
    """The weights of embeddings whose rows have a largest norm, which they get as they are used."""
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            yield module.weight


def version(tensor: Tensor) -> int | None:
    """How often a tensor was written to; tensors of inference mode do not say."""
    return None if tensor.is_inference() else tensor._version
