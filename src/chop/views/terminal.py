"""Results on a terminal, where they are more than their rows."""

from collections.abc import Mapping

from chop.results.trials import Trials
from chop.search.front.verification import Marks
from chop.search.study.trial import MEASURED, Trial

NO_MARKS: Marks = {}


def best_table(best: Trials, verified: Marks = NO_MARKS) -> str:
    """The table that the labs print, numbers rounded to three places.

    Args:
        verified: whether the integers of a trial were seen to agree, by its number. There is a
            column for it if any of them was compared.
    """
    from tabulate import tabulate

    compared = any(each.equal is not None for each in verified.values())
    rows = [
        [index, trial.number, _short(trial.software), _short(trial.hardware), _short(trial.scaled)]
        + ([str(verified.get(trial.number, "no"))] if compared else [])
        for index, trial in enumerate(map(Trial.of, best))
    ]
    headers = ["", "number", *MEASURED, *(["verified"] if compared else [])]
    return tabulate(rows, headers, tablefmt="orgtbl")


def _short(metrics: Mapping[str, float]) -> str:
    return str({name: round(value, 3) for name, value in metrics.items()})
