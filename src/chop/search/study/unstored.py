"""Results that a database was away for: kept beside the results, stored when the search goes on."""

import json
from collections.abc import Sequence
from pathlib import Path

from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial

from chop.errors import SearchError
from chop.runs import write_new
from chop.search.study.store import KEY, Outcome, Store, Wanted

FILE_NAME = "unstored.json"


def keep(folder: Path | None, finished: Sequence[tuple[FrozenTrial, Outcome]]) -> None:
    """Write what became of trials to a file of its own in `folder`."""
    rows = [
        {
            "key": trial.user_attrs[KEY],
            "config": trial.user_attrs["sampled_config"],
            "params": trial.params,
            "distributions": {
                name: distribution_to_json(each) for name, each in trial.distributions.items()
            },
            "system_attrs": trial.system_attrs,
            "outcome": vars(outcome),
        }
        for trial, outcome in finished
    ]
    if folder is not None and rows:
        write_new(folder / FILE_NAME, json.dumps(rows, indent=1) + "\n")


def put_back(folder: Path, store: Store) -> None:
    """Store what is kept in `folder`, and remove the files of it."""
    for path in sorted(folder.glob(f"{Path(FILE_NAME).stem}*.json")):
        for wanted, outcome in _read(path):
            if not store.taken(wanted.key):
                (trial,) = store.claim([wanted], None)
                store.finish([(trial, outcome)] if trial else [])
            if wanted.key not in store.done:
                break  # somebody seems to be at it; if that is not so, the file is still needed
        else:
            path.unlink(missing_ok=True)


def _read(path: Path) -> list[tuple[Wanted, Outcome]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [
            (
                Wanted(
                    **{name: row[name] for name in ("key", "config", "params", "system_attrs")},
                    distributions={
                        name: json_to_distribution(text)
                        for name, text in row["distributions"].items()
                    },
                ),
                Outcome(**row["outcome"]),
            )
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SearchError(
            f"{path}: is damaged ({type(error).__name__}); remove it to evaluate its trials again"
        ) from None
