"""The settings of a run: each is a field, whose annotation is its option."""

import os
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from chop.config.option import Option

GENERAL = "general"
TRAINER = "trainer"
RUNTIME = "runtime"
DATA = "data"
PROJECT = "project"
QUANTISING = "quantising"

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
    "max_token_len": "the data set sets the length of its rows",
}
"""Settings of the original that have no meaning here, and why."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run of ``ch``. The order is the order of the printed table."""

    task: Annotated[
        Literal["classification", "cls", "language_modeling", "lm", "regression", "reg"],
        Option(
            "task: classification, regression, or language modelling (lm)",
            GENERAL,
        ),
    ] = "classification"
    load_name: Annotated[
        str | None,
        Option(
            "weights or graph to start from: a file, a folder, or a project folder (its best "
            "checkpoint)",
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
            "Quant nodes (qonnx); inferred from the file name where possible",
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
        int, Option("batches to accumulate gradients over", TRAINER, above=0, actions=TRAINING)
    ] = 1
    log_every_n_steps: Annotated[
        int, Option("steps between two logged values", TRAINER, above=0, actions=("train",))
    ] = 50
    scheduler: Annotated[
        Literal["cosine", "linear", "constant"],
        Option("learning-rate schedule", TRAINER, actions=TRAINING),
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
            "data-loading processes, for data that does not fit in memory",
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
            "compile the network with torch, which needs a C++ compiler; faster for large runs",
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
    augment: Annotated[
        str | None,
        Option(
            "changes of the pictures that are trained on: flip, crop:4 and cutout:8, with commas",
            DATA,
            listed=False,
            actions=TRAINING,
        ),
    ] = None
    split: Annotated[
        Literal["test", "val", "all"],
        Option(
            "rows that ch test measures: test, validation or all rows, as for a new file",
            DATA,
            listed=False,
            actions=("test",),
        ),
    ] = "test"
    exact: Annotated[
        bool,
        Option(
            "test a quantised network in integers, and compare it with the simulation",
            DATA,
            listed=False,
            actions=("test",),
        ),
    ] = False
    width: Annotated[
        int | None,
        Option(
            "bits of what products are made of, inputs and weights alike; 8 if the format has no "
            "width of its own",
            QUANTISING,
            above=0,
            listed=False,
            actions=("quantize",),
        ),
    ] = None
    weight_width: Annotated[
        int | None,
        Option(
            "bits of weights, where they differ from --width",
            QUANTISING,
            above=0,
            listed=False,
            actions=("quantize",),
        ),
    ] = None
    number_format: Annotated[
        str,
        Option(
            "number format, as listed by: ch info formats",
            QUANTISING,
            ("--format",),
            names="formats",
            listed=False,
            actions=("quantize", "sensitivity"),
        ),
    ] = "integer"
    products_only: Annotated[
        bool,
        Option(
            "quantise products only, and leave all else in floating point",
            QUANTISING,
            listed=False,
            actions=("quantize",),
        ),
    ] = False
    rules: Annotated[
        list[str],
        Option(
            "another width or format for some layers: fc1=6, linear=minifloat_ieee:8, out=float; "
            "before = stands a layer, an operation or a pattern",
            QUANTISING,
            ("--rule",),
            listed=False,
            repeatable=True,
            actions=("quantize",),
        ),
    ] = field(default_factory=list)
    widths: Annotated[
        str,
        Option(
            "bits to try in each layer, with commas between",
            QUANTISING,
            listed=False,
            actions=("sensitivity",),
        ),
    ] = "2,3,4,6,8"
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
    profile: Annotated[bool, Option("print a profile of the run time", PROJECT, listed=False)] = (
        False
    )
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
