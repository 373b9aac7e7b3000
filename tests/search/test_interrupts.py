"""When Ctrl-C comes through, and when it waits."""

import os
import signal
import threading

import pytest

from chop.search.study.workers import at_any_moment, held_back
from chop.search.study.workers import raise_if_interrupted as heed


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_waits_for_the_next_safe_place() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), held_back():
        ctrl_c()
        reached.append("storing")
        with at_any_moment():
            reached.append("measuring")
    assert reached == ["storing"]


def test_it_comes_through_a_measurement_and_not_what_is_done_about_it() -> None:
    stored = []
    with pytest.raises(KeyboardInterrupt), held_back(helper=True):
        try:
            with at_any_moment():
                ctrl_c()
                stored.append("not reached")
        finally:
            ctrl_c()
            stored.append("what was finished")
    assert stored == ["what was finished"]


def test_it_is_heard_at_the_end_of_the_block_at_the_latest() -> None:
    with pytest.raises(KeyboardInterrupt), held_back():
        ctrl_c()
    heed()  # it is dealt with


@pytest.mark.parametrize("helper", [False, True])
def test_only_a_helper_ignores_the_second(helper: bool) -> None:
    count = 0
    with pytest.raises(KeyboardInterrupt), held_back(helper):
        for _ in range(3):
            ctrl_c()
            count += 1
    assert count == (3 if helper else 1)


def test_what_the_user_has_set_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with held_back():
        with held_back():
            assert signal.getsignal(signal.SIGINT) is not before
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_who_ignores_interrupts_goes_on_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back():
            ctrl_c()
            heed()
        with pytest.raises(KeyboardInterrupt), held_back(helper=True):
            ctrl_c()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_thread_leaves_the_handler_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with held_back(), at_any_moment():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
