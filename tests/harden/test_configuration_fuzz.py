from pathlib import Path
from types import SimpleNamespace

import planted_cases
import pytest

from harden import called, configuration
from harden.config_bytes import SPECIAL
from harden.config_cases import KINDS, SPECIAL_EVERY, case_of
from harden.config_sources import ROOT, sources
from harden.forked import SWOLLEN, Verdict, run_all

HERE = Path(__file__).parent
ONCE_LOST = (1304, 7278, 8776)
"""A time in place of a width, a project of 5,000 letters, a learned search of 1,024 epochs."""


def test_a_share_of_the_mutated_files_and_all_odd_kinds_end_as_they_must() -> None:
    odd = [place * SPECIAL_EVERY for place in range(len(SPECIAL))]
    assert {case_of(number).special for number in odd} == set(SPECIAL)
    odd = [number for number in odd if "100 MB" not in case_of(number).special]
    spread = range(3, configuration.IN_PROCESS, configuration.IN_PROCESS // 15)
    numbers = [*spread, *ONCE_LOST, *odd]
    rows = list(configuration.rows(run_all(configuration.MODULE, numbers, 1), KINDS.values()))
    assert sum(row.tried for row in rows) == len(numbers)
    assert [failure for row in rows for failure in row.failures] == []
    assert sum(row.lost for row in rows) == 0


def test_real_processes_end_as_they_must() -> None:
    verdicts = list(configuration.run_real([0, 7, 57], 1))
    assert [verdict.problem for verdict in verdicts] == ["", "", ""]
    assert all(verdict.memory > 0 for verdict in verdicts)


def test_every_way_to_fail_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    numbers = range(len(planted_cases.WAYS))
    verdicts = {each.kind: each for each in run_all("planted_cases", numbers, 1)}
    assert verdicts.keys() == {way.__name__ for way in planted_cases.WAYS}
    allowed = {kind for kind, verdict in verdicts.items() if not verdict.problem}
    assert allowed == planted_cases.ALLOWED
    assert verdicts["works_for_long"].outcome == "stopped at work"
    assert verdicts["makes_an_error_of_a_stop"].outcome == "stopped at work"
    assert "hangs" in verdicts["hangs_and_makes_an_error_of_it"].problem


def test_lost_cases_are_counted_and_can_be_seen_again() -> None:
    good = Verdict(1, "keys", "refused", memory=10)
    lost = Verdict(2, "keys", "exit code 1", "exit code 1: boom", memory=10)
    swollen = Verdict(3, "keys", "accepted", memory=SWOLLEN + 1)
    (row,) = configuration.rows([good, lost, swollen], ["keys"])
    assert (row.tried, row.lost) == (3, 2)
    assert "python -m harden.configuration 2" in row.failures[0]
    assert "MiB" in row.failures[1]


def test_every_configuration_is_a_source() -> None:
    names = {source.name for source in sources()}
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("configs/**/*.toml")} < names
    assert any(name.startswith("search.md") for name in names)
    assert {action for source in sources() for action in source.actions} == {
        "train", "test", "transform", "search",
    }  # fmt: skip


def test_a_case_is_a_function_of_its_number() -> None:
    assert [case_of(number) for number in range(60)] == [case_of(number) for number in range(60)]
    assert len({case_of(number).content for number in range(300)}) > 200


def test_only_our_own_stop_is_passed_over_in_a_destructor() -> None:
    reported: list[object] = []
    hook = called.say_nothing_of_stops(reported.append)
    for kind in (called.Stopped, ValueError):
        hook(SimpleNamespace(exc_type=kind))
    assert [each.exc_type for each in reported] == [ValueError]  # type: ignore[attr-defined]
