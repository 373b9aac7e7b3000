"""The engine that evaluates in this process, one request after another."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from chop.search.engines.engine import (
    Answer,
    BatchEvaluator,
    Finished,
    Payload,
    Ticket,
    TrialEngine,
)


class Serial(TrialEngine):
    """Evaluates a batch when it is asked for what is finished."""

    def __init__(self) -> None:
        self._batches: deque[tuple[Ticket, Sequence[Any]]] = deque()
        self._count = 0
        self._interrupt: BaseException | None = None

    def start(self, payload: Payload) -> None:
        self._evaluate = BatchEvaluator(payload.evaluator())

    def submit(self, requests: Sequence[Any]) -> Ticket:
        self._count += 1
        self._batches.append((self._count, requests))
        return self._count

    def finished(self, timeout: float) -> Finished:
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt
        if not self._batches or timeout <= 0:
            return []
        ticket, requests = self._batches.popleft()
        answers: list[Answer] = []
        try:
            answers.extend(self._evaluate(requests))
        except KeyboardInterrupt as interrupt:
            if not answers:
                raise
            self._interrupt = interrupt  # after what was finished has been recorded
        return [(ticket, answers)]
