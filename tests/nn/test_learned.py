"""Widths that learn: one rounding for the whole network, its gradients, its cost, its state."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

from chop.errors import CheckpointError, ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.nn.learned import LearnedWidths
from chop.numerics.trained import TrainedData, TrainedParameter
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)

LN2 = 0.6931471805599453


class Branches(nn.Module):
    """Convolutions, one of them grouped, a linear layer on tokens, an activation and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3)
        self.second = nn.Conv1d(4, 4, 2, groups=2)
        self.act = nn.ReLU()
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.first(x)).flatten(2)[:, :, :6]
        y = self.last(self.second(y))
        return torch.matmul(y, y.transpose(1, 2)).flatten(1)


def learning(model: nn.Module, x: Tensor, **settings: Any) -> nn.Module:
    graph, _ = init_metadata_analysis_pass(MaseGraph(model))
    name = next(node.name for node in graph.nodes)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {name: x}})
    rule = {"config": {"name": "integer_trained", **settings}}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "default": rule})
    return graph.model.train()


@pytest.fixture(name="images")
def _images() -> Tensor:
    return torch.randn(6, 2, 5, 5, generator=torch.manual_seed(1))


@pytest.fixture(name="net")
def _net(images: Tensor) -> nn.Module:
    torch.manual_seed(0)
    return learning(Branches(), images)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return learning(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.ones(2, 6))


def rows(count: int = 32, seed: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return x, x[:, :3].argmax(1)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: grad.clone() for name, grad in found.items()}


def test_the_bits_are_there_for_every_operand(net: nn.Module) -> None:
    shapes = {n: tuple(p.shape) for n, p in net.named_parameters() if n.endswith("frac_width")}
    assert shapes == {
        "first.quantizers.data_in.frac_width": (2, 1, 1),
        "first.quantizers.weight.frac_width": (4, 2, 3, 3),
        "second.quantizers.data_in.frac_width": (4, 1),
        "second.quantizers.weight.frac_width": (4, 2, 2),
        "act.quantizers.data_in.frac_width": (),
        "last.quantizers.data_in.frac_width": (5,),
        "last.quantizers.weight.frac_width": (3, 5),
        "matmul_quantized.quantizers.data_in.frac_width": (),
        "matmul_quantized.quantizers.weight.frac_width": (),
    }
    starts = {float(q.frac_width.detach().flatten()[0]) for q in net.modules()
              if isinstance(q, TrainedData)}  # fmt: skip
    assert starts == {3.0}
    assert float(net.get_buffer("last.quantizers.bias.frac_width")[0]) == 6  # which does not learn


def test_gradients_pass_straight_through_and_reach_the_bits() -> None:
    model = mlp()
    layer = model.get_submodule("0")
    x, _ = rows()
    x.requires_grad_()
    factor = torch.randn(32, 8)
    (layer(x) * factor).sum().backward()
    scale = torch.tensor(16.0)
    rounded = torch.floor(layer.weight * scale + 0.5) / scale
    codes = torch.floor(x * 8 + 0.5) / 8
    assert torch.equal(layer.get_quantized_weight(), rounded)
    of_weight = factor.T @ codes
    assert torch.allclose(layer.weight.grad, of_weight)
    of_bits = layer.quantizers["weight"].frac_width.grad
    assert torch.allclose(of_bits, LN2 * (layer.weight - rounded) * of_weight)
    of_data = LN2 * ((x - codes) * (factor @ rounded)).sum(0)
    assert torch.allclose(layer.quantizers["data_in"].frac_width.grad, of_data, atol=1e-5)
    assert torch.allclose(x.grad, factor @ rounded)


@pytest.mark.parametrize("granularity", ["element", "channel", "tensor"])
def test_one_rounding_for_all_is_each_rounding_by_itself(granularity: str, images: Tensor) -> None:
    torch.manual_seed(0)
    alone = learning(Branches(), images, weight_granularity=granularity)
    together = copy.deepcopy(alone)
    widths = LearnedWidths(together)
    results = []
    for model in (alone, together):
        result = model(images)
        result.square().sum().backward()
        results.append((result, gradients(model)))
    (first, grads), (second, fused) = results
    assert torch.equal(first, second)
    assert grads.keys() == fused.keys()
    assert len(grads) == 9 + 6
    assert all(torch.equal(grads[name], fused[name]) for name in grads)
    ranges = [dict(model.named_buffers()) for model in (alone, together)]
    assert all(torch.equal(ranges[0][name], ranges[1][name]) for name in ranges[0])
    widths.remove()
    assert not together._forward_pre_hooks
    together(images)
    assert torch.equal(together.eval()(images), alone.eval()(images))


def bit_lengths(codes: Tensor) -> Tensor:
    return torch.tensor([int(abs(c)).bit_length() for c in codes.flatten().tolist()]).view_as(codes)


def brute_force(net: nn.Module, images: Tensor) -> float:
    """EBOPs by definition of the estimate: every multiplication of one row, one after the other."""
    total = 0.0
    for name, places in (("first", 9), ("second", 5), ("last", 4)):
        layer = net.get_submodule(name)
        weight, data = layer.quantizers["weight"], layer.quantizers["data_in"]
        bits = bit_lengths(torch.floor(layer.weight * weight.frac_width.exp2() + 0.5))
        largest = torch.maximum(data.hi, -data.lo) * data.frac_width.exp2()
        inputs = bit_lengths(torch.floor(largest + 0.5)).flatten().tolist()
        per_group = layer.weight.shape[1]
        groups = getattr(layer, "groups", 1)
        for out, row in enumerate(bits):
            start = out // (len(bits) // groups) * per_group
            total += sum(int(row[i].sum()) * inputs[start + i] for i in range(per_group)) * places
    product = net.get_submodule("matmul_quantized").quantizers
    sides = [product[role] for role in ("data_in", "weight")]
    highest = [torch.floor(torch.maximum(q.hi, -q.lo) * q.frac_width.exp2() + 0.5) for q in sides]
    return total + 4 * 4 * 3 * float(bit_lengths(highest[0]) * bit_lengths(highest[1]))


@torch.no_grad()
def make_exact(net: nn.Module) -> None:
    """Weights that need no more bits than they have, so that a bit more costs one bit each."""
    for module in net.modules():
        if isinstance(getattr(module, "weight", None), nn.Parameter):
            module.weight.copy_(torch.floor(module.weight * 16 + 0.5) / 16)


def test_the_cost_is_what_brute_force_counts(net: nn.Module, images: Tensor) -> None:
    widths = LearnedWidths(net, refresh=1, magnitude=0.0)
    widths.calibrate([images])
    with torch.no_grad():
        make_exact(net)
        expected = brute_force(net, images)
        assert expected > 1000
    net(images)
    assert float(widths.cost.detach()) == expected
    widths.cost.backward()
    layer = net.get_submodule("second")
    bits = layer.quantizers["weight"].frac_width
    before, slope = expected, bits.grad.sum()
    with torch.no_grad():
        bits += 1
        assert brute_force(net, images) - before == float(slope) > 0
    for name in ("first", "last"):
        data = net.get_submodule(name).quantizers["data_in"]
        with torch.no_grad():
            before, slope = brute_force(net, images), data.frac_width.grad.sum()
            data.lo.mul_(16).round_().div_(16)  # exact, too
            data.hi.mul_(16).round_().div_(16)
            before = brute_force(net, images)
            data.frac_width += 1
            assert brute_force(net, images) - before == pytest.approx(float(slope), rel=0.2)
    assert float(net.get_submodule("first").weight.grad.abs().sum()) == 0  # magnitude is 0


def test_the_magnitude_term_draws_weights_to_zero() -> None:
    model = mlp()
    widths = LearnedWidths(model, magnitude=2.0)
    x, _ = rows()
    widths.calibrate([x])
    model(x)
    widths.cost.backward()
    layer = model.get_submodule("0")
    rounded = layer.get_quantized_weight()
    assert torch.equal(layer.weight.grad.sign(), rounded.sign())
    bits = layer.quantizers["data_in"].magnitude_bits()
    expected = 2 / LN2 * bits * rounded.sign() / rounded.abs().clamp_min(2**-4)
    assert torch.allclose(layer.weight.grad, expected)


def train(model: nn.Module, widths: LearnedWidths, steps: range, cost: float) -> None:
    """Steps by the sign of gradients: as quick as Adam on so small a network, and without state."""
    bits = {id(value) for value in widths.parameters_of_bits()}
    for step in steps:
        x, y = rows(seed=step)
        for value in model.parameters():
            value.grad = None
        (F.cross_entropy(model(x), y) + cost * widths.cost).backward()
        with torch.no_grad():
            for value in model.parameters():
                value -= (1e-2 if id(value) in bits else 5e-3) * value.grad.sign()


def test_more_weight_on_the_cost_leaves_fewer_bits_and_prunes() -> None:
    costs, zeros = [], []
    for weight in (0.0, 1e-3, 1e-2):
        model = mlp()
        widths = LearnedWidths(model)
        train(model, widths, range(60), weight)
        widths.clamp()
        costs.append(float(widths.cost.detach()))
        zeros.append(int((model.get_submodule("0").get_quantized_weight() == 0).sum()))
    assert costs[0] > costs[1] > costs[2]
    assert zeros[0] < zeros[2]


@pytest.mark.parametrize("steps", [8, 11])
def test_a_run_that_is_interrupted_resumes_bit_by_bit(steps: int) -> None:
    straight = mlp()
    widths = LearnedWidths(straight)
    train(straight, widths, range(steps), 1e-3)
    saved = copy.deepcopy((straight.state_dict(), widths.state_dict()))  # as a file would
    train(straight, widths, range(steps, 30), 1e-3)
    resumed = mlp()
    resumed.load_state_dict(saved[0])
    again = LearnedWidths(resumed)
    again.load_state_dict(saved[1])
    train(resumed, again, range(steps, 30), 1e-3)
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    other = LearnedWidths(learning(nn.Sequential(nn.Linear(6, 4)), torch.ones(2, 6)))
    with pytest.raises(CheckpointError, match="of another network"):
        other.load_state_dict(saved[1])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("wrapped", [mlp, lambda: nn.Sequential(mlp())])
def test_copies_learn_by_themselves(copied: Any, wrapped: Any) -> None:
    model = wrapped().train()
    widths = LearnedWidths(model)
    train(model, widths, range(5), 1e-3)
    twin = copied(model)
    if isinstance(model, GraphModule):  # which copies no hooks
        assert not twin._forward_pre_hooks
        theirs = LearnedWidths(twin)
        theirs.load_state_dict(widths.state_dict())
    else:
        (hook,) = twin._forward_pre_hooks.values()
        theirs = hook.__self__
        assert theirs is not widths
        assert theirs.model is twin
    for each, learned in ((model, widths), (twin, theirs)):
        train(each, learned, range(5, 20), 1e-3)
    assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))
    train(twin, theirs, range(20, 25), 1e-3)
    assert not torch.equal(next(model.parameters()), next(twin.parameters()))


def test_it_learns_in_double_precision_and_over_accumulated_gradients() -> None:
    model = mlp().double()
    widths = LearnedWidths(model)
    x, y = rows()
    loss = F.cross_entropy(model(x.double()), y) + 1e-3 * widths.cost
    loss.backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float64}
    whole = gradients(model)
    for p in model.parameters():
        p.grad = None
    for part in (slice(0, 16), slice(16, 32)):
        ((F.cross_entropy(model(x[part].double()), y[part])) / 2).backward()
    parts = gradients(model)
    assert all(torch.allclose(whole[name], parts[name], atol=1e-9) for name in whole)


def test_a_network_may_have_nothing_but_activations() -> None:
    class Products(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.matmul(x.relu(), x.transpose(0, 1))

    x, _ = rows()
    model = learning(Products(), x)
    widths = LearnedWidths(model)
    for _ in range(2):
        (model(x).square().sum() + widths.cost).backward()
    bits = widths.parameters_of_bits()
    assert [tuple(p.shape) for p in bits] == [(), (), ()]
    assert all(float(p.grad.abs()) > 0 for p in bits)
    sides = model.get_submodule("matmul_quantized").quantizers
    expected = 32 * 6 * sides["data_in"].magnitude_bits() * sides["weight"].magnitude_bits()
    assert float(widths.value) == float(expected) > 0


def test_activation_checkpointing_is_refused() -> None:
    class Again(torch.autograd.Function):  # torch's own takes seconds to import
        @staticmethod
        def forward(ctx: Any, x: Tensor, model: nn.Module) -> Any:
            ctx.save_for_backward(x)
            ctx.model = model
            return model(x)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                torch.autograd.backward(ctx.model(x), grads)
            return x.grad, None

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Any:
            return Again.apply(x, self.inner)  # type: ignore[no-untyped-call]

    model = Checkpointed()
    widths = LearnedWidths(model)
    x, y = rows()
    with pytest.raises(ConfigError, match="activation checkpointing"):
        F.cross_entropy(model(x.requires_grad_()), y).backward()
    widths.remove()
    F.cross_entropy(model(x), y).backward()


def test_what_cannot_learn_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing in this network learns its widths"):
        LearnedWidths(nn.Linear(3, 3))
    model = mlp()
    with pytest.raises(ConfigError, match="magnitude at least 0"):
        LearnedWidths(model, magnitude=-1.0)
    widths = LearnedWidths(model)
    with pytest.raises(ConfigError, match="being learned already"):
        LearnedWidths(model)
    for odd in (torch.nan, torch.inf):
        with pytest.raises(ConfigError, match="data_in of '0' saw values that are NaN or infinite"):
            widths.calibrate([torch.full((2, 6), odd)])
    with pytest.raises(ConfigError, match="at least one batch"):
        widths.calibrate([])


def test_calibration_sets_the_ranges_and_leaves_the_modes() -> None:
    model = mlp()
    widths = LearnedWidths(model)
    model.get_submodule("0").eval()
    x, _ = rows()
    widths.calibrate([x[:16], x[16:]])
    assert model.training
    assert not model.get_submodule("0").training
    first = model.get_submodule("0").quantizers["data_in"]
    assert torch.equal(first.hi, x.amax(0))
    assert torch.equal(first.lo, x.amin(0))
    far = torch.full((1, 6), 1e6)
    rounded = first.eval()(far)
    assert bool((rounded < 8).all())
    assert torch.equal(rounded, first.freeze()(far))


def test_a_parameter_is_asked_for_its_values() -> None:
    found = [m for m in mlp().modules() if isinstance(m, TrainedParameter)]
    with pytest.raises(ConfigError, match="depends on its values"):
        found[0].freeze()
