"""Programs are written without pickles and read back as they were; damage is one clear line."""

from pathlib import Path

import pytest
import torch
from lowering_nets import example

from chop.errors import CheckpointError
from chop.lowering import Engine, load_program, lower, save_program
from chop.lowering.stored import ARRAYS, PROGRAM


@pytest.mark.parametrize("name", ["branches", "pools", "words", "attention"])
def test_round_trip(name: str, tmp_path: Path) -> None:
    graph, x = example(name)
    program = lower(graph)
    again = load_program(save_program(program, tmp_path / "program"))
    assert str(again) == str(program)
    assert torch.equal(Engine(again)(x)[0], Engine(program)(x)[0])
    assert {p.name for p in (tmp_path / "program").iterdir()} == {PROGRAM, ARRAYS}


@pytest.mark.parametrize(
    ("file", "change"),
    [
        (PROGRAM, lambda text: text[: len(text) // 2]),
        (PROGRAM, lambda text: text.replace(b'"Product"', b'"Pickle"')),
        (PROGRAM, lambda text: text.replace(b'"version": 1', b'"version": 9')),
        (PROGRAM, lambda text: b"[]"),
        (ARRAYS, lambda data: data[:-9]),
        (ARRAYS, lambda data: data[:-1] + b"\x07"),
    ],
)
def test_damage_is_said(file: str, change: object, tmp_path: Path) -> None:
    graph, _ = example("jsc-tiny")
    folder = save_program(lower(graph), tmp_path)
    path = folder / file
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(CheckpointError, match="the integer program is damaged") as caught:
        load_program(folder)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_program_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no integer program can be read"):
        load_program(tmp_path / "nothing")
