"""Standard streams that can be written to, and what is said when the machine lacks something."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
NO_MEMORY = "can't allocate memory"  # torch says it in a RuntimeError


def make_writable() -> None:
    """Give closed streams somewhere to go, and let letters that a stream lacks be escaped.

    A file that is opened while standard output is closed takes its number, and whatever a library
    prints would then land in that file.
    """
    for number in range(3):
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # which takes the lowest free number: this one
    for number, name in enumerate(("stdout", "stderr"), start=1):
        if getattr(sys, name) is None:
            raw = io.FileIO(number, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """See to it that what was said has arrived when the block ends, ``--help`` included."""
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def lacking(error: Exception) -> str | None:
    """What the machine lacks, in one line, if that is what an error says."""
    if isinstance(error, MemoryError) or NO_MEMORY in str(error):
        reason = str(error) or "none is left"
        return f"not enough memory ({reason}); a smaller file or batch needs less"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return f"not enough memory ({error.strerror}); a smaller file or batch needs less"
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        _drop_output()
        where = error.filename or "the output of ch"
        return f"{where}: cannot be written: {error.strerror}"
    return None


def _drop_output() -> None:
    """Keep Python from trying once more, as it ends, what has just failed."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
