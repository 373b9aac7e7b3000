"""The agreement of every form of a quantised network, node by node."""

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from chop.charts import LineChart
from chop.files import write_text
from chop.runs import AGREEMENT_FILE, AGREEMENT_TABLE, Count, read_stored
from chop.tables import ResultTable, as_csv

SIMULATION = "simulation"
Found = Literal["equal", "differs", "after"]
"""Equal codes, other codes, or behind a node with other codes."""


class NodeAgreement(BaseModel):
    """One node: its noise against floating point, and the forms that give the engine's codes."""

    model_config = ConfigDict(frozen=True)

    node: str
    operation: str
    snr: float | None = None
    """Signal-to-noise ratio in decibels; None where nothing is lost."""
    forms: dict[str, Found] = Field(default_factory=dict)
    """Empty for a node that has no codes of its own, as a function has before it is rounded."""


class AgreementByNode(BaseModel):
    """All nodes of a network in their order. It shows itself as a table."""

    model_config = ConfigDict(frozen=True)

    rows_compared: Count
    nodes: tuple[NodeAgreement, ...] = Field(min_length=1)
    not_compared: dict[str, str] = Field(default_factory=dict)
    """Forms that were not run, each with the reason."""

    @classmethod
    def load(cls, folder: Path) -> "AgreementByNode":
        """Read what was saved in a folder."""
        where = f"{folder.name}/{AGREEMENT_FILE}"
        return read_stored(cls, folder / AGREEMENT_FILE, where)

    def save(self, folder: Path) -> "AgreementByNode":
        """Write agreement.json and agreement.csv into a folder; return the same."""
        rows = [
            {"node": each.node, "operation": each.operation, "snr": each.snr, **each.forms}
            for each in self.nodes
        ]
        columns = dict.fromkeys(key for row in rows for key in row)
        filled = [{key: row.get(key) for key in columns} for row in rows]
        write_text(folder / AGREEMENT_TABLE, as_csv(filled))
        write_text(folder / AGREEMENT_FILE, json.dumps(self.model_dump(), indent=2) + "\n")
        return self

    @property
    def forms(self) -> list[str]:
        """The forms that were compared with the engine."""
        return list(dict.fromkeys(form for node in self.nodes for form in node.forms))

    @property
    def differences(self) -> dict[str, str]:
        """The first node that differs from the engine, by the form; empty if all are equal."""
        found: dict[str, str] = {}
        for node in self.nodes:
            for form, state in node.forms.items():
                if state == "differs":
                    found.setdefault(form, node.node)
        return found

    def rows(self) -> ResultTable:
        """Return a row for each node."""
        heads = ["node", "operation", "SNR, dB", *self.forms]
        rows = [
            [n.node, n.operation, "exact" if n.snr is None else f"{n.snr:.1f}",
             *(n.forms.get(form, "") for form in self.forms)]
            for n in self.nodes
        ]  # fmt: skip
        return ResultTable(heads, rows, "Node by node", 2)

    def caption(self) -> str:
        """Return what was found, in sentences."""
        worst = min((n for n in self.nodes if n.snr is not None), key=lambda n: n.snr, default=None)  # type: ignore[arg-type, return-value]
        lines = [f"On {self.rows_compared:,} rows"]
        if worst is not None:
            lines[0] += f", {worst.node} has the most noise ({worst.snr:.1f} dB)"
        first = [
            f"{form} differs from the engine first in {n}" for form, n in self.differences.items()
        ]
        coded = sum(bool(node.forms) for node in self.nodes)
        equal = f"{', '.join(self.forms)} equal to the engine in all {coded} nodes with codes"
        lines += first or ([equal] if self.forms else [])
        lines += [f"{form}: not compared, as {why}" for form, why in self.not_compared.items()]
        return ". ".join(lines) + "."

    def chart(self) -> LineChart:
        """Return the noise of every node over its place."""
        points = [
            (float(n), each.snr) for n, each in enumerate(self.nodes, 1) if each.snr is not None
        ]
        series = {"quantised against float": points} if points else {}
        return LineChart("Noise of each node", "node", "signal-to-noise ratio, dB", series)

    def __repr__(self) -> str:
        return f"{self.rows().text()}\n{self.caption()}"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        """Return the table, for notebooks."""
        return self.rows().html()
