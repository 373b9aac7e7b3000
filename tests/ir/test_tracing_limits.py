"""Messages of models that cannot be traced: the line of their code, and a remedy that works."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import chop
from chop import MaseGraph
from chop.errors import GraphError


def decorated(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def inner(*args: Any) -> Any:
        return forward(*args)

    return inner


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


class Branch(Layer):
    def forward(self, x: Tensor) -> Any:
        return self.linear(x) if x.sum() > 0 else x  # HERE


class Decorated(Layer):
    @decorated
    def forward(self, x: Tensor) -> Any:
        return self.linear(x) * int(x.max())  # HERE


class Loop(Layer):
    def forward(self, x: Tensor) -> Any:
        while x.norm() > 1:  # HERE
            x = 0.5 * self.linear(x).tanh()
        return x


class Checked(Layer):
    def forward(self, x: Tensor) -> Any:
        assert (x < 100).all()  # HERE
        return self.linear(x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Branch()

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) + 1


class Broken(Layer):
    def forward(self, x: Tensor) -> Any:
        if x.shape[0] > 99:
            return x
        return self.missing(x)  # HERE


@pytest.mark.parametrize("kind", [Branch, Decorated, Loop, Checked, Outer])
def test_the_line_and_a_remedy(kind: type[nn.Module], capfd: pytest.CaptureFixture[str]) -> None:
    rows = torch.linspace(-1, 2, 12).reshape(3, 4)
    with pytest.raises(GraphError) as caught:
        MaseGraph(kind(), example_inputs=rows)
    assert "# HERE" in str(caught.value)
    assert "trace=False" in str(caught.value)
    assert capfd.readouterr().err == ""  # torch prints a graph of each attempt
    model = chop.quantize(kind(), width=8, trace=False)
    model(rows).sum().backward()
    assert model.untraced.layers


def test_a_model_that_cannot_be_called_is_not_for_tracing_to_mend() -> None:
    with pytest.raises(GraphError, match="fails so too when it is called") as caught:
        MaseGraph(Broken(), example_inputs=torch.ones(2, 4))
    assert "# HERE" in str(caught.value)
    assert "cf_args" not in str(caught.value)
