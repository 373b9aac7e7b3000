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

from chop import MaseGraph
from chop.cli import main
from chop.dataset import MaseDataModule
from chop.dataset.data_module import TensorLoader
from chop.models import get_model
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
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


def test_widths_learn_in_two_processes_as_in_one_with_twice_the_batch(tmp_path: Path) -> None:
    """Bits are trained by the gradients of both, and ranges are those of the rows of both."""
    x = {"x": torch.randn(4, 16, generator=torch.Generator().manual_seed(1))}
    torch.manual_seed(0)
    info = MaseDataModule("jsc-sim", batch_size=64).dataset_info
    graph, _ = init_metadata_analysis_pass(MaseGraph(get_model("jsc-mlp", dataset_info=info)))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": x})
    rule = {"config": {"name": "integer_trained", "weight_frac_width": 6}}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "linear": rule})
    graph.export(tmp_path / "learning")
    config = tmp_path / "learn.toml"
    config.write_text('[train.cost]\nname = "ebops"\nweight = 1e-6\nrefresh = 2\n')
    options = ["--config", str(config), "--load", str(tmp_path / "learning"), "--max-steps", "12"]
    pair = ["--gpu", "2", "--strategy", "ddp", "--batch-size", "128"]
    done = subprocess.run(
        [Path(sys.executable).with_name("ch"), *_mlp(ch(tmp_path / "two", *options, *pair))],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert main(_mlp(ch(tmp_path / "one", *options, "--batch-size", "256"))) == 0
    two, one = (
        bench.weights(checkpoints(tmp_path / name) / "last.ckpt") for name in ("two", "one")
    )
    assert any(name.endswith("frac_width") for name in one)
    assert any(name.endswith(".hi") for name in one)
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
