"""The arguments of pruning."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from chop.errors import UnknownNameError
from chop.passes.base import PassArgs
from chop.passes.graph.transforms.pruning.methods import METHODS

PATTERN = re.compile(r"(\d+):(\d+)")


class SparsityRule(PassArgs):
    """The amount to prune, its units and the measure.

    Args:
        sparsity: the fraction that becomes zero, over all nodes together (global) or in each node
            (local); or a fraction for some nodes by name, the others staying unchanged.
        scope: rank elements within each node (local) or over all nodes (global).
        granularity: single elements, whole channels (of a weight: rows, one for each output), or
            "n:m", which keeps n of every m consecutive values along the input channels.
        method: random, l1-norm or l2-norm, or a custom one in `METHODS`.
        seed: for the random method; without one, torch's generator is used.
    """

    sparsity: float | dict[str, float] | None = None
    scope: Literal["local", "global"] = "local"
    granularity: str = "elementwise"
    method: str = "random"
    seed: int | None = None

    @field_validator("sparsity")
    @classmethod
    def _in_range(cls, given: Any) -> Any:
        parts = given.values() if isinstance(given, dict) else [given]
        for part in parts:
            if part is not None and not 0 <= part <= 1:
                raise ValueError("sparsity is a part between 0 and 1")
        return given

    @field_validator("granularity")
    @classmethod
    def _known_granularity(cls, given: str) -> str:
        if given in ("elementwise", "channel"):
            return given
        found = PATTERN.fullmatch(given)
        if not found or not 0 < int(found[1]) <= int(found[2]):
            raise ValueError("granularity is 'elementwise', 'channel' or n:m such as '2:4'")
        return given

    @field_validator("method")
    @classmethod
    def _known_method(cls, given: str) -> str:
        if given not in METHODS:
            raise UnknownNameError("pruning method", given, METHODS, "pass 'prune'")
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.pattern is not None:
            keep, group = self.pattern
            if self.scope == "global":
                raise ValueError("n:m granularity looks at each group by itself: scope is 'local'")
            if self.sparsity not in (None, 1 - keep / group):
                raise ValueError(f"{self.granularity} is a sparsity of {1 - keep / group}")
        elif self.sparsity is None:
            raise ValueError("'sparsity' is missing")
        elif isinstance(self.sparsity, dict) and self.scope == "global":
            raise ValueError("a sparsity for each node makes sense only with scope 'local'")
        return self

    @property
    def pattern(self) -> tuple[int, int] | None:
        """The n and m of an n:m granularity."""
        found = PATTERN.fullmatch(self.granularity)
        return (int(found[1]), int(found[2])) if found else None

    def sparsity_of(self, node: str) -> float:
        """The part of a node's values that is to go."""
        if isinstance(self.sparsity, Mapping):
            return self.sparsity[node]
        return self.sparsity or 0.0

    def choose(self, nodes: Iterable[str]) -> list[str]:
        """The nodes to prune among those that can be, by name."""
        names = list(nodes)
        if not isinstance(self.sparsity, Mapping):
            return names
        for name in self.sparsity:
            if name not in names:
                raise UnknownNameError("layer to prune", name, names, "pass 'prune'")
        return [name for name in names if name in self.sparsity]


class PruneArgs(PassArgs):
    """The parts to prune and the amount.

    Args:
        weight: how to prune weights; by default they are not pruned.
        activation: how to prune the inputs of layers; by default they are not pruned.
        input_generator: batches by argument name, on which activations are ranked.
        num_batches: how many batches to use.
        model_name: no effect; accepted because the labs pass it.
    """

    weight: SparsityRule | None = None
    activation: SparsityRule | None = None
    input_generator: Any = None
    num_batches: int = Field(default=1, ge=1)
    model_name: str | None = None
