"""Lab 1: train and compare the tiny jet classifier, one ten times its size and a custom network.

python examples/lab1.py                 20 epochs on jsc-sim, the jets that come with chop
python examples/lab1.py --dataset jsc   on the real data set (a download, or CHOP_JSC)
python examples/lab1.py --quick         two epochs, as a check
"""

import argparse
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor, nn

from chop import actions
from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info, register_model


# A custom network: the decorator registers it, also for `ch train jsc-mine … --import lab1.py`.
@register_model("jsc-mine")
class JSC_Mine(nn.Module):
    """Two hidden layers and no ReLU before the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(
            nn.BatchNorm1d(16),
            nn.Linear(16, 32),
            nn.ReLU(),
            nn.Linear(32, 16),
            nn.ReLU(),
            nn.Linear(16, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.seq_blocks(x)


def train_and_test(name: str, data: MaseDataModule, options: argparse.Namespace) -> list[object]:
    """Train a network, test its best epoch, and return a row of the table."""
    torch.manual_seed(options.seed)
    info = get_model_info(name)
    model = get_model(name, task="cls", dataset_info=data.dataset_info)
    folder = options.output / name
    run = actions.train(
        model,
        info,
        data,
        data.dataset_info,
        task="cls",
        optimizer="adam",
        learning_rate=options.learning_rate,
        plt_trainer_args={"max_epochs": options.max_epochs},
        save_path=folder,
        seed=options.seed,
    )
    result = actions.test(
        model,
        info,
        data,
        data.dataset_info,
        task="cls",
        save_path=folder,
        load_name=run.best,
        load_type="pl",
    )
    low, high = result.interval
    parameters = sum(value.numel() for value in model.parameters())
    shown = f"{result.accuracy:.4f} ({low:.4f}–{high:.4f})"
    return [
        name,
        parameters,
        f"{run.history[-1]['val_acc_epoch']:.4f}",
        shown,
        f"{result.loss:.4f}",
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="jsc-sim")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--max-epochs", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("mase_output/lab1"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.max_epochs, options.batch_size, options.learning_rate = 2, 1024, 1e-2
    return options


def main() -> None:
    options = parse()
    data = MaseDataModule(options.dataset, batch_size=options.batch_size, seed=options.seed)
    names = ("jsc-tiny", "jsc-tiny-x10", "jsc-mine")
    rows = [train_and_test(name, data, options) for name in names]
    print(f"\nData: {data.source}")
    headers = ["network", "parameters", "val_acc", "test accuracy (95 %)", "test loss"]
    print(tabulate(rows, headers, "github", disable_numparse=True))


if __name__ == "__main__":
    main()
