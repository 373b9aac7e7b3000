"""PQuantML's networks on given rows: run by bench_rivals.py with the interpreter that has it.

Layers, bits at the start, overflow, Adam and the two steps of the learning rate are those of its
example `example_jet_tagging`, in HGQ mode with bits per weight and without pruning, trained by its
`train_model`: one run, and one network, for each cost weight. Different are the epochs and
the batch; the weight of the plain sum of bits, the 1e-8 of HGQ2 and of PQuantML's quantiser
class and not the 3e-4 of its configuration files (its effect was not measured); and there are no
quantisers of ReLUs, whose result the next layer rounds, and of the scores.
"""

import argparse
import os
import time
from itertools import pairwise
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import numpy as np
import torch
from pquant import dst_config, get_model_losses, train_model
from pquant.layers import PQDense
from rivals_io import Exported, layer_of, write_nets
from torch import Tensor, nn

BATCH, FLOAT_EPOCHS = 1024, 30
WIDTHS = (16, 64, 32, 32, 5)
Rows = dict[str, Tensor]


def quantised(cost: float, epochs: int) -> nn.Sequential:
    """The example's network in HGQ mode, built: quantisers exist after the first rows only."""
    config = dst_config()
    config.pruning_parameters.enable_pruning = False
    stages = config.training_parameters
    stages.pretraining_epochs, stages.fine_tuning_epochs = epochs // 6, 0
    stages.epochs = epochs - stages.pretraining_epochs
    options = config.quantization_parameters
    options.use_high_granularity_quantization, options.granularity = True, "per_weight"
    options.hgq_beta, options.hgq_gamma = cost, 1e-8
    options.default_data_integer_bits, options.default_data_fractional_bits = 3.0, 2.0
    options.default_weight_fractional_bits = 3.0
    options.overflow_mode_data, options.overflow_mode_parameters = "WRAP", "SAT"
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS):
        first = {} if layers else {"in_quant_bits": (1, 3, 3)}
        layers += [PQDense(config, inputs, outputs, **first), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    model.config = config
    model(torch.rand(1, WIDTHS[0]))
    return model


def plain() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def epoch_of(model: nn.Module, rows: Rows, optimizer: torch.optim.Optimizer) -> None:
    """One pass over the training rows; layers without bits that learn have no further losses."""
    for chosen in torch.randperm(len(rows["train_x"])).split(BATCH):
        loss = nn.functional.cross_entropy(model(rows["train_x"][chosen]), rows["train_y"][chosen])
        optimizer.zero_grad()
        (loss + get_model_losses(model, torch.tensor(0.0))).backward()
        optimizer.step()


def float_seconds(rows: Rows, rate: float, epochs: int = 6) -> float:
    """CPU seconds of 30 epochs of the plain network."""
    model = plain()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    begin = time.process_time()
    for _ in range(epochs):
        epoch_of(model, rows, optimizer)
    return (time.process_time() - begin) * FLOAT_EPOCHS / epochs


def trained(rows: Rows, cost: float, args: argparse.Namespace) -> Exported:
    torch.manual_seed(args.seed)
    model = quantised(cost, args.epochs)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.rate)
    steps = [args.epochs * 6 // 10, args.epochs * 8 // 10]
    rates = torch.optim.lr_scheduler.MultiStepLR(optimizer, steps, gamma=0.1)

    def train(model: nn.Module, epoch: Tensor, **_: object) -> None:
        epoch_of(model, rows, optimizer)
        rates.step()

    def validate(model: nn.Module, epoch: Tensor, **_: object) -> None:
        if (int(epoch) + 1) % 10 == 0:
            with torch.no_grad():
                right = model(rows["validation_x"]).argmax(1) == rows["validation_y"]
                ebops = sum(float(each.ebops()) for each in model if isinstance(each, PQDense))
            print(f"{cost:g} {int(epoch) + 1}: {right.float().mean():.4f} {ebops:.0f}", flush=True)

    train_model(model, model.config, train, validate)
    return exported(model, rows, f"{cost:g}")


@torch.no_grad()
def exported(model: nn.Sequential, rows: Rows, name: str) -> Exported:
    """Integer bits of data follow the last rows seen in training mode: show it all of them."""
    model.train()
    model(torch.cat([rows["train_x"], rows["validation_x"]]))
    model.eval()
    layers = []
    for layer in model:
        if isinstance(layer, PQDense):
            numbers = layer.weight, layer.bias, *layer.get_input_quantization_bits()
            weight, bias, *bits = (each.double().numpy() for each in numbers)
            layers.append(layer_of(weight, bias, tuple(bits)))
    return Exported(name, layers, model(rows["validation_x"]).double().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("networks", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--costs", type=float, nargs="+", default=[3e-6, 1e-5, 3e-5])
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {name: torch.from_numpy(values) for name, values in np.load(args.rows).items()}
    references = [float_seconds(rows, args.rate)]
    begin = time.process_time()
    nets = [trained(rows, cost, args) for cost in args.costs]
    took = time.process_time() - begin
    references.append(float_seconds(rows, args.rate))
    reference = sum(references) / len(references)
    write_nets(args.networks, nets, {"seconds": took, "float": reference, "x": took / reference})


if __name__ == "__main__":
    main()
