"""What measures candidates: software (how good) and hardware (how costly) metrics.

A custom metric is one decorated function:

    @hardware_runner("weights", metrics=(MetricInfo("weight_count", "weights", "minimize"),))
    def weights(candidate: Candidate) -> dict[str, float]:
        return {"weight_count": sum(p.numel() for p in candidate.model.parameters())}

``[search.strategy.hw_runner.weights]`` then measures it. A metric may also be a plain name, without
unit and direction. A second argument that is annotated with a class derived from `RunnerArgs`
receives the keys of that table, checked. The units of chop's own metrics are in `metrics`.
"""

import inspect
import math
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from torch import Tensor

from chop.errors import ConfigError, SearchError
from chop.export.verilog.target import Hardware, circuit_cost
from chop.logger import silently
from chop.lowering import analyse, lower
from chop.passes.graph.analysis.flops.count import count
from chop.passes.graph.analysis.flops.ebops import EBOPS_ROWS, ebops
from chop.passes.graph.analysis.flops.operands import model_parameters
from chop.registry import Registry
from chop.search.metrics import METRICS, MetricInfo
from chop.search.spaces.measure import RunnerParts
from chop.search.spaces.space import Candidate, SearchContext
from chop.search.study.trial import Metrics
from chop.tasks import NUMBERS, task_named
from chop.training.metrics import evaluate_model, labelled_predictions, perplexity, summed_loss
from chop.training.results import RegressionTally, Result
from chop.training.settings import TrainingSettings
from chop.validation import parse

Divide = Callable[[Candidate, Any], RunnerParts]
InFull = Callable[[SearchContext, Any], "RunnerArgs | None"]
Stated = Sequence[str | MetricInfo]


class RunnerArgs(BaseModel):
    """The settings of a runner: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Runner:
    """A named function that measures candidates.

    Args:
        parts: divides its work on a candidate, so that several processes share it.
        in_full: the settings with which it looks at everything, where it usually looks at a sample
            and so gives at most the true figure; None if the sample is everything.
        regression: whether it measures networks that predict numbers; None if that does not matter.
    """

    def __init__(
        self,
        function: Callable[..., Metrics],
        name: str,
        metrics: Stated,
        parts: Divide | None = None,
        regression: bool | None = None,
        in_full: InFull | None = None,
    ) -> None:
        self.regression = regression
        self.in_full = in_full
        self.function = function
        self.name = name
        self.metrics = tuple(
            METRICS.get(m, MetricInfo(m)) if isinstance(m, str) else m for m in metrics
        )
        self._promised = {metric.name for metric in self.metrics}
        self.parts = parts
        self.__doc__ = function.__doc__
        self.schema = _schema(function)

    def parse(self, given: Mapping[str, Any], where: str) -> RunnerArgs:
        """The settings as the function takes them."""
        return parse(self.schema or RunnerArgs, given, where)

    def __call__(self, candidate: Candidate, args: RunnerArgs) -> dict[str, float]:
        """Measure; what comes back must be what was promised."""
        found = self.function(candidate, args) if self.schema else self.function(candidate)
        if found.keys() != self._promised:
            raise SearchError(
                f"runner {self.name!r} promises {sorted(self._promised)} and gave {sorted(found)}"
            )
        for name, value in found.items():
            if not math.isfinite(value):
                raise SearchError(f"{name} is {value}")
        return {name: float(found[name]) for name, _, _ in self.metrics}


SW_RUNNERS: Registry[Runner] = Registry("software runner")
HW_RUNNERS: Registry[Runner] = Registry("hardware runner")

Declare = Callable[[Callable[..., Metrics]], Callable[..., Metrics]]


def software_runner(
    name: str, metrics: Stated, parts: Divide | None = None, regression: bool | None = None
) -> Declare:
    """Declare what measures how well a candidate does its work."""
    return _declare(SW_RUNNERS, name, metrics, parts=parts, regression=regression)


def hardware_runner(name: str, metrics: Stated, in_full: InFull | None = None) -> Declare:
    """Declare what measures what a candidate costs."""
    return _declare(HW_RUNNERS, name, metrics, in_full=in_full)


def _declare(registry: Registry[Runner], name: str, metrics: Stated, **more: Any) -> Declare:
    def add(function: Callable[..., Metrics]) -> Callable[..., Metrics]:
        registry.add(name, Runner(function, name, metrics, **more))
        return function

    return add


def _schema(function: Callable[..., Any]) -> type[RunnerArgs] | None:
    """The class that annotates the second argument, if there is one."""
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 2:
        return None
    annotation = typing.get_type_hints(function).get(parameters[1].name)
    if isinstance(annotation, type) and issubclass(annotation, RunnerArgs):
        return annotation
    raise ConfigError(
        f"{function.__name__}: its second argument must be annotated with a RunnerArgs class"
    )


LoaderName = Literal["train_dataloader", "val_dataloader", "test_dataloader"]


class EvaluationArgs(RunnerArgs):
    """Which rows: the first `num_samples` of a loader, or all of them.

    The original documents the key `data_loader` and reads `dataloader`; both are read here.
    """

    data_loader: LoaderName = Field(
        "val_dataloader", validation_alias=AliasChoices("data_loader", "dataloader")
    )
    num_samples: int | None = Field(None, ge=1)


@software_runner("basic_evaluation", metrics=("loss", "accuracy"), regression=False)
def basic_evaluation(candidate: Candidate, args: EvaluationArgs) -> dict[str, float]:
    """Mean cross entropy and micro accuracy, as training defines them."""
    loss, accuracy = evaluated(candidate, args)
    return {"loss": loss, "accuracy": accuracy}


@software_runner("lm_evaluation", ("loss", "accuracy", "perplexity"), regression=False)
def lm_evaluation(candidate: Candidate, args: EvaluationArgs) -> dict[str, float]:
    """Mean cross entropy, accuracy and perplexity of the tokens of a language model."""
    loss, accuracy = evaluated(candidate, args)
    return {"loss": loss, "accuracy": accuracy, "perplexity": perplexity(loss)}


@software_runner("regression_evaluation", NUMBERS.metrics, regression=True)
def regression_evaluation(candidate: Candidate, args: EvaluationArgs) -> dict[str, float]:
    """Errors of predicted numbers in their own units, and the share of variance explained."""
    counted = RegressionTally(candidate.context.targets)
    no_gradients = torch.inference_mode() if candidate.context.eval_mode else torch.no_grad()
    with no_gradients:
        for outputs, labels in candidate.predictions(args.data_loader, args.num_samples):
            counted.add(outputs, labels)
    return counted.result().metrics()


def evaluated(candidate: Candidate, args: EvaluationArgs) -> tuple[float, float]:
    """The mean cross entropy and the accuracy of a candidate."""
    loss, right, rows = 0.0, 0, 0
    no_gradients = torch.inference_mode() if candidate.context.eval_mode else torch.no_grad()
    with no_gradients:
        for scores, labels in candidate.predictions(args.data_loader, args.num_samples):
            scores, labels = labelled_predictions(scores, labels)
            # The sums of `chop.training.metrics.Tally` without its table of classes, which takes
            # longer than a small network does; a test holds that the two agree to the last bit.
            loss += float(summed_loss(scores, labels))
            right += int((scores.argmax(dim=1) == labels).count_nonzero())
            rows += labels.shape[0]
    return loss / rows, right / rows


class LatencyArgs(RunnerArgs):
    """How the time of a forward pass is taken.

    Attributes:
        batch_size: rows per pass.
        warm_up: passes before the timed ones.
        repeats: timed passes.
    """

    data_loader: LoaderName = Field(
        "val_dataloader", validation_alias=AliasChoices("data_loader", "dataloader")
    )
    batch_size: int = Field(1, ge=1)
    warm_up: int = Field(10, ge=0)
    repeats: int = Field(100, ge=1)


@software_runner(
    "latency", metrics=("latency", "latency_low", "latency_high", "latency_batch_size")
)
def latency(candidate: Candidate, args: LatencyArgs) -> dict[str, float]:
    """Milliseconds of a forward pass here: median, and the interval that holds 90 % of passes."""
    batches = candidate.context.batches(args.data_loader, args.batch_size)
    features = torch.cat([each for each, _ in batches])
    with torch.inference_mode():
        for _ in range(args.warm_up):
            candidate.model(features.clone())
        times = torch.tensor([_timed(candidate, features) for _ in range(args.repeats)])
    low, median, high = torch.quantile(times, torch.tensor([0.05, 0.5, 0.95])).tolist()
    return {
        "latency": median,
        "latency_low": low,
        "latency_high": high,
        "latency_batch_size": args.batch_size,
    }


def _timed(candidate: Candidate, features: Tensor) -> float:
    """Milliseconds of one pass; the copy that protects the rows is not timed."""
    own = features.clone()
    _wait(features.device)
    start = time.perf_counter()
    candidate.model(own)
    _wait(features.device)
    return (time.perf_counter() - start) * 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class TrainArgs(RunnerArgs):
    """How to train, then which rows to evaluate on."""

    max_epochs: int = Field(1, ge=1)
    max_steps: int = Field(-1, ge=-1)
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    scheduler: Literal["cosine", "linear", "constant"] = Field(
        "cosine", validation_alias=AliasChoices("scheduler", "lr_scheduler")
    )
    accumulate_grad_batches: int = Field(
        1, ge=1, validation_alias=AliasChoices("accumulate_grad_batches",
                                               "gradient_accumulation_steps")
    )  # fmt: skip
    data_loader: LoaderName = Field(
        "val_dataloader", validation_alias=AliasChoices("data_loader", "dataloader")
    )
    num_samples: int | None = Field(None, ge=1)


@software_runner("basic_train", metrics=("loss", "accuracy"), regression=False)
def basic_train(candidate: Candidate, args: TrainArgs) -> dict[str, float]:
    """Loss and accuracy after some epochs of (quantisation-aware) training of a private copy."""
    found = trained(candidate, args).metrics()
    return {name: found[name] for name in ("loss", "accuracy")}


@software_runner("regression_train", NUMBERS.metrics, regression=True)
def regression_train(candidate: Candidate, args: TrainArgs) -> dict[str, float]:
    """The same of a network that predicts numbers: its errors after some epochs of training."""
    return trained(candidate, args).metrics()


def trained(candidate: Candidate, args: TrainArgs) -> Result:
    """The result of a candidate after its training."""
    from chop.training.fit import fit_in_memory
    from chop.training.job import Job

    context = candidate.context
    settings = TrainingSettings(
        seed=context.seed,
        accelerator="cpu" if context.device.type == "cpu" else "auto",
        **args.model_dump(exclude={"data_loader", "num_samples"}),
    )
    torch.manual_seed(context.seed)
    # The progress of a training would drown that of the search.
    with silently():
        task = task_named(context.task)
        fit_in_memory(Job(candidate.model, context.data_module, Path(), task=task), settings)
    batches = context.batches(args.data_loader, args.num_samples)
    device = context.device
    return evaluate_model(candidate.model.to(device), batches, device, context.targets)


class BitwidthArgs(RunnerArgs):
    """Reference width for memory_density."""

    compare_to: float = Field(32, gt=0)


@hardware_runner("average_bitwidth", metrics=("average_bitwidth", "memory_density"))
def average_bitwidth(candidate: Candidate, args: BitwidthArgs) -> dict[str, float]:
    """Bits of a parameter, averaged over all of them; an unquantised one counts in full."""
    bits = candidate.parameter_width()
    return {"average_bitwidth": bits, "memory_density": args.compare_to / bits}


@hardware_runner("activation_bitwidth", metrics=("activation_bitwidth",))
def activation_bitwidth(candidate: Candidate) -> dict[str, float]:
    """Bits of an activation that arithmetic reads, averaged over all of them."""
    return {"activation_bitwidth": candidate.activation_width()}


@hardware_runner("model_size", metrics=("model_size",))
def model_size(candidate: Candidate) -> dict[str, float]:
    """Bytes of all parameters as codes of their formats, packed tensor by tensor, and buffers."""
    parameters = model_parameters(candidate.model)
    packed = sum(-(-bits // 8) for bits in parameters.values())
    return {"model_size": packed + sum(buffer.nbytes for buffer in candidate.model.buffers())}


@hardware_runner("flops", metrics=("flops",))
def flops(candidate: Candidate) -> dict[str, float]:
    """Floating-point operations of one sample."""
    return {"flops": _counts(candidate)["flops"]}


@hardware_runner("bitops", metrics=("bitops",))
def bitops(candidate: Candidate) -> dict[str, float]:
    """Bit operations of a sample: each multiplication counts the product of the two widths."""
    return {"bitops": _counts(candidate)["bitops"]}


class CalibrationArgs(RunnerArgs):
    """Rows to observe activations on: random ones of a loader, the same for every seed, or all."""

    data_loader: LoaderName = Field(
        "train_dataloader", validation_alias=AliasChoices("data_loader", "dataloader")
    )
    num_samples: int | None = Field(EBOPS_ROWS, ge=1)


def all_rows(context: SearchContext, args: CalibrationArgs) -> CalibrationArgs | None:
    """The settings for all rows, if the sample is not all of them."""
    if args.num_samples is None:
        return None
    rows = context.row_count(args.data_loader)
    is_all = rows is not None and rows <= args.num_samples
    return None if is_all else args.model_copy(update={"num_samples": None})


@hardware_runner("ebops", metrics=("ebops",), in_full=all_rows)
def effective_bitops(candidate: Candidate, args: CalibrationArgs) -> dict[str, float]:
    """Effective bit operations: each product times the bits that its weight and input use.

    Fewer rows than asked for are no mistake: all of them are looked at.
    """
    rows = candidate.context.features(args.data_loader, args.num_samples)
    found = ebops(candidate.graph, rows)
    if found.uncounted:
        node, reason = next(iter(found.uncounted.items()))
        raise SearchError(f"EBOPs cannot be counted: {node}: {reason}")
    return {"ebops": found.total}


@hardware_runner("accumulator_bits", metrics=("accumulator_bits",))
def accumulator_bits(candidate: Candidate) -> dict[str, float]:
    """Bits of the widest sum or product in integers, for any input."""
    return {"accumulator_bits": analyse(lower(candidate.graph, cut_tail=True)).accumulator_bits}


class CircuitArgs(RunnerArgs):
    """Where the registers of the circuit are, as in an export."""

    stages: int | None = Field(None, ge=0)
    clock_ns: float | None = Field(None, gt=0)
    most_luts: int = Field(200_000, ge=1)


@hardware_runner("circuit", metrics=("luts", "latency_cycles"))
def circuit(candidate: Candidate, args: CircuitArgs) -> dict[str, float]:
    """Look-up tables and clock cycles of the candidate as a fully parallel circuit."""
    program = lower(candidate.graph, cut_tail=True)
    cost = circuit_cost(program, Hardware(args.stages, args.clock_ns, most_luts=args.most_luts))
    return {"luts": cost.luts, "latency_cycles": cost.latency_cycles}


def _counts(candidate: Candidate) -> dict[str, int]:
    return count(candidate.graph, only_work=True).total
