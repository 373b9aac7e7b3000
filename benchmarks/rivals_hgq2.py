"""HGQ2's front on given rows: run by bench_rivals.py with the interpreter that has HGQ2.

Network, quantisers and optimiser are those of HGQ2's example `small_jet_tagger` (bits at the start,
overflow and rounding of weights, biases and data; Adam; JAX). The cost weight grows and the
learning rate restarts as in the sweeps of HGQ's authors on jets, shortened to `--epochs`. HGQ2's
callbacks keep the networks: FreeEBOPs counts, ParetoFront saves each epoch nothing seen so far
beats on validation rows, and trace_minmax sets the integer bits afterwards. The example's quantiser
of the scores is left out, because no multiplication reads them.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import keras
import numpy as np
from hgq.config import QuantizerConfig, QuantizerConfigScope
from hgq.layers import QDense
from hgq.utils import trace_minmax
from hgq.utils.sugar import BetaScheduler, FreeEBOPs, ParetoFront, PieceWiseSchedule
from rivals_io import Exported, layer_of, write_nets

BATCH, FLOAT_EPOCHS = 1024, 30
WIDTHS = (64, 32, 32)
FIRST_COST, LAST_COST = 1e-6, 1e-4


def quantised() -> keras.Model:
    """The example's network."""
    everywhere = QuantizerConfigScope(
        place="all", k0=1, b0=3, i0=0, default_q_type="kbi", overflow_mode="sat_sym"
    )
    data = QuantizerConfigScope(
        place="datalane", k0=0, default_q_type="kif", overflow_mode="wrap", f0=3, i0=3
    )
    with everywhere, data:
        first = QuantizerConfig(place="datalane", k0=1)
        layers = [
            QDense(width, activation="relu", beta0=FIRST_COST, iq_conf=None if place else first)
            for place, width in enumerate(WIDTHS)
        ]
        return keras.Sequential([keras.Input((16,)), *layers, QDense(5, beta0=FIRST_COST)])


def plain() -> keras.Model:
    hidden = [keras.layers.Dense(width, activation="relu") for width in WIDTHS]
    return keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(5)])


def compiled(model: keras.Model, rate: float, steps: int, cycle: int) -> keras.Model:
    schedule = keras.optimizers.schedules.CosineDecayRestarts(
        rate, steps * cycle, t_mul=1.0, m_mul=0.98, alpha=1e-6
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"], jit_compile=True)
    return model


def float_seconds(rows: dict[str, np.ndarray], rate: float, epochs: int = 6) -> float:
    """CPU seconds of 30 epochs of the plain network, compilation not counted."""
    steps = -(-len(rows["train_x"]) // BATCH)
    model = compiled(plain(), rate, steps, FLOAT_EPOCHS)
    given = {"x": rows["train_x"], "y": rows["train_y"], "batch_size": BATCH, "verbose": 0}
    model.fit(**given, epochs=1)
    begin = time.process_time()
    model.fit(**given, epochs=epochs)
    return (time.process_time() - begin) * FLOAT_EPOCHS / epochs


def trained(rows: dict[str, np.ndarray], args: argparse.Namespace, folder: Path) -> list[Exported]:
    """The networks that ParetoFront kept, with integer bits from training and validation rows."""
    steps = -(-len(rows["train_x"]) // BATCH)
    model = compiled(quantised(), args.rate, steps, args.cycle)
    rising = [(0, FIRST_COST, "constant"), (args.epochs // 6, FIRST_COST, "log"),
              (args.epochs, LAST_COST, "constant")]  # fmt: skip
    name = "{epoch:04d}.weights.h5"
    kept = ParetoFront(folder, ["val_accuracy", "ebops"], [1, -1], name)
    callbacks = [BetaScheduler(PieceWiseSchedule(rising)), FreeEBOPs(), kept]
    held_out = (rows["validation_x"], rows["validation_y"])
    model.fit(
        rows["train_x"], rows["train_y"], batch_size=BATCH, epochs=args.epochs, verbose=2,
        validation_data=held_out, validation_batch_size=20_000, callbacks=callbacks,
    )  # fmt: skip
    return [exported(model, path, rows) for path in sorted(kept.paths)]


def exported(model: keras.Model, path: Path, rows: dict[str, np.ndarray]) -> Exported:
    model.load_weights(path)
    seen = np.concatenate([rows["train_x"], rows["validation_x"]])
    trace_minmax(model, seen, batch_size=len(seen))
    layers = []
    for layer in model.layers:
        numbers = layer.qkernel, layer.qbias, *layer.iq.quantizer.kif
        weight, bias, *bits = (np.asarray(each, np.float64) for each in numbers)
        layers.append(layer_of(weight.T, bias, tuple(bits)))
    scores = model.predict(rows["validation_x"], batch_size=20_000, verbose=0)
    return Exported(path.name.split(".")[0], layers, scores.astype(np.float64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("networks", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--epochs", type=int, default=180)
    parser.add_argument("--cycle", type=int, default=6)
    args = parser.parse_args()
    rows = dict(np.load(args.rows))
    keras.utils.set_random_seed(args.seed)
    references = [float_seconds(rows, args.rate)]
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        nets = trained(rows, args, Path(folder))
        took = time.process_time() - begin
    references.append(float_seconds(rows, args.rate))
    reference = sum(references) / len(references)
    write_nets(args.networks, nets, {"seconds": took, "float": reference, "x": took / reference})


if __name__ == "__main__":
    main()
