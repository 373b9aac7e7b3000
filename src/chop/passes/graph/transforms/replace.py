"""Putting modules in the place of others."""

from collections.abc import Mapping

from torch import nn

from chop.ir.graph.mase_graph import MaseGraph


def replace_modules(graph: MaseGraph, replacements: Mapping[nn.Module, nn.Module]) -> None:
    """Put each module in the place of its key, under every name the graph's model has for that.

    One sweep serves all of them, so the cost does not grow with their number squared.
    """
    for parent in list(graph.model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in replacements:
                setattr(parent, name, replacements[child])
