"""Files of tensors and of graphs: a flipped bit, a packed file or a device is refused by name."""

import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from chop.errors import CheckpointError
from chop.files import read_safetensors, regular, write_safetensors
from chop.ir.stored.folder import check_seal, seal
from chop.models.weights import load_weights, read_checkpoint


def flipped(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_tensors_carry_a_checksum_that_other_readers_need_not_know(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"a": torch.arange(50.0), "b": torch.ones(3, dtype=torch.bfloat16)}
    write_safetensors(path, tensors)
    for found in (load_file(path), read_safetensors(path)):
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    flipped(path, path.stat().st_size - 9)
    assert not torch.equal(load_file(path)["a"], tensors["a"])
    with pytest.raises(ValueError, match="checksum"):
        read_safetensors(path)


def test_a_pipe_and_a_device_are_no_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"is not a regular file|is a folder"):
            regular(path)


def test_every_bit_of_a_graph_record_counts() -> None:
    text = seal({"format": "chop-graph", "nodes": [1, 2.5], "digest": "ab"})
    assert json.loads(text)["nodes"] == [1, 2.5]
    check_seal(text, Path("graph.json"))
    check_seal('{"format": "chop-graph"}', Path("graph.json"))  # of an earlier version
    rng = random.Random(0)
    for place in rng.sample(range(text.rfind(', "checksum"')), 20):
        changed = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        with pytest.raises(CheckpointError, match=r"graph.json: is damaged"):
            check_seal(changed, Path("graph.json"))


def test_a_torch_file_that_is_packed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.zeros(1000)}, path)
    with zipfile.ZipFile(path) as good:
        parts = {name: good.read(name) for name in good.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(CheckpointError, match=r"a\.pt: .*unpack to more"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "change", [torch.Tensor.to_sparse, lambda t: t.to("meta"), lambda t: t * 1j]
)
def test_tensors_that_hold_no_plain_numbers_are_refused(change: Any) -> None:
    model = torch.nn.Linear(3, 2)
    state = {**model.state_dict(), "bias": change(torch.ones(2))}
    with pytest.raises(CheckpointError, match=r"a\.pt: .*of another kind: bias"):
        load_weights(model, state, "a.pt")
