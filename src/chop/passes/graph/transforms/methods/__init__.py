"""Methods that lose less at few bits and change no format, each a pass."""

from chop.passes.graph.transforms.methods.equalise import equalise_transform_pass
from chop.passes.graph.transforms.methods.layerwise import (
    correct_bias_transform_pass,
    round_weights_transform_pass,
)

__all__ = [
    "correct_bias_transform_pass",
    "equalise_transform_pass",
    "round_weights_transform_pass",
]
