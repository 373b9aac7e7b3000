"""Pruning of weights and of what flows into layers.

`rules` says what can be asked for, `methods` what is important, `prune` and `activations` choose,
`masks` puts the zeros in.
"""

from chop.passes.graph.transforms.pruning.methods import METHODS
from chop.passes.graph.transforms.pruning.prune import (
    prune_detach_hook_transform_pass,
    prune_transform_pass,
)

__all__ = ["METHODS", "prune_detach_hook_transform_pass", "prune_transform_pass"]
