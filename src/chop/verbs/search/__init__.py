"""Search: `job` runs a search, `files` writes what it found, `comparing` compares samplers.

`front` is `chop.search`.
"""

from dataclasses import dataclass

from chop.config.run import Address, EngineName, RunConfig
from chop.config.verb import Verb, add_verb


@dataclass(frozen=True, kw_only=True)
class SearchRequest(RunConfig):
    """Search for quantisation settings by accuracy and cost."""

    engine: EngineName = None
    address: Address = None


add_verb(
    Verb(
        "search",
        SearchRequest,
        place=4,
        quiet="the table of the best trials, or of the comparison, and where the results are",
        home="chop.verbs.search.job",
        python="chop.verbs.search.front:search_module",
    )
)
