"""The cases of the files part: a kind of file, a harm, and what must come of it."""

import atexit
import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harden import called, config_cases
from harden.called import Ended, call, problem_of, watch_runs
from harden.file_crafted import CRAFTED, moved_lines
from harden.file_harms import BYTES, INSTEAD, Harm, Setting, empty, gone, no_harm
from harden.file_targets import TARGETS, Target, differing, make_specimens, named_in, observed
from harden.forked import Verdict

SEED = 8
SPECIMENS = "CHOP_HARDEN_SPECIMENS"
CONTROL = "control"
FEW_WORDS = 2  # "ch: file: Field required" has one more
HARMS = ("bytes", "crafted", "bytes", "instead", "crafted")
MADE = Path(tempfile.gettempdir()) / f"chop-specimens-{os.getpid()}" / "a" / "b"


@dataclass(frozen=True)
class Case:
    """A file to be harmed."""

    number: int
    target: Target
    file: str
    family: str
    harm: Harm

    @property
    def seed(self) -> str:
        return f"{SEED}:harm:{self.number}"

    @property
    def same_kind(self) -> bool:
        """Whether it is still the file that it was, but for some bytes or lines of it."""
        return self.family == "bytes" or self.harm is moved_lines

    def __str__(self) -> str:
        return f"{self.file}: {(self.harm.__doc__ or '').rstrip('.')}"


def case_of(number: int) -> Case:
    """The case of this number."""
    rng = random.Random(f"{SEED}:{number}")
    target = TARGETS[number % len(TARGETS)]
    file = rng.choice(target.files)
    turn = number // len(TARGETS)
    family = HARMS[turn % len(HARMS)]
    if number < len(TARGETS):  # one of each kind as it is, to be read as it is
        return Case(number, target, file, CONTROL, no_harm)
    families = {"bytes": BYTES, "instead": INSTEAD, "crafted": CRAFTED[target.kind]}
    harms = families[family]  # each in its turn; kinds of file begin at different ones
    rounds, within = divmod(turn, len(HARMS))
    earlier = rounds * HARMS.count(family) + HARMS[:within].count(family)
    harm = harms[(earlier + 7 * (number % len(TARGETS))) % len(harms)]
    if target.kind == "checkpoint to resume" and harm is gone:
        harm = empty  # without a checkpoint a run starts from the beginning, and says so
    if target.kind == "saved graph" and family == "crafted":
        file = _fitting(harm)
    return Case(number, target, file, family, harm)


def _fitting(harm: Harm) -> str:
    """Which file of a graph a crafted one takes the place of."""
    weights = harm.__name__ == "tensors_header"
    return "graph/weights.safetensors" if weights else "graph/graph.json"


def kind_of(number: int) -> str:
    """The line of the table that a case belongs to."""
    return case_of(number).target.kind


def prepare() -> None:
    """Make the specimens, once for all children, and look what is read from them."""
    config_cases.import_and_shrink()
    MADE.mkdir(parents=True)
    atexit.register(shutil.rmtree, MADE.parents[1], ignore_errors=True)
    os.environ["CHOP_CACHE"] = str(MADE.parents[1] / "cache")
    in_a_process_that_ends(lambda: make_specimens(MADE))
    observed(MADE)
    called.WORK = (5.0, 60.0)  # a search is to finish, so that its trials can be compared
    watch_runs()


def in_a_process_that_ends(make: Callable[[], None]) -> None:
    """Make specimens in a child: of a process that lives on, a search would wait for the trials."""
    child = os.fork()
    if not child:
        code = 1
        try:
            make()
            code = 0
        finally:
            os._exit(code)  # nothing of the parent's is to be cleaned up twice
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise RuntimeError(f"the specimens cannot be made: {code}")


def judge(number: int) -> Verdict:
    """Harm a copy of a specimen, let ``ch`` read it, and say whether that ended as it must."""
    case = case_of(number)
    with tempfile.TemporaryDirectory(prefix="chop-harden-") as outer:
        folder = Path(outer, "a", "b")
        os.environ["CHOP_CACHE"] = str(Path(outer, "cache"))
        copy_specimen(case.target, folder)
        path = next(folder.glob(case.file))
        before = path.read_bytes()
        canary = Path(outer, "canary")
        case.harm(path, Setting(random.Random(case.seed), MADE, canary))
        after = path.read_bytes() if case.same_kind else b""
        ended = call(case.target.arguments, folder, folder)
        outcome, problem = judged(case, ended, folder, (before, after))
        if canary.exists():
            problem = "runs code in the file"
    return Verdict(number, case.target.kind, outcome, problem and f"{case}: {problem}")


def copy_specimen(target: Target, folder: Path) -> None:
    """Copy what is needed to read one kind of file."""
    if target.kind == "rows in the cache":
        shutil.copytree(MADE.parents[1] / "cache", folder.parents[1] / "cache")
    top = Path(target.path).parts[0]
    if (MADE / top).is_dir():
        shutil.copytree(MADE / top, folder / top)
    else:
        folder.mkdir(parents=True)
        shutil.copyfile(MADE / top, folder / top)
    shutil.copyfile(MADE / "search.toml", folder / "search.toml")


def judged(
    case: Case, ended: Ended, folder: Path, contents: tuple[bytes, bytes]
) -> tuple[str, str]:
    """How a case ended, in a word, and what is wrong with that."""
    problem = problem_of(ended)
    if case.family == CONTROL and ended.code == 2:
        problem = f"refuses a good file: {ended.err!r}"
    if problem or ended.code == 2:
        return ended.outcome, problem or _problem_of_message(case, ended.err)
    return _accepted(case, folder, contents)


def _problem_of_message(case: Case, err: str) -> str:
    if not named_in(err, case.target, case.file):
        return f"does not name the file: {err!r}"
    return "" if says_why(err) else f"does not say in words what is wrong: {err!r}"


def says_why(message: str) -> bool:
    """Whether a message has words beyond names, and its reason is not a bare number or name."""
    words = re.findall(r"(?<![\w./'])[A-Za-z]+(?![\w/'])", message)
    return len(words) > FEW_WORDS and re.search(r" \((\d*|'[^' ]*'|None)\)$", message) is None


def _accepted(case: Case, folder: Path, contents: tuple[bytes, bytes]) -> tuple[str, str]:
    target = case.target
    before, after = contents
    changed = target.strict and any(differing(target.strict(before), target.strict(after)))
    if case.same_kind and changed:
        return "accepted", "a damaged line is passed over in silence"
    seen = target.observe(folder / target.path)
    if seen == observed(MADE)[target.kind]:
        return "unharmed", ""
    if target.silent and case.family == "bytes":
        return "other data", ""  # no checksum in the format; the fingerprint is another one
    return "accepted", "is taken for something else"
