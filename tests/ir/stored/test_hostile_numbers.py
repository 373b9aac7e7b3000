"""Numbers of Python in a saved graph that would grow without bound are refused before it runs."""

import json
import operator
from pathlib import Path
from typing import Any

import pytest
from torch import fx, nn

from chop.errors import CheckpointError, GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.stored.graph_file import GraphRecord
from chop.passes.graph.interface import load_mase_graph, save_mase_graph_interface_pass

X = {"$node": "x"}
Call = tuple[str, list[Any]]


def ref(place: int) -> dict[str, str]:
    return {"$node": f"n{place}"}


def squared(first: Call, times: int, target: str = "operator.mul") -> list[Call]:
    return [first, *((target, [ref(place), ref(place)]) for place in range(times))]


LARGE = 10**9
HARMFUL: dict[str, list[Call]] = {
    "power": [("operator.pow", [9, LARGE])],
    "power in place": [("operator.ipow", [9, LARGE])],
    "builtin power": [("builtins.pow", [9, LARGE])],
    "tower": [("operator.pow", [9, 900]), ("operator.pow", [9, ref(0)])],
    "power of a size": [("size", [X, 0]), ("operator.pow", [2, ref(0)])],
    "shift": [("operator.lshift", [1, 10**12])],
    "squares": squared(("operator.pow", [9, 9]), 60),
    "squares of a size": squared(("size", [X, 0]), 60),
    "squares of a shape": [
        ("builtins.getattr", [X, "shape"]), ("operator.getitem", [ref(0), 0]),
        *(("operator.mul", [ref(place), ref(place)]) for place in range(1, 50)),
    ],
    "repeated list": [("operator.mul", [[0], LARGE])],
    "repeated text": [("operator.mul", [LARGE, "a"])],
    "inner list": [("operator.getitem", [[[0, 1]], 0]), ("operator.mul", [ref(0), LARGE])],
    "doubled list": squared(("operator.mul", [[0], 9]), 40, "operator.concat"),
    "product": [("math.prod", [[2**62] * 9_000])],
    "rounding": [("builtins.round", [5, -LARGE])],
    "the larger of two": [("builtins.max", [LARGE, 0.5]), ("operator.pow", [9, ref(0)])],
}  # fmt: skip
HARMLESS: dict[str, list[Call]] = {
    "power": [("operator.pow", [2, 10])],
    "root": [("size", [X, 1]), ("operator.pow", [ref(0), -0.5]), ("operator.mul", [X, ref(1)])],
    "slope": [
        ("size", [X, 1]), ("math.log2", [ref(0)]), ("operator.neg", [ref(1)]),
        ("operator.pow", [2, ref(2)]),
    ],
    "all elements": [
        ("size", [X, 0]), ("size", [X, 1]), ("operator.mul", [ref(0), ref(1)]),
        ("operator.floordiv", [ref(2), 2]),
    ],
    "tensors": squared(("operator.mul", [X, X]), 200),
    "power of two": [("operator.pow", [X, 2]), ("operator.pow", [2, X])],
    "shape": [
        ("builtins.getattr", [X, "shape"]),
        ("operator.getitem", [ref(0), {"$slice": [1, None, None]}]),
        ("operator.add", [ref(1), [1]]), ("operator.mul", [[1], 4]),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs") / "saved"
    graph = MaseGraph(nn.Sequential(nn.Linear(2, 2)))
    save_mase_graph_interface_pass(graph, {"save_dir": folder})
    return folder


def changed(saved: Path, folder: Path, calls: list[Call], output: Any = None) -> Path:
    """The saved graph with calls after its input; what they give is read by nobody."""
    record = json.loads((saved / "graph.json").read_text())
    del record["checksum"]
    record.pop("digests", None)
    first, *others = record["nodes"]
    first["name"] = first["target"] = "x"
    others[0]["args"] = [X]
    more = [
        {"name": f"n{place}", "target": target, "args": args, "kwargs": {},
         "op": "call_function" if "." in target else "call_method"}
        for place, (target, args) in enumerate(calls)
    ]  # fmt: skip
    if output is not None:
        others[-1]["args"] = output
    record["nodes"] = [first, *more, *others]
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes((saved / "weights.safetensors").read_bytes())
    (folder / "graph.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_number_that_grows_without_bound_is_refused(
    kind: str, saved: Path, tmp_path: Path
) -> None:
    folder = changed(saved, tmp_path / "graph", HARMFUL[kind])
    with pytest.raises(CheckpointError, match="can give a number or list that is too large"):
        load_mase_graph(folder)


@pytest.mark.parametrize("kind", HARMLESS)
def test_numbers_of_networks_are_accepted(kind: str, saved: Path, tmp_path: Path) -> None:
    folder = changed(saved, tmp_path / "graph", HARMLESS[kind])
    record = GraphRecord.model_validate_json((folder / "graph.json").read_text())
    assert len(record.nodes) == len(HARMLESS[kind]) + 3


@pytest.mark.parametrize("output", [[5], [None], [[1, 2]], [{"$node": "n0"}], [[{"$node": "n0"}]]])
def test_an_output_that_is_no_tensor_is_refused(output: Any, saved: Path, tmp_path: Path) -> None:
    folder = changed(saved, tmp_path / "graph", [("size", [X, 0])], output)
    with pytest.raises(CheckpointError, match="the output of the graph is not a tensor"):
        load_mase_graph(folder)


def test_such_a_graph_is_not_saved_either(tmp_path: Path) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(operator.pow, (9, 10**6))
    graph.output(x)
    model = MaseGraph(fx.GraphModule(nn.Module(), graph))
    with pytest.raises(GraphError, match="can give a number or list that is too large"):
        save_mase_graph_interface_pass(model, {"save_dir": tmp_path / "saved"})
