"""The main job, end to end, on the data that comes with the package.

Every step prints the `ch` command that does it; copy one to do it yourself.
"""

import shlex
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path("mase_output") / "demo"
CONFIG = "configs/examples/jsc_toy_by_type.toml"


def step(title: str, *arguments: str) -> None:
    """Run one `ch` command and show it."""
    print(f"\n━━ {title}\n$ ch {shlex.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "chop.cli", *arguments], check=True)


def newest(pattern: str) -> str:
    """The file of this run: earlier runs of the demo are not overwritten."""
    return str(max(FOLDER.glob(pattern), key=lambda path: path.stat().st_mtime))


def main() -> None:
    """Train, test, transform."""
    start = time.monotonic()
    names = ("jsc-tiny", "jsc-sim", "--project", "demo", "--cpu=0")
    step("Train", "train", *names, "--max-epochs", "5", "--batch-size", "256",
         "--learning-rate", "5e-3")  # fmt: skip
    weights = ("--load", newest("software/training_ckpts/best*.ckpt"), "--load-type", "pl")
    step("Test", "test", *names, "--batch-size", "1024", *weights)
    step("Quantise", "transform", "--config", CONFIG, "--project", "demo", *weights)
    print(f"\nDone in {time.monotonic() - start:.0f} s; results are in {FOLDER.resolve()}")


if __name__ == "__main__":
    main()
