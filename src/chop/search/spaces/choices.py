"""What can be chosen: a tree in which an option may lead to further choices."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from chop.errors import ConfigError

Picked = dict[str, int]
"""The place of the option taken in each choice, by the name of the choice."""
Pick = Callable[["Choice"], int]


@dataclass(frozen=True)
class Choice:
    """One decision.

    Attributes:
        name: unique in the space: ``seq_blocks_2/config/weight_width``.
        options: plain values: numbers, texts, truth values, None, and lists of these.
        then: the choices that each option brings with it, where it brings any.
    """

    name: str
    options: tuple[Any, ...]
    then: tuple[tuple["Choice", ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.options:
            raise ConfigError(f"{self.name}: there is nothing to choose from")
        if len(set(map(_text, self.options))) < len(self.options):
            raise ConfigError(f"{self.name}: an option is listed twice in {list(self.options)}")

    def after(self, place: int) -> tuple["Choice", ...]:
        """The choices that the option at `place` brings with it."""
        return self.then[place] if self.then else ()

    @cached_property
    def labels(self) -> tuple[bool | int | float | str | None, ...]:
        """The options as Optuna can store them; a list becomes its text."""
        plain = (bool, int, float, str, type(None))
        return tuple(o if isinstance(o, plain) else _text(o) for o in self.options)


def size(choices: Sequence[Choice]) -> int:
    """How many configurations there are, exactly."""
    return prod(
        sum(size(choice.after(place)) for place in range(len(choice.options))) for choice in choices
    )


def walk(choices: Sequence[Choice], pick: Pick) -> Picked:
    """Decide each choice that comes up, in order, with `pick`."""
    picked: Picked = {}
    for choice in choices:
        place = pick(choice) if len(choice.options) > 1 else 0
        picked[choice.name] = place
        if following := choice.after(place):
            picked |= walk(following, pick)
    return picked


def every(choices: Sequence[Choice]) -> Iterator[Picked]:
    """All configurations, each once; the last choice changes fastest."""
    if not choices:
        yield {}
        return
    first, rest = choices[0], choices[1:]
    for place in range(len(first.options)):
        for inner in every(first.after(place)):
            for others in every(rest):
                yield {first.name: place, **inner, **others}


def flat(choices: Sequence[Choice]) -> Iterator[Choice]:
    """Every choice of the tree."""
    for choice in choices:
        yield choice
        yield from flat(tuple(itertools.chain.from_iterable(choice.then)))


def values(choices: Sequence[Choice], picked: Mapping[str, int]) -> dict[str, Any]:
    """The options taken, by the name of their choice."""
    found: dict[str, Any] = {}
    for choice in choices:
        place = picked[choice.name]
        found[choice.name] = choice.options[place]
        if following := choice.after(place):
            found |= values(following, picked)
    return found


def key_of(config: Mapping[str, Any]) -> str:
    """A short text that is the same for equal configurations and for no others."""
    return hashlib.sha256(_text(config).encode()).hexdigest()[:24]


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


def _text(value: Any) -> str:
    return _ENCODER.encode(value)
