"""Every search space. Importing this fills the registry, so a new space is named here."""

from chop.search.hyperparameters import Hyperparameters
from chop.search.mixed_precision_ptq import MixedPrecisionPTQ
from chop.search.space import SPACES

__all__ = ["SPACES", "Hyperparameters", "MixedPrecisionPTQ"]
