"""The same network and the same rows for another seed."""

import copy
from typing import Any

import torch
from torch import nn

from chop.dataset.data_module import MaseDataModule
from chop.errors import SearchError


def fresh_weights(model: nn.Module, seed: int) -> nn.Module:
    """The model with new initial weights, which depend on the seed alone."""
    torch.manual_seed(seed)
    for module in model.modules():
        reset: Any = getattr(module, "reset_parameters", None)
        if reset is None and next(module.parameters(recurse=False), None) is not None:
            raise SearchError(f"{type(module).__name__} cannot be given new initial weights")
        if reset is not None:
            reset()
    return model


def with_batch_size(data: MaseDataModule, size: int | None, seed: int) -> MaseDataModule:
    """The same rows in batches of another size and in another order; nothing is read again."""
    data.setup()
    twin = copy.copy(data)
    # A copy is made as for another process, which would have to read the rows itself.
    vars(twin).update(vars(data), batch_size=size or data.batch_size, seed=seed)
    return twin
