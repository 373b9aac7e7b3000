"""The comparisons of an export: the graph with the engine, and the files with the engine."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from chop.errors import GraphError
from chop.export.rows import REAL, SEED, CheckedRows, checked_rows
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import IntegerProgram
from chop.lowering.comparing import NotComparableError, Simulation, type_name
from chop.lowering.from_graph import Lowering

ASKED = "--rows 0 says so"
"""Why nothing is checked on no rows."""


class ExportCheck:
    """Compares a graph with the engine, and later the files with the engine."""

    def __init__(
        self,
        graph: MaseGraph | IntegerProgram,
        cut_tail: bool,
        count: int,
        inputs: Mapping[str, Tensor] | None,
        notes: Mapping[str, str],
    ) -> None:
        lowering = None
        if isinstance(graph, IntegerProgram):
            self.program = graph
        else:
            lowering = Lowering(graph, inputs or {})
            self.program = lowering.program(cut_tail)
        self.notes = notes
        if not self.program.inputs:
            raise GraphError("export: no output of the integers depends on an input")
        if inputs and any(getattr(each, "is_meta", True) for each in inputs.values()):
            inputs = None  # they were given for their shapes
        self.rows = checked_rows(self.program, count, inputs) if count else None
        self.compared: dict[str, int] = {}
        self.graph_in: str | None = None
        self.not_compared = {"graph": "it is not there, only its integers"}
        if count == 0:
            self.not_compared = {"graph": ASKED, "file": ASKED}
        if lowering is not None:
            self._compare_graph(lowering)

    def _compare_graph(self, lowering: Lowering) -> None:
        """Refuse a graph that does not compute what the engine does; note why not."""
        if self.rows is None:
            return
        try:
            simulation = Simulation(lowering, self.rows.program)
            simulation.refuse_differences(self.rows.numbers, self.rows.outputs)
        except NotComparableError as error:
            self.not_compared["graph"] = str(error)
            return
        del self.not_compared["graph"]
        self.compared["graph"] = len(self.rows)
        self.graph_in = type_name(simulation.dtype)

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Take note of files that the check of a target does not run."""
        if self.rows is not None:
            self.not_compared |= reasons

    def compare_file(self, files: Path, run: Callable[[Path, CheckedRows], str]) -> str | None:
        """Refuse files that do not compute what the engine does; the tool that ran them."""
        if self.rows is None:
            return None
        if "file" in self.notes:
            self.not_compared["file"] = self.notes["file"]
            return None
        tool = run(files, self.rows)
        self.compared["file"] = len(self.rows)
        return tool

    def facts(self) -> dict[str, Any]:
        """Return what was compared, for the manifest."""
        rows = self.rows
        real = rows.kinds.get(REAL, 0) if rows is not None else 0
        whose = self.notes.get(REAL, "given inputs" if real else "none were given")
        facts: dict[str, Any] = {
            "rows": self.compared.get("file", 0),
            "against": "engine",
            "source": f"{whose}; made rows, seed {SEED}" if real else f"made rows, seed {SEED}",
            "compared": dict(self.compared),
            "not_compared": dict(self.not_compared),
            "graph_in": self.graph_in,
        }
        if rows is not None:
            facts["compared"] |= {"engine": len(rows)}
            facts |= {"kinds": rows.kinds, "distinct_outputs": rows.distinct_outputs}
            if not real:
                facts["not_compared"] |= {"real rows": whose}
        return facts


def refuse_other_codes(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    """Refuse codes that are not those of the engine."""
    if found.shape != wanted.shape:
        raise GraphError(f"export: {found.shape} codes came out, not {wanted.shape}")
    wrong = (found != wanted).any(1)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise GraphError(
            f"export: {int(wrong.sum())} of {len(wrong)} rows differ from the engine, the first is "
            f"row {first}: {found[first].tolist()} in place of {wanted[first].tolist()}"
        )
