import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from chop.dataset import MaseDataModule
from chop.dataset.vision.cifar import CIFAR10, CIFAR100, Layout
from chop.errors import DataError

RNG = np.random.default_rng(5)
LAYOUTS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def idx(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def mnist_files(folder: Path, packed: bool = True) -> dict[str, np.ndarray]:
    arrays = {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (50, 28, 28), np.uint8),
        "train-labels-idx1-ubyte": RNG.integers(0, 10, 50, np.uint8),
        "t10k-images-idx3-ubyte": RNG.integers(0, 256, (20, 28, 28), np.uint8),
        "t10k-labels-idx1-ubyte": RNG.integers(0, 10, 20, np.uint8),
    }
    for name, array in arrays.items():
        content = idx(array)
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return arrays


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_from_its_own_files(packed: bool, tmp_path: Path) -> None:
    arrays = mnist_files(tmp_path, packed)
    data = MaseDataModule("mnist", batch_size=8, path=tmp_path)
    train, validation, test = data.train_dataset, data.val_dataset, data.test_dataset
    assert [len(part) for part in (train, validation, test)] == [45, 5, 20]
    labels = torch.cat([train.tensors[1], validation.tensors[1]])
    np.testing.assert_array_equal(labels.numpy(), arrays["train-labels-idx1-ubyte"])
    raw = arrays["train-images-idx3-ubyte"][:45] / 255
    expected = (arrays["t10k-images-idx3-ubyte"] / 255 - raw.mean()) / raw.std()
    np.testing.assert_allclose(test.tensors[0][:, 0], expected, atol=1e-4)
    assert data.dataset_info.image_size == (1, 28, 28)


def test_mnist_files_that_are_wrong(tmp_path: Path) -> None:
    mnist_files(tmp_path)
    images = tmp_path / "train-images-idx3-ubyte.gz"
    good = images.read_bytes()
    for content, message in {
        good[:2_000]: "damaged or cut short",
        gzip.compress(gzip.decompress(good)[:-5]): "bytes for an array of shape",
        gzip.compress(b"<html>"): "is not an IDX file",
        gzip.compress(idx(RNG.integers(0, 9, (50, 9, 9), np.uint8))): "do not fit",
    }.items():
        images.write_bytes(content)
        with pytest.raises(DataError, match=message):
            MaseDataModule("mnist", batch_size=8, path=tmp_path).setup()
    images.unlink()
    with pytest.raises(DataError, match=r"has no train-images-idx3-ubyte\.gz"):
        MaseDataModule("mnist", batch_size=8, path=tmp_path).setup()


def records(layout: Layout, count: int) -> tuple[bytes, np.ndarray]:
    labels = RNG.integers(0, layout.classes, count, np.uint8)
    rows = RNG.integers(0, 256, (count, layout.label_bytes + 3072), np.uint8)
    rows[:, layout.label_bytes - 1] = labels
    return rows.tobytes(), labels


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("packed", [True, False])
def test_cifar_from_its_own_archive(name: str, packed: bool, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    made = {file: records(layout, 20) for file in (*layout.train, layout.test)}
    files = {file: content for file, (content, _) in made.items()}
    path = tmp_path / "cifar"
    if packed:
        archive(path, files)
    else:
        path.mkdir()
        for file, content in files.items():
            (path / file).write_bytes(content)
    data = MaseDataModule(name, batch_size=4, path=path)
    train, validation, test = data.train_dataset, data.val_dataset, data.test_dataset
    labels = torch.cat([train.tensors[1], validation.tensors[1]])
    expected = np.concatenate([made[file][1] for file in layout.train])
    np.testing.assert_array_equal(labels.numpy(), expected)
    assert len(validation) == len(expected) // 10
    np.testing.assert_array_equal(test.tensors[1].numpy(), made[layout.test][1])
    assert tuple(train.tensors[0].shape[1:]) == (3, 32, 32)
    torch.testing.assert_close(
        train.tensors[0].mean((0, 2, 3)),
        torch.zeros(3),
        atol=1e-4,
        rtol=0,
    )


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path("pickle_ran").touch, ())


def test_the_pickled_version_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = {"data_batch_1": pickle.dumps(Trap()), "batches.meta": pickle.dumps(Trap())}
    path = archive(tmp_path / "cifar-10-python.tar.gz", pickled)
    with pytest.raises(DataError, match=r"set of pickles.*get cifar-10-binary\.tar\.gz"):
        MaseDataModule("cifar10", batch_size=4, path=path).setup()
    (tmp_path / "data_batch_1").write_bytes(pickled["data_batch_1"])
    with pytest.raises(DataError, match="set of pickles"):
        MaseDataModule("cifar10", batch_size=4, path=tmp_path).setup()
    assert not (tmp_path / "pickle_ran").exists()


def test_cifar_files_that_are_wrong(tmp_path: Path) -> None:
    files = {file: records(CIFAR100, 4)[0] for file in (*CIFAR100.train, CIFAR100.test)}
    path = archive(tmp_path / "wrong.tar.gz", files)
    content = path.read_bytes()
    cases = {
        "damaged or cut short": lambda: path.write_bytes(content[: len(content) // 2]),
        "not whole records": lambda: archive(path, files | {"test.bin": files["test.bin"][:-1]}),
        "is not below 100": lambda: archive(path, files | {"test.bin": b"\xff" * 3074}),
        "has no test.bin": lambda: archive(path, {"train.bin": files["train.bin"]}),
        "no such file or folder": path.unlink,
    }
    for message, spoil in cases.items():
        spoil()
        with pytest.raises(DataError, match=message):
            MaseDataModule("cifar100", batch_size=4, path=path).setup()


def test_toy_tiny_as_the_original_makes_it() -> None:
    data = MaseDataModule("toy_tiny", batch_size=8)
    assert data.dataset_info.available_splits == ("train", "validation", "test", "pred")
    parts = [data.train_dataset, data.val_dataset, data.test_dataset, data.pred_dataset]
    for seed, part in enumerate(parts):
        images, labels = part.tensors
        assert tuple(images.shape) == (10_240, 1, 2, 2)
        assert torch.equal(labels, (images.sum((1, 2, 3)) > 0).long())
        first = np.random.RandomState(seed).randn(4).astype(np.float32)
        np.testing.assert_array_equal(images[0].flatten(), first)


def test_the_environment_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "torchvision" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    mnist_files(raw)
    monkeypatch.setenv("CHOP_MNIST", str(tmp_path / "torchvision"))
    assert len(MaseDataModule("mnist", batch_size=8).test_dataset) == 20
    for name, layout in LAYOUTS.items():
        files = {file: records(layout, 10)[0] for file in (*layout.train, layout.test)}
        archive(tmp_path / layout.archive, files)
        monkeypatch.setenv(f"CHOP_{name.upper()}", str(tmp_path))
        data = MaseDataModule(name, batch_size=8)
        assert len(data.test_dataset) == 10
        assert layout.archive in data.source
        (tmp_path / layout.archive).unlink()
        with pytest.raises(DataError, match=f"has no {layout.train[0]}"):
            MaseDataModule(name, batch_size=8).setup()


def test_the_option_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist_files(tmp_path)
    monkeypatch.setenv("CHOP_MNIST", "/nowhere")
    assert len(MaseDataModule("mnist", batch_size=8, path=tmp_path).test_dataset) == 20
    with pytest.raises(DataError, match="/nowhere: no such folder of the four files of MNIST"):
        MaseDataModule("mnist", batch_size=8).setup()


def test_what_was_done_to_pixels_is_known(tmp_path: Path) -> None:
    arrays = mnist_files(tmp_path)
    data = MaseDataModule("mnist", batch_size=8, path=tmp_path)
    done = data.preprocessing
    assert (done.kind, done.divisor, len(done.mean)) == ("channels", 255.0, 1)
    pixels = arrays["t10k-images-idx3-ubyte"].astype(np.float32)
    expected = (pixels / np.float32(255) - np.float32(done.mean[0])) / np.float32(done.scale[0])
    np.testing.assert_array_equal(data.test_dataset.tensors[0][:, 0].numpy(), expected)
