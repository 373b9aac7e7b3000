"""Errors of the machine, told apart from bugs."""

import errno

import pytest

from chop.cli import lacking


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError("Unable to allocate 9 GiB"), "not enough memory (Unable to allocate 9 GiB)"),
        (MemoryError(), "not enough memory (none is left)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 1"), "not enough memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "not enough memory"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "a.txt"), "a.txt: cannot be written: Disk"),
    ],
)
def test_what_the_machine_lacks_is_no_bug(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chop.cli._drop_output", lambda: None)
    assert text in (lacking(error) or "")


def test_any_other_error_is_a_bug() -> None:
    assert lacking(ValueError("x")) is None
    assert lacking(OSError(errno.ENOENT, "No such file")) is None
