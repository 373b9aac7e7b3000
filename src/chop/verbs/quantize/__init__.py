"""Quantise a model in one line: `command` as ``ch quantize``, `module` as `chop.quantize`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from chop.config.option import Option
from chop.config.run import QUANTISING, FormatName, MethodNames, RunConfig
from chop.config.verb import Verb, add_verb


@dataclass(frozen=True, kw_only=True)
class QuantizeRequest(RunConfig):
    """Quantise a trained model: ch quantize --load PATH --width 8."""

    width: Annotated[
        int | None,
        Option(
            "bits of what products are made of, inputs and weights alike; 8 if the format has no "
            "width of its own",
            QUANTISING,
            above=0,
            listed=False,
        ),
    ] = None
    weight_width: Annotated[
        int | None,
        Option(
            "bits of weights, where they differ from --width", QUANTISING, above=0, listed=False
        ),
    ] = None
    number_format: FormatName = "integer"
    products_only: Annotated[
        bool,
        Option(
            "quantise products only, and leave all else in floating point",
            QUANTISING,
            listed=False,
        ),
    ] = False
    scales: Annotated[
        Literal["power_of_two", "free"],
        Option(
            "scales of a network in integers: powers of two, which are shifts, or free ones, which "
            "are multiplications and use the whole range of a width",
            QUANTISING,
            listed=False,
        ),
    ] = "power_of_two"
    methods: MethodNames = None
    rules: Annotated[
        list[str],
        Option(
            "another width or format for some layers: fc1=6, linear=minifloat_ieee:8, out=float; "
            "before = stands a layer, an operation or a pattern",
            QUANTISING,
            ("--rule",),
            listed=False,
            repeatable=True,
        ),
    ] = field(default_factory=list)


add_verb(
    Verb(
        "quantize",
        QuantizeRequest,
        place=5,
        quiet="accuracy before and after, the cost, and where the quantised model is",
        home="chop.verbs.quantize.command",
        python="chop.verbs.quantize.module:quantize",
    )
)
