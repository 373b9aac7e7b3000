"""The settings of a run: each is a field, whose annotation is its option."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from chop.config.option import Option, Word

GENERAL = "general"
TRAINER = "trainer"
RUNTIME = "runtime"
DATA = "data"
PROJECT = "project"
QUANTISING = "quantising"

MODEL = Word("MODEL", "as listed by: ch info models, or my_net.py:Net", names="models")
DATASET = Word("DATASET", "as listed by: ch info datasets, or my_data.csv", names="datasets")
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


# Settings that several requests have.
LoadName = Annotated[
    str | None,
    Option(
        "weights or graph to start from: a file, a folder, or a project folder (its best "
        "checkpoint)",
        GENERAL,
        ("--load",),
        names="file",
    ),
]
LoadType = Annotated[
    Literal["pt", "pl", "mz", "hf", "qonnx"],
    Option(
        "what --load names: a state dict (pt), a Lightning checkpoint (pl), "
        "a saved graph (mz), a Hugging Face folder or config.json (hf), an ONNX file with "
        "Quant nodes (qonnx); inferred from the file name where possible",
        GENERAL,
    ),
]
BatchSize = Annotated[int, Option("samples in a batch", GENERAL, above=0)]
Debug = Annotated[bool, Option("debug logging and full tracebacks", GENERAL, ("--debug",))]
Accelerator = Annotated[
    Literal["auto", "cpu", "gpu", "mps"],
    Option("kind of device; cuda means gpu", RUNTIME, spellings={"cuda": "gpu"}),
]
LabelColumn = Annotated[str | None, Option("column of the labels in a custom file", DATA)]
Imports = Annotated[
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
]
FormatName = Annotated[
    str,
    Option(
        "number format, as listed by: ch info formats",
        QUANTISING,
        ("--format",),
        names="formats",
        listed=False,
    ),
]
MeasuringProcesses = Annotated[
    int, Option("processes that measure", RUNTIME, at_least=1, listed=False)
]
BitWidths = Annotated[
    str,
    Option(
        "bits to try, with commas between: 2,4,8; ch formats also takes w4 for weights alone and "
        "w4a8kv4s8 for weights, data, and the cache and the scores of attention",
        QUANTISING,
        listed=False,
    ),
]
MethodNames = Annotated[
    str | None,
    Option(
        "methods for few bits, with commas between; ch quantize keeps those of equalise, "
        "round_weights, correct_bias (by default all; or none) that help on rows, ch formats "
        "compares rtn, gptq, smooth, awq, rotate, clip, lqer, bias, equalise, rotate+gptq …",
        QUANTISING,
        listed=False,
    ),
]
EngineName = Annotated[
    Literal["serial", "local", "ray"] | None,
    Option(
        "what evaluates: this process, processes of this machine, or a Ray cluster",
        RUNTIME,
        listed=False,
    ),
]
Address = Annotated[
    str | None,
    Option(
        "of the Ray cluster: auto or host:port; without it one starts here", RUNTIME, listed=False
    ),
]
Output = Annotated[
    str | Path | None,
    Option(
        "output file of report and compare (default: in RUN_DIR) and of predict (default: "
        "FILE_predictions.csv, - for the terminal), or folder of export (default: export_FORM next "
        "to the graph)",
        "output",
        ("--output", "-o"),
        names="file",
    ),
]
Quiet = Annotated[
    bool,
    Option("show only errors and final results", GENERAL, ("-q", "--quiet"), listed=False),
]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run on a model. The order is the order of the printed table."""

    task: Annotated[
        Literal["classification", "cls", "language_modeling", "lm", "regression", "reg"],
        Option(
            "task: classification, regression, or language modelling (lm)",
            GENERAL,
        ),
    ] = "classification"
    load_name: LoadName = None
    load_type: LoadType = "mz"
    batch_size: BatchSize = 128
    to_debug: Debug = False
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
    accelerator: Accelerator = "auto"
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
    label_column: LabelColumn = None
    odd_class: Annotated[
        str | None,
        Option(
            "with --task regression: classes that training never sees, with commas; the network "
            "reproduces rows, and what it reproduces badly is odd",
            DATA,
            listed=False,
        ),
    ] = None
    augment: Annotated[
        str | None,
        Option(
            "changes of the pictures that are trained on: flip, crop:4 and cutout:8, with commas",
            DATA,
            listed=False,
            actions=TRAINING,
        ),
    ] = None
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
    model: Annotated[
        str | None, Option("name of the model", GENERAL, names="models", word=MODEL)
    ] = None
    dataset: Annotated[
        str | None, Option("name of the data set", GENERAL, names="datasets", word=DATASET)
    ] = None
    imports: Imports = field(default_factory=list)
    quiet: Quiet = False
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
