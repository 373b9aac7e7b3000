"""The fenced blocks of the documents, and a folder in which those of one page are run.

A page is run from top to bottom in an empty folder that looks like a checkout (`configs` and
`examples` are there). What the blocks mean:

- `python`: run; the blocks of a page share their names. If the first line is a comment that is a
  file name (``# my_models.py``) the block is stored under it, and a later block has to use it.
- `console`: lines that begin with ``$ `` are run, those below them are what must be printed.
- `toml`: checked as ``--config`` would; stored if the first line is a file name.
- `c`: stored; its first line is a comment that is a file name (``/* main.c */``).
- `json`: parsed. `text`: what the block before it printed. A line with ``ch: `` in what is
  shown says that the command fails with exit code 2.

``…`` stands for anything within a line, and alone on a line for any number of lines. A comment
right above a block says what is not done with it:

- ``<!-- not run: why -->``
- ``<!-- not compared: why -->``, above a text block
- ``<!-- quoted: examples/lab1.ipynb -->``: it stands in a cell of that notebook, which is run
"""

import contextlib
import gc
import io
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import chop.lowering  # noqa: F401  # registers, before a page looks at the registries
from chop.registry import Registry

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("python", "console", "toml", "c", "json", "text")
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>\S*)[^\n]*\n", re.MULTILINE)
MARKER = re.compile(r"<!-- (not run|not compared|quoted): ([^\n]*?) -->\s*\Z")
FILE_NAME = re.compile(r"\A(?:# |/\* )([\w-]+\.(?:py|toml|c))(?: \*/)?$", re.MULTILINE)
SHELL = re.compile(r"[|&;<>*$`]")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    """not run, not compared or quoted."""
    reason: str = ""

    @property
    def where(self) -> str:
        return f"{os.path.relpath(self.page, ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The name under which the block is to be stored."""
        found = FILE_NAME.match(self.text)
        return found[1] if found else None


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    source, found, place = page.read_text(encoding="utf-8"), [], 0
    while opening := FENCE.search(source, place):
        closing = re.compile(rf"^ *{opening['fence']} *$", re.MULTILINE).search(
            source, opening.end()
        )
        assert closing, f"{page}: a fence is not closed"
        marker = MARKER.search(source, 0, opening.start())
        found.append(
            Block(
                page,
                source.count("\n", 0, opening.start()) + 1,
                opening["language"],
                textwrap.dedent(source[opening.end() : closing.start()])
                if opening["indent"]
                else source[opening.end() : closing.start()],
                *(marker.groups() if marker else ()),
            )
        )
        place = closing.end()
    return found


def commands_of(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown for it."""
    parts = re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)
    assert not parts[0].strip(), f"a console block begins with '$ ', not with {parts[0]!r}"
    return [(line, output) for line, _, output in (part.partition("\n") for part in parts[1:])]


def is_shown(expected: str, printed: str) -> bool:
    """Whether `expected` stands in `printed`, ``…`` being anything; widths of gaps do not count."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*?") + "\n"
        for line in _lines(expected.strip("\n"))
    )
    return re.search("^" + pattern, "\n".join([*_lines(printed), ""]), re.MULTILINE) is not None


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


Entries = list[tuple[Registry[Any], dict[str, Any]]]


def registered() -> Entries:
    """What every registry holds."""
    from chop import catalogue
    from chop.search import config  # noqa: F401  (fills the registries of searches)

    catalogue.live()
    registries = [each for each in gc.get_objects() if type(each) is Registry]
    return [(registry, dict(registry._entries)) for registry in registries]


def restore(entries: Entries) -> None:
    """Make every registry hold just that."""
    for registry, kept in entries:
        registry._entries.clear()
        registry._entries.update(kept)
    for name in [name for name in sys.modules if name.startswith("chop_user.")]:
        del sys.modules[name]


class PageRun:
    """The blocks of one page at work in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pristine = registered()
        self.module = ModuleType("docs_page")
        self.printed: str | None = None
        """What the block before printed; None if it was not run."""
        for name in ("configs", "examples"):
            (folder / name).symlink_to(ROOT / name)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """In the folder, with what the page registers forgotten afterwards."""
        sys.modules["docs_page"] = self.module
        try:
            with contextlib.chdir(self.folder):
                yield
        finally:
            del sys.modules["docs_page"]
            restore(self.pristine)

    def run(self, block: Block) -> None:
        """Do with a block what its language asks for."""
        assert block.language in LANGUAGES, f"{block.where}: say what it is: {LANGUAGES}"
        if block.mark in ("not run", "quoted"):
            self.printed = None
            return
        getattr(self, f"_{block.language}")(block)

    def _python(self, block: Block) -> None:
        if block.file_name:
            self._store(block)
            return
        padding = "\n" * block.line  # tracebacks then show the line of the page
        code = compile(padding + textwrap.dedent(block.text), str(block.page), "exec")
        with self._listening():
            exec(code, vars(self.module))

    def _console(self, block: Block) -> None:
        for line, shown in commands_of(block.text):
            code = self._command(line)
            expected = 2 if re.search(r"^ch: ", shown, re.MULTILINE) else 0
            assert code == expected, f"{block.where}: {line}: exit code {code}\n{self.printed}"
            assert is_shown(shown, self.printed or ""), (
                f"{block.where}: {line} does not print\n{shown}\nbut\n{self.printed}"
            )

    def _command(self, line: str) -> int:
        """The exit code; `ch` runs here, without anything that the page has registered."""
        if not line.startswith("ch ") or SHELL.search(line):
            return self._shell(line)
        from chop.cli import main

        own = [(registry, dict(registry._entries)) for registry, _ in self.pristine]
        restore(self.pristine)
        try:
            with self._listening():
                return main(shlex.split(line, comments=True)[1:])
        finally:
            restore(own)

    def _shell(self, line: str) -> int:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", line],
            env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        self.printed = done.stdout
        return done.returncode

    def _toml(self, block: Block) -> None:
        path = Path(block.file_name or "fragment.toml")
        path.write_text(block.text, encoding="utf-8")
        check_toml(path)
        self.printed = None

    def _c(self, block: Block) -> None:
        self._store(block)

    def _json(self, block: Block) -> None:
        json.loads(block.text)
        self.printed = None

    def _text(self, block: Block) -> None:
        if block.mark != "not compared" and self.printed is not None:
            assert is_shown(block.text, self.printed), (
                f"{block.where}: shown is\n{block.text}\nbut printed was\n{self.printed}"
            )
        self.printed = None

    def _store(self, block: Block) -> None:
        assert block.file_name, f"{block.where}: its first line is not a file name"
        Path(block.file_name).write_text(block.text, encoding="utf-8")
        self.printed = None

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
            try:
                yield
            finally:
                self.printed = heard.getvalue()


def check_toml(path: Path) -> None:
    """Refuse what ``--config`` would refuse; what a fragment leaves out comes from an example."""
    from chop.config.layers import checked_file
    from chop.passes import PASSES
    from chop.search.config import parse_search

    found = checked_file(path)
    for name, args in found.get("passes", {}).items():
        if name in PASSES:  # else it is one of the page's own, which running it will show
            PASSES[name].parse(args)
    if search := found.get("search"):
        own_parts = {"search_space", "strategy"} <= search.keys()
        example = checked_file(ROOT / "configs" / "examples" / "jsc_toy_by_type.toml")
        whole = search if own_parts else merged(example["search"], search)
        if whole["search_space"]["name"].startswith(("graph/", "train/")) and _is_known(whole):
            parse_search(whole)


def _is_known(search: dict[str, Any]) -> bool:
    """Whether the runners are chop's own; those of a page are known only to its commands."""
    from chop.search.runners import HW_RUNNERS, SW_RUNNERS

    strategy = search["strategy"]
    asked = {"sw_runner": SW_RUNNERS, "hw_runner": HW_RUNNERS}
    return all(set(strategy.get(key, {})) <= set(known) for key, known in asked.items())


def merged(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `top` in place of its own, table by table."""
    both = {
        key: merged(base[key], value) if isinstance(value, dict) and key in base else value
        for key, value in top.items()
    }
    return {**base, **both}
