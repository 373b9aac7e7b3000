"""The verbs of ``ch`` and of Python: each is one module, with a request and a function."""

ACTIONS: dict[str, str] = {
    "train": "chop.verbs.train",
    "test": "chop.verbs.test",
    "transform": "chop.verbs.transform.passes",
    "search": "chop.verbs.search.job",
    "quantize": "chop.verbs.quantize.command",
    "sensitivity": "chop.verbs.sensitivity.layers",
}
"""Where each verb lives that takes the settings of a run."""
