"""Sensitivity: each layer alone at several widths, what it loses and saves, and a search to follow.

The networks are candidates of the space that `ch search` has, on the rows it would choose by.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from chop.config.layers import write_toml
from chop.errors import ConfigError, UnknownNameError
from chop.figures import Z_95, Measured
from chop.files import seen_from_here, write_folder
from chop.logger import RESULT, get_logger
from chop.numerics import FORMATS
from chop.passes.graph.transforms.folding import folded_types
from chop.passes.graph.transforms.quantize.one_line import FormatSpec
from chop.results.sensitivity import LayerAtWidth, Sensitivity
from chop.runs import LAYERS_FILE, LAYERS_TABLE, SENSITIVITY, SUGGESTED, free_version
from chop.search.config import parse_search
from chop.search.engines import EngineChoice, make_engine
from chop.search.engines.engine import evaluate_all
from chop.search.spaces.mixed_precision import DEFAULT, UNQUANTISED, MixedPrecisionPTQ
from chop.search.spaces.space import Candidate, SearchContext, make_space
from chop.tasks import CLASSES, NUMBERS, distances, task_named
from chop.training.metrics import labelled_predictions
from chop.verbs.common.next_commands import command, show_next
from chop.verbs.common.session import ActionResult, Session, action_rows, facts_of, features_of
from chop.verbs.search.job import make_context
from chop.verbs.sensitivity import SensitivityRequest
from chop.verbs.sensitivity.suggested import Need, search_tables, seed_of, suggest_search

if TYPE_CHECKING:
    from torch import Tensor, nn

    from chop.models import MaseModelInfo

logger = get_logger("chop")

LOADER, MOST_ROWS = "val_dataloader", 20_000
WIDTHS = (2, 3, 4, 6, 8)


def check_sensitivity(config: SensitivityRequest) -> None:
    """Refuse widths that are none, and engines that make no sense."""
    parse_widths(config.widths)
    engine_of(config)
    require_width(config.number_format)


def parse_widths(text: str) -> tuple[int, ...]:
    """``2,4,8`` as numbers, each once, the narrowest first."""
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not re.fullmatch(r"[1-9]\d?", word)]
    if wrong:
        raise ConfigError(f"--widths: {wrong[0]!r} is not a bit width: write 2,4,8")
    return tuple(sorted({int(word) for word in words}))


def require_width(number_format: str) -> None:
    """Refuse a format that is not told its width."""
    if number_format not in FORMATS:
        raise UnknownNameError("number format", number_format, FORMATS)
    if "width" not in FORMATS[number_format].model_fields:
        raise ConfigError(f"format {number_format!r} has one width only, so there is none to try")
    FormatSpec(number_format, WIDTHS[-1]).config(calibrated=True)


def engine_of(config: SensitivityRequest) -> EngineChoice:
    """Return the engine that the command line names."""
    return EngineChoice(config.engine, config.n_jobs, config.address)


def run_sensitivity(session: Session[SensitivityRequest]) -> ActionResult:
    """Measure the layers as the command line asks; what is to be in the record of the run."""
    config = session.config
    result = sensitivity(
        session.model, session.model_info, session.data_module,
        widths=parse_widths(config.widths), number_format=config.number_format,
        save_dir=session.software_folder / SENSITIVITY, settings=settings_to_search(config),
        task=config.task, seed=config.seed, accelerator=config.accelerator,
        load_name=config.load_name, load_type=config.load_type, cf_args=config.cf_args,
        pretrained=config.is_pretrained, imports=config.imports, engine=engine_of(config),
    )  # fmt: skip
    assert result.folder is not None
    print_result(result, config)
    features = features_of(session.model, session.data_module)
    return ActionResult(session.software_folder, {"sensitivity": str(result.folder), **features})


def print_result(result: Sensitivity, config: SensitivityRequest) -> None:
    """Print the table, what follows from it, and the next command."""
    logger.info("Each layer alone\n%r", result, extra=RESULT)
    narrow = {layer: width for layer in result.layers if (width := result.enough(layer))}
    hardest = max(result.layers, key=lambda layer: result.layers[layer][result.widths[0]].lost)
    logger.info("%d of %d layers have enough with %d bits or fewer; %s loses most",
                len(narrow), len(result.layers), max(narrow.values(), default=result.widths[-1]),
                hardest)  # fmt: skip
    folder = seen_from_here(Path(str(result.folder)))
    logger.info("All numbers: %s and %s in %s", LAYERS_TABLE, LAYERS_FILE, folder, extra=RESULT)
    suggested_search = Path(str(result.folder)) / SUGGESTED
    show_next([command("search", "--config", suggested_search, imports=config.imports)])


def settings_to_search(config: SensitivityRequest) -> dict[str, Any]:
    """The settings with which ``ch search`` works on the same network, rows and project."""
    names = (
        "model", "dataset", "task", "dataset_path", "label_column", "odd_class",
        "batch_size", "seed",
        "load_name", "load_type", "is_pretrained", "accelerator", "project", "project_dir",
        "imports", "cf_args",
    )  # fmt: skip
    return {name: value for name in names if (value := getattr(config, name))}


def sensitivity(  # noqa: PLR0913  # what a run consists of, by the names of the labs
    model: "nn.Module",
    model_info: "MaseModelInfo | None" = None,
    data_module: Any = None,
    *,
    widths: Sequence[int] = WIDTHS,
    number_format: str = "integer",
    save_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: EngineChoice | None = None,
    imports: Sequence[str] = (),
    **context: Any,
) -> Sensitivity:
    """Measure the loss and gain of each layer with products at each width, alone.

    Args:
        data_module: as for `search`: training rows choose scales, validation rows judge.
        save_dir: the folder for layers.csv, layers.json and search.toml; None writes nothing.
        settings: further settings of ``ch`` for search.toml.
        engine: what measures the layers; by default this process.
        imports: files of the user's that its processes read first.
        context: as for `search`: task, seed, accelerator, load_name, load_type, pretrained …
    """
    require_width(number_format)
    widths = tuple(dict.fromkeys(widths))
    info, rows = facts_of(model, model_info), action_rows(data_module, "val", "sensitivity")
    formats = [FormatSpec(number_format, width) for width in widths]
    seed = {DEFAULT: seed_of([FormatSpec(None)]), **_products(formats)}
    task = task_named(context.get("task", CLASSES.name))
    fold = bool(folded_types(model))
    tables = search_tables(seed, "type", task, fold=fold)
    made = make_context(model, info, rows, parse_search(tables), **context)
    measuring = make_measuring(made, tables["search_space"], number_format)
    space = measuring.space
    layers = [name for name, op in space.nodes.items() if op.multiplies and space.is_first(name)]
    if not layers:
        raise ConfigError(f"sensitivity: {info.name} has no layer with products, such as nn.Linear")
    requests = [(layer, width) for layer in layers for width in widths]
    points = evaluate_all(make_engine(engine or EngineChoice(), 1, imports), measuring, requests)
    found = Sensitivity(start=measuring.baseline(), points=tuple(points))
    needs = [Need(layer, space.nodes[layer], found.enough(layer)) for layer in layers]
    found.search.update(suggest_search(number_format, needs, widths, task, fold=fold))
    return found if save_dir is None else write_sensitivity(found, Path(save_dir), settings or {})


def _products(formats: Sequence[FormatSpec]) -> dict[str, Any]:
    """The same choice of formats for each operation that multiplies."""
    from chop.ops.table import OPS

    seed = seed_of(formats)
    return {op.name: seed for op in OPS.values() if op.quantizable and op.multiplies}


def write_sensitivity(
    found: Sensitivity, save_dir: Path, settings: Mapping[str, Any]
) -> Sensitivity:
    """The same with its files in a new folder."""
    comment = "Suggested by ch sensitivity: narrow choices where a layer loses nothing by them."

    def fill(folder: Path) -> None:
        found.save(folder)
        write_toml(folder / SUGGESTED, {**settings, "search": found.search}, comment)

    folder = write_folder(partial(free_version, save_dir), fill)
    return found.model_copy(update={"folder": folder})


class Measuring:
    """Compares candidates with the network as it came, row by row."""

    def __init__(
        self, space: MixedPrecisionPTQ, stated: Mapping[str, Any], number_format: str
    ) -> None:
        self.space, self.stated = space, stated
        self.number_format = number_format
        rows = space.context.first_batches(LOADER, MOST_ROWS)
        self.rows = sum(len(labels) for _, labels in rows)
        self.start = self.losses(self.candidate({}))

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the space again in another process."""
        return make_measuring, (self.space.context, self.stated, self.number_format)

    def evaluator(self) -> "Callable[[tuple[str, int]], LayerAtWidth]":
        """Return what measures a layer at a width in this process."""
        return lambda request: self.point(*request)

    def baseline(self) -> Measured:
        """The network as it came."""
        rows = len(self.start)
        if self.is_regression:
            half = Z_95 * float(self.start.std()) / math.sqrt(rows)
            mean = float(self.start.mean())
            metric, low, high = NUMBERS.primary_metric, max(mean - half, 0.0), mean + half
            return Measured(metric=metric, value=mean, rows=rows, low=low, high=high)
        return Measured.of(rows - round(float(self.start.sum())), rows)

    @property
    def is_regression(self) -> bool:
        return task_named(self.space.context.task) is NUMBERS

    def candidate(self, formats: Mapping[str, dict[str, Any]]) -> Candidate:
        """The network with some layers in formats, all others as they came."""
        blocks = {
            name: {"config": formats.get(self.space.first[name], dict(UNQUANTISED))}
            for name in self.space.nodes
        }
        return self.space.candidate({**blocks, DEFAULT: {"config": dict(UNQUANTISED)}})

    def losses(self, candidate: Candidate) -> "Tensor":
        """The cost of each prediction: 1 for a wrong class, or the distance of a number."""
        found = []
        with torch.inference_mode():
            for outputs, labels in candidate.predictions(LOADER, self.rows):
                if self.is_regression:
                    away = distances(outputs.double(), labels, self.space.context.targets)
                    found.append(away.mean(dim=1))
                else:
                    scores, classes = labelled_predictions(outputs, labels)
                    found.append((scores.argmax(dim=1) != classes).double())
        return torch.cat(found).cpu()

    def point(self, layer: str, width: int) -> LayerAtWidth:
        """One layer at one width."""
        formats = {layer: FormatSpec(self.number_format, width).config(calibrated=True)}
        candidate = self.candidate(formats)
        losses = self.losses(candidate)
        scale = float(self.start.mean()) if self.is_regression else 1.0
        lost, half = (each / scale for each in paired_difference(self.start, losses))
        score = float(losses.mean()) if self.is_regression else 1 - float(losses.mean())
        elements, usual = self.space.bits.elements, self.candidate({}).parameter_width()
        saved = usual - candidate.parameter_width()
        owned = self.space.bits.owned.get(layer, ())
        return LayerAtWidth(
            layer=layer, operation=self.space.nodes[layer].name,
            parameters=sum(each.parameter.numel() for each in owned), width=width,
            score=score, lost=lost, low=lost - half, high=lost + half,
            bits_saved=round(saved * elements), share_saved=saved / usual if usual else 0.0,
        )  # fmt: skip


def make_measuring(
    context: "SearchContext", stated: Mapping[str, Any], number_format: str
) -> Measuring:
    """Make the space of all layers and widths, and what measures in it.

    Args:
        stated: the table ``search_space``.
    """
    space = make_space(stated["name"], context, stated["setup"], stated["seed"])
    assert isinstance(space, MixedPrecisionPTQ)
    return Measuring(space, stated, number_format)


def paired_difference(before: "Tensor", after: "Tensor") -> tuple[float, float]:
    """Return the mean increase over the same rows, and half its 95 % interval."""
    more = after - before
    return float(more.mean()), Z_95 * float(more.std(correction=0)) / math.sqrt(len(more))
