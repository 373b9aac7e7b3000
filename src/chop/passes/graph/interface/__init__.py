"""Passes that save and load: a graph as a folder, metadata as a TOML file; nothing is pickled.

A graph becomes records of nodes (`graph_file`) and layers (`layers`); `codec` turns their values
into plain data. What comes from a file is checked by `door` against the lists of `targets`.
"""

from chop.passes.graph.interface.node_meta import (
    load_node_meta_param_interface_pass,
    save_node_meta_param_interface_pass,
)
from chop.passes.graph.interface.save_and_load import (
    load_mase_graph,
    load_mase_graph_interface_pass,
    save_mase_graph_interface_pass,
)

__all__ = [
    "load_mase_graph",
    "load_mase_graph_interface_pass",
    "load_node_meta_param_interface_pass",
    "save_mase_graph_interface_pass",
    "save_node_meta_param_interface_pass",
]
