"""A file costs a small multiple of its own size: what asks for more is refused, and says so.

Each file is loaded in a process that may take some more memory than this one has, and some time.
"""

import hashlib
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_zoo import graph_of
from torch import Tensor, nn

from chop.ir.stored.codec import Packed, PackedRecord, to_plain, unpack
from chop.numerics import FORMATS, Encoded, NumberFormat
from chop.passes.graph import load_mase_graph, save_mase_graph_interface_pass

MEMORY = 200 << 20  # bytes that loading may take on top of what is there
SECONDS = 30
Record = dict[str, Any]
Tensors = dict[str, Tensor]


def limited(run: Callable[[], str], memory: int = MEMORY) -> str:
    """What `run` says in a child with little memory and time, or how the child died."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            size = pages * resource.getpagesize() + memory
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            os.write(writing, said(run)[:2000].encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read().decode()
    _, status = os.waitpid(child, 0)
    return text or f"ended with {os.waitstatus_to_exitcode(status)}"


def said(run: Callable[[], str]) -> str:
    try:
        return run()
    except Exception as error:  # noqa: BLE001  # a lack of memory among them
        return f"{type(error).__name__}: {error}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    save_mase_graph_interface_pass(graph_of(model, {"input": torch.ones(1, 4)}), tmp_path / "a")
    return tmp_path / "a"


def edit(folder: Path, change: Callable[[Record, Tensors], object]) -> None:
    """Change the graph and its weights as one who means harm would."""
    weights, graph = folder / "weights.safetensors", folder / "graph.json"
    record, tensors = json.loads(graph.read_text()), load_file(weights)
    del record["checksum"]
    record.pop("digests", None)
    change(record, tensors)
    save_file(tensors, weights)
    record["digest"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    graph.write_text(json.dumps(record))


def arguments(kind: str, **given: Any) -> Callable[[Record, Tensors], object]:
    """Another class and other arguments for the layer."""
    return lambda r, t: r["layers"]["0"].update(kind=kind, arguments=given)


def more_arguments(**given: Any) -> Callable[[Record, Tensors], object]:
    """Further arguments for the layer."""
    return lambda r, t: r["layers"]["0"]["arguments"].update(given)


def recurrent(record: Record, tensors: Tensors) -> None:
    """Layers without tensors, each of which would be a thousand."""
    layer = {"kind": "LSTM", "arguments": {"input_size": 1, "hidden_size": 1, "num_layers": 1000}}
    record["layers"] |= {f"l{number}": layer for number in range(300)}


def large_mask(record: Record, tensors: Tensors) -> None:
    """A mask of 16 MB for a weight of sixteen numbers."""
    tensors["0.weight_mask::codes"] = torch.zeros(1 << 24, dtype=torch.uint8)
    how = {"shape": [1 << 27], "bits": 1, "dtype": "bool"}
    record["packed"] = {"0.weight_mask": how}
    record["layers"]["0"]["masks"] = ["weight_mask"]


def spread_scales(record: Record, tensors: Tensors) -> None:
    """A row of codes and a column of scales, whose product has a million million elements."""
    size = 1 << 20
    record["layers"]["0"]["arguments"] |= {"in_features": size, "out_features": 1}
    tensors["0.bias"] = torch.zeros(1)
    del tensors["0.weight"]
    tensors["0.weight::codes"] = torch.zeros(size // 8, dtype=torch.uint8)
    tensors["0.weight::shared"] = torch.zeros(size, 1)
    how = {"number_format": "binary", "shape": [1, size], "bits": 1, "dtype": "float32"}
    record["packed"] = {"0.weight": how}


def dotted(record: Record, tensors: Tensors) -> None:
    """A tensor whose name has half a million parts."""
    tensors["a" + ".a" * 500_000] = torch.zeros(1)


def deep_path(record: Record, tensors: Tensors) -> None:
    """A layer inside ten thousand modules."""
    record["layers"]["a" + ".a" * 10_000] = record["layers"]["0"]


def many_keys(record: Record, tensors: Tensors) -> None:
    """A dictionary whose keys are tuples that hash alike would take a time that is squared."""
    pairs = [[{"$tuple": [number]}, 0] for number in range(10_000)]
    record["nodes"][-1]["args"] = [{"$dict": pairs}]


HARMS: dict[str, Callable[[Record, Tensors], object]] = {
    "encoders": arguments("Transformer", d_model=8, nhead=2, num_encoder_layers=10**6),
    "an encoder": arguments("TransformerEncoderLayer", d_model=10**5, nhead=2),
    "recurrent": recurrent,
    "device": more_arguments(device="cpu", in_features=30_000, out_features=30_000),
    "device by tag": more_arguments(device={"$device": "cpu"}, out_features=10**9),
    "device cuda": more_arguments(device="cuda"),
    "device cuda by tag": more_arguments(device={"$device": "cuda:0"}),
    "dtype": more_arguments(dtype={"$dtype": "float64"}),
    "device of a parallel one": arguments("DataParallel", device_ids=[0]),
    "a long argument": arguments("LayerNorm", normalized_shape=[1] * 100_000),
    "a large argument": more_arguments(in_features=10**12),
    "a negative argument": more_arguments(in_features=-5),
    "no number": more_arguments(in_features=None),
    "a word for a number": more_arguments(in_features="cpu"),
    "a division by zero": arguments(
        "Conv2d", in_channels=4, out_channels=4, kernel_size=1, groups=0
    ),
    "heads that do not fit": arguments("MultiheadAttention", embed_dim=4, num_heads=3),
    "no arguments": arguments("Linear"),
    "large mask": large_mask,
    "spread scales": spread_scales,
    "dotted": dotted,
    "deep path": deep_path,
    "many keys": many_keys,
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_what_asks_for_too_much_is_refused(harm: str, folder: Path) -> None:
    edit(folder, HARMS[harm])
    text = limited(lambda: str(load_mase_graph(folder)))
    assert text.startswith(f"CheckpointError: {folder / 'graph.json'}: "), text
    assert "\n" not in text
    assert "alloc" not in text, "it was refused only because there was no memory"


def test_a_good_file_needs_no_more_than_is_allowed(folder: Path) -> None:
    edit(folder, lambda record, tensors: None)
    assert limited(lambda: str(load_mase_graph(folder))).startswith("MaseGraph")


def test_a_lack_of_memory_is_noticed_here() -> None:
    assert "alloc" in limited(lambda: str(torch.zeros(MEMORY)))


def large_codes(fmt: NumberFormat, elements: int) -> Packed:
    """Codes of a tensor of so many elements."""
    name = next(name for name, kind in FORMATS.items() if kind is type(fmt))
    small = fmt.encode(torch.ones(4, 64))
    shape = [elements // 64, 64]
    record = PackedRecord(
        number_format=name,
        settings=to_plain(fmt.model_dump()),
        shape=shape,
        bits=fmt.element_bits,
        dtype="float32",
        codes=str(small.codes.dtype).removeprefix("torch."),
    )
    codes = torch.zeros(elements * fmt.element_bits // 8, dtype=torch.uint8)
    if small.shared is None:
        return Packed(record, codes, None)
    rows = small.shared.repeat(shape[0] // 4, *[1] * (small.shared.dim() - 1))
    return Packed(record, codes, rows, small.overall)


def test_a_mask_takes_eight_times_its_file() -> None:
    """16 MB of bits: 128 MB of truth values, and little else."""
    record = PackedRecord(shape=[1 << 27], bits=1, dtype="bool")
    packed = Packed(record, torch.zeros(1 << 24, dtype=torch.uint8), None)
    assert limited(lambda: str(unpack(packed).numel()), 160 << 20) == str(1 << 27)


@pytest.mark.parametrize(
    "fmt",
    [
        FORMATS["integer"](width=2, frac_width=1),
        FORMATS["minifloat_ieee"](width=4, exponent_width=2),
        FORMATS["block_fp"](width=2),
        FORMATS["mxfp4"](),
        FORMATS["nvfp4"](),
        FORMATS["binary"](),
        FORMATS["ternary"](),
    ],
    ids=lambda fmt: type(fmt).__name__,
)
def test_codes_take_what_their_numbers_take(fmt: NumberFormat) -> None:
    """4 million elements: 16 MB of numbers, 4 MB of codes and no wide copies of either."""
    packed = large_codes(fmt, 1 << 22)
    assert limited(lambda: str(unpack(packed).numel()), 48 << 20) == str(1 << 22)


@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (33, 40), (130, 3, 5), (0, 4), (9,), ()])
@pytest.mark.parametrize(
    "name", ["block_fp", "mxint8", "nvfp4", "integer", "minifloat_ieee", "block_log"]
)
def test_decoding_in_pieces_is_decoding(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = FORMATS[name].model_fields
    values = {"width": 6, "frac_width": 3, "exponent_width": 3, "scale": 0.1}
    fmt = FORMATS[name](**{key: value for key, value in values.items() if key in fields})
    encoded: Encoded = fmt.encode(torch.randn(shape))
    whole = fmt.decode(encoded)
    for home in ("block", "elementwise"):
        monkeypatch.setattr(f"chop.numerics.{home}.CHUNK", 16)
    assert torch.equal(fmt.decode(encoded), whole)
