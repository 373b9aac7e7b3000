"""A quantised graph beside its integer program: what both compute, and where they differ."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import Recorder, undisturbed
from chop.lowering.engine import Engine
from chop.lowering.exactness import analyse
from chop.lowering.from_graph import Lowering
from chop.lowering.symbols import Exact, is_symbolic

Numbers = dict[fx.Node, Tensor]


class BrokenPromiseError(GraphError):
    """A simulation that differs from the integers although the analysis says that it cannot."""


@dataclass(frozen=True)
class Agreement:
    """How far the simulation in floating point agrees with the integers."""

    rows: int
    """Rows that both have computed."""
    promised: bool
    """The analysis says that the simulation is exact, for every input."""
    accumulator_bits: int
    numbers: int
    """Outputs that were compared."""
    different: int
    """Outputs that differ."""
    predictions: int
    """Rows whose largest output is another; where numbers are predicted, any output."""

    def __add__(self, other: "Agreement") -> "Agreement":
        return replace(
            self,
            rows=self.rows + other.rows,
            numbers=self.numbers + other.numbers,
            different=self.different + other.different,
            predictions=self.predictions + other.predictions,
        )

    def __str__(self) -> str:
        if self.promised and not self.different:
            return f"the simulation is exact for every input, and was on {self.rows:,} rows"
        said = "for every input" if self.promised else "nowhere for certain"
        return (
            f"the simulation is exact {said}: {self.different:,} of {self.numbers:,} outputs and "
            f"{self.predictions:,} of {self.rows:,} predictions differ"
        )


class InIntegers(nn.Module):
    """Computes in integers what a quantised model simulates, and remembers where they differ.

    What stays in floating point at the end of a network, such as a softmax, is computed by the
    model from the numbers that the integers stand for.

    Args:
        model: a quantised model, which is traced if it is no graph.
        example: a batch, for its shape.
        classes: whether the largest output of a row is what is predicted, or all of them are.
    """

    def __init__(self, model: nn.Module, example: Tensor, classes: bool = True) -> None:
        super().__init__()
        self.classes = classes
        graph = MaseGraph(model, example_inputs=example)
        self.model = graph.model
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        if len(inputs) != 1:
            raise GraphError(f"the network has {len(inputs)} inputs, and one is expected")
        self._input = str(inputs[0].target)
        lowering = Lowering(graph, {self._input: example})
        self.program, symbols = lowering.program(cut_tail=True), lowering.results
        exactness = analyse(self.program)
        self._dtype = next((p.dtype for p in model.parameters()), torch.float32)
        promised = exactness.exact(str(self._dtype).removeprefix("torch."))
        self.agreement = Agreement(0, promised, exactness.accumulator_bits, 0, 0, 0)
        known = self.program.values
        self.values = {
            node: symbol.value.name
            for node, symbol in symbols.items()
            if isinstance(symbol, Exact) and symbol.value.name in known
        }
        self.cut = self._cut(symbols)
        self._engine = self._engine_of([self.values[node] for node in self.cut])

    def _cut(self, symbols: Mapping[fx.Node, Any]) -> list[fx.Node]:
        """The nodes after which floating point begins, or the network ends."""
        tail = {*self.program.tail}
        readers = [n for n in symbols if n.name in tail or n.op == "output"]
        cut = [
            source
            for node in readers
            for source in node.all_input_nodes
            if source.name not in tail and is_symbolic(symbols[source])
        ]
        for node in cut:
            if node not in self.values:
                raise GraphError(f"{node.name} is no single value in integers, to be compared")
        return list(dict.fromkeys(cut))

    def _engine_of(self, outputs: Iterable[str]) -> Engine:
        return Engine(replace(self.program, outputs=tuple(outputs)))

    def forward(self, features: Tensor) -> Any:
        """What the network gives for rows, in integers; the simulation runs beside it."""
        simulated, last = self._simulate(features)
        numbers = self._engine(**{self._input: features.cpu()})
        exact = dict(zip(self.cut, numbers, strict=True))
        result = self._finished(exact, features.device)
        self.agreement += self._compared(simulated, exact, last, result)
        return result

    def _simulate(self, features: Tensor) -> tuple[Numbers, Any]:
        """The results at the cut and at the end, as the model computes them."""
        kept: Numbers = {}

        def keep(node: fx.Node, result: Any) -> None:
            if node in wanted:
                kept[node] = result

        wanted = {*self.cut}
        recorder = Recorder(self.model, after=keep)
        return kept, recorder.run(features.clone(), enable_io_processing=False)

    def _finished(self, exact: Numbers, device: torch.device) -> Any:
        """The result of the network from the numbers at the cut."""
        last = next(node for node in self.model.graph.nodes if node.op == "output")
        if not self.program.tail:
            return fx.map_arg(last.args[0], lambda node: exact[node].to(device))
        tail = {*self.program.tail}
        known: dict[fx.Node, Any] = {
            node: exact[node].to(device, self._dtype) if node in exact else None
            for node in self.model.graph.nodes
            if node.name not in tail and node.op not in ("get_attr", "output")
        }
        return Recorder(self.model).run(initial_env=known, enable_io_processing=False)

    def _compared(self, simulated: Numbers, exact: Numbers, last: Any, result: Any) -> Agreement:
        pairs = [(simulated[node].cpu().double(), exact[node]) for node in self.cut]
        rows = len(pairs[0][0])
        apart = 0
        if isinstance(last, Tensor) and (last.dim() > 1 or not self.classes):
            both = [each.reshape(rows, -1) for each in (last.cpu().double(), result.cpu().double())]
            one, other = [each.argmax(1, keepdim=True) for each in both] if self.classes else both
            apart = int((one != other).any(dim=1).sum())
        return replace(
            self.agreement,
            rows=rows,
            numbers=sum(one.numel() for one, _ in pairs),
            different=sum(int((one != other).sum()) for one, other in pairs),
            predictions=apart,
        )

    def first_difference(self, features: Tensor) -> str | None:
        """The first node whose numbers are not those of the integers; None if all are."""
        results: dict[fx.Node, Any] = {}
        Recorder(self.model, after=results.__setitem__).run(
            features.clone(), enable_io_processing=False
        )
        numbers = self._engine_of(self.values.values())(**{self._input: features.cpu()})
        for node, exact in zip(self.values, numbers, strict=True):
            if not torch.equal(results[node].cpu().double(), exact):
                return node.name
        return None


FEW = {1: 4, 7: 21}
"""Rows that are computed in small batches, whose kernels differ from those of large ones."""
AT_ONCE = 2**22
"""Elements of the input that are computed at once otherwise."""


def compare(model: nn.Module, features: Tensor) -> Agreement:
    """The simulation of a quantised model against its integers, in batches of one, seven and all.

    A difference where the analysis promised that there is none is an error.
    """
    both = InIntegers(model, features[:1])
    nothing = both.agreement
    most = max(1, AT_ONCE // max(1, features[0].numel()))
    with undisturbed(both.model):
        for size, rows in (*FEW.items(), (most, len(features))):
            both.agreement = nothing
            for batch in torch.split(features[:rows], size):
                both(batch)
                if both.agreement.promised and both.agreement.different:
                    node = both.first_difference(batch)
                    raise BrokenPromiseError(
                        f"the simulation differs from the integers in {node}, at a batch size of "
                        f"{len(batch)}, where it must not: this is a bug in chop"
                    )
    return both.agreement
