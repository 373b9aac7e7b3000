import copy

import pytest
import torch
from torch import nn
from transform_nets import ConvNet, Jsc, Shared, graph_of, rule

from chop.errors import ConfigError, GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.logger import set_logging_verbosity
from chop.nn.masks import largest_in_groups, weight_mask
from chop.passes.graph import (
    prune_detach_hook_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
)
from chop.passes.graph.transforms.pruning.methods import METHODS
from chop.passes.graph.utils import deepcopy_mase_graph, get_node_by_name

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
LAYERS = ("conv1", "conv2", "fc")


@pytest.fixture
def mg() -> MaseGraph:
    return graph_of(ConvNet(), 2, 3, 8, 8)


def weights(graph: MaseGraph) -> dict[str, torch.Tensor]:
    return {name: graph.model.get_submodule(name).weight.detach().clone() for name in LAYERS}


def zeros(tensor: torch.Tensor) -> int:
    return int((tensor == 0).sum())


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("sparsity", [0.0, 0.1, 1 / 3, 0.5, 0.999, 1.0])
def test_local_sparsity_is_exact(mg: MaseGraph, method: str, sparsity: float) -> None:
    mg, info = prune_transform_pass(mg, {"weight": {"method": method, "sparsity": sparsity}})
    for name, weight in weights(mg).items():
        assert zeros(weight) == round(sparsity * weight.numel())
        assert info["weight"]["nodes"][name] == zeros(weight) / weight.numel()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_global_sparsity_is_exact(mg: MaseGraph, method: str) -> None:
    rules = {"method": method, "sparsity": 0.37, "scope": "global"}
    mg, info = prune_transform_pass(mg, {"weight": rules})
    pruned = weights(mg).values()
    total = sum(weight.numel() for weight in pruned)
    assert sum(map(zeros, pruned)) == round(0.37 * total)
    assert info["weight"]["total"] == round(0.37 * total) / total


@pytest.mark.parametrize("scope", ["local", "global"])
def test_the_smallest_go(mg: MaseGraph, scope: str) -> None:
    before = weights(mg)
    mg, _ = prune_transform_pass(
        mg, {"weight": {"method": "l1-norm", "sparsity": 0.4, "scope": scope}}
    )
    after = weights(mg)
    groups = [[name] for name in LAYERS] if scope == "local" else [list(LAYERS)]
    for group in groups:
        dropped = torch.cat([before[n][after[n] == 0].abs() for n in group])
        kept = torch.cat([after[n][after[n] != 0].abs() for n in group])
        assert dropped.max() <= kept.min()
    for name in LAYERS:
        assert torch.equal(after[name][after[name] != 0], before[name][after[name] != 0])


def test_ties_are_broken_the_same_way_and_exactly() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    nn.init.constant_(model[0].weight, 0.5)
    mg, _ = prune_transform_pass(
        graph_of(model, 2, 4), {"weight": {"method": "l1-norm", "sparsity": 0.3}}
    )
    weight = mg.model.get_submodule("0").weight
    assert zeros(weight) == 5
    assert zeros(weight.flatten()[:5]) == 5


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("scope", ["local", "global"])
def test_whole_channels(mg: MaseGraph, method: str, scope: str) -> None:
    rules = {"method": method, "sparsity": 0.5, "granularity": "channel", "scope": scope}
    mg, _ = prune_transform_pass(mg, {"weight": rules})
    empty = {name: (w.flatten(1) == 0).all(1) for name, w in weights(mg).items()}
    assert all(zeros(w.flatten(1)[~empty[n]]) == 0 for n, w in weights(mg).items())
    counts = {name: int(rows.sum()) for name, rows in empty.items()}
    if scope == "local":
        assert counts == {"conv1": 4, "conv2": 4, "fc": 2}
    assert sum(counts.values()) == 10


def test_norms_rank_channels_differently() -> None:
    model = nn.Sequential(nn.Linear(4, 2, bias=False))
    model[0].weight.data = torch.tensor([[3.0, 0, 0, 0], [1, 1, 1, 1]])
    dropped = {}
    for method in ("l1-norm", "l2-norm"):
        rules = {"method": method, "sparsity": 0.5, "granularity": "channel"}
        mg, _ = prune_transform_pass(graph_of(model, 2, 4), {"weight": rules})
        dropped[method] = int((mg.model.get_submodule("0").weight == 0).all(1).nonzero())
    assert dropped == {"l1-norm": 0, "l2-norm": 1}


@pytest.mark.parametrize(("keep", "group"), [(2, 4), (1, 2), (4, 8), (3, 3), (1, 4)])
@pytest.mark.parametrize("method", ["l1-norm", "random"])
def test_n_of_m_stay(keep: int, group: int, method: str) -> None:
    model = nn.Sequential(nn.Linear(24, 6), nn.ReLU(), nn.Linear(6, 5))
    before = [model[0].weight.detach().clone(), model[2].weight.detach().clone()]
    rules = {"method": method, "granularity": f"{keep}:{group}"}
    mg, _ = prune_transform_pass(graph_of(model, 2, 24), {"weight": rules})
    for name, old in zip("02", before, strict=True):
        weight = mg.model.get_submodule(name).weight
        for start in range(0, weight.shape[1], group):
            part, original = weight[:, start : start + group], old[:, start : start + group]
            kept = (part != 0).sum(1)
            assert (kept == min(keep, part.shape[1])).all()
            if method == "l1-norm":
                lowest_kept = part.abs().where(part != 0, torch.inf).amin(1)
                highest_dropped = original.abs().where(part == 0, 0.0).amax(1)
                assert (lowest_kept >= highest_dropped).all()


def test_n_of_m_runs_along_the_input_channels() -> None:
    scores = torch.rand(2, 8, 3, 3)
    mask = largest_in_groups(scores, 1, 2, 4)
    assert (mask.reshape(2, 2, 4, 3, 3).sum(2) == 2).all()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_every_rank(dims: int) -> None:
    conv = getattr(nn, f"Conv{dims}d")(2, 4, 3)
    shape = (2, 2, *(5,) * dims)
    mg = graph_of(nn.Sequential(conv), *shape)
    everything = {"weight": {"sparsity": 0.5}, "activation": {"sparsity": 0.5, "method": "l1-norm"}}
    x = torch.randn(*shape)
    mg, info = prune_transform_pass(mg, everything | {"input_generator": [{"input": x}]})
    assert info["weight"]["total"] == 0.5
    assert info["activation"]["total"] == 0.5
    layer = mg.model.get_submodule("0")
    threshold = x.abs().flatten().sort().values[x.numel() // 2 - 1]
    expected = torch.nn.functional.__dict__[f"conv{dims}d"](
        x.where(x.abs() > threshold, 0.0), layer.weight, layer.bias
    )
    assert torch.equal(mg.model(x), expected)


def test_a_sparsity_for_each_layer(mg: MaseGraph) -> None:
    mg, info = prune_transform_pass(mg, {"weight": {"sparsity": {"conv1": 0.5, "fc": 0.25}}})
    assert info["weight"]["nodes"] == {"conv1": 0.5, "fc": 0.25}
    assert zeros(mg.model.conv2.weight) == 0


def test_the_traced_model_and_the_arguments_are_left_alone() -> None:
    model = ConvNet()
    before = copy.deepcopy(model.state_dict())
    args = {"weight": {"sparsity": 0.5}, "activation": {"granularity": "2:4", "method": "l1-norm"}}
    given = copy.deepcopy(args)
    prune_transform_pass(graph_of(model, 2, 3, 8, 8), args)
    assert args == given
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert type(model.conv1) is nn.Conv2d


def test_pruning_again_starts_from_the_full_weights(mg: MaseGraph) -> None:
    once, _ = prune_transform_pass(
        deepcopy_mase_graph(mg), {"weight": {"sparsity": 0.2, "method": "l1-norm"}}
    )
    prune_transform_pass(mg, {"weight": {"sparsity": 0.9, "method": "l1-norm"}})
    prune_transform_pass(mg, {"weight": {"sparsity": 0.2, "method": "l1-norm"}})
    assert all(
        torch.equal(a, b) for a, b in zip(weights(mg).values(), weights(once).values(), strict=True)
    )


def test_training_leaves_pruned_weights_at_zero(mg: MaseGraph) -> None:
    prune_transform_pass(mg, {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
    before = weights(mg)
    optimizer = torch.optim.Adam(mg.model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        mg.model(IMAGES).square().sum().backward()
        optimizer.step()
    for name, after in weights(mg).items():
        assert torch.equal(after == 0, before[name] == 0)
        assert not torch.equal(after, before[name])


def test_state_dict_has_plain_keys_and_masks(mg: MaseGraph) -> None:
    prune_transform_pass(mg, {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
    state = mg.model.state_dict()
    assert set(state) == {
        *ConvNet().state_dict(), "conv1.weight_mask", "conv2.weight_mask", "fc.weight_mask",
    }  # fmt: skip
    plain = ConvNet().eval()
    result = plain.load_state_dict(state, strict=False)
    assert not result.missing_keys
    assert torch.equal(plain(IMAGES), mg.model(IMAGES))


def test_state_dict_carries_the_mask_over(mg: MaseGraph) -> None:
    other = deepcopy_mase_graph(mg)
    prune_transform_pass(mg, {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
    prune_transform_pass(other, {"weight": {"sparsity": 0.9, "method": "random"}})
    other.model.load_state_dict(mg.model.state_dict())
    assert torch.equal(weight_mask(other.model.conv1), weight_mask(mg.model.conv1))
    assert torch.equal(other.model(IMAGES), mg.model(IMAGES))


def test_plain_weights_load_under_the_present_mask(mg: MaseGraph) -> None:
    prune_transform_pass(mg, {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
    mask = weight_mask(mg.model.conv1).clone()
    fresh = ConvNet()
    mg.model.load_state_dict(fresh.state_dict())
    assert torch.equal(mg.model.conv1.weight, fresh.conv1.weight * mask)


@pytest.mark.parametrize("quantised", [False, True])
def test_copies_are_independent(mg: MaseGraph, quantised: bool) -> None:
    if quantised:
        quantize_transform_pass(mg, {"by": "type", "conv2d": rule("integer")})
    prune_transform_pass(mg, {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
    expected = mg.model(IMAGES)
    twin = deepcopy_mase_graph(mg)
    prune_detach_hook_transform_pass(mg)
    assert torch.equal(twin.model(IMAGES), expected)
    assert torch.equal(mg.model(IMAGES), expected)
    twin.model.load_state_dict(twin.model.state_dict())


def test_detaching_makes_layers_plain_with_the_zeros_in(mg: MaseGraph) -> None:
    batches = [{"x": IMAGES}]
    prune_transform_pass(
        mg,
        {
            "weight": {"sparsity": 0.5, "method": "l1-norm"},
            "activation": {"sparsity": 0.25, "method": "l1-norm"},
            "input_generator": batches,
        },
    )
    before = weights(mg)
    mg, info = prune_detach_hook_transform_pass(mg)
    assert info == {"weight": list(LAYERS), "activation": list(LAYERS)}
    plain = ConvNet().eval()
    plain.load_state_dict(mg.model.state_dict())  # the very keys of a fresh model
    assert torch.equal(plain(IMAGES), mg.model(IMAGES))
    assert type(mg.model.conv1) is nn.Conv2d
    assert all(
        torch.equal(a, b) for a, b in zip(weights(mg).values(), before.values(), strict=True)
    )
    mg, info = prune_detach_hook_transform_pass(mg)
    assert info == {"weight": [], "activation": []}


def test_shared_layer_is_pruned_once() -> None:
    mg, info = prune_transform_pass(graph_of(Shared(), 3, 4), {"weight": {"sparsity": 0.5}})
    assert info["weight"]["nodes"] == {"fc": 0.5}
    mg, info = prune_detach_hook_transform_pass(mg)
    assert info["weight"] == ["fc"]


def test_metadata_shows_the_zeros(mg: MaseGraph) -> None:
    prune_transform_pass(mg, {"weight": {"sparsity": 0.5}})
    entry = get_node_by_name(mg, "conv1").meta["mase"]["common"]["args"]["weight"]
    assert torch.equal(entry["value"], mg.model.conv1.weight)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("granularity", ["elementwise", "channel", "2:4"])
def test_inputs_are_masked(method: str, granularity: str) -> None:
    mg = graph_of(nn.Sequential(nn.Linear(8, 3)), 6, 8)
    x = torch.randn(6, 8)
    layer = mg.model.get_submodule("0")
    seen = []
    args = {
        "activation": {"method": method, "granularity": granularity, "sparsity": 0.5, "seed": 3}
    }
    mg, info = prune_transform_pass(mg, args | {"input_generator": [{"input": x}]})
    assert info["activation"]["nodes"] == {"_0": 0.5}
    pruned = mg.model.get_submodule("0")
    pruned.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    y = mg.model(x)
    (used,) = seen
    assert torch.equal(y, torch.nn.functional.linear(used, layer.weight, layer.bias))
    assert zeros(used) == 24
    assert torch.equal(used[used != 0], x[used != 0])
    if granularity == "channel":
        assert set((used == 0).sum(0).tolist()) == {0, 6}
    if granularity == "2:4":
        assert ((used.reshape(6, 2, 4) != 0).sum(-1) == 2).all()


def test_global_threshold_is_common(mg: MaseGraph) -> None:
    rules = {"sparsity": 0.8, "scope": "global", "method": "l1-norm"}
    prune_transform_pass(mg, {"activation": rules, "input_generator": [{"x": IMAGES}]})
    thresholds = {float(mg.model.get_submodule(n).activation_threshold) for n in LAYERS}
    assert len(thresholds) == 1
    assert thresholds.pop() > 0


def test_no_sparsity_leaves_inputs_alone(mg: MaseGraph) -> None:
    expected = mg.model(IMAGES)
    rules = {"sparsity": 0.0, "method": "l1-norm"}
    prune_transform_pass(mg, {"activation": rules, "input_generator": [{"x": IMAGES}]})
    assert torch.equal(mg.model(IMAGES), expected)


def test_seeds_make_random_pruning_repeat(mg: MaseGraph) -> None:
    other = deepcopy_mase_graph(mg)
    for graph in (mg, other):
        prune_transform_pass(graph, {"weight": {"sparsity": 0.5, "seed": 7}})
    assert torch.equal(mg.model.conv1.weight, other.model.conv1.weight)
    prune_transform_pass(other, {"weight": {"sparsity": 0.5, "seed": 8}})
    assert not torch.equal(mg.model.conv1.weight, other.model.conv1.weight)


def test_an_emptied_layer_is_warned_of(mg: MaseGraph, capsys: pytest.CaptureFixture[str]) -> None:
    set_logging_verbosity("warning")
    prune_transform_pass(mg, {"weight": {"sparsity": {"fc": 1.0}}})
    assert "leaves nothing of node 'fc'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"weight": {"sparsity": 1.5}}, "between 0 and 1"),
        ({"weight": {}}, "'sparsity' is missing"),
        ({"weight": {"sparsity": 0.5, "method": "l3"}}, "unknown pruning method 'l3'"),
        ({"weight": {"sparsity": 0.5, "granularity": "4:2"}}, "granularity is"),
        ({"weight": {"sparsity": 0.6, "granularity": "2:4"}}, "2:4 is a sparsity of 0.5"),
        ({"weight": {"granularity": "2:4", "scope": "global"}}, "scope is 'local'"),
        (
            {"weight": {"sparsity": {"conv3": 0.5}}},
            "unknown layer to prune 'conv3': did you mean 'conv2'",
        ),
        ({"weight": {"sparsity": {"fc": 0.5}, "scope": "global"}}, "scope 'local'"),
        ({"wieght": {"sparsity": 0.5}}, "did you mean 'weight'"),
        ({"activation": {"sparsity": 0.5}}, "activation needs 'input_generator'"),
        ({"activation": {"sparsity": 0.5}, "input_generator": []}, "gives no batch"),
    ],
)
def test_mistakes(mg: MaseGraph, args: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prune_transform_pass(mg, args)
    assert message in str(caught.value)


def test_a_graph_with_nothing_to_prune() -> None:
    with pytest.raises(GraphError, match="nothing to prune"):
        prune_transform_pass(
            graph_of(nn.Sequential(nn.ReLU()), 2, 4), {"weight": {"sparsity": 0.5}}
        )


def test_a_parametrised_layer_is_refused() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    with pytest.raises(GraphError, match="a Linear is parametrised already"):
        prune_transform_pass(graph_of(model, 2, 4), {"weight": {"sparsity": 0.5}})


def test_jsc_as_in_the_labs() -> None:
    mg = graph_of(Jsc(16, 5), 8, 16)
    common = {"scope": "local", "granularity": "elementwise", "sparsity": 0.2}
    args = {
        "weight": common | {"method": "l1-norm"},
        "activation": common | {"method": "random"},
        "input_generator": [{"x": torch.randn(8, 16)}],
        "model_name": "jsc-tiny",
    }
    _, info = prune_transform_pass(mg, args)
    assert info["weight"]["total"] == 16 / 80
    assert info["activation"]["total"] == 3 / 16
