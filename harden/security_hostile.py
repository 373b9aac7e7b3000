"""Files that would run code if they were believed, each with a canary that tells."""

import base64
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from chop.config.layers import write_toml
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
)
from chop.runs import JOURNAL
from harden.security_graph import in_earlier_form

CANARY = "canary"
MODEL, DATA = "jsc-tiny", "jsc-sim"
"""A model and a data set that need no files."""

Arguments = list[str]


class Payload:
    """An object whose pickle writes the canary when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.folder / CANARY}",)


@dataclass(frozen=True)
class Hostile:
    """A way to have code run: writes files into a folder and gives the arguments of ``ch``.

    Attributes:
        harmless: the file is a right one to those who do not run what is in it, so it may be
            accepted; nothing of it must run all the same.
    """

    kind: str
    name: str
    write: Callable[[Path], Arguments]
    harmless: bool = False


def code(folder: Path) -> str:
    """Python that writes the canary."""
    return f"__import__('os').system('touch {folder / CANARY}')"


def loading(name: str, load_type: str) -> Arguments:
    """Test a model with the weights in a file."""
    return ["test", MODEL, DATA, "--load", name, "--load-type", load_type]


def plain_pickle(suffix: str, load_type: str) -> Callable[[Path], Arguments]:
    """A pickle and nothing else, under the name of a checkpoint."""

    def write(folder: Path) -> Arguments:
        path = folder / f"weights{suffix}"
        path.write_bytes(pickle.dumps(Payload(folder)))
        return loading(str(path), load_type)

    return write


def saved_by_torch(
    content: Callable[[Path], Any], suffix: str, load_type: str
) -> Callable[[Path], Arguments]:
    """A file as `torch.save` writes it, with the payload in it."""

    def write(folder: Path) -> Arguments:
        path = folder / f"weights{suffix}"
        torch.save(content(folder), path)
        return loading(str(path), load_type)

    return write


def hugging_face(folder: Path) -> Arguments:
    """A folder as Hugging Face has them, its weights a pickle."""
    inner = folder / "hf"
    inner.mkdir()
    torch.save({"weight": torch.zeros(2), "x": Payload(folder)}, inner / "pytorch_model.bin")
    return loading(str(inner), "hf")


def pickled_graph(folder: Path) -> Arguments:
    """A graph as the original pickles it."""
    inner = folder / "graph"
    inner.mkdir()
    (inner / "graph_module.mz").write_bytes(pickle.dumps(Payload(folder)))
    return loading(str(inner), "mz")


def torch_script(folder: Path) -> Arguments:
    """A program of TorchScript under the name of a checkpoint."""
    path = folder / "weights.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Payload(folder)))
        archive.writestr("archive/constants.pkl", pickle.dumps(Payload(folder)))
        archive.writestr("archive/version", "3\n")
    return loading(str(path), "pt")


class Small(nn.Module):
    """What is saved as a graph: a layer, a function and a method."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = torch.relu(self.head(x)).contiguous()
        return scores


def changed_graph(change: Callable[[dict[str, Any], Path], None]) -> Callable[[Path], Arguments]:
    """A saved graph whose file was changed by hand."""

    def write(folder: Path) -> Arguments:
        graph, _ = add_common_metadata_analysis_pass(
            MaseGraph(Small().eval()), {"dummy_in": {"x": torch.zeros(2, 16)}}
        )
        save_mase_graph_interface_pass(graph, folder / "graph")
        path = folder / "graph" / "graph.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        change(record, folder)
        path.write_text(json.dumps(record), encoding="utf-8")
        return loading(str(folder / "graph"), "mz")

    return write


def node_with(op: str, **fields: Any) -> Callable[[dict[str, Any], Path], None]:
    """A change of the first node of a kind; ``CODE`` in a text becomes the code."""

    def change(record: dict[str, Any], folder: Path) -> None:
        found = next(each for each in record["nodes"] if each["op"] == op)
        found |= json.loads(json.dumps(fields).replace("CODE", code(folder)))

    return change


def quantised_graph(*arguments: str) -> Callable[[Path], Arguments]:
    """A saved graph whose quantised node is code once it is float again."""

    def write(folder: Path) -> Arguments:
        graph, _ = add_common_metadata_analysis_pass(
            MaseGraph(Small().eval()), {"dummy_in": {"x": torch.zeros(2, 16)}}
        )
        rule = {"config": {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}}
        quantize_transform_pass(graph, {"by": "type", "relu": rule})
        save_mase_graph_interface_pass(graph, folder / "graph")
        path = folder / "graph" / "graph.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        del record["checksum"]
        form = ["placeholder", f"y=({code(folder)}, 0)[1], z", ["config"], {}]
        next(node for node in record["nodes"] if "float_form" in node)["float_form"] = form
        path.write_text(json.dumps(record), encoding="utf-8")
        config = folder / "back.toml"
        tables = {"model": MODEL, "dataset": DATA, "load_name": str(folder / "graph")}
        write_toml(config, tables | {"load_type": "mz"} | BACK_TO_FLOAT)
        return [*arguments, "--config", str(config)]

    return write


BACK_TO_FLOAT: dict[str, Any] = {
    "passes": {"quantize": {"by": "type", "default": {"config": {"name": "NA"}}}},
    "search": {
        "search_space": {
            "name": "graph/quantize/mixed_precision_ptq",
            "setup": {"by": "type"},
            "seed": {"relu": {"config": {"name": ["NA"]}}},
        },
        "strategy": {
            "name": "optuna",
            "sw_runner": {"basic_train": {"max_epochs": 1, "num_samples": 64}},
            "hw_runner": {"average_bitwidth": {}},
            "setup": {"n_trials": 1, "plots": False},
            "metrics": {"accuracy": {"scale": 1.0, "direction": "maximize"}},
        },
    },
}
"""A pass and a search that take every node back to floating point."""


def metadata_with_code(folder: Path) -> Arguments:
    """Metadata whose texts are code."""
    arguments = changed_graph(lambda record, folder: None)(folder)
    in_earlier_form(folder / "graph")
    path = folder / "graph" / "node_meta_param.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("linear", code(folder)), encoding="utf-8")
    return arguments


def journal_with_code(folder: Path) -> Arguments:
    """A study in which the state of a sampler is a pickle, as Optuna's CMA-ES stores it."""
    study = folder / "out" / "p" / "software" / "search_ckpts"
    study.mkdir(parents=True)
    state = pickle.dumps(Payload(folder))
    records = [
        {"op_code": 0, "worker_id": "w", "study_name": "search", "directions": [2, 1]},
        {
            "op_code": 4, "worker_id": "w", "study_id": 0, "state": 1, "values": [0.5, 8.0],
            "value": None, "params": {}, "distributions": {}, "intermediate_values": {},
            "datetime_start": "2026-01-01T00:00:00+00:00", "user_attrs": {"key": code(folder)},
            "datetime_complete": "2026-01-01T00:00:01+00:00",
            "system_attrs": {"cma:optimizer:0": state.hex(), "x": base64.b64encode(state).decode()},
        },
    ]  # fmt: skip
    (study / JOURNAL).write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return ["search", "--config", searching(folder), "--resume"]


def searching(folder: Path) -> str:
    """A configuration with a small search."""
    path = folder / "search.toml"
    seed = {"name": ["integer"], "data_in_width": [4, 8], "weight_width": [4], "bias_width": [4]}
    tables = {
        "model": MODEL,
        "dataset": DATA,
        "search": {
            "search_space": {
                "name": "graph/quantize/mixed_precision_ptq",
                "setup": {"by": "type"},
                "seed": {"linear": {"config": seed}},
            },
            "strategy": {
                "name": "optuna",
                "sw_runner": {"basic_evaluation": {"num_samples": 64}},
                "hw_runner": {"average_bitwidth": {}},
                "setup": {"n_trials": 1, "plots": False},
                "metrics": {
                    "accuracy": {"scale": 1.0, "direction": "maximize"},
                    "average_bitwidth": {"scale": 1.0, "direction": "minimize"},
                },
            },
        },
    }
    write_toml(path, tables)
    return str(path)


def setting(name: str, *more: str) -> Callable[[Path], Arguments]:
    """A configuration in which a setting is code."""

    def write(folder: Path) -> Arguments:
        path = folder / "run.toml"
        table = {"model": MODEL, "dataset": DATA, name: code(folder)}
        write_toml(path, table)
        return ["test", "--config", str(path), *more]

    return write


def passes(arguments: Callable[[str], dict[str, Any]]) -> Callable[[Path], Arguments]:
    """A configuration in which the argument of a pass is code."""

    def write(folder: Path) -> Arguments:
        path = folder / "run.toml"
        write_toml(path, {"model": MODEL, "dataset": DATA, "passes": arguments(code(folder))})
        return ["transform", "--config", str(path)]

    return write


def importing(name: str, *arguments: str) -> Callable[[Path], Arguments]:
    """A configuration that names a file of Python, to be run by the command in `arguments`."""

    def write(folder: Path) -> Arguments:
        for file in ("own.py", "other.py"):
            (folder / file).write_text(code(folder), encoding="utf-8")
        path = folder / "run.toml"
        imports = [name.replace("FOLDER", str(folder))]
        write_toml(path, {"model": MODEL, "dataset": DATA, "imports": imports})
        return [*arguments, "--config", str(path)]

    return write


def tagged(folder: Path) -> Arguments:
    """A configuration in YAML, which can name objects to be made."""
    path = folder / "run.toml"
    path.write_text(f"model: !!python/object/apply:os.system ['touch {folder / CANARY}']\n")
    return ["test", "--config", str(path)]


def object_array(folder: Path) -> Arguments:
    """An archive of NumPy whose array holds objects, which NumPy pickles."""
    path = folder / "rows.npz"
    evil = np.array([Payload(folder)] * 12, dtype=object)
    np.savez(path, x=evil, y=np.arange(12) % 3, allow_pickle=True)
    return ["test", MODEL, "npz", "--dataset-path", str(path)]


def pickle_as(name: str, dataset: str) -> Callable[[Path], Arguments]:
    """A pickle under the name of a file of rows."""

    def write(folder: Path) -> Arguments:
        path = folder / name
        path.write_bytes(pickle.dumps(Payload(folder)))
        return ["test", MODEL, dataset, "--dataset-path", str(path)]

    return write


def header_with_code(folder: Path) -> Arguments:
    """An array of NumPy whose header, a text of Python, calls a function."""
    header = f"{{'descr': {code(folder)}, 'fortran_order': False, 'shape': (12, 4)}}\n".encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    path = folder / "rows.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", content + bytes(400))
        archive.writestr("y.npy", content + bytes(400))
    return ["test", MODEL, "npz", "--dataset-path", str(path)]


def pickled_cifar(folder: Path) -> Arguments:
    """CIFAR-10 as its authors pickle it for Python."""
    inner = folder / "cifar-10-batches-py"
    inner.mkdir()
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (inner / name).write_bytes(pickle.dumps(Payload(folder)))
    return ["test", "toy", "cifar10", "--dataset-path", str(folder)]


def cells_with_code(folder: Path) -> Arguments:
    """A CSV file whose names of columns and classes are code."""
    text = code(folder).replace(",", ";")
    rows = [f"{n}.5,{n % 7}.25,{text}{n % 3}" for n in range(30)]
    path = folder / "rows.csv"
    path.write_text("\n".join([f"={text},b,label", *rows]), encoding="utf-8")
    return ["test", MODEL, "csv", "--dataset-path", str(path)]


HOSTILE = [
    *(
        Hostile("checkpoint", f"a bare pickle as {suffix}", plain_pickle(suffix, load_type))
        for suffix, load_type in (
            (".pt", "pt"), (".ckpt", "pl"), (".safetensors", "pt"), (".mz", "mz"),
        )
    ),
    Hostile("checkpoint", "an object among weights", saved_by_torch(
        lambda f: {"a": Payload(f)}, ".pt", "pt")),
    Hostile(
        "checkpoint", "an object beside a state dict",
        saved_by_torch(lambda f: {"state_dict": {}, "hyper_parameters": Payload(f)}, ".ckpt", "pl"),
    ),
    Hostile("checkpoint", "a Hugging Face folder", hugging_face),
    Hostile("checkpoint", "a TorchScript archive", torch_script),
    Hostile("graph", "a pickled graph", pickled_graph),
    *(
        Hostile("graph", f"a node that calls {target}", changed_graph(
            node_with("call_function", target=target, args=["CODE"])))
        for target in (
            "builtins.eval", "builtins.exec", "os.system", "torch.load", "operator.call",
            "builtins.__import__", "torch.hub.load", "subprocess.run", "torch.ops.load_library",
        )
    ),
    Hostile("graph", "a node whose name is code", changed_graph(
        node_with("call_function", name="x = CODE"))),
    Hostile("graph", "a keyword that is code", changed_graph(
        node_with("call_function", kwargs={"a=CODE, b": 1}))),
    Hostile("graph", "an argument that is code", changed_graph(
        node_with("call_method", args=[{"$node": "relu"}, "') or CODE or ('"]))),
    Hostile("graph", "a method that is code", changed_graph(
        node_with("call_method", target="CODE or x"))),
    Hostile("graph", "a placeholder that is code", changed_graph(
        node_with("placeholder", target="x=CODE"))),
    Hostile("graph", "a model name that is code", changed_graph(
        lambda record, folder: record.update(model=f"X:\n  {code(folder)}\nclass Y"))),
    Hostile("graph", "a layer of another kind", changed_graph(
        lambda record, folder: record["layers"]["head"].update(kind="Popen"))),
    Hostile("graph", "metadata that is code", metadata_with_code),
    Hostile("graph", "a float form that is code, transformed", quantised_graph("transform")),
    Hostile("graph", "a float form that is code, searched", quantised_graph("search")),
    Hostile("study", "a sampler's pickled state", journal_with_code),
    *(
        Hostile("configuration", f"{name} that is code", setting(name))
        for name in ("model", "dataset", "task", "load_name", "seed", "strategy", "dataset_path")
    ),
    Hostile("configuration", "a pass that is code", passes(lambda text: {text: {}})),
    Hostile("configuration", "a format that is code", passes(
        lambda text: {"quantize": {"by": "type", "default": {"config": {"name": text}}}})),
    Hostile("configuration", "a pattern that is code", passes(
        lambda text: {"quantize": {"by": "regex_name", text: {"config": {"name": "integer"}}}})),
    Hostile("configuration", "YAML with an object", tagged),
    *(
        Hostile("configuration", f"imports for {action}", importing("own.py", action))
        for action in (
            "train", "test", "transform", "search", "quantize", "sensitivity", "formats",
        )
    ),
    *(
        Hostile("configuration", f"imports by {name}", importing(name, "test"))
        for name in ("FOLDER/own.py", "./own.py", "../../../../../../../..FOLDER/own.py")
    ),
    Hostile("configuration", "imports on the side", importing(
        "own.py", "test", "--import", "other.py")),
    Hostile("configuration", "imports of a run that goes on", importing(
        "own.py", "train", "--resume")),
    Hostile("data", "an array of objects", object_array),
    Hostile("data", "a header that is code", header_with_code),
    Hostile("data", "CIFAR-10 as pickles", pickled_cifar),
    *(
        Hostile("data", f"a pickle as {name}", pickle_as(name, dataset))
        for name, dataset in (("rows.csv", "csv"), ("rows.npz", "npz"), ("rows.parquet", "parquet"),
                              ("jets.h5", "jsc"))
    ),
    Hostile("data", "cells that are code", cells_with_code, harmless=True),
]  # fmt: skip
