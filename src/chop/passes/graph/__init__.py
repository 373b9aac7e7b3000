"""Every pass on graphs: `analysis` finds out, `transforms` change, `interface` saves and loads.

Importing this imports them all, which fills the registry. Their names are listed once, in the
package each belongs to; here and in `chop.passes` they are found through that list.
"""

from typing import Any

from chop.passes.base import ANALYSIS_PASSES, INTERFACE_PASSES, PASSES, TRANSFORM_PASSES
from chop.passes.graph import analysis, interface, transforms

PACKAGES = (analysis, transforms, interface)

__all__ = ["ANALYSIS_PASSES", "INTERFACE_PASSES", "PASSES", "TRANSFORM_PASSES"]
__all__ += [name for package in PACKAGES for name in package.__all__]


def __getattr__(name: str) -> Any:
    """A public name of one of the packages."""
    for package in PACKAGES:
        if name in package.__all__:
            return getattr(package, name)
    raise AttributeError(f"module 'chop.passes.graph' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
