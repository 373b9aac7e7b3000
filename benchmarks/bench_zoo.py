"""Models of the zoos through tracing, quantisation, saving: what works, measured from outside.

For each model: whether it is traced and gets metadata; whether the graph gives the model's numbers
for other numbers of rows, or refuses, or is silently wrong; what share of the multiply-accumulates
has both operands on the grid of the number format, watched at dispatch, in the operators that run,
not in our own records; whether it comes back bit-equal from a file without a template; whether
gradients reach every parameter that they reach in the float model; whether our MACs are those of
torch's counter; and whether the user's model is as it was, bit for bit.

Run: python benchmarks/bench_zoo.py [--quick] [--only NAME] [--zoo ZOO] [--save] [--file TABLE.md]
"""

import argparse
import copy
import json
import logging
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parent))
from zoo_models import Case, cases

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.dispatched import ProductsSeen, watched_products
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.analysis.flops.count import NodeCounter
from chop.passes.graph.analysis.flops.operands import run_shapes
from chop.passes.graph.interface import load_mase_graph, save_mase_graph_interface_pass
from chop.passes.graph.transforms.quantize.plan import quantizable_operations

RESULTS = Path(__file__).parent / "results"
FRACTION = 7  # bits behind the point: every format below is on this grid
PRODUCTS = [
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "matmul", "mm", "mv", "bmm", "addmm", "baddbmm", "einsum", "bilinear",
    "scaled_dot_product_attention", "lstm", "gru", "rnn", "lstm_cell", "gru_cell", "rnn_cell",
]  # fmt: skip
SETTINGS = {
    "name": "integer",
    "data_in_width": 12, "data_in_frac_width": 6, "weight_width": 10, "weight_frac_width": 7,
    "bias_width": 12, "bias_frac_width": 7, "scores_width": 8, "scores_frac_width": 7,
}  # fmt: skip
ROWS, OTHERS = 2, (3, 1, 5)


@dataclass
class Found:
    """What was found out about one model."""

    name: str
    zoo: str
    traced: str = ""
    """fx, export, or why not."""
    metadata: bool = False
    quantised: float | None = None
    other_rows: str = ""
    """For each other number of rows: right, refused or WRONG."""
    saved: str = ""
    gradients: str = ""
    macs: str = ""
    untouched: bool = False
    seconds: float = 0.0


def is_on_grid(tensor: Tensor) -> bool:
    scaled = tensor.detach().double() * 2**FRACTION
    return bool((scaled == scaled.round()).all())


def floats(value: Any) -> list[Tensor]:
    """The floating-point tensors in a result."""
    kept = pytree.tree_leaves(plain(value))
    return [x for x in kept if isinstance(x, Tensor) and x.is_floating_point()]


def plain(value: Any) -> Any:
    """Results of models as plain containers; what is neither is left out."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, Tensor) else None


def same(one: Any, other: Any, exact: bool = False) -> bool:
    ours, theirs = floats(one), floats(other)
    close = torch.equal if exact else (
        lambda a, b: torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True))  # fmt: skip
    return len(ours) <= len(theirs) and all(
        a.shape == b.shape and close(a, b) for a, b in zip(ours, theirs, strict=False)
    ) and bool(ours)  # fmt: skip


def run(module: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """A call with the same random numbers as any other: some models mask at random."""
    torch.manual_seed(0)
    return module(**inputs)


def at_other_rows(case: Case, model: nn.Module, graph: MaseGraph, quick: bool) -> str:
    """What the graph gives for other numbers of rows."""
    found = []
    for rows in OTHERS[: 1 if quick else None]:
        inputs = case.inputs(rows)
        with torch.no_grad():
            wanted = run(model, inputs)
            try:
                found.append("right" if same(run(graph.model, inputs), wanted) else "WRONG")
            except GraphError:
                found.append("refused")
            except Exception as error:  # noqa: BLE001  # any failure is a result
                found.append(f"error: {error!s:.60}")
    return " ".join(found)


def quantised(graph: MaseGraph) -> MaseGraph:
    known = [name for name in PRODUCTS if name in quantizable_operations()]
    rule = {"by": "type", "default": {"config": SETTINGS, "only": known}}
    graph, _ = quantize_transform_pass(graph, rule)
    return graph


def share(graph: MaseGraph, inputs: Mapping[str, Tensor]) -> tuple[float, ProductsSeen]:
    with watched_products(is_on_grid) as watch:
        graph.model(**inputs)
    seen = watch.total
    return (seen.rounded / seen.macs if seen.macs else 1.0), seen


def gradients(model: nn.Module, graph: MaseGraph, inputs: Mapping[str, Tensor]) -> str:
    """Parameters that gradients reach in the float model and not in the quantised graph."""
    reached = []
    for each in (model, graph.model):
        for parameter in model.parameters():
            parameter.grad = None
            parameter.requires_grad_(True)
        sum(x.square().mean() for x in floats(each(**inputs)) if x.requires_grad).backward()
        reached.append({n for n, p in model.named_parameters() if p.grad is not None})
        for parameter in model.parameters():
            parameter.grad = None
    lost = reached[0] - reached[1]
    return "all" if not lost else f"{len(lost)} lost: {sorted(lost)[0]}"


def saved(graph: MaseGraph, inputs: Mapping[str, Tensor]) -> str:
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        try:
            save_mase_graph_interface_pass(graph, Path(folder) / "graph")
            again = load_mase_graph(Path(folder) / "graph")
            again.model.eval()
            exact = same(run(again.model, inputs), run(graph.model, inputs), exact=True)
            return "equal" if exact else "DIFFERS"
        except Exception as error:  # noqa: BLE001  # any failure is a result
            return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def compared_macs(model: nn.Module, graph: MaseGraph, inputs: Mapping[str, Tensor]) -> str:
    with watched_products() as watch:
        model(**inputs)
    counts = NodeCounter(graph, run_shapes(graph, inputs)).nodes()  # of the whole batch
    ours = sum(each.macs or 0 for each in counts.values())
    theirs = watch.total.macs
    return "equal" if ours == theirs else f"{ours} / {theirs}"


def state(model: nn.Module) -> tuple[Any, ...]:
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    facts = [(n, m.training, sorted(vars(m))) for n, m in model.named_modules()]
    return tensors, facts, copy.deepcopy(getattr(getattr(model, "config", None), "__dict__", None))


def is_untouched(model: nn.Module, before: tuple[Any, ...]) -> bool:
    after = state(model)
    tensors = all(torch.equal(before[0][name], value) for name, value in after[0].items())
    return tensors and before[0].keys() == after[0].keys() and str(before[1:]) == str(after[1:])


def measured(case: Case, quick: bool) -> Found:
    """Everything about one model."""
    found = Found(case.name, case.zoo)
    start = time.perf_counter()
    torch.manual_seed(0)
    model = case.make()
    inputs = case.inputs(ROWS)
    with torch.no_grad():
        wanted = run(model, inputs)
    before = state(model)
    try:
        graph = MaseGraph(model, example_inputs=inputs)
    except Exception as error:  # noqa: BLE001  # any failure is a result
        found.traced = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return found
    finally:
        found.untouched = is_untouched(model, before)
    shaped = type(graph.model).__mro__[1].__name__ == "ShapedGraphModule"
    found.traced = "export" if shaped else "fx"
    with torch.no_grad():
        if not same(run(graph.model, inputs), wanted):
            found.traced = "WRONG"
    found.other_rows = at_other_rows(case, model, graph, quick)
    steps(found, model, graph, inputs)
    found.untouched = found.untouched and is_untouched(model, before)
    found.seconds = round(time.perf_counter() - start, 1)
    return found


def steps(found: Found, model: nn.Module, graph: MaseGraph, inputs: Mapping[str, Tensor]) -> None:
    """What needs metadata."""
    try:
        graph, _ = init_metadata_analysis_pass(graph)
        graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": dict(inputs)})
        found.metadata = True
        found.macs = compared_macs(model, graph, inputs)
        graph = quantised(graph)
        found.quantised, seen = share(graph, inputs)
        if seen.names:
            logging.getLogger("zoo").info("%s: off the grid: %s", found.name, seen.names)
        found.saved = saved(graph, inputs)
        found.gradients = gradients(model, graph, inputs)
    except Exception as error:  # noqa: BLE001  # any failure is a result
        step = "quantised" if found.metadata else "metadata"
        text = f"{step}: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
        found.gradients = found.gradients or text


def summary(rows: list[Found]) -> dict[str, str]:
    """The figures of the issue."""
    traced = [r for r in rows if r.traced in ("fx", "export")]

    def part(good: int, whole: int) -> str:
        return f"{good} of {whole} ({100 * good / max(whole, 1):.0f} %)"

    return {
        "models": str(len(rows)),
        "traced": part(len(traced), len(rows)),
        "metadata": part(sum(r.metadata for r in traced), len(traced)),
        "at least 93 % of MACs quantised": part(
            sum((r.quantised or 0) >= 0.93 for r in traced), len(traced)),
        "right at another number of rows": part(
            sum(r.other_rows.startswith("right") for r in traced), len(traced)),
        "silent mismatches": str(sum("WRONG" in r.other_rows + r.traced for r in rows)),
        "saved and loaded bit-equal": part(sum(r.saved == "equal" for r in traced), len(traced)),
        "gradients reach all": part(sum(r.gradients == "all" for r in traced), len(traced)),
        "MACs equal torch's": part(sum(r.macs == "equal" for r in traced), len(traced)),
        "user's model untouched": part(sum(r.untouched for r in rows), len(rows)),
    }  # fmt: skip


def table(rows: list[Found]) -> str:
    shown = [
        {**asdict(r), "quantised": "" if r.quantised is None else f"{100 * r.quantised:.1f} %"}
        for r in rows
    ]
    return str(tabulate(shown, headers="keys", tablefmt="github", disable_numparse=True))


def main() -> None:
    """Measure, print, and store if asked to."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="plain torch only, fewer checks")
    parser.add_argument("--only", default="", help="names of models, with commas between them")
    parser.add_argument("--zoo", default="", help="one zoo")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--file", type=Path, help="where to write the table")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    wanted = set(filter(None, options.only.split(",")))
    rows: list[Found] = []
    for case in cases("torch" if options.quick else options.zoo):
        if wanted and case.name not in wanted:
            continue
        try:
            rows.append(measured(case, options.quick))
        except Exception as error:  # noqa: BLE001  # any failure is a result
            print(f"left out {case.name}: {type(error).__name__}: {str(error)[:150]}", flush=True)
            continue
        r = rows[-1]
        print(r.name, r.traced, r.metadata, r.quantised, r.other_rows, r.saved, r.gradients,
              r.macs, r.untouched, r.seconds, sep=" | ", flush=True)  # fmt: skip
    text = tabulate(summary(rows).items(), tablefmt="github")
    print(text)
    if options.file:
        options.file.write_text(f"{text}\n\n{table(rows)}\n", encoding="utf-8")
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        line = {"date": time.strftime("%Y-%m-%d"), "torch": torch.__version__,
                "machine": platform.machine(), **summary(rows)}  # fmt: skip
        with (RESULTS / "zoo.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
