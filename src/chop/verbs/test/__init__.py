"""Test: `testing` as ``ch test`` and the labs, `module` as `chop.evaluate`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from chop.config.option import Option
from chop.config.run import DATA, RunConfig
from chop.config.verb import Verb, add_verb


@dataclass(frozen=True, kw_only=True)
class TestRequest(RunConfig):
    """Measure a trained model on the test rows."""

    split: Annotated[
        Literal["test", "val", "all"],
        Option(
            "rows that ch test measures: test, validation or all rows, as for a new file",
            DATA,
            listed=False,
        ),
    ] = "test"
    exact: Annotated[
        bool,
        Option(
            "test a quantised network in integers, and compare it with the simulation",
            DATA,
            listed=False,
        ),
    ] = False


add_verb(
    Verb(
        "test",
        TestRequest,
        place=2,
        quiet="the table of results and where it is stored",
        home="chop.verbs.test.testing",
        python="chop.verbs.test.module:evaluate",
    )
)
