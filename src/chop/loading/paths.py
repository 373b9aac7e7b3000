"""Meaning of a path after ``--load``: a file or folder of weights, or the best of a project."""

from pathlib import Path

from chop.errors import CheckpointError
from chop.runs import GRAPH_FILE, SOFTWARE, open_run

GRAPH_TYPE = "mz"
"""What is taken for granted, unless the path says something else."""
SUFFIXES = {
    ".ckpt": "pl", ".pt": "pt", ".pth": "pt", ".safetensors": "pt", ".bin": "pt", ".onnx": "qonnx"
}  # fmt: skip
HF_CONFIG = "config.json"


def loadable(path: Path, load_type: str = GRAPH_TYPE) -> tuple[Path, str]:
    """The file or folder that `path` means, and what it is.

    Args:
        path: a file, a folder, or the folder of a project, which stands for the best checkpoint of
            its newest training, or for its newest graph where nothing was trained.
        load_type: as ``--load-type`` has it; the default gives way to what the path shows.
    """
    place = path.expanduser()
    if not place.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if (place / SOFTWARE).is_dir() or place.name == SOFTWARE:
        place = best_of_project(place)
    return place, _type_of(place) if load_type == GRAPH_TYPE else load_type


def best_of_project(project: Path) -> Path:
    """The best checkpoint of the newest training in a project, or its newest saved graph."""
    run = open_run(project)
    found = [*run.best_checkpoints, *run.graphs]
    if not found:
        raise CheckpointError(
            f"{project}: holds no checkpoint and no saved graph: ch train and ch transform make "
            "them, and --config takes the best_….toml of a search"
        )
    return found[0]


def _type_of(path: Path) -> str:
    if path.name == HF_CONFIG or (path / HF_CONFIG).is_file():
        return "hf" if not (path / GRAPH_FILE).is_file() else GRAPH_TYPE
    return SUFFIXES.get(path.suffix.lower(), GRAPH_TYPE) if path.is_file() else GRAPH_TYPE
