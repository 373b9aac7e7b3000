"""What the sentences of `agreement` ask of a network: bags of words against two layers.

    python benchmarks/bench_text.py            3 seeds, 6 epochs: a few minutes
    python benchmarks/bench_text.py --quick    1 seed
    python benchmarks/bench_text.py --save     adds a line to results/text.jsonl

Accuracies and perplexities, no times. The perplexity of the grammar itself is what no model can
beat on average: it is known, because each sentence knows how probable it was.
"""

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

from chop.dataset import MaseDataModule
from chop.dataset.toy.agreement import _sentences
from chop.logger import set_logging_verbosity
from chop.models import get_model
from chop.tasks import IGNORED
from chop.training.fit import fit_in_memory
from chop.training.job import Job, evaluate_job
from chop.training.settings import TrainingSettings

RESULTS = Path(__file__).parent / "results" / "text.jsonl"
ENCODER = {"batch_size": 128, "learning_rate": 1e-2, "max_epochs": 6}
DECODER = {"batch_size": 64, "learning_rate": 3e-3, "max_epochs": 4}
CPU = {"accelerator": "cpu", "num_threads": 1}


class Bag(nn.Module):
    """A network of two layers on the counts of the words, whatever their order."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = words
        self.layers = nn.Sequential(nn.Linear(words, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, x: Tensor) -> Tensor:
        counts = nn.functional.one_hot(x, self.words).sum(dim=1).float()
        scores: Tensor = self.layers(counts)
        return scores


def trained(name: str, model: Any, seed: int, **settings: Any) -> Any:
    """The result on the test rows after training."""
    batch = settings.pop("batch_size")
    data = MaseDataModule(name, batch_size=batch, seed=seed)
    torch.manual_seed(seed)
    network = model(data.dataset_info)
    chosen = TrainingSettings(seed=seed, **CPU, **settings)
    fit_in_memory(Job(network, data, Path()), chosen)
    return evaluate_job(Job(network, data, Path()), chosen)


def unigram() -> float:
    """The perplexity of guessing each test word by how often it is in the training rows."""
    data = MaseDataModule("agreement-lm", batch_size=1)
    counts = torch.bincount(asked(data, "train"), minlength=data.dataset_info.vocab_size or 0)
    shares = (counts + 1).double().log() - math.log(float((counts + 1).sum()))
    return math.exp(-float(shares[asked(data, "test")].mean()))


def asked(data: MaseDataModule, split: str) -> Tensor:
    labels = data.split(split).tensors[1]  # type: ignore[attr-defined]
    found: Tensor = labels[labels != IGNORED]
    return found


def grammar() -> float:
    """The perplexity of the grammar itself on the test sentences."""
    sentences = _sentences()[2]
    words = sum(len(each.words) - 1 for each in sentences)
    return math.exp(sum(each.nats for each in sentences) / words)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    set_logging_verbosity("warning")
    seeds = range(1 if options.quick else 3)
    found = {
        "bag of words, accuracy": [
            trained("agreement", lambda info: Bag(info.vocab_size), seed, **ENCODER).accuracy
            for seed in seeds
        ],
        "encoder-tiny, accuracy": [
            trained("agreement", lambda info: get_model("encoder-tiny", "cls", info), seed,
                    **ENCODER).accuracy
            for seed in seeds
        ],
        "unigrams, perplexity": [unigram()],
        "decoder-tiny, perplexity": [
            trained("agreement-lm", lambda info: get_model("decoder-tiny", "lm", info), seed,
                    **DECODER).perplexity
            for seed in seeds
        ],
        "the grammar itself, perplexity": [grammar()],
    }  # fmt: skip
    rows = [[name, " ".join(f"{value:.4f}" for value in values)] for name, values in found.items()]
    print(tabulate(rows, ["what", "test rows, by seed"], "github", disable_numparse=True))
    if options.save:
        line = {"results": found, "load": os.getloadavg()[0]}
        with RESULTS.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
