"""A quantised graph beside its integer program: what both compute, and where they differ."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.recorder import Recorder, preserve_model, run_graph
from chop.lowering import program as steps
from chop.lowering.engine import Engine, different_codes
from chop.lowering.exactness import EXACT, Exactness, analyse
from chop.lowering.from_graph import Lowering
from chop.lowering.program import IntegerProgram
from chop.lowering.symbols import SYMBOLS, Exact, is_symbolic
from chop.nn.quantized import QuantizedModule
from chop.numerics import IntegerScaled

Numbers = dict[fx.Node, Tensor]


class BrokenPromiseError(GraphError):
    """A simulation that differs from the integers although the analysis says that it cannot."""


@dataclass(frozen=True)
class Agreement:
    """The agreement of the simulation in floating point with the integers."""

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
        model: a quantised model, which is traced if it is not a graph.
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
        self._dtype = own_type(model)
        promised = exactness.exact(str(self._dtype).removeprefix("torch."))
        self.agreement = Agreement(0, promised, exactness.accumulator_bits, 0, 0, 0)
        self.values = values_of_nodes(lowering, self.program)
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
                raise GraphError(f"{node.name} is not a single value in integers, to be compared")
        return list(dict.fromkeys(cut))

    def _engine_of(self, outputs: Iterable[str]) -> Engine:
        return Engine(replace(self.program, outputs=tuple(outputs)))

    def forward(self, features: Tensor) -> Any:
        """The results of the network for rows, in integers; the simulation runs beside it."""
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
        known = self.program.values
        apart_at = [
            different_codes(simulated[node], exact[node], known[self.values[node]])
            for node in self.cut
        ]
        rows = len(apart_at[0])
        apart = 0
        if isinstance(last, Tensor) and (last.dim() > 1 or not self.classes):
            both = [each.reshape(rows, -1) for each in (last.cpu().double(), result.cpu().double())]
            one, other = [each.argmax(1, keepdim=True) for each in both] if self.classes else both
            apart = int((one != other).any(dim=1).sum())
        return replace(
            self.agreement,
            rows=rows,
            numbers=sum(each.numel() for each in apart_at),
            different=sum(int(each.sum()) for each in apart_at),
            predictions=apart,
        )

    def first_difference(self, features: Tensor) -> str | None:
        """The first node whose numbers are not those of the integers; None if all are."""
        results: dict[fx.Node, Any] = {}
        Recorder(self.model, after=results.__setitem__).run(
            features.clone(), enable_io_processing=False
        )
        return differing_node(self.program, self.values, results, {self._input: features.cpu()})


def own_type(model: nn.Module) -> torch.dtype:
    """The type that a model computes in."""
    floats = (each.dtype for each in model.parameters() if each.is_floating_point())
    return next(floats, torch.float32)


def values_of_nodes(lowering: Lowering, program: IntegerProgram) -> dict[fx.Node, str]:
    """The value of a program that each node computes, as far as one is what it computes."""
    known = program.values
    return {
        node: symbol.value.name
        for node, symbol in lowering.results.items()
        if isinstance(symbol, Exact) and symbol.value.name in known
    }


def differing_node(
    program: IntegerProgram,
    values: Mapping[fx.Node, str],
    results: Mapping[fx.Node, Any],
    inputs: Mapping[str, Tensor],
) -> str | None:
    """The first node whose numbers are not those of the integers; None if all are."""
    numbers = Engine(replace(program, outputs=tuple(values.values())))(**inputs)
    for node, exact in zip(values, numbers, strict=True):
        if different_codes(results[node], exact, program.values[values[node]]).any():
            return node.name
    return None


FEW = {1: 4, 7: 21}
"""Rows that are computed in small batches, whose kernels differ from those of large ones."""
AT_ONCE = 2**22
"""Elements of the input that are computed at once otherwise."""


def rows_at_once(row: int) -> int:
    """The number of rows of so many elements that are computed at once."""
    return max(1, AT_ONCE // max(1, row))


def batches_of_rows(rows: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Rows in parts that are computed at once."""
    size = rows_at_once(max(each[:1].numel() for each in rows.values()))
    for parts in zip(*(torch.split(each, size) for each in rows.values()), strict=True):
        yield dict(zip(rows, parts, strict=True))


def compare_with_integers(model: nn.Module, features: Tensor) -> Agreement:
    """The simulation of a quantised model against its integers, in batches of one, seven and all.

    A difference where the analysis promised that there is none is an error.
    """
    both = InIntegers(model, features[:1])
    nothing = both.agreement
    most = rows_at_once(features[0].numel())
    with preserve_model(both.model):
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


class NotComparableError(GraphError):
    """A graph whose simulation cannot be compared with its integers; says why."""


class Simulation:
    """A quantised graph beside its program, in a type in which the simulation must be exact.

    Args:
        lowering: of the graph.
        program: what came of it.
    """

    def __init__(self, lowering: Lowering, program: IntegerProgram) -> None:
        self.program, graph = program, lowering.graph
        self.dtype = exact_type(own_type(graph.model), program)
        self._symbols = next(lowering.results[node] for node in graph.nodes if node.op == "output")
        values = values_of_nodes(lowering, program)
        nodes: Any = {name: node for node, name in values.items()}
        missing = [name for name in program.outputs if program.tail and name not in nodes]
        if missing:
            raise NotComparableError(f"{missing[0]} is not what a single node computes")
        if self.dtype != own_type(graph.model):
            refuse_other_weights(graph.model, self.dtype)
            twin = copy.deepcopy(graph)
            twin.model.to(self.dtype)
            twins = dict(zip(graph.nodes, twin.nodes, strict=True))
            nodes = {name: twins[node] for name, node in nodes.items()}
            values = {twins[node]: name for node, name in values.items()}
            graph = twin
        self.graph, self.values, self._nodes = graph, values, nodes

    def refuse_differences(self, numbers: Mapping[str, Tensor], outputs: Iterable[Tensor]) -> None:
        """Raise if the graph does not compute for rows what the engine does.

        Args:
            numbers: the rows, by the names of the network's inputs.
            outputs: codes that the engine gives for them.
        """
        engine = Engine(self.program)
        given = dict(numbers) | {f"output {n}": each for n, each in enumerate(outputs)}
        done = 0
        for part in batches_of_rows(given):
            inputs = {name: part[name] for name in numbers}
            wanted = engine.numbers(tuple(part[name] for name in part if name not in numbers))
            differs = torch.zeros(len(wanted[0]), dtype=torch.bool)
            beside = zip(self._outputs(inputs), wanted, self.program.outputs, strict=True)
            for found, exact, name in beside:
                apart = different_codes(found, exact, self.program.values[name])
                differs |= apart.reshape(len(exact), -1).any(1)
            if differs.any():
                first = int(differs.int().argmax())
                row = {name: rows[[first, first]] for name, rows in inputs.items()}
                results = self.results(row, set(self.values))
                node = differing_node(self.program, self.values, results, row) or "its outputs"
                raise BrokenPromiseError(
                    f"the graph, simulated in {type_name(self.dtype)}, differs from its integers "
                    f"in {node} on {int(differs.sum())} of {len(differs)} rows, the first is row "
                    f"{done + first}, where it must not: this is a bug in chop"
                )
            done += len(differs)

    def results(
        self, inputs: Mapping[str, Tensor], wanted: AbstractSet[fx.Node]
    ) -> dict[fx.Node, Any]:
        """The results of some nodes for rows."""
        results: dict[fx.Node, Any] = {}

        def keep(node: fx.Node, result: Any) -> None:
            is_float = isinstance(result, Tensor) and result.is_floating_point()
            if is_float and result.dtype != self.dtype:
                raise NotComparableError(
                    f"{node.name} computes in {type_name(result.dtype)}, not in "
                    f"{type_name(self.dtype)}"
                )
            if node in wanted:
                results[node] = result

        cast = {
            name.lstrip("*"): rows.to(self.dtype) if rows.is_floating_point() else rows
            for name, rows in inputs.items()
        }
        try:
            run_graph(self.graph, cast, after=keep)
        except GraphError as error:
            raise NotComparableError(str(error)) from error
        return results

    def _outputs(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """The results of the simulation for the outputs of the program."""
        if self.program.tail:
            nodes = [self._nodes[name] for name in self.program.outputs]
            results = self.results(inputs, set(nodes))
            return [results[node] for node in nodes]
        last = next(node for node in self.graph.nodes if node.op == "output")
        return tensors_beside(self._symbols, self.results(inputs, {last})[last])


def type_name(dtype: torch.dtype) -> str:
    """The name of a type in words: float32."""
    return str(dtype).removeprefix("torch.")


def exact_type(own: torch.dtype, program: IntegerProgram) -> torch.dtype:
    """The type in which a simulation must give the integers; the model's own if that is one.

    The tables of a program hold what PyTorch computed in the model's own type.
    """
    exactness, name = analyse(program), type_name(own)
    if name in EXACT and exactness.exact(name):
        return own
    reason = f"{name} may round the sums of {inexact_node(exactness, name)}"
    if not exactness.exact("float64"):
        raise NotComparableError(f"{reason}, and so may float64")
    tables = [step.node for step in program.steps if isinstance(step, steps.Table)]
    if tables:
        raise NotComparableError(f"{reason}, and in float64 {tables[0]} is another function")
    return torch.float64


def refuse_other_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Raise where a format makes other numbers of a layer's parameters in another type."""
    for name, module in model.named_modules():
        formats = module.quant.operands if isinstance(module, QuantizedModule) else {}
        for role, fmt in formats.items():
            given = getattr(module, role, None)
            if isinstance(fmt, IntegerScaled):  # whose codes are of exact quotients
                continue
            if isinstance(given, Tensor) and (fmt(given) != fmt(given.to(dtype))).any():
                raise NotComparableError(
                    f"the {role} of {name} is rounded otherwise in {type_name(dtype)}"
                )


def inexact_node(exactness: Exactness, dtype: str) -> str:
    """The first node in which a simulation in a type may differ from the integers."""
    inexact = (
        each for each in exactness.nodes if not (getattr(each, dtype, False) and each.stable)
    )
    return next((each.node for each in inexact), "its layers")


def tensors_beside(symbols: Any, results: Any) -> list[Tensor]:
    """The results in nested containers that stand where symbols do, in order."""
    if isinstance(symbols, SYMBOLS):
        return [results]
    if isinstance(symbols, dict):
        return [each for key in symbols for each in tensors_beside(symbols[key], results[key])]
    if isinstance(symbols, list | tuple):
        pairs = zip(symbols, results, strict=True)
        return [each for pair in pairs for each in tensors_beside(*pair)]
    return []
