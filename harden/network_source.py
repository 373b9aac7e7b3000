"""Random networks as source code, so that what fails can be read and run again."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from harden.network_table import ACTIVE, BATCHED, OF_PAIRS, PLAIN, WITH_LAYERS, Template

MOST_ELEMENTS = 3000
ATTRIBUTES = "abcd"
HEAD = """import math
import torch
import torch.nn.functional as F
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
"""
FAMILIES = {"rows": (2, 2), "sequences": (3, 3), "images": (4, 4)}
"""The ranks of the inputs of each kind of network, from and to."""
OUTPUTS = ("{0}", "({0}, {1})", "[{0}, {1}]", "{{'scores': {0}, 'others': ({1},)}}")


@dataclass(frozen=True)
class Network:
    """A network: its layers and steps as lines of Python, and what it is run on."""

    layers: tuple[str, ...]
    steps: tuple[str, ...]
    output: str
    shape: tuple[int, ...]
    seed: int = 0
    training: bool = False
    scale: float = 1.0

    @property
    def source(self) -> str:
        """The code of the class."""
        made = [f"        {line}" for line in self.layers]
        done = [f"        {line}" for line in (*self.steps, f"return {self.output}")]
        return HEAD + "\n".join([*made, "", "    def forward(self, x):", *done]) + "\n"

    def build(self) -> nn.Module:
        """The module, with the same weights each time."""
        torch.manual_seed(self.seed)
        names: dict[str, Any] = {}
        exec(compile(self.source, "<network>", "exec"), names)
        model: nn.Module = names["Network"]()
        return model.train(self.training)

    def inputs(self) -> Tensor:
        """The batch it is run on, the same each time."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(self.shape, generator=generator) * self.scale


class Writer:
    """Writes a network line by line, running each line to see that it works."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.holder = nn.Module().eval()
        self.names: dict[str, Any] = {
            "torch": torch, "F": F, "nn": nn, "math": math, "self": self.holder,
            "x": torch.randn(shape, generator=torch.Generator().manual_seed(0)),
        }  # fmt: skip
        self.values = ["x"]
        self.layers: list[str] = []
        self.steps: list[str] = []
        self.calls: list[str] = []
        """Calls of layers, with a place for the value, to be made again on another."""
        self.made = 0

    def value(self, name: str) -> Tensor:
        """What a line gave."""
        found: Tensor = self.names[name]
        return found

    def step(self, template: Template, v: str, w: str, k: int) -> bool:
        """Add a step, if it can be run on this value."""
        shape = self.value(v).shape
        sizes = {
            "last": shape[-1] if shape else 1,
            "channels": shape[1] if len(shape) > 1 else 1,
            "k": k,
        }
        names = [f"m{self.made + place}" for place in range(len(template.makes))]
        attributes = dict(zip(ATTRIBUTES, (f"self.{name}" for name in names), strict=False))
        made = [
            f"self.{name} = {text.format(**sizes)}"
            for name, text in zip(names, template.makes, strict=True)
        ]
        call = template.call.format(v="{v}", w="{w}", **sizes, **attributes)
        if not self.add(made, call.format(v=v, w=w)):
            return False
        self.made += len(names)
        if made:
            self.calls.append(call)
        return True

    def add(self, made: list[str], call: str) -> bool:
        """Run some lines; keep them if they give a small tensor of real numbers."""
        name = f"v{len(self.steps) + 1}"
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for line in made:
                    exec(line, self.names)
                    self.holder.eval()
                result = eval(call, dict(self.names))
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError, KeyError):
            return False
        if not (isinstance(result, Tensor) and result.dtype == torch.float32):
            return False
        if not 0 < result.numel() <= MOST_ELEMENTS:
            return False
        self.names[name] = result
        self.layers += made
        self.steps.append(f"{name} = {call}")
        self.values.append(name)
        return True

    def again(self, call: str, renamed: bool) -> None:
        """Call a layer once more, under its own name or under a second one."""
        name = call.partition("self.")[2].partition("(")[0].partition(")")[0]
        if (
            renamed
            and name.isidentifier()
            and self.add(
                [f"self.m{self.made} = self.{name}"],
                call.replace(f"self.{name}", f"self.m{self.made}"),
            )
        ):
            self.made += 1
        elif not renamed:
            self.add([], call)

    def same_shape(self, name: str) -> list[str]:
        """The values that have the shape of one."""
        return [each for each in self.values if self.value(each).shape == self.value(name).shape]


def shapes(family: str) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of inputs: a batch and what a sample is made of."""
    low, high = FAMILIES[family]
    sizes = st.lists(st.integers(1, 5), min_size=low - 1, max_size=high - 1)
    return st.tuples(st.integers(2, 4), sizes).map(lambda drawn: (drawn[0], *drawn[1]))


@st.composite
def networks(draw: st.DrawFn, family: str = "rows", most_steps: int = 8) -> Network:
    """A random network of a family."""
    shape = draw(shapes(family))
    writer = Writer(shape)
    for _ in range(draw(st.integers(1, most_steps))):
        draw_step(draw, writer)
    if len(writer.steps) > 1 and draw(st.integers(0, 5)) == 0:
        tie(draw, writer)
    earlier = draw(st.sampled_from(writer.values))
    output = draw(st.sampled_from(OUTPUTS)).format(writer.values[-1], earlier)
    return Network(
        tuple(writer.layers),
        tuple(writer.steps),
        output,
        shape,
        seed=draw(st.integers(0, 1000)),
        training=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 0.05, 30.0])),
    )


KINDS = ("layer", "layer", "plain", "batched", "pair", "active", "again")


def draw_step(draw: st.DrawFn, writer: Writer) -> None:
    """One more step, on a late value for the most part."""
    place = draw(st.integers(1, min(4, len(writer.values))))
    v = writer.values[-place]
    kind = draw(st.sampled_from(KINDS))
    if kind == "again" and writer.calls:
        call = draw(st.sampled_from(writer.calls))
        writer.again(call.format(v=v, w=v), renamed=draw(st.booleans()))
        return
    rank = writer.value(v).dim()
    table = {"layer": WITH_LAYERS, "batched": BATCHED, "pair": OF_PAIRS, "active": ACTIVE}
    fitting = [each for each in table.get(kind, PLAIN) if each.takes(rank)]
    template = draw(st.sampled_from(fitting or PLAIN))
    w = draw(st.sampled_from(writer.same_shape(v)))
    writer.step(template, v, w, draw(st.integers(1, 4)))


def tie(draw: st.DrawFn, writer: Writer) -> None:
    """Give two layers one weight, a layer a second name, or training nothing to do."""
    weights: dict[torch.Size, list[str]] = {}
    kept = {line.split()[0] for line in writer.layers}
    for name, layer in writer.holder.named_children():
        weight = getattr(layer, "weight", None)
        if f"self.{name}" in kept and isinstance(weight, nn.Parameter):
            weights.setdefault(weight.shape, []).append(name)
    alike = [names for names in weights.values() if len(names) > 1]
    if alike:
        one, other = draw(st.sampled_from(alike))[:2]
        writer.layers.append(f"self.{other}.weight = self.{one}.weight")
    elif weights:
        name = draw(st.sampled_from(sorted(each for names in weights.values() for each in names)))
        writer.layers.append(f"self.{name}.weight.requires_grad_(False)")
