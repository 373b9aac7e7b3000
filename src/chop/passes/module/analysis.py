"""Analyses of a module that is not traced."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from chop.errors import ConfigError, GraphError
from chop.passes.base import Info
from chop.passes.graph.analysis.flops.operands import average, model_parameters
from chop.passes.graph.analysis.parameters import report_parameters


def calculate_avg_bits_module_analysis_pass(
    module: nn.Module, pass_args: Mapping[str, Any] | None = None
) -> tuple[nn.Module, Info]:
    """Average the bits over all parameters of a module; those not quantised have their dtype's."""
    _check(module, pass_args)
    stored = model_parameters(module)
    elements = sum(parameter.numel() for parameter in stored)
    return module, {"average_bitwidth": average(sum(stored.values()), elements)}


def report_module_parameters(
    module: nn.Module, pass_args: Mapping[str, Any] | None = None
) -> tuple[nn.Module, Info]:
    """Print how many parameters each layer of a module has and how many of them learn."""
    _check(module, pass_args)
    return module, report_parameters(module)


report_trainable_parameters_analysis_pass = report_module_parameters  # as on graphs


def _check(module: nn.Module, pass_args: Mapping[str, Any] | None) -> None:
    if not isinstance(module, nn.Module):
        raise GraphError(f"this pass works on a torch.nn.Module, not a {type(module).__name__}")
    if pass_args:
        raise ConfigError(f"this pass takes no arguments, got {sorted(pass_args)}")
