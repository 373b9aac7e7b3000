"""Files that are whole or not there, that notice when they are damaged, and overwrite nothing."""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from chop.errors import ConfigError, OutputError

try:
    import fcntl
except ImportError:  # not on Windows, where two runs into one project are not kept apart
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from torch import Tensor

OWN_BYTES = "surrogateescape"
"""A path that the locale could not read gets its own bytes back."""
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""What file systems say that have no hard links."""
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""What file systems say of a name for a folder that something else has."""
CHECKSUM, BLANK = "chop_sha256", "0" * 64
"""Where a file of tensors has its SHA-256, and what stands there while that is computed."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well.

    A reader sees the old file or the new one, never half of one, whatever kills the writer. A
    disk that is full or cannot be written raises OutputError, and so does a device or a pipe,
    which a file must not take the place of: ``/dev/null`` would be gone for everybody.
    """
    with contextlib.suppress(OSError):  # where there is nothing yet
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise OutputError(f"{path}: is a device or a pipe; name a file to write")
    with _temporary(path) as temporary:
        yield temporary
        flush_to_disk(temporary)
        temporary.replace(path)


@contextlib.contextmanager
def all_tried(ended: BaseException | None = None) -> Iterator[None]:
    """Go on in this block after a file that cannot be written; one error names all of them.

    Args:
        ended: what has ended the work whose results are written; if that was another file that
            cannot be written, its line comes first.
    """
    global _unwritten
    before, _unwritten = _unwritten, {}
    try:
        yield
        failed = _unwritten
    finally:
        _unwritten = before
    if failed:
        names, reasons = ", ".join(map(str, failed)), ", ".join(dict.fromkeys(failed.values()))
        first = f"{ended}; nor could these be: " if isinstance(ended, OutputError) else ""
        intact = "" if first else "; what was there before is intact"
        raise OutputError(f"{first}{names}: cannot be written: {reasons}{intact}") from None


_unwritten: dict[Path, str] | None = None
"""Files that could not be written and why, while `all_tried` collects them."""


def write_text(path: Path, text: str) -> None:
    """Write a whole text file."""
    write_pieces(path, [text])


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Write a whole text file that need not be in memory as a whole."""
    with (
        replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", errors=OWN_BYTES) as stream,
    ):
        stream.writelines(pieces)


def write_folder(name: Callable[[], Path], fill: Callable[[Path], object]) -> Path:
    """Make a folder that has all its files or is not there; the name it got.

    Args:
        name: gives a name that is free, and is asked again if somebody else was faster.
        fill: writes the files into the folder that it is given, which has another name until then.
    """
    wanted = name()
    writable_folder(wanted.parent)
    whole = wanted.with_name(_hidden_name(wanted))
    try:
        whole.mkdir()
        fill(whole)
        for file in filter(Path.is_file, whole.rglob("*")):
            flush_to_disk(file)
        while True:
            try:
                return whole.rename(name())
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
    finally:
        shutil.rmtree(whole, ignore_errors=True)


def create(path: Path, text: str) -> bool:
    """Write a whole text file unless there is one, even if two try at once; whether it was done."""
    with _temporary(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors=OWN_BYTES)
        flush_to_disk(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            temporary.replace(path)
        return True
    return False  # it could not be written, and `all_tried` says so


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep other processes from running such a block for the same folder, where locks work."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError, AttributeError):  # some network drives have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def remove_if_empty(folder: Path) -> Iterator[None]:
    """Remove a folder that the block has failed to put anything in."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


@contextlib.contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Yield whether this process, and no other, has `path` as its own while the block runs.

    The lock is the kernel's, so it goes when its holder is killed; the empty file may stay.
    """
    descriptor = _lock(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _lock(path: Path) -> int | None:
    """A descriptor of the locked file; None if somebody else holds it."""
    if fcntl is None:
        return os.open(path, os.O_RDWR | os.O_CREAT)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        # Its last holder may have removed the file after it was opened here.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def check_nameable(path: str | Path, where: str) -> None:
    """Refuse what no file or folder can be called here, such as a name of thousands of letters.

    Args:
        where: the setting that names it, for the message.
    """
    text = str(path)
    shown = text if len(text) <= 80 else f"{text[:40]}…{text[-40:]}"
    try:
        for each in (os.path.expanduser(text), *Path(text).parts):  # a part, too, has a limit
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.lstat(each)
    except ValueError as error:  # a zero byte, or a letter that the locale does not know
        raise ConfigError(f"{where}: {shown!r} cannot be a path: {error}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            reason = f"{error.strerror} ({len(text):,} letters)"
            raise ConfigError(f"{where}: {shown!r} cannot be a path: {reason}") from None


def seen_from_here(path: Path) -> str:
    """A path as it can be typed here: short if it is below the working directory."""
    with contextlib.suppress(ValueError, OSError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)


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
    # `Path` raises on a name that is too long for any file; `os.path` says that there is none.
    made = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        yield
    except BaseException:
        made_it = folder in made and os.path.isdir(folder)
        inside = sorted(folder.rglob("*/"), reverse=True) if made_it else []
        for path in (*inside, *made):  # the deepest first
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def regular(path: Path) -> Path:
    """`path`, if it is a regular file; else an OSError: a pipe may never end, nor may a device."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    return path


def write_safetensors(path: Path, tensors: "dict[str, Tensor]") -> None:
    """Write tensors with a checksum; any reader of safetensors can read the file."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(tensors, temporary, metadata={CHECKSUM: BLANK})
        except SafetensorError as error:  # a full disk raises this, not an OSError
            raise OSError(str(error)) from None
        temporary.chmod(mode)  # safetensors makes files that only their owner can read
        with temporary.open("r+b") as stream:
            place = _head(stream).index(BLANK.encode())
            digest = _digest_with_blank(stream, place)
            stream.seek(place)
            stream.write(digest.encode())


def read_safetensors(path: Path) -> "dict[str, Tensor]":
    """The tensors in a file, on the CPU; ValueError if they are not those that were written.

    A file of others has no checksum of ours, and what is in it is taken as it is.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(regular(path), "pt") as content:
        metadata: Mapping[str, Any] = content.metadata() or {}
    if stated := metadata.get(CHECKSUM):
        with path.open("rb") as stream:
            place = _head(stream).find(stated.encode())
            if _digest_with_blank(stream, place) != stated:
                raise ValueError("its checksum is wrong")
    # Copies lie where torch would have put them; in the file they start at any multiple of their
    # size, and sums of products come out differently in the last bit there.
    return {name: tensor.clone() for name, tensor in load_file(path, device="cpu").items()}


def _head(stream: BinaryIO) -> bytes:
    """The start of a safetensors file up to its tensors."""
    stream.seek(0)
    size = stream.read(8)
    return size + stream.read(int.from_bytes(size, "little"))


def _digest_with_blank(stream: BinaryIO, place: int) -> str:
    """The SHA-256 of a file in which the checksum at `place` is blank."""
    stream.seek(0)
    digest = hashlib.sha256(stream.read(place) + BLANK.encode())
    stream.seek(place + len(BLANK))
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _hidden_name(path: Path) -> str:
    """A name of its own for what is to become `path`."""
    return f".{path.name}.{uuid.uuid4().hex[:8]}.tmp"


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A name beside `path` that is free when the block ends, and one line if it cannot be used."""
    temporary = path.with_name(_hidden_name(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        reason = error.strerror or str(error)
        if _unwritten is None:
            raise OutputError(
                f"{path}: cannot be written: {reason}; what was there before is intact"
            ) from None
        _unwritten[path] = reason
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Make sure the bytes are on the disk before the name points at them."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
