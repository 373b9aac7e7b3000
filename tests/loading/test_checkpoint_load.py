"""Weights from disk: they fit, or one line says why not, and nothing in the file is run."""

import io
import pickle
import zipfile
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from chop.errors import CheckpointError, ChopError, ConfigError
from chop.loading.networks import load_model
from chop.loading.paths import loadable


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def write(folder: Path, load_type: str, state: dict[str, torch.Tensor]) -> Path:
    """A file or folder of one load type."""
    if load_type == "pl":
        torch.save({"state_dict": {f"model.{k}": v for k, v in state.items()}}, folder / "x.ckpt")
        return folder / "x.ckpt"
    if load_type == "hf":
        save_file(state, folder / "model.safetensors")
        return folder
    torch.save(state, folder / "x.pt")
    return folder / "x.pt"


@pytest.mark.parametrize("load_type", ["pt", "pl", "hf"])
def test_weights_go_into_the_model(tmp_path: Path, load_type: str) -> None:
    source = network().state_dict()
    path = write(tmp_path, load_type, source)
    model = network()
    assert load_model(path, load_type, model) is model
    assert all(torch.equal(value, source[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("load_type", ["pt", "pl", "hf"])
def test_keys_that_do_not_fit_are_listed(tmp_path: Path, load_type: str) -> None:
    state = network().state_dict()
    state["9.weight"] = state.pop("0.weight")
    path = write(tmp_path, load_type, state)
    with pytest.raises(CheckpointError, match=r"missing: 0\.weight; unexpected: 9\.weight"):
        load_model(path, load_type, network())


def test_the_original_checkpoint_may_hold_a_model_attribute_named_model(tmp_path: Path) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(2, 2)

    path = write(tmp_path, "pl", Outer().state_dict())
    load_model(path, "pl", Outer())


class Canary:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["zip", "bare", "lightning"])
@pytest.mark.parametrize("load_type", ["pt", "pl", "hf"])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, kind: str, load_type: str) -> None:
    canary = tmp_path / "canary"
    path = tmp_path / "pytorch_model.bin"
    if kind == "bare":
        path.write_bytes(pickle.dumps(Canary(canary)))
    else:
        torch.save({"state_dict": {"0.weight": Canary(canary)}}, path)
    with pytest.raises(CheckpointError, match="refused") as caught:
        load_model(tmp_path if load_type == "hf" else path, load_type, network())
    assert "\n" not in str(caught.value)
    assert not canary.exists()
    if kind == "bare":
        pickle.loads(path.read_bytes())
        assert canary.exists(), "the pickle is harmless and proves nothing"


def test_flipped_bytes_never_give_other_weights(tmp_path: Path) -> None:
    source = network().state_dict()
    path = write(tmp_path, "pt", source)
    content = path.read_bytes()
    messages = []
    for place, mask in product(range(0, len(content), 6), (0x10, 0x55)):
        damaged = bytearray(content)
        damaged[place] ^= mask
        path.write_bytes(damaged)
        model = network()
        try:
            load_model(path, "pt", model)
        except CheckpointError as error:
            messages.append(str(error))
        else:  # the byte was padding
            assert all(torch.equal(v, source[k]) for k, v in model.state_dict().items())
    assert len(messages) > 20
    assert all("damaged" in message or "refused" in message for message in messages)


def test_a_truncated_file_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, "pt", network().state_dict())
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CheckpointError):
        load_model(path, "pt", network())


def test_weights_of_another_device_are_read_on_the_cpu(tmp_path: Path) -> None:
    """A file whose tensors say cuda, as those of a GPU machine do."""
    buffer = io.BytesIO()
    torch.save(network().state_dict(), buffer)
    path = tmp_path / "gpu.pt"
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("data.pkl"):
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            new.writestr(name, data)
    model = network()
    load_model(path, "pt", model)
    assert next(model.parameters()).device.type == "cpu"


@pytest.mark.parametrize(
    ("name", "load_type", "message"),
    [
        ("absent.pt", "pt", "no such file"),
        (".", "pt", "is a folder"),
        (".", "hf", "holds neither model.safetensors nor"),
        (".", "onnx", "unknown load type 'onnx'"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, load_type: str, message: str) -> None:
    with pytest.raises(ChopError, match=message):
        load_model(tmp_path / name, load_type, network())


@pytest.mark.parametrize("kind", ["pt", "pl"])
def test_what_a_file_is_shows_in_its_name(tmp_path: Path, kind: str) -> None:
    state = network().state_dict()
    path = write(tmp_path, kind, state)
    loaded = load_model(path, model=network())
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize(
    ("name", "load_type", "meant"),
    [
        ("x.ckpt", "mz", "pl"),
        ("x.pth", "mz", "pt"),
        ("x.PT", "mz", "pt"),
        ("x.onnx", "mz", "qonnx"),
        ("config.json", "mz", "hf"),
        ("x.ckpt", "pt", "pt"),  # who says what it is, is believed
        ("x", "mz", "mz"),
    ],
)
def test_types_of_files(tmp_path: Path, name: str, load_type: str, meant: str) -> None:
    (tmp_path / name).touch()
    assert loadable(tmp_path / name, load_type) == (tmp_path / name, meant)


def test_a_project_is_its_best_checkpoint_else_its_newest_graph(tmp_path: Path) -> None:
    software = tmp_path / "software"
    for name in ("graph.json",):
        (software / "transform" / "transformed_ckpt").mkdir(parents=True)
        (software / "transform" / "transformed_ckpt" / name).touch()
    assert loadable(tmp_path) == (software / "transform" / "transformed_ckpt", "mz")
    (software / "training_ckpts").mkdir()
    for name in ("best.ckpt", "best-v1.ckpt", "last-v1.ckpt"):
        (software / "training_ckpts" / name).touch()
    newest = software / "training_ckpts" / "best-v1.ckpt"
    assert loadable(tmp_path) == loadable(software) == (newest, "pl")


def test_a_project_without_anything_to_load_says_so(tmp_path: Path) -> None:
    (tmp_path / "software").mkdir()
    (tmp_path / "software" / "run_search.json").write_text("{}")
    with pytest.raises(CheckpointError, match="holds no checkpoint and no saved graph: ch train"):
        loadable(tmp_path)


def test_weights_need_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a model"):
        load_model(write(tmp_path, "pt", network().state_dict()), "pt")
