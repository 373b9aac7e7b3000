"""Calls ``ch`` inside this process, with a cache of its own and as few words as possible."""

import contextlib
import io
import os
import warnings
from pathlib import Path
from unittest import mock

from chop.cli import main

SETTINGS = (
    "--project", "p", "--log-level", "error", "--report-to", "none", "--cpu", "0",
    "--accelerator", "cpu", "--num-threads", "1",
)  # fmt: skip


def ch(arguments: list[str], folder: Path) -> tuple[int, str]:
    """The exit code of ``ch`` in a folder, and what it writes to standard error.

    Its output goes to ``out/p`` in the folder, its cache to ``cache``.
    """
    error = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"CHOP_CACHE": str(folder / "cache")}),
        contextlib.redirect_stderr(error),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.chdir(folder),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        code = main([*arguments, "--project-dir", str(folder / "out"), *SETTINGS])
    return code, error.getvalue()
