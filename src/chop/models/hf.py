"""Models of transformers, from a configuration, a folder or by name; the extra `text`.

No code of a folder is run: a class is one of those that transformers has, and weights are read from
safetensors. Transformers is offline throughout; what may be fetched comes by `chop.models.hub`.
"""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from chop.errors import CheckpointError, ConfigError
from chop.models.hub import folder_of, offline
from chop.models.info import HUB, LANGUAGE, DataInfo, tokens_of

logger = logging.getLogger("chop")

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PARTS = "model-*.safetensors"
OTHER_WEIGHTS = (
    "pytorch_model*.bin*", "tf_model*.h5", "flax_model*.msgpack", "*.ckpt*", "*.gguf",
    "consolidated*.pth", "*.safetensors",
)  # fmt: skip
"""Names of weights that are not read: most are pickles, others are of a part of the model."""
OF_IMAGES = "ForImageClassification"
OF_TOKENS = ("ForSequenceClassification", "ForCausalLM", "LMHeadModel")
TOKENISERS = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt", "vocab.json",
)  # fmt: skip
FILES_OF_TOKENISERS = ("*.json", "*.txt", "*.model", "*.spm", "*.codes", "*.jinja")
LOCAL = {"local_files_only": True, "trust_remote_code": False}
INSTALL = "transformers is not installed: pip install transformers"


def from_transformers(source: Any) -> nn.Module:
    """A model of transformers, in evaluation mode.

    Args:
        source: a configuration object (``BertConfig(...)``), a ``config.json``, or a folder with
            one and, if there are any, its weights. Without weights they are random.
    """
    transformers = package()
    try:
        if isinstance(source, transformers.PretrainedConfig):
            with offline():
                model: nn.Module = class_for(source)(source)
            return model.eval()
        return from_file(source)
    except ImportError as error:  # of something that transformers needs for this model
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise ConfigError(
            f"transformers cannot make this model: {reason}; see ch doctor"
        ) from error


def package() -> Any:
    """The package transformers, or a line that says how to get it."""
    try:
        import transformers
    except ImportError:
        raise ConfigError(INSTALL) from None
    return transformers


def from_file(source: str | os.PathLike[str]) -> nn.Module:
    """The model of a configuration file or of a folder."""
    import transformers

    path = Path(source).expanduser()
    folder, file = (path, path / CONFIG) if path.is_dir() else (path.parent, path)
    check_config(file)
    try:
        with offline():
            config = transformers.AutoConfig.from_pretrained(file, **LOCAL)
            cls = class_for(config)
            has_weights = path.is_dir() and weights_in(folder)
            model = _load_weights(cls, folder, config) if has_weights else cls(config)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file}: {reason_of(error)}") from error
    if path.is_dir() and not has_weights:
        logger.warning("%s has no weights (%s): they are random", folder, WEIGHTS[0])
    built: nn.Module = model.eval()
    return built


def weights_in(folder: Path) -> bool:
    """Return whether a folder has weights that can be read; one that has only others is refused."""
    if any((folder / name).is_file() for name in WEIGHTS):
        return True
    others = sorted(path.name for form in OTHER_WEIGHTS for path in folder.glob(form))
    if others:
        raise CheckpointError(
            f"{folder}: has its weights in {others[0]}, but only {WEIGHTS[0]} is read: load it "
            "with transformers, if you trust it, and write that with model.save_pretrained(FOLDER)"
        )
    return False


def reason_of(error: Exception) -> str:
    """Return the message of transformers in one line; a name it wanted to look up is the fault."""
    if isinstance(error, ConnectionError):
        return (
            "names another model, which is not fetched because a file says so: write out its "
            "configuration (backbone_config)"
        )
    return " ".join(str(error).split())[:160]


def has_config(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a configuration of transformers, or a folder with one."""
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
            f"{file}: is not a configuration of transformers: 'model_type' is missing"
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


class TokenModel(nn.Module):
    """A model of transformers that reads tokens: numbers of words in, logits out.

    Padding is masked, so that a row has the same logits however long it was filled up.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        config: Any = model.config
        if config.pad_token_id is None:
            config.pad_token_id = 0  # without one, several rows at a time are refused
        if getattr(config, "use_cache", False):
            config.use_cache = False  # keys and values of earlier tokens, of no use in training
        self.pad_token_id = int(config.pad_token_id)
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The logits of each row, or of each token of a language model."""
        seen = (x != self.pad_token_id).long()
        logits: Tensor = self.model(input_ids=x, attention_mask=seen).logits
        return logits


def as_actions_take_it(model: nn.Module) -> nn.Module:
    """A model with one input, which gives its logits alone, if it has any."""
    named = type(model).__name__
    if named.endswith(OF_TOKENS):
        return TokenModel(model)
    return Classifier(model) if named.endswith(OF_IMAGES) else model


def by_name(
    name: str, task: str, info: DataInfo, *, pretrained: bool = False, fetch: bool = False
) -> nn.Module:
    """The model ``hf:NAME``, built for a data set.

    Args:
        name: ``hf:`` and a folder, a ``config.json``, or a name of the Hugging Face hub.
        pretrained: with its weights; a layer of another shape than the data wants is random, which
            is said. Without it, all are random.
        fetch: whether a hub may be asked for the name.
    """
    transformers, tokens = package(), tokens_of(info, name)
    kind = "AutoModelForCausalLM" if task in LANGUAGE else "AutoModelForSequenceClassification"
    wanted = (CONFIG, *WEIGHTS, PARTS) if pretrained else (CONFIG,)
    try:
        source = _place(name, wanted, fetch)
        with offline():
            config = transformers.AutoConfig.from_pretrained(source, **LOCAL)
            config.pad_token_id = tokens.pad
            if task not in LANGUAGE:
                config.num_labels = tokens.classes
            if config.vocab_size < tokens.words:
                raise ConfigError(
                    f"{name} knows {config.vocab_size} words, but the data set has {tokens.words}"
                )
            auto = getattr(transformers, kind)
            if not pretrained:
                return TokenModel(auto.from_config(config))
            weights_in(source)
            return TokenModel(_load_weights(auto, source, config, ignore_mismatched_sizes=True))
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(f"{name}: {reason_of(error)}; {HUB}FOLDER names a local one") from error


def _place(name: str, files: Sequence[str], fetch: bool) -> Path:
    """The folder or file on this machine that a name stands for, fetched where that is allowed."""
    given = name.removeprefix(HUB)
    path = Path(given).expanduser()
    if not path.exists():
        if not given or given.startswith((".", "/", "~")):
            raise ConfigError(f"{name}: there is no folder {given or '(none is named)'}")
        path = folder_of(given, files, named=fetch)
    check_config(path / CONFIG if path.is_dir() else path)
    return path


def _load_weights(cls: Any, source: Path, config: Any, **more: Any) -> Any:
    """A model with its weights; which of them are new is said once."""
    model, found = cls.from_pretrained(
        source, config=config, use_safetensors=True, output_loading_info=True, **LOCAL, **more
    )
    other = [entry[0] for entry in found.get("mismatched_keys", ())]
    new = sorted({*found.get("missing_keys", ()), *other})
    if new:
        logger.warning("%s has no weights for %s: they are random", source, ", ".join(new[:6]))
    return model


def tokenizer_of(source: str | os.PathLike[str]) -> Any:
    """The tokeniser in a folder, or of a name of the hub; a folder without one is refused."""
    transformers, path = package(), Path(source).expanduser()
    if not path.exists():
        path = folder_of(str(source), FILES_OF_TOKENISERS, named=True)
    elif not any((path / name).is_file() for name in TOKENISERS):
        raise ConfigError(f"{path}: has no tokeniser ({', '.join(TOKENISERS[:2])}, …)")
    try:
        with offline():
            return transformers.AutoTokenizer.from_pretrained(str(path), **LOCAL)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{source}: its tokeniser cannot be read: {reason_of(error)}") from error
