"""Sensitivity: what each layer loses at several widths, and a search that follows from it."""

from dataclasses import dataclass

from chop.config.run import (
    Address,
    BitWidths,
    EngineName,
    FormatName,
    MeasuringProcesses,
    RunConfig,
)
from chop.config.verb import Verb, add_verb


@dataclass(frozen=True, kw_only=True)
class SensitivityRequest(RunConfig):
    """Show what each layer loses at several widths; suggest a search."""

    number_format: FormatName = "integer"
    widths: BitWidths = "2,3,4,6,8"
    n_jobs: MeasuringProcesses = 1
    engine: EngineName = None
    address: Address = None


add_verb(
    Verb(
        "sensitivity",
        SensitivityRequest,
        place=6,
        quiet="the table of the layers and where the results are",
        home="chop.verbs.sensitivity.layers",
        python="chop.verbs.sensitivity.module:module_sensitivity",
    )
)
