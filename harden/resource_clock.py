"""A clock that goes backwards."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harden.kill_search import RESULTS, Flavour, arguments, project, read_study
from harden.resource_common import TRAIN, ch

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

/* Sixty seconds back for every second that passes, since the process began. */
static double backwards(void)
{
    static double begun = 0;
    static int (*real)(clockid_t, struct timespec *) = 0;
    struct timespec now;
    double seconds;
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    real(CLOCK_REALTIME, &now);
    seconds = now.tv_sec + now.tv_nsec * 1e-9;
    if (begun == 0) begun = seconds;
    return begun - 60 * (seconds - begun);
}

int clock_gettime(clockid_t which, struct timespec *out)
{
    static int (*real)(clockid_t, struct timespec *) = 0;
    double seconds;
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    if (which != CLOCK_REALTIME) return real(which, out);
    seconds = backwards();
    out->tv_sec = (time_t)seconds;
    out->tv_nsec = (long)((seconds - out->tv_sec) * 1e9);
    return 0;
}

int gettimeofday(struct timeval *out, void *zone)
{
    double seconds = backwards();
    out->tv_sec = (time_t)seconds;
    out->tv_usec = (long)((seconds - out->tv_sec) * 1e6);
    return 0;
}

time_t time(time_t *out)
{
    time_t seconds = (time_t)backwards();
    if (out) *out = seconds;
    return seconds;
}
"""
HOOK = """
import time
_begun = time.time()
_now = time.monotonic
_first = _now()
time.time = lambda: _begun - 60 * (_now() - _first)
"""


def backwards(folder: Path) -> tuple[dict[str, str], str]:
    """The environment in which the clock runs backwards, and how that is done."""
    compiler = shutil.which("cc")
    if compiler is None:
        (folder / "sitecustomize.py").write_text(HOOK)
        return {"PYTHONPATH": str(folder)}, "time.time alone, as there is no C compiler"
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SHIM)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return {"LD_PRELOAD": str(library)}, "the C library's clocks"


def two_looks(variables: dict[str, str]) -> tuple[float, float]:
    """What the clock says twice, one after the other."""
    code = "import time; print(time.time()); time.sleep(0.05); print(time.time())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, second = map(float, done.stdout.split())
    return first, second


def wrong_clock(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Training, searching and resuming while the clock runs backwards."""
    variables, how = backwards(folder)
    yield f"train, {how}", ch(TRAIN, folder, variables).worked()
    more = [*TRAIN, "--max-epochs", "3", "--resume"]
    yield "train --resume", ch(more, folder, variables).worked("Epoch 2: 100%")
    flavour = Flavour("tpe", 12)
    work = project(folder / "search", flavour)
    variables |= {"SEEN": str(work / "seen.txt")}
    yield "search", ch(arguments(resume=False), work, variables).worked()
    yield "search --resume", ch(arguments(resume=True), work, variables).worked() + timed(work)
    yield "report", ch(["report", "out"], work, variables).worked()


def timed(work: Path) -> list[str]:
    """What is wrong with the trials: one is missing, or has taken less than no time."""
    found = len(read_study(work).finished)
    wrong = [] if found == 12 else [f"{found} trials in place of 12"]
    log = json.loads((work / RESULTS / "log.json").read_text(encoding="utf-8"))
    took = [trial["duration"] for trial in log.values()]
    return wrong + [f"a trial took {each} ms" for each in took if each is not None and each < 0][:1]
