"""What stands between data, models and actions; each name is imported when first asked for.

`get_input` makes batches for passes and scales rows as in training, `checkpoint_load` loads weights
and graphs, `devices` chooses device and threads, `tokenized` makes rows of text. `logger` prints,
`user_code` imports users' files, `utils` sets attributes by path.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chop.tools.checkpoint_load import load_model as load_model
    from chop.tools.get_input import InputGenerator as InputGenerator
    from chop.tools.get_input import get_cf_args as get_cf_args
    from chop.tools.get_input import get_dummy_input as get_dummy_input
    from chop.tools.logger import get_logger as get_logger
    from chop.tools.logger import set_logging_verbosity as set_logging_verbosity
    from chop.tools.tokenized import get_tokenized_dataset as get_tokenized_dataset
    from chop.tools.utils import deepgetattr as deepgetattr
    from chop.tools.utils import deepsetattr as deepsetattr

_HOMES = {
    "InputGenerator": "chop.tools.get_input",
    "deepgetattr": "chop.tools.utils",
    "deepsetattr": "chop.tools.utils",
    "get_cf_args": "chop.tools.get_input",
    "get_dummy_input": "chop.tools.get_input",
    "get_logger": "chop.tools.logger",
    "get_tokenized_dataset": "chop.tools.tokenized",
    # Training and settings stand above the tools, but this is where the original's users look.
    "get_trainer": "chop.training.trainer",
    "load_config": "chop.config.layers",
    "load_model": "chop.tools.checkpoint_load",
    "set_logging_verbosity": "chop.tools.logger",
}

__all__ = [
    "InputGenerator",
    "deepgetattr",
    "deepsetattr",
    "get_cf_args",
    "get_dummy_input",
    "get_logger",
    "get_tokenized_dataset",
    "get_trainer",
    "load_config",
    "load_model",
    "set_logging_verbosity",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'chop.tools' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
