"""Archives and arrays that are damaged, hostile or larger than they say."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from chop.dataset import MaseDataModule
from chop.dataset.vision.mnist import read_idx
from chop.errors import DataError
from harden.file_targets import idx_bytes


def flipped(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_shapes_whose_product_overflows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx_bytes((2**31, 2**31, 4), b""))  # 2**64 elements, which is 0 in 64 bits
    with pytest.raises(DataError, match=r"images: claims"):
        read_idx(path, 3)


def test_a_packed_array_is_read_no_further_than_it_says(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx_bytes((4,), bytes(50_000_000))))
    with pytest.raises(DataError, match=r"more than 4 bytes"):
        read_idx(path, 1)


def cifar(path: Path, kind: bytes = tarfile.REGTYPE) -> None:
    names = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "/etc/passwd", 2 * 3073
            archive.addfile(member, io.BytesIO(bytes(2 * 3073)))


def rows_of(path: Path, name: str) -> MaseDataModule:
    module = MaseDataModule(name, 4, path=path, cache_dir=path.parent / "cache")
    module.setup()
    return module


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    cifar(tmp_path / "a.tar.gz", tarfile.SYMTYPE)
    with pytest.raises(DataError, match=r"a\.tar\.gz: has no data_batch_1\.bin"):
        rows_of(tmp_path / "a.tar.gz", "cifar10")


def test_the_checksum_at_the_end_of_an_archive_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    cifar(path)
    flipped(path, path.stat().st_size - 6)
    with pytest.raises(DataError, match=r"a\.tar\.gz: is damaged"):
        rows_of(path, "cifar10")


def test_an_archive_of_arrays_that_is_a_bomb_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chop.dataset.tables import pieces

    monkeypatch.setattr(pieces, "SMALL", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", features=np.zeros((1 << 17, 16)), labels=np.arange(9))
    with pytest.raises(DataError, match=r"a\.npz: .* would unpack to"):
        rows_of(tmp_path / "a.npz", "npz")


def test_a_damaged_cache_is_built_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "a.npz"
    np.savez(path, features=rng.normal(size=(40, 3)), labels=np.arange(40) % 2)
    good = rows_of(path, "npz").splits.train.tensors[0].clone()  # type: ignore[union-attr]
    (cached,) = (tmp_path / "cache").rglob("train_x.npy")
    flipped(cached, cached.stat().st_size - 2)
    again = rows_of(path, "npz").splits.train.tensors[0]  # type: ignore[union-attr]
    assert torch.equal(good, again)
