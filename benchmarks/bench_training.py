"""One epoch of training with validation: chop against a bare PyTorch loop and the plain recipe.

The bare loop has the same model, fused Adam, one thread, the same validation, and nothing else.
The plain recipe is the original's: a Dataset with __getitem__, DataLoader with default collate and
a worker for each core, torchmetrics, and every step logged through Lightning.
chop has checkpoints, TensorBoard, the progress bar, the CSV file and the learning-rate schedule on.
"""

import argparse
import json
import logging
import os
import platform
import resource
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import chop.training.fit as fitting
from chop.actions import train
from chop.dataset import get_dataset_info
from chop.dataset.data_module import TensorLoader
from chop.models import get_model, get_model_info
from chop.training.job import make_logger
from chop.training.report import TrainingBar

ROWS, VALIDATION_ROWS, FEATURES, CLASSES, BATCH = 789_444, 197_362, 16, 5, 256
MODELS = ("jsc-tiny", "jsc-mlp")
RESULTS = Path(__file__).parent / "results" / "training.jsonl"


class Rows(Dataset[Any]):
    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features[index], self.labels[index]


class Data:
    """A data module over tensors that exist already."""

    batch_size = BATCH
    dataset_info = get_dataset_info("jsc-sim")
    source, fingerprint = "random numbers", "none"

    def __init__(self, rows: int, validation_rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = [self._made(count, generator) for count in (rows, validation_rows)]

    @staticmethod
    def _made(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        features = torch.randn(count, FEATURES, generator=generator)
        return features, features[:, :CLASSES].argmax(dim=1)

    def prepare_data(self) -> None: ...

    def setup(self) -> None: ...

    def train_dataloader(self) -> TensorLoader:
        return TensorLoader(*self.rows[0], BATCH, shuffle=True)

    def val_dataloader(self) -> TensorLoader:
        return TensorLoader(*self.rows[1], BATCH)


def fresh(name: str) -> nn.Module:
    torch.manual_seed(0)
    return get_model(name)


def time_chop(name: str, data: Data, folder: Path) -> float:
    """Seconds of a whole run of one epoch, from the call to the picture of the curves."""
    model, info = fresh(name), get_model_info(name)
    visualizer = make_logger("tensorboard", folder, "benchmark")
    begin = time.perf_counter()
    train(
        model,
        info,
        data,
        data.dataset_info,
        learning_rate=1e-3,
        plt_trainer_args={"max_epochs": 1},
        save_path=folder / "training_ckpts",
        visualizer=visualizer,
    )
    return time.perf_counter() - begin


def time_bare(name: str, data: Data, folder: Path) -> float:
    """Seconds of the loop that one would write by hand."""
    torch.set_num_threads(1)
    model = fresh(name)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    (features, labels), (val_features, val_labels) = data.rows
    begin = time.perf_counter()
    model.train()
    order = torch.randperm(len(features))
    for start in range(0, len(features), BATCH):
        chosen = order[start : start + BATCH]
        optimiser.zero_grad()
        F.cross_entropy(model(features[chosen]), labels[chosen]).backward()
        optimiser.step()
    model.eval()
    loss, right = torch.zeros(()), torch.zeros((), dtype=torch.int64)
    with torch.no_grad():
        for start in range(0, len(val_features), BATCH):
            part = slice(start, start + BATCH)
            logits = model(val_features[part].clone())  # jsc-tiny works in place
            loss += F.cross_entropy(logits, val_labels[part], reduction="sum")
            right += (logits.argmax(1) == val_labels[part]).sum()
    float(loss), int(right)
    return time.perf_counter() - begin


def time_plain(name: str, data: Data, folder: Path) -> float:
    """Seconds of the plain recipe, the whole epoch as for the others: its start-up counts once."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import LearningRateMonitor
    from lightning.pytorch.loggers import TensorBoardLogger

    torch.set_num_threads(os.cpu_count() or 1)
    loaders = [
        DataLoader(Rows(*rows), BATCH, shuffle=first, num_workers=os.cpu_count() or 1)
        for first, rows in zip((True, False), data.rows, strict=True)
    ]
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=TensorBoardLogger(folder / "plain"),
        callbacks=[LearningRateMonitor("step")],
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
    )
    module = plain_module(fresh(name))
    begin = time.perf_counter()
    trainer.fit(module, *loaders)
    return time.perf_counter() - begin


def plain_module(model: nn.Module) -> Any:
    import lightning.pytorch as pl
    from torchmetrics import Accuracy, MeanMetric

    class Plain(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.acc = Accuracy("multiclass", num_classes=CLASSES)
            self.val_acc = Accuracy("multiclass", num_classes=CLASSES)
            self.val_loss = MeanMetric()

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            logits = self.model(x)
            loss = F.cross_entropy(logits, y)
            self.acc(logits, y)
            self.log("train_acc_step", self.acc, prog_bar=True)
            self.log("train_loss_step", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            x, y = batch
            logits = self.model(x)
            self.val_acc(logits, y)
            self.val_loss(F.cross_entropy(logits, y))
            self.log("val_acc_epoch", self.val_acc, on_epoch=True, prog_bar=True)
            self.log("val_loss_epoch", self.val_loss, on_epoch=True, prog_bar=True)

        def configure_optimizers(self) -> Any:
            optimiser = torch.optim.Adam(self.parameters(), lr=1e-3)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=1, eta_min=1e-6)
            return {"optimizer": optimiser, "lr_scheduler": schedule}

    return Plain()


WAYS = {"chop": time_chop, "bare": time_bare, "plain": time_plain}


def measure(name: str, data: Data, repeats: int) -> dict[str, list[float]]:
    """The steps a second of each way in each round; in a round they follow one another."""
    steps = -(-len(data.rows[0][0]) // BATCH)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way, timed in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                rates[way].append(steps / timed(name, data, Path(folder)))
    return rates


def ratio(rates: dict[str, list[float]], base: str) -> str:
    """chop's rate over another's: the median of the rounds, and their range."""
    each = sorted(ours / other for ours, other in zip(rates["chop"], rates[base], strict=True))
    return f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", action="store_true", help=f"append a line to {RESULTS}")
    options = parser.parse_args()
    _calm()
    share, repeats = (10, 1) if options.quick else (1, options.repeats)
    data = Data(ROWS // share, VALIDATION_ROWS // share)
    rates = {name: measure(name, data, repeats) for name in MODELS}
    table = [
        [
            name,
            *(f"{statistics.median(rate[way]):.0f}" for way in WAYS),
            ratio(rate, "bare"),
            ratio(rate, "plain"),
        ]
        for name, rate in rates.items()
    ]
    headers = ["model", "chop steps/s", "bare steps/s", "plain steps/s", "chop/bare", "chop/plain"]
    print(tabulate(table, headers, "simple"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = sum(tensor.nbytes for rows in data.rows for tensor in rows) / 2**20
    print(f"peak memory {peak:.0f} MB with {size:.0f} MB of data (allowed: {1.5 * size + 500:.0f})")
    if options.save:
        _save({"rates": rates, "peak_mb": peak, "data_mb": size, "rows": len(data.rows[0][0])})


def _calm() -> None:
    """Draw chop's bar as on a terminal, but into nowhere, and keep the others quiet."""
    nowhere = open(os.devnull, "w")  # noqa: SIM115  (open as long as the process lives)
    console = Console(file=nowhere, force_terminal=True)
    fitting.make_training_progress = lambda **_: TrainingBar(console)  # type: ignore[assignment]
    for name in ("chop", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def _save(result: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    machine = {"torch": torch.__version__, "python": platform.python_version()}
    with RESULTS.open("a") as stream:
        stream.write(json.dumps({**result, **machine, "cores": os.cpu_count()}) + "\n")


if __name__ == "__main__":
    main()
