"""Files of tensors and text: written whole, read with care, for they may be meant to harm."""

from pathlib import Path

import safetensors
from torch import Tensor

from chop.errors import CheckpointError
from chop.files import read_safetensors, regular, write_safetensors

PICKLES = (".mz", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin")
PICKLED_GRAPH = "graph_module.mz"


def read_text(path: Path) -> str:
    """The text of a file."""
    try:
        return regular(path).read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: is not a text file") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU."""
    try:
        return read_safetensors(path)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file: {error}") from None


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file that others may read as they may any new file of the user's."""
    write_safetensors(path, tensors)


def refuse_pickle(path: Path) -> None:
    """Raise for a file of the original's: unpickling runs whatever code is in it."""
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"{path}: is a pickle, and loading a pickle runs any code that is hidden in it; "
            "load its state dict with load type 'pt' or 'pl' and save the graph with chop"
        )
