"""Export: a graph that was saved, in a form that needs neither PyTorch nor Machop."""

from pathlib import Path

from chop.errors import CheckpointError
from chop.export.exporting import Exported
from chop.export.exporting import export as export_graph
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import IntegerProgram, load_program
from chop.lowering.stored import PROGRAM
from chop.runs import EXPORT, SOFTWARE, open_run
from chop.tools.checkpoint_load import load_graph


def export(
    load: str | Path,
    to: str = "c",
    output: str | Path | None = None,
    *,
    rows: int = 2000,
    load_type: str = "mz",
    cut_tail: bool = False,
) -> Exported:
    """Write what was saved in another form, checked against the engine.

    Args:
        load: the folder of a graph, of a run (its newest graph is taken) or of an integer program.
        output: the folder to write, ``export_<to>`` beside the graph if not given; one that is
            there already is left alone.
        to, rows, cut_tail: as for `chop.export.export`.
        load_type: ``mz`` a graph, ``qonnx`` an ONNX file with Quant nodes.
    """
    place = saved_graph(Path(load).expanduser())
    graph = loaded(place, load_type)
    target = place.parent / EXPORT.format(to) if output is None else output
    where = str(place.resolve())
    return export_graph(graph, to, target, rows=rows, cut_tail=cut_tail, source=where)


def saved_graph(path: Path) -> Path:
    """The graph that a path means: itself, or the newest one of a run."""
    if not (path / SOFTWARE).is_dir() and path.name != SOFTWARE:
        return path
    graphs = open_run(path).graphs
    if not graphs:
        raise CheckpointError(
            f"{path}: the run holds no saved graph: ch transform saves one, and --config takes the "
            "best_….toml of a search"
        )
    return graphs[0]


def loaded(path: Path, load_type: str) -> MaseGraph | IntegerProgram:
    """The graph or the integer program in a folder."""
    return load_program(path) if (path / PROGRAM).is_file() else load_graph(path, load_type)
