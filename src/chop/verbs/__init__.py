"""The verbs of ``ch`` and of Python: each is a module with a request and what does it.

`chop.config.verb` says what a verb is. Its module imports nothing heavy, as ``ch --help`` imports
them all; what takes long to import is in other modules of its folder. `common` is not a verb.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
