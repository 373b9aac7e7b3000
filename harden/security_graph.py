"""Every field of a saved graph, in every kind of node, replaced by what would run code or do harm.

``python -m harden.security_graph NUMBER`` shows a case again.
"""

import atexit
import contextlib
import copy
import functools
import hashlib
import io
import json
import logging
import shutil
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import ChopError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import run_graph
from chop.ir.stored.metadata import by_path, toml_text
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    load_mase_graph,
    prune_transform_pass,
    quantize_transform_pass,
    report_node_meta_param_analysis_pass,
    save_mase_graph_interface_pass,
)
from harden.common import Row, share
from harden.forked import Verdict, run_all

GRAPH, METADATA, WEIGHTS = "graph.json", "node_meta_param.toml", "weights.safetensors"
FOLDER = "saved"
OPS = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")
CODE = "__import__('os').mknod('CANARY')"
TEXTS = (
    CODE,
    f"y=({CODE}, 0)[1], z",
    f"x):\n    {CODE}\n    return (x",
    f"'+{CODE}+'",
    f'a"), {CODE}, ("b',
    f"relu.__class__ or {CODE}",
    "__class__",
    "\uff3f\uff3fclass\uff3f\uff3f",  # Python reads these as plain underscores
    "head.__init__.__globals__",
    "forward",
    "self",
    "import",
    "os.system",
    "builtins.eval",
    "torch.load",
    "torch._print",
    "operator.methodcaller",
    "aten.save.default",
    "aten.from_file.default",
    "chop.quantized.__class__",
    "numpy",
    "set_",
    "DataParallel",
    "cuda",
    "../../CANARY",
    "a." * 5_000,
)
VALUES: tuple[Any, ...] = (
    None, True, -1, 2**31, 10**30, 1e308, [], {}, [CODE], {"a": CODE}, {"$node": CODE},
    {"$dict": [[CODE, CODE]]}, {"$dict": [[[], 1]]}, {"$slice": [CODE]}, {"$device": CODE},
    {"$device": "cuda"}, {"$dtype": "load"}, {"$size": [CODE]}, {"$size": [10**15]},
    {"$tuple": CODE}, {"$complex": [CODE, 1]}, {"$float": CODE}, {"$code": CODE}, {"$tensor": "x"},
    {"$parameter": CODE}, {"$str": CODE}, json.loads('[' * 150 + ']' * 150),
)  # fmt: skip
SOME = 5  # values that each field meets, and texts that each key meets

WHAT = "a field of a saved graph replaced by what would run code"

Place = tuple[str | int, ...]


class Everything(nn.Module):
    """A bit of all that a saved graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"block-1": nn.Conv2d(3, 4, 3), "tied": nn.Linear(4, 4)})
        self.head = nn.Linear(4, 4)
        self.layers["tied"].weight = self.head.weight
        self.rnn = nn.LSTM(4, 4, num_layers=2)
        self.register_buffer("offset", torch.ones(4))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, factor: float = 2.0, power: int = 1) -> dict[str, Any]:
        y = self.layers["block-1"](x).relu().amax((2, 3))
        y = F.softmax(self.head(y) * self.scale + self.offset, dim=-1).view(x.shape[0], -1)
        y = self.rnn(self.head(self.layers["tied"](y)))[0] * factor**power
        return {"scores": torch.cat([y, y[..., 0:2]], dim=1)}


def config(*roles: str) -> dict[str, Any]:
    """A rule for eight bits."""
    widths = {f"{role}_width": 8 for role in roles} | {f"{role}_frac_width": 4 for role in roles}
    return {"config": {"name": "integer"} | widths}


def inputs() -> dict[str, Tensor]:
    """What the network is run on."""
    return {"x": torch.ones(2, 3, 5, 5)}


def save_specimen(folder: Path) -> None:
    """Save a graph in which layers, functions and methods are quantised, pruned and packed."""
    torch.manual_seed(0)
    graph, _ = init_metadata_analysis_pass(MaseGraph(Everything().eval(), {"power": 2}))
    graph.model.add_submodule("again", graph.model.get_submodule("head"))
    [node for node in graph.nodes if node.target == "head"][-1].target = "again"
    graph.model.recompile()
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": inputs()})
    graph, _ = add_software_metadata_analysis_pass(graph)
    rules = {op: config("data_in") for op in ("relu", "softmax", "add", "mul")}
    rules |= {op: config("data_in", "weight", "bias") for op in ("linear", "conv2d")}
    quantize_transform_pass(graph, {"by": "type", **rules})
    prune_transform_pass(graph, {"weight": {"sparsity": {"layers_block_1": 0.5}}})
    args = {"save_dir": folder, "weights": "codes", "add_value": True}
    save_mase_graph_interface_pass(graph, args)


@dataclass(frozen=True)
class Case:
    """A change of one file of a saved graph."""

    file: str
    name: str
    change: Callable[[Any], None]


def places(tree: Any, at: Place = ()) -> Iterator[Place]:
    """The place of every value in nested lists and tables."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


def owner_of(tree: Any, place: Place) -> Any:
    """The list or table that holds a value."""
    for step in place[:-1]:
        tree = tree[step]
    return tree


def replaced(place: Place, value: Any) -> Callable[[Any], None]:
    """Another value in a place."""

    def change(tree: Any) -> None:
        owner_of(tree, place)[place[-1]] = copy.deepcopy(value)

    return change


def renamed(place: Place, key: str) -> Callable[[Any], None]:
    """Another key for a value; the order of keys stays."""

    def change(tree: Any) -> None:
        table = owner_of(tree, place)
        items = [(key if old == place[-1] else old, value) for old, value in table.items()]
        table.clear()
        table.update(items)

    return change


def added(place: Place, key: str, value: Any) -> Callable[[Any], None]:
    """One more entry in the table at a place."""
    return replaced((*place, key), value)


def both(*changes: Callable[[Any], None]) -> Callable[[Any], None]:
    """One change after the other."""

    def change(tree: Any) -> None:
        for each in changes:
            each(tree)

    return change


def cases(documents: dict[str, Any]) -> Iterator[Case]:
    """Every field with every text and some values, and what only two changes bring about."""
    for file, tree in documents.items():
        for count, place in enumerate(places(tree if file == GRAPH else some_of(tree))):
            at = ".".join(map(str, place))
            for number, value in enumerate((*TEXTS, *in_turn(VALUES, count))):
                yield Case(file, f"{at} = hostile {number}", replaced(place, value))
            if isinstance(place[-1], str):
                for text in in_turn(TEXTS, count):
                    yield Case(file, f"{at} renamed to {text!r:.40}", renamed(place, text))
    yield from of_nodes(documents[GRAPH]["nodes"])
    yield from of_layers(documents[GRAPH]["layers"])


def in_turn(values: tuple[Any, ...], count: int) -> list[Any]:
    """Some of the values, others for the next field."""
    start = SOME * count
    return [values[(start + step) % len(values)] for step in range(SOME)]


def some_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata of the graph, of an input, a layer and a function; the rest is no different."""
    return metadata | {"nodes": {name: metadata["nodes"][name] for name in ("x", "head", "relu")}}


def of_nodes(nodes: list[dict[str, Any]]) -> Iterator[Case]:
    """Each node and each float form as every op, with every text for a target."""
    for index, node in enumerate(nodes):
        for op in OPS:
            for number, text in enumerate(TEXTS):
                here: Place = ("nodes", index)
                changes = both(replaced((*here, "op"), op), replaced((*here, "target"), text))
                yield Case(GRAPH, f"nodes.{index} = {op} of text {number}", changes)
                form = [op, text, node.get("float_form", [0, 0, ["config"], {}])[2], {}]
                yield Case(
                    GRAPH,
                    f"nodes.{index}.float_form = {op} of text {number}",
                    replaced((*here, "float_form"), form),
                )
        for number, text in enumerate(TEXTS):
            keywords = node.get("kwargs", {}) | {text: 1}
            named = replaced(("nodes", index, "kwargs"), keywords)
            yield Case(GRAPH, f"nodes.{index}.kwargs has text {number}", named)


def of_layers(layers: dict[str, Any]) -> Iterator[Case]:
    """Each layer with arguments that it does not take, and of classes that are none."""
    for name in layers:
        for key in ("device", "dtype", "_weight", "num_layers", "self", "module", CODE):
            for number, value in enumerate((*TEXTS, *VALUES)):
                change = added(("layers", name, "arguments"), key, value)
                yield Case(GRAPH, f"layers.{name}.arguments.{key} = hostile {number}", change)
        for kind in ("Transformer", "Sequential", "DataParallel", "Module", "LSTM", "Popen"):
            counts = {"num_encoder_layers": 10**6, "num_layers": 10**6, "module": CODE}
            changes = both(
                replaced(("layers", name, "kind"), kind),
                replaced(("layers", name, "arguments"), counts),
            )
            yield Case(GRAPH, f"layers.{name} = {kind} of many", changes)


def in_earlier_form(folder: Path) -> None:
    """Turn a saved graph into one of an earlier version, whose metadata is a file of TOML."""
    record = json.loads((folder / GRAPH).read_text(encoding="utf-8"))
    text = toml_text(by_path(record.pop("metadata")))
    (folder / METADATA).write_text(text, encoding="utf-8")
    record.setdefault("digests", {})[METADATA] = hashlib.sha256(text.encode()).hexdigest()
    del record["checksum"]
    (folder / GRAPH).write_text(json.dumps(record), encoding="utf-8")


class Fuzz:
    """A saved graph, to be changed and loaded again and again."""

    def __init__(self, outer: Path) -> None:
        self.outer = outer
        self.canary = outer / "canary"
        logging.getLogger("chop").setLevel(logging.ERROR)
        save_specimen(outer / FOLDER)
        in_earlier_form(outer / FOLDER)
        self.documents = {
            GRAPH: json.loads((outer / FOLDER / GRAPH).read_text(encoding="utf-8")),
            METADATA: tomllib.loads((outer / FOLDER / METADATA).read_text(encoding="utf-8")),
        }
        del self.documents[GRAPH]["digests"]  # as one who means harm would
        (outer / FOLDER / GRAPH).write_text(self.text(GRAPH, self.documents[GRAPH]), "utf-8")

    def attempt(self, case: Case) -> str:
        """What is wrong with the way a changed graph is taken; nothing if all is well."""
        text = self.changed(case)
        if text is None:
            return ""
        folder = self.outer / FOLDER
        before = {name: (folder / name).read_text(encoding="utf-8") for name in self.documents}
        (folder / case.file).write_text(text, encoding="utf-8")
        try:
            return self.judged(folder)
        finally:
            for name, content in before.items():
                (folder / name).write_text(content, encoding="utf-8")
            shutil.rmtree(folder / "again", ignore_errors=True)
            self.canary.unlink(missing_ok=True)

    def changed(self, case: Case) -> str | None:
        """The text of the file after a change; None if the format cannot hold it."""
        tree = copy.deepcopy(self.documents[case.file])
        case.change(tree)
        try:
            return self.text(case.file, tree)
        except (AttributeError, TypeError, ValueError):
            return None

    def text(self, file: str, tree: Any) -> str:
        """A document with the name of the canary in its code."""
        text = json.dumps(tree) if file == GRAPH else toml_text({(): tree}).removeprefix("[]")
        return text.replace("CANARY", str(self.canary))

    def judged(self, folder: Path) -> str:
        """Load the graph, and do all with it that would run what is in it."""
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            problem = loading_problem(folder) or ""
        if self.canary.exists():
            return "the code in it was run"
        inside = {path.name for path in self.outer.iterdir()} - {FOLDER, self.canary.name}
        return f"{sorted(inside)} was written" if inside else problem


def loading_problem(folder: Path) -> str | None:
    """How loading and using a graph fails in another way than with one line about its files."""
    try:
        graph = load_mase_graph(folder)
    except ChopError as error:
        plain = "\n" not in str(error) and str(folder) in str(error)
        return None if plain else f"it is refused with {str(error)!r:.300}"
    except Exception as error:  # noqa: BLE001  # any other is a finding
        return f"loading fails with {type(error).__name__}: {error!s:.300}"
    uses: tuple[Callable[[], Any], ...] = (
        lambda: run_graph(graph, inputs()),
        lambda: report_node_meta_param_analysis_pass(graph, {}),
        lambda: quantize_transform_pass(
            graph, {"by": "type", "default": {"config": {"name": None}}}
        ),
        lambda: run_graph(graph, inputs()),
        lambda: save_mase_graph_interface_pass(graph, {"save_dir": folder / "again"}),
        lambda: load_mase_graph(folder / "again"),
    )
    for number, use in enumerate(uses):
        try:
            use()
        except ChopError:
            continue
        except Exception as error:  # noqa: BLE001  # any other is a finding
            return (
                f"use {number} of what was loaded fails with {type(error).__name__}: {error!s:.300}"
            )
    return None


@functools.cache
def prepared() -> tuple[Fuzz, list[Case]]:
    """The graph of this process and its cases."""
    outer = tempfile.mkdtemp(prefix="chop-harden-")
    atexit.register(shutil.rmtree, outer, ignore_errors=True)
    fuzz = Fuzz(Path(outer))
    return fuzz, list(cases(fuzz.documents))


def prepare() -> None:
    """Save the graph, once for all children."""
    prepared()


def kind_of(number: int) -> str:
    """What a case is called in the table."""
    return WHAT


def judge(number: int) -> Verdict:
    """Try one case."""
    fuzz, found = prepared()
    problem = fuzz.attempt(found[number])
    again = f"{found[number].file}: {found[number].name}: {problem}"
    return Verdict(number, WHAT, "unharmed", problem and again)


def row(scale: float) -> Row:
    """The line of the table; each case in a process that may take little memory."""
    total = len(prepared()[1])
    numbers = range(0, total, max(1, round(total / share(total, scale))))
    verdicts = list(run_all("harden.security_graph", numbers))
    failures = tuple(
        f"{each.problem}; python -m harden.security_graph {each.number}"
        for each in verdicts
        if each.problem
    )
    return Row("security", WHAT, len(verdicts), len(failures), failures)


def show(number: int) -> None:
    """Try one case again."""
    print(judge(number).problem or "as it must be")


if __name__ == "__main__":
    show(int(sys.argv[1]))
