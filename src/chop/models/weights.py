"""Files of weights, read without running anything that might be in them."""

import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import CheckpointError
from chop.files import read_safetensors
from chop.preprocessing import Preprocessing, from_plain

StateDict = dict[str, Tensor]
OURS = "chop"
"""The key of a Lightning checkpoint under which everything is that Lightning does not know."""
PREPROCESSING = "preprocessing"
"""Where in that it says how the rows were scaled."""

UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, KeyError, IndexError, AttributeError,
    NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What torch and zipfile raise on damaged files."""
ASTRAY = (EOFError, KeyError, IndexError, AttributeError, UnicodeDecodeError)
"""What an unpickler raises where a file makes no sense, with a message that says nothing."""
FOLDER = 0x10  # the attribute in a zip file that marks a folder
PICKLE = b"\x80"  # how a pickle begins
OLD_FORMAT = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""What follows that and a version in files of torch from before 1.6: a number that marks them."""


def read_state_dict(path: str | os.PathLike[str]) -> StateDict:
    """The tensors of a `.safetensors`, `.pt` or Lightning `.ckpt` file by name, on the CPU.

    Lightning keeps the network as its attribute `model`; that prefix is taken off.
    """
    if Path(path).suffix == ".safetensors":
        return _read_safetensors(Path(path))
    return state_dict_in(read_checkpoint(path), path)


def state_dict_in(content: Any, path: str | os.PathLike[str]) -> StateDict:
    """The tensors in what `read_checkpoint` found at `path`."""
    inner = content.get("state_dict") if isinstance(content, Mapping) else None
    state = content if inner is None else inner
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items()
    ):
        raise CheckpointError(f"{path}: is not a dictionary of tensors by name")
    if inner is None:
        return dict(state)
    return {name.removeprefix("model."): value for name, value in state.items()}


def read_checkpoint(path: str | os.PathLike[str]) -> Any:
    """Everything in a torch file that is tensors and plain values, on the CPU.

    The checksums inside the file are compared first, and a file that holds anything else, such as
    a whole pickled model, is refused, since loading it could run code.
    """
    _check_archive(Path(path))
    try:
        with warnings.catch_warnings():
            # A pickle that torch did not write is refused; that its version is odd adds nothing.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise _damage_error(path, error) from None
    except Exception as error:  # noqa: BLE001  # torch's refusal has no name of torch's own
        named = re.search(r"GLOBAL (\S+)", str(error))
        found = f"it names {named[1][:80]}" if named else "it makes no sense to torch"
        raise CheckpointError(
            f"{path}: refused, as it holds more than tensors and plain values or is damaged: "
            f"{found}"
        ) from None


def load_weights(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Copy `state` into `model`; names or shapes that do not fit are an error that lists them."""
    own = model.state_dict()
    problems = {
        "missing": sorted(own.keys() - state.keys()),
        "unexpected": sorted(state.keys() - own.keys()),
        "of another shape": [
            f"{name} {tuple(state[name].shape)} for {tuple(own[name].shape)}"
            for name in sorted(own.keys() & state.keys())
            if state[name].shape != own[name].shape
        ],
        "of another kind": [
            f"{name} ({state[name].dtype}, {state[name].layout}, {state[name].device})"
            for name in sorted(own.keys() & state.keys())
            if not _is_plain(state[name]) or state[name].is_complex() != own[name].is_complex()
        ],
    }
    found = [f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names]
    if found:
        raise CheckpointError(f"{where}: the weights do not fit; {'; '.join(found)}")
    model.load_state_dict(state)


def _is_plain(value: Tensor) -> bool:
    """Return whether a tensor holds numbers one by one: not sparse, not quantised, not empty."""
    return value.layout == torch.strided and not value.is_meta and not value.is_quantized


def _check_archive(path: Path) -> None:
    """Raise unless `path` is a file whose parts have the checksums written beside them."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        if not zipfile.is_zipfile(path):
            _check_beginning(path)
            return  # torch's older format has no checksums
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive, path)
            bad = archive.testzip()
            folders = [one.filename for one in archive.infolist() if one.external_attr & FOLDER]
    except UNREADABLE as error:
        raise _damage_error(path, error) from None
    if bad is not None:
        raise CheckpointError(f"{path}: is damaged: the checksum of {bad} is wrong")
    if folders:
        # torch would read nothing and leave the tensor as the memory happened to be.
        raise CheckpointError(f"{path}: is damaged: {folders[0]} is marked as a folder")


def _check_beginning(path: Path) -> None:
    """Say what is wrong with a file that is not an archive, nor one of torch's older files."""
    with path.open("rb") as file:
        begin = file.read(2 + len(OLD_FORMAT))
    if begin[:1] == PICKLE and begin[2:] == OLD_FORMAT:
        return
    if begin.startswith(PICKLE):
        raise CheckpointError(
            f"{path}: refused, as it is not a file of torch but a pickle, which could run code"
        )
    found = f"it begins with {begin!r}" if begin else "it is empty"
    if begin.startswith(b"PK"):
        found = "it begins as such a file does, but its end is missing or wrong"
    raise CheckpointError(f"{path}: is damaged or not a file of torch: {found}")


def _check_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse an archive that unpacks to more than it is: torch packs nothing."""
    parts = archive.infolist()
    packed = [one.filename for one in parts if one.compress_type != zipfile.ZIP_STORED]
    if packed or sum(one.file_size for one in parts) > path.stat().st_size:
        named = packed[0] if packed else "its parts together"
        raise CheckpointError(
            f"{path}: is damaged or not a file of torch: {named[:60]!r} would unpack to more "
            "than is there"
        )


def _read_safetensors(path: Path) -> StateDict:
    from safetensors import SafetensorError

    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        return read_safetensors(path)
    except (SafetensorError, *UNREADABLE) as error:
        raise _damage_error(path, error) from None


def _damage_error(path: str | os.PathLike[str], error: Exception) -> CheckpointError:
    said = "" if isinstance(error, ASTRAY) else str(error).partition("\n")[0]
    reason = said or "it breaks off or makes no sense"
    return CheckpointError(f"{path}: is damaged or not a file of weights ({reason[:120]})")


def preprocessing_in(checkpoint: object, where: object) -> Preprocessing | None:
    """Return the scaling of the rows of a training, as its checkpoint says; None if it does not."""
    ours = checkpoint.get(OURS) if isinstance(checkpoint, Mapping) else None
    return from_plain(ours.get(PREPROCESSING) if isinstance(ours, Mapping) else None, where)
