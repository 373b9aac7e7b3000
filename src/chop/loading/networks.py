"""Weights and graphs from disk."""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from chop.errors import CheckpointError, ConfigError, UnknownNameError
from chop.loading.paths import loadable
from chop.logger import get_logger
from chop.models.hf import as_actions_take_it, from_transformers, has_config
from chop.models.weights import (
    load_weights,
    preprocessing_in,
    read_checkpoint,
    read_state_dict,
    state_dict_in,
)
from chop.preprocessing import preprocessing_of, set_preprocessing

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph

logger = get_logger("chop")

HF_FILES = ("model.safetensors", "pytorch_model.bin")
KINDS = {
    "pt": "state dict",
    "pl": "pytorch lightning checkpoint",
    "hf": "Hugging Face weights",
    "mz": "mase graph",
    "qonnx": "QONNX file",
}

GRAPHS = ("mz", "qonnx")
"""The types that are networks with their formats."""


def load_model(
    load_name: str | os.PathLike[str], load_type: str = "mz", model: nn.Module | None = None
) -> nn.Module:
    """`model` with the weights in a file, or for ``mz`` and ``qonnx`` the graph in it.

    Nothing in the file is executed, and tensors are put on the CPU whatever device they were on.

    Args:
        load_type: ``pt`` a state dict, ``pl`` a Lightning checkpoint, ``mz`` a saved graph,
            ``hf`` a Hugging Face folder, ``qonnx`` an ONNX file with Quant nodes. A folder with a
            ``config.json`` says which model it is, and that model is built, instead of putting the
            weights into `model`. The default gives way to what the path shows; the folder of a
            project stands for its best checkpoint.
        model: where the weights go; a graph needs it only for custom layers.
    """
    if load_type not in KINDS:
        raise UnknownNameError("load type", load_type, KINDS)
    path, load_type = loadable(Path(load_name), load_type)
    if load_type == "hf" and has_config(path):
        loaded = as_actions_take_it(from_transformers(path))
        logger.info("%s takes the place of the model that was named", type(loaded).__name__)
    else:
        loads = {"mz": _load_graph, "qonnx": lambda path, model: load_graph(path, "qonnx").model}
        load = loads.get(load_type) or partial(_load_weights, load_type=load_type)
        loaded = load(path, model)
    logger.info("Loaded %s from %s", KINDS[load_type], path)
    if preprocessing_of(loaded) is None:
        logger.info("It does not say how the rows were scaled that it was trained on")
    return loaded


def load_graph(path: str | os.PathLike[str], load_type: str = "mz") -> "MaseGraph":
    """A graph with its metadata; as `load_model`, which gives the network of it."""
    place, load_type = loadable(Path(path), load_type)
    if load_type not in GRAPHS:
        raise ConfigError(
            f"{path}: load type {load_type!r} has weights only: a graph is of type "
            f"{' or '.join(GRAPHS)}"
        )
    if load_type == "qonnx":
        return _qonnx_graph(place)
    from chop.ir.stored import load_mase_graph

    return load_mase_graph(place)


def _qonnx_graph(path: Path) -> "MaseGraph":
    """The graph of a QONNX file, with the metadata that passes read."""
    from chop.export.onnx.read.graph import load_qonnx
    from chop.lowering import LoweringError
    from chop.passes.graph import add_common_metadata_analysis_pass, init_metadata_analysis_pass
    from chop.passes.graph.transforms.quantize.free_scales import settle_scales

    graph, rows = load_qonnx(path)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": rows})
    with suppress(LoweringError):  # what is not whole in integers has no grids
        settle_scales(graph)
    return graph


def _load_weights(path: Path, model: nn.Module | None, load_type: str) -> nn.Module:
    if model is None:
        raise ConfigError(f"load type {load_type!r} needs a model to put the weights in")
    file = _hf_file(path) if load_type == "hf" else path
    if file.is_dir():
        raise CheckpointError(f"{file}: is a folder; load type {load_type!r} reads a file")
    if load_type == "pl":
        content = read_checkpoint(file)
        load_weights(model, state_dict_in(content, file), str(file))
        set_preprocessing(model, preprocessing_in(content, file))
    else:
        load_weights(model, read_state_dict(file), str(file))
    return model


def _hf_file(folder: Path) -> Path:
    for name in HF_FILES:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f"{folder}: holds neither {' nor '.join(HF_FILES)}")


def _load_graph(path: Path, model: nn.Module | None) -> nn.Module:
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.ir.stored import load_mase_graph

    try:
        return load_mase_graph(path).model
    except CheckpointError:
        if model is None:
            raise
    # Custom layers are not in the files; the model that was given has them.
    return load_mase_graph(path, MaseGraph(model)).model
