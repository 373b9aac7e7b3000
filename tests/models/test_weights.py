import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.errors import CheckpointError
from chop.models import get_model
from chop.models.weights import load_weights, read_checkpoint, read_state_dict


def network() -> nn.Module:
    torch.manual_seed(1)
    return get_model("jsc-tiny")


def saved(folder: Path, kind: str) -> Path:
    state = network().state_dict()
    path = folder / f"weights.{kind}"
    if kind == "safetensors":
        from safetensors.torch import save_file

        save_file(state, path)
    elif kind == "ckpt":
        inside = {f"model.{name}": value for name, value in state.items()}
        torch.save({"state_dict": inside, "epoch": 3, "pytorch-lightning_version": "2.5"}, path)
    elif kind == "old":
        torch.save(state, path, _use_new_zipfile_serialization=False)
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("kind", ["pt", "ckpt", "safetensors", "old"])
def test_checkpoint_loads_the_weights(kind: str, tmp_path: Path) -> None:
    model = get_model("jsc-tiny", checkpoint=saved(tmp_path, kind))
    for name, value in network().state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


@pytest.mark.parametrize("kind", ["pt", "ckpt", "safetensors", "old"])
def test_a_file_cut_short_is_one_line(kind: str, tmp_path: Path) -> None:
    path = saved(tmp_path, kind)
    content = path.read_bytes()
    for length in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError) as error:
            read_state_dict(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


def test_every_flipped_byte_of_a_weight_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path, "pt")
    content = path.read_bytes()
    weight = network().state_dict()["seq_blocks.2.weight"].numpy().tobytes()
    start = content.index(weight)
    for place in range(start, start + len(weight), 16):
        spoilt = bytearray(content)
        spoilt[place] ^= 0x10
        path.write_bytes(spoilt)
        with pytest.raises(CheckpointError, match="the checksum of"):
            read_state_dict(path)


def test_a_byte_flipped_anywhere_is_an_error_or_harmless(tmp_path: Path) -> None:
    path = saved(tmp_path, "pt")
    content = path.read_bytes()
    expected = network().state_dict()
    for place in range(0, len(content), 23):
        spoilt = bytearray(content)
        spoilt[place] ^= 0xFF
        path.write_bytes(spoilt)
        try:
            state = read_state_dict(path)
        except CheckpointError:
            continue
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], value) for name, value in expected.items())


class Trap:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.witness),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code_is_refused(zipped: bool, tmp_path: Path) -> None:
    witness, path = tmp_path / "it_ran", tmp_path / "trap.pt"
    torch.save({"state_dict": Trap(witness)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="refused, as it holds more than tensors"):
        read_checkpoint(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "it is empty"),
        (b"hello", "it begins with b'hello'"),
        (b"<html>404</html>", "it begins with b'<html>404</htm"),
        (b"PK\x03\x04", "it begins as such a file does, but its end is missing or"),
    ],
)
def test_what_is_no_file_of_torch_is_said_in_words(
    content: bytes, found: str, tmp_path: Path
) -> None:
    path = tmp_path / "junk.ckpt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    assert f"{path}: is damaged or not a file of torch: {found}" in str(error.value)


def test_a_pickle_of_anything_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "junk.ckpt"
    path.write_bytes(pickle.dumps({"state_dict": {}}))
    with pytest.raises(CheckpointError, match=r"junk\.ckpt: refused, as it is not a file of torch"):
        read_checkpoint(path)


def test_an_old_file_that_goes_astray_is_said_in_words(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    assert torch.equal(read_state_dict(path)["a"], torch.ones(2))
    content = path.read_bytes()
    for end in range(20, len(content) - 1, 7):
        path.write_bytes(content[:end] + b"e")
        with pytest.raises(CheckpointError, match=r"[a-z]{3}[^(]*\)?$"):
            read_checkpoint(path)


def test_what_a_refused_file_names_is_said(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(network(), path)
    with pytest.raises(CheckpointError, match=r"is damaged: it names \S+$"):
        read_checkpoint(path)


def test_a_whole_pickled_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(network(), path)
    with pytest.raises(CheckpointError, match="refused"):
        get_model("jsc-tiny", checkpoint=path)


@pytest.mark.parametrize("content", [[1, 2], {"a": 3}, {"state_dict": {"a": "text"}}, {1: 2}])
def test_what_is_not_weights_is_refused(content: object, tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="is not a dictionary of tensors"):
        read_state_dict(path)


def test_names_and_shapes_that_do_not_fit_are_listed() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = {name: value + 1 for name, value in before.items()}
    del state["seq_blocks.0.bias"]
    state["extra"] = torch.zeros(1)
    state["seq_blocks.2.bias"] = torch.zeros(7)
    with pytest.raises(CheckpointError) as error:
        load_weights(model, state, "here")
    assert str(error.value) == (
        "here: the weights do not fit; missing: seq_blocks.0.bias; unexpected: extra; "
        "of another shape: seq_blocks.2.bias (7,) for (5,)"
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
