"""The cases of the configuration part, each a function of its number and of nothing else."""

import contextlib
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from harden import config_bytes, config_mutations
from harden.called import call, problem_of, watch_runs
from harden.config_sources import Source, sources
from harden.forked import Verdict

SEED = 8
FILE = "case.toml"
ROWS = 600  # of the data that is trained on
KINDS = {
    "keys": "keys dropped, misspelt, added",
    "values": "values retyped, huge, NaN, unicode",
    "nesting": "tables nested wrongly",
    "text": "lines doubled or lost, bits, encodings",
    "special": "empty, 100 MB, deep, no regular file",
}
SLOW_TO_IMPORT = (
    "matplotlib.pyplot", "matplotlib.figure", "tensorboard.summary.writer.event_file_writer",
    "lightning.pytorch.loggers", "chop.verbs.search.comparing", "chop.verbs.search.job",
    "chop.verbs.test.testing", "chop.verbs.train.training", "chop.verbs.transform.passes",
    "chop.search.strategy", "chop.search.engines.local", "chop.training.fit",
    "chop.training.report", "chop.runs", "chop.search.sweeps.hyperparameters", "torch._dynamo",
)  # fmt: skip
SPECIAL_EVERY = 50  # a case in so many is no mutation but another file in its place


@dataclass(frozen=True)
class Case:
    """A file to be given to an action."""

    number: int
    kind: str
    action: str
    source: str
    content: bytes | None
    special: str = ""

    @property
    def arguments(self) -> list[str]:
        return [self.action, "--config", FILE]

    def write(self, folder: Path) -> None:
        """Put the file where ``ch`` is told to look for it."""
        path = folder / FILE
        if self.content is not None:
            path.write_bytes(self.content)
        else:
            config_bytes.SPECIAL[self.special](path, sources()[0].text)


def case_of(number: int) -> Case:
    """The case of this number."""
    rng = random.Random(f"{SEED}:{number}")
    source = sources()[number % len(sources())]
    action = rng.choice(source.actions)
    if number % SPECIAL_EVERY == 0:
        names = list(config_bytes.SPECIAL)
        special = names[number // SPECIAL_EVERY % len(names)]
        return Case(number, "special", action, source.name, None, special)
    kind = rng.choice(("keys", "keys", "values", "values", "nesting", "text"))
    return Case(number, kind, action, source.name, _content(kind, source, rng))


def _content(kind: str, source: Source, rng: random.Random) -> bytes:
    if kind == "text":
        return config_bytes.damaged_text(source, rng)
    mutations = {
        "keys": config_mutations.KEYS,
        "values": config_mutations.VALUES,
        "nesting": config_mutations.NESTING,
    }
    return config_mutations.mutated(source, mutations[kind], rng)


def kind_of(number: int) -> str:
    """The line of the table that a case belongs to."""
    return KINDS[case_of(number).kind]


def prepare() -> None:
    """Get everything ready that cases need."""
    import_and_shrink()
    watch_runs()


def import_and_shrink() -> None:
    """Import everything that any case may need, and make the data small."""
    for name in SLOW_TO_IMPORT:
        import_module(name)
    sources()
    use_few_rows()
    no_network()


def use_few_rows() -> None:
    """Let the data set jsc-sim have a few hundred rows."""
    from chop.dataset.physical import jsc_sim

    whole, labels = jsc_sim._arrays()
    few = whole[:ROWS].copy(), labels[:ROWS].copy()
    jsc_sim._arrays = lambda: few  # type: ignore[assignment]  # in place of the cached function
    jsc_sim.TRAIN_END, jsc_sim.VALIDATION_END = ROWS * 6 // 10, ROWS * 8 // 10


def no_network() -> None:
    """Let every download fail at once, as on a machine without a network."""
    import socket

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in this run")

    socket.getaddrinfo = refuse  # type: ignore[assignment]


def judge(number: int) -> Verdict:
    """Run a case and say whether it ended as it must."""
    case = case_of(number)
    with sandbox(case) as (folder, outer):
        ended = call(case.arguments, folder, outer)
        return Verdict(number, KINDS[case.kind], ended.outcome, problem_of(ended))


@contextlib.contextmanager
def sandbox(case: Case) -> Iterator[tuple[Path, Path]]:
    """A folder with the file of a case, and a folder around it: a path that leads up stays in."""
    with tempfile.TemporaryDirectory(prefix="chop-harden-") as outer:
        folder = Path(outer, "a", "b")
        folder.mkdir(parents=True)
        case.write(folder)
        yield folder, Path(outer)
