"""Export: a graph that was saved, in a form that needs neither PyTorch nor Machop."""

from pathlib import Path
from typing import Any

from chop.errors import CheckpointError, ConfigError
from chop.export.exporting import Exported
from chop.export.exporting import export as export_graph
from chop.export.verilog.bench import simulator_found
from chop.export.verilog.target import Hardware
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import IntegerProgram, load_program
from chop.lowering.stored import PROGRAM
from chop.runs import EXPORT, FRONT_GRAPHS, SOFTWARE, open_run
from chop.tools.checkpoint_load import load_graph

ROWS = 2000


def export(  # noqa: PLR0913  (each is a flag of the command)
    load: str | Path,
    to: str = "c",
    output: str | Path | None = None,
    *,
    rows: int | None = None,
    verify: bool = False,
    load_type: str = "mz",
    cut_tail: bool = False,
    **hardware: Any,
) -> Exported:
    """Write what was saved in another form, checked against the engine.

    Args:
        load: the folder of a graph, of a run (its newest graph is taken) or of an integer program.
        output: the folder to write, ``export_<to>`` beside the graph if not given; one that is
            there already is left alone.
        rows: on how many rows to check, 2,000 if not given; but a circuit that no simulator is
            there for is then not checked at all, and the manifest says so.
        verify: check in any case, or fail.
        to, cut_tail: as for `chop.export.export`.
        hardware: the fields of `chop.export.verilog.target.Hardware`, for ``"verilog"``.
        load_type: ``mz`` a graph, ``qonnx`` an ONNX file with Quant nodes.
    """
    place = saved_graph(Path(load).expanduser())
    if verify and rows == 0:
        raise ConfigError("export: --verify and --rows 0 contradict each other")
    if rows is None:
        rows = 0 if to == "verilog" and not verify and simulator_found() is None else ROWS
    graph = loaded(place, load_type)
    target = folder_beside(place, to) if output is None else output
    where = str(place.resolve())
    circuit = Hardware(**hardware) if hardware else None
    return export_graph(
        graph, to, target, rows=rows, cut_tail=cut_tail, source=where, hardware=circuit
    )


def folder_beside(graph: Path, to: str) -> Path:
    """Where an export of a graph goes: beside it, and beside all of them for one of a front."""
    if graph.parent.name == FRONT_GRAPHS:
        return graph.parent.parent / EXPORT.format(f"{to}_{graph.name}")
    return graph.parent / EXPORT.format(to)


def saved_graph(path: Path) -> Path:
    """The graph that a path means: itself, or the newest one of a run."""
    if not (path / SOFTWARE).is_dir() and path.name != SOFTWARE:
        return path
    run = open_run(path)
    if not run.graphs and run.front_graphs:
        raise CheckpointError(
            f"{path}: a search saved {len(run.front_graphs)} graphs, of its whole front: name one, "
            f"such as {run.front_graphs[0]}"
        )
    if not run.graphs:
        raise CheckpointError(
            f"{path}: the run holds no saved graph: ch transform saves one, and --config takes the "
            "best_….toml of a search"
        )
    return run.graphs[0]


def loaded(path: Path, load_type: str) -> MaseGraph | IntegerProgram:
    """The graph or the integer program in a folder."""
    return load_program(path) if (path / PROGRAM).is_file() else load_graph(path, load_type)
