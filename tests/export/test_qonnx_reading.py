"""QONNX files become graphs that compute the same; whatever else a file is, it is one line."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lowering_nets import EXAMPLES, example
from torch import nn

from chop.cli import main
from chop.errors import CheckpointError
from chop.export import export
from chop.export.onnx.read.graph import load_qonnx
from chop.export.onnx.write.standard import FILE
from chop.loading.networks import load_graph, load_model
from chop.lowering import Engine, lower
from chop.lowering.engine import different_codes
from chop.models.vision import vgg7
from chop.passes.graph import load_mase_graph_interface_pass, save_mase_graph_interface_pass
from chop.verbs.export.saved import export_graph_file

onnx = pytest.importorskip("onnx", reason="pip install onnx onnxruntime qonnx")
DOMAIN = "qonnx.custom_op.general"


@pytest.mark.parametrize("name", EXAMPLES)
def test_there_and_back(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgg7, "STAGES", (4, 4, 6))
    graph, x = example(name, rows=24)
    file = export(graph, "qonnx", tmp_path / "o", rows=0).folder / FILE
    back = load_graph(file, "qonnx")
    wanted = graph.model(x)
    assert torch.equal(back.model(x), wanted)
    assert torch.equal(Engine(lower(back))(x)[0], wanted.double())


def test_a_graph_of_a_file_is_saved_and_exported_again(tmp_path: Path) -> None:
    graph, x = example("jsc-new")
    file = export(graph, "qonnx", tmp_path / "o", rows=0).folder / FILE
    assert (
        export_graph_file(file, "c", tmp_path / "c", load_type="qonnx", rows=20).verified_rows == 20
    )
    back = load_graph(file, "qonnx")
    save_mase_graph_interface_pass(back, tmp_path / "saved")
    again, _ = load_mase_graph_interface_pass(None, tmp_path / "saved")
    assert torch.equal(again.model(x), graph.model(x))
    assert torch.equal(load_model(file, "qonnx")(x), graph.model(x))


BREVITAS, STATIC = (Path(__file__).parent / name for name in ("brevitas", "static"))


@pytest.mark.parametrize("name", ["mlp", "cnn", "fixed"])
def test_files_that_brevitas_wrote(name: str, tmp_path: Path) -> None:
    stored = np.load(BREVITAS / f"{name}.npz")
    x, wanted = torch.from_numpy(stored["x"]), torch.from_numpy(stored["y"])
    graph = load_graph(BREVITAS / f"{name}.onnx", "qonnx")
    found = graph.model(x)
    # Only where scales are powers of two are sums the same on every processor, to the last bit.
    torch.testing.assert_close(found, wanted, rtol=0, atol=0 if name == "fixed" else 4e-7)
    save_mase_graph_interface_pass(graph, tmp_path / "saved")
    again, _ = load_mase_graph_interface_pass(None, tmp_path / "saved")
    assert torch.equal(again.model(x), found)
    if name == "fixed":
        assert export(graph, "c", tmp_path / "c", rows=20).verified_rows == 20
    else:
        program = lower(graph)
        value = program.values[program.outputs[0]]
        assert torch.equal(graph.model(x), found)
        assert not different_codes(wanted, Engine(program)(x)[0], value).any()
        assert export(graph, "c", tmp_path / "c", rows=20).verified_rows == 20


def test_zero_points_and_channels_of_data(tmp_path: Path) -> None:
    scale = np.array([[0.25, 0.5, 1.0, 2.0]], np.float32)
    (tmp_path / "m.onnx").write_bytes(quant(scale=scale).SerializeToString())
    graph, _ = load_qonnx(tmp_path / "m.onnx")
    assert graph.model(torch.full((2, 4), 3.1)).tolist() == [[1.75, 3.0, 3.0, 4.0]] * 2
    (tmp_path / "m.onnx").write_bytes(quant(zero=3.0, scale=0.3).SerializeToString())
    graph, _ = load_qonnx(tmp_path / "m.onnx")
    found = graph.model(torch.tensor([[-9.0, 9.0, 0.0, 0.4]]))
    assert torch.equal(found, torch.tensor([[-11.0, 4.0, 0.0, 1.0]]) * np.float32(0.3))


@pytest.mark.parametrize("name", ["signed", "unsigned"])
def test_files_of_static_quantisation_are_what_onnxruntime_computes(
    name: str, tmp_path: Path
) -> None:
    stored = np.load(STATIC / f"{name}.npz")
    x, wanted = torch.from_numpy(stored["x"]), stored["y"]
    graph = load_graph(STATIC / f"{name}.onnx")
    program = lower(graph)
    unit = np.diff(np.unique(wanted)).min()
    for found in (graph.model(x).detach(), Engine(program)(x)[0]):
        assert np.abs(found.numpy() - wanted).max() < unit / 2
    assert export(graph, "c", tmp_path / "c", rows=20).verified_rows == 20


def test_bipolar_numbers(tmp_path: Path) -> None:
    model = one_node("BipolarQuant", np.float32(0.3), domain=DOMAIN)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    graph, _ = load_qonnx(tmp_path / "m.onnx")
    found = graph.model(torch.tensor([[-2.0, 0.0, 0.1, -0.1]]))
    assert torch.equal(found, torch.tensor([[-1.0, 1.0, 1.0, -1.0]]) * np.float32(0.3))


def tensor(name: str, array: Any) -> Any:
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def one_node(
    kind: str = "Relu", *constants: Any, domain: str = "", shape: Any = (1, 4), **attributes: Any
) -> Any:
    """A file with one node, whose first operand is the input."""
    names = [f"c{place}" for place in range(len(constants))]
    node = onnx.helper.make_node(kind, ["x", *names], ["y"], domain=domain, **attributes)
    edges = [onnx.helper.make_tensor_value_info(name, 1, shape) for name in ("x", "y")]
    stored = [tensor(*pair) for pair in zip(names, constants, strict=True)]
    graph = onnx.helper.make_graph([node], "g", edges[:1], edges[1:], stored)
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(DOMAIN, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def quant(scale: Any = 0.25, zero: Any = 0.0, width: Any = 4.0, **attributes: Any) -> Any:
    given = {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"} | attributes
    constants = [np.float32(each) for each in (scale, zero, width)]
    return one_node("Quant", *constants, domain=DOMAIN, **given)


def external(model: Any) -> Any:
    """A constant that is said to lie in a file of the machine."""
    stored = model.graph.initializer[0]
    stored.data_location = onnx.TensorProto.EXTERNAL
    stored.external_data.add(key="location", value="/etc/passwd")
    return model


def short(model: Any) -> Any:
    model.graph.initializer[0].dims[:] = [2**40, 2**20]
    return model


def unknown(model: Any) -> Any:
    model.graph.node.append(onnx.helper.make_node("If", ["y"], ["z"]))
    model.graph.node.append(onnx.helper.make_node("Evil", ["z"], ["w"], domain="own"))
    return model


def then(model: Any, kind: str, *constants: float) -> Any:
    """The file with another node after its last."""
    names = [f"d{place}" for place in range(len(constants))]
    model.graph.node.append(onnx.helper.make_node(kind, ["y", *names], ["z"]))
    model.graph.initializer.extend(
        tensor(n, np.float32(c)) for n, c in zip(names, constants, strict=True)
    )
    model.graph.output[0].name = "z"
    return model


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "operators": (lambda: unknown(one_node()), "operators that are not known here: If, own.Evil"),
    "external": (lambda: external(quant()), "'c0' in another file, which is not read"),
    "short": (lambda: short(quant()), "'c0' is damaged: it holds fewer numbers"),
    "zero point": (lambda: quant(zero=1.5), "has a zero point that is not one whole number"),
    "bits": (lambda: quant(width=2.5), "one whole number from 2 to 32 is read"),
    "mode": (lambda: quant(rounding_mode="UP"), "rounds 'UP', and only ROUND is read"),
    "scale": (lambda: quant(scale=-1.0), "a scale that is not positive"),
    "scale of zero": (lambda: quant(scale=0.0), "a scale that is not positive"),
    "codes of another scale": (
        lambda: then(one_node("QuantizeLinear", np.float32(0.5)), "DequantizeLinear", 0.25),
        "reads codes of another scale or zero point",
    ),
    "codes that are computed with": (
        lambda: then(one_node("QuantizeLinear", np.float32(0.5)), "Relu"),
        "computes with codes, which only DequantizeLinear reads",
    ),
    "codes as outputs": (
        lambda: one_node("QuantizeLinear", np.float32(0.5)),
        "an output is codes: end it with",
    ),
    "zero points by channel": (
        lambda: one_node("QuantizeLinear", np.ones(4, "f"), np.arange(4, dtype="i1"), axis=1),
        "has zero points that differ between channels",
    ),
    "infinite scale": (lambda: quant(scale=float("inf")), "'c0' holds no plain numbers"),
    "not numbers": (lambda: quant(scale=float("nan")), "'c0' holds no plain numbers"),
    "shape": (lambda: one_node(shape=("n", "m")), "the shape of the input 'x' is not known"),
    "long": (lambda: one_node(shape=("n", 2**40)), "rows of 1,099,511,627,776 elements are too"),
    "longer": (lambda: one_node(shape=("n", 2**20, 2**10)), "at most 67,108,864"),
    "rows": (lambda: one_node("Flatten", axis=0), "flattens rows of the batch together"),
    "batch": (lambda: one_node("Reshape", np.array([4, 1])), "mixes rows of the batch"),
    "pads": (
        lambda: one_node("Pad", np.array([0, 2**40, 0, 0])),
        r"sizes \[0, 1099511627776, 0, 0\] are out of bounds",
    ),
    "table": (lambda: one_node("Gather", np.array([9]), axis=1), "Gather .* cannot be read"),
    "alpha": (lambda: one_node("Gemm", np.ones((4, 2), np.float32), alpha=2.0), "alpha or beta"),
    "product": (lambda: one_node("MatMul", np.ones((5, 2), np.float32)), "MatMul .* cannot be"),
    "empty": (lambda: onnx.ModelProto(), "no ONNX file, or damaged: it holds no network"),
}


def without_operands(model: Any) -> Any:
    del model.graph.node[0].input[:]
    return model


ODD: dict[str, Callable[[str], Any]] = {
    "nothing": lambda kind: without_operands(one_node(kind)),
    "one operand": one_node,
    "many dimensions": lambda kind: one_node(
        kind, *[np.ones(1, np.float32)] * 4, shape=(1, 1, 1, 1, 1, 1)
    ),
    "empty constants": lambda kind: one_node(kind, *[np.ones(0, np.float32)] * 4),
    "matrices": lambda kind: one_node(kind, *[np.ones((3, 3), np.float32)] * 4),
    "zeros": lambda kind: one_node(
        kind, np.zeros((0, 1, 1, 1), np.float32), shape=(1, 1, 2, 2), strides=[0, 0], group=0,
        kernel_shape=[0, 0], axis=9, perm=[5], pads=[1, 0, 0, 1], axes=[9],
    ),
}  # fmt: skip
"""Nodes of any kind with operands and attributes that hardly fit."""


@pytest.mark.parametrize("what", ODD)
def test_operands_that_do_not_fit_are_one_line(what: str, tmp_path: Path) -> None:
    from chop.export.onnx.read.operators import OPERATORS

    file, said = tmp_path / "m.onnx", list[str]()
    for kind in OPERATORS:
        file.write_bytes(ODD[what](kind).SerializeToString())
        try:
            load_qonnx(file)
        except CheckpointError as error:
            said.append(str(error))
    assert len(said) > 5
    assert not any("\n" in line for line in said)


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_one_line(name: str, tmp_path: Path) -> None:
    make, message = BAD[name]
    file = tmp_path / "m.onnx"
    file.write_bytes(make().SerializeToString())
    with pytest.raises(CheckpointError, match=message) as caught:
        load_qonnx(file)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, _ = example("jsc-tiny")
    content = (export(graph, "qonnx", tmp_path / "o", rows=0).folder / FILE).read_bytes()
    file, dice, read = tmp_path / "m.onnx", np.random.default_rng(0), 0
    lines: list[str] = []
    for place in dice.integers(0, len(content), 60):
        hurt = bytearray(content)
        hurt[place] ^= int(dice.integers(1, 256))
        file.write_bytes(hurt[: place + 1] if place % 4 == 0 else hurt)
        try:
            load_qonnx(file)
            read += 1
        except CheckpointError as error:
            lines.append(str(error))
    assert read < 60
    assert not [line for line in lines if "\n" in line]
    file.write_bytes(b"PK\x03\x04 not a network")
    assert main(["export", "--load", str(file), "--load-type", "qonnx", "--to", "c"]) == 2
    assert "no ONNX file, or damaged" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "o"]


def test_names_of_a_file_reach_no_code(tmp_path: Path) -> None:
    model = one_node()
    evil = "x):\n import os; os.abort()\ndef f("
    model.graph.input[0].name = model.graph.node[0].input[0] = evil
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    graph, rows = load_qonnx(tmp_path / "m.onnx")
    assert list(rows) == ["input_0"]
    assert "abort" not in graph.model.code
    assert torch.equal(graph.model(torch.tensor([[-1.0, 2.0, 0.0, 1.0]])).max(), torch.tensor(2.0))


def test_a_narrow_range_is_kept(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(quant(narrow=1).SerializeToString())
    graph, _ = load_qonnx(tmp_path / "m.onnx")
    assert graph.model(torch.tensor([[-9.0, 9.0, 0.125, 0.375]])).tolist() == [
        [-1.75, 1.75, 0.0, 0.5]
    ]


def test_reading_needs_no_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(quant().SerializeToString())
    for name in ("qonnx", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    assert isinstance(load_qonnx(tmp_path / "m.onnx")[0].model, nn.Module)
