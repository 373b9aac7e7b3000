"""What the files part found, one test for each."""

import gzip
import io
import json
import os
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from optuna.trial import TrialState
from safetensors.torch import load_file

from chop.dataset import MaseDataModule
from chop.dataset.vision.mnist import read_idx
from chop.errors import CheckpointError, DataError, SearchError
from chop.files import read_safetensors, regular, write_safetensors
from chop.ir.stored.folder import check_seal, seal
from chop.models.weights import load_weights, read_checkpoint
from chop.results.front import SearchResult
from chop.search.study.journal import Journal
from chop.search.study.storage import Place, open_store
from chop.search.study.trial import MEASURED, SearchDescription
from chop.training.checkpoint import random_state, read_resumed
from chop.training.settings import TrainingSettings
from harden.file_targets import idx_bytes


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


@pytest.mark.parametrize("lost", ["sampled_config", "hardware_metrics"])
def test_a_trial_whose_metrics_are_gone_is_named(lost: str, tmp_path: Path) -> None:
    study = optuna.create_study(study_name="a", directions=["maximize"])
    metrics = {name: {"accuracy": 1.0} for name in ("sampled_config", *MEASURED)}
    for attrs in (metrics, {name: value for name, value in metrics.items() if name != lost}):
        study.add_trial(optuna.create_trial(value=1.0, user_attrs=attrs))
    study.add_trial(
        optuna.create_trial(state=TrialState.FAIL, user_attrs={"sampled_config": {}})
    )  # a failed trial has no metrics
    whole, damaged, failed = study.trials
    problem = SearchDescription(directions=("maximize",))
    SearchResult.of(study, [whole, failed], problem).save(tmp_path)
    with pytest.raises(SearchError, match=f"study 'a': trial 1 has no {lost}: part of the study"):
        SearchResult.of(study, [whole, damaged, failed], problem)


def test_a_pipe_and_a_device_are_no_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"is no regular file|is a folder"):
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


def journal_of(path: Path, trials: int = 4) -> list[str]:
    store = open_store(Place(str(path), "s"), ["maximize"], {"a": 1})
    for _ in range(trials):
        trial = store.study.ask({"x": optuna.distributions.IntDistribution(0, 9)})
        store.study.tell(trial, 1.5)
    return path.read_text().splitlines()


def trials_of(path: Path) -> int:
    return len(open_store(Place(str(path), "s"), ["maximize"], {"a": 1}).study.trials)


def test_optuna_reads_a_journal_with_checksums(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    assert all(',"sum":"' in line for line in journal_of(path))
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    storage = optuna.storages.JournalStorage(backend)
    assert len(optuna.load_study(study_name="s", storage=storage).trials) == 4


def test_a_damaged_line_in_a_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    lines = journal_of(path)
    number = next(n for n, line in enumerate(lines) if "1.5" in line)
    lines[number] = lines[number].replace("1.5", "1.7")  # JSON as good as any
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(SearchError, match=rf"study\.log: line {number + 1} is damaged"):
        trials_of(path)


@pytest.mark.parametrize("damage", ["torn", "flipped"])
def test_a_damaged_last_line_is_survived(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    lines = journal_of(path)
    good = "\n".join(lines) + "\n"
    path.write_text(good + (lines[-1][:20] if damage == "torn" else lines[-1][:-9] + "0\n"))
    assert trials_of(path) == 4
    Journal(str(path)).append_logs([{"op_code": 2, "worker_id": "w", "study_id": 0,
                                     "user_attr": {"b": 2}}])  # fmt: skip
    assert path.read_text().startswith(good)
    assert len(path.read_text().splitlines()) == len(lines) + 1
    assert trials_of(path) == 4


@pytest.mark.parametrize("line", ['{"op_code":99,"worker_id":"x"}', "5", "[" * 99999])
def test_a_line_of_a_journal_that_makes_no_sense_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    lines = journal_of(path)
    path.write_text("\n".join([*lines[:3], line, *lines[3:]]) + "\n")
    with pytest.raises(SearchError, match=r"study\.log"):
        trials_of(path)


def test_a_journal_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(SearchError, match=name):
            open_store(Place(str(tmp_path / name), "s"), ["maximize"], {})


def whole_run() -> dict[str, object]:
    state = random_state()
    return {
        "epoch": 0, "global_step": 1, "state_dict": {}, "optimizer_states": [{}], "callbacks": {},
        "chop": {"settings": {}, "record": {}, "history": [{"epoch": 0}], "random_state": state,
                 "epoch_random_state": state, "steps_into_epoch": 0},
    }  # fmt: skip


@pytest.mark.parametrize("key", sorted(whole_run()))
def test_a_run_whose_entries_are_of_other_types_is_refused(key: str, tmp_path: Path) -> None:
    torch.save(whole_run(), tmp_path / "last.ckpt")
    assert read_resumed(tmp_path / "last.ckpt", TrainingSettings(), {}).epoch == 1
    torch.save({**whole_run(), key: "x"}, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match=rf"last\.ckpt: holds no run.*{key}"):
        read_resumed(tmp_path / "last.ckpt", TrainingSettings(), {})


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
