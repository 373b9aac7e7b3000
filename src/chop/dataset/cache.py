"""Preprocessed rows kept on disk, so that the work is done once per file and machine."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.dataset.rows import NO_HOME, DatasetRequest, Splits, StoredRows, chunks_of
from chop.errors import CheckpointError, DataError, OutputError
from chop.files import regular
from chop.preprocessing import from_plain

try:
    import fcntl
except ImportError:  # not on Windows, where two first starts may both do the work
    fcntl = None  # type: ignore[assignment]

ABOUT = "about.json"
DAMAGED = (OSError, ValueError, KeyError, TypeError)
SETTLED_NS = 2_000_000_000
"""A file that was changed so shortly before it was hashed may change again within one tick of the
clock that dates changes, so its hash is not kept."""


def load_or_build(
    request: DatasetRequest,
    key: Mapping[str, object],
    build: Callable[[], Splits],
    origin: Path,
    sources: Mapping[Path, str],
) -> Splits:
    """Return what `build` returns, from the cache if it was built from the same `key` before.

    Rows that are to be scaled as others were are kept beside those with their own constants.

    The arrays are memory-mapped, so opening them costs little more than comparing their checksums.
    A folder appears in the cache only when it is complete, and one that turns out to be damaged is
    built again.

    Args:
        origin: the file or folder the rows come from, for the sentence that says so.
        sources: the files that `build` reads, each with the SHA-256 that `key` holds of it.
    """
    asked = request.preprocessing
    whole = dict(key) | ({} if asked is None else {"preprocessing": asked.digest})
    name = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:32]
    folder = request.cache_dir / "preprocessed" / request.name / name
    with hold_lock(folder.with_name(f"{name}.lock")):
        if request.use_cache and (found := _open_rows(folder)) is not None:
            return replace(found, source=f"{found.source}, read from {origin}")
        built = build()
        for path, stated in sources.items():
            if file_sha256(path, request.cache_dir, trust=False) != stated:
                raise DataError(f"{path}: has changed while it was read; start again")
        _store(folder, built)
        stored = _open_rows(folder)
    if stored is None:
        raise DataError(f"{folder}: what was just written there cannot be read back")
    return replace(stored, source=f"{stored.source}, read from {origin}")


def file_sha256(path: Path, cache_dir: Path, *, trust: bool = True) -> str:
    """The SHA-256 of a file, kept in the cache until anything about the file changes.

    A program can set size and modification time at will, but not the number of the file and the
    time of its last change. Windows has no such time, so there a file is read each time.

    Args:
        trust: False reads the file whatever the cache says.
    """
    where = str(path.resolve())
    name = hashlib.sha256(os.fsencode(where)).hexdigest()[:32]
    memo = cache_dir / "checksums" / f"{name}.json"
    try:
        status = path.stat()
        state = {
            "path": where,
            "size": status.st_size,
            "modified": status.st_mtime_ns,
            "changed": status.st_ctime_ns,
            "file": [status.st_dev, status.st_ino],
        }
        with contextlib.suppress(*DAMAGED):
            kept = json.loads(memo.read_text(encoding="utf-8"))
            settled = status.st_ctime_ns + SETTLED_NS <= int(kept["hashed"])
            same = {name: kept[name] for name in state} == state
            if trust and settled and same and os.name == "posix":
                return str(kept["sha256"])
        now = time.time_ns()
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    with _writing(memo.parent):
        write_whole(memo, json.dumps(state | {"hashed": now, "sha256": digest}).encode())
    return digest


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock, so that of several runs that start together one does the work."""
    with _writing(path.parent):
        handle = path.open("a")
    with handle:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)  # given up when the file closes or the process dies
        yield


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that no one ever sees a part of it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as stream:
        stream.write(content)
    Path(stream.name).replace(path)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    if folder.parts[0] == NO_HOME:
        raise OutputError("there is no home directory to keep a cache in; name one in CHOP_CACHE")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or error  # NumPy gives a text alone
        raise OutputError(
            f"{folder}: cannot be written ({reason}); CHOP_CACHE names another cache folder"
        ) from None


def _store(folder: Path, splits: Splits) -> None:
    """Write everything to a folder beside `folder`, then let it take that place."""
    with _writing(folder.parent):
        fresh = folder.with_name(f".unfinished-{folder.name}")
        shutil.rmtree(fresh, ignore_errors=True)  # what a killed run may have left
        fresh.mkdir()
        try:
            for split in splits.available:
                for kind, rows in zip("xy", getattr(splits, split), strict=True):
                    _save(fresh / f"{split}_{kind}.npy", np.asanyarray(rows))
            about = {name: getattr(splits, name) for name in ("source", "fingerprint")}
            about["preprocessing"] = splits.preprocessing and splits.preprocessing.as_plain()
            names = {name: getattr(splits, name) for name in ("class_names", "feature_names")}
            sums = {"checksums": {file.name: _checksum(file) for file in fresh.iterdir()}}
            (fresh / ABOUT).write_text(_seal(about | names | sums), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            fresh.replace(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _open_rows(folder: Path) -> Splits | None:
    """The rows in a cache folder; None if there are none or they are damaged."""
    try:
        about = _unseal(regular(folder / ABOUT).read_text(encoding="utf-8"))
        for name, checksum in about["checksums"].items():
            if _checksum(regular(folder / name)) != checksum:
                return None
        names = {name: tuple(about[name]) for name in ("class_names", "feature_names")}
        splits = Splits(
            source=about["source"],
            fingerprint=about["fingerprint"],
            preprocessing=from_plain(about["preprocessing"], folder),
            **names,
        )
        parts: dict[str, Any] = {
            split: StoredRows(*(_map_array(folder / f"{split}_{kind}.npy") for kind in "xy"))
            for split in sorted(file.name[: -len("_x.npy")] for file in folder.glob("*_x.npy"))
        }
        return replace(splits, **parts) if parts else None
    except (*DAMAGED, CheckpointError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise  # it may be whole
        return None


def _seal(content: dict[str, Any]) -> str:
    """A dictionary as text that holds its own checksum."""
    return json.dumps({**content, "checksum": zlib.crc32(json.dumps(content).encode())})


def _unseal(text: str) -> dict[str, Any]:
    """The dictionary in a text; ValueError if it is not what was written."""
    content: dict[str, Any] = json.loads(text)
    if content.pop("checksum") != zlib.crc32(json.dumps(content).encode()):
        raise ValueError("its checksum is wrong")
    return content


def _save(file: Path, rows: NDArray[Any]) -> None:
    """Write what `numpy.save` would write, a part at a time."""
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(rows))
        for part in chunks_of(rows):
            stream.write(np.ascontiguousarray(part).data)


def _checksum(file: Path) -> int:
    """The CRC-32 of a file."""
    checksum = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _map_array(file: Path) -> NDArray[Any]:
    # Copy on write: torch warns about read-only memory, and the file must not change.
    array: NDArray[Any] = np.load(file, mmap_mode="c", allow_pickle=False)
    return array
