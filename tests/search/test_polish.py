"""Polish: moves of single bits are exact, training stays within the bits, rounds are trials."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from learned_cases import learn
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.analysis.flops.ebops import ebops
from chop.search.learned.moves import Chain, bits_around, find_chain, tried_values
from chop.search.learned.polish import (
    channels_first,
    fit_format,
    row_loss,
    spread_points,
    store_links,
    trim_weights,
)

COST = 2e-4


class Shortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x


def quantised(model: nn.Module) -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(MaseGraph(model.eval()))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": torch.randn(4, 6)}})
    config: dict[str, object] = {"name": "integer"}
    for role, width, frac in (("data_in", 6, 3), ("weight", 6, 4), ("bias", 10, 6)):
        config |= {f"{role}_width": width, f"{role}_frac_width": frac}
        config |= {f"{role}_rounding": "half_up"}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    return graph


def perceptron() -> MaseGraph:
    torch.manual_seed(1)
    return quantised(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(),
                                   nn.Linear(7, 3)))  # fmt: skip


class PlainRows:
    is_regression, variance = False, 1.0


def chain_of(graph: MaseGraph) -> Chain:
    torch.manual_seed(2)
    features, labels = torch.randn(400, 6), torch.randint(3, (400,))
    links = find_chain(graph)
    assert links is not None
    loss = row_loss(PlainRows(), labels, 1.0)  # type: ignore[arg-type]
    return Chain(links, channels_first(features), loss, COST)


def test_a_chain_computes_what_the_network_does() -> None:
    graph = perceptron()
    chain = chain_of(graph)
    torch.manual_seed(2)
    features, labels = torch.randn(400, 6), torch.randint(3, (400,))
    scores = graph.model(features)
    assert np.array_equal(chain.given[-1].T, scores.detach().double().numpy())
    expected = nn.functional.cross_entropy(scores, labels, reduction="none").detach()
    assert np.allclose(chain.losses, expected.numpy(), atol=1e-6)
    assert chain.cost == ebops(graph, [features]).total


def test_what_a_move_changes_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chop.search.learned.moves.DOUBT", np.inf)  # nothing is given up early
    chain = chain_of(perceptron())
    for layer, link in enumerate(chain.links):
        for out, channel in itertools.islice(np.argwhere(link.weight), 0, None, 7):
            value = float(link.weight[out, channel])
            new = tried_values(value)[int(out + channel) % 5]
            step = (new - value) * chain.inputs[layer][channel]
            change = chain._try(layer + 1, out, step, 0)
            assert change is not None
            link.weight[out, channel] = new
            again = Chain(chain.links, chain.given[0], chain.loss, COST)
            assert change[0] == pytest.approx(again.losses.mean() - chain.losses.mean(), abs=1e-12)
            link.weight[out, channel] = value


def test_moves_that_are_taken_pay_and_are_kept() -> None:
    graph = perceptron()
    chain = chain_of(graph)
    before = chain.losses.mean() + COST * chain.cost
    assert chain.improve(0) > 10
    again = Chain(chain.links, chain.given[0], chain.loss, COST)
    assert np.array_equal(again.given[-1], chain.given[-1])
    assert (again.cost, again.losses.mean()) == (chain.cost, pytest.approx(chain.losses.mean()))
    assert again.losses.mean() + COST * again.cost < before
    store_links(graph, chain.links)
    torch.manual_seed(2)
    features = torch.randn(400, 6)
    scores = graph.model(features).detach().double().numpy()
    assert np.array_equal(scores.T, chain.given[-1])
    assert ebops(graph, [features]).total <= chain.cost  # what nobody reads any more is free


def test_only_chains_of_linear_layers_are_chains() -> None:
    assert find_chain(quantised(Shortcut())) is None
    assert find_chain(quantised(nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 3)))) is None
    assert find_chain(quantised(nn.Sequential(nn.Linear(6, 3), nn.ReLU()))) is None
    links = find_chain(quantised(nn.Sequential(nn.Flatten(), nn.Linear(6, 3))))
    assert links is not None
    assert len(links) == 1


def test_formats_fit_the_bits_of_each_weight() -> None:
    values = np.array([0.0, 0.25, -0.75, 5.0, 6.0, -1.0])
    graph = perceptron()
    weight = graph.modules["0"].quant.operands["weight"]  # type: ignore[union-attr, index]
    fmt = fit_format(weight, values)
    width, frac, _ = fmt.arrays
    assert width.tolist() == [0, 2, 3, 4, 3, 2]
    assert frac[1:].tolist() == [2, 2, 0, -1, 0]
    assert fmt(torch.from_numpy(values)).tolist() == values.tolist()
    assert [bits_around(value) for value in values] == [0, 1, 2, 3, 2, 1]
    before = graph.model(torch.ones(1, 6))
    trim_weights(graph)
    assert torch.equal(graph.model(torch.ones(1, 6)), before)


def test_points_are_spread_over_their_costs() -> None:
    found = [{"ebops": cost} for cost in (0, 100, 110, 120, 1000, 10_000)]
    assert [row["ebops"] for row in spread_points(found, 3)] == [100, 1000, 10_000]
    assert len(spread_points(found, 9)) == 5


@pytest.mark.parametrize("tried", [0, 64])
def test_rounds_are_trials_and_need_no_more_bits(
    tried: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    polish = {"points": 2, "rounds": 2, "epochs": 1, "rows": tried}
    found = learn(tmp_path / "out", polish=polish)
    assert ("moves of bits on 64 rows, too few" in caplog.text) == bool(tried)
    polished = [trial for trial in found.trials if "polished" in trial.config]
    assert 2 <= len(polished) <= 4
    by_epoch = {trial.config["epoch"]: trial for trial in found.trials}
    for trial in polished:
        start = by_epoch[trial.config["polished"]]
        assert trial.config["epoch"] > 6  # those of all cycles
        assert 0 <= trial.hardware["ebops"] <= start.hardware["ebops"] * (1 if tried else 1.1)
    saved = {path.name for path in (found.folder / "graphs").iterdir()}
    assert saved == {f"epoch_{trial.config['epoch']}" for trial in found.best}
    again = learn(tmp_path / "out", resume=True, polish=polish)
    assert [trial.values for trial in again.trials] == [trial.values for trial in found.trials]


def test_a_network_that_begins_with_a_normalisation_is_whole_in_integers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    with caplog.at_level("INFO", "chop"):
        found = learn(tmp_path / "out", model, cycles=1, teacher=None)
    count = len(found.best)
    assert f"Verified: {count} of {count} best trials compute in integers" in caplog.text
