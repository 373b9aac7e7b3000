"""A few of the networks that `make harden PARTS=integers` compares with their integers."""

from typing import Any

import pytest
import torch

from chop.lowering import Engine, stored
from harden import integer_examples, integer_programs, integers


def test_networks_and_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integers, "EXPORTED_EVERY", 8)
    monkeypatch.setattr(integer_examples, "JETS", ("jsc-rs1923",))
    networks, examples, exports, programs = integers.run(0.008)
    assert (networks.tried, networks.failures) == (16, ())
    assert (examples.tried, examples.failures) == (160 * 17, ())  # 8 modes; one in batches of 1
    assert exports.tried > 4
    assert exports.failures == ()
    assert (programs.tried, programs.failures) == (4, ())


def test_a_wrong_engine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Engine.run

    def wrong(self: Engine, codes: Any) -> Any:
        return tuple(each + 1 for each in right(self, codes))

    monkeypatch.setattr(Engine, "run", wrong)
    monkeypatch.setattr(integers, "EXPORTED_EVERY", 10**6)
    monkeypatch.setattr(integer_examples, "JETS", ("jsc-tiny",))
    networks, examples, *_ = integers.run(0.001)
    assert examples.lost == 17
    assert networks.tried == networks.lost == 2
    assert "simulation in batches of 1" in networks.failures[0]
    assert torch.get_num_threads() == 1


def test_changed_programs_are_refused_or_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_programs, "NETWORKS", 4)
    ends, failures = integer_programs.fuzz_programs(16, first=7000)
    assert failures == []
    assert ends["refused"] > 5
    assert ends["ran"] > 0


def test_a_loader_that_checks_too_little_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checks of fields some changed programs end in errors that nobody meant."""
    monkeypatch.setattr(integer_programs, "NETWORKS", 4)
    for check in ("check_step", "check_value"):
        monkeypatch.setattr(stored, check, lambda *what: None)
    monkeypatch.setattr(integer_programs, "compiled", lambda *how: integer_programs.RAN)
    _, failures = integer_programs.fuzz_programs(16, first=7000)
    assert failures
