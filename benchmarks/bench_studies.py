"""A repeat of a study against a bare PyTorch loop: what many short trainings cost beside training.

Both train jsc-tiny on jsc-sim from new weights, validate after each epoch and evaluate at the end.
The bare loop has the same rows, model, fused Adam and thread, a learning rate of its own for each
epoch, and nothing else. The repeat builds Lightning's trainer, checks the model against the data,
keeps its curves and writes its file. Times are interleaved; the best of each counts.
"""

import argparse
import json
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate

from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info
from chop.search.spaces.afresh import fresh_weights, with_batch_size
from chop.search.spaces.space import Candidate, SearchContext
from chop.search.sweeps.trainings import MeasuredRows, Repeats
from chop.training.metrics import evaluate_model

RESULTS = Path(__file__).parent / "results" / "studies.jsonl"
SETTINGS = ((256, 1), (256, 10), (1024, 10), (64, 10))


def bare(context: SearchContext, config: dict[str, Any], seed: int) -> float:
    """The seconds of a bare loop."""
    began = time.perf_counter()
    model = fresh_weights(context.pristine(), seed)
    data = with_batch_size(context.data_module, config["batch_size"], seed)
    loader = data.train_dataloader()
    optimiser = torch.optim.Adam(model.parameters(), config["learning_rate"], fused=True)
    for _ in range(config["max_epochs"]):
        model.train()
        for features, labels in loader:
            optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(model(features), labels).backward()
            optimiser.step()
        evaluate_model(model, data.val_dataloader())
    evaluate_model(model, context.batches("val_dataloader", None))
    return time.perf_counter() - began


def repeat(context: SearchContext, config: dict[str, Any], seed: int) -> tuple[float, float]:
    """The seconds of a repeat, and of those the seconds inside its epochs."""
    with tempfile.TemporaryDirectory() as folder:
        own = replace(context, folder=Path(folder), seed=seed)
        began = time.perf_counter()
        (run,) = Repeats(
            Candidate(own, config, own.pristine), 1, MeasuredRows("val_dataloader", None)
        ).complete()
        whole = time.perf_counter() - began
    return whole, sum(row["seconds"] for row in run.history)


def measure(context: SearchContext, config: dict[str, Any], times: int) -> dict[str, float]:
    """The best times of each, in seconds."""
    loops, repeats = [], []
    for seed in range(times):
        loops.append(bare(context, config, seed))
        repeats.append(repeat(context, config, seed))
    whole = min(whole for whole, _ in repeats)
    rest = min(whole - inside for whole, inside in repeats)
    return {"bare": min(loops), "repeat": whole, "outside the epochs": rest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer times, the short ones only")
    parser.add_argument("--save", action="store_true", help=f"add a line to {RESULTS.name}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = MaseDataModule("jsc-sim", batch_size=256)
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    context = SearchContext(model.eval(), get_model_info("jsc-tiny"), data)
    repeat(context, {"batch_size": 8192, "max_epochs": 1, "learning_rate": 1e-3}, 0)  # warm up
    found = []
    for batch, epochs in SETTINGS[: 2 if arguments.quick else None]:
        config = {"batch_size": batch, "max_epochs": epochs, "learning_rate": 1e-3}
        seconds = measure(context, config, 2 if arguments.quick else 5)
        found.append({"batch_size": batch, "max_epochs": epochs, **seconds})
        found[-1]["repeat / bare"] = seconds["repeat"] / seconds["bare"]
    print(tabulate(found, headers="keys", floatfmt=".3f", tablefmt="github"))
    if arguments.save:
        line = {"machine": platform.processor(), "torch": torch.__version__, "studies": found}
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
