"""Transform: run the passes of a configuration on a model."""

from dataclasses import dataclass

from chop.config.run import RunConfig
from chop.config.verb import Verb, add_verb


@dataclass(frozen=True, kw_only=True)
class TransformRequest(RunConfig):
    """Run the passes of a configuration file on a model."""


add_verb(
    Verb(
        "transform",
        TransformRequest,
        place=3,
        quiet="where the transformed model is; reports of passes that go to the terminal are "
        "hidden",
        home="chop.verbs.transform.passes",
    )
)
