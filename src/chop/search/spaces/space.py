"""What a search space is.

A space of one's own is a registered class:

    @SPACES.register("model/channel_multiplier")
    class ChannelMultiplier(SearchSpace):
        def choices(self) -> tuple[Choice, ...]: ...
        def config_of(self, chosen: dict[str, Any]) -> dict[str, Any]: ...
        def candidate(self, config: dict[str, Any]) -> Candidate: ...

See docs/search.md for the whole of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from chop.errors import ConfigError
from chop.registry import Registry
from chop.search.evaluation.context import Candidate, SearchContext
from chop.search.spaces import choices as tree
from chop.search.spaces.choices import Choice, Picked
from chop.validation import parse


class SpaceSetup(BaseModel):
    """``[search.search_space.setup]`` of a space: frozen, and no key but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SearchSpace(ABC):
    """What can be chosen, what a choice means, and how its model is made.

    Args:
        context: the model, the data and the settings of the search.
        setup: ``[search.search_space.setup]``, checked against `Setup`.
        seed: ``[search.search_space.seed]`` as it stands in the file, "NA" being None.
    """

    Setup: ClassVar[type[SpaceSetup]] = SpaceSetup
    starts_afresh: ClassVar[bool] = False
    """Whether candidates get new weights, so that those of the model make no difference."""

    def __init__(self, context: SearchContext, setup: Any, seed: Mapping[str, Any]) -> None:
        self.context = context
        self.setup = setup
        self.seed = seed

    @classmethod  # noqa: B027  # there may be nothing to refuse
    def check(cls, setup: Any, seed: Mapping[str, Any]) -> None:
        """Refuse what can be seen to be wrong before any model is built."""

    @abstractmethod
    def choices(self) -> tuple[Choice, ...]:
        """The choices, in the order in which they are made."""

    @abstractmethod
    def config_of(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """The configuration, plain nested values, that the chosen options make."""

    @abstractmethod
    def candidate(self, config: dict[str, Any]) -> Candidate:
        """What the runners measure. It must not depend on any candidate made before."""

    def toml_of(self, config: dict[str, Any]) -> dict[str, Any]:
        """Tables that, added to the settings of the run, make ``ch`` build this configuration."""
        return {}

    @cached_property
    def tree(self) -> tuple[Choice, ...]:
        """The choices, made once."""
        return self.choices()

    @property
    def size(self) -> int:
        """How many configurations there are."""
        return tree.size(self.tree)

    def config(self, picked: Picked) -> dict[str, Any]:
        """The configuration of the options at these places."""
        return self.config_of(tree.values(self.tree, picked))


SPACES: Registry[type[SearchSpace]] = Registry("search space")


def make_space(
    name: str, context: SearchContext, setup: Mapping[str, Any], seed: Mapping[str, Any]
) -> SearchSpace:
    """The space of this name, with its settings checked."""
    kind = SPACES[name]
    parsed = parse(kind.Setup, setup, "search.search_space.setup")
    kind.check(parsed, seed)
    return kind(context, parsed, seed)


def options(value: Any, where: str) -> tuple[Any, ...]:
    """The options that a key of a seed lists; a single value is the only option."""
    found = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not found:
        raise ConfigError(f"{where}: there is nothing to choose from")
    return found
