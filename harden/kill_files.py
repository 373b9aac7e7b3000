"""Commands that write their files at the end, killed and given again: what must be true of them."""

import json
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.config.layers import write_toml
from chop.dataset.physical.jets import FEATURES
from chop.errors import ChopError
from chop.files import read_safetensors
from chop.runs import latest
from harden import kill_search
from harden.kill_server import Answer, Request, Server
from harden.kill_train import Reference

NET, AGAIN = Path("out", "net", "software"), Path("out", "again", "software")
"""What is there before, and what a command adds to it in a project of its own."""
COMMON = "--project-dir out --batch-size 4096 --accelerator cpu --report-to none --project"
PREPARE = (
    f"train jsc-mlp jsc-sim --max-epochs 1 {COMMON} net",
    f"quantize --load out/net --width 6 {COMMON} net",
)
EXPORT = "export --load out/net --rows 50 --to"
COMMANDS = {
    "export to C": (f"{EXPORT} c", NET / "transform" / "export_c"),
    "export to ONNX": (f"{EXPORT} onnx", NET / "transform" / "export_onnx"),
    "export to QONNX": (f"{EXPORT} qonnx", NET / "transform" / "export_qonnx"),
    "export to Verilog": (
        "export --load out/net --rows 0 --to verilog", NET / "transform" / "export_verilog"
    ),
    "export of a program": (f"{EXPORT} integer", NET / "transform" / "export_integer"),
    "predict": (
        "predict --load out/net rows.csv -o out/predicted.csv", Path("out", "predicted.csv")
    ),
    "quantize": (
        f"quantize --load out/net --width 5 {COMMON} again",
        AGAIN / "transform" / "transformed_ckpt",
    ),
    "sensitivity": (f"sensitivity --load out/net --widths 4 {COMMON} again", AGAIN / "sensitivity"),
}  # fmt: skip
"""Commands, and the file or folder that each makes."""
LEARNED = "a learned search"
LEARN = f"search jsc-mlp jsc-sim --config learned.toml {COMMON} again"
RESULTS = AGAIN / "search_ckpts"
SEARCH = {
    "search_space": {"name": "graph/quantize/learned_widths"},
    "strategy": {
        "name": "learned",
        "sw_runner": {"basic_evaluation": {"data_loader": "val_dataloader"}},
        "hw_runner": {"ebops": {}},
        "setup": {
            "float_epochs": 1, "cycles": 2, "first_epochs": 2, "epochs": 2, "snapshots": 2,
            "cost_weight": [0.06, 4.2], "plots": False,
            "teacher": {"hidden": [8], "epochs": 1},
        },
        "metrics": {"accuracy": {"direction": "maximize"}, "ebops": {"direction": "minimize"}},
    },
}  # fmt: skip
MARKS = ("manifest.json", "graph.json", "layers.json")
"""The files that say that a folder is there with all that belongs to it."""
SAME = {".c", ".h", ".sv", ".onnx", ".safetensors"}
"""What files end in that hold no time and no path."""
ROWS = 40


def prepare(server: Server, folder: Path) -> Path:
    """A folder with a trained and quantised network, rows to predict for, and a search."""
    folder.mkdir(parents=True)
    rows = (range(row, row + len(FEATURES)) for row in range(ROWS))
    lines = [",".join(map(str, row)) for row in (FEATURES, *rows)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    write_toml(folder / "learned.toml", {"search": SEARCH, "seed": 0})
    for command in PREPARE:
        done(server, folder, command)
    return folder


def done(server: Server, folder: Path, command: str) -> Answer:
    """Run a command to its end, which must be a good one."""
    request = Request([command.split()], str(folder), str(folder / "said"))
    answer = server.run(request)
    if answer.codes != [0]:
        said = request.output(0).read_text(errors="replace")
        raise RuntimeError(f"{command}: {answer.codes}: {said[-2000:]}")
    return answer


def undisturbed(server: Server, base: Path, folder: Path, name: str) -> Reference:
    """Run a command without any kill, in a copy of what was prepared."""
    shutil.copytree(base, folder)
    answer = done(server, folder, command_of(name))
    return Reference(folder, answer.seconds, answer.operations)


def command_of(name: str, again: bool = False) -> str:
    """The command line; a search that was killed goes on."""
    if name == LEARNED:
        return f"{LEARN} --resume" if again else LEARN
    return COMMANDS[name][0]


@dataclass
class Disturbed:
    """A copy of what was prepared, in which a command is killed and given again."""

    server: Server
    folder: Path
    name: str
    reference: Reference

    def killed(self, **how: Any) -> tuple[bool, list[str]]:
        """Run until a moment or a file operation; whether it was killed, and what is wrong."""
        request = self._request(command_of(self.name), **how)
        answer = self.server.run(request)
        wrong = list(half_written(self.reference.folder, self.folder))
        if answer.left_behind:
            wrong.append("a process of a killed command is still at work")
        if not answer.killed and answer.codes != [0]:
            said = request.output(0).read_text(errors="replace")
            wrong.append(f"ended with {answer.codes}: {said[-300:]}")
        return answer.killed, wrong

    def finished(self) -> list[str]:
        """Give the command again; what is not as it would have been without the kill."""
        request = self._request(command_of(self.name, again=True))
        answer = self.server.run(request)
        if answer.codes != [0]:
            said = request.output(0).read_text(errors="replace")
            return [f"ended with {answer.codes} after a kill: {said[-300:]}"]
        wrong = list(half_written(self.reference.folder, self.folder))
        compare = other_front if self.name == LEARNED else other_files
        return wrong + list(compare(self.name, self.reference.folder, self.folder))

    def _request(self, command: str, **how: Any) -> Request:
        return Request([command.split()], str(self.folder), str(self.folder / "said"), **how)


def visible(folder: Path) -> Iterator[Path]:
    """The files below a folder, relative to it, that are not hidden, nor in a hidden folder."""
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in place.parts):
            yield place


def half_written(whole: Path, killed: Path) -> Iterator[str]:
    """The files and folders of a killed command that are neither complete nor absent."""
    for place in visible(killed / "out"):
        if problem := unreadable(killed / "out" / place):
            yield f"{place} cannot be read: {problem}"
        wanted = whole / "out" / place
        final = any((wanted.parent / mark).exists() for mark in MARKS)  # not a state in between
        if (
            final
            and place.suffix in SAME
            and wanted.is_file()
            and wanted.read_bytes() != (killed / "out" / place).read_bytes()
        ):
            yield f"{place} is not what the command writes"
    for mark in MARKS:
        for complete in (whole / "out").rglob(mark):
            folder = killed / complete.parent.relative_to(whole)
            missing = names_in(complete.parent) - names_in(folder) if folder.is_dir() else None
            if missing:
                yield f"{folder.name} is there without {', '.join(sorted(missing))}"


def names_in(folder: Path) -> set[str]:
    """What a folder holds, without hidden files."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def unreadable(path: Path) -> str:
    """Why a file cannot be read as what its name says; empty if it can."""
    try:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".toml":
            tomllib.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".safetensors":
            read_safetensors(path)
        elif path.suffix == ".csv" and not path.read_text(encoding="utf-8").endswith("\n"):
            return "its last line has no end"
    except (ValueError, OSError, ChopError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def other_files(name: str, whole: Path, again: Path) -> Iterator[str]:
    """What differs in what a command has made, where it was killed before and where it was not."""
    made = COMMANDS[name][1]
    files = [Path(), *visible(whole / made)] if (whole / made).is_dir() else [Path()]
    for file in files:
        one, other = whole / made / file, latest(again / made) / file
        if one.is_dir():
            if names_in(one) != names_in(other):
                yield f"{other.name} holds {sorted(names_in(other))}"
        elif content(one, whole) != content(other, again):
            yield f"{other.relative_to(again)} differs"


def content(path: Path, folder: Path) -> bytes:
    """The bytes of a file, whatever folder the project is in."""
    if not path.is_file():
        return b"there is no such file"
    return path.read_bytes().replace(str(folder.resolve()).encode(), b"")


def other_front(name: str, whole: Path, again: Path) -> Iterator[str]:
    """What differs in a learned search that was resumed: trials, their values, and their graphs."""
    del name
    studies = [kill_search.read_study(folder, RESULTS) for folder in (whole, again)]
    values = [sorted(trial[1] or [] for trial in study.finished.values()) for study in studies]
    if values[0] != values[1]:
        yield f"the trials have the values {values[1]}, not {values[0]}"
    if studies[1].running:
        yield f"{studies[1].running} trials are marked as running for ever"
    for graph in (whole / RESULTS).rglob("*.safetensors"):
        other = again / graph.relative_to(whole)
        if content(other, again) != content(graph, whole):
            yield f"{other.relative_to(again)} differs"
