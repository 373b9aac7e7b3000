"""Models of transformers from a configuration or a folder; the package is an extra, `machop[text]`.

Nothing is downloaded and no code of a folder is run: a class is one of those that transformers has,
and weights are read from safetensors.
"""

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from chop.errors import CheckpointError, ConfigError

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
CLASSIFIERS = ("ForImageClassification", "ForSequenceClassification")
INSTALL = "transformers is not installed: pip install 'machop[text]'"


def from_transformers(source: Any) -> nn.Module:
    """A model of transformers, in evaluation mode.

    Args:
        source: a configuration object (``BertConfig(...)``), a ``config.json``, or a folder with
            one and, if there are any, its weights. Without weights they are random.
    """
    try:
        import transformers
    except ImportError:
        raise ConfigError(INSTALL) from None
    try:
        if isinstance(source, transformers.PretrainedConfig):
            model: nn.Module = class_for(source)(source)
            return model.eval()
        return from_file(source)
    except ImportError as error:  # of something that transformers needs for this model
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise ConfigError(
            f"transformers cannot make this model: {reason}; see ch doctor"
        ) from error


def from_file(source: str | os.PathLike[str]) -> nn.Module:
    """The model of a configuration file or of a folder."""
    import transformers

    path = Path(source).expanduser()
    folder, file = (path, path / CONFIG) if path.is_dir() else (path.parent, path)
    check_config(file)
    try:
        config = transformers.AutoConfig.from_pretrained(
            file, local_files_only=True, trust_remote_code=False
        )
        cls = class_for(config)
        if path.is_dir() and any((folder / name).is_file() for name in WEIGHTS):
            model: nn.Module = cls.from_pretrained(
                folder, config=config, local_files_only=True, use_safetensors=True
            )
        else:
            model = cls(config)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file}: {' '.join(str(error).split())[:200]}") from error
    return model.eval()


def has_config(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a configuration of transformers, or a folder with one."""
    given = Path(path)
    file = given / CONFIG if given.is_dir() else given
    return file.name == CONFIG and file.is_file()


def check_config(file: Path) -> None:
    """Refuse a file that does not say which type of model it is for."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise CheckpointError(
            f"{file}: is no configuration of transformers: 'model_type' is missing"
        )


def class_for(config: Any) -> Any:
    """The class that a configuration names, if transformers has it, or the bare model's."""
    import transformers

    for name in config.architectures or ():
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    try:
        return transformers.AutoModel._model_mapping[type(config)]
    except KeyError:
        raise ConfigError(f"transformers has no model for {type(config).__name__}") from None


class Classifier(nn.Module):
    """A classifier of transformers as the actions take one: an input in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch."""
        logits: Tensor = self.model(x).logits
        return logits


def classifier(model: nn.Module) -> nn.Module:
    """A model as the actions take it: one that classifies gives its logits alone."""
    named = type(model).__name__
    return Classifier(model) if named.endswith(CLASSIFIERS) else model
