"""Passes that save and load: a graph as a folder, its metadata as a TOML file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.stored.folder import Weights, load_mase_graph, save_graph
from chop.ir.stored.metadata import load_metadata, write_metadata
from chop.passes.base import PASSES, Info, Pass, PassArgs, interface_pass

__all__ = [
    "load_mase_graph",
    "load_mase_graph_interface_pass",
    "load_node_meta_param_interface_pass",
    "save_mase_graph_interface_pass",
    "save_node_meta_param_interface_pass",
]


class SaveMaseGraphArgs(PassArgs):
    """The folder and the form in which to save a graph.

    Args:
        save_dir: the folder. If it holds a graph, the new graph goes to ``name-v1``, unless
            `replace` is set.
        weights: "float" saves float weights; "codes" saves quantised weights as the integer codes
            of their format, which makes a 4-bit model small. Loading codes gives rounded weights.
        add_value: save recorded tensors of the metadata too; by default only with "float".
        replace: replace a graph that the folder already holds.
    """

    shorthand = "save_dir"

    save_dir: Path
    weights: Weights = "float"
    add_value: bool | None = None
    replace: bool = False


class LoadMaseGraphArgs(PassArgs):
    """The place of a saved graph: its folder, or the ``graph.json`` in it."""

    shorthand = "load_dir"

    load_dir: Path


@interface_pass("save_mase_graph")
def save_mase_graph_interface_pass(
    graph: MaseGraph, args: SaveMaseGraphArgs
) -> tuple[MaseGraph, Info]:
    """Save the graph, its weights and its metadata in a folder."""
    saved = save_graph(graph, args.save_dir, args.weights, args.add_value, args.replace)
    return graph, {
        "save_dir": str(saved.folder),
        "bytes": saved.sizes,
        "packed": saved.packed,
        "values_left_out": saved.values_left_out,
    }


class LoadPass(Pass):
    """A pass that makes its graph if there is none."""

    def check(self, graph: MaseGraph | None) -> None:
        """Raise unless there is a graph, or none at all."""
        if graph is not None:
            super().check(graph)


def load_pass(name: str) -> Callable[[Callable[..., Any]], LoadPass]:
    """Declare a pass that may be given None in place of a graph."""
    return lambda function: PASSES.register(name)(LoadPass(function, name, "interface"))


@load_pass("load_mase_graph")
def load_mase_graph_interface_pass(
    graph: MaseGraph | None, args: LoadMaseGraphArgs
) -> tuple[MaseGraph, Info]:
    """Load a graph, its weights and its metadata from a folder.

    Give None to make a new graph. A graph that you give becomes the loaded one, and provides custom
    layers and functions, which are not in the files.
    """
    loaded = load_mase_graph(args.load_dir, graph)
    if graph is None:
        return loaded, {"load_dir": str(args.load_dir)}
    graph.model, graph.meta, graph.cf_args = loaded.model, loaded.meta, loaded.cf_args
    return graph, {"load_dir": str(args.load_dir)}


class SaveNodeMetaParamArgs(PassArgs):
    """The file to write the metadata to.

    Args:
        save_path: the TOML file.
        add_value: write tensors, such as recorded activations, to a second file next to it.
    """

    shorthand = "save_path"

    save_path: Path
    add_value: bool = False


class LoadNodeMetaParamArgs(PassArgs):
    """The file to read the metadata from."""

    shorthand = "load_path"

    load_path: Path


@interface_pass("save_node_meta_param")
def save_node_meta_param_interface_pass(
    graph: MaseGraph, args: SaveNodeMetaParamArgs
) -> tuple[MaseGraph, Info]:
    """Write the metadata of every node to a TOML file."""
    left_out = write_metadata(graph, args.save_path, args.add_value)
    return graph, {"path": str(args.save_path), "values_left_out": left_out}


@interface_pass("load_node_meta_param")
def load_node_meta_param_interface_pass(
    graph: MaseGraph, args: LoadNodeMetaParamArgs
) -> tuple[MaseGraph, Info]:
    """Read the metadata of every node from a TOML file."""
    load_metadata(graph, args.load_path)
    return graph, {"path": str(args.load_path)}
