"""Methods that lose less at few bits and change no format, each a pass."""

from chop.passes.graph.transforms.methods.equalise import equalise_transform_pass
from chop.passes.graph.transforms.methods.layerwise import (
    clip_weights_transform_pass,
    correct_bias_transform_pass,
    round_weights_transform_pass,
)
from chop.passes.graph.transforms.methods.low_rank import add_low_rank_transform_pass
from chop.passes.graph.transforms.methods.rotate import rotate_transform_pass
from chop.passes.graph.transforms.methods.scaling import awq_transform_pass, smooth_transform_pass

__all__ = [
    "add_low_rank_transform_pass",
    "awq_transform_pass",
    "clip_weights_transform_pass",
    "correct_bias_transform_pass",
    "equalise_transform_pass",
    "rotate_transform_pass",
    "round_weights_transform_pass",
    "smooth_transform_pass",
]
