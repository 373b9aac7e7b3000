"""The samplers a search can use, by the name a configuration gives them.

A sampler proposes configurations and is told what became of them. Those that do not learn draw
from the tree of choices themselves; the others are Optuna's, working on a study in memory that
holds what the stored study knows.
"""

import contextlib
import random as python_random
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from chop.errors import ConfigError
from chop.registry import Registry
from chop.search.spaces.space import Choice, Picked, every, flat, walk

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial
    from torch.quasirandom import SobolEngine

SOBOL_DIMENSIONS = 21_201
LARGEST_LEAP = 256
"""Configurations that a process at most leaves out for the time being, to get out of the way."""


@dataclass(frozen=True)
class Problem:
    """The problem of a sampler: the choices and the objectives."""

    choices: tuple[Choice, ...]
    directions: tuple[Literal["maximize", "minimize"], ...]


@dataclass
class Proposal:
    """One configuration that a sampler wants to see evaluated."""

    picked: Picked
    params: dict[str, Any] = field(default_factory=dict)
    """What Optuna stores of it, by the name of the choice."""
    trial: Any = None
    """The trial in the sampler's private study, for samplers that learn."""


class Sampler(ABC):
    """Proposes configurations, and may learn from what becomes of them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def propose(self) -> Proposal | None:
        """The next configuration; None if there are no more."""

    def learn(  # noqa: B027  # most need not
        self, proposal: Proposal, values: Sequence[float] | None, violations: Mapping[str, float]
    ) -> None:
        """Take note of the objectives of a proposal; None if it failed or is not known yet.

        Args:
            violations: how far each bounded metric lies outside its bounds.
        """

    def learn_from(self, trials: Sequence["FrozenTrial"]) -> None:  # noqa: B027
        """Take note of trials that others have finished."""

    def notes(self, proposal: Proposal) -> dict[str, Any]:
        """Return what the sampler has to find in the study when the search is resumed."""
        return {}

    def part_ways(self, way: str) -> None:  # noqa: B027  # it only saves work
        """Draw other configurations than another process, which has drawn the same as this one.

        Args:
            way: a text that no other process has, and this one only once.
        """


class Enumerated(Sampler):
    """Every configuration in turn, each exactly once."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._left: Iterator[Picked] = every(problem.choices)
        self._later: deque[Picked] = deque()

    def propose(self) -> Proposal | None:
        picked = next(self._left, None)
        if picked is None and self._later:
            picked = self._later.popleft()
        return None if picked is None else Proposal(picked, params_of(self.problem.choices, picked))

    def part_ways(self, way: str) -> None:
        """Leave some configurations for the end; others will most likely have done them by then."""
        leap = python_random.Random(way).randrange(LARGEST_LEAP)
        self._later.rotate(leap)
        self._later.extend(islice(self._left, leap))


class Random(Sampler):
    """Independent random choices."""

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem)
        self._seed = seed
        self._random = python_random.Random(seed)

    def propose(self) -> Proposal:
        return proposal(self.problem.choices, lambda c: self._random.randrange(len(c.options)))

    def part_ways(self, way: str) -> None:
        self._random = python_random.Random(f"{self._seed}/{way}")


class QuasiRandom(Sampler):
    """Points of a scrambled Sobol sequence, one dimension for each choice."""

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem)
        several = [each.name for each in flat(problem.choices) if len(each.options) > 1]
        self._dimensions = {name: place for place, name in enumerate(dict.fromkeys(several))}
        if len(self._dimensions) > SOBOL_DIMENSIONS:
            raise ConfigError(
                f"sampler 'qmc' can make {SOBOL_DIMENSIONS} choices, and this space has "
                f"{len(self._dimensions)}: use 'random'"
            )
        self._seed = seed
        self._engine = self._sobol_engine(seed)

    def _sobol_engine(self, seed: int) -> "SobolEngine":
        from torch.quasirandom import SobolEngine

        return SobolEngine(  # type: ignore[no-untyped-call]
            max(1, len(self._dimensions)), scramble=True, seed=seed
        )

    def part_ways(self, way: str) -> None:
        other = python_random.Random(f"{self._seed}/{way}")
        self._engine = self._sobol_engine(other.getrandbits(32))

    def propose(self) -> Proposal:
        point: list[float] = self._engine.draw(1)[0].tolist()

        def pick(choice: Choice) -> int:
            place = int(point[self._dimensions[choice.name]] * len(choice.options))
            return min(place, len(choice.options) - 1)

        return proposal(self.problem.choices, pick)


class LearningSampler(Sampler):
    """One of Optuna's samplers, on a study in memory."""

    def __init__(self, problem: Problem, sampler: "BaseSampler") -> None:
        super().__init__(problem)
        import optuna

        self._storage = optuna.storages.InMemoryStorage()
        self._study = optuna.create_study(
            storage=self._storage, directions=list(problem.directions), sampler=sampler
        )
        self._distributions = {each.name: distribution(each) for each in flat(problem.choices)}

    def propose(self) -> Proposal:
        trial = self._study.ask()

        def pick(choice: Choice) -> int:
            chosen = self._distributions[choice.name]
            label = trial.suggest_categorical(choice.name, chosen.choices)
            return int(chosen.to_internal_repr(label))

        found = proposal(self.problem.choices, pick)
        found.trial = trial
        return found

    def learn(
        self, proposal: Proposal, values: Sequence[float] | None, violations: Mapping[str, float]
    ) -> None:
        from optuna.trial import TrialState

        if values is None:
            self._study.tell(proposal.trial, state=TrialState.FAIL)
            return
        for name, violation in violations.items():
            proposal.trial.set_constraint(name, violation)
        self._study.tell(proposal.trial, list(values))

    def learn_from(self, trials: Sequence["FrozenTrial"]) -> None:
        self._study.add_trials(trials)

    def part_ways(self, way: str) -> None:
        self._study.sampler.reseed_rng()

    def notes(self, proposal: Proposal) -> dict[str, Any]:
        if proposal.trial is None:
            return {}
        return dict(self._storage.get_trial_system_attrs(proposal.trial._trial_id))


def proposal(choices: tuple[Choice, ...], pick: Callable[[Choice], int]) -> Proposal:
    """The configuration that `pick` decides on."""
    picked = walk(choices, pick)
    return Proposal(picked, params_of(choices, picked))


def params_of(choices: Sequence[Choice], picked: Picked) -> dict[str, Any]:
    """The options taken, as Optuna stores them, where there was something to choose."""
    found: dict[str, Any] = {}
    for choice in choices:
        place = picked[choice.name]
        if len(choice.options) > 1:
            found[choice.name] = choice.labels[place]
        if following := choice.after(place):
            found |= params_of(following, picked)
    return found


def distribution(choice: Choice) -> Any:
    """A choice as Optuna knows it."""
    from optuna.distributions import CategoricalDistribution

    return CategoricalDistribution(choice.labels)


MakeSampler = Callable[[int, Problem], Sampler]


@dataclass(frozen=True)
class SamplerKind:
    """A sampler by its name, and what a search has to know before it makes one.

    Attributes:
        learns: whether a proposal depends on the results of those before it.
        seeded: whether another seed gives another order of proposals.
        exhaustive: whether it takes the whole space, whatever ``n_trials`` says.
        needs: packages that are not installed with chop.
    """

    name: str
    make: MakeSampler
    learns: bool = False
    seeded: bool = True
    exhaustive: bool = False
    needs: tuple[str, ...] = ()

    def __call__(self, seed: int, problem: Problem) -> Sampler:
        """A sampler for one process of one search."""
        for package in self.needs:
            if find_spec(package) is None:
                raise ConfigError(
                    f"sampler {self.name!r} needs {package}: pip install {package}, or use 'tpe'"
                )
        return self.make(seed, problem)

    @property
    def description(self) -> str:
        """One line."""
        return (self.make.__doc__ or "").strip().partition("\n")[0]

    @property
    def traits(self) -> dict[str, str]:
        """Return what a user may want to know, in words."""
        starts_over = "restarts and skips known configurations"
        return {
            "learns": "yes" if self.learns else "no",
            "resumes": "reads all results, then continues with new random numbers"
            if self.learns
            else starts_over,
            "seed": "decides the order" if self.seeded else "makes no difference",
            "n_trials": "sets no limit" if self.exhaustive else "counts distinct configurations",
            "needs": ", ".join(self.needs) or "nothing else",
        }


SAMPLERS: Registry[SamplerKind] = Registry("sampler")


def sampler(name: str, **traits: Any) -> Callable[[MakeSampler], MakeSampler]:
    """Declare a sampler under a name, with its traits as `SamplerKind` has them."""

    def add(make: MakeSampler) -> MakeSampler:
        SAMPLERS.add(name, SamplerKind(name, make, **traits))
        return make

    return add


@sampler("random")
def random(seed: int, problem: Problem) -> Sampler:
    """Independent random choices."""
    return Random(problem, seed)


@sampler("qmc")
def qmc(seed: int, problem: Problem) -> Sampler:
    """Quasi-random points that cover the space evenly."""
    return QuasiRandom(problem, seed)


@sampler("brute", seeded=False, exhaustive=True)
def brute(seed: int, problem: Problem) -> Sampler:
    """Every configuration, once; n_trials sets no limit."""
    return Enumerated(problem)


@sampler("grid", seeded=False)
def grid(seed: int, problem: Problem) -> Sampler:
    """Every configuration in turn, as far as n_trials goes."""
    return Enumerated(problem)


@sampler("tpe", learns=True)
def tpe(seed: int, problem: Problem) -> Sampler:
    """Tree-structured Parzen estimator: samples near the best trials."""
    from optuna.samplers import TPESampler

    return LearningSampler(problem, TPESampler(seed=seed))


@sampler("nsgaii", learns=True)
def nsgaii(seed: int, problem: Problem) -> Sampler:
    """NSGA-II: an evolutionary search for a Pareto front."""
    from optuna.samplers import NSGAIISampler

    return LearningSampler(problem, NSGAIISampler(seed=seed))


@sampler("nsgaiii", learns=True)
def nsgaiii(seed: int, problem: Problem) -> Sampler:
    """NSGA-III: NSGA-II for three objectives and more."""
    from optuna.samplers import NSGAIIISampler

    with _experiments():
        return LearningSampler(problem, NSGAIIISampler(seed=seed))


@sampler("gp", learns=True, needs=("scipy",))
def gp(seed: int, problem: Problem) -> Sampler:
    """Gaussian process: for few, expensive trials; needs scipy."""
    from optuna.samplers import GPSampler

    with _experiments():
        return LearningSampler(problem, GPSampler(seed=seed))


@contextlib.contextmanager
def _experiments() -> Iterator[None]:
    """Samplers whose interface Optuna may yet change; nothing that a user could do about."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
