"""Files that are whole or not there, and names that overwrite nothing."""

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from chop.errors import OutputError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well.

    A reader sees the old file or the new one, never half of one, whatever kills the writer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def versioned(path: Path) -> Path:
    """`path` if it is free, else the first of ``name-v1``, ``name-v2``, … that is."""
    candidate, version = path, 0
    while candidate.exists():
        version += 1
        candidate = path.with_name(f"{path.stem}-v{version}{path.suffix}")
    return candidate


def writable_folder(path: Path) -> Path:
    """Make a folder, with what leads to it, and make sure that files can be written in it."""
    try:
        with nothing_left_behind(path):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                return path
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def nothing_left_behind(folder: Path) -> Iterator[None]:
    """Remove the folders that the block made and left empty, if it fails; files stay."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        inside = sorted(folder.rglob("*/"), reverse=True) if folder in made else []
        for path in (*inside, *made):  # the deepest first
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _flush(path: Path) -> None:
    """Make sure the bytes are on the disk before the name points at them."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
