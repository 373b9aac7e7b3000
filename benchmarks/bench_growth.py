"""What a study costs as it grows: searching, resuming and reporting 5,000 and 20,000 trials.

`ch search` on jsc-mlp, 64 rows, random sampler, four linear layers with six choices each; then the
same with `--resume`, which reads the study and writes all results again, and `ch report`. Each is a
process of its own, of which the CPU time and the largest resident memory count: a busy machine
disturbs them less than the time that passes. What the commands cost with ten trials is taken off
for the ratio: if cost were in proportion to trials, it would be 4. Beside every round a loop of
bare Python is timed, which tells how fast the machine was.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

RESULTS = Path(__file__).parent / "results" / "growth.jsonl"
TARGETS = {"search": "600 MB", "resume": "10 s, 600 MB", "report": "12 s, 600 MB"}
SIZES, QUICK_SIZES = (10, 5_000, 20_000), (10, 500, 2_000)
BARE = "sum(i * i for i in range(10_000_000))"
CONFIG = """\
model = "jsc-mlp"
dataset = "jsc-sim"
task = "cls"
batch_size = 64
accelerator = "cpu"

[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
setup.by = "type"
seed.default.config.name = ["NA"]

[search.search_space.seed.linear.config]
name = ["integer"]
data_in_width = [2, 3, 4, 5, 6, 7, 8]
data_in_frac_width = ["NA", 1, 2, 3]
weight_width = [2, 3, 4, 5, 6, 7, 8]
weight_frac_width = ["NA", 1, 2, 3]
bias_width = [2, 3, 4, 5, 6, 7, 8]
bias_frac_width = ["NA", 1, 2, 3]

[search.strategy]
sw_runner.basic_evaluation.num_samples = 64
hw_runner.average_bitwidth.compare_to = 32

[search.strategy.setup]
sampler = "random"
n_trials = {trials}

[search.strategy.metrics]
accuracy.direction = "maximize"
average_bitwidth.direction = "minimize"
"""


@dataclass(frozen=True)
class Cost:
    """What a process took."""

    seconds: float
    megabytes: float


def cost_of(*arguments: str) -> Cost:
    """The cost of Python with these arguments."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def costs(folder: Path, trials: int, rounds: int) -> dict[str, list[Cost]]:
    """The costs of each command on a new study of so many trials."""
    config = folder / f"{trials}.toml"
    config.write_text(CONFIG.format(trials=trials), encoding="utf-8")
    project = ("--project-dir", str(folder), "--project", f"study-{trials}")
    search = ("-m", "chop.cli", "search", "--config", str(config), *project)
    found: dict[str, list[Cost]] = {"search": [cost_of(*search)], "resume": [], "report": []}
    for _ in range(rounds):
        found["resume"].append(cost_of(*search, "--resume"))
        found["report"].append(cost_of("-m", "chop.cli", "report", str(folder / f"study-{trials}")))
    return found


def middle(found: list[Cost]) -> Cost:
    return Cost(
        statistics.median(each.seconds for each in found), max(each.megabytes for each in found)
    )


def row(name: str, studies: dict[int, dict[str, list[Cost]]]) -> list[str]:
    """One command: its costs at each size, and how they grow."""
    few, small, large = (middle(found[name]) for found in studies.values())
    sizes = list(studies)
    seconds = [each.seconds for each in studies[sizes[-1]][name]]
    growth = (large.seconds - few.seconds) / (small.seconds - few.seconds)
    return [
        name,
        *(f"{each.seconds:.1f} s, {each.megabytes:.0f} MB" for each in (few, small, large)),
        f"{min(seconds):.1f} to {max(seconds):.1f} s",
        f"{growth:.1f} (linear: {sizes[2] / sizes[1]:.0f})",
        f"<= {TARGETS[name]}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the trials, one round")
    parser.add_argument("--save", action="store_true", help=f"add a line to {RESULTS.name}")
    arguments = parser.parse_args()
    sizes = QUICK_SIZES if arguments.quick else SIZES
    bare, studies = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for trials in sizes:
            bare.append(cost_of("-c", BARE).seconds)
            studies[trials] = costs(Path(folder), trials, 1 if arguments.quick else 3)
        bare.append(cost_of("-c", BARE).seconds)
        page = Path(folder, f"study-{sizes[-1]}", "report.html").stat().st_size
    headers = ["", *(f"{size:,} trials" for size in sizes), "rounds", "growth", "target"]
    print(tabulate([row(name, studies) for name in TARGETS], headers, tablefmt="github"))
    print(f"page of {sizes[-1]:,} trials: {page / 1000:.0f} kB")
    print(f"{BARE} in bare Python: {min(bare):.2f} to {max(bare):.2f} s of CPU time")
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")
    if arguments.save:
        line = {
            "machine": platform.processor(),
            "bare": bare,
            "load": os.getloadavg()[0],
            "studies": {
                size: {name: [vars(each) for each in found] for name, found in study.items()}
                for size, study in studies.items()
            },
        }
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
