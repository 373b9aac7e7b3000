"""Search: `job` runs a search, `files` writes what it found, `comparing` compares samplers.

`front` is `chop.search`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from chop.config.option import Option
from chop.config.run import RUNTIME, RunConfig
from chop.config.verb import Verb, add_verb


@dataclass(frozen=True, kw_only=True)
class SearchRequest(RunConfig):
    """Search for quantisation settings by accuracy and cost."""

    engine: Annotated[
        Literal["serial", "local", "ray"] | None,
        Option("what evaluates trials: this process, processes, a Ray cluster", RUNTIME,
               listed=False),
    ] = None  # fmt: skip
    address: Annotated[
        str | None,
        Option("of the Ray cluster: auto or host:port; without it one starts here", RUNTIME,
               listed=False),
    ] = None  # fmt: skip


add_verb(
    Verb(
        "search",
        SearchRequest,
        place=4,
        quiet="the table of the best trials, or of the comparison, and where the results are",
        home="chop.verbs.search.job",
        python="chop.verbs.search.front:search",
    )
)
