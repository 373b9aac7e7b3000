"""How long `ch --help` takes, as a multiple of starting Python itself, measured in turns."""

import argparse
import statistics
import subprocess
import sys
import time

ROUNDS, QUICK_ROUNDS = 20, 3
MISTAKE = "a mistake"
COMMANDS = {
    "python": ["-c", "pass"],
    "python -c 'import argparse, dataclasses'": ["-c", "import argparse, dataclasses"],
    "ch --help": ["-m", "chop.cli", "--help"],
    "ch -V": ["-m", "chop.cli", "-V"],
    "ch info": ["-m", "chop.cli", "info"],
    MISTAKE: ["-m", "chop.cli", "train", "jsc-tniy", "jsc"],
}


def seconds(name: str) -> float:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *COMMANDS[name]], capture_output=True, check=False)
    taken = time.perf_counter() - start
    if done.returncode != (2 if name == MISTAKE else 0):
        raise SystemExit(f"{name} ended with {done.returncode}: {done.stderr.decode()}")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    rounds = QUICK_ROUNDS if parser.parse_args().quick else ROUNDS
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name in COMMANDS:
            times[name].append(seconds(name))
    base = statistics.median(times["python"])
    for name, taken in times.items():
        print(f"{name:45} {statistics.median(taken) / base:6.2f} × python")


if __name__ == "__main__":
    main()
