"""Formats: every number format by every method, in one table with intervals."""

from dataclasses import dataclass
from typing import Annotated

from chop.config.option import Option
from chop.config.run import (
    QUANTISING,
    RUNTIME,
    Address,
    BitWidths,
    EngineName,
    MeasuringProcesses,
    MethodNames,
    RunConfig,
)
from chop.config.verb import Verb, add_verb


@dataclass(frozen=True, kw_only=True)
class FormatsRequest(RunConfig):
    """Compare number formats and methods of quantising on a trained network."""

    formats: Annotated[
        str, Option("formats to compare, with commas between, or all", QUANTISING, listed=False)
    ] = "all"
    methods: MethodNames = "rtn,gptq"
    widths: BitWidths = "w4,4"
    num_samples: Annotated[
        int, Option("rows to measure on, at most", RUNTIME, at_least=2, listed=False)
    ] = 2000
    n_jobs: MeasuringProcesses = 1
    engine: EngineName = None
    address: Address = None


add_verb(
    Verb(
        "formats",
        FormatsRequest,
        place=7,
        quiet="the table of formats and where the results are",
        home="chop.verbs.formats.table",
        python="chop.verbs.formats.module:compare_formats",
    )
)
