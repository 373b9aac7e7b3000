"""The C of emlearn, in floats, for a network of linear layers with ReLU.

Run by an interpreter that has emlearn and no chop: rivals_emlearn.py WEIGHTS.npz HEADER. The code
that emlearn 0.23.2 writes for fixed point is not tried: writing it raises an error of its own.
"""

import sys
from pathlib import Path

import emlearn
import numpy as np
from emlearn.net import c_generate_net_loadable

QUIET = "#pragma GCC system_header\n"


def main() -> None:
    """Write the header of a network whose weights are in a NumPy archive."""
    given, header = sys.argv[1:]
    with np.load(given) as stored:
        count = len(stored.files) // 2
        weights = [stored[f"weight{place}"].T for place in range(count)]
        biases = [stored[f"bias{place}"] for place in range(count)]
    activations = [*["relu"] * (count - 1), "identity"]
    text = c_generate_net_loadable(activations, weights, biases, "net")
    place = Path(header).parent
    for library in Path(emlearn.__file__).parent.glob("eml_*.h"):
        (place / library.name).write_text(QUIET + library.read_text())
    Path(header).write_text(QUIET + text)


if __name__ == "__main__":
    main()
