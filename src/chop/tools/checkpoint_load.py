"""Weights and graphs from disk."""

import os
import warnings
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import nn

from chop.errors import CheckpointError, ConfigError, UnknownNameError
from chop.models.weights import load_weights, read_state_dict
from chop.tools.logger import get_logger

logger = get_logger("chop")

T = TypeVar("T")
WEIGHTS_SUFFIXES = {".ckpt": "pl", ".pt": "pt", ".pth": "pt", ".safetensors": "pt"}
DAMAGE = (zipfile.BadZipFile, zlib.error, UnicodeDecodeError, NotImplementedError)
FOLDER = 0x10  # the attribute in a zip file that marks a folder
HF_FILES = ("model.safetensors", "pytorch_model.bin")
KINDS = {
    "pt": "state dict",
    "pl": "pytorch lightning checkpoint",
    "hf": "Hugging Face weights",
    "mz": "mase graph",
}


def load_model(
    load_name: str | os.PathLike[str], load_type: str = "mz", model: nn.Module | None = None
) -> nn.Module:
    """`model` with the weights in a file, or for ``mz`` the graph that was saved.

    Nothing in the file is executed, and tensors are put on the CPU whatever device they were on.

    Args:
        load_type: ``pt`` a state dict, ``pl`` a Lightning checkpoint, ``mz`` a saved graph,
            ``hf`` a Hugging Face folder.
        model: where the weights go; a graph needs it only for layers of the user's own.
    """
    if load_type not in KINDS:
        raise UnknownNameError("load type", load_type, KINDS)
    path = Path(load_name).expanduser()
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if load_type == "mz" and path.suffix in WEIGHTS_SUFFIXES:
        meant = WEIGHTS_SUFFIXES[path.suffix]
        raise CheckpointError(f"{path}: is no saved graph; write load type {meant!r} for it")
    load = _load_graph if load_type == "mz" else partial(_load_weights, load_type=load_type)
    loaded = load(path, model)
    logger.info("Loaded %s from %s", KINDS[load_type], path)
    return loaded


def guarded(read: Callable[[Path], T], path: Path) -> T:
    """What `read` finds in a file; damage in the table at its end is an error of one line, too."""
    try:
        _check_table(path)
        with warnings.catch_warnings():
            # A pickle that torch did not write is refused; that its version is odd adds nothing.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return read(path)
    except DAMAGE as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: is damaged ({reason})") from None


def _check_table(path: Path) -> None:
    if path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(entry.external_attr & FOLDER for entry in archive.infolist()):
                # torch would read nothing and leave the tensor as the memory happened to be
                raise zipfile.BadZipFile("an entry that should be data is marked as a folder")


def _load_weights(path: Path, model: nn.Module | None, load_type: str) -> nn.Module:
    if model is None:
        raise ConfigError(f"load type {load_type!r} needs a model to put the weights in")
    file = _hf_file(path) if load_type == "hf" else path
    if file.is_dir():
        raise CheckpointError(f"{file}: is a folder; load type {load_type!r} reads a file")
    load_weights(model, guarded(read_state_dict, file), str(file))
    return model


def _hf_file(folder: Path) -> Path:
    for name in HF_FILES:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f"{folder}: holds neither {' nor '.join(HF_FILES)}")


def _load_graph(path: Path, model: nn.Module | None) -> nn.Module:
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.passes.graph.interface import load_mase_graph

    try:
        return load_mase_graph(path).model
    except CheckpointError:
        if model is None:
            raise
    # Layers of the user's own are not in the files; the model that was given has them.
    return load_mase_graph(path, MaseGraph(model)).model
