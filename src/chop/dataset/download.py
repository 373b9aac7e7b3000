"""Files fetched over HTTP: in pieces if need be, looked at before they are believed."""

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from chop.dataset.cache import hold_lock
from chop.errors import DataError

TIMEOUT = 30  # seconds without a byte
BLOCK = 1 << 18
PARTIAL, WHOLE, OUT_OF_RANGE = 206, 200, 416


_may_fetch = ContextVar("_may_fetch", default=True)


@contextlib.contextmanager
def nothing_fetched() -> Iterator[None]:
    """Refuse what is not here yet, where nobody has asked for data by name."""
    before = _may_fetch.set(False)
    try:
        yield
    finally:
        _may_fetch.reset(before)


def fetch(url: str, target: Path, verify: Callable[[Path], None]) -> Path:
    """The file at `url`, fetched to `target` unless it is there already.

    What has arrived is kept in ``<target>.part``, so a fetch that was cut off continues where it
    stopped. Only a file that is complete and passes `verify` gets its name; its SHA-256 is
    written beside it.
    """
    if target.exists():
        return target
    if not _may_fetch.get():
        raise DataError(f"{url}: is fetched only where the data set is named")
    with hold_lock(target.with_name(f"{target.name}.lock")):
        if target.exists():
            return target
        part = target.with_name(f"{target.name}.part")
        try:
            _receive(url, part)
        except (OSError, HTTPException) as error:  # URLError and time-outs are OSErrors
            raise DataError(f"{url}: cannot be fetched ({_reason(error)})") from None
        try:
            verify(part)
        except DataError as error:
            part.unlink()
            raise DataError(f"{url}: what it sent is not the data: {error}") from None
        with part.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        checksum_file(target).write_text(digest, encoding="utf-8")
        part.replace(target)
    return target


def checksum_file(target: Path) -> Path:
    """The file that holds the SHA-256 of a fetched file, for comparison later."""
    return target.with_name(f"{target.name}.sha256")


def has_md5(expected: str) -> Callable[[Path], None]:
    """A check that a file has the published MD5 sum."""

    def verify(path: Path) -> None:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "md5").hexdigest()
        if found != expected:
            raise DataError(f"its MD5 sum is {found}, the published one is {expected}")

    return verify


def _receive(url: str, part: Path) -> None:
    """Append to `part` what is still missing, or start over if the server cannot continue."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    tag = part.with_name(f"{part.name}.tag")
    if have and tag.exists():
        headers["If-Range"] = tag.read_text(encoding="utf-8")  # a changed file comes whole
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as response:
            _note_version(tag, response)
            _copy(response, part, have if response.status == PARTIAL else 0)
    except HTTPError as error:
        error.close()
        if error.code != OUT_OF_RANGE or not have:
            raise
        part.unlink()
        _receive(url, part)
    tag.unlink(missing_ok=True)


def _note_version(tag: Path, response: HTTPResponse) -> None:
    version = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if version and not version.startswith("W/"):
        tag.write_text(version, encoding="utf-8")


def _copy(response: HTTPResponse, part: Path, have: int) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    length = response.headers.get("Content-Length")
    total = have + int(length) if length else None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    # A pipe and `--quiet` want no bar, although standard error may be a terminal.
    console = Console(stderr=True, quiet=not sys.stdout.isatty())
    with (
        part.open("r+b" if have else "wb") as stream,
        Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress,
    ):
        stream.seek(have)
        task = progress.add_task(part.stem, total=total, completed=have)
        while block := response.read(BLOCK):
            stream.write(block)
            progress.advance(task, len(block))
        arrived = stream.tell()
    if total is not None and arrived < total:
        raise URLError(f"stopped after {arrived:,} of {total:,} bytes; the next start continues")


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    return str(reason) or type(error).__name__
