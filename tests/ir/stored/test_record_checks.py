"""What may come out of a file: the lists, and the door that holds them."""

import inspect
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from saved_zoo import ZOO, graph_of, in_earlier_form
from torch import Tensor, nn

from chop.errors import CheckpointError, GraphError
from chop.ir.graph.mase_graph import MaseGraph, MaseTracer
from chop.ir.stored.layers import build_float, describe_layer, known_classes
from chop.ir.stored.record_checks import dotted_path, identifier
from chop.ir.stored.targets import (
    COMPUTES,
    LAYERS,
    OF_ATEN,
    computes,
    function_by_name,
    function_name,
    functions_by_name,
    is_method,
    is_operator,
    keywords,
)
from chop.ops.op import MaseType, Op, takes
from chop.ops.table import OPS
from chop.passes.graph import (
    load_mase_graph,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
)

TO_FLOAT = {"by": "type", "default": {"config": {"name": None}}}
RULE = {"config": {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}}
Record = dict[str, Any]


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved graph in which functions and methods are quantised."""
    graph = graph_of(*ZOO["functional"]())
    rules = dict.fromkeys(("softmax", "add", "sub", "mul", "clamp"), RULE)
    quantize_transform_pass(graph, {"by": "type", **rules})
    folder = tmp_path_factory.mktemp("door") / "saved"
    save_mase_graph_interface_pass(graph, folder)
    return in_earlier_form(folder)


@pytest.fixture
def folder(quantised: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(quantised, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[Record], object]) -> None:
    path = folder / "graph.json"
    record = json.loads(path.read_text())
    del record["checksum"], record["digests"]
    change(record)
    path.write_text(json.dumps(record))


def quantised_node(record: Record, op: str = "call_function") -> Record:
    return next(n for n in record["nodes"] if n.get("float_form", [None])[0] == op)


FORMS = {
    "placeholder": ["placeholder", "y=(CODE, 0)[1], z", ["config"], {}],
    "placeholder, plainly": ["placeholder", "y", ["config"], {}],
    "output": ["output", "output", ["config"], {}],
    "get_attr": ["get_attr", "weight + CODE", ["config"], {}],
    "call_module": ["call_module", "weight or CODE", ["config"], {}],
    "call_method": ["call_method", "add or CODE", ["config"], {}],
    "another method": ["call_method", "relu", ["config"], {}],
    "a function of Python": ["call_function", "builtins.eval", ["config"], {}],
    "another function": ["call_function", "torch.relu", ["config"], {}],
    "a quantised one": ["call_function", "chop.quantized.relu_integer", [], {}],
    "no operator": ["call_function", "aten.save.default", ["config"], {}],
    "a keyword": ["call_function", "operator.add", ["config"], {"a=CODE, b": 1}],
    "its own keyword": ["call_function", "operator.add", ["config"], {"key": 1}],
    "a private keyword": ["call_function", "torch.add", ["config"], {"_b": 1}],
    "an added keyword": ["call_function", "operator.add", ["config=CODE"], {}],
    "a node": ["call_function", "operator.add", ["config"], {"_a": {"$node": "x"}}],
    "too short": ["call_function", "operator.add"],
}


@pytest.mark.parametrize("name", FORMS)
def test_what_a_quantised_function_was_is_checked(name: str, folder: Path) -> None:
    canary = folder / "canary"
    form = json.loads(json.dumps(FORMS[name]).replace("CODE", f"open('{canary}', 'w')"))
    edit(folder, lambda record: quantised_node(record).update(float_form=form))
    with pytest.raises(CheckpointError, match=r"graph\.json: nodes\.\d+") as caught:
        quantize_transform_pass(load_mase_graph(folder), TO_FLOAT)
    assert "\n" not in str(caught.value)
    assert not canary.exists()


def test_a_float_form_that_is_as_it_was_is_taken(folder: Path) -> None:
    edit(folder, lambda record: None)
    graph = load_mase_graph(folder)
    quantize_transform_pass(graph, TO_FLOAT)
    assert not [node for node in graph.nodes if "float_form" in node.meta]


MORE_HARMS: dict[str, Callable[[Record], object]] = {
    "float form of a float node": lambda r: r["nodes"][0].update(
        float_form=["call_method", "relu", [], {}]
    ),
    "float records": lambda r: quantised_node(r).update(float_records={"args": {"a": "b"}}),
    "float records of other sides": lambda r: quantised_node(r).update(float_records={"x": {}}),
    "configuration of a function": lambda r: quantised_node(r)["kwargs"]["config"].update(x=1),
    "no configuration": lambda r: quantised_node(r)["kwargs"].pop("config"),
    "width of a function": lambda r: quantised_node(r)["kwargs"]["config"].update(
        data_in_width=10**9
    ),
    "unknown keyword": lambda r: quantised_node(r)["kwargs"].update(out={"$node": "x"}),
    "too few operands of an operator": lambda r: quantised_node(r)["args"].pop(),
    "too many operands of an operator": lambda r: quantised_node(r)["args"].append(1),
    "argument self": lambda r: r["nodes"][0].update(target="self"),
    "two arguments of one name": lambda r: r["nodes"].insert(1, {**r["nodes"][0], "name": "z"}),
    "three stars": lambda r: r["nodes"][0].update(target="***x"),
    "default that is a node": lambda r: r["nodes"][0].update(args=[{"$node": "x"}]),
    "two outputs": lambda r: r["nodes"].insert(-1, {**r["nodes"][-1], "name": "other"}),
    "no output": lambda r: r["nodes"].pop(),
    "output of two values": lambda r: r["nodes"][-1].update(args=[1, 2]),
    "method on nothing": lambda r: next(
        n for n in r["nodes"] if n["op"] == "call_method"
    ).update(args=[5]),
    "cf_args": lambda r: r.update(cf_args={"a b": 1}),
    "cf_args that are no table": lambda r: r.update(cf_args=[1]),
    "tied to an attribute": lambda r: r.update(tied={"__class__": "weight"}),
    "tied in a module": lambda r: r.update(tied={"x.__dict__": "weight"}),
    "a wide underscore": lambda r: r["nodes"][1].update(name="\uff3f\uff3fclass\uff3f\uff3f"),
    "a long name": lambda r: r["nodes"][1].update(name="a" * 10_000),
    "depth": lambda r: r["nodes"][-1].update(args=[json.loads("[" * 100 + "]" * 100)]),
    "a slice of nothing": lambda r: r["nodes"][-1].update(args=[{"$slice": []}]),
    "a table of two kinds": lambda r: r["nodes"][-1].update(args=[{"$tuple": [], "a": 1}]),
    "a large number": lambda r: r["nodes"][-1].update(args=[10**30]),
    "a nameless device": lambda r: r["nodes"][-1].update(args=[{"$device": "disk"}]),
}  # fmt: skip


@pytest.mark.parametrize("harm", MORE_HARMS)
def test_other_fields_are_checked(harm: str, folder: Path) -> None:
    edit(folder, MORE_HARMS[harm])
    with pytest.raises(CheckpointError, match=r"graph\.json: ") as caught:
        load_mase_graph(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[graph.common]\nargs = 5\n[graph.software]\n[graph.hardware]\n[nodes]",
        "a" + ".a" * 100_000 + " = 1",
        '"\\""' + '."\\""' * 100_000 + " = 1",
        "a = 1979-05-27",
    ],
    ids=["types", "deep key", "deep key in quotes", "date"],
)
def test_metadata_is_checked(text: str, folder: Path) -> None:
    edit(folder, lambda record: None)
    (folder / "node_meta_param.toml").write_text(text)
    with pytest.raises(CheckpointError, match=r"node_meta_param\.toml: not metadata"):
        load_mase_graph(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('mase_op = "add"', "mase_op = 5"),
        ('mase_op = "add"', ""),
        ("args.data_in_0.shape = [", 'args.data_in_0.shape = "x"\nb = ['),
        ("[nodes.add.software]", "[nodes.add.software]\nargs = 5"),
    ],
)
def test_metadata_of_nodes_is_checked(old: str, new: str, folder: Path) -> None:
    edit(folder, lambda record: None)
    file = folder / "node_meta_param.toml"
    head, mark, tail = file.read_text().partition("[nodes.add.common]")
    assert old in tail
    tail = tail.replace(old, new, 1)
    if "software" in new:
        tail = "\n".join(line for line in tail.split("\n") if not line.startswith("args.data_in"))
    file.write_text(head + mark + tail)
    with pytest.raises(CheckpointError, match=r"node_meta_param\.toml: not metadata"):
        load_mase_graph(folder)


def operators() -> Iterator[torch._ops.OpOverload]:
    """Every operator of ATen that a graph may call."""
    for name in sorted(COMPUTES | OF_ATEN):
        for spelt in (name, f"{name}_"):
            packet = getattr(torch.ops.aten, spelt, None)
            overloads = packet.overloads() if packet is not None else ()
            yield from (o for n in overloads if is_operator(o := getattr(packet, n)))


# Words that operators take: of their modes, of a message of an assertion, of Einstein's sums.
WORDS = {"approximate", "assert_msg", "equation", "indexing", "interpolation", "mode", "pad_mode",
         "padding", "reduce", "rounding_mode", "side"}  # fmt: skip
DATA = {"Tensor", "int", "float", "bool", "number", "str", "Device", "Generator"}
REACHING_OUT = {
    "file", "save", "load", "print", "storage", "ptr", "blob", "frombuffer", "numpy", "share",
    "set", "resize", "stream", "pin", "cuda", "cudnn", "miopen", "mkldnn", "fbgemm", "xla", "mps",
    "hook", "apply", "map", "open", "exec", "eval", "import", "system", "warn", "backward",
    "pickle", "class", "globals", "methodcaller", "attrgetter", "itemgetter", "call", "hub",
    "compile", "script", "seed", "memory", "process", "device", "path",
}  # fmt: skip


def test_operators_take_data_and_known_words_only() -> None:
    found = list(operators())
    assert len(found) > 900
    for overload in found:
        schema = overload._schema
        assert not any(argument.is_out for argument in schema.arguments), schema
        for argument in schema.arguments:
            kind = str(argument.type)
            plain = kind.replace("Optional[", "").replace("List[", "").rstrip("]")
            assert plain in DATA, f"{schema}"
            assert plain != "str" or argument.name in WORDS, f"{schema}"


def admitted() -> list[str]:
    methods = [name for name in dir(torch.Tensor) if is_method(name)]
    return [*functions_by_name(), *methods, *(str(each) for each in operators())]


def test_nothing_that_reaches_out_is_admitted() -> None:
    names = admitted()
    assert len(names) > 1500
    for name in names:
        last = name.split(".")[1] if name.startswith("aten.") else name.rpartition(".")[2]
        assert last == "get_device" or not REACHING_OUT & {*last.split("_")}, name
        assert not last.startswith("_") or last in OF_ATEN | {"_assert", "_threshold"} | DUNDERS


DUNDERS = {name for name in COMPUTES if name.startswith("__")}


def test_functions_in_python_neither_open_nor_print() -> None:
    forbidden = {"open", "print", "exec", "eval", "system", "load", "save", "__import__", "Popen"}
    for name, function in functions_by_name().items():
        code = getattr(function, "__code__", None)
        if code is not None:
            assert not forbidden & {*code.co_names}, name


@pytest.mark.parametrize(
    "name",
    [
        "aten.save.default", "aten.from_file.default", "aten.warn.default", "aten.set_.default",
        "aten.add.out", "aten.add.str", "aten.split.str", "aten.format.default", "aten.len.str",
        "aten.record_stream.default", "aten.resize_.default", "aten._print.default",
        "aten.__class__.mro", "aten.add.__class__", "aten.manual_seed.default",
        "torch.from_file", "torch.save", "torch._print", "torch._from_blob", "torch.from_numpy",
        "torch.frombuffer", "torch.set_num_threads", "torch.manual_seed", "torch.compile",
        "torch.nn.functional.triplet_margin_with_distance_loss", "torch.nn.functional.warnings",
        "torch.nn.functional.handle_torch_function", "operator.call", "operator.itemgetter",
        "builtins.print", "builtins.setattr", "builtins.type", "math.factorial", "os.system",
        "chop.quantized.linear_", "chop.ops.relu.relu",
    ],
)  # fmt: skip
def test_functions_not_on_the_list_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a function|no quantised function"):
        function_by_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "save", "from_file", "storage", "untyped_storage", "share_memory_", "set_", "data_ptr",
        "record_stream", "pin_memory", "cuda", "resize_", "_print", "backward", "register_hook",
        "__class__", "__reduce_ex__", "__init__", "requires_grad", "data", "grad", "T", "real",
        "tolist", "numpy", "apply_", "map_", "module_load", "_make_subclass", "new", "__dict__",
    ],
)  # fmt: skip
def test_methods_not_on_the_list_are_refused(name: str) -> None:
    assert not is_method(name)


def test_every_name_on_the_list_is_one_of_torch() -> None:
    places = (torch, F, torch.Tensor, torch.ops.aten)
    for name in COMPUTES | OF_ATEN:
        assert any(hasattr(place, spelt) for place in places for spelt in (name, f"{name}_")), name
        assert not name.endswith("_") or name.startswith("__") or name == "requires_grad_"
    assert computes("add_")
    assert not computes("add__")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("torch.sum", {"input", "dim", "axis", "keepdim", "dtype"}),
        ("torch.zeros", {"size", "dtype", "device", "requires_grad"}),
        ("torch.tensor", {"data", "dtype", "device"}),
        ("torch.nn.functional.max_pool2d", {"kernel_size", "stride", "padding", "return_indices"}),
        ("torch.nn.functional.softmax", {"input", "dim", "_stacklevel", "dtype"}),
        ("torch.nn.functional.scaled_dot_product_attention", {"query", "is_causal", "scale"}),
        ("torch.nn.functional.interpolate", {"size", "scale_factor", "mode", "antialias"}),
        ("chop.quantized.softmax_integer", {"input", "dim", "config", "inplace"}),
        ("aten.add.Tensor", {"other", "alpha"}),
        ("builtins.max", {"default"}),
        ("math.isclose", {"rel_tol"}),
    ],
)
def test_keywords_of_functions_are_known(function: str, expected: set[str]) -> None:
    known = keywords("call_function", function)
    assert expected <= known
    assert not {"out", "generator", "pin_memory", "self", "kwargs", "args"} & known
    assert "key" not in known or "query" in known  # the function that sorts by it, not of attention


def test_keywords_that_torch_names_are_known() -> None:
    """Those of torch's own list of functions that can be overridden, but for its misspellings."""
    overridden = torch.overrides.get_testing_overrides()
    checked = 0
    misspelt = 0
    for function, stand_in in overridden.items():
        name = function_name(function)
        if name is None or not name.startswith("torch."):
            continue
        parameters = inspect.signature(stand_in).parameters.values()
        names = {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD} - {"out", "self"}
        misspelt += not names <= keywords("call_function", name)
        checked += 1
    assert checked > 400
    assert misspelt < checked / 10


EXAMPLES: dict[str, tuple[Any, ...]] = {
    "Conv1d": (2, 4, 3), "Conv2d": (2, 4, 3), "Conv3d": (2, 4, 3), "ConvTranspose1d": (2, 4, 3),
    "ConvTranspose2d": (2, 4, 3), "ConvTranspose3d": (2, 4, 3), "Bilinear": (2, 3, 4),
    "MultiheadAttention": (8, 2), "GroupNorm": (2, 4), "Fold": ((4, 4), (2, 2)),
    "FractionalMaxPool2d": (2, (3, 3)), "FractionalMaxPool3d": (2, (3, 3, 3)),
    "Unflatten": (1, (2, 2)), "Upsample": (None, 2), "LPPool1d": (2, 3), "LPPool2d": (2, 3),
    "LPPool3d": (2, 3), "Threshold": (0.5, 1.0), "RNN": (4, 3), "GRU": (4, 3), "LSTM": (4, 3, 2),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_every_layer_on_the_list_comes_back(kind: str) -> None:
    cls = known_classes()[kind]
    required = [
        p
        for p in list(inspect.signature(cls.__init__).parameters.values())[1:]
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    layer = cls(*EXAMPLES.get(kind, (4,) * len(required)))
    record = describe_layer("layer", layer)
    built = build_float(record)
    assert type(built) is cls
    assert repr(built) == repr(layer)
    assert all(tensor.is_meta for tensor in built.state_dict().values())


@pytest.mark.parametrize("text", ["a", "größe", "_x", "x_1", "input_1"])
def test_names_are_names(text: str) -> None:
    assert identifier(text) == text


@pytest.mark.parametrize(
    "text", ["", "a b", "a.b", "1a", "class", "__class__", "a\n", "x=1", "\ufb01", "a" * 2000]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        identifier(text)


@pytest.mark.parametrize(
    "text",
    ['a"b', "a\\b", "a'b", "a\nb", "a..b", "", "a.", "class", "a.None", "__dict__", "a.__class__",
     "graph", "forward", "a.forward", "a._modules", "a:b", "\ufb01", "a." * 100 + "a"],
)  # fmt: skip
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name|attribute of every"):
        dotted_path(text)


class Opening(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return noted(x, "mine.txt")


def noted(x: Tensor, file: str) -> Tensor:
    """A function of the user's own that could open a file."""
    return x * len(file)


def test_texts_for_functions_of_the_users_own_are_the_users(tmp_path: Path) -> None:
    tracer = MaseTracer(custom_leaf_functions=(noted,))
    graph = MaseGraph(Opening(), tracer=tracer)
    save_mase_graph_interface_pass(graph, tmp_path / "a")
    load_mase_graph(tmp_path / "a", graph)
    file = tmp_path / "a" / "graph.json"
    record = json.loads(file.read_text())
    del record["checksum"]
    file.write_text(json.dumps(record).replace("mine.txt", "/etc/passwd"))
    with pytest.raises(CheckpointError, match="gives '/etc/passwd' to a function of your own"):
        load_mase_graph(tmp_path / "a", graph)


def doubled(x: Tensor) -> Tensor:
    """The function of a row that a user adds."""
    return x * 2


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return doubled(x)


def test_functions_of_rows_that_users_add_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Op(name="doubled", mase_type=MaseType.BUILTIN_FUNC, description="Twice",
             functions=(doubled,), arguments=takes("x:data_in"))  # fmt: skip
    monkeypatch.setattr(OPS, "_entries", {**OPS, "doubled": row})
    tracer = MaseTracer(custom_leaf_functions=(doubled,))
    graph = graph_of(Doubling(), {"x": torch.randn(3)}, tracer=tracer)
    quantize_transform_pass(graph, {"by": "type", "doubled": RULE})
    save_mase_graph_interface_pass(graph, tmp_path)
    loaded = load_mase_graph(tmp_path)
    quantize_transform_pass(loaded, TO_FLOAT)
    assert [n.target for n in loaded.nodes if n.op == "call_function"] == [doubled]


def test_a_layer_with_layers_inside_comes_from_the_graph_given(tmp_path: Path) -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 2))
    whole = MaseTracer(custom_leaf_modules=(nn.TransformerEncoderLayer,))
    graph = MaseGraph(model.eval(), tracer=whole)
    save_mase_graph_interface_pass(graph, tmp_path)
    x = torch.randn(2, 3, 8)
    assert torch.equal(load_mase_graph(tmp_path, graph).model(x), graph.model(x))
    with pytest.raises(CheckpointError, match="load into a graph that has it"):
        load_mase_graph(tmp_path)


class Counting(nn.Module):
    """Follows the shape of its input, which only torch.export can trace."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.GroupNorm(2, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.gelu(self.norm(self.conv(x))), 2).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(y, y, self.rnn(y)[0])
        for step in range(len(x)):
            y = torch.where(y > step, y, y * 0.5).to(torch.float64) + torch.zeros(1)
        return F.log_softmax(y.mean(1).clamp(min=0), dim=-1)


@pytest.mark.filterwarnings("ignore")
def test_graphs_of_torch_export_come_back(tmp_path: Path) -> None:
    inputs = {"x": torch.randn(2, 3, 6, 6)}
    graph = MaseGraph(Counting().eval(), example_inputs=inputs)
    save_mase_graph_interface_pass(graph, tmp_path)
    loaded = load_mase_graph(tmp_path)
    assert loaded.model.code == graph.model.code
    assert torch.equal(loaded.model(**inputs), graph.model(**inputs))


def test_what_cannot_come_back_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention.out_proj(self.attention(x, x, x)[0])

    graph = MaseGraph(Inside(), tracer=MaseTracer(custom_leaf_modules=(nn.MultiheadAttention,)))
    with pytest.raises(GraphError, match="layer 'attention.out_proj' is inside layer 'attention'"):
        save_mase_graph_interface_pass(graph, tmp_path / "out")
    assert not (tmp_path / "out").exists()
