import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from harden import damaged_files, file_cases
from harden.called import Ended
from harden.file_cases import Case, case_of, judged
from harden.file_crafted import CRAFTED, Evil
from harden.file_harms import BYTES, INSTEAD
from harden.file_targets import TARGETS, Target


def test_a_share_of_the_damaged_files_is_refused_or_unharmed() -> None:
    numbers = range(1, damaged_files.CASES, damaged_files.CASES // 12)
    rows = list(damaged_files.lines(numbers, workers=1))
    assert sum(row.tried for row in rows) == len(numbers)
    assert [failure for row in rows for failure in row.failures] == []
    assert sum(row.lost for row in rows) == 0


def test_every_kind_of_file_meets_every_family_of_harm() -> None:
    met = {(case.target.kind, case.family) for case in map(case_of, range(damaged_files.CASES))}
    families = ("control", "bytes", "instead", "crafted")
    assert met == {(target.kind, family) for target in TARGETS for family in families}
    used = {case_of(number).harm for number in range(damaged_files.CASES)}
    assert used >= {*BYTES, *INSTEAD, *(harm for harms in CRAFTED.values() for harm in harms)}


def test_the_canary_sings_when_code_is_run(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Evil(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    """A file that was read as something else than it holds."""
    monkeypatch.setattr(file_cases, "observed", lambda folder: {"kind": "good"})
    target = Target("kind", "file.pt", ("file.pt",), (), lambda path: "bad")
    return Case(0, target, "file.pt", "bytes", BYTES[0])


def ended(code: int, err: str = "") -> Ended:
    return Ended(code, "", err, True, ())


def problem(case: Case, how: Ended, before: bytes = b"", after: bytes = b"") -> str:
    return judged(case, how, Path(), (before, after))[1]


def with_target(case: Case, **changes: object) -> Case:
    return replace(case, target=replace(case.target, **changes))  # type: ignore[arg-type]


def test_what_is_taken_for_something_else_is_lost(case: Case) -> None:
    def good(path: Path) -> str:
        return "good"

    assert "something else" in problem(case, ended(0))
    assert problem(with_target(case, observe=good), ended(0)) == ""
    assert problem(with_target(case, silent=True), ended(0)) == ""
    crafted = replace(with_target(case, silent=True), family="crafted")
    assert "something else" in problem(crafted, ended(0))


def test_a_message_that_names_no_file_is_lost(case: Case) -> None:
    assert "does not name" in problem(case, ended(2, "ch: damaged\n"))
    assert problem(case, ended(2, "ch: a/file.pt: is damaged: its end is missing\n")) == ""
    assert "exit code 1" in problem(case, ended(1, "ch: file.pt: KeyError\n"))


def test_a_damaged_line_that_is_passed_over_is_lost(case: Case) -> None:
    strict = with_target(case, observe=lambda path: "good", strict=lambda text: text.split(b"\n"))
    assert "in silence" in problem(strict, ended(0), b'{"a":1}\n{"b":2}', b'{"a":3}\n{"b":2}')
    assert problem(strict, ended(0), b'{"a":1}\n{"b":2}', b'{"a": 1}\n{"b":2}') == ""


def test_a_message_must_say_in_words_what_is_wrong(case: Case) -> None:
    refused = "ch: file.pt: is damaged or not a file of weights"
    assert "what is wrong" in problem(case, ended(2, f"{refused} (101)\n"))
    assert "what is wrong" in problem(case, ended(2, f"{refused} ()\n"))
    assert not problem(case, ended(2, f"{refused} (it is empty)\n"))


def test_specimens_that_cannot_be_made_are_noticed() -> None:
    file_cases.in_a_process_that_ends(lambda: None)
    with pytest.raises(RuntimeError, match="cannot be made"):
        file_cases.in_a_process_that_ends(lambda: os._exit(3))
