"""Lab 3: search for the widths of a network's layers, by hand and with two strategies.

python examples/lab3.py                          trains jsc-new first
python examples/lab3.py --load best.ckpt         takes jsc-new from an earlier run
python examples/lab3.py --quick                  one epoch and a small space, as a check

Results go to --output, those of each search to a folder with the sampler's name.
"""

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torchmetrics.classification import MulticlassAccuracy

from chop import actions
from chop.dataset import MaseDataModule
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    count_operations_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass
from chop.results.front import SearchResult
from chop.search.front.hypervolume import Point, hypervolume_history, worst_of
from chop.tools.checkpoint_load import load_model
from chop.tools.logger import set_logging_verbosity

MODEL = "jsc-new"
FLOAT = {"by": "type", "default": {"config": {"name": None}}}
FORMATS = ((16, 8), (8, 6), (8, 4), (4, 2))


class Setup:
    """The trained network, its data, and its graph."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.options = options
        self.data_module = MaseDataModule(
            name=options.dataset, batch_size=1024, model_name=MODEL, num_workers=0
        )
        self.model_info = get_model_info(MODEL)
        self.model = get_model(
            MODEL, task="cls", dataset_info=self.data_module.dataset_info, pretrained=False
        )
        self.checkpoint = options.load or self.trained()
        self.model = load_model(load_name=self.checkpoint, load_type="pl", model=self.model)

    def trained(self) -> Path:
        """The checkpoint of a short training, if none was given."""
        run = actions.train(
            self.model,
            self.model_info,
            self.data_module,
            self.data_module.dataset_info,
            task="cls",
            learning_rate=1e-2,
            plt_trainer_args={"max_epochs": self.options.max_epochs},
            save_path=self.options.output / MODEL,
        )
        return Path(run.best)

    def graph(self) -> MaseGraph:
        """The network as a MaseGraph with its metadata, in evaluation mode.

        In training mode each forward pass would move the statistics of the batch normalisation,
        and each trial would change the network for the next.
        """
        xs, _ = next(iter(self.data_module.val_dataloader()))
        mg = MaseGraph(model=self.model)
        mg, _ = init_metadata_analysis_pass(mg, None)
        mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": {"x": xs[:8]}})
        mg, _ = add_software_metadata_analysis_pass(mg, None)
        mg.model.eval()
        return mg

    def evaluate(self, mg: MaseGraph) -> dict[str, float]:
        """Questions 1 and 2: accuracy, loss and latency, operations, bit operations and size."""
        metric = MulticlassAccuracy(num_classes=5, average="micro")
        losses, latencies = [], []
        loader = self.data_module.val_dataloader()
        with torch.no_grad():
            for xs, ys in itertools.islice(loader, self.options.num_batches):
                start_time = time.perf_counter()
                preds = mg.model(xs)
                latencies.append(time.perf_counter() - start_time)
                losses.append(torch.nn.functional.cross_entropy(preds, ys).item())
                metric.update(preds, ys)
        _, counts = count_operations_analysis_pass(mg, {"report": False})
        return {
            "acc": metric.compute().item(),
            "loss": statistics.fmean(losses),
            "latency": statistics.median(latencies),
            "flop": counts["total"]["flops"],
            "bitop": counts["total"]["bitops"],
            "model-size": counts["total"]["parameter_bits"] / 8,
        }


def search_spaces() -> list[dict[str, Any]]:
    """Four formats for the inputs of linear layers times four for their weights."""
    return [
        {
            **FLOAT,
            "linear": {
                "config": {
                    "name": "integer",
                    "data_in_width": data_width,
                    "data_in_frac_width": data_frac_width,
                    "weight_width": weight_width,
                    "weight_frac_width": weight_frac_width,
                    "bias_width": 8,
                    "bias_frac_width": 4,
                }
            },
        }
        for (data_width, data_frac_width), (weight_width, weight_frac_width) in itertools.product(
            FORMATS, FORMATS
        )
    ]


def loop(setup: Setup, mg: MaseGraph, configs: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Question 1: one graph, quantised again for each configuration."""
    recorded_result = []
    for config in configs:
        mg, _ = quantize_transform_pass(mg, config)
        recorded_result.append(setup.evaluate(mg))
    return recorded_result


def by_hand(setup: Setup) -> None:
    """The loop, and the proof that its trials do not influence each other."""
    mg, configs = setup.graph(), search_spaces()
    xs, _ = next(iter(setup.data_module.val_dataloader()))
    before = mg.model(xs)
    results = loop(setup, mg, configs)
    rows = [
        [*list(config["linear"]["config"].values())[1:5], *result.values()]
        for config, result in zip(configs, results, strict=True)
    ]
    print(tabulate(rows, ["data", "frac", "weight", "frac", *results[0]], "github", floatfmt=".4g"))
    backwards = loop(setup, mg, configs[::-1])[::-1]
    print("the same in reverse order:", without_latency(results) == without_latency(backwards))
    mg, _ = quantize_transform_pass(mg, FLOAT)
    print("float again:", torch.equal(mg.model(xs), before))


def without_latency(results: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in each.items() if name != "latency"} for each in results]


def search_config(sampler: str, options: argparse.Namespace) -> dict[str, Any]:
    """The tables [search.search_space] and [search.strategy] of a TOML file."""
    linear = {
        "name": ["integer"],
        "data_in_width": [4, 8],
        "data_in_frac_width": [None],  # half of the width; "NA" in a TOML file
        "weight_width": options.weight_widths,
        "weight_frac_width": [None],
        "bias_width": [8],
        "bias_frac_width": [None],
    }
    evaluation = {"data_loader": "val_dataloader", "num_samples": options.num_samples}
    return {
        "search_space": {
            "name": "graph/quantize/mixed_precision_ptq",
            "setup": {"by": "type"},
            "seed": {"default": {"config": {"name": [None]}}, "linear": {"config": linear}},
        },
        "strategy": {
            "name": "optuna",
            "eval_mode": True,
            "sw_runner": {"basic_evaluation": evaluation},
            "hw_runner": {"average_bitwidth": {"compare_to": 32}, "model_size": {}},
            "setup": {"sampler": sampler, "n_trials": options.n_trials},
            "metrics": {
                "accuracy": {"scale": 1.0, "direction": "maximize"},
                "average_bitwidth": {"scale": 0.2, "direction": "minimize"},
            },
        },
    }


def search(setup: Setup, sampler: str) -> SearchResult:
    """Question 3: a search with `tpe`, `brute` or another sampler."""
    options = setup.options
    print(f"\n== {sampler} ==")
    return actions.search(
        setup.model,
        setup.model_info,
        setup.data_module,
        search_config(sampler, options),
        save_dir=options.output / sampler,
        load_name=str(setup.checkpoint),
        load_type="pl",
    )


def verify(setup: Setup, found: SearchResult) -> None:
    """Measure each point of the front in best.json again, with a separate loop."""
    mg, rows = setup.graph(), setup.options.num_samples
    equal = []
    for point in json.loads((found.folder / "best.json").read_text()).values():
        mg, _ = quantize_transform_pass(mg, {"by": "name", **point["sampled_config"]})
        xs, ys = map(torch.cat, zip(*setup.data_module.val_dataloader(), strict=True))
        with torch.no_grad():
            right = (mg.model(xs[:rows]).argmax(dim=1) == ys[:rows]).sum().item()
        equal.append(round(right / rows, 10) == point["software_metrics"]["accuracy"])
    print(f"{len(equal)} points of the front, the same when measured again: {all(equal)}")


def points(found: SearchResult) -> list[Point]:
    """What each trial minimises: bits of a parameter, and minus the accuracy."""
    return [
        (
            trial.user_attrs["hardware_metrics"]["average_bitwidth"],
            -trial.user_attrs["software_metrics"]["accuracy"],
        )
        for trial in found.trials
    ]


def compare(strategies: dict[str, SearchResult]) -> None:
    """Question 4: the share of the true front's hypervolume that each strategy has reached."""
    everything = points(strategies["brute"])
    reference = worst_of(everything)
    full = hypervolume_history(everything, reference)[-1]
    rows = []
    for name, found in strategies.items():
        shares = [volume / full for volume in hypervolume_history(points(found), reference)]
        needed = next((n for n, share in enumerate(shares, 1) if share >= 0.95), None)
        rows.append([name, len(shares), f"{shares[-1]:.3f}", needed or f"over {len(shares)}"])
    headers = ["strategy", "trials", "share of the hypervolume", "trials to 95 %"]
    print(tabulate(rows, headers, "github", disable_numparse=True))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="jsc-sim")
    parser.add_argument("--load", type=Path, help="a Lightning checkpoint of jsc-new")
    parser.add_argument("--max-epochs", type=int, default=10)
    parser.add_argument("--num-samples", type=int, default=8192, help="rows of each trial")
    parser.add_argument("--n-trials", type=int, default=60, help="trials of TPE")
    parser.add_argument("--output", type=Path, default=Path("mase_output/lab3"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.weight_widths, options.num_batches = [2, 4, 8], 8
    if options.quick:
        options.max_epochs, options.num_samples, options.n_trials = 1, 1024, 20
        options.weight_widths, options.num_batches = [4, 8], 2
    return options


def main() -> None:
    options = parse()
    set_logging_verbosity("info")
    setup = Setup(options)
    print(setup.data_module.source)
    by_hand(setup)
    strategies = {sampler: search(setup, sampler) for sampler in ("tpe", "brute")}
    verify(setup, strategies["brute"])
    compare(strategies)


if __name__ == "__main__":
    main()
