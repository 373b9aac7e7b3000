"""How many files a reader opens who follows one command from the command line to its results.

Every command is run once, in a process of its own, with Python's profiler hook; a file counts if
one of its functions is called. What only runs while a module is imported does not count, nor do
other processes. The exit code is 1 if a command visits more files than `MOST` allows.

    python scripts/visited_files.py            a line for each command
    python scripts/visited_files.py search     the files of one command, with the calls in each
"""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType

SEARCH = Path(__file__).parents[1] / "configs" / "examples" / "jsc_toy_by_type.toml"
NETWORK = ("jsc-tiny", "jsc-sim", "--project", "visited", "--seed", "0")
COMMANDS = {
    "train": ("train", *NETWORK, "--max-epochs", "1"),
    "transform": ("transform", *NETWORK, "--config", str(SEARCH)),
    "search": ("search", *NETWORK, "--config", str(SEARCH)),
    "report": ("report", "mase_output/visited"),
    "quantize": ("quantize", *NETWORK, "--load", "mase_output/visited", "--width", "8"),
    "export": ("export", "--load", "mase_output/visited", "--to", "c"),
}
MOST = {"train": 45, "transform": 79, "search": 107, "report": 75, "quantize": 106, "export": 92}
"""The files that each command may visit: what was measured. Lower these as the counts fall.

The plan was 32 (train), 40 (transform), 50 (search), 38 (report), 40 (quantize) and 45 (export),
which files of at most 400 lines do not allow: to load a saved graph takes 9 files of `ir/stored`
alone, whose records are checked before anything is built of them, to lower it 14, to count its
work 5, to trace a network 7, and to read the settings of any command 7.
"""


def visited(arguments: list[str]) -> Counter[str]:
    """The files of the package whose functions one command calls, and how often."""
    import chop
    from chop.cli import main

    home = str(Path(chop.__file__).parent)
    calls: Counter[str] = Counter()
    importing = 0

    def watch(frame: FrameType, event: str, argument: object) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing and code.co_filename.startswith(home):
            calls[code.co_filename.removeprefix(home + "/")] += 1

    sys.setprofile(watch)
    try:
        code = main(arguments)
    finally:
        sys.setprofile(None)
    if code:
        raise SystemExit(code)
    return calls


def show(chosen: str | None) -> None:
    """Run every command, as each reads what those before it wrote; print what was visited.

    Exits with 1 if a command visits more files than it may.
    """
    over = False
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in COMMANDS.items():
            run = [sys.executable, __file__, "--one", *arguments]
            found = subprocess.run(run, cwd=folder, text=True, capture_output=True, check=False)
            if found.returncode:
                raise SystemExit(f"ch {' '.join(arguments)}\n{found.stdout}{found.stderr}")
            files = found.stderr.splitlines()
            if name == chosen:
                print("\n".join(files))
            if chosen in (None, name):
                print(f"ch {name}: {len(files)} files, at most {MOST[name]} allowed")
                over |= len(files) > MOST[name]
    raise SystemExit(over)


if __name__ == "__main__":
    first, *rest = sys.argv[1:] or [None]
    if first == "--one":
        for path, count in sorted(visited(rest).items()):
            print(f"{count:8} {path}", file=sys.stderr)
    else:
        show(first)
