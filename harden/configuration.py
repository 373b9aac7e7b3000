"""Part 1: mutated configuration files end in success or in one line with exit code 2.

``python -m harden.configuration NUMBER`` shows a case again: its file and what ``ch`` says.
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harden.called import Ended, inside, problem_of
from harden.common import Row, share
from harden.config_cases import FILE, KINDS, Case, case_of, prepare, sandbox
from harden.forked import SWOLLEN, WORKERS, Verdict, run_all
from harden.kill_server import cpu_seconds

PART = "configuration"
IN_PROCESS, REAL = 10_000, 200
REAL_KIND = "the same as real processes"
REAL_LIMIT = 25.0  # seconds that a real process may compute, with all that it has started
LONGEST_WAIT = 600.0  # seconds after which it is stopped though it has not computed so long
PAUSE = 0.02
ADDRESSES = 8 << 30  # bytes of address space of a real process
NOWHERE = "http://127.0.0.1:9"  # nothing listens there
MODULE = "harden.config_cases"


def run(scale: float) -> Iterable[Row]:
    """The lines of the table for a share of the cases."""
    yield from rows(run_all(MODULE, range(share(IN_PROCESS, scale))), KINDS.values())
    yield from rows(run_real(real_numbers(share(REAL, scale))), [REAL_KIND])


def rows(verdicts: Iterable[Verdict], kinds: Iterable[str]) -> Iterator[Row]:
    """One line for each kind of case."""
    found: dict[str, list[Verdict]] = {kind: [] for kind in kinds}
    for verdict in verdicts:
        found[verdict.kind].append(with_memory(verdict))
    for kind, group in found.items():
        lost = [verdict for verdict in group if verdict.problem]
        yield Row(PART, kind, len(group), len(lost), tuple(map(told, lost)), figure(group))


def with_memory(verdict: Verdict) -> Verdict:
    """The verdict, lost if its process came to hold too much."""
    if verdict.problem or verdict.memory <= SWOLLEN:
        return verdict
    problem = f"takes {verdict.memory} MiB of memory"
    return Verdict(verdict.number, verdict.kind, verdict.outcome, problem)


def told(verdict: Verdict) -> str:
    """A lost case, and how to see it again."""
    again = f"python -m harden.configuration {verdict.number}"
    return f"case {verdict.number}: {verdict.problem}; see it again: {again}"


def figure(group: Sequence[Verdict]) -> str:
    """How the cases ended and what they took."""
    counts = Counter(verdict.outcome for verdict in group)
    outcomes = ", ".join(f"{outcome} {count:,}" for outcome, count in sorted(counts.items()))
    most = max((verdict.memory for verdict in group), default=0)
    longest = max((verdict.seconds for verdict in group), default=0)
    return f"{outcomes}; at most {most} MiB, {longest:.1f} s"


def real_numbers(count: int) -> list[int]:
    """Cases spread over all of them; every tenth is a file of a special kind."""
    step = IN_PROCESS // REAL
    return [index * step + (0 if index % 10 == 0 else 7) for index in range(count)]


def run_real(numbers: Sequence[int], workers: int = WORKERS) -> Iterator[Verdict]:
    """The verdicts on cases that run as a user would run them."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(judge_real, numbers)


def judge_real(number: int) -> Verdict:
    """Run a case in a process of its own."""
    case = case_of(number)
    with sandbox(case) as (folder, outer):
        begun = time.monotonic()
        ended, memory = run_process(case, folder, outer)
        seconds = time.monotonic() - begun
        problem = problem_of(ended)
    return Verdict(number, REAL_KIND, ended.outcome, problem, seconds, memory)


def run_process(case: Case, folder: Path, outer: Path) -> tuple[Ended, int]:
    """How ``ch`` ended, and the most memory it held, in MiB."""
    before = set(inside(outer))
    command = [str(Path(sys.executable).with_name("ch")), *case.arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(outer),
            start_new_session=True,
            preexec_fn=limit_addresses,
        )
        code, memory = waited(process)
        texts = [_text(stream.fileno()) for stream in (out, err)]
    left = tuple(sorted(path for path in set(inside(outer)) - before if "/home" not in path))
    return Ended(code, texts[0], texts[1], bool(left), left), memory


def environment(outer: Path) -> dict[str, str]:
    """A home of its own, one thread, and no way to the network."""
    home = outer / "home"
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), "CHOP_CACHE": str(home / "cache"), "OMP_NUM_THREADS": "1"}
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), NOWHERE)
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **own, **proxies}


def limit_addresses() -> None:
    """Bound the memory of the process that is about to begin."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))


def waited(process: subprocess.Popen[bytes]) -> tuple[int | None, int]:
    """The exit code and the most memory in MiB; None for one that had to be stopped."""
    code: int | None = None
    end = time.monotonic() + LONGEST_WAIT
    look = time.monotonic() + REAL_LIMIT  # one process cannot have computed so long before
    options = os.WNOHANG
    while True:
        ended, status, usage = os.wait4(process.pid, options)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            code = process.returncode if options else None
            return code, usage.ru_maxrss >> 10
        now = time.monotonic()
        if now > end or (now > look and cpu_seconds(process.pid) > REAL_LIMIT):
            os.killpg(process.pid, signal.SIGKILL)
            options = 0
        time.sleep(PAUSE if now < look else 1.0)


def _text(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode("utf-8", errors="backslashreplace")


def show(number: int) -> None:
    """Write the file of a case to this folder and let ``ch`` say what it has to say."""
    case = case_of(number)
    case.write(Path())
    print(f"{FILE}: case {number}, {KINDS[case.kind]}, from {case.source} {case.special}")
    prepare()
    from chop.cli import main

    print(f"ch {' '.join(case.arguments)}")
    print(f"exit code {main([*case.arguments, '--debug'])}")


if __name__ == "__main__":
    show(int(sys.argv[1]))
