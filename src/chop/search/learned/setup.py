"""``[search.strategy.setup]`` of the strategy ``learned``."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from chop.search.study.setup import SERIAL, STRATEGIES, EngineSetup, Schema, StudySetup
from chop.training.settings import LARGEST_FACTOR


def check_cost_weight(weight: float) -> float:
    """Return a cost weight that is one."""
    if not 0 < weight < LARGEST_FACTOR:
        raise ValueError(
            f"a cost weight must be a number more than 0 and less than {LARGEST_FACTOR:g}"
        )
    return weight


Rate = Annotated[float, Field(gt=0, lt=LARGEST_FACTOR)]
CostWeights = Annotated[
    list[Annotated[float, AfterValidator(check_cost_weight)]], Field(min_length=2, max_length=2)
]
"""Of the first cycle and of the last."""
MOST_EPOCHS = 1_000_000
MOST_MEMBERS = 1_000


class TeacherSetup(Schema):
    """A network whose predictions the search learns from, beside the labels.

    Attributes:
        hidden: sizes of the hidden layers of a perceptron with batch normalisation.
        model: a registered model, in place of `hidden`.
        load_name: weights or a graph to start from; without `hidden` and `model`, of the network
            that is searched itself.
        load_type: what `load_name` is, as for ``--load-type``.
        epochs: of its training; 0 if it is loaded trained.
        learning_rate: at the start; it falls along a cosine.
        share: how much of a target is the teacher's prediction; the rest is the label.
    """

    hidden: list[Annotated[int, Field(ge=1)]] | None = Field(None, min_length=1)
    model: str | None = None
    load_name: str | None = None
    load_type: Literal["pt", "pl", "mz"] = "pl"
    epochs: int = Field(20, ge=0, le=MOST_EPOCHS)
    learning_rate: Rate = 5e-3
    share: float = Field(0.9, gt=0, le=1)

    @model_validator(mode="after")
    def _one_network(self) -> "TeacherSetup":
        if self.hidden and self.model:
            raise ValueError("hidden and model are two networks: leave out one of them")
        if not (self.hidden or self.model or self.load_name):
            raise ValueError("no network is named: give hidden = [160, 80, 80], model or load_name")
        if self.hidden and self.load_type == "mz" and self.load_name:
            raise ValueError("load_type = 'mz' loads a whole graph: leave out hidden")
        if not self.epochs and self.load_name is None:
            raise ValueError("epochs = 0 leaves the teacher untrained: give load_name or epochs")
        return self


class PolishSetup(Schema):
    """Rounds in which networks of the front are made cheaper: bits move, then weights train on.

    Attributes:
        points: networks of the front that are polished, evenly spread over their costs.
        rounds: of each; after every one the network is a candidate.
        epochs: of training in a round, at widths that stay.
        learning_rate: at the start of a round; it falls along a cosine.
        rows: training rows on which moves of single bits are tried, in a network that is a chain
            of linear layers; 0 for training alone.
        growth: factor of the cost weight from round to round.
    """

    points: int = Field(6, ge=1)
    rounds: int = Field(5, ge=1)
    epochs: int = Field(6, ge=1, le=MOST_EPOCHS)
    learning_rate: Rate = 2e-3
    rows: int = Field(8_192, ge=0)
    growth: float = Field(1.25, ge=1, lt=LARGEST_FACTOR)


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "cycles": 10, "first_epochs": 8, "epochs": 4, "snapshots": 2, "learning_rate": 1e-2,
    },
    "normal": {
        "cycles": 19, "first_epochs": 12, "epochs": 6, "snapshots": 3, "learning_rate": 1e-2,
        "polish": {"points": 5, "rounds": 3, "epochs": 4, "rows": 4_096},
    },
    "thorough": {
        "cycles": 19, "first_epochs": 24, "epochs": 12, "snapshots": 3, "learning_rate": 1e-2,
        "polish": {"points": 7, "rounds": 5, "epochs": 6, "rows": 8_192},
    },
}  # fmt: skip
"""Settings that were chosen together, on validation rows."""


@STRATEGIES.register("learned")
class LearnedSetup(EngineSetup):
    """Widths are trained with the weights, at a cost that grows; snapshots are the trials.

    Attributes:
        preset: settings for a quick, normal or thorough search; others that are given override it.
        cycles: how often the learning rate restarts, each time with a larger cost weight.
        epochs: of each cycle.
        first_epochs: epochs of the first cycle, if different.
        snapshots: the last epochs of a cycle after which a snapshot is taken.
        cost_weight: what the EBOPs that the network starts with add to the loss: in the first
            cycle and in the last; it grows by the same factor from each to the next.
        learning_rate: of the weights at the start of a cycle; it falls along a cosine.
        bits_learning_rate: the same of the widths.
        restart_decay: factor of the learning rates from cycle to cycle.
        magnitude: how strongly the cost pulls weights to fewer integer bits.
        refresh: steps after which the gradient of the cost is worked out again.
        float_epochs: training of the float network before; 0 if it comes trained (``--load``).
        float_learning_rate: initial learning rate, with cosine decay.
        normalise: give layers that a ReLU follows a batch normalisation for the float training;
            it is folded into them before widths learn.
        calibration_rows: training rows to calibrate the integer bits of a snapshot.
        polish: what makes networks of the front cheaper after the last cycle.
        population: runs with different seeds whose fronts are merged; an engine does them.
        schedules: cost weights of the runs of a population in turn, in place of `cost_weight`.
    """

    strategy = "chop.search.learned.population:make_learned_search"

    preset: Literal["quick", "normal", "thorough"] | None = None
    cycles: int = Field(19, ge=1, le=MOST_EPOCHS)
    epochs: int = Field(6, ge=1, le=MOST_EPOCHS)
    first_epochs: int | None = Field(None, ge=1, le=MOST_EPOCHS)
    snapshots: int = Field(2, ge=1)
    cost_weight: CostWeights = Field([0.044, 3.1])
    learning_rate: Rate = 5e-3
    bits_learning_rate: Rate = 1e-2
    restart_decay: float = Field(0.98, gt=0, le=1)
    magnitude: float = Field(2.0, ge=0, lt=LARGEST_FACTOR)
    refresh: int = Field(8, ge=1)
    float_epochs: int = Field(30, ge=0, le=MOST_EPOCHS)
    float_learning_rate: Rate = 5e-3
    normalise: bool = True
    calibration_rows: int = Field(8_192, ge=1)
    teacher: TeacherSetup | None = None
    polish: PolishSetup | None = None
    population: int = Field(1, ge=1, le=MOST_MEMBERS)
    schedules: list[CostWeights] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, given: Any) -> Any:
        """Add the settings of a preset to those that are given."""
        chosen = PRESETS.get(str(given.get("preset"))) if isinstance(given, dict) else None
        return given if chosen is None else {**chosen, **given}

    @model_validator(mode="after")
    def _grows(self) -> "LearnedSetup":
        stated = [("schedules", each) for each in self.schedules]
        for name, (first, last) in [("cost_weight", self.cost_weight), *stated]:
            if self.cycles > 1 and last <= first:
                raise ValueError(
                    f"{name}: grows nowhere: the last ({last:g}) must be more than the first "
                    f"({first:g})"
                )
        shortest = min(self.epochs, self.first_epochs or self.epochs)
        if self.snapshots > shortest:
            raise ValueError(
                f"snapshots: a cycle of {shortest} epochs has no {self.snapshots} snapshots"
            )
        return self

    @model_validator(mode="after")
    def _is_a_population(self) -> "LearnedSetup":
        if self.population == 1 and (self.choice.kind != SERIAL or self.schedules):
            what = "schedules are" if self.schedules else f"engine {self.choice.kind!r} is"
            raise ValueError(f"{what} for the runs of a population: give population = 4 or so")
        return self

    @property
    def method(self) -> str:
        return "learned widths"

    @property
    def trains(self) -> bool:
        return self.float_epochs > 0

    def identity(self) -> dict[str, Any]:
        free = {"timeout", "storage", "study_name", "plots", "preset", "population"}
        free |= EngineSetup.model_fields.keys() - StudySetup.model_fields.keys()
        free |= {name for name in ("polish", "schedules") if not getattr(self, name)}
        found = {"setup of the strategy": self.model_dump(mode="json", exclude=free)}
        return found if self.population == 1 else {**found, "population": True}
