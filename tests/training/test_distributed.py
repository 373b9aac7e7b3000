"""Several processes, and SLURM."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import train_bench as bench
from test_checkpoint import ch, checkpoints

from chop.cli import main
from chop.dataset.data_module import TensorLoader
from chop.training.batches import Epochs


def test_two_processes_compute_what_one_does_with_twice_the_batch(tmp_path: Path) -> None:
    options = ["--max-steps", "40", "--seed", "4"]
    pair = ["--gpu", "2", "--strategy", "ddp", "--batch-size", "128"]
    done = subprocess.run(
        [Path(sys.executable).with_name("ch"), *_mlp(ch(tmp_path / "two", *options, *pair))],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Training model 'jsc-mlp'...") == 1
    assert main(_mlp(ch(tmp_path / "one", *options, "--batch-size", "256"))) == 0
    two, one = (
        bench.weights(checkpoints(tmp_path / name) / "last.ckpt") for name in ("two", "one")
    )
    for name, value in one.items():
        assert torch.allclose(two[name], value, atol=2e-5), name


def _mlp(command: list[str]) -> list[str]:
    return ["jsc-mlp" if word == "jsc-tiny" else word for word in command]


@pytest.mark.parametrize("rows", [8, 9, 10])
@pytest.mark.parametrize("shuffle", [False, True])
def test_shares_are_equal_for_training_and_exact_for_evaluation(rows: int, shuffle: bool) -> None:
    loader = TensorLoader(torch.arange(rows), torch.arange(rows), 2, shuffle, seed=1)
    shares = [
        [int(x) for batch, _ in Epochs(loader, even=True).batches(3, rank, 2) for x in batch]
        for rank in (0, 1)
    ]
    assert len(shares[0]) == len(shares[1])
    assert set(shares[0]) | set(shares[1]) == set(range(rows))
    exact = [
        int(x) for rank in (0, 1) for batch, _ in Epochs(loader).batches(3, rank, 2) for x in batch
    ]
    assert sorted(exact) == list(range(rows))


def test_slurm_is_asked_to_requeue_and_the_next_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "77")

    class Ends(bench.MemoryLogger):
        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            if step == 10 and "val_loss_epoch" in metrics:
                os.kill(os.getpid(), signal.SIGUSR1)  # SLURM: your time is nearly over

    given = {"auto_requeue": True, "scheduler": "constant"}
    bench.run(tmp_path / "run", max_epochs=1, visualizer=Ends(), **given)
    assert asked.read_text() == "requeue 77\n"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert len(bench.run(tmp_path / "run", max_epochs=2, **given).history) == 2
    assert not (tmp_path / "run" / "last-v1.ckpt").exists()
