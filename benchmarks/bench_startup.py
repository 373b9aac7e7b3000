"""How long `ch --help` takes, as a multiple of starting Python itself, measured in turns."""

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python": ["-c", "pass"],
    "python -c 'import argparse, dataclasses'": ["-c", "import argparse, dataclasses"],
    "ch --help": ["-m", "chop.cli", "--help"],
    "ch -V": ["-m", "chop.cli", "-V"],
    "ch info": ["-m", "chop.cli", "info"],
    "a mistake": ["-m", "chop.cli", "train", "jsc-tniy", "jsc"],
}


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    rounds = 3 if parser.parse_args().quick else 20
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    base = statistics.median(times["python"])
    for name, taken in times.items():
        print(f"{name:45} {statistics.median(taken) / base:6.2f} × python")


if __name__ == "__main__":
    main()
