"""A run that stops and goes on ends where an uninterrupted one does, bit for bit."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import train_bench as bench
from test_fit import RowByRow
from warm import WarmRun

from chop.cli import main
from chop.dataset import MaseDataModule
from chop.errors import ConfigError

TRAIN = ["train", "jsc-tiny", "jsc-sim", "--batch-size", "128", "--max-epochs", "4"]
TRAIN += ["--learning-rate", "1e-3", "--report-to", "none", "--accelerator", "cpu"]


def ch(folder: Path, *more: str) -> list[str]:
    return [*TRAIN, "--project-dir", str(folder), "--project", "run", *more]


def checkpoints(folder: Path) -> Path:
    return folder / "run" / "software" / "training_ckpts"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert main(ch(folder)) == 0
    return checkpoints(folder) / "last.ckpt"


def wait_for(path: Path, process: WarmRun) -> None:
    for _ in range(6000):
        if path.exists() or process.poll() is not None:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not appear in a minute")


@pytest.mark.parametrize("data", [MaseDataModule, RowByRow])
def test_resuming_is_exact(tmp_path: Path, data: type[MaseDataModule]) -> None:
    given = {"scheduler": "constant", "optimizer": "sgd"}
    whole = bench.run(tmp_path / "whole", bench.dropout_model(), data("toy_tiny", 1024), **given)
    for epochs in (1, 2, 3):
        torch.manual_seed(99)  # whatever happened before must not matter
        model = bench.dropout_model(0 if epochs == 1 else 7)
        parts = bench.run(
            tmp_path / "parts",
            model,
            data("toy_tiny", 1024),
            resume=True,
            max_epochs=epochs,
            **given,
        )
    assert bench.same(whole.last, parts.last)
    assert bench.same(whole.best, parts.best)
    names = ("epoch", "step", "train_loss", "val_loss_epoch", "train_acc_step")
    for one, other in zip(whole.history, parts.history, strict=True):
        assert {name: one[name] for name in names} == {name: other[name] for name in names}


def test_an_epoch_cut_by_a_limit_on_steps_is_finished(tmp_path: Path) -> None:
    given = {"scheduler": "constant", "accumulate_grad_batches": 2}
    whole = bench.run(tmp_path / "whole", bench.dropout_model(), max_steps=12, **given)
    for limit in (3, 7, 12):
        parts = bench.run(
            tmp_path / "parts", bench.dropout_model(), resume=True, max_steps=limit, **given
        )
    assert bench.same(whole.last, parts.last)
    assert [row["step"] for row in parts.history] == [5, 10, 12]


def test_a_finished_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = bench.run(tmp_path, early_stopping=1, learning_rate=1e-30, max_epochs=9)
    before = first.last.read_bytes()
    again = bench.run(tmp_path, early_stopping=1, learning_rate=1e-30, max_epochs=9, resume=True)
    assert again.last.read_bytes() == before
    assert len(again.history) == len(first.history) == 2
    assert "Nothing is left to train" in capsys.readouterr().out


def test_other_settings_are_refused(tmp_path: Path) -> None:
    bench.run(tmp_path, max_epochs=1)
    with pytest.raises(
        ConfigError, match=r"--resume: learning_rate is 0.5, but the run in .* 0.01"
    ):
        bench.run(tmp_path, max_epochs=2, learning_rate=0.5, resume=True)
    with pytest.raises(ConfigError, match="batch_size is 512"):
        bench.run(tmp_path, data=MaseDataModule("toy_tiny", 512), max_epochs=2, resume=True)


def test_the_newest_run_is_the_one_that_goes_on(tmp_path: Path) -> None:
    first = bench.run(tmp_path, max_epochs=1)
    before = first.last.read_bytes()
    bench.run(tmp_path, max_epochs=1)
    third = bench.run(tmp_path, max_epochs=2, resume=True)
    assert third.last.name == "last-v1.ckpt"
    assert first.last.read_bytes() == before


def test_nothing_to_resume_starts_from_the_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(bench.run(tmp_path, resume=True).history) == 3
    assert "starting from the beginning" in capsys.readouterr().out


def test_kill_in_mid_epoch(tmp_path: Path, uninterrupted: Path) -> None:
    process = WarmRun(*ch(tmp_path))
    wait_for(checkpoints(tmp_path) / "last.ckpt", process)
    time.sleep(0.1)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = torch.load(checkpoints(tmp_path) / "last.ckpt", weights_only=True)["epoch"]
    assert done < 3, "the run was over before it was killed"
    assert main(ch(tmp_path, "--resume")) == 0
    assert bench.same(uninterrupted, checkpoints(tmp_path) / "last.ckpt")


def test_kill_in_the_middle_of_writing_a_checkpoint(tmp_path: Path, uninterrupted: Path) -> None:
    # Epoch 0 writes best and last whole; of epoch 1, half of a checkpoint reaches the disk.
    patch = """
import os, pathlib, signal
write, count = pathlib.Path.write_bytes, [0]
def half(path, data):
    count[0] += 1
    if count[0] < 3:
        return write(path, data)
    write(path, bytes(data)[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.write_bytes = half
"""
    process = WarmRun(*ch(tmp_path), patch=patch)
    process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    folder = checkpoints(tmp_path)
    assert list(folder.glob("*.tmp")) or list(folder.glob(".*.tmp")), "nothing was half written"
    assert torch.load(folder / "last.ckpt", weights_only=True)["epoch"] == 0
    assert main(ch(tmp_path, "--resume")) == 0
    assert bench.same(uninterrupted, folder / "last.ckpt")


def test_termination(tmp_path: Path) -> None:
    process = WarmRun(*ch(tmp_path, "--max-epochs", "400"))
    wait_for(checkpoints(tmp_path) / "last.ckpt", process)
    process.terminate()
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (128 + signal.SIGTERM, "")
    assert "Terminated; what was finished is kept" in out


def test_ctrl_c(tmp_path: Path, uninterrupted: Path) -> None:
    process = WarmRun(*ch(tmp_path))
    wait_for(checkpoints(tmp_path) / "last.ckpt", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err == "ch: interrupted; what was finished is kept\n"
    assert "Detected KeyboardInterrupt" not in out
    assert main(ch(tmp_path, "--resume")) == 0
    assert bench.same(uninterrupted, checkpoints(tmp_path) / "last.ckpt")


@pytest.mark.parametrize("by_rename", [True, False])
def test_a_data_file_with_other_contents_does_not_go_on(
    by_rename: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file of the same size and modification time was taken for the one before."""
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "rows.csv"
    text = "a,b,label\n" + "".join(f"{n % 7}.5,{n % 5}.25,{n % 2}\n" for n in range(60))
    file.write_text(text, encoding="utf-8")
    train = [
        "train",
        "jsc-mlp",
        "csv",
        "--dataset-path",
        str(file),
        *TRAIN[3:],
        "--max-epochs",
        "1",
    ]
    train += ["--project-dir", str(tmp_path), "--project", "run"]
    assert main(train) == 0
    before = file.stat()
    new = file.with_name("new.csv") if by_rename else file
    new.write_text(text.replace("3.5", "9.5"), encoding="utf-8")
    new.replace(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    capsys.readouterr()
    assert main([*train, "--resume"]) == 2
    assert "--resume: fingerprint is" in capsys.readouterr().err
