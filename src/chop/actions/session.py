"""What every action starts from: settings in effect, model, data, output folder."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.catalogue import stored
from chop.config.run import RunConfig
from chop.errors import ConfigError, UnknownNameError
from chop.files import writable_folder
from chop.runs import SOFTWARE, write_record
from chop.tools.logger import get_logger, root_logger
from chop.tools.user_code import import_user_code

if TYPE_CHECKING:
    from torch import nn

    from chop.dataset import MaseDataModule, MaseDatasetInfo
    from chop.models import MaseModelInfo

logger = get_logger("chop")


@dataclass(frozen=True)
class Session:
    """One run of one action."""

    config: RunConfig
    model: "nn.Module"
    model_info: "MaseModelInfo"
    data_module: "MaseDataModule"
    record: dict[str, Any]
    """What was run: the command, who set what. Stored beside the results."""

    @property
    def dataset_info(self) -> "MaseDatasetInfo":
        return self.data_module.dataset_info

    @cached_property
    def software_folder(self) -> Path:
        """`<project-dir>/<project>/software`, made when an action first writes."""
        project = project_folder(self.config)
        words = "Project is at %s" if project.exists() else "Project will be created at %s"
        folder = writable_folder(project / SOFTWARE)
        logger.info(words, project)
        return folder


def check(config: RunConfig) -> None:
    """Refuse what can be seen to be wrong before torch is imported, which takes seconds."""
    models, datasets = stored()["models"], stored()["datasets"]
    if config.model in datasets and config.dataset in models and config.model not in models:
        raise ConfigError(f"the model comes first: write ch ACTION {config.dataset} {config.model}")
    for name, kind in ((config.model, "model"), (config.dataset, "dataset")):
        if name is None:
            raise ConfigError(f"no {kind} is named: write ch ACTION MODEL DATASET, or use --config")
        known = stored()[f"{kind}s"]
        if not config.imports and name.lower() not in known:
            raise UnknownNameError(kind, name, known)
    if config.project == ".." or Path(config.project or "").name != (config.project or ""):
        raise ConfigError(
            f"--project: {config.project!r} is not the name of a folder; what leads to it is "
            "--project-dir"
        )
    for path, flag in ((config.load_name, "--load"), (config.dataset_path, "--dataset-path")):
        if path is not None and not Path(path).expanduser().exists():
            raise ConfigError(f"{flag}: there is no file or folder {path}")


def open_session(
    config: RunConfig,
    record: dict[str, Any],
    check_action: Callable[[RunConfig], None] | None = None,
) -> Session:
    """Import the user's own code, check, seed, and build the model and the data module."""
    from chop.actions.environment import prepare
    from chop.models import get_model, get_model_info

    check(config)
    assert config.model is not None
    if not config.quiet:
        root_logger.setLevel("DEBUG" if config.to_debug else config.log_level.upper())
    import_user_code(config.imports)
    model_info = get_model_info(config.model)
    data_module = _data_module(config)
    if check_action:
        check_action(config)
    prepare(config)
    logger.info("Initialising model '%s'...", config.model)
    model = get_model(
        config.model,
        config.task,
        dataset_info=data_module.dataset_info,
        pretrained=config.is_pretrained,
    )
    logger.info("Initialising dataset '%s'...", config.dataset)
    data_module.prepare_data()
    data_module.setup()
    logger.info("Data: %s", data_module.source)
    return Session(config, model, model_info, data_module, record)


def _data_module(config: RunConfig) -> "MaseDataModule":
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
        seed=config.seed,
    )


@dataclass(frozen=True)
class ActionResult:
    """What only the action knows of its run."""

    folder: Path
    """Of its results; the record goes there."""
    facts: dict[str, Any]


def keep_record(session: Session, action: str, found: ActionResult | None = None) -> None:
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
    return (Path(config.project_dir).expanduser() / name.replace("/", "-")).resolve()
