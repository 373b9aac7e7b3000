"""Counts the file operations of a process in one folder, and kills it at a chosen one.

A moment picked by the clock seldom falls into a write, which takes microseconds. A count of the
operations hits every one of them for certain: before a file is opened, with half of the bytes
written, before they are flushed, before and after a name is given.
"""

import builtins
import io
import os
import signal
from collections.abc import Callable
from typing import Any

NAMING = ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "truncate")


class FileOperations:
    """The operations on files under `folder`, of which number `die_at` is the last."""

    def __init__(self, folder: str, die_at: int | None) -> None:
        self.folder = os.path.realpath(folder)
        self.die_at = die_at
        self.count = 0

    def install(self) -> None:
        """Watch this process from now on."""
        opened = io.open
        builtins.open = io.open = lambda *args, **options: self._open(opened, *args, **options)
        for name in NAMING:
            setattr(os, name, self._naming(getattr(os, name)))
        os.fsync = self._flushing(os.fsync)

    def _flushing(self, flush: Callable[..., None]) -> Callable[..., None]:
        def watched(descriptor: Any) -> None:
            self._tick()
            flush(descriptor)

        return watched

    def _tick(self, last_act: Callable[[], object] | None = None) -> None:
        """Count one operation; at the chosen one, do part of it and die."""
        self.count += 1
        if self.count == self.die_at:
            if last_act is not None:
                last_act()
            os.kill(os.getpid(), signal.SIGKILL)

    def _inside(self, path: object) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        return os.path.realpath(os.fspath(path)).startswith(self.folder)

    def _open(self, opened: Callable[..., Any], path: Any, mode: str = "r", *rest: Any,
              **options: Any) -> Any:  # fmt: skip
        if not self._inside(path) or not set(mode) & set("wax+"):
            return opened(path, mode, *rest, **options)
        self._tick()
        file = opened(path, mode, *rest, **options)
        write = file.write

        def watched(data: Any) -> Any:
            self._tick(lambda: (write(data[: len(data) // 2]), file.flush()))
            return write(data)

        file.write = watched
        return file

    def _naming(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *rest: Any, **options: Any) -> Any:
            if not self._inside(path):
                return operation(path, *rest, **options)
            self._tick()
            result = operation(path, *rest, **options)
            self._tick()
            return result

        return watched
