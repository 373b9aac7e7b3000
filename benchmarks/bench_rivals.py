"""Other tools that learn widths, on the rows and by the evaluator of bench_learned.py.

HGQ2 and PQuantML need their own environments, so each trains in the interpreter named for it, with
training and validation rows only, and hands back its networks as plain numbers (`rivals_io`).

    python benchmarks/bench_rivals.py --hgq-python ENV/bin/python --pquant-python ENV/bin/python
    python benchmarks/bench_rivals.py --tune hgq2 --rates 2e-3 5e-3 1e-2 --hgq-python ...

`--tune` runs seed 0 with each rate and prints the figure rates are chosen by: the validation
accuracy averaged over the budgets. A tool whose interpreter is not named is left out.
`--nets FOLDER` keeps the networks there, and reads those that are there already.
"""

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from bench_learned import BUDGETS, Jets, Layer, Net, Point, ebops, figures, front, table
from rivals_io import Exported, read_nets

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "rivals.jsonl"
SCRIPTS = {"hgq2": "rivals_hgq2.py", "pquant": "rivals_pquant.py"}
MODULES = {"hgq2": "hgq", "pquant": "pquant"}
RATES = {"hgq2": 2e-2, "pquant": 1e-2}
"""HGQ2: chosen with `--tune`; PQuantML: its example's."""


def usable(tool: str, python: str | None) -> str | None:
    """The interpreter if it has the tool; a line that says what is missing otherwise."""
    if python is None:
        print(f"{tool}: left out, no interpreter named (--{MODULES[tool]}-python)")
        return None
    try:
        found = subprocess.run(
            [python, "-c", f"import importlib.util as u; assert u.find_spec('{MODULES[tool]}')"],
            capture_output=True,
        )
    except OSError as error:
        raise SystemExit(f"{tool}: {python} cannot be run: {error.strerror}") from error
    if found.returncode:
        raise SystemExit(f"{tool}: {python} has no package {MODULES[tool]}")
    return python


def write_rows(path: Path, jets: Jets) -> None:
    """The test rows stay here."""
    parts = {"train": jets.train, "validation": jets.validation}
    arrays = {f"{name}_x": rows.astype(np.float32) for name, (rows, _) in parts.items()}
    np.savez(path, **arrays, **{f"{name}_y": labels for name, (_, labels) in parts.items()})


def net_of(given: Exported, jets: Jets) -> Net:
    """What the evaluator reads. Scores that are not the tool's are named, on validation rows."""
    layers = [
        Layer(
            each["weight"],
            each["bias"],
            *(each[n].astype(np.int64) for n in ("frac", "low", "high")),
        )
        for each in given.layers
    ]
    net = Net(layers, given.name)
    scores = np.concatenate([net.codes(part)[0] for part in np.array_split(jets.validation[0], 4)])
    if not np.array_equal(scores, given.scores):
        worst = np.abs(scores - given.scores).max()
        rows = int((scores.argmax(1) != given.scores.argmax(1)).sum())
        print(f"{given.name}: scores differ by up to {worst:.2g}, {rows} rows change their class")
    return net


def run(tool: str, seed: int, rate: float, python: str, jets: Jets, folder: Path) -> dict[str, Any]:
    """The figures of one run, from its networks if the folder has them already."""
    rows, nets = folder / "rows.npz", folder / f"{tool}_{seed}_{rate:g}.npz"
    if not nets.exists():
        write_rows(rows, jets)
        command = [python, str(HERE / SCRIPTS[tool]), str(rows), str(nets)]
        subprocess.run([*command, "--seed", str(seed), "--rate", str(rate)], check=True)
    exported, facts = read_nets(nets)
    points = []
    for net in (net_of(each, jets) for each in exported):
        validation, test = net.accuracy(*jets.validation), net.accuracy(*jets.test)
        points.append(Point(net.name, ebops(net, jets.seen), validation, test))
    shown = [vars(point) for point in front(points)]
    return {"tool": tool, "seed": seed, "rate": rate, **figures(points), **facts, "front": shown}


def validation_mean(row: dict[str, Any]) -> float:
    """What rates are chosen by: validation accuracy of the front, averaged over the budgets."""
    points = row["front"]
    within = ([p["validation"] for p in points if p["ebops"] <= budget] for budget in BUDGETS)
    return statistics.mean(max(each, default=0.0) for each in within)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hgq-python", dest="hgq2")
    parser.add_argument("--pquant-python", dest="pquant")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tune", choices=list(SCRIPTS))
    parser.add_argument("--rates", type=float, nargs="+", default=[])
    parser.add_argument("--nets", type=Path)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    pythons = {tool: usable(tool, getattr(args, tool)) for tool in SCRIPTS}
    if not any(pythons.values()):
        raise SystemExit("nothing to run: name an interpreter")
    jets = Jets.read()
    with TemporaryDirectory() as temporary:
        folder = args.nets or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if args.tune:
            plan = [(args.tune, 0, rate) for rate in args.rates]
        else:
            plan = [(tool, seed, RATES[tool]) for tool in SCRIPTS for seed in args.seeds]
        rows = [run(*each, pythons[each[0]], jets, folder) for each in plan if pythons[each[0]]]
    if not args.tune:
        print(table(rows))
    for row in rows:
        run_of = f"{row['tool']}, seed {row['seed']}, rate {row['rate']:g}"
        print(f"{run_of}: {validation_mean(row):.4f} on validation rows, averaged over the budgets")
    load = os.getloadavg()[0]
    print(f"load average {load:.1f} at the end")
    if args.save:
        with RESULTS.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"load": load, "runs": rows}) + "\n")


if __name__ == "__main__":
    main()
