"""Whatever saving accepts, loading gives back; what cannot come back is refused by name."""

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import load_mase_graph, save_mase_graph_interface_pass

Builder = Callable[[str], nn.Module]
X = torch.ones(1, 2)


class Kept(nn.Module):
    """A layer in a dictionary, under any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(2, 2)})
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return self.parts[self.name](x)


class Set(nn.Module):
    """A layer that is an attribute of the model itself."""

    def __init__(self, name: str) -> None:
        super().__init__()
        setattr(self, name, nn.Linear(2, 2))
        self.layer_name = name

    def forward(self, x: Tensor) -> Tensor:
        return self._modules[self.layer_name](x)  # type: ignore[misc]


class Held(nn.Module):
    """A parameter of a part of the model."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.part = nn.Module()
        self.part.register_parameter(name, nn.Parameter(torch.ones(2)))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return x * getattr(self.part, self.name)


BUILDERS: dict[str, Builder] = {"kept": Kept, "set": Set, "held": Held}
COMES_BACK = (
    "block1-0", "a-b", "my layer", "1st", "0", "a/b", "a+b", "größe", "_private", "print", "self",
    "weight", "x", "layers", "in_proj", "A", "a_1", "__x", "-", " a", "code2",
)  # fmt: skip
ONLY_INSIDE = ("code", "graph", "recompile", "meta", "print_readable")
"""Names that every graph has, but not every module."""


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("name", COMES_BACK)
def test_names_of_layers_come_back(name: str, build: str, tmp_path: Path) -> None:
    graph = MaseGraph(BUILDERS[build](name).eval())
    save_mase_graph_interface_pass(graph, tmp_path)
    loaded = load_mase_graph(tmp_path)
    assert loaded.model.code == graph.model.code
    assert list(loaded.model.state_dict()) == list(graph.model.state_dict())
    assert torch.equal(loaded.model(X), graph.model(X))


@pytest.mark.parametrize("name", ONLY_INSIDE)
def test_names_of_graphs_are_free_inside(name: str, tmp_path: Path) -> None:
    for build in (Kept, Held):
        graph = MaseGraph(build(name).eval())
        save_mase_graph_interface_pass(graph, tmp_path / build.__name__)
        assert torch.equal(load_mase_graph(tmp_path / build.__name__).model(X), graph.model(X))


@pytest.mark.parametrize("name", ["a:b", "a'b", "a,b", "a::codes", "<a>", "__x__", "a\tb", "ﬁ"])
def test_names_that_cannot_come_back_are_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError) as caught:
        save_mase_graph_interface_pass(MaseGraph(Kept(name)), tmp_path / "out")
    assert repr(f"parts.{name}") in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["code", "print_readable", "recompile", "type", "half"])
def test_names_that_a_graph_has_already_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=f"'{name}' is an attribute of every module or graph"):
        save_mase_graph_interface_pass(MaseGraph(Set(name)), tmp_path / "out")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.text(min_size=1, max_size=6), build=st.sampled_from(sorted(BUILDERS)))
def test_any_name_is_refused_or_comes_back(name: str, build: str, tmp_path: Path) -> None:
    try:
        graph = MaseGraph(BUILDERS[build](name).eval())
        expected = graph.model(X)
    except Exception:  # noqa: BLE001  # torch or fx has no such name
        return
    args = {"save_dir": tmp_path / "out", "replace": True}
    try:
        save_mase_graph_interface_pass(graph, args)
    except GraphError:
        return
    loaded = load_mase_graph(tmp_path / "out")
    assert torch.equal(loaded.model(X), expected)


def with_inputs(*names: str) -> MaseGraph:
    """A graph whose arguments have these names."""
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in names]
    graph.output(tuple(nodes))
    return MaseGraph(fx.GraphModule(nn.Module(), graph))


@pytest.mark.parametrize("names", [("input",), ("x", "y"), ("torch",), ("a", "*args", "**kwargs")])
def test_names_of_arguments_come_back(names: tuple[str, ...], tmp_path: Path) -> None:
    graph = with_inputs(*names)
    save_mase_graph_interface_pass(graph, tmp_path)
    assert load_mase_graph(tmp_path).model.code == graph.model.code


Pair = namedtuple("Pair", "left right")


class Returning(nn.Module):
    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: {"a": [x, (x,)], "b": {"c": None}},
        lambda x: {1: x, (2, 3): x},
        lambda x: x[..., None, 0:1],
        lambda x: (x.new_full((2,), float("nan")), 1.5, 2**63, 1 + 2j),
        lambda x: x.to(torch.float64).to(torch.device("cpu"), memory_format=torch.preserve_format),
        lambda x: x.reshape(torch.Size([2, 1])),
    ],
)
def test_values_come_back(make: Callable[[Tensor], Any], tmp_path: Path) -> None:
    graph = MaseGraph(Returning(make))
    save_mase_graph_interface_pass(graph, tmp_path)
    assert load_mase_graph(tmp_path).model.code == graph.model.code


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda x: Pair(x, x), "Pair"),
        (lambda x: (x, 2**64), "a number of 65 bits"),
        (lambda x: (x, range(3)), "range"),
    ],
)
def test_values_that_cannot_come_back_are_refused(
    make: Callable[[Tensor], Any], said: str, tmp_path: Path
) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(make(x))
    with pytest.raises(GraphError, match=f"node 'output' .*{said}"):
        save_mase_graph_interface_pass(
            MaseGraph(fx.GraphModule(nn.Module(), graph)), tmp_path / "o"
        )


def test_a_class_without_a_name_is_refused(tmp_path: Path) -> None:
    model = type("My Net", (nn.Module,), {"forward": lambda self, x: x + 1})()
    with pytest.raises(GraphError, match="'My Net' is not a name"):
        save_mase_graph_interface_pass(MaseGraph(model), tmp_path / "out")
