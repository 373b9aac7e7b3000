"""Networks that people have, quantised by one line: what leaves in integers, and in which forms.

For each network of `network_models.py`: the share of multiply-accumulates whose operands are
rounded; whether it is whole in integers, and if not the first reason; the forms that its integers
leave in, each compared with the engine code by code on rows, half of them made to show differences;
look-up tables of an unrolled circuit, estimated; and the error against floating point on other
rows than those of the calibration.

Run: python benchmarks/bench_networks.py [--quick] [--only NAME …] [--save] [--file TABLE.md]
"""

import argparse
import inspect
import json
import logging
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from network_models import Network, networks

import chop
from chop.errors import ChopError
from chop.export import EXPORT_TARGETS
from chop.export.checking import ExportCheck
from chop.export.verilog.estimate import least_luts
from chop.export.verilog.target import AS_USUAL, fitting_netlist

RESULTS = Path(__file__).parent / "results"
FORMS = ("integer", "c", "onnx", "qonnx")
CALIBRATION, WIDTH = 64, 8
MOST_LUTS = 2_000
"""Beyond, only a lower bound is given: a netlist of more takes minutes."""
HEADERS = (
    "network", "rows", "MACs in integers", *FORMS, "circuit, LUTs", "error", "whole, or why not",
)  # fmt: skip


@dataclass
class Found:
    """What was found out about one network."""

    name: str
    parameters: int = 0
    rows: int = 0
    macs: float | None = None
    in_float: dict[str, str] = field(default_factory=dict)
    forms: dict[str, str] = field(default_factory=dict)
    """For each form: equal, or why not."""
    luts: str = ""
    error: float | None = None
    """Of all outputs, relative to their size, in the root mean square."""
    seconds: float = 0.0
    failed: str = ""

    @property
    def leaves(self) -> bool:
        """True if integers, C and ONNX are equal to the engine."""
        return all(self.forms.get(form) == "equal" for form in ("integer", "c", "onnx"))

    def row(self) -> list[Any]:
        """Return the line of the table."""
        whole = self.failed or "; ".join(f"{k} {why}" for k, why in self.in_float.items())
        marks = ["yes" if self.forms.get(form) == "equal" else "–" for form in FORMS]
        others = [why for why in self.forms.values() if why != "equal"]
        macs = "" if self.macs is None else f"{100 * self.macs:.4g} %"
        error = "" if self.error is None else f"{100 * self.error:.2g} %"
        why = whole or (others[0] if others else "whole")
        return [self.name, self.rows, macs, *marks, self.luts, error, one_line(why)]


def one_line(text: str, most: int = 110) -> str:
    """Return the beginning of a reason."""
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= most else text[: most - 1] + "…"


def first_tensors(result: Any) -> list[Tensor]:
    """Return the tensors of a result, whatever it is."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, Mapping):
        return [each for value in result.values() for each in first_tensors(value)]
    return [t for each in result for t in first_tensors(each)] if result is not None else []


def relative_error(model: nn.Module, quantised: Any, rows: Mapping[str, Tensor]) -> float:
    """Return the size of what differs, relative to the size of the outputs."""
    with torch.no_grad():
        wanted, found = first_tensors(model(**rows)), first_tensors(quantised(**rows))
    pairs = list(zip(wanted, found, strict=True))
    different = sum(float((b - a).square().sum()) for a, b in pairs)
    return (different / sum(float(a.square().sum()) for a, _ in pairs)) ** 0.5


def warm(model: nn.Module, rows: Mapping[str, Tensor]) -> nn.Module:
    """Let random norms see rows; those with stored weights have."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if norms and all(
        bool((m.running_mean == 0).all()) for m in norms if m.running_mean is not None
    ):
        with torch.no_grad():
            for _ in range(20):
                model.train()(**rows)
    return model.eval()


def named(network: Network, model: nn.Module, count: int) -> dict[str, Tensor]:
    """Return rows by the names of a network's inputs."""
    first = next(iter(inspect.signature(model.forward).parameters))
    return {name or first: rows for name, rows in network.inputs(count).items()}


def measure(network: Network, rows_asked: int | None) -> Found:
    """Quantise a network and write it in every form."""
    torch.manual_seed(0)
    found = Found(network.name, rows=rows_asked or network.rows)
    start = time.perf_counter()
    try:
        model = network.make()
        found.parameters = sum(each.numel() for each in model.parameters())
        model = warm(model, named(network, model, CALIBRATION))
        calibration, rows = (named(network, model, n) for n in (CALIBRATION, found.rows))
        quantised = chop.quantize(model, width=WIDTH, calibrate=[calibration])
        found.in_float = quantised.info["in_float"]
        found.macs = quantised.info["macs"] and quantised.info["macs"]["rounded_share"]
        found.error = relative_error(model, quantised, rows)
        if not found.in_float:
            export_all(found, quantised.graph, rows)
    except Exception as error:  # noqa: BLE001  # whatever a network brings is a result
        found.failed = f"{type(error).__name__}: {error}"
    found.seconds = round(time.perf_counter() - start, 1)
    return found


def export_all(found: Found, graph: Any, rows: Mapping[str, Tensor]) -> None:
    """Write every form and compare it with the engine, on the same rows."""
    check = ExportCheck(graph, True, found.rows, rows, {})
    if "graph" not in check.compared:
        found.forms["simulation"] = check.not_compared["graph"]
    for form in FORMS:
        target = EXPORT_TARGETS[form]
        options = target.options()
        with tempfile.TemporaryDirectory() as folder:
            try:
                target(check.program, Path(folder), options)
                target.run_check(Path(folder), check.rows, options)
                found.forms[form] = "equal"
            except ChopError as error:
                found.forms[form] = f"{form}: {error}"
    found.luts = estimate(check.program)


def estimate(program: Any) -> str:
    """Return the look-up tables of an unrolled circuit, or at least how many there would be."""
    least = least_luts(program)
    if least > MOST_LUTS:
        return f"> {least:,}"
    try:
        return f"{fitting_netlist(program, AS_USUAL.most_luts)[1]:,}"
    except ChopError as error:
        return one_line(str(error), 40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows of the smallest networks")
    parser.add_argument("--all", action="store_true", help="all networks, though quick")
    parser.add_argument("--only", nargs="*", default=[], help="names")
    parser.add_argument("--rows", type=int, help="rows of every network, rather than its own")
    parser.add_argument("--save", action="store_true", help="add lines to results/networks.jsonl")
    parser.add_argument("--file", type=Path, help="put the table of all saved lines into a page")
    args = parser.parse_args()
    logging.getLogger("chop").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    done = []
    for network in () if args.file and not args.save else networks():
        if args.only and network.name not in args.only:
            continue
        if args.quick and not args.only and network.name not in QUICK and not args.all:
            continue
        found = measure(network, args.rows or (20 if args.quick else None))
        done.append(found)
        print(json.dumps(found.row(), ensure_ascii=False), f"{found.seconds} s", flush=True)
        if args.save:
            save(found)
    print(tabulate([each.row() for each in done], HEADERS))
    print(f"{sum(each.leaves for each in done)} of {len(done)} leave as integers, C and ONNX")
    if args.file:
        put_table(args.file)


QUICK = ("jsc-tiny", "tcn")
MARK = "<!-- table of bench_networks.py -->"


def save(found: Found) -> None:
    """Add a result, in the place of an earlier one of the same network."""
    file = RESULTS / "networks.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    kept = [line for line in lines if json.loads(line)["name"] != found.name]
    entry = asdict(found) | {"torch": torch.__version__, "machine": platform.machine()}
    kept.append(json.dumps(entry, ensure_ascii=False))
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")


def put_table(file: Path) -> None:
    """Write the table into a page, in the place of the one between the marks, if it has them."""
    page = file.read_text(encoding="utf-8") if file.exists() else ""
    before, mark, rest = page.partition(MARK)
    after = rest.partition(MARK)[2]
    text = f"{before}{MARK}\n\n{saved_table()}\n{MARK}{after}" if mark else saved_table()
    file.write_text(text, encoding="utf-8")


def saved_table() -> str:
    """Return every saved result as a table of Markdown, in the order of the networks."""
    lines = (RESULTS / "networks.jsonl").read_text(encoding="utf-8").splitlines()
    names = list(Found.__dataclass_fields__)
    entries = [json.loads(line) for line in lines]
    known = {e["name"]: Found(**{name: e[name] for name in names}) for e in entries}
    rows = [known[each.name].row() for each in networks() if each.name in known]
    count = sum(each.leaves for each in known.values())
    table = tabulate(rows, HEADERS, tablefmt="github", disable_numparse=True)
    return f"{table}\n\n{count} of {len(known)} leave as integers, C and ONNX.\n"


if __name__ == "__main__":
    main()
