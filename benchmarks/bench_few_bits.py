"""Trained networks at few bits without training again: each method beside other quantisers.

A network is loaded from its project (or trained briefly), quantised on rows of training, and
tested on test rows. Beside it stands onnxruntime's static quantisation of 8 bits on the same rows
(weights by channel, minimum and maximum), and torchao's PT2E where torchao is installed.

Run: python benchmarks/bench_few_bits.py [--quick] [--load PROJECT --model NAME --dataset NAME]
     [--calibration 512] [--rows 5000] [--save]
Data: CHOP_CIFAR10 and CHOP_FASHION_MNIST name their folders (docs/datasets.md).
"""

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor, nn

import chop
from chop.dataset import MaseDataModule
from chop.loading.networks import load_model
from chop.models import get_model
from chop.passes.graph.transforms.methods.choosing import METHODS

RESULTS = Path(__file__).parent / "results"
HEADERS = ("network", "how", "accuracy", "points lost", "seconds")
BATCH = 500


def accuracy(run: Callable[[Tensor], Any], rows: Tensor, labels: Tensor) -> float:
    """Return the share of rows whose largest output is that of their class."""
    with torch.no_grad():
        found = [torch.as_tensor(run(part)).argmax(-1) for part in rows.split(BATCH)]
    return float((torch.cat(found) == labels).double().mean())


def rows_of(loader: Any, count: int) -> tuple[Tensor, Tensor]:
    """Return the first rows of a loader and their classes."""
    inputs, labels, seen = [], [], 0
    for x, y in loader:
        inputs.append(x)
        labels.append(y)
        seen += len(x)
        if seen >= count:
            break
    return torch.cat(inputs)[:count], torch.cat(labels)[:count]


def by_chop(model: nn.Module, rows: Tensor) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield ways to quantise with chop."""
    batches = list(rows.split(128))
    yield "8 bits", lambda: chop.quantize(model, width=8, calibrate=batches)
    few: dict[str, Any] = {"width": 8, "weight_width": 4, "calibrate": batches}
    yield "4-bit weights, no method", lambda: chop.quantize(model, **few, methods=())
    for name in METHODS:
        yield (
            f"4-bit weights, {name}",
            lambda name=name: chop.quantize(model, **few, methods=(name,)),
        )
    yield "4-bit weights, as by default", lambda: chop.quantize(model, **few)


def by_onnxruntime(model: nn.Module, rows: Tensor) -> Callable[[Tensor], Any]:
    """Return what runs the network after onnxruntime's static quantisation."""
    import onnxruntime
    from onnxruntime import quantization

    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as place:
        before, after = f"{place}/float.onnx", f"{place}/int8.onnx"
        torch.onnx.export(
            model,
            (rows[:2],),
            before,
            input_names=["x"],
            dynamic_axes={"x": {0: "rows"}},
            dynamo=False,
        )

        class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
            parts = iter(rows.split(128))

            def get_next(self) -> Any:
                part = next(self.parts, None)
                return None if part is None else {"x": part.numpy()}

        quantization.quantize_static(before, after, Reader(), per_channel=True)
        session = onnxruntime.InferenceSession(after, providers=["CPUExecutionProvider"])
    return lambda x: np.asarray(session.run(None, {"x": x.numpy()})[0])


def by_torchao(model: nn.Module, rows: Tensor) -> Callable[[Tensor], Any]:
    """Return the network after torchao's PT2E quantisation for x86."""
    from torchao.quantization.pt2e import quantize_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    chosen = x86.X86InductorQuantizer()
    chosen.set_global(x86.get_default_x86_inductor_quantization_config())
    size = torch.export.Dim("rows", min=2)
    graph = torch.export.export(model, (rows[:8],), dynamic_shapes=({0: size},)).module()
    graph = quantize_pt2e.prepare_pt2e(graph, chosen)
    with torch.no_grad():
        for part in rows.split(128):
            graph(part)
    return quantize_pt2e.convert_pt2e(graph)  # type: ignore[no-any-return]


def measure(name: str, model: nn.Module, rows: Tensor, test: tuple[Tensor, Tensor]) -> list[Any]:
    """Quantise a network in every way; return the lines of the table."""
    usual = accuracy(model, *test)
    lines: list[Any] = [[name, "float", f"{usual:.4f}", "", ""]]
    ways = list(by_chop(model, rows))
    ways.append(("onnxruntime, static, 8 bits", lambda: by_onnxruntime(model, rows)))
    ways.append(("torchao PT2E, 8 bits", lambda: by_torchao(model, rows)))
    for how, quantise in ways:
        start = time.perf_counter()
        try:
            run = quantise()
        except ImportError as error:
            lines.append([name, how, f"not run: {error}", "", ""])
            continue
        seconds = time.perf_counter() - start
        found = accuracy(run, *test)
        lines.append([name, how, f"{found:.4f}", f"{100 * (usual - found):.2f}", f"{seconds:.1f}"])
        print(*lines[-1], flush=True)
    return lines


def model_with_weights(name: str, project: Path | None, data: MaseDataModule) -> nn.Module:
    """Return a network with the weights of a project, else after one epoch."""
    data.prepare_data()
    data.setup()
    model = get_model(name, dataset_info=data.dataset_info)
    if project is not None:
        return load_model(project, "pl", model).eval()
    chop.train(model, data.train_dataloader(), max_epochs=1)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="simulated jets, trained for an epoch")
    parser.add_argument("--load", type=Path, help="the project of a trained network")
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--calibration", type=int, default=512, help="rows of training to see")
    parser.add_argument("--rows", type=int, default=10_000, help="rows of the test")
    parser.add_argument("--save", action="store_true", help="write results/few-bits-MODEL.md")
    args = parser.parse_args()
    if args.quick:
        args.model, args.dataset = "jsc-tiny", "jsc-sim"
    logging.getLogger("chop").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = MaseDataModule(args.dataset, batch_size=128)
    model = model_with_weights(args.model, args.load, data)
    rows, _ = rows_of(data.train_dataloader(), args.calibration)
    test = rows_of(data.test_dataloader(), args.rows)
    lines = measure(f"{args.model} on {args.dataset}", model, rows, test)
    print(tabulate(lines, HEADERS, disable_numparse=True))
    print(f"{len(rows)} rows of calibration, {len(test[0])} of the test")
    if args.save:
        table = tabulate(lines, HEADERS, tablefmt="github", disable_numparse=True)
        text = f"{table}\n\n{len(rows)} rows of calibration, {len(test[0])} test rows.\n"
        (RESULTS / f"few-bits-{args.model}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
