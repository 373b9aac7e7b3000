"""An epoch of ResNet-8 on pictures: chop against a bare PyTorch loop, and the memory of the rows.

Both take turns in one run, on one thread, with the same pictures, the same augmentation, channels
last and fused AdamW. The bare loop has nothing else; chop has its parts: the schedule of learning
rates, reports, checkpoints. What is compared are seconds of the processor, which other work on the
machine changes less than those of the clock. Pictures are random numbers, which takes no longer.

Run: python benchmarks/bench_pictures.py [--quick] [--batches 20] [--rounds 5] [--save]
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
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn

from chop.actions import train
from chop.dataset import get_dataset_info
from chop.dataset.augmentation import Augmentation
from chop.dataset.data_module import TensorLoader, permutation
from chop.models import get_model, get_model_info

AUGMENT, BATCH, SHAPE = "flip,crop:4", 128, (3, 32, 32)
RATE, DECAY = 4e-3, 5e-3
RESULTS = Path(__file__).parent / "results" / "pictures.jsonl"


class Pictures:
    """A data module over random pictures, without validation rows."""

    batch_size = BATCH
    dataset_info = get_dataset_info("cifar10")
    source, fingerprint = "random numbers", "none"

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.features = torch.randn(rows, *SHAPE, generator=generator)
        self.labels = torch.randint(10, (rows,), generator=generator)

    def prepare_data(self) -> None: ...

    def setup(self) -> None: ...

    def train_dataloader(self) -> TensorLoader:
        loader = Marked(self.features, self.labels, BATCH, shuffle=True)
        loader.augmentation = Augmentation.parse(AUGMENT)
        return loader

    def val_dataloader(self) -> TensorLoader:
        return TensorLoader(self.features[:BATCH], self.labels[:BATCH], BATCH)


class Marked(TensorLoader):
    """A loader that notes when its epochs begin, in seconds of the processor."""

    begun: ClassVar[list[float]] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.begun.append(time.process_time())
        return super().__iter__()


def fresh() -> nn.Module:
    """Return ResNet-8 with the weights of seed 0."""
    torch.manual_seed(0)
    return get_model("resnet8", dataset_info=get_dataset_info("cifar10"))


def run_chop(data: Pictures) -> float:
    """Train as `ch train` does; return the seconds from the second epoch to the third."""
    settings = {"max_epochs": 3, "optimizer": "adamw", "weight_decay": DECAY, "num_threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        train(
            fresh(), get_model_info("resnet8"), data, data.dataset_info, learning_rate=RATE,
            plt_trainer_args=settings, save_path=Path(folder) / "training_ckpts",
        )  # fmt: skip
    return Marked.begun[-1] - Marked.begun[-2]


def run_bare(data: Pictures) -> float:
    """Train an epoch by the loop that one would write by hand, with the same validation."""
    torch.set_num_threads(1)
    model, how = fresh().to(memory_format=torch.channels_last), Augmentation.parse(AUGMENT)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    begin = time.process_time()
    model.train()
    order = permutation(len(data.features), 0, 0)
    for number, chosen in enumerate(order.split(BATCH)):
        pictures = how.apply(data.features[chosen], 0, 0, number)
        loss = loss_of(model, pictures, data.labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        float(loss_of(model, data.features[:BATCH], data.labels[:BATCH]))
    return time.process_time() - begin


def loss_of(model: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of a batch."""
    return F.cross_entropy(model(pictures.contiguous(memory_format=torch.channels_last)), labels)


def memory_of(rows: int) -> tuple[float, float]:
    """Return the megabytes of so many pictures, and what an epoch of their batches takes beside."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_memory, (rows,))


def _memory(rows: int) -> tuple[float, float]:
    data = Pictures(rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in data.train_dataloader():
        pass
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return data.features.nbytes / 2**20, more / 1024


def _be_quiet() -> None:
    logging.getLogger("chop").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def main() -> None:
    """Measure turns of both, then memory, and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two batches, one round")
    parser.add_argument("--batches", type=int, default=20, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=45_000, help="of the measurement of memory")
    parser.add_argument("--save", action="store_true", help=f"append a line to {RESULTS}")
    options = parser.parse_args()
    batches, rounds = (2, 1) if options.quick else (options.batches, options.rounds)
    _be_quiet()
    data = Pictures(batches * BATCH)
    run_bare(data)  # what torch prepares once is of neither
    turns = [{"chop": run_chop(data), "bare": run_bare(data)} for _ in range(rounds)]
    ratios = [turn["chop"] / turn["bare"] for turn in turns]
    print(tabulate([[*turn.values(), ratio] for turn, ratio in zip(turns, ratios, strict=True)],
                   ["chop, s", "bare, s", "ratio"], floatfmt=".3f"))  # fmt: skip
    print(f"median ratio {statistics.median(ratios):.3f} of {rounds} turns of {batches} batches")
    found = {"turns": turns, "ratio": statistics.median(ratios), "batches": batches}
    if not options.quick:
        size, more = memory_of(options.rows)
        print(f"{size:.0f} MB of pictures, and {more:.0f} MB more for an epoch of their batches")
        found |= {"rows_mb": size, "more_mb": more}
    if options.save:
        machine = {"torch": torch.__version__, "python": platform.python_version()}
        with RESULTS.open("a") as stream:
            stream.write(json.dumps(found | machine | {"cores": os.cpu_count()}) + "\n")


if __name__ == "__main__":
    main()
