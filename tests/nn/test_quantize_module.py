"""What survives quantisation: state, hooks, pruning, users' classes."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from ops.examples import config_of
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize, prune

from chop.errors import ConfigError
from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import QuantizedModule, quantize_module
from chop.numerics import FORMATS, Integer
from chop.ops.op import op_of_module
from chop.ops.table import OPS

FIXED = Integer(width=8, frac_width=4)


def quantised(module: nn.Module, format_name: str = "integer", **more: object) -> QuantizedModule:
    op = op_of_module(module)
    assert op is not None
    return quantize_module(
        module, op, parse_quant_config(op, config_of(format_name, **more), "test")
    )


class HalfMask(nn.Module):
    """A pruning mask as torch parametrises it."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (torch.arange(weight.numel()).view_as(weight) % 2)


class Scaled(nn.Linear):
    """A user's layer with a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input) * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_dtype_mode_and_gradients_are_kept(dtype: torch.dtype, training: bool) -> None:
    module = nn.Linear(4, 3, dtype=dtype).train(training)
    module.bias.requires_grad_(False)
    new = quantised(module)
    assert new.training is training
    assert new.weight is module.weight
    assert new.weight.requires_grad
    assert not new.bias.requires_grad
    assert new(torch.randn(2, 4, dtype=dtype)).dtype is dtype


def test_the_device_is_kept() -> None:
    new = quantised(nn.Linear(4, 3, device="meta"))
    assert new.weight.is_meta
    with torch.no_grad():
        assert new.eval()(torch.randn(2, 4, device="meta")).is_meta


def test_tensors_are_shared_but_lists_are_not() -> None:
    module = nn.BatchNorm1d(3)
    new = quantised(module)
    assert new.weight is module.weight
    assert new.running_mean is module.running_mean
    new.register_buffer("extra", torch.ones(1))
    new.register_forward_hook(lambda *_: None)
    assert "extra" not in dict(module.named_buffers())
    assert not module._forward_hooks
    assert set(new.state_dict()) - set(module.state_dict()) == {"extra"}


def test_tied_weights_stay_tied() -> None:
    table = nn.Embedding(5, 4)
    head = nn.Linear(4, 5, bias=False)
    head.weight = table.weight
    assert quantised(table).weight is quantised(head).weight


def test_hooks_survive() -> None:
    module, seen = nn.Linear(4, 3), []
    module.register_forward_pre_hook(lambda m, args: seen.append(("before", type(m).__name__)))
    module.register_forward_hook(lambda m, args, out: seen.append(("after", type(m).__name__)))
    module.register_full_backward_hook(lambda m, *_: seen.append(("back", type(m).__name__)))
    quantised(module)(torch.randn(2, 4, requires_grad=True)).sum().backward()
    assert seen == [(when, "LinearInteger") for when in ("before", "after", "back")]


def test_state_dicts_go_both_ways() -> None:
    module, new = nn.Linear(4, 3), quantised(nn.Linear(4, 3))
    new.load_state_dict(module.state_dict())
    assert torch.equal(new.weight, module.weight)
    module.load_state_dict(quantised(nn.Linear(4, 3)).state_dict())


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_batch_norm_updates_its_statistics_in_training(dims: int) -> None:
    module = OPS[f"batch_norm{dims}d"].module
    assert module is not None
    ours, theirs = module(4), module(4)
    new, x = quantised(ours), torch.randn(5, 4, *[3] * dims)
    assert torch.equal(new(x), theirs(FIXED(x)))
    assert new.num_batches_tracked == 1
    assert torch.equal(new.running_mean, theirs.running_mean)
    assert torch.equal(new.eval()(x), theirs.eval()(FIXED(x)))


def test_dropout_between_modes_and_one_dimensional_input() -> None:
    new = quantised(nn.Linear(4, 3))
    assert new(torch.randn(new.in_features)).shape == (3,)
    assert new(torch.empty(0, 4)).shape == (0, 3)


def test_what_the_labs_call() -> None:
    new = quantised(nn.Linear(4, 3))
    weight = new.get_quantized_weight()
    assert torch.equal(weight, FIXED(new.weight.detach()))
    assert "SliceBackward0" in str(weight[0:1])
    assert new.w_quantizer == new.x_quantizer == new.b_quantizer == FIXED
    assert torch.equal(new.get_quantized_bias(), FIXED(new.bias.detach()))
    assert new.config["weight_width"] == 8
    assert new.config["name"] == "integer"
    assert not new.bypass
    assert quantised(nn.Embedding(3, 2)).x_quantizer is None
    assert quantised(nn.Linear(4, 3, bias=False)).get_quantized_bias() is None


def test_bypass_can_be_switched() -> None:
    module, x = nn.Linear(4, 3), torch.randn(2, 4)
    new = quantised(module)
    rounded = new(x)
    new.bypass = True
    assert torch.equal(new(x), module(x))
    assert torch.equal(new.get_quantized_weight(), module.weight)
    assert repr(new).endswith("bias=True; bypass)")
    new.bypass = False
    assert torch.equal(new(x), rounded)


def test_the_output_is_rounded_if_asked() -> None:
    x = torch.randn(2, 4)
    new = quantised(nn.Linear(4, 3), data_out_width=3, data_out_frac_width=1)
    plain = quantize_module(new, new.op, parse_quant_config(new.op, config_of("integer"), "test"))
    assert torch.equal(new(x), Integer(width=3, frac_width=1)(plain(x)))


def test_keyword_and_further_arguments() -> None:
    x = torch.randn(2, 4)
    new = quantised(nn.Linear(4, 3))
    assert torch.equal(new(input=x), new(x))
    up = quantised(nn.ConvTranspose2d(1, 1, 3, stride=2))
    image = torch.randn(1, 1, 4, 4)
    assert up(image, output_size=[10, 10]).shape[-2:] == up(image, [10, 10]).shape[-2:] == (10, 10)


def test_pools_may_return_indices() -> None:
    values, indices = quantised(nn.MaxPool1d(2, return_indices=True))(torch.randn(1, 1, 6))
    assert values.shape == indices.shape


@pytest.mark.parametrize("format_name", ["integer", "binary"])
def test_a_module_that_writes_in_place_still_does(format_name: str) -> None:
    leaf = torch.randn(3, 4, requires_grad=True)
    x = leaf * 1
    result = quantised(nn.ReLU(inplace=True), format_name)(x)
    assert result is x
    assert torch.equal(x, quantised(nn.ReLU(), format_name)(leaf))
    x.sum().backward()
    assert leaf.grad is not None
    given = torch.randn(3)
    assert quantised(nn.ReLU(inplace=True))(input=given) is given


def test_writing_in_place_leaves_what_the_gradient_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clipped(Integer):
        """Fixed point whose gradient depends on where rounding happened."""

        label = "Clipped"

        def gradient(self, x: Tensor, grad: Tensor) -> Tensor:
            return grad * (x.abs() < 1)

    monkeypatch.setattr(FORMATS, "_entries", {**FORMATS, "clipped": Clipped})
    leaf = torch.tensor([-0.5, 0.5, 3.0], requires_grad=True)
    quantised(nn.ReLU(inplace=True), "clipped")(leaf * 1).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [0, 1, 0]


def test_quantising_again_changes_the_format() -> None:
    module, x = nn.Linear(4, 3), torch.randn(2, 4)
    again = quantised(quantised(module), "log")
    assert type(again).__name__ == "LinearLog"
    assert again.base is nn.Linear
    assert torch.equal(again(x), quantised(module, "log")(x))


def test_a_user_class_keeps_its_forward_and_pickles() -> None:
    module, x = Scaled(4, 3), torch.randn(2, 4)
    new = quantised(module)
    expected = F.linear(FIXED(x), FIXED(module.weight), FIXED(module.bias)) * 3
    assert type(new).__name__ == "ScaledInteger"
    assert isinstance(new, Scaled)
    assert torch.equal(new(x), expected)
    for twin in (copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
        assert torch.equal(twin(x), expected)


@pytest.mark.parametrize("order", ["prune, quantise", "quantise, prune", "prune, quantise twice"])
def test_pruning_and_quantising_in_either_order(order: str) -> None:
    module, x = nn.Linear(4, 3), torch.randn(2, 4)
    weight, bias = module.weight.detach().clone(), module.bias.detach().clone()
    if order.startswith("quantise"):
        module = quantised(module)
    parametrize.register_parametrization(module, "weight", HalfMask())
    if order.endswith("twice"):
        module = quantised(module, "log")
    if order.startswith("prune"):
        module = quantised(module)
    assert isinstance(module, QuantizedModule)
    expected = F.linear(FIXED(x), FIXED(HalfMask()(weight)), FIXED(bias))
    assert type(module).__name__ == "ParametrizedLinearInteger"
    assert op_of_module(module) is OPS["linear"]
    for mode in (True, False):
        assert torch.equal(module.train(mode)(x), expected)
    assert torch.equal(copy.deepcopy(module)(x), expected)
    assert (module.get_quantized_weight().flatten()[::2] == 0).all()
    module(x).sum().backward()
    assert module.parametrizations.weight.original.grad is not None
    parametrize.remove_parametrizations(module, "weight")
    assert type(module).__name__ == "LinearInteger"
    assert torch.equal(module(x), expected)


@pytest.mark.parametrize("quantise_first", [True, False])
def test_pruning_of_the_older_kind(quantise_first: bool) -> None:
    module, x = nn.Linear(4, 3), torch.randn(2, 4)
    if quantise_first:
        module = quantised(module)
    prune.l1_unstructured(module, "weight", amount=0.5)
    if not quantise_first:
        module = quantised(module)
    with torch.no_grad():
        module.weight_orig.mul_(2)
    expected = module.weight_orig * module.weight_mask
    with torch.no_grad():
        result = module.eval()(x)
    assert torch.equal(result, F.linear(FIXED(x), FIXED(expected), FIXED(module.bias)))


def test_a_plain_tracer_does_not_lose_the_rounding() -> None:
    model = nn.Sequential(quantised(nn.Linear(4, 3)))
    with pytest.raises(fx.proxy.TraceError):
        fx.symbolic_trace(model)


def test_what_cannot_be_quantised_is_refused() -> None:
    quant = parse_quant_config(OPS["linear"], config_of("integer"), "test")
    with pytest.raises(ConfigError, match="ReLU is not the operation 'linear'"):
        quantize_module(nn.ReLU(), OPS["linear"], quant)
    with pytest.raises(ConfigError, match="'dropout' has no module"):
        quantize_module(nn.Dropout(), OPS["dropout"], quant)
    with pytest.raises(ConfigError, match="run the model once"):
        quantize_module(nn.LazyLinear(3), OPS["linear"], quant)
    with pytest.raises(ConfigError, match="cannot take the format 'log'"):
        quantised(nn.Linear(2, 2)).quant = parse_quant_config(OPS["linear"], config_of("log"), "t")


def test_a_norm_needs_a_weight_format_only_if_it_has_a_weight() -> None:
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
    quant = parse_quant_config(OPS["layer_norm"], config, "test")
    quantize_module(nn.LayerNorm(4, elementwise_affine=False), OPS["layer_norm"], quant)
    with pytest.raises(ConfigError, match="layer_norm in 'integer' has a weight: 'weight_width'"):
        quantize_module(nn.LayerNorm(4), OPS["layer_norm"], quant)
