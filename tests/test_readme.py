"""What the README shows runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from chop.config.arguments import COMMANDS, parse_arguments

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
LINES = re.findall(r"^\$ ch (.*)$", README, flags=re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_blocks_run(block: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", block], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("line", LINES)
def test_commands_are_understood(line: str) -> None:
    options = parse_arguments(line.partition("#")[0].split())
    assert options["action"] in COMMANDS


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert [link for link in links if not (Path(__file__).parents[1] / link).exists()] == []
    assert len(links) > 5
