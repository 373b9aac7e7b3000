"""Methods for few bits: each helps where it should, and none changes the model that was given."""

import copy

import pytest
import torch
from torch import Tensor, nn
from transform_nets import graph_of

import chop
from chop.errors import ChopError
from chop.lowering.comparing import compare_with_integers
from chop.passes.graph import PASSES


def uneven_network() -> nn.Module:
    """A network one of whose channels is far larger than the others."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding="same", groups=4), nn.LeakyReLU(0.25), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip
    with torch.no_grad():
        model[1].weight[2] *= 4
        model[1].running_mean.normal_()
    return model.eval()


ROWS = torch.randn(256, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def error(model: nn.Module, other: object, rows: Tensor = ROWS) -> float:
    with torch.no_grad():
        wanted, found = model(rows), other(rows)  # type: ignore[operator]
    return float((found - wanted).norm() / wanted.norm())


def test_methods_lower_the_error_of_four_bits_on_other_rows_too_and_stay_exact() -> None:
    model = uneven_network()
    before = copy.deepcopy(model.state_dict())
    other_rows = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    plain, done = (
        chop.quantize(model, width=8, weight_width=4, calibrate=[ROWS], methods=methods)
        for methods in ((), None)
    )
    assert plain.info.get("methods") is None
    gains = done.info["methods"]
    assert list(gains) == ["equalise", "round_weights", "correct_bias"]
    assert any(gain["kept"] for gain in gains.values())
    assert all(gain["kept"] == (gain["after"] < gain["before"]) for gain in gains.values())
    assert error(model, done, other_rows) < 0.7 * error(model, plain, other_rows)
    assert done.info["in_float"] == {}
    compare_with_integers(done.model, other_rows)
    assert all(torch.equal(a, model.state_dict()[name]) for name, a in before.items())


def test_equalising_by_powers_of_two_changes_no_output() -> None:
    model = uneven_network()
    graph = graph_of(copy.deepcopy(model), input=ROWS)
    graph, _ = PASSES["fold_normalisation"](graph)
    folded = copy.deepcopy(graph.model)
    graph, info = PASSES["equalise"](graph)
    assert sum(info["equalised"].values()) > 3
    assert torch.equal(graph.model(ROWS), folded(ROWS))
    assert not torch.equal(graph.model.get_submodule("0").weight, folded.get_submodule("0").weight)


def test_rounding_for_results_beats_the_nearest_codes_in_every_kind_of_layer() -> None:
    model = uneven_network()
    plain = chop.quantize(model, width=8, weight_width=3, calibrate=[ROWS], methods=())
    _, info = PASSES["round_weights"](plain.graph, {"input_generator": [{"input": ROWS}]})
    assert len(info["rounded"]) == 4
    assert all(each["chosen"] < each["nearest"] for each in info["rounded"].values())


def test_corrected_biases_bring_the_means_of_channels_back() -> None:
    model = uneven_network()
    plain = chop.quantize(model, width=8, weight_width=3, calibrate=[ROWS], methods=())
    with torch.no_grad():
        wanted = model(ROWS).mean(0)
        before = (plain(ROWS).mean(0) - wanted).abs().max()
        graph, info = PASSES["correct_bias"](plain.graph, {"input_generator": [{"input": ROWS}]})
        after = (graph.model(ROWS).mean(0) - wanted).abs().max()
    assert len(info["corrected"]) == 4
    assert after < 0.1 * before


def test_eight_bits_take_no_time_for_methods_and_unknown_ones_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    rows = [torch.randn(8, 4)]
    assert "methods" not in chop.quantize(model, width=8, calibrate=rows).info
    with pytest.raises(ChopError, match="methods"):
        chop.quantize(model, width=4, calibrate=rows, methods=["adaround"])
    with pytest.raises(ChopError, match="whole in integers"):
        chop.quantize(model, width=4, calibrate=rows, methods=[], products_only=True)
