"""The configurations that are mutated: every file in configs/ and every TOML block in the docs."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMES = 'model = "jsc-tiny"\ndataset = "jsc-sim"\nproject = "docs"\n'
SMALLER = {"max_epochs": "1", "n_trials": "2", "num_samples": "32", "repeats": "1"}
"""Sizes of a run, so that ten thousand of them take minutes; nothing else is changed."""
NO_PLOTS = ("[search.strategy.setup]\n", "[search.strategy.setup]\nplots = false\n")
COMPARED = ('compare = ["tpe", "random", "nsgaii", "brute"]', 'compare = ["tpe", "random"]')


@dataclass(frozen=True)
class Source:
    """A valid configuration, the actions it is for, and where it stands."""

    name: str
    text: str
    actions: tuple[str, ...]

    @property
    def tables(self) -> dict[str, Any]:
        """A copy of what it says, to be changed."""
        return tomllib.loads(self.text)


@cache
def sources() -> tuple[Source, ...]:
    """All of them, in a fixed order."""
    files = sorted(ROOT.glob("configs/**/*.toml"))
    found = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in files]
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
        found += [(f"{page.name}, block {n}", _whole(text)) for n, text in enumerate(blocks, 1)]
    return tuple(_source(name, smaller(text)) for name, text in found)


def smaller(text: str) -> str:
    """The configuration with less to do."""
    for key, value in SMALLER.items():
        text = re.sub(rf"^{key} *= *\d+", f"{key} = {value}", text, flags=re.MULTILINE)
    text = text if re.search(r"^plots\b", text, re.MULTILINE) else text.replace(*NO_PLOTS)
    return text.replace(*COMPARED)


def _whole(block: str) -> str:
    """A block of the docs with the names that it leaves to the command line."""
    return block if re.search(r"^model\b", block, re.MULTILINE) else NAMES + block


def _source(name: str, text: str) -> Source:
    tables = tomllib.loads(text)
    needed = {"transform": "passes", "search": "search"}
    actions = tuple(action for action, table in needed.items() if table in tables)
    return Source(name, text, actions or ("train", "test"))
