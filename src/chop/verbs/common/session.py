"""The start of every verb on a model: settings in effect, model, data, output folder."""

import os
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from chop.catalogue import read_catalogue
from chop.config.run import RunConfig
from chop.errors import ConfigError, DataError, UnknownNameError
from chop.files import check_nameable, nothing_left_behind, writable_folder
from chop.logger import get_logger, root_logger
from chop.runs import SOFTWARE, write_record
from chop.tasks import CLASSES, NUMBERS, TOKENS, Task, task_named, task_of
from chop.validation import parse

if TYPE_CHECKING:
    from torch import nn

    from chop.config.verb import Verb
    from chop.dataset import MaseDataModule, MaseDatasetInfo
    from chop.models import MaseModelInfo
    from chop.preprocessing import Preprocessing
    from chop.training.job import Job
    from chop.training.settings import TrainingSettings

logger = get_logger("chop")
R = TypeVar("R", bound=RunConfig, covariant=True)

ELSEWHERE = {"model": ("hf:",), "dataset": ()}
"""How names begin of what is in no table."""
WRONG_LABELS = {
    False: "labels are real numbers, not classes; to predict numbers give task='regression'",
    True: "task 'regression': labels must be real numbers, not whole ones: give labels.float()",
}
"""What is wrong with labels, by whether numbers are to be predicted."""
UNTRAINED = (
    "No weights were loaded: the network is UNTRAINED and its results mean nothing. "
    "Name a checkpoint with --load and --load-type."
)


@dataclass(frozen=True)
class Session(Generic[R]):
    """One run of one verb on a model."""

    config: R
    model: "nn.Module"
    model_info: "MaseModelInfo"
    data_module: "MaseDataModule"
    record: dict[str, Any]
    """What was run: the command, who set what. Stored beside the results."""

    @property
    def dataset_info(self) -> "MaseDatasetInfo":
        return self.data_module.dataset_info

    @property
    def is_trained(self) -> bool:
        """Return whether the network comes with weights that mean something."""
        return self.config.load_name is not None or self.config.is_pretrained

    @cached_property
    def software_folder(self) -> Path:
        """`<project-dir>/<project>/software`, made when an action first writes."""
        project = project_folder(self.config)
        words = "Project is at %s" if project.exists() else "Project will be created at %s"
        folder = writable_folder(project / SOFTWARE)
        logger.info(words, project)
        return folder


def check_model_and_dataset(config: RunConfig) -> None:
    """Refuse what can be seen to be wrong before torch is imported, which takes seconds."""
    registered = read_catalogue()
    models, datasets = registered["models"], registered["datasets"]
    if config.model in datasets and config.dataset in models and config.model not in models:
        raise ConfigError(f"the model comes first: write ch ACTION {config.dataset} {config.model}")
    for name, kind in ((config.model, "model"), (config.dataset, "dataset")):
        if name is None:
            raise ConfigError(f"no {kind} is named: write ch ACTION MODEL DATASET, or use --config")
        known = registered[f"{kind}s"]
        if not (config.imports or name.lower() in known or name.startswith(ELSEWHERE[kind])):
            raise UnknownNameError(kind, name, known)
    check_project(config.project or "")
    check_nameable(project_folder(config), "--project")
    for path, flag in ((config.load_name, "--load"), (config.dataset_path, "--dataset-path")):
        if path is not None and not Path(path).expanduser().exists():
            raise ConfigError(f"{flag}: there is no file or folder {path}")


def check_project(name: str) -> None:
    """Refuse a name that leads elsewhere."""
    if name == ".." or Path(name).name != name:
        raise ConfigError(
            f"--project: {name!r} is not the name of a folder; what leads to it is --project-dir"
        )


def run_verb(
    verb: "Verb", config: RunConfig, record: dict[str, Any], *, fetch: bool = False
) -> None:
    """Run a verb as the command line does, on settings that have passed `check_model_and_dataset`.

    Args:
        record: what was run and who set what, to be stored beside the results.
        fetch: whether a hub may be asked for the model, which only the command line can allow.
    """
    session = open_session(config, record, verb, fetch=fetch)
    with nothing_left_behind(project_folder(config)):
        keep_record(session, verb.name, verb.work(session))


def open_session(
    config: RunConfig, record: dict[str, Any], verb: "Verb", *, fetch: bool = False
) -> "Session[Any]":
    """Import the user's own code, check, seed, and build the model and the data module."""
    from chop.models import get_model, get_model_info

    config = with_loadable(config)
    assert config.model is not None
    if not config.quiet:
        root_logger.setLevel("DEBUG" if config.to_debug else config.log_level.upper())
    if config.imports:
        from chop.loading.user_code import import_user_code

        import_user_code(config.imports)
    model_info = get_model_info(config.model)
    data_module = data_module_of(config)
    check_task(config.task, model_info, data_module.dataset_info)
    verb.refuse_mistakes(config)
    prepare_machine(config)
    logger.info("Initialising model '%s'...", config.model)
    model = get_model(
        config.model,
        config.task,
        dataset_info=data_module.dataset_info,
        pretrained=config.is_pretrained,
        fetch=fetch,
    )
    logger.info("Initialising dataset '%s'...", config.dataset)
    data_module.prepare_data()
    data_module.setup()
    logger.info("Data: %s", data_module.source)
    return Session(config, model, model_info, data_module, record)


def with_loadable(config: RunConfig) -> RunConfig:
    """The settings with the very file that ``--load`` means, which a project may change later."""
    if config.load_name is None:
        return config
    from chop.loading.paths import loadable

    path, kind = loadable(Path(config.load_name), config.load_type)
    found: Any = {"load_name": str(path), "load_type": kind}
    return replace(config, **found)


def prepare_machine(config: RunConfig) -> None:
    """Refuse a device that this machine lacks, and seed every generator of random numbers."""
    import numpy as np
    import torch

    backends: dict[str, Any] = {"gpu": torch.cuda, "mps": torch.backends.mps}
    wanted = config.accelerator
    if wanted in backends and not backends[wanted].is_available():
        raise ConfigError(f"accelerator {wanted!r}: this machine has none; write 'cpu' or 'auto'")
    check_counts(config)
    if config.no_warnings:
        warnings.simplefilter("ignore")
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)


def check_counts(config: RunConfig) -> None:
    """Refuse more processes or threads than the machine could ever use."""
    from chop.training.settings import MOST_PROCESSES

    for name in ("num_devices", "num_workers", "num_threads"):
        count = getattr(config, name) or 0
        if count > MOST_PROCESSES:
            raise ConfigError(f"{name} is {count}, but this machine takes at most {MOST_PROCESSES}")


def data_module_of(config: RunConfig) -> "MaseDataModule":
    """The data module that settings name."""
    from chop.dataset import MaseDataModule

    assert config.dataset is not None
    return MaseDataModule(
        config.dataset,
        batch_size=config.batch_size,
        num_workers=config.num_workers,
        load_from_cache_file=not config.disable_dataset_cache,
        model_name=config.model,
        path=config.dataset_path,
        label_column=config.label_column,
        odd_class=config.odd_class,
        task=config.task,
        augment=config.augment,
        seed=config.seed,
    )


@dataclass(frozen=True)
class ActionResult:
    """The facts of a run that only its verb knows."""

    folder: Path
    """Of its results; the record goes there."""
    facts: dict[str, Any]


def keep_record(
    session: Session[RunConfig], action: str, found: ActionResult | None = None
) -> None:
    """Store what was run beside its results; of several processes the first one does."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        data = session.data_module
        facts = {"data": data.source, "fingerprint": data.fingerprint}
        folder = found.folder if found else session.software_folder
        more = found.facts if found else {}
        write_record(folder, action, {**session.record, **facts, **more})


def project_folder(config: RunConfig) -> Path:
    """The folder of this run, absolute; named after model, task, data set and day by default."""
    name = config.project or f"{config.model}_{config.task}_{config.dataset}_{date.today()}"
    plain = name.replace("/", "-").replace(":", "-")
    return (Path(config.project_dir).expanduser() / plain).resolve()


def lightning_settings(config: "RunConfig") -> dict[str, Any]:
    """The settings of the command line under the names that Lightning has for them."""
    from chop.training.settings import TrainingSettings, TrainTable

    same = TrainingSettings.model_fields.keys() & {field.name for field in fields(config)}
    return {name: getattr(config, name) for name in same} | {
        "optimizer": config.training_optimizer,
        "precision": config.trainer_precision,
        "devices": config.num_devices,
        "auto_requeue": config.is_to_auto_requeue,
        "cost": parse(TrainTable, config.train, "[train]").cost,
    }


def chosen_settings(
    action: str, plt_trainer_args: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> "TrainingSettings":
    """The settings that were given in either of two ways, checked."""
    from chop.training.settings import TrainingSettings

    return parse(TrainingSettings, {**(plt_trainer_args or {}), **given}, action)


def make_job(  # noqa: PLR0913  # what training and testing have in common
    action: str,
    model: "nn.Module",
    model_info: Any,
    data_module: Any,
    *,
    task: str,
    load: tuple[str | os.PathLike[str] | None, str],
    record: Mapping[str, Any] | None,
    **more: Any,
) -> "Job":
    """Return the job to be trained or tested, from what the labs hand to these actions.

    Args:
        action: train or test; a single loader holds the rows of the split of this name.
        load: a file of weights or a graph, and its type.
        record: what was run; the rows it was run on are added.
        more: further fields of `Job`.
    """
    from chop.training.job import Job

    rows = action_rows(data_module, action, action)
    check_task(task, model_info, rows.dataset_info)
    name = type(model).__name__ if model_info is None else str(model_info.name)
    if load[0] is not None:
        from chop.loading.networks import load_model

        model = load_model(load[0], load[1], model)
        check_padding(model, rows.dataset_info)
    facts = {
        "data": getattr(rows, "source", ""),
        "fingerprint": getattr(rows, "fingerprint", None),
        "batch_size": rows.batch_size,
    }
    record = {**(record or {}), **facts}
    return Job(model, rows, name=name, task=task_named(task), record=record, **more)


def check_task(task: str, model_info: "MaseModelInfo | None", data: "MaseDatasetInfo") -> None:
    """Refuse a task that does not exist, or that the model or the rows are not made for."""
    if model_info is not None:
        model_info.check_task(task)
    wanted = task_named(task)
    if data.causal_LM and wanted is not TOKENS:
        raise ConfigError(f"data set {data.name!r} has text to be continued: write task 'lm'")
    if not data.causal_LM and data.num_classes is not None and wanted is not CLASSES:
        raise ConfigError(f"data set {data.name!r} has classes: write task 'cls'")
    if data.regression and wanted is not NUMBERS:
        raise ConfigError(
            f"data set {data.name!r} has numbers to be predicted: write task 'regression'"
        )


def check_padding(model: "nn.Module", data: "MaseDatasetInfo") -> None:
    """Refuse a model of text that takes another token for padding than the rows have."""
    pad = getattr(model, "pad_token_id", None)
    if data.tokens and pad is not None and pad != data.pad_token_id:
        raise ConfigError(
            f"data set {data.name!r} is padded with token {data.pad_token_id}, but the model has "
            f"pad_token_id {pad}: set that in its config.json"
        )


def task_of_rows(data: Any) -> Task:
    """The task that labels of loaders are of: real numbers are targets, whole ones are classes.

    One batch is looked at; random numbers stay as they were.
    """
    import torch

    from chop.dataset.own import GivenRows, as_data_module, is_batch

    if hasattr(data, "dataset_info") and not isinstance(data, GivenRows):
        info = data.dataset_info
        return NUMBERS if info.regression else TOKENS if info.causal_LM else CLASSES
    rows = data if isinstance(data, GivenRows) else as_data_module(data, "train")
    with torch.random.fork_rng(devices=[]):
        first: Any = next(iter(rows.loader_of(rows.splits()[0])), None)
    is_numbers = is_batch(first) and task_of(first[1]) is NUMBERS
    return NUMBERS if is_numbers else CLASSES


def check_task_of_labels(task: str, data: Any) -> None:
    """Refuse labels of loaders that are not of the task that is named."""
    if (task_of_rows(data) is NUMBERS) != (task_named(task) is NUMBERS):
        raise DataError(WRONG_LABELS[task_named(task) is NUMBERS])


def known_preprocessing(model: "nn.Module", data_module: Any) -> "Preprocessing | None":
    """Return the scaling of the features: as the model says it, else as the rows do."""
    from chop.preprocessing import preprocessing_of

    return preprocessing_of(model) or getattr(data_module, "preprocessing", None)


def features_of(model: "nn.Module", data_module: Any) -> dict[str, Any]:
    """The same for a record."""
    known = known_preprocessing(model, data_module)
    return {"preprocessing": known and known.as_plain()}


def action_rows(data_module: Any, main: str, action: str) -> Any:
    """The data module of an action, made of what it was given; what is not known of it is said.

    Args:
        main: the split that a single loader stands for.
    """
    from chop.dataset import MaseDataModule

    if isinstance(data_module, MaseDataModule) or hasattr(data_module, "dataset_info"):
        return data_module
    from chop.dataset.own import as_data_module

    try:
        rows = as_data_module(data_module, main)
    except ConfigError as error:
        raise ConfigError(f"{action}: {error}") from None
    logger.info("Data: %s, without %s", rows.source, rows.missing)
    return rows


def facts_of(model: "nn.Module", model_info: "MaseModelInfo | None") -> "MaseModelInfo":
    """The facts about a model; of one that is not registered, that it is a classifier."""
    from chop.models.info import MaseModelInfo

    return model_info or MaseModelInfo(
        type(model).__name__,
        model_source="manual",
        task_type="physical",
        physical_data_point_classification=True,
        is_fx_traceable=True,
    )
