"""Models by name: the tables of physical, vision, text and toy networks, and what is known of each.

`info` holds the table, how a model joins it and how one is built; `weights` reads files of weights
without running anything that is in them, and `hf` makes models of transformers. Other paths that
the labs use stand in `chop.aliases`.
"""

from chop.models import physical, text, toys, vision  # noqa: F401  (register their models)
from chop.models.hf import from_transformers
from chop.models.info import (
    MODELS,
    MaseModelInfo,
    ModelSource,
    ModelTaskType,
    get_model,
    get_model_info,
    get_tokenizer,
    register_model,
)

__all__ = [
    "MODELS",
    "MaseModelInfo",
    "ModelSource",
    "ModelTaskType",
    "from_transformers",
    "get_model",
    "get_model_info",
    "get_tokenizer",
    "register_model",
]
