from pathlib import Path

import pytest
import torch
from saved_zoo import (
    ZOO,
    assert_equal,
    assert_same_graph,
    graph_of,
    graph_with_own_parts,
    in_earlier_form,
)
from torch import nn

from chop.errors import ChopError, GraphError, OutputError
from chop.ir.graph.mase_graph import MaseGraph
from chop.logger import set_logging_verbosity
from chop.nn.quant_config import required_fields
from chop.numerics import FORMATS, NumberFormat
from chop.passes.graph import (
    load_mase_graph,
    load_mase_graph_interface_pass,
    load_node_meta_param_interface_pass,
    prune_transform_pass,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
    save_node_meta_param_interface_pass,
)
from chop.passes.graph.transforms.pruning.methods import METHODS

VALUES = {"width": 8, "frac_width": 4, "exponent_width": 4, "scale": 0.1}


def config(fmt: str, width: int = 8) -> dict[str, object]:
    roles = ("data_in", "weight", "bias")
    fields = {f: VALUES[f] if f != "width" else width for f in required_fields(FORMATS[fmt])}
    return {"name": fmt} | {f"{r}_{f}": v for r in roles for f, v in fields.items()}


def quantise_all(graph: MaseGraph, fmt: str) -> MaseGraph:
    graph, _ = quantize_transform_pass(graph, {"by": "type", "default": {"config": config(fmt)}})
    return graph


@pytest.mark.parametrize("name", ZOO)
def test_round_trip(name: str, tmp_path: Path) -> None:
    model, inputs = ZOO[name]()
    graph = graph_of(model, inputs)
    save_mase_graph_interface_pass(graph, tmp_path)
    loaded = load_mase_graph(tmp_path)
    assert_same_graph(loaded, graph, inputs)


@pytest.mark.parametrize("fmt", sorted(FORMATS))
@pytest.mark.parametrize("weights", ["float", "codes"])
@pytest.mark.parametrize("name", ["conv", "functional"])
def test_round_trip_quantised(fmt: str, weights: str, name: str, tmp_path: Path) -> None:
    model, inputs = ZOO[name]()
    graph = quantise_all(graph_of(model, inputs), fmt)
    args = {"save_dir": tmp_path, "weights": weights, "add_value": True}
    _, info = save_mase_graph_interface_pass(graph, args)
    loaded = load_mase_graph(tmp_path)
    if weights == "float":
        assert_same_graph(loaded, graph, inputs)
    with torch.no_grad():
        assert_equal(loaded.model(**inputs), graph.model(**inputs))
    if FORMATS[fmt].quantizer is not NumberFormat.quantizer:
        assert not info.get("packed")  # what learns is kept as it is
    elif weights == "codes" and name == "conv":
        assert "head.weight" in info["packed"]
        head, original = loaded.model.get_submodule("head"), graph.model.get_submodule("head")
        assert torch.equal(head.weight, original.get_quantized_weight())
    # What was loaded can go on: back to floating point, and on to another format.
    undo = {"by": "type", "default": {"config": {"name": None}}}
    quantize_transform_pass(loaded, undo)
    assert not any("chop" in type(m).__module__ for m in loaded.model.modules())


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("granularity", ["elementwise", "channel", "2:4"])
@pytest.mark.parametrize("weights", ["float", "codes"])
@pytest.mark.parametrize("fmt", [None, "integer"])
def test_round_trip_pruned(
    method: str, granularity: str, weights: str, fmt: str | None, tmp_path: Path
) -> None:
    model, inputs = ZOO["conv"]()
    graph = graph_of(model, inputs)
    if fmt is not None:
        quantise_all(graph, fmt)
    rule = {"method": method, "granularity": granularity, "sparsity": 0.5}
    args = {"weight": rule, "activation": rule, "input_generator": [inputs]}
    graph, _ = prune_transform_pass(graph, args)
    save_mase_graph_interface_pass(graph, {"save_dir": tmp_path, "weights": weights})
    loaded = load_mase_graph(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded.model(**inputs), graph.model(**inputs))
    masks = {key for key in graph.model.state_dict() if key.endswith("_mask")}
    assert masks
    assert all(
        torch.equal(loaded.model.state_dict()[k], graph.model.state_dict()[k]) for k in masks
    )


def test_flags_come_back(tmp_path: Path) -> None:
    model, inputs = ZOO["conv"]()
    graph = graph_of(model, inputs)
    graph.model.train()
    graph.model.get_submodule("stem.1").eval()
    graph.model.get_submodule("head").bias.requires_grad_(False)
    save_mase_graph_interface_pass(graph, tmp_path)
    loaded = load_mase_graph(tmp_path).model
    assert loaded.training
    assert loaded.get_submodule("stem.0").training
    assert not loaded.get_submodule("stem.1").training
    flags = {name: p.requires_grad for name, p in loaded.named_parameters()}
    assert [name for name, flag in flags.items() if not flag] == ["head.bias"]


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    graph = graph_of(*ZOO["shared"]())
    save_mase_graph_interface_pass(graph, tmp_path)
    loaded = load_mase_graph(tmp_path).model
    assert loaded.fc.weight is loaded.tied.weight


def test_loading_replaces_the_graph_that_is_given(tmp_path: Path) -> None:
    model, inputs = ZOO["conv"]()
    graph = quantise_all(graph_of(model, inputs), "integer")
    save_mase_graph_interface_pass(graph, {"save_dir": str(tmp_path)})
    other = graph_of(*ZOO["sequential"]())
    same, _ = load_mase_graph_interface_pass(other, {"load_dir": str(tmp_path)})
    assert same is other
    assert_same_graph(other, graph, inputs)
    made, _ = load_mase_graph_interface_pass(None, tmp_path / "graph.json")
    assert_same_graph(made, graph, inputs)


def test_parts_of_the_users_own_come_from_the_graph_given(tmp_path: Path) -> None:
    graph = graph_with_own_parts()
    inputs = {"x": torch.randn(3, 4)}
    expected = graph.model(**inputs)
    save_mase_graph_interface_pass(graph, tmp_path)
    fresh = graph_with_own_parts()
    before = fresh.model.block.fc.weight.clone()
    block = fresh.model.block
    loaded = load_mase_graph(tmp_path, fresh)
    assert torch.equal(loaded.model(**inputs), expected)
    assert torch.equal(block.fc.weight, before)
    with pytest.raises(ChopError, match="layer 'block': it is a saved_zoo.OwnBlock, which no file"):
        load_mase_graph(tmp_path)
    with pytest.raises(ChopError, match="layer 'block'"):
        load_mase_graph(tmp_path, graph_of(*ZOO["sequential"]()))


def test_four_bits_are_eight_times_smaller(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))
    inputs = {"input": torch.randn(4, 512)}
    graph = graph_of(model, inputs)
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": config("integer", width=4)}})
    sizes = {}
    for weights in ("float", "codes"):
        folder = tmp_path / weights
        args = {"save_dir": folder, "weights": weights}
        _, info = save_mase_graph_interface_pass(graph, args)
        sizes[weights] = sum(path.stat().st_size for path in folder.iterdir())
        assert info["bytes"] == {path.name: path.stat().st_size for path in folder.iterdir()}
    assert sizes["float"] / sizes["codes"] > 7.5
    loaded = load_mase_graph(tmp_path / "codes")
    with torch.no_grad():
        assert torch.equal(loaded.model(**inputs), graph.model(**inputs))


def test_codes_leave_recorded_values_out_unless_asked(tmp_path: Path) -> None:
    model, inputs = ZOO["conv"]()
    graph = quantise_all(graph_of(model, inputs), "integer")
    _, info = save_mase_graph_interface_pass(
        graph, {"save_dir": tmp_path / "a", "weights": "codes"}
    )
    assert info["values_left_out"] > 0
    assert not (tmp_path / "a" / "node_meta_param.safetensors").exists()
    _, info = save_mase_graph_interface_pass(graph, {"save_dir": tmp_path / "b"})
    assert info["values_left_out"] == 0
    record = next(iter(load_mase_graph(tmp_path / "a").nodes)).meta["mase"]["common"]
    assert "value" not in record["results"]["data_out_0"]
    assert record["results"]["data_out_0"]["torch_dtype"] is torch.float32


def test_folders_are_versioned_or_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_logging_verbosity("info")
    graph = graph_of(*ZOO["sequential"]())
    folder = tmp_path / "transformed_ckpt"
    first = save_mase_graph_interface_pass(graph, folder)[1]["save_dir"]
    second = save_mase_graph_interface_pass(graph, folder)[1]["save_dir"]
    assert (first, second) == (str(folder), f"{folder}-v1")
    assert f"INFO     Saved mase graph to {folder}\n" in capsys.readouterr().out
    before = (folder / "graph.json").stat().st_ino
    save_mase_graph_interface_pass(graph, {"save_dir": folder, "replace": True})
    assert (folder / "graph.json").stat().st_ino != before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["transformed_ckpt", "transformed_ckpt-v1"]


def test_other_files_in_a_folder_are_left_alone(tmp_path: Path) -> None:
    graph = graph_of(*ZOO["sequential"]())
    (tmp_path / "notes.txt").write_text("mine")
    for replace in (False, True):
        args = {"save_dir": tmp_path, "replace": replace}
        assert save_mase_graph_interface_pass(graph, args)[1]["save_dir"] == str(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    load_mase_graph(tmp_path)


def test_a_failed_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(*ZOO["sequential"]())
    save_mase_graph_interface_pass(graph, tmp_path / "out")
    home = "chop.ir.stored.folder"

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"{home}.complete_record", fail)
    with pytest.raises(OutputError, match="No space left"):
        save_mase_graph_interface_pass(graph, {"save_dir": tmp_path / "out", "replace": True})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    load_mase_graph(tmp_path / "out")


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def changed_by_hand() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].note = "mine"
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (hooked(), "layer '0' has hooks"),
        (changed_by_hand(), "layer '0' (Linear) cannot be saved: its attribute 'note'"),
        (nn.Sequential(nn.Linear(3, 3, device="meta")), "0.weight holds no values"),
    ],
    ids=["hooks", "attribute", "meta"],
)
def test_what_cannot_be_saved_is_named(model: nn.Module, message: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError) as caught:
        save_mase_graph_interface_pass(MaseGraph(model), tmp_path / "out")
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_odd_arguments_are_named(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(memory_format=torch.channels_last).numpy()

    with pytest.raises(GraphError, match="node 'numpy' cannot be saved: 'numpy' is not a method"):
        save_mase_graph_interface_pass(MaseGraph(Odd()), tmp_path)


def test_metadata_alone(tmp_path: Path) -> None:
    model, inputs = ZOO["conv"]()
    graph = quantise_all(graph_of(model, inputs), "integer")
    path = tmp_path / "meta.toml"
    _, info = save_node_meta_param_interface_pass(graph, {"save_path": path, "add_value": True})
    assert info == {"path": str(path), "values_left_out": 0}
    other = MaseGraph(model)
    load_node_meta_param_interface_pass(other, path)
    for one, two in zip(other.nodes, graph.nodes, strict=True):
        assert_equal(one.meta["mase"].parameters, two.meta["mase"].parameters)
    _, info = save_node_meta_param_interface_pass(graph, path)
    assert info["values_left_out"] > 0
    assert not path.with_suffix(".safetensors").exists()
    with pytest.raises(ChopError, match="the nodes are not those of the graph"):
        load_node_meta_param_interface_pass(graph_of(*ZOO["sequential"]()), path)


def test_folders_of_earlier_versions_load(tmp_path: Path) -> None:
    model, inputs = ZOO["conv"]()
    graph = quantise_all(graph_of(model, inputs), "integer")
    save_mase_graph_interface_pass(graph, tmp_path / "new")
    save_mase_graph_interface_pass(graph, tmp_path / "old")
    in_earlier_form(tmp_path / "old")
    assert "metadata" not in (tmp_path / "old" / "graph.json").read_text()
    new, old = (load_mase_graph(tmp_path / name) for name in ("new", "old"))
    assert_equal(new.meta["mase"].parameters, old.meta["mase"].parameters)
    for one, two in zip(new.nodes, old.nodes, strict=True):
        assert_equal(one.meta["mase"].parameters, two.meta["mase"].parameters)
    assert torch.equal(new.model(**inputs), old.model(**inputs))


def test_a_graph_without_metadata_is_saved_too(tmp_path: Path) -> None:
    graph = MaseGraph(nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=-1)))
    save_mase_graph_interface_pass(graph, tmp_path)
    x = torch.randn(2, 4)
    assert torch.equal(load_mase_graph(tmp_path).model(x), graph.model(x))
