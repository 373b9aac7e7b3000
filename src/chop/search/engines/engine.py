"""The interface of engines, and what all of them share.

A search asks for batches of requests, an engine evaluates them, the study records what came of it:

    engine.start(payload)
    ticket = engine.submit(requests)
    for ticket, answers in engine.finished(timeout=1.0): ...
    engine.close()

The process that records is the truth; one that computes may die.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from chop.errors import SearchError
from chop.search.study.journal import no_collections

Ticket = int
Evaluate = Callable[[Any], Any]
LONGEST_WAIT = 1.0
"""Seconds that the engine is waited for before the clock and other processes are looked at."""
ATTEMPTS = 2
"""How often a request may take its process with it."""
QUICK = 0.1
"""Seconds below which a request is quick: several of them go together."""


class Payload(Protocol):
    """The data that a worker gets once: model, graph and rows."""

    def evaluator(self) -> Evaluate:
        """Return the function that evaluates a request in this process."""


@dataclass(frozen=True)
class Answer:
    """The result of one request, and the time of its evaluation."""

    value: Any
    begun: datetime
    ended: datetime


@dataclass(frozen=True)
class Lost:
    """A batch that was not answered: its worker is gone.

    Attributes:
        is_innocent: whether the batch itself cannot be the reason: its machine is gone.
    """

    reason: str
    is_innocent: bool = False


Finished = list[tuple[Ticket, list[Answer] | Lost]]


class TrialEngine(ABC):
    """Evaluates batches of requests.

    Attributes:
        slots: how many batches are evaluated at the same time; they may become more or fewer.
        batch: trials of a batch, if that is not to follow from the time of a trial.
    """

    slots: int = 1
    batch: int | None = None

    @abstractmethod
    def start(self, payload: Payload) -> None:
        """Make workers ready; each is given the payload once."""

    @abstractmethod
    def submit(self, requests: Sequence[Any]) -> Ticket:
        """Take a batch to be evaluated."""

    @abstractmethod
    def finished(self, timeout: float) -> Finished:
        """Return the batches that have been finished or lost since the last call.

        If there are none, it waits for one, at most `timeout` seconds. An interrupted batch may
        have fewer answers than requests.
        """

    def close(self) -> None:  # noqa: B027  # there may be nothing to end
        """End all workers, whatever they are doing."""


def evaluate_all(
    engine: TrialEngine,
    payload: Payload,
    requests: Sequence[Any],
    record: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Evaluate requests that do not depend on each other; return what came of each, in order.

    One that takes its process with it twice is an error.

    Args:
        record: is given each answer as it comes.
    """
    found: dict[int, Any] = {}
    try:
        engine.start(payload)
        flying = {engine.submit([each]): (place, 1) for place, each in enumerate(requests)}
        while flying:
            for ticket, answers in engine.finished(LONGEST_WAIT):
                place, attempt = flying.pop(ticket)
                if not isinstance(answers, Lost):
                    found[place] = answers[0].value
                    if record is not None:
                        record(answers[0].value)
                    continue
                if attempt >= ATTEMPTS and not answers.is_innocent:
                    raise SearchError(f"a process ended {attempt} times: {answers.reason}")
                again = attempt + (not answers.is_innocent)
                flying[engine.submit([requests[place]])] = (place, again)
    finally:
        engine.close()
    return [found[place] for place in range(len(requests))]


class BatchEvaluator:
    """Evaluates the requests of a batch one after another, in this process."""

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate = evaluate
        self._seconds = QUICK

    def __call__(self, requests: Sequence[Any]) -> Iterator[Answer]:
        """Yield the answer to each request."""
        for request in requests:
            begun, started = datetime.now(), time.monotonic()
            # A quick request leaves little behind, and collections would take longer than it.
            with no_collections() if self._seconds < QUICK else nullcontext():
                value = self.evaluate(request)
            self._seconds = time.monotonic() - started
            yield Answer(value, begun, datetime.now())
