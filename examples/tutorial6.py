"""Tutorial 6: choose the number format of each linear layer of a BERT with Optuna.

python examples/tutorial6.py            trains a network first, then 20 trials
python examples/tutorial6.py --quick    two trials, as a check
"""

from copy import deepcopy
from typing import Any

import optuna
from small_bert import accuracy, options, sentences, small_bert, trained
from torch import nn

from chop.nn.quantized.modules.linear import LinearBlockFP, LinearInteger
from chop.tools import deepsetattr

WIDTHS = (4, 6, 8)
CHOICES: dict[str, Any] = {"float": nn.Linear, "integer": LinearInteger, "block_fp": LinearBlockFP}


def quantised(layer: nn.Linear, kind: str, width: int) -> nn.Linear:
    """A layer of another class with the same weights."""
    if kind == "integer":
        config = {
            "data_in_width": width + 2, "data_in_frac_width": width // 2,
            "weight_width": width, "weight_frac_width": width - 2,
            "bias_width": width + 2, "bias_frac_width": width // 2,
        }  # fmt: skip
    else:
        config = {
            f"{operand}_{name}": value
            for operand in ("data_in", "weight", "bias")
            for name, value in {
                "width": width, "exponent_width": 8, "exponent_bias": None, "block_size": [16],
            }.items()
        }  # fmt: skip
    new: nn.Linear = CHOICES[kind](
        layer.in_features, layer.out_features, layer.bias is not None, config=config
    )
    new.load_state_dict(layer.state_dict())
    return new


def construct(trial: optuna.Trial, base: nn.Module) -> tuple[nn.Module, float]:
    """The model of a trial, and the bits of a weight on average."""
    model = deepcopy(base)
    bits = count = 0
    for name, layer in list(model.named_modules()):
        if type(layer) is not nn.Linear:
            continue
        kind = trial.suggest_categorical(f"{name}_type", list(CHOICES))
        width = 32
        if kind != "float":
            width = trial.suggest_categorical(f"{name}_width", list(WIDTHS))
            deepsetattr(model, name, quantised(layer, kind, width))
        bits += width * layer.weight.numel()
        count += layer.weight.numel()
    return model, bits / count


def main() -> None:
    chosen = options(__doc__)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rows, tokenizer = sentences(chosen.quick)
    base = small_bert(tokenizer)
    trained(base, rows, chosen.quick)
    print(f"in floating point: accuracy {accuracy(base, rows):.4f}")

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        model, bits = construct(trial, base)
        return accuracy(model, rows), bits

    study = optuna.create_study(
        directions=["maximize", "minimize"], sampler=optuna.samplers.TPESampler(seed=0)
    )
    study.optimize(objective, n_trials=2 if chosen.quick else 20)
    for trial in sorted(study.best_trials, key=lambda each: each.values[1]):
        print(f"accuracy {trial.values[0]:.4f} with {trial.values[1]:.1f} bits a weight")


if __name__ == "__main__":
    main()
