"""What can happen to any file: wrong bits, a lost end, another file in its place, odd links."""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harden.file_targets import TARGETS

BLOCK = 512  # bytes that a disk loses at once


@dataclass(frozen=True)
class Setting:
    """What a harm may use: chance, the good specimens, and the file that no code may make."""

    rng: random.Random
    specimens: Path
    canary: Path


Harm = Callable[[Path, Setting], None]


def no_harm(path: Path, setting: Setting) -> None:
    """Nothing is wrong with it."""


def flip_a_bit(path: Path, setting: Setting) -> None:
    """One bit is wrong."""
    _flip(path, setting, 1)


def flip_bits(path: Path, setting: Setting) -> None:
    """Some bits are wrong."""
    _flip(path, setting, setting.rng.choice((2, 8, 64)))


def _flip(path: Path, setting: Setting, count: int) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(count):
        content[setting.rng.randrange(len(content))] ^= 1 << setting.rng.randrange(8)
    path.write_bytes(content)


def lose_a_block(path: Path, setting: Setting) -> None:
    """A block of the disk is zeros."""
    content = bytearray(path.read_bytes())
    start = setting.rng.randrange(len(content)) // BLOCK * BLOCK
    content[start : start + BLOCK] = bytes(len(content[start : start + BLOCK]))
    path.write_bytes(content)


def cut_short(path: Path, setting: Setting) -> None:
    """The end is missing."""
    os.truncate(path, setting.rng.randrange(path.stat().st_size))


def lose_the_middle(path: Path, setting: Setting) -> None:
    """Some bytes are missing, and what follows has moved up."""
    content = path.read_bytes()
    start = setting.rng.randrange(len(content))
    path.write_bytes(content[:start] + content[start + setting.rng.randrange(1, 200) :])


def add_bytes(path: Path, setting: Setting) -> None:
    """More stands at the end than belongs there."""
    with path.open("ab") as stream:
        stream.write(setting.rng.choice((b"\0", b"\n", bytes(4096), setting.rng.randbytes(300))))


BYTES = (flip_a_bit, flip_a_bit, flip_a_bit, flip_bits, lose_a_block, cut_short, cut_short,
         lose_the_middle, add_bytes)  # fmt: skip
"""Harms to bytes: where a format has no checksum, what comes out may be a file as good as any."""


def empty(path: Path, setting: Setting) -> None:
    """Nothing is in it."""
    path.write_bytes(b"")


def swap(path: Path, setting: Setting) -> None:
    """A good file of another kind stands in its place."""
    others = [
        file
        for target in TARGETS
        for file in target.files
        if Path(file).suffix != path.suffix and "*" not in file
    ]
    shutil.copyfile(setting.specimens / setting.rng.choice(others), path)


def other_content(path: Path, setting: Setting) -> None:
    """Something quite different stands in its place."""
    texts = (
        b"<html>404</html>",
        b"not a file\n",
        bytes(1000),
        b"{}",
        b"[]",
        b"PK\x03\x04",
        b"\x89HDF\r\n\x1a\n",
        b"PAR1",
        b"\x1f\x8b\x08",
        setting.rng.randbytes(2000),
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"version https://git-lfs.github.com/spec/v1\n",
    )
    path.write_bytes(setting.rng.choice(texts))  # fmt: skip


def gone(path: Path, setting: Setting) -> None:
    """It is not there."""
    path.unlink()


def folder_instead(path: Path, setting: Setting) -> None:
    """A folder has its name."""
    path.unlink()
    path.mkdir()


def pipe_instead(path: Path, setting: Setting) -> None:
    """A pipe has its name, at whose other end nobody writes."""
    path.unlink()
    os.mkfifo(path)


def odd_link(path: Path, setting: Setting) -> None:
    """A link has its name: to itself, to nothing, to a device, to a file of somebody else."""
    path.unlink()
    targets = (
        path.name,
        "nothing",
        "/dev/zero",
        "/dev/null",
        "/etc/passwd",
        "..",
        "/proc/self/mem",
    )
    path.symlink_to(setting.rng.choice(targets))


INSTEAD = (empty, swap, swap, swap, other_content, other_content, gone, folder_instead,
           pipe_instead, odd_link, odd_link)  # fmt: skip
"""Other things in the place of a file."""
