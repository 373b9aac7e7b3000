"""Code that a configuration names runs only if the command line names it, too."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chop.cli import main
from chop.config.layers import write_toml
from chop.config.verb import verbs

WITH_CONFIG = [name for name, command in verbs().items() if "config" in command.options]
CANARY = "open('canary', 'w').close()\nraise ValueError('that far and no further')\n"
REFUSED = (
    "ch: run.toml: imports 'own.py', which would run its code: "
    "add --import own.py if you trust it\n"
)
Ch = Callable[..., tuple[int, str]]


@pytest.fixture
def ch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ch:
    """Runs ``ch`` in a folder with a canary; the exit code and what it complains of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(CANARY)
    tables = {"model": "jsc-tiny", "dataset": "jsc-sim", "imports": ["own.py"]}
    write_toml(tmp_path / "run.toml", tables)

    def run(*arguments: str) -> tuple[int, str]:
        code = main([*arguments, "--config", "run.toml", "--project-dir", "out"])
        return code, capsys.readouterr().err

    return run


def test_the_commands_are_known() -> None:
    known = ["train", "test", "transform", "search", "quantize", "sensitivity", "formats"]
    assert known == WITH_CONFIG


@pytest.mark.parametrize("command", WITH_CONFIG)
def test_a_configuration_alone_runs_nothing(command: str, ch: Ch) -> None:
    assert ch(command) == (2, REFUSED)
    assert sorted(os.listdir()) == ["own.py", "run.toml"]


@pytest.mark.parametrize("command", WITH_CONFIG)
@pytest.mark.parametrize("name", ["own.py", "./own.py", "FOLDER/own.py"])
def test_with_import_it_runs(command: str, name: str, ch: Ch, tmp_path: Path) -> None:
    name = name.replace("FOLDER", str(tmp_path))
    code, error = ch(command, "--import", name)
    assert (code, error.count("\n")) == (2, 1)
    assert error.endswith("own.py, line 2: ValueError: that far and no further\n")
    assert sorted(set(os.listdir()) - {"__pycache__"}) == ["canary", "own.py", "run.toml"]


@pytest.mark.parametrize(
    "more",
    [
        ["--resume"],
        ["--import", "other.py"],
        ["--import", "own"],
        ["--quiet"],
        ["jsc-toy", "toy_tiny"],
        ["--project", "earlier"],
    ],
    ids=" ".join,
)
def test_nothing_else_makes_it_run(more: list[str], ch: Ch, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(CANARY)  # trusted, but a refused run runs nothing at all
    before = sorted(os.listdir())
    assert ch("train", *more) == (2, REFUSED)
    assert sorted(os.listdir()) == before


def test_several_are_named_in_one_line(ch: Ch, tmp_path: Path) -> None:
    write_toml(tmp_path / "run.toml", {"imports": ["own.py", "a b.py", "json.tool"]})
    code, error = ch("train", "--import", "json.tool")
    assert code == 2
    assert error == (
        "ch: run.toml: imports 'own.py', 'a b.py', which would run their code: "
        "add --import own.py --import 'a b.py' if you trust them\n"
    )


@pytest.mark.parametrize("name", ["x\0y", "\u001b[31mred", "line\nbreak", "e\u0301\u202e.py"])
def test_a_strange_name_is_one_line(name: str, ch: Ch, tmp_path: Path) -> None:
    write_toml(tmp_path / "run.toml", {"imports": [name] * 3})
    code, error = ch("test", "--import", "own.py")
    assert (code, error.count("\n")) == (2, 1)
    assert error[:-1].isprintable()


def test_very_many_names_are_one_line_that_ends(ch: Ch, tmp_path: Path) -> None:
    names = ", ".join(f'"{number}"' for number in range(20_000))
    (tmp_path / "run.toml").write_text(f"imports = [{names}]")
    code, error = ch("test")
    assert (code, error.count("\n")) == (2, 1)
    assert len(error) < 600
    assert error.endswith("--import 19999 if you trust them\n")
