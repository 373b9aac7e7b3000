"""Export: a graph that was saved, in a form that needs neither PyTorch nor Machop."""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.config.layers import Layers, read_toml
from chop.config.verb import verbs
from chop.dataset import DATASETS
from chop.dataset.download import nothing_fetched
from chop.dataset.inputs import rows_for
from chop.errors import CheckpointError, ChopError, ConfigError, DataError
from chop.export.checking import ASKED
from chop.export.exporting import Exported
from chop.export.exporting import export as export_graph
from chop.export.targets import EXPORT_TARGETS
from chop.figures import number
from chop.ir.graph.mase_graph import MaseGraph
from chop.loading.networks import load_graph
from chop.loading.records import OF_ROWS, newest_record, project_of
from chop.logger import only_results
from chop.lowering import IntegerProgram, load_program
from chop.lowering.from_graph import Lowering
from chop.lowering.stored import PROGRAM
from chop.masking import printable
from chop.passes import PASSES
from chop.results.exports import circuits_table
from chop.results.front import SearchResult
from chop.runs import BEST, BEST_SETTINGS, EXPORT, FRONT_GRAPHS, SOFTWARE, open_run
from chop.verbs.common import session
from chop.verbs.export.agreement import compare_nodes
from chop.verbs.transform import passes as transforming

logger = logging.getLogger("chop")

ROWS = 2000
SETTINGS = ".toml"


def export_graph_file(  # noqa: PLR0913  (each is a flag of the command)
    load: str | Path,
    to: str = "c",
    output: str | Path | None = None,
    *,
    rows: int | None = None,
    verify: bool = False,
    load_type: str = "mz",
    imports: Sequence[str] = (),
    cut_tail: bool = False,
    agreement: bool = False,
    **settings: Any,
) -> Exported:
    """Write what was saved in another form, checked against the engine, as the graph is.

    Among the rows of the check are those for validation of the data set that the run names, if they
    are on this machine.

    Args:
        load: the folder of a graph, of an integer program or of a run, whose newest graph is
            taken, else the first network on the front of its newest search; or a file of
            settings with passes, such as the ``best_1.toml`` of a search.
        output: the folder to write, ``export_<to>`` beside the graph if not given; one that is
            there already is left alone.
        rows: on how many rows to check, 2,000 or 50 images if not given; but a circuit that no
            simulator is there for is then not checked at all, and the manifest says so.
        verify: check in any case, or fail.
        to, cut_tail: as for `chop.export.export`.
        agreement: compare node by node, too, into agreement.json.
        settings: options of the target, as in `chop.export.verilog.target.Hardware`.
        load_type: ``mz`` a graph, ``qonnx`` an ONNX file with Quant nodes.
        imports: files of yours that settings need, such as ``my_net.py:Net``; they are run.
    """
    place = saved_graph(Path(load).expanduser())
    if verify and rows == 0:
        raise ConfigError("export: --verify and --rows 0 contradict each other")
    notes = {}
    if rows is None and not verify and (reason := EXPORT_TARGETS[to].missing()) is not None:
        notes["file"] = reason
    graph, data = load_saved(place, load_type, imports, needs_graph=agreement)
    most = ROWS if rows is None else rows
    inputs, notes["real"] = known_rows(graph, place, data, most)
    target = folder_beside(place, to) if output is None else output
    done = export_graph(
        graph, to, target, rows=rows, inputs=inputs, cut_tail=cut_tail,
        source=str(place.resolve()), notes=notes, **settings,
    )  # fmt: skip
    if agreement and isinstance(graph, MaseGraph):
        compare_nodes(graph, inputs).save(done.folder)
    return done


@dataclass(frozen=True)
class ExportedFront:
    """The exports of all networks of a front."""

    search: Path
    exports: Mapping[str, Exported | ChopError]
    """By the names of the networks' settings; the reason where there is none."""

    @property
    def folders(self) -> str:
        """The folders of the files, one in each line."""
        made = (each for each in self.exports.values() if isinstance(each, Exported))
        return "\n".join(printable(str(each.folder)) for each in made)

    @property
    def table(self) -> str:
        """A line for each network: accuracy and cost as searched for, and what was exported."""
        networks = {
            BEST_SETTINGS.format(each.place): each for each in SearchResult.load(self.search)
        }
        found = []
        for name, each in self.exports.items():
            scores = networks[name].metrics if name in networks else {}
            shown = ", ".join(f"{key} {number(value)}" for key, value in scores.items())
            facts = {"refused": str(each)} if isinstance(each, ChopError) else each.manifest
            found.append((f"{Path(name).stem}: {shown}", facts))
        return f"{circuits_table(found).text()}\n{self.search}: ch report shows them with the front"


def export_front(load: str | Path, to: str, **settings: Any) -> ExportedFront:
    """Write all networks of the newest front of a run, each as `export_graph_file` does.

    What cannot be exported is said, and does not keep others from it; but if nothing can, the first
    reason is raised.
    """
    path = Path(load).expanduser()
    if not (path / BEST).is_file():
        searches = open_run(path).searches if path.is_dir() else []
        if not searches:
            raise CheckpointError(f"{path}: has no search, and --all exports the front of one")
        path = searches[0]
    places = sorted(path.glob(BEST_SETTINGS.format("*")), key=lambda each: (len(each.name), each))
    found: dict[str, Exported | ChopError] = {}
    for place in places:
        try:
            found[place.name] = export_graph_file(place, to, **settings)
        except ChopError as error:
            found[place.name] = error
        logger.info("%s: %s", place.stem, found[place.name])
    failed = [each for each in found.values() if isinstance(each, ChopError)]
    if len(failed) == len(found):
        raise failed[0] if failed else CheckpointError(f"{path}: the front has no settings")
    return ExportedFront(path, found)


def known_rows(
    graph: MaseGraph | IntegerProgram, place: Path, data: Any, most: int
) -> tuple[dict[str, Tensor] | None, str]:
    """Rows of the data set that a network was made for, and whose they are or why there are none.

    Args:
        place: where the network is.
        data: the data module, where one is open already; else the records of the run name it.
        most: as many rows as this at most.
    """
    if most == 0:
        return None, ASKED
    if isinstance(graph, IntegerProgram):
        return None, "a program does not say how its rows were scaled"
    try:
        with only_results(), nothing_fetched():
            rows = rows_for(graph.model, recorded_data(place) if data is None else data)
            split = "val" if rows.dataset_info.validation_split_available else "train"
            found = transforming.first_rows(getattr(rows, f"{split}_dataloader")(), most)
            features = torch.cat([batch for batch, _ in found])[:most]
        return named_features(graph, features), f"{split} rows of {rows.name}"
    except ChopError as error:
        return None, str(error)


def recorded_data(place: Path) -> Any:
    """The data module that the newest record of a run names; no code is run for it."""
    project = project_of(place)
    record = newest_record(project) if project is not None else None
    name = None if record is None else record.setting("dataset")
    if record is None or name is None:
        raise DataError("no record of a run names a data set")
    if str(name).lower() not in DATASETS:
        raise DataError(f"the data set {name!r} is made by a file of yours")
    path = record.setting("dataset_path")
    if path is not None and not (Path(path).is_file() or Path(path).is_dir()):
        raise DataError(f"the rows of the run are not here any more: {path}")
    given = {key: record.setting(key) for key in OF_ROWS if record.setting(key) is not None}
    return session.data_module_of(Layers.read(None, given).config)


def named_features(graph: MaseGraph, features: Tensor) -> dict[str, Tensor]:
    """Features by the name of the network's only input, if it takes them."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise DataError(f"the network has {len(inputs)} inputs, and rows of features are for one")
    shape = Lowering(graph, {}).input_shape(inputs[0])
    if shape != tuple(features.shape[1:]):
        raise DataError(f"the rows have the shape {list(features.shape[1:])}, not {shape}")
    is_known = ~features.reshape(len(features), -1).isnan().any(1)
    return {str(inputs[0].target): features[is_known]}


def folder_beside(graph: Path, to: str) -> Path:
    """Return the folder for an export of a graph: beside it, or beside all those of a front."""
    if graph.parent.name == FRONT_GRAPHS:
        return graph.parent.parent / EXPORT.format(f"{to}_{graph.name}")
    if graph.suffix == SETTINGS:
        return graph.parent / EXPORT.format(f"{to}_{graph.stem}")
    return graph.parent / EXPORT.format(to)


def saved_graph(path: Path) -> Path:
    """The graph that a path means: itself, the newest one of a run, or the first of a search.

    Settings that load a graph of a front, as those of learned widths do, mean that graph.
    """
    first = BEST_SETTINGS.format(0)
    if (path / first).is_file():
        path = path / first
    elif (path / SOFTWARE).is_dir() or path.name == SOFTWARE:
        run = open_run(path)
        fronts = (folder / first for folder in run.searches)
        found = [*run.graphs, *(settings for settings in fronts if settings.is_file())]
        if not found:
            raise CheckpointError(f"{path}: {_why_none(run.front_graphs)}")
        path = found[0]
    return named_in(path) if path.suffix == SETTINGS else path


def _why_none(front: Sequence[Path]) -> str:
    """Return what to do about a run from which no graph can be chosen."""
    if not front:
        return "the run holds no saved graph: ch transform saves one, and a search has a front"
    return f"a search saved {len(front)} graphs, of its whole front: name one, such as {front[0]}"


def changes_only(name: str) -> bool:
    """Return whether a pass changes the network, and takes no path to write to."""
    schema = PASSES[name].schema
    fields = schema.model_fields.values() if schema else ()
    return PASSES[name].kind == "transform" and not any("Path" in str(f.annotation) for f in fields)


def named_in(settings: Path) -> Path:
    """The graph of a front that settings load, wherever the run was moved to; else themselves."""
    named = Path(str(read_toml(settings).get("load_name")))
    if named.parent.name != FRONT_GRAPHS:
        return settings
    moved = settings.parent / FRONT_GRAPHS / named.name
    return moved if moved.exists() else named


def load_saved(
    path: Path, load_type: str, imports: Sequence[str] = (), *, needs_graph: bool = False
) -> tuple[MaseGraph | IntegerProgram, Any]:
    """The graph or the integer program in a folder, or the graph that settings make.

    With settings comes the data module that they name, else None.
    """
    if path.suffix == SETTINGS:
        return made_by(path, imports)
    is_program = (path / PROGRAM).is_file()
    if is_program and needs_graph:
        raise ConfigError(f"export: --agreement needs a graph, and {path} is an integer program")
    return load_program(path) if is_program else load_graph(path, load_type), None


def made_by(settings: Path, imports: Sequence[str] = ()) -> tuple[MaseGraph, Any]:
    """The network that settings make, and its data; nothing but the export is written.

    Who exports a run takes its files for data, so that passes which write files are not run.
    """
    given = {"imports": list(imports)} if imports else {}
    config = Layers.read(str(settings), given).config
    changing = {name: args for name, args in config.passes.items() if changes_only(name)}
    if not changing:
        raise CheckpointError(f"{settings}: no pass in it changes a network: name a saved graph")
    config = replace(config, passes=changing, quiet=True)  # as loud as export is
    session.check_model_and_dataset(config)
    with tempfile.TemporaryDirectory() as scratch:
        opened = session.open_session(config, {}, verbs()["transform"])
        graph = transforming.transform_session(opened, Path(scratch), save=False)
        return graph, opened.data_module
