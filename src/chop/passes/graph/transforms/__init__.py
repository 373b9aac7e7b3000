"""Passes that change a graph: quantise, freeze, prune, fuse batch norms, scale the inputs."""

from chop.passes.graph.transforms.fusion import (
    conv_bn_fusion_transform_pass,
    linear_bn_fusion_transform_pass,
)
from chop.passes.graph.transforms.normalise import normalise_transform_pass
from chop.passes.graph.transforms.pruning import (
    prune_detach_hook_transform_pass,
    prune_transform_pass,
)
from chop.passes.graph.transforms.quantize import (
    freeze_transform_pass,
    quantize_transform_pass,
    summarize_quantization_analysis_pass,
)

__all__ = [
    "conv_bn_fusion_transform_pass",
    "freeze_transform_pass",
    "linear_bn_fusion_transform_pass",
    "normalise_transform_pass",
    "prune_detach_hook_transform_pass",
    "prune_transform_pass",
    "quantize_transform_pass",
    "summarize_quantization_analysis_pass",
]
