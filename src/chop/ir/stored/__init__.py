"""Graphs on disk: a folder with graph.json and safetensors; nothing is pickled.

A graph becomes records of nodes (`graph_file`) and layers (`layers`); `codec` turns their values
into plain data, `metadata` what passes have found out. What comes from a file is checked by
`record_checks` against the lists of `targets`. `folder` writes and reads the files.
"""

from chop.ir.stored.folder import load_mase_graph, save_graph

__all__ = ["load_mase_graph", "save_graph"]
