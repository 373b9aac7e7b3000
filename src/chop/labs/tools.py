"""The names of `chop.tools`, each imported from its home when it is first asked for."""

from importlib import import_module

HOMES = {
    "InputGenerator": "chop.dataset.inputs",
    "deepgetattr": "chop.passes.graph.utils",
    "deepsetattr": "chop.passes.graph.utils",
    "get_cf_args": "chop.dataset.inputs",
    "get_dummy_input": "chop.dataset.inputs",
    "get_logger": "chop.logger",
    "get_tokenized_dataset": "chop.loading.tokenized",
    "get_trainer": "chop.training.trainer",
    "load_config": "chop.config.layers",
    "load_model": "chop.loading.networks",
    "set_logging_verbosity": "chop.logger",
}


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module 'chop.tools' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return list(HOMES)
