"""The main job, end to end, on the data that comes with the package.

Every step prints the `ch` command that does it; copy one to do it yourself.
"""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tabulate import tabulate

PROJECT = "demo"
FOLDER = Path("mase_output") / PROJECT
SOFTWARE = FOLDER / "software"
CONFIG = "configs/examples/jsc_mlp_search.toml"
BRUTE = "configs/examples/jsc_mlp_brute.toml"


def step(title: str, *arguments: str) -> None:
    """Run one `ch` command and show it."""
    print(f"\n━━ {title}\n$ ch {shlex.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "chop.cli", *arguments], check=True)


def newest(pattern: str) -> Path:
    """What this run wrote: earlier runs of the demo are not overwritten."""
    return max(SOFTWARE.glob(pattern), key=lambda path: path.stat().st_mtime)


def tested() -> dict[str, Any]:
    """The result of the last test."""
    result: dict[str, Any] = json.loads(newest("checkpoints/test_results*.json").read_text())
    return result


def verified(folder: Path) -> list[Any]:
    """Make the most accurate network of a front in a new process, and test it in another."""
    trials = json.loads((folder / "best.json").read_text())
    place = max(trials, key=lambda each: trials[each]["software_metrics"]["accuracy"])
    step("Make the best of the front", "transform", "--config", str(folder / f"best_{place}.toml"),
         "--project", PROJECT)  # fmt: skip
    graph = newest("transform/transformed_ckpt*")
    step("Test it", "test", "--config", CONFIG, "--project", PROJECT,
         "--load", str(graph), "--load-type", "mz")  # fmt: skip
    metrics = trials[place]["software_metrics"] | trials[place]["hardware_metrics"]
    return [
        metrics["average_bitwidth"],
        metrics["bitops"],
        metrics["accuracy"],
        tested()["test_acc_epoch"],
    ]


def main() -> None:
    """Train, test, quantise, search, check the front, report."""
    start = time.monotonic()
    step("Train", "train", "--config", CONFIG, "--project", PROJECT)
    weights = ("--load", str(newest("training_ckpts/best*.ckpt")), "--load-type", "pl")
    step("Test", "test", "--config", CONFIG, "--project", PROJECT, *weights)
    rows = [["float", 32, None, None, tested()["test_acc_epoch"]]]
    step("Quantise and count", "transform", "--config", CONFIG, "--project", PROJECT, *weights)
    for name, config in (("TPE", CONFIG), ("brute force", BRUTE)):
        step(f"Search with {name}", "search", "--config", config, "--project", PROJECT, *weights)
        rows.append([f"best of {name}", *verified(newest("search_ckpts*"))])
    step("Report", "report", str(FOLDER))
    headers = ["network", "average bits", "BitOPs", "accuracy in search", "test accuracy"]
    print("\n" + tabulate(rows, headers, floatfmt=".4g", missingval="-"))
    print("(jsc-sim: simulated stand-in data; these are not JSC results)")
    print(f"\nDone in {time.monotonic() - start:.0f} s: {(FOLDER / 'report.html').resolve()}")


if __name__ == "__main__":
    main()
