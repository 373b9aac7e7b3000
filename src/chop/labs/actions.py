"""The names of `chop.actions`, each imported from its home when it is first asked for."""

from importlib import import_module

HOMES = {
    "search": "chop.verbs.search.job",
    "sensitivity": "chop.verbs.sensitivity.layers",
    "test": "chop.verbs.test.testing",
    "train": "chop.verbs.train.training",
    "transform": "chop.verbs.transform.passes",
}


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module 'chop.actions' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return list(HOMES)
