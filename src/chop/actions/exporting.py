"""Export: a graph that was saved, in a form that needs neither PyTorch nor Machop."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from chop.actions import session, transforming
from chop.config.layers import Layers
from chop.errors import CheckpointError
from chop.export.exporting import Exported
from chop.export.exporting import export as export_graph
from chop.export.verilog.target import Hardware
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import IntegerProgram, load_program
from chop.lowering.stored import PROGRAM
from chop.runs import BEST_SETTINGS, EXPORT, SOFTWARE, open_run
from chop.tools.checkpoint_load import load_graph


def export(
    load: str | Path,
    to: str = "c",
    output: str | Path | None = None,
    *,
    rows: int = 2000,
    load_type: str = "mz",
    cut_tail: bool = False,
    **hardware: Any,
) -> Exported:
    """Write what was saved in another form, checked against the engine.

    Args:
        load: the folder of a graph, of an integer program or of a run, whose newest graph is
            taken, else the first network on the front of its newest search; or a file of
            settings with passes, such as the ``best_1.toml`` of a search.
        output: the folder to write, ``export_<to>`` beside the graph if not given; one that is
            there already is left alone.
        to, rows, cut_tail: as for `chop.export.export`.
        hardware: the fields of `chop.export.verilog.target.Hardware`, for ``"verilog"``.
        load_type: ``mz`` a graph, ``qonnx`` an ONNX file with Quant nodes.
    """
    place = saved_graph(Path(load).expanduser())
    graph = loaded(place, load_type)
    target = place.parent / EXPORT.format(to) if output is None else output
    where = str(place.resolve())
    circuit = Hardware(**hardware) if hardware else None
    return export_graph(
        graph, to, target, rows=rows, cut_tail=cut_tail, source=where, hardware=circuit
    )


def saved_graph(path: Path) -> Path:
    """The graph that a path means: itself, the newest one of a run, or the first of a search."""
    first = BEST_SETTINGS.format(0)
    if (path / first).is_file():
        return path / first
    if not (path / SOFTWARE).is_dir() and path.name != SOFTWARE:
        return path
    run = open_run(path)
    fronts = (folder / first for folder in run.searches)
    found = [*run.graphs, *(settings for settings in fronts if settings.is_file())]
    if not found:
        raise CheckpointError(
            f"{path}: the run holds no saved graph: ch transform saves one, and a search has a "
            "front"
        )
    return found[0]


def loaded(path: Path, load_type: str) -> MaseGraph | IntegerProgram:
    """The graph or the integer program in a folder, or the graph that settings make."""
    if path.suffix == ".toml":
        return made_by(path)
    return load_program(path) if (path / PROGRAM).is_file() else load_graph(path, load_type)


def made_by(settings: Path) -> MaseGraph:
    """What ``ch transform --config`` would save; nothing of it is kept."""
    config = replace(Layers.read(str(settings), {}).config, quiet=True)  # as loud as export is
    session.check(config)
    with tempfile.TemporaryDirectory() as scratch:
        opened = session.open_session(config, {}, transforming)
        return transforming.transformed(opened, Path(scratch), save=False)
