"""A journal read with what trials share made once is what Optuna reads."""

from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from search_cases import StoreMaker

from chop.search.study.journal import OPTIONS
from chop.search.study.store import Store
from chop.search.study.trial import Outcome
from chop.search.study.trial import TrialRequest as Wanted

CHOICES = {"a": CategoricalDistribution([2, None, "x"]), "b/é": CategoricalDistribution([1.5, 2])}
MEASURED = {"software_metrics": {"accuracy": 0.1}, "hardware_metrics": {}, "scaled_metrics": {}}
OUTCOME = Outcome([0.1, 1e-17], MEASURED, violations={"accuracy": -1.0})
CONFIGS: list[dict[str, Any]] = [
    {"a": {"config": {"name": None, "widths": [1, 2]}}},
    {"a": {"intermediate_values": {}, "distributions": {"x": 1}}},  # as the record itself has it
    {"a": OPTIONS.decode(), "b": f'"{{}}{OPTIONS.decode()}"}}'},
]


def wanted(key: str, config: dict[str, Any], names: str = "ab") -> Wanted:
    chosen = {"a": None, "b/é": 2}
    params = {name: chosen[name] for name in chosen if name[0] in names}
    return Wanted(key, config, params, {name: CHOICES[name] for name in params}, {"note": [1]})


def add(store: Store, *configs: Wanted) -> None:
    with store.alone() as alone:
        assert alone
        store.add([(each, OUTCOME, datetime.now()) for each in configs])


def fill(store: Store) -> None:
    """Trials of every kind that a journal can hold."""
    claimed = store.claim([wanted("c", {}), wanted("d", {}), wanted("e", {}, "b")], None)
    one, other, left = [trial for trial in claimed if trial]
    store.finish([(one, OUTCOME), (other, Outcome(reason="no luck"))])
    store.give_up([left], "interrupted")
    add(store, *(wanted(str(place), config) for place, config in enumerate(CONFIGS)))
    add(store, wanted("f", {}, "a"), wanted("g", {}, ""))
    theirs = optuna.create_study(storage=store.storage, study_name="theirs")
    theirs.optimize(lambda t: t.suggest_float("x", 0, 1) + t.suggest_int("n", 1, 8), n_trials=3)
    store.study.ask({"z": optuna.distributions.IntDistribution(1, 4)})


def test_trials_are_what_optuna_reads(open_at: StoreMaker, tmp_path: Path) -> None:
    fill(open_at())
    ours = open_at().storage
    theirs = JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    for study in theirs.get_all_studies():
        expected = theirs.get_all_trials(study._study_id)
        assert ours.get_all_trials(study._study_id) == expected
        assert len(expected) >= 3
    assert ours.get_all_studies() == theirs.get_all_studies()


def test_trials_share_the_options_of_their_choices(open_at: StoreMaker) -> None:
    fill(open_at())
    found = {trial.user_attrs["key"]: trial for trial in open_at().frozen_trials()}
    assert found["0"].distributions is found["1"].distributions
    assert found["c"].distributions["a"] is found["0"].distributions["a"]


@pytest.mark.parametrize("n", [1, 3])
def test_own_trials_are_not_read_back_and_are_the_same(open_at: StoreMaker, n: int) -> None:
    store = open_at()
    for _ in range(n):
        add(store, *(wanted(f"{len(store.done)}/{i}", each) for i, each in enumerate(CONFIGS)))
    before = {id(trial) for trial in store.done.values()}
    own = store.frozen_trials()
    assert {id(trial) for trial in own} == before
    for mine, theirs in zip(own, open_at().frozen_trials(), strict=True):
        mine._trial_id = theirs._trial_id  # only a storage can tell
        assert mine == theirs
