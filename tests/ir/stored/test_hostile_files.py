import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_zoo import ZOO, graph_of, in_earlier_form

from chop.errors import CheckpointError
from chop.ir.stored.targets import function_by_name, function_name, is_method
from chop.passes.graph import (
    load_mase_graph,
    load_node_meta_param_interface_pass,
    prune_transform_pass,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
)

Record = dict[str, Any]
CONFIG = {"name": "integer", "data_in_width": 8, "weight_width": 4, "bias_width": 8}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with a bit of everything: layers, functions, methods, codes and masks."""
    torch.manual_seed(0)
    model, inputs = ZOO["conv"]()
    graph = graph_of(model, inputs)
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": CONFIG}})
    prune_transform_pass(graph, {"weight": {"sparsity": 0.5, "seed": 1}})
    folder = tmp_path_factory.mktemp("graphs") / "saved"
    save_mase_graph_interface_pass(graph, {"save_dir": folder, "weights": "codes"})
    return in_earlier_form(folder)


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[Record], object]) -> None:
    path = folder / "graph.json"
    record = json.loads(path.read_text())
    del record["checksum"], record["digests"]  # as one who means harm would
    change(record)
    path.write_text(json.dumps(record))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the weights and make the digest agree, as one who means harm would."""
    path = folder / "weights.safetensors"
    tensors = {key: value.clone() for key, value in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(folder, lambda record: record.update(digest=digest))


def node(record: Record, op: str) -> Record:
    return next(each for each in record["nodes"] if each["op"] == op)


def layer(record: Record) -> Record:
    return record["layers"]["head"]


HARMS: dict[str, Callable[[Record], object]] = {
    "format": lambda r: r.update(format="zip"),
    "version": lambda r: r.update(version=2),
    "unknown key": lambda r: r.update(exec="import os"),
    "no nodes": lambda r: r.pop("nodes"),
    "model name": lambda r: r.update(model="X:\n  import os\nclass Y"),
    "node name is code": lambda r: node(r, "call_module").update(name="x = print('hi')"),
    "node name is a keyword": lambda r: node(r, "call_module").update(name="import"),
    "node name twice": lambda r: node(r, "call_module").update(name="x"),
    "keyword is code": lambda r: node(r, "call_function").update(kwargs={"a=print(1),b": 1}),
    "placeholder is code": lambda r: node(r, "placeholder").update(target="x, y=print('hi')"),
    "unknown op": lambda r: node(r, "call_function").update(op="call_system"),
    "torch.load": lambda r: node(r, "call_function").update(target="torch.load"),
    "torch.hub.load": lambda r: node(r, "call_function").update(target="torch.hub.load"),
    "torch.from_file": lambda r: node(r, "call_function").update(target="torch.from_file"),
    "aten from_file": lambda r: node(r, "call_function").update(target="aten.from_file.default"),
    "builtins.eval": lambda r: node(r, "call_function").update(target="builtins.eval"),
    "os.system": lambda r: node(r, "call_function").update(target="os.system"),
    "methodcaller": lambda r: node(r, "call_function").update(target="operator.methodcaller"),
    "operator.call": lambda r: node(r, "call_function").update(target="operator.call"),
    "getattr of a class": lambda r: node(r, "call_function").update(
        target="builtins.getattr", args=[{"$node": "x"}, "__class__"]
    ),
    "no quantised function": lambda r: node(r, "call_function").update(target="chop.quantized.x"),
    "method numpy": lambda r: node(r, "call_method").update(target="numpy"),
    "method is code": lambda r: node(r, "call_method").update(target="flatten(1) or print"),
    "private method": lambda r: node(r, "call_method").update(target="__reduce_ex__"),
    "layer is not there": lambda r: node(r, "call_module").update(target="nothing"),
    "later node": lambda r: node(r, "call_module").update(args=[{"$node": "output"}]),
    "unknown value": lambda r: node(r, "call_module").update(args=[{"$pickle": "gASVAA=="}]),
    "a function from nowhere": lambda r: node(r, "call_function").update(
        target="os.system", given=True
    ),
    "class": lambda r: layer(r).update(kind="Popen"),
    "container": lambda r: layer(r).update(kind="Sequential"),
    "arguments": lambda r: layer(r)["arguments"].update(exec="x"),
    "huge": lambda r: layer(r)["arguments"].update(in_features=10**15),
    "negative": lambda r: layer(r)["arguments"].update(in_features=-5),
    "endless": lambda r: layer(r).update(
        kind="LSTM", arguments={"input_size": 1, "hidden_size": 1, "num_layers": 10**9}
    ),
    "format of a layer": lambda r: layer(r)["quantized"].update(name="integr"),
    "masks": lambda r: layer(r).update(masks=["weight_mask", "weight"]),
    "path up": lambda r: r["layers"].update({"../../etc/passwd": layer(r)}),
    "path of the model": lambda r: r["layers"].update({"forward": layer(r)}),
    "private path": lambda r: r["layers"].update({"__class__": layer(r)}),
    "empty path": lambda r: r["layers"].update({"a..b": layer(r)}),
    "attribute without a tensor": lambda r: r.update(attributes={"scale": {"parameter": True}}),
    "tied to nothing": lambda r: r.update(tied={"head.bias": "nothing"}),
    "same as nothing": lambda r: r.update(same_layer={"other": "nothing"}),
    "shape of codes": lambda r: r["packed"]["head.weight"].update(shape=[10**9, 10**9]),
    "bits of codes": lambda r: r["packed"]["head.weight"].update(bits=8),
    "type of codes": lambda r: r["packed"]["head.weight"].update(dtype="load"),
    "format of codes": lambda r: r["packed"]["head.weight"].update(number_format="pickle"),
    "no codes": lambda r: r["packed"].update({"head.other": r["packed"]["head.weight"]}),
    "cf_args": lambda r: r.update(cf_args={"$code": "1"}),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_changed_graph_is_refused(
    harm: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder, HARMS[harm])
    with pytest.raises(CheckpointError) as caught:
        load_mase_graph(folder)
    assert str(folder / "graph.json") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


TENSORS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "missing": lambda t: t.pop("stem.0.bias"),
    "extra": lambda t: t.update(surplus=torch.zeros(3)),
    "extra in a layer": lambda t: t.update({"stem.0.surplus": torch.zeros(3)}),
    "shape": lambda t: t.update({"stem.0.bias": torch.zeros(9)}),
    "type": lambda t: t.update({"stem.0.bias": torch.zeros(8, dtype=torch.int64)}),
    "short codes": lambda t: t.update({"head.weight::codes": torch.zeros(3, dtype=torch.uint8)}),
    "mask": lambda t: t.update({"body.weight_mask::codes": torch.zeros(99, dtype=torch.uint8)}),
    "no mask": lambda t: t.pop("body.weight_mask::codes"),
}


@pytest.mark.parametrize("harm", TENSORS)
def test_changed_tensors_are_refused(harm: str, folder: Path) -> None:
    edit_tensors(folder, TENSORS[harm])
    with pytest.raises(CheckpointError, match="graph.json"):
        load_mase_graph(folder)


@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors", "node_meta_param.toml"])
def test_missing_files_are_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_mase_graph(folder)


@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors", "node_meta_param.toml"])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_truncated_files_are_named(name: str, part: float, folder: Path) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(part * len(content))])
    with pytest.raises(CheckpointError, match=name):
        load_mase_graph(folder)


def test_a_flipped_bit_is_found(folder: Path) -> None:
    content = bytearray((folder / "weights.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "weights.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged, or saved with another graph.json"):
        load_mase_graph(folder)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000, b"{}", b"null", b"\x80\x04."])
def test_files_that_are_something_else(content: bytes, folder: Path) -> None:
    (folder / "graph.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="graph.json"):
        load_mase_graph(folder)


@pytest.mark.parametrize(
    "text",
    [
        "[graph.common]",
        "[graph]\n[nodes.x]",
        "nodes = 3\ngraph = 4",
        "a" * 1000,
        "[nodes]\na = " + "[" * 5000,
    ],
    ids=["no nodes", "no sections", "numbers", "no toml", "deep"],
)
def test_damaged_metadata(text: str, folder: Path) -> None:
    (folder / "node_meta_param.toml").write_text(text)
    with pytest.raises(CheckpointError, match="node_meta_param.toml"):
        load_mase_graph(folder)


DAMAGE: dict[str, Callable[[Record], object]] = {
    "no nodes": lambda tables: tables.pop("nodes"),
    "no sections": lambda tables: tables["nodes"].update({next(iter(tables["nodes"])): {}}),
    "numbers": lambda tables: tables.update(nodes=3, graph=4),
    "types": lambda tables: tables["graph"]["common"].update(args=5),
    "other nodes": lambda tables: tables["nodes"].popitem(),
    "no tensor": lambda tables: tables["graph"]["common"].update(x={"$tensor": "t99"}),
    "deep": lambda tables: tables["graph"]["common"].update(x=json.loads("[" * 90 + "]" * 90)),
}


@pytest.mark.parametrize("harm", DAMAGE)
def test_damaged_metadata_in_the_file_of_the_graph(harm: str, folder: Path, tmp_path: Path) -> None:
    graph = load_mase_graph(folder)
    _, info = save_mase_graph_interface_pass(graph, {"save_dir": tmp_path / "new"})
    place = Path(info["save_dir"])
    assert not (place / "node_meta_param.toml").exists()
    record = json.loads((place / "graph.json").read_text())
    del record["checksum"]
    DAMAGE[harm](record["metadata"])
    (place / "graph.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"graph\.json: ") as caught:
        load_mase_graph(place)
    assert "\n" not in str(caught.value)


def test_metadata_of_another_graph(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not those of the graph"):
        load_node_meta_param_interface_pass(
            graph_of(*ZOO["sequential"]()), folder / "node_meta_param.toml"
        )


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("boom",)


@pytest.mark.parametrize("name", ["graph_module.mz", "state.pkl", "model.pt"])
def test_pickles_are_refused_unread(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match="loading a pickle runs any code"):
        load_mase_graph(path)
    if name == "graph_module.mz":
        with pytest.raises(CheckpointError, match="loading a pickle runs any code"):
            load_mase_graph(tmp_path)
    assert capsys.readouterr().out == ""


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no graph was saved there"):
        load_mase_graph(tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CheckpointError, match="is not graph.json"):
        load_mase_graph(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    "function",
    [torch.load, torch.save, torch.from_file, eval, exec, open, print, __import__, torch.compile],
)
def test_functions_with_powers_have_no_name(function: Callable[..., Any]) -> None:
    assert function_name(function) is None


@pytest.mark.parametrize(
    "function",
    [torch.add, torch.nn.functional.relu, torch.einsum, torch.zeros, torch.ops.aten.linear.default],
)
def test_functions_that_compute_have_one(function: Callable[..., Any]) -> None:
    name = function_name(function)
    assert name is not None
    assert function_by_name(name) is function


def test_methods_that_reach_out_are_refused() -> None:
    refused = (
        "numpy",
        "tofile",
        "storage",
        "apply_",
        "map_",
        "register_hook",
        "__class__",
        "data_ptr",
    )
    assert not any(map(is_method, refused))
    assert all(map(is_method, ("view", "relu_", "size", "__and__", "sum")))
