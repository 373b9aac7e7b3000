"""Runs many small cases in forked processes: one that hangs, dies or swells harms no other.

A part names a module with `prepare()`, which imports what is slow to import, and
`judge(number) -> Verdict`. Each worker prepares once and forks a child for every few cases.
"""

import contextlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
CHUNK = 50  # cases of one child
NO_ANSWER = 1_200.0  # seconds after which a child that answers no signal is killed
HEADROOM = 1 << 30  # bytes of address space that a case may take on top of what is imported
WORKERS = 2
SWOLLEN = 1 << 10  # MiB; a child that has come to hold more judges no further case
ORDERLY = ("accepted", "refused", "unharmed", "other data")
"""Outcomes after which a process is as it was before; one that was stopped may be in any state."""


@dataclass(frozen=True)
class Verdict:
    """What became of one case.

    Attributes:
        kind: the line of the table it belongs to.
        outcome: how it ended, for the counts in the table.
        problem: why it counts as lost; empty if it does not.
        memory: the largest resident size of its process so far, in MiB; a case that makes it too
            large is judged again in a process of its own.
    """

    number: int
    kind: str
    outcome: str
    problem: str = ""
    seconds: float = 0.0
    memory: int = 0


def run_all(module: str, numbers: Sequence[int], workers: int = WORKERS) -> Iterator[Verdict]:
    """The verdicts on all cases, in the order in which they become known."""
    running = [_start(module, numbers[first::workers]) for first in range(workers)]
    waiting: dict[Any, subprocess.Popen[bytes]] = {each.stdout: each for each in running}
    try:
        while waiting:
            for stream in select.select(list(waiting), [], [])[0]:
                line = stream.readline()
                if line:
                    yield Verdict(**json.loads(line))
                elif status := waiting.pop(stream).wait():
                    raise RuntimeError(f"a worker of {module} has ended with {status}")
    finally:
        for each in running:
            each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()


def _start(module: str, numbers: Sequence[int]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "harden.forked", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"} | in_memory(),
        bufsize=0,  # select sees only what Python has not read ahead
    )
    assert process.stdin is not None
    with process.stdin as stream:
        stream.write(json.dumps(list(numbers)).encode())
    return process


def in_memory() -> dict[str, str]:
    """Folders of cases in memory, if there is room: a disk would spend its time on flushing."""
    place = "/dev/shm"  # each case makes a folder of its own in it
    roomy = os.path.isdir(place) and shutil.disk_usage(place).free > 4 << 30
    return {"TMPDIR": place} if roomy else {}


def serve(module: Any, numbers: list[int], out: IO[str]) -> None:
    """Judge cases in one child after the other; what a child does not survive is a verdict, too."""
    module.prepare()
    left = list(numbers)
    while left:
        chunk = left[:CHUNK]
        for line, verdict in _verdicts(module, chunk):
            out.write(line)
            out.flush()
            left.remove(verdict)


def _verdicts(module: Any, chunk: list[int]) -> Iterator[tuple[str, int]]:
    """Lines of verdicts with their numbers; the last may be on the case that ended the child."""
    child, reading = _fork(module, chunk)
    done = 0
    problem = ""
    with os.fdopen(reading, "rb", buffering=0) as stream:
        while done < len(chunk):
            if not select.select([stream], [], [], NO_ANSWER)[0]:
                problem = f"gives no answer for {NO_ANSWER:.0f} s"
                break
            line = stream.readline().decode()
            if not line:
                break
            done += 1
            yield line, json.loads(line)["number"]
    if problem:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if done < len(chunk) and status != 0:
        number = chunk[done]
        lost = Verdict(number, module.kind_of(number), "died", problem or f"ends with {status}")
        yield f"{json.dumps(asdict(lost))}\n", number


def _fork(module: Any, chunk: list[int]) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        os.close(reading)
        _limit_memory()
        for place, number in enumerate(chunk):
            verdict = _judged(module, number)
            if place and verdict.memory > SWOLLEN:
                break  # the cases before it may have filled the memory: it is judged again, alone
            os.write(writing, f"{json.dumps(asdict(verdict))}\n".encode())
            if verdict.outcome not in ORDERLY or verdict.memory > SWOLLEN:
                break
        code = 0
    finally:
        os._exit(code)  # nothing of the parent's is to be cleaned up twice


def _judged(module: Any, number: int) -> Verdict:
    begun = time.monotonic()
    try:
        verdict: Verdict = module.judge(number)
    except BaseException as error:  # noqa: BLE001  # what was not judged was not seen to pass
        kind, problem = module.kind_of(number), f"the harness fails: {error!r:.300}"
        verdict = Verdict(number, kind, "not judged", problem)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    seconds = round(time.monotonic() - begun, 3)
    return Verdict(**(asdict(verdict) | {"seconds": seconds, "memory": memory}))


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    """A worker: case numbers come in as JSON, verdicts go out as lines of it."""
    numbers = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with contextlib.suppress(BrokenPipeError), open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # what a library prints is no verdict
        serve(importlib.import_module(sys.argv[1]), numbers, out)


if __name__ == "__main__":
    main()
