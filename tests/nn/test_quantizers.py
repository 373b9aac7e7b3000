"""Room for state: quantisers that operations own, from the format to the file."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from learned_format import NAME, LearnedWidth, WidthQuantizer
from torch import Tensor, nn

from chop.actions import train
from chop.dataset import MaseDataModule
from chop.errors import CheckpointError, ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.stored.folder import seal
from chop.lowering import LoweringError, lower
from chop.models import get_model
from chop.nn.quant_config import QuantConfig, parse_quant_config
from chop.nn.quantized import QuantizedCall, QuantizedModule, quantize_module
from chop.nn.quantizers import Quantizer, loss_terms
from chop.numerics import FORMATS, Integer, NumberFormat, Operand
from chop.ops.table import OPS
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    calculate_avg_bits_mg_analysis_pass,
    init_metadata_analysis_pass,
    load_mase_graph_interface_pass,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
)

LAYER = "seq_blocks.2"
X = torch.linspace(-3, 3, 64).view(4, 16)
NOTHING = {"by": "type", "default": {"config": {"name": None}}}


@pytest.fixture(autouse=True)
def _a_users_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """The format is registered as a user's code does it, for one test."""
    monkeypatch.setattr(FORMATS, "_entries", dict(FORMATS))
    monkeypatch.setattr(FORMATS, "_owners", dict(FORMATS._owners))
    FORMATS.add(NAME, LearnedWidth)


def learned(name: str = NAME, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "data_in_width": 8,
        "data_in_frac_width": 4,
        "weight_width": 6,
        "weight_frac_width": 5,
        **more,
    }


def prepared(model: nn.Module, **inputs: Tensor) -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(MaseGraph(model))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    graph, _ = add_software_metadata_analysis_pass(graph)
    return graph


def quantised(graph: MaseGraph, **rules: dict[str, Any]) -> MaseGraph:
    rules = {key: {"config": config} for key, config in rules.items()}
    return quantize_transform_pass(graph, {"by": "type", **rules})[0]


@pytest.fixture(name="graph")
def _graph() -> MaseGraph:
    """jsc-tiny, whose linear layer learns its widths."""
    torch.manual_seed(0)
    data = MaseDataModule("jsc-sim", batch_size=64)
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    return quantised(prepared(model.eval(), x=X), linear=learned())


def layer_of(graph: MaseGraph) -> QuantizedModule:
    layer = graph.model.get_submodule(LAYER)
    assert isinstance(layer, QuantizedModule)
    return layer


def set_widths(module: nn.Module, *widths: float) -> None:
    """Widths for the quantisers of a model, as training would leave them."""
    found = [each for each in module.modules() if isinstance(each, WidthQuantizer)]
    for quantizer, width in zip(found, widths, strict=True):
        quantizer.width.data.fill_(width)


def test_an_operation_owns_its_quantisers(graph: MaseGraph) -> None:
    layer = layer_of(graph)
    assert list(layer.quantizers) == ["data_in", "weight", "bias"]
    assert layer.w_quantizer is layer.quantizers["weight"]
    names = [name for name, _ in graph.model.named_parameters() if "quantizers" in name]
    assert names == [f"{LAYER}.quantizers.{role}.width" for role in ("data_in", "weight", "bias")]
    assert f"{LAYER}.quantizers.weight.calls" in graph.model.state_dict()
    assert repr(layer).startswith(
        "LinearLearnedWidth(\n  in_features=16, out_features=5, bias=True;"
    )
    graph.model(X).sum().backward()
    assert layer.quantizers["weight"].width.grad is not None


def test_what_has_no_state_looks_as_before() -> None:
    op = OPS["linear"]
    quant = parse_quant_config(op, learned("integer"), "test")
    layer = quantize_module(nn.Linear(16, 5), op, quant)
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert not hasattr(layer, "quantizers")
    assert layer._formats is quant.operands
    assert "\n" not in repr(layer)


def test_only_operands_that_are_there_have_one() -> None:
    op = OPS["linear"]
    config = learned(data_out_width=8, data_out_frac_width=4)
    layer = quantize_module(nn.Linear(16, 5, bias=False), op, parse_quant_config(op, config, "t"))
    assert list(layer.quantizers) == ["data_in", "weight"]
    out = layer(X)
    assert torch.equal(out, Integer(width=8, frac_width=4)(out))  # which the format rounds itself


@torch.no_grad()
def test_frozen_it_gives_the_same_bits(graph: MaseGraph) -> None:
    set_widths(graph.model, 6.8, 4.2, 3.4)
    expected, layer = graph.model(X), layer_of(graph)
    assert layer.frozen["weight"] == Integer(width=4, frac_width=3)
    assert layer.frozen["data_in"] == Integer(width=7, frac_width=3)
    plain = QuantConfig("integer", layer.frozen).as_dict()
    graph = quantised(graph, linear=plain)
    assert type(layer_of(graph)).__name__ == "LinearInteger"
    assert not [name for name in graph.model.state_dict() if "quantizers" in name]
    assert torch.equal(graph.model(X), expected)


@torch.no_grad()
def test_no_change_of_the_state_goes_unnoticed(graph: MaseGraph) -> None:
    before = graph.model(X)
    assert torch.equal(graph.model(X), before)
    layer_of(graph).quantizers["weight"].width.data.fill_(2)
    assert not torch.equal(graph.model(X), before)


@torch.no_grad()
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_have_a_state_of_their_own(copied: Any, graph: MaseGraph) -> None:
    layer = layer_of(graph)
    set_widths(layer, 7, 4, 3)
    twin = copied(layer)
    assert torch.equal(twin(X), layer(X))
    assert twin.w_quantizer is twin.quantizers["weight"] is not layer.w_quantizer
    set_widths(twin, 7, 2, 2)
    assert not torch.equal(twin(X), layer(X))
    whole = copy.deepcopy(graph)
    assert torch.equal(whole.model(X), graph.model(X))


@torch.no_grad()
def test_it_goes_along_to_another_type_and_into_state_dicts(graph: MaseGraph) -> None:
    set_widths(graph.model, 7, 4, 3)
    expected = graph.model(X)
    other = copy.deepcopy(graph.model)
    set_widths(other, 2, 2, 2)
    other.load_state_dict(graph.model.state_dict())
    assert torch.equal(other(X), expected)
    other.double()
    assert {p.dtype for p in other.parameters()} == {torch.float64}
    assert other(X.double()).dtype is torch.float64


@torch.no_grad()
def test_the_state_stays_while_the_format_is_the_same(graph: MaseGraph) -> None:
    set_widths(graph.model, 7, 4, 3)
    expected, layer = graph.model(X), layer_of(graph)
    layer.bypass = True
    layer.bypass = False
    assert torch.equal(graph.model(X), expected)
    graph = quantised(graph, linear=learned())
    assert torch.equal(graph.model(X), expected)
    graph = quantised(graph, linear=learned(weight_width=5))
    again = layer_of(graph)
    assert float(again.quantizers["weight"].width) == 5
    assert float(again.quantizers["data_in"].width) == 7
    graph, _ = quantize_transform_pass(graph, NOTHING)
    assert type(graph.model.get_submodule(LAYER)) is nn.Linear
    assert not [name for name in graph.model.state_dict() if "quantizers" in name]


@torch.no_grad()
def test_a_saved_graph_has_what_was_learned(graph: MaseGraph, tmp_path: Path) -> None:
    set_widths(graph.model, 7, 4, 3)
    layer_of(graph).quantizers["bias"].width.requires_grad_(False)
    expected = graph.model(X)
    for weights in ("float", "codes"):
        where = tmp_path / weights
        save_mase_graph_interface_pass(graph, {"save_dir": where, "weights": weights})
        loaded, _ = load_mase_graph_interface_pass(None, where)
        assert torch.equal(loaded.model(X), expected)
        trained = {name: p.requires_grad for name, p in loaded.model.named_parameters()}
        assert trained == {name: p.requires_grad for name, p in graph.model.named_parameters()}
        assert trained[f"{LAYER}.quantizers.bias.width"] is False


@torch.no_grad()
def total_term(graph: MaseGraph) -> float:
    return float(sum(term() for term in loss_terms(graph.model)))


def test_training_adds_the_loss_term_and_narrows(tmp_path: Path) -> None:
    data = MaseDataModule("jsc-sim", batch_size=256)
    widths = {}
    for strength in (0.0, 0.5):
        torch.manual_seed(0)
        model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
        stated = {f"{role}_strength": strength for role in ("data_in", "weight", "bias")}
        graph = quantised(prepared(model, x=X), linear=learned(**stated, bias_width=6))
        before = total_term(graph)
        train(graph.model, data_module=data, learning_rate=0.01, save_path=tmp_path / f"{strength}",
              plt_trainer_args={"max_epochs": 1, "accelerator": "cpu"})  # fmt: skip
        found = layer_of(graph).quantizers_by_role
        widths[strength] = {role: each.bits().item() for role, each in found.items()}
        assert before == 0 or total_term(graph) < before - 0.3
    assert widths[0.0]["weight"] != 6  # the loss itself has something to say
    assert all(widths[0.5][role] < widths[0.0][role] for role in widths[0.0])


def test_bits_are_counted_as_learned(graph: MaseGraph) -> None:
    widths = []
    for width in (6.0, 3.0):
        set_widths(graph.model, 8, width, width)
        _, info = calculate_avg_bits_mg_analysis_pass(graph)
        widths.append(info["w_avg_bit"])
    weights, others = 16 * 5 + 5, 2 * 16
    assert widths == [(n * weights + 32 * others) / (weights + others) for n in (6, 3)]


class Sums(nn.Module):
    """Functions: an operator, a function, a method in place and parameters as arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 16))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.matmul(x, x.transpose(0, 1)) + 1
        y.add_(y)
        return F.linear(x, self.weight).sum() + y


FUNCTIONS = {"add": learned(), "matmul": learned(), "linear": learned()}


@torch.no_grad()
def test_a_function_with_a_state_becomes_a_module_and_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph = prepared(Sums().eval(), x=X)
    float_result, code = graph.model(X), graph.model.code
    nodes = [(node.op, node.target, node.args, node.kwargs) for node in graph.nodes]
    graph = quantised(graph, **FUNCTIONS)
    calls = [each for each in graph.model.children() if isinstance(each, QuantizedCall)]
    assert [list(each.quantizers) for each in calls] == [
        ["data_in", "weight"], ["data_in"], ["data_in"], ["data_in", "weight", "bias"], ["data_in"],
    ]  # fmt: skip
    plain = quantised(prepared(copy.deepcopy(graph.model), x=X), **FUNCTIONS)
    assert torch.equal(plain.model(X), graph.model(X))
    integers = {name: learned("integer") for name in FUNCTIONS}
    assert torch.equal(graph.model(X), quantised(prepared(again(Sums), x=X), **integers).model(X))
    set_widths(graph.model, *[5.0] * 8)
    learnt = graph.model(X)
    save_mase_graph_interface_pass(graph, tmp_path / "graph")
    loaded, _ = load_mase_graph_interface_pass(None, tmp_path / "graph")
    assert torch.equal(loaded.model(X), learnt)
    assert torch.equal(copy.deepcopy(loaded).model(X), learnt)
    assert torch.equal(quantised(loaded, **FUNCTIONS).model(X), learnt)  # the state stays
    for each in (graph, loaded):
        restored, info = quantize_transform_pass(each, NOTHING)
        assert len(info["restored"]) == 5
        assert torch.equal(restored.model(X), float_result)
        assert [(n.op, n.target) for n in restored.nodes] == [each[:2] for each in nodes]
        assert not list(restored.model.children())
    assert graph.model.code == code


def again(model: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return model().eval()


def test_the_metadata_and_counts_of_such_a_module_are_those_of_the_function() -> None:
    facts = []
    for name in (NAME, "integer"):
        graph = quantised(prepared(again(Sums), x=X), **{k: learned(name) for k in FUNCTIONS})
        _, info = calculate_avg_bits_mg_analysis_pass(graph)
        common = [node.meta["mase"]["common"] for node in graph.nodes]
        entries = [list(record["args"].items()) for record in common]
        recorded = [{k: e["precision"] for k, e in each if isinstance(e, dict)} for each in entries]
        facts.append((info, [{k: p[:2] for k, p in each.items()} for each in recorded]))
    assert facts[0] == facts[1]


def test_a_file_may_not_name_a_function_of_another_operation(tmp_path: Path) -> None:
    graph = quantised(prepared(again(Sums), x=X), add=learned())
    save_mase_graph_interface_pass(graph, tmp_path)
    file = tmp_path / "graph.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    del record["checksum"]
    layer = next(name for name, each in record["layers"].items() if each.get("function"))
    for change, message in (
        ({"function": "mul"}, "is not what"),
        ({"function": "os.system"}, "not a function that can be quantised"),
        ({"function": None}, "float form"),
        ({"quantized": {"name": "integer", "data_in_width": 8}}, "no quantiser"),
    ):
        odd = copy.deepcopy(record)
        odd["layers"][layer] |= change
        file.write_text(seal(odd), encoding="utf-8")
        with pytest.raises(CheckpointError, match=message):
            load_mase_graph_interface_pass(None, tmp_path)


def test_a_quantiser_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LearnedWidth, "quantizer", lambda self, operand: nn.Identity())
    op = OPS["linear"]
    with pytest.raises(ConfigError, match=r"must give a .*Quantizer or None \(got a Identity\)"):
        quantize_module(nn.Linear(16, 5), op, parse_quant_config(op, learned(), "test"))


def test_formats_have_none_unless_they_say_so() -> None:
    operand = Operand("linear", "weight", torch.zeros(3))
    plain = {fmt for name, fmt in FORMATS.items() if name not in (NAME, "integer_trained")}
    assert all(fmt.quantizer is NumberFormat.quantizer for fmt in plain)
    assert Integer(width=8, frac_width=4).quantizer(operand) is None
    assert isinstance(LearnedWidth(width=8, frac_width=4).quantizer(operand), Quantizer)


def test_a_search_measures_it_as_the_quantise_pass_makes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from chop.models import get_model_info
    from chop.search.spaces.mixed_precision import MixedPrecisionPTQ
    from chop.search.spaces.space import SearchContext, every, make_space

    torch.manual_seed(0)
    data = MaseDataModule("jsc-sim", batch_size=64)
    data.setup()
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info).eval()
    found = SearchContext(model, get_model_info("jsc-tiny"), data)
    stated = {key: [value] for key, value in learned().items()}
    name, seed = "graph/quantize/mixed_precision_ptq", {"linear": {"config": stated}}
    space = make_space(name, found, {"by": "type"}, seed)
    assert isinstance(space, MixedPrecisionPTQ)
    config = space.config(next(every(space.tree)))
    monkeypatch.setattr(space.variants, "run", None)  # which would remember what has a state
    scores = [each for each, _ in space.candidate(config).predictions("val_dataloader", 64)]
    rows = [x for x, _ in found.batches("val_dataloader", 64)]
    with torch.inference_mode():
        assert torch.equal(torch.cat(scores), space.quantise(config).eval()(torch.cat(rows)))


def test_what_learns_has_no_integer_program_yet() -> None:
    graph = quantised(prepared(nn.Sequential(nn.Linear(16, 4)), input=X), linear=learned())
    with pytest.raises(LoweringError, match=r"_0 has quantisers that learn"):
        lower(graph, {"input": X})


def test_a_function_that_learns_has_none_either() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x

    config = {"name": NAME, "data_in_width": 8, "data_in_frac_width": 4}
    graph = quantised(prepared(Twice(), x=X), add=config)
    with pytest.raises(LoweringError, match=r"add has quantisers that learn"):
        lower(graph, {"x": X})
