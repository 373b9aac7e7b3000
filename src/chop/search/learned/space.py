"""The space of learned widths: the operations that learn, and the format of each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from chop.errors import ConfigError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.stored import load_mase_graph
from chop.logger import get_logger
from chop.numerics import FORMATS
from chop.ops.op import op_of_node
from chop.ops.table import OPS
from chop.passes.graph.transforms.quantize.quantize import quantize_transform_pass
from chop.passes.graph.utils import get_mase_op
from chop.runs import FRONT_GRAPHS, snapshot_name
from chop.search.spaces.space import (
    SPACES,
    Candidate,
    Choice,
    SearchContext,
    SearchSpace,
    SpaceSetup,
)

logger = get_logger("chop")

TRAINED = "integer_trained"
MOST_ELEMENTS = 2_000_000
"""Weights up to which each has its own width; training keeps about a dozen numbers for each.

A fixed number rather than the memory of this machine, so that a file gives the same everywhere.
"""
WHERE = "search.search_space.seed"


class WidthsSetup(SpaceSetup):
    """The choice whether seeds are for operations (type) or for nodes (name)."""

    by: Literal["name", "type"] = "type"


@SPACES.register("graph/quantize/learned_widths")
class LearnedWidthsSpace(SearchSpace):
    """Widths of all weights and inputs of matrix products, found by training them."""

    Setup: ClassVar[type[SpaceSetup]] = WidthsSetup
    strategy: ClassVar[str] = "learned"

    def __init__(self, context: SearchContext, setup: Any, seed: Mapping[str, Any]) -> None:
        super().__init__(context, setup, seed)
        graph = context.graph(context.pristine().to(context.device))
        present = [get_mase_op(node) for node in graph.nodes]
        learnable = [op.name for op in OPS.values() if op.sums_products]
        self.operations = [name for name in learnable if name in present]
        self.others = {node.name for node in graph.nodes if get_mase_op(node) not in learnable}
        if not self.operations:
            raise ConfigError(
                "no width of this network can be learned: it has none of the operations "
                f"{', '.join(learnable)} as a layer or a call of its own"
            )
        weights = sum(value.numel() for value in graph.model.parameters())
        self.is_large = weights > MOST_ELEMENTS
        if self.is_large and not seed:
            logger.info(
                "%s weights are many: each output channel has one width, not each weight",
                f"{weights:,}",
            )

    @classmethod
    def check(cls, setup: Any, seed: Mapping[str, Any]) -> None:
        """Refuse formats that cannot learn."""
        for key, block in seed.items():
            where = f"{WHERE}.{key}"
            config = block.get("config") if isinstance(block, Mapping) else None
            if not isinstance(config, Mapping) or "name" not in config:
                raise ConfigError(f"{where}: a table 'config' with a 'name' is expected")
            name = config["name"]
            if name is not None and name not in FORMATS:
                raise UnknownNameError("number format", name, FORMATS, f"{where}.config.name")
            if name not in (None, TRAINED):
                raise ConfigError(
                    f"{where}.config.name: {name!r} cannot learn its widths: write {TRAINED!r}, "
                    "or 'NA' for floating point"
                )
            if setup.by == "type" and key not in OPS:
                raise UnknownNameError("operation", key, OPS, WHERE)

    def choices(self) -> tuple[Choice, ...]:
        """None: the widths are not chosen but trained."""
        return ()

    def config_of(self, chosen: dict[str, Any]) -> dict[str, Any]:
        return dict(chosen)

    def rules(self) -> dict[str, Any]:
        """The arguments of the quantise pass."""
        if self.seed:
            return {"by": self.setup.by, **self.seed}
        config = {"name": TRAINED}
        if self.is_large:
            config["weight_granularity"] = "channel"
        return {name: {"config": config} for name in self.operations}

    def quantised(self, graph: MaseGraph) -> MaseGraph:
        """A float graph with quantisers that learn; so do products that normalisations became."""
        graph, _ = quantize_transform_pass(graph, self.rules())
        ops = {node.name: op_of_node(node, graph.modules) for node in graph.nodes}
        norms = [
            name for name, op in ops.items() if op and op.sums_products and name in self.others
        ]
        if norms:
            rule = {"config": {"name": TRAINED}}
            graph, _ = quantize_transform_pass(graph, {"by": "name"} | dict.fromkeys(norms, rule))
        return graph

    def place(self, config: Mapping[str, Any]) -> Path:
        """The folder of the frozen graph of a snapshot."""
        name = snapshot_name(config)
        assert self.context.folder is not None
        assert name is not None
        return self.context.folder / FRONT_GRAPHS / name

    def candidate(self, config: dict[str, Any]) -> Candidate:
        """A frozen snapshot, as its file has it."""
        return self.stored(self.place(config), config)

    def stored(self, place: Path, config: dict[str, Any]) -> Candidate:
        """The graph in a folder."""
        return Candidate(self.context, config, lambda: load_mase_graph(place).model)

    def toml_of(self, config: dict[str, Any]) -> dict[str, Any]:
        """Settings with which ``ch`` loads the graph of a snapshot."""
        place = {"load_name": str(self.place(config)), "load_type": "mz"}
        return {**place, "passes": {"count_operations": {}}}
