"""The settings of a run: each option is a field, whose annotation says what it takes and where.

Standard library only, so that ``ch --help`` starts at once; pydantic joins when values are checked.
"""

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

RUNS = ("train", "test", "transform", "search")
"""The actions that take settings."""


@dataclass(frozen=True)
class Option:
    """The command-line side of a setting."""

    help: str
    group: str
    flags: tuple[str, ...] = ()
    actions: tuple[str, ...] = RUNS
    """Which actions take it on the command line; a file may set it for any of them."""
    listed: bool = True
    """Whether the table of settings shows it."""
    spellings: Mapping[Any, str] = field(default_factory=dict)
    """Other spellings of values, and the one that is meant by each."""
    repeatable: bool = False
    names: str = ""
    """What a value names: ``file``, ``folder``, or a topic of ``ch info`` such as ``models``."""
    default_words: str = ""
    """The default in words, where it depends on the machine."""
    above: float | None = None
    at_least: float | None = None
    below: float | None = None

    @property
    def bounds(self) -> dict[str, Any]:
        """The bounds that are set, by the names pydantic has for them."""
        named = {"gt": self.above, "ge": self.at_least, "lt": self.below}
        return {name: bound for name, bound in named.items() if bound is not None}

    def usual(self, value: Any) -> Any:
        """`value` in its usual spelling."""
        is_word = isinstance(value, str | int) and not isinstance(value, bool)
        return self.spellings.get(value, value) if is_word else value


@dataclass(frozen=True)
class Setting:
    """One field of a settings class: its name, type, default and option."""

    name: str
    type: Any
    default: Any
    option: Option

    @property
    def optional(self) -> bool:
        """Whether none is a value of the setting."""
        return NoneType in self.type_members

    @property
    def type_members(self) -> tuple[Any, ...]:
        """`int` and `None` of ``int | None``; the type itself where it is no union."""
        if get_origin(self.type) in (Union, UnionType):
            return get_args(self.type)
        return (self.type,)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it is limited to; empty when it is not."""
        for member in self.type_members:
            if get_origin(member) is Literal:
                return get_args(member)
        return ()

    @property
    def is_flag(self) -> bool:
        return self.type is bool

    @property
    def default_text(self) -> str:
        """The default as a user would write it; empty where there is none."""
        if self.option.default_words or self.default in (None, [], {}):
            return self.option.default_words
        return str(self.default).lower() if self.is_flag else str(self.default)


@cache
def settings_of(owner: type) -> dict[str, Setting]:
    """The settings a class declares as ``name: Annotated[type, Option(...)] = default``."""
    hints = get_type_hints(owner, include_extras=True)
    return {field.name: _setting(field, hints[field.name]) for field in fields(owner)}


def _setting(field: Field[Any], hint: Any) -> Setting:
    value_type, option = get_args(hint)
    default = field.default_factory() if callable(field.default_factory) else field.default
    return Setting(field.name, value_type, default, option)


GENERAL = "general"
TRAINER = "trainer"
RUNTIME = "runtime"
DATA = "data"
PROJECT = "project"

TRAINING = ("train", "search")  # a search may train each of its trials
MEASURING = ("train", "test", "search")

REMOVED = {
    "quant_config": "quantised models are made with [passes.quantize] in --config",
    "github_ci": "nothing behaves differently under CI",
    "target": "ch export --to verilog writes circuits",
    "num_targets": "ch export --to verilog writes circuits",
    "run_emit": "ch export --to verilog writes circuits",
    "skip_build": "ch export --to verilog writes circuits",
    "skip_test": "ch export --to verilog writes circuits",
    "max_token_len": "the data set says how long its rows are",
}
"""Settings of the original that have no meaning here, and why."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run of ``ch``. The order is the order of the printed table."""

    task: Annotated[
        Literal["classification", "cls", "language_modeling", "lm", "regression", "reg"],
        Option(
            "what the model is for: to tell classes, or the next token (lm), or to predict numbers "
            "(regression)",
            GENERAL,
        ),
    ] = "classification"
    load_name: Annotated[
        str | None,
        Option(
            "weights or graph to start from: a file or folder, or the folder of a project, which "
            "stands for its best checkpoint",
            GENERAL,
            ("--load",),
            names="file",
        ),
    ] = None
    load_type: Annotated[
        Literal["pt", "pl", "mz", "hf", "qonnx"],
        Option(
            "what --load names: a state dict (pt), a Lightning checkpoint (pl), "
            "a saved graph (mz), a Hugging Face folder or config.json (hf), an ONNX file with "
            "Quant nodes (qonnx); what the name of a file shows need not be said",
            GENERAL,
        ),
    ] = "mz"
    batch_size: Annotated[int, Option("samples in a batch", GENERAL, above=0)] = 128
    to_debug: Annotated[
        bool, Option("debug logging and full tracebacks", GENERAL, ("--debug",))
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        Option("least severe message to show", GENERAL),
    ] = "info"
    report_to: Annotated[
        Literal["wandb", "tensorboard", "none"],
        Option("where metrics are logged", GENERAL),
    ] = "tensorboard"
    seed: Annotated[
        int, Option("seed of every random choice", GENERAL, at_least=0, below=2**32)
    ] = 0
    training_optimizer: Annotated[
        Literal["adam", "sgd", "adamw"], Option("optimiser", TRAINER, actions=TRAINING)
    ] = "adam"
    trainer_precision: Annotated[
        Literal["16-mixed", "bf16-mixed", "bf16", "32", "64"],
        Option(
            # A number is a natural thing to write in TOML.
            "floating-point precision of training",
            TRAINER,
            spellings={32: "32", 64: "64"},
            actions=MEASURING,
        ),
    ] = "32"
    learning_rate: Annotated[
        float,
        Option("learning rate at the start", TRAINER, above=0, below=3e38, actions=TRAINING),
    ] = 1e-5
    bits_learning_rate: Annotated[
        float | None,
        Option(
            "learning rate of widths that learn; by default twice the learning rate",
            TRAINER,
            above=0,
            below=3e38,
            actions=("train",),
        ),
    ] = None
    weight_decay: Annotated[
        float, Option("weight decay", TRAINER, at_least=0, below=3e38, actions=TRAINING)
    ] = 0
    max_epochs: Annotated[int, Option("epochs to train", TRAINER, above=0, actions=TRAINING)] = 20
    max_steps: Annotated[
        int,
        Option(
            "optimiser steps to train; -1 sets no limit", TRAINER, at_least=-1, actions=TRAINING
        ),
    ] = -1
    accumulate_grad_batches: Annotated[
        int, Option("batches whose gradients make one step", TRAINER, above=0, actions=TRAINING)
    ] = 1
    log_every_n_steps: Annotated[
        int, Option("steps between two logged values", TRAINER, above=0, actions=("train",))
    ] = 50
    scheduler: Annotated[
        Literal["cosine", "linear", "constant"],
        Option("course of the learning rate", TRAINER, actions=TRAINING),
    ] = "cosine"
    early_stopping: Annotated[
        int | None,
        Option(
            "stop after this many epochs without a lower validation loss",
            TRAINER,
            above=0,
            actions=TRAINING,
        ),
    ] = None
    resume: Annotated[
        bool,
        Option("resume the run in this project folder where it stopped", TRAINER, actions=TRAINING),
    ] = False
    num_workers: Annotated[
        int,
        Option(
            "processes that load data which does not fit in memory",
            RUNTIME,
            ("--cpu", "--num-workers"),
            default_words="the cores of the machine",
            at_least=0,
        ),
    ] = field(default_factory=lambda: os.cpu_count() or 1)
    num_devices: Annotated[
        int,
        Option(
            "devices, or processes on a CPU",
            RUNTIME,
            ("--gpu", "--num-devices"),
            above=0,
            actions=MEASURING,
        ),
    ] = 1
    num_nodes: Annotated[
        int, Option("machines", RUNTIME, ("--nodes",), above=0, actions=MEASURING)
    ] = 1
    accelerator: Annotated[
        Literal["auto", "cpu", "gpu", "mps"],
        Option("kind of device; cuda means gpu", RUNTIME, spellings={"cuda": "gpu"}),
    ] = "auto"
    strategy: Annotated[
        Literal["auto", "ddp", "ddp_find_unused_parameters_true"],
        Option("how several devices share the work", RUNTIME, actions=("train",)),
    ] = "auto"
    is_to_auto_requeue: Annotated[
        bool, Option("let SLURM requeue the run", RUNTIME, ("--auto-requeue",), actions=("train",))
    ] = False
    num_threads: Annotated[
        int | None,
        Option(
            "threads of one process; by default one for small models, which is faster",
            RUNTIME,
            above=0,
        ),
    ] = None
    compile: Annotated[
        bool,
        Option(
            "compile the network with torch, which needs a C++ compiler; large runs gain by it",
            RUNTIME,
            actions=("train", "test"),
        ),
    ] = False
    disable_dataset_cache: Annotated[bool, Option("preprocess the data again", DATA)] = False
    dataset_path: Annotated[
        str | None,
        Option("file of the data set, in place of the downloaded one", DATA, names="file"),
    ] = None
    label_column: Annotated[str | None, Option("column of the labels in a custom file", DATA)] = (
        None
    )
    split: Annotated[
        Literal["test", "val", "all"],
        Option(
            "rows that ch test measures: test rows, validation rows, or all that there are, as for "
            "a file that was not trained on",
            DATA,
            listed=False,
            actions=("test",),
        ),
    ] = "test"
    exact: Annotated[
        bool,
        Option(
            "test a quantised network in integers, and say how its simulation agrees with them",
            DATA,
            listed=False,
            actions=("test",),
        ),
    ] = False
    is_pretrained: Annotated[
        bool, Option("start from published weights", GENERAL, ("--pretrained",))
    ] = False
    project_dir: Annotated[str, Option("folder of all projects", PROJECT, names="folder")] = (
        "./mase_output"
    )
    project: Annotated[
        str | None,
        Option("folder of this run; by default {model}_{task}_{dataset}_{date}", PROJECT),
    ] = None
    model: Annotated[str | None, Option("name of the model", GENERAL, names="models")] = None
    dataset: Annotated[str | None, Option("name of the data set", GENERAL, names="datasets")] = None
    imports: Annotated[
        list[str],
        Option(
            "Python file or module whose decorators add models, data sets, passes …; "
            "runs only if given with --import",
            GENERAL,
            ("--import",),
            listed=False,
            repeatable=True,
            names="file",
        ),
    ] = field(default_factory=list)
    quiet: Annotated[
        bool,
        Option("show only errors and final results", GENERAL, ("-q", "--quiet"), listed=False),
    ] = False
    verbose: Annotated[
        bool,
        Option(
            "show all settings, and the best trials of a search with all metrics",
            GENERAL,
            ("--verbose",),
            listed=False,
        ),
    ] = False
    profile: Annotated[bool, Option("print where the time went", PROJECT, listed=False)] = False
    no_warnings: Annotated[bool, Option("hide warnings", PROJECT, listed=False)] = False
    passes: Annotated[
        dict[str, dict[str, Any]],
        Option(
            "what transform runs: a table [passes.NAME] for each pass, in this order",
            "",
            listed=False,
        ),
    ] = field(default_factory=dict)
    train: Annotated[
        dict[str, Any],
        Option("what only training reads: [train.cost], the cost of bits", "", listed=False),
    ] = field(default_factory=dict)
    search: Annotated[dict[str, Any], Option("what search runs", "", listed=False)] = field(
        default_factory=dict
    )
    cf_args: Annotated[
        dict[str, Any],
        Option("arguments of the model that are fixed while it is traced", "", listed=False),
    ] = field(default_factory=dict)
