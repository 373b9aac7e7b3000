"""Everything the documents show is run; links lead somewhere; the site has every page."""

import itertools
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from doc_blocks import PAGES, ROOT, Block, PageRun, blocks_of, commands_of, is_shown

from chop.config.command_line import parse_arguments
from chop.config.verb import verbs
from chop.errors import ChopError
from chop.search.runners import HW_RUNNERS
from scripts import serve_docs

NOT_RUN = {
    "README.md": 2,
    "docs/hardware.md": 4,
    "docs/howto/circuit.md": 2,
    "docs/howto/cluster.md": 2,
    "docs/howto/microcontroller.md": 1,
    "docs/howto/monitor.md": 3,
    "docs/howto/text.md": 1,
    "docs/index.md": 4,
    "docs/labs/lab1.md": 3,
    "docs/labs/lab2.md": 1,
    "docs/labs/lab3.md": 1,
    "docs/reference/cli.md": 1,
    "docs/search.md": 4,
    "docs/training.md": 2,
}
"""How many blocks of each page are not run: this table is the list of them, and their limit."""
REASONS = (
    "sets up a machine", "tests/", "needs a network", "needs a database", "needs a GPU",
    "needs a SLURM cluster", "make harden",
)  # fmt: skip
"""One of these is in the reason of each: what runs it, or what no test machine has."""


NEEDS = {"docs/howto/export.md": ("onnxruntime", "qonnx")}
"""What the blocks of a page import of the extra onnx."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(name_of(page), ()):
        pytest.importorskip(package, reason="the page needs: pip install onnx onnxruntime qonnx")
    blocks = blocks_of(page)
    run = PageRun(tmp_path)
    with run.at_work():
        for block in blocks:
            run.run(block)
    for place, block in enumerate(blocks):
        later = "\n".join(each.text for each in blocks[place + 1 :])
        if block.file_name:
            assert block.file_name in later, f"{block.where}: nothing uses {block.file_name}"


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


def test_few_blocks_are_not_run() -> None:
    left_out = [block for block in all_blocks() if block.mark == "not run"]
    unclear = [block for block in left_out if not any(part in block.reason for part in REASONS)]
    assert [f"{block.where}: {block.reason}" for block in unclear] == []
    assert Counter(name_of(block.page) for block in left_out) == NOT_RUN


def test_the_tour_is_run_as_part_of_the_readme() -> None:
    readme, index = (
        [
            line
            for block in blocks_of(ROOT / name)
            if block.language == "console"
            for line, _ in commands_of(block.text)
        ]
        for name in ("README.md", "docs/index.md")
    )
    tour = [line for line in index if line.startswith("ch ")]
    assert len(tour) > 5
    assert [line for line in tour if line not in readme] == []


def test_commands_that_are_not_run_are_understood() -> None:
    left_out = [block for block in all_blocks() if block.mark == "not run"]
    commands = [line for block in left_out for line, _ in commands_of(block.text)]
    for program, *arguments in (shlex.split(line, comments=True) for line in commands):
        if program == "ch":
            given = itertools.takewhile(lambda word: word not in ("&", "|", ">"), arguments)
            assert parse_arguments(list(given))["action"] in verbs()
        elif program == "python" and arguments[0] != "-c":
            assert (ROOT / arguments[0]).is_file()


def test_quoted_blocks_stand_in_their_notebook() -> None:
    quoted = [block for block in all_blocks() if block.mark == "quoted"]
    for block in quoted:
        cells = json.loads((ROOT / block.reason).read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        assert any(block.text.strip() in source for source in sources), block.where
    assert quoted


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_lists_every_extra_and_installs_no_name_from_an_index() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [name for name in project["optional-dependencies"] if f"`{name}`" not in text] == []
    installs = [line for line in text.splitlines() if "pip install" in line]
    assert installs
    named = re.compile(rf"""pip install[^#\n]*\s["']?{project["name"]}\b""")  # not dist/machop-…
    assert [line for line in installs if named.search(line)] == []


def nav_paths(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    assert not isinstance(inner, str)
    return [path for each in inner for path in nav_paths(each)]  # type: ignore[attr-defined]


def test_the_site_has_every_page() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.name != "README.md"]
    assert sorted(nav_paths(settings["nav"])) == sorted(pages)


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site needs: pip install mkdocs-material")
    pytest.importorskip("material", reason="the site needs: pip install mkdocs-material")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "howto" / "own-model.html").is_file()
    index = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {each["location"].partition("#")[0] for each in index["docs"]}
    pages = {page.relative_to(ROOT / "docs") for page in PAGES if page.name != "README.md"}
    assert found == {str(page.with_suffix(".html")) for page in pages}
    assert list(tmp_path.glob("assets/javascripts/workers/search*.js"))  # it comes from here, too


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind((serve_docs.HERE, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve_docs.free_port(port) > port


@pytest.mark.parametrize(
    ("expected", "printed", "shown"),
    [
        ("a\nb", "x\na  \nb\nc", True),
        ("a\nc", "a\nb\nc", False),
        ("a\n…\nc", "a\nb\nb\nc", True),
        ("acc 0.…", "acc 0.51", True),
        ("acc 0.…", "acc 1.51", False),
        ("", "anything", True),
        ("b", "ab", False),
    ],
)
def test_what_counts_as_shown(expected: str, printed: str, shown: bool) -> None:
    assert is_shown(expected, printed) is shown


def run_page(folder: Path, text: str) -> None:
    page = folder / "page.md"
    page.write_text(text.replace("~~~", "```"), encoding="utf-8")
    run = PageRun(folder)
    with run.at_work():
        for block in blocks_of(page):
            run.run(block)


@pytest.mark.parametrize(
    "text",
    [
        "~~~python\nx = 1\n~~~\n~~~python\nassert x == 2\n~~~\n",
        "~~~python\nprint(1)\n~~~\n~~~text\n2\n~~~\n",
        "~~~console\n$ ch info formats\nno such line\n~~~\n",
        "~~~console\n$ ch info no-topic\n~~~\n",
        "~~~console\n$ ch info formats\nch: a mistake\n~~~\n",
        "~~~console\n$ false\n~~~\n",
        "~~~\nwho knows what\n~~~\n",
    ],
)
def test_a_wrong_page_fails(text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_page(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "learning_rat = 1",
        "[passes.quantize]\nby = 'tpye'",
        "[search.strategy.setup]\nsampler = 'no'",
        "[search.strategy.setup]\nn_trails = 3",
    ],
)
def test_a_wrong_file_fails(text: str, tmp_path: Path) -> None:
    with pytest.raises(ChopError):
        run_page(tmp_path, f"~~~toml\n{text}\n~~~\n")


def test_what_a_page_registers_is_forgotten(tmp_path: Path) -> None:
    text = """
~~~python
from chop.search.runners import HW_RUNNERS, hardware_runner

hardware_runner("invented", metrics=("invented",))(lambda candidate: {"invented": 1.0})
assert "invented" in HW_RUNNERS
~~~

<!-- not run: needs a network -->
~~~python
assert False
~~~

~~~console
$ ch info no-topic
ch: …unknown topic 'no-topic': …
$ echo one two | wc -w
2
~~~
"""
    run_page(tmp_path, text)
    assert "invented" not in HW_RUNNERS
