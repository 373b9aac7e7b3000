"""Pruning of weights and activations."""

from chop.passes.graph.transforms.pruning.methods import METHODS
from chop.passes.graph.transforms.pruning.prune import prune_transform_pass
from chop.passes.graph.transforms.pruning.prune_detach_hook import prune_detach_hook_transform_pass

__all__ = ["METHODS", "prune_detach_hook_transform_pass", "prune_transform_pass"]
