"""In evaluation weights are rounded once, and never out of date."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from ops.examples import FORMAT_NAMES, config_of
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.nn.quant_config import parse_quant_config
from chop.nn.quantized import QuantizedModule, quantize_module
from chop.numerics import Integer
from chop.ops.table import OPS

LINEAR = OPS["linear"]
X = torch.linspace(-2, 2, 8).view(2, 4)
FIXED = Integer(width=8, frac_width=4)


@pytest.fixture(name="roundings")
def _roundings(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of everything that is rounded to fixed point."""
    shapes: list[torch.Size] = []
    original = Integer.round_to

    def counted(self: Integer, x: Tensor) -> Tensor:
        shapes.append(x.shape)
        return original(self, x)

    monkeypatch.setattr(Integer, "round_to", counted)
    return shapes


def quantised(format_name: str = "integer", **more: object) -> QuantizedModule:
    quant = parse_quant_config(LINEAR, config_of(format_name, **more), "test")
    return quantize_module(nn.Linear(4, 3), LINEAR, quant).eval()


def expected(module: QuantizedModule) -> Tensor:
    return F.linear(FIXED(X), FIXED(module.weight.detach()), FIXED(module.bias.detach()))


@torch.no_grad()
def test_weights_are_rounded_once(roundings: list[torch.Size]) -> None:
    module = quantised()
    for _ in range(5):
        module(X)
    assert roundings.count(torch.Size([3, 4])) == 1
    assert roundings.count(torch.Size([3])) == 1
    assert roundings.count(X.shape) == 5


def test_frozen_weights_are_rounded_once_in_training(roundings: list[torch.Size]) -> None:
    module = quantised().train().requires_grad_(False)
    for _ in range(3):
        module(X)
    assert roundings.count(torch.Size([3, 4])) == 1


def test_with_gradients_nothing_is_kept() -> None:
    module = quantised()
    assert torch.equal(module(X), expected(module))
    assert not module._kept._kept
    module(X).sum().backward()
    assert module.weight.grad is not None


def sgd_step(module: nn.Module) -> None:
    with torch.enable_grad():
        module(X).pow(2).sum().backward()
    torch.optim.SGD(module.parameters(), lr=1.0).step()


def load(module: nn.Module) -> None:
    module.load_state_dict(nn.Linear(4, 3).state_dict())


def assign(module: nn.Module) -> None:
    module.load_state_dict(nn.Linear(4, 3).state_dict(), assign=True)


def write_data(module: nn.Module) -> None:
    module.weight.data.mul_(2)


def replace_data(module: nn.Module) -> None:
    module.weight.data = torch.randn(3, 4)


def replace_data_twice(module: nn.Module) -> None:
    for _ in range(2):  # the second may land where the first was
        module.weight.data = module.weight.data * 2


def augmented_data(module: nn.Module) -> None:
    module.weight.data += 1


def write_one_element(module: nn.Module) -> None:
    module.weight.data[2, 3] = 5


def write_through_numpy(module: nn.Module) -> None:
    module.weight.detach().numpy()[0, 0] = 3


def write_through_a_view(module: nn.Module) -> None:
    module.weight.detach().view(-1)[3:5] = 1


def swap_rows(module: nn.Module) -> None:
    module.weight.data.copy_(module.weight.data.flip(0))


def new_parameter(module: nn.Module) -> None:
    module.weight = nn.Parameter(torch.randn(3, 4))


def prune_it(module: nn.Module) -> None:
    class Half(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight / 2

    parametrize.register_parametrization(module, "weight", Half())


def change_mode(module: nn.Module) -> None:
    module.train()
    sgd_step(module)
    module.eval()


CHANGES = [
    sgd_step,
    load,
    assign,
    write_data,
    replace_data,
    replace_data_twice,
    augmented_data,
    write_one_element,
    write_through_numpy,
    write_through_a_view,
    swap_rows,
    new_parameter,
    prune_it,
    change_mode,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_no_change_goes_unnoticed(
    change: Callable[[nn.Module], None], guard: type[torch.no_grad]
) -> None:
    module = quantised()
    with guard():
        before = module(X)
    with torch.no_grad():
        change(module)
    with guard():
        after = module(X)
        assert torch.equal(after, expected(module))
        assert torch.equal(module(X), after)
    assert not torch.equal(before, after)


@torch.no_grad()
def test_another_dtype_is_noticed() -> None:
    module = quantised()
    module(X)
    assert module.double()(X.double()).dtype is torch.float64
    assert module.float()(X).dtype is torch.float32


@torch.no_grad()
def test_another_configuration_is_noticed() -> None:
    module = quantised()
    before = module(X)
    coarse = config_of("integer", weight_frac_width=1)
    module.quant = parse_quant_config(LINEAR, coarse, "test")
    assert not torch.equal(module(X), before)
    assert torch.equal(module(X), quantize_module(module, LINEAR, module.quant)(X))


@torch.no_grad()
def test_the_sign_of_zero_and_nan_count_as_bits(roundings: list[torch.Size]) -> None:
    module = quantised()
    module.weight.zero_()
    module(X)
    module.weight.neg_()
    module(X)
    module.weight.fill_(torch.nan)
    module(X)
    module(X)
    assert roundings.count(torch.Size([3, 4])) == 3


def test_weights_kept_in_inference_mode_do_not_enter_training() -> None:
    module = quantised().requires_grad_(False)
    with torch.inference_mode():
        module(X)
    x = X.clone().requires_grad_()
    module(x).sum().backward()
    assert x.grad is not None
    with torch.inference_mode():
        assert torch.equal(module(X), expected(module))


@torch.no_grad()
def test_nothing_is_kept_in_copies_files_or_training() -> None:
    module = quantised()
    module(X)
    size = len(pickle.dumps(quantised()))
    assert abs(len(pickle.dumps(module)) - size) < 16
    assert module._kept._kept
    assert not copy.deepcopy(module)._kept._kept
    assert set(module.state_dict()) == {"weight", "bias"}
    assert not module.train()._kept._kept


@torch.no_grad()
def test_handing_out_the_weight_does_not_expose_what_is_kept() -> None:
    module = quantised()
    before = module(X)
    module.get_quantized_weight().zero_()
    assert torch.equal(module(X), before)


@torch.no_grad()
def test_random_rounding_is_drawn_anew() -> None:
    module = quantised("binary", weight_stochastic=True, weight_bipolar=True)
    module.weight.zero_()
    assert len({tuple(module(X).flatten().tolist()) for _ in range(20)}) > 1


@torch.no_grad()
@pytest.mark.parametrize("format_name", FORMAT_NAMES)
def test_every_format_gives_the_same_again(format_name: str) -> None:
    module = quantised(format_name)
    first = module(X)
    assert torch.equal(module(X), first)
    module.weight.data.mul_(-2)
    fresh = quantize_module(module, LINEAR, module.quant)
    assert torch.equal(module(X), fresh(X))
