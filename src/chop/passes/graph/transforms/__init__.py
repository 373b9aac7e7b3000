"""Passes that change a graph or write it out: quantise, freeze, prune, fuse, adapt, to Verilog."""

from chop.passes.graph.transforms.folding import fold_normalisation_transform_pass
from chop.passes.graph.transforms.fusion import (
    conv_bn_fusion_transform_pass,
    linear_bn_fusion_transform_pass,
)
from chop.passes.graph.transforms.lora import (
    fuse_lora_weights_transform_pass,
    insert_lora_adapter_transform_pass,
)
from chop.passes.graph.transforms.methods import (
    add_low_rank_transform_pass,
    awq_transform_pass,
    clip_weights_transform_pass,
    correct_bias_transform_pass,
    equalise_transform_pass,
    rotate_transform_pass,
    round_weights_transform_pass,
    smooth_transform_pass,
)
from chop.passes.graph.transforms.normalise import normalise_transform_pass
from chop.passes.graph.transforms.pruning import (
    prune_detach_hook_transform_pass,
    prune_transform_pass,
)
from chop.passes.graph.transforms.quantize import (
    calibrate_transform_pass,
    freeze_transform_pass,
    quantize_transform_pass,
    summarize_quantization_analysis_pass,
)
from chop.passes.graph.transforms.verilog import emit_verilog_top_transform_pass
from chop.passes.graph.transforms.whole import quantize_whole_transform_pass

__all__ = [
    "add_low_rank_transform_pass",
    "awq_transform_pass",
    "calibrate_transform_pass",
    "clip_weights_transform_pass",
    "conv_bn_fusion_transform_pass",
    "correct_bias_transform_pass",
    "emit_verilog_top_transform_pass",
    "equalise_transform_pass",
    "fold_normalisation_transform_pass",
    "freeze_transform_pass",
    "fuse_lora_weights_transform_pass",
    "insert_lora_adapter_transform_pass",
    "linear_bn_fusion_transform_pass",
    "normalise_transform_pass",
    "prune_detach_hook_transform_pass",
    "prune_transform_pass",
    "quantize_transform_pass",
    "quantize_whole_transform_pass",
    "rotate_transform_pass",
    "round_weights_transform_pass",
    "smooth_transform_pass",
    "summarize_quantization_analysis_pass",
]
