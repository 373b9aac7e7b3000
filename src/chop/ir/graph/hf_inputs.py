"""Example inputs of models of transformers, made from their names and a configuration alone."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError, GraphError, UnknownNameError

ROWS, LENGTH = 2, 8
"""Of the examples; a graph holds for other sizes too, as far as torch.export can prove it."""
NAMES = (
    "input_ids", "attention_mask", "token_type_ids", "position_ids", "labels",
    "decoder_input_ids", "decoder_attention_mask", "inputs_embeds", "pixel_values",
)  # fmt: skip


def inputs_by_name(model: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    """An example of each input of a model that has the configuration of transformers."""
    config: Any = getattr(model, "config", None)
    if config is None:
        raise GraphError(
            f"hf_input_names: {type(model).__name__} has no config, so it is not a model of "
            "transformers: give example_inputs"
        )
    if isinstance(names, str) or not names:
        raise ConfigError(f"hf_input_names: a list of names is wanted, not {names!r}")
    for name in names:
        if name not in NAMES:
            raise UnknownNameError("input", name, NAMES, "hf_input_names")
    return {name: example_input(name, model, config) for name in names}


def example_input(name: str, model: nn.Module, config: Any) -> Tensor:
    """An example of one input."""
    places = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH)
    if name in ("input_ids", "decoder_input_ids"):
        return 1 + places % (int(config.vocab_size) - 1)  # token 0 is padding more often than not
    if name == "labels":
        by_row = type(model).__name__.endswith("Classification") and "Token" not in str(type(model))
        return torch.zeros(ROWS, dtype=torch.int64) if by_row else torch.zeros_like(places)
    if name == "position_ids":
        return places[:1].repeat(ROWS, 1)
    if name == "inputs_embeds":
        return torch.zeros(ROWS, LENGTH, int(config.hidden_size))
    if name == "pixel_values":
        size = int(config.image_size)
        return torch.zeros(ROWS, int(config.num_channels), size, size)
    return torch.zeros_like(places) if name == "token_type_ids" else torch.ones_like(places)
