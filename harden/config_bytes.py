"""What can go wrong with the bytes of a configuration file: its text, its encoding, its size."""

import os
import random
from collections.abc import Callable
from pathlib import Path

from harden.config_mutations import LONG_INTEGER
from harden.config_sources import Source

HUNDRED_MEGABYTES = 100 * 10**6
ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7", "cp037")
Special = Callable[[Path, str], None]


def damaged_text(source: Source, rng: random.Random) -> bytes:
    """A source with a line or a few bytes changed."""
    change = rng.choice(TEXT_CHANGES)
    return change(source.text, rng)


def double_line(text: str, rng: random.Random) -> bytes:
    """A line stands twice: a key, a header or a comment."""
    lines = text.splitlines(keepends=True)
    line = rng.choice(lines)
    lines.insert(rng.randrange(len(lines) + 1), line)
    return "".join(lines).encode()


def lose_line(text: str, rng: random.Random) -> bytes:
    """A line is missing: a key lands in the table before."""
    lines = text.splitlines(keepends=True)
    lines.pop(rng.randrange(len(lines)))
    return "".join(lines).encode()


def swap_lines(text: str, rng: random.Random) -> bytes:
    """Two lines have changed places."""
    lines = text.splitlines(keepends=True)
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return "".join(lines).encode()


def cut_short(text: str, rng: random.Random) -> bytes:
    """The end is missing."""
    return text.encode()[: rng.randrange(len(text))]


def flip_bits(text: str, rng: random.Random) -> bytes:
    """A few bits are wrong."""
    content = bytearray(text.encode())
    for _ in range(rng.choice((1, 1, 2, 8))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def insert_bytes(text: str, rng: random.Random) -> bytes:
    """Something else stands in between."""
    content = text.encode()
    place = rng.randrange(len(content) + 1)
    odd = (b"\0", b"\xff\xfe", b"\r", b'"', b"'''", b"[[", b"]", b"=", b".", b"#", rng.randbytes(9))
    return content[:place] + rng.choice(odd) + content[place:]


def odd_line_ends(text: str, rng: random.Random) -> bytes:
    """Lines end as on other systems."""
    return text.replace("\n", rng.choice(("\r\n", "\r", "\n\r", "\u2028", "\x0b"))).encode()


def other_encoding(text: str, rng: random.Random) -> bytes:
    """The file is no UTF-8, or begins as some editors make it begin."""
    accented = text.replace("# ", "# réglé à la main: ").replace("jsc", rng.choice(("jsc", "jsç")))
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: accented.encode(rng.choice(ENCODINGS), errors="replace"),
        lambda: accented.encode("latin-1", errors="replace"),
        lambda: accented.encode("utf-8-sig"),
        lambda: b"\xef\xbb\xbf" + accented.encode("utf-8-sig"),
    )
    return rng.choice(ways)()


TEXT_CHANGES = (
    double_line, double_line, lose_line, swap_lines, cut_short, flip_bits, insert_bytes,
    odd_line_ends, other_encoding, other_encoding,
)  # fmt: skip


def _writes(content: Callable[[str], bytes]) -> Special:
    def write(path: Path, text: str) -> None:
        path.write_bytes(content(text))

    return write


def _folder(path: Path, text: str) -> None:
    path.mkdir()


def _pipe(path: Path, text: str) -> None:
    os.mkfifo(path)


def _link(target: str) -> Special:
    return lambda path, text: path.symlink_to(target)


def _sparse(path: Path, text: str) -> None:
    """A hundred megabytes that no disk has to hold."""
    path.write_text(text, encoding="utf-8")
    os.truncate(path, HUNDRED_MEGABYTES)


SPECIAL: dict[str, Special] = {
    "empty": _writes(lambda text: b""),
    "only a comment": _writes(lambda text: b"# nothing\n"),
    "only white space": _writes(lambda text: b" \t\r\n" * 1000),
    "only zeros": _writes(lambda text: bytes(4096)),
    "100 MB of comments": _writes(lambda text: text.encode() + b"# filler\n" * 11_000_000),
    "100 MB in one line": _writes(lambda text: b'project = "' + b"x" * HUNDRED_MEGABYTES + b'"'),
    "100 MB of zeros": _sparse,
    "many keys": _writes(lambda text: b"".join(b"key%d = 1\n" % n for n in range(60_000))),
    "many tables": _writes(lambda text: b"".join(b"[t%d]\na=1\n" % n for n in range(40_000))),
    "long dotted key": _writes(lambda text: b".".join([b"a"] * 20_000) + b" = 1\n"),
    "long table name": _writes(lambda text: b"[" + b".".join([b"a"] * 20_000) + b"]\n"),
    "deep lists": _writes(lambda text: b"a = " + b"[" * 50_000 + b"]" * 50_000),
    "deep tables": _writes(lambda text: b"a = " + b"{a = " * 20_000 + b"1" + b"}" * 20_000),
    "nested to the limit": _writes(
        lambda text: text.encode() + b"\n[cf_args]\na = " + b"[" * 300 + b"]" * 300
    ),
    "dotted to the limit": _writes(
        lambda text: text.encode() + b"\n[cf_args]\n" + b".".join([b"a"] * 900) + b" = 1\n"
    ),
    "long number": _writes(lambda text: f"batch_size = {LONG_INTEGER}\n{text}".encode()),
    "long float": _writes(lambda text: f"learning_rate = 0.{LONG_INTEGER}\n{text}".encode()),
    "long list": _writes(lambda text: b"imports = [" + b'"x",' * 200_000 + b"]\n"),
    "a folder": _folder,
    "a pipe": _pipe,
    "a link to nothing": _link("nothing"),
    "a link to itself": _link("case.toml"),
    "a device without end": _link("/dev/zero"),
    "an empty device": _link("/dev/null"),
    "another file": _writes(lambda text: Path(os.__file__).read_bytes()),
    "a program": _writes(lambda text: Path(os.path.realpath("/bin/sh")).read_bytes()),
}
"""Files that are no mutation of a configuration but stand in its place."""
