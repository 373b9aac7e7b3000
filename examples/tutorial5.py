"""Tutorial 5: search for the architecture of a BERT with Optuna, then compress the best.

python examples/tutorial5.py            20 trials of two samplers, each trained for some epochs
python examples/tutorial5.py --quick    two trials of few steps, as a check
"""

from typing import Any

import optuna
from small_bert import INPUTS, accuracy, options, sentences, small_bert, trained
from torch import nn
from tutorial4 import EIGHT_BITS

from chop import MaseGraph
from chop.pipelines import CompressionPipeline
from chop.tools import deepsetattr

SPACE = {
    "num_hidden_layers": [1, 2],
    "num_attention_heads": [2, 4],
    "hidden_size": [16, 32],
    "intermediate_size": [16, 32, 64],
}


def construct(trial: optuna.Trial, tokenizer: Any) -> nn.Module:
    """The model of a trial: the sizes of its configuration, and square layers kept or left out."""
    sizes = {name: trial.suggest_categorical(name, values) for name, values in SPACE.items()}
    model = small_bert(tokenizer, **sizes)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and name.endswith("attention.output.dense"):
            kind = trial.suggest_categorical(f"{name}_type", ["linear", "identity"])
            if kind == "identity":
                deepsetattr(model, name, nn.Identity())
    return model


def main() -> None:
    chosen = options(__doc__)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rows, tokenizer = sentences(chosen.quick)

    def objective(trial: optuna.Trial) -> float:
        model = construct(trial, tokenizer)
        found = trained(model, rows, chosen.quick, epochs=1).evaluate()["eval_accuracy"]
        trial.set_user_attr("parameters", sum(value.numel() for value in model.parameters()))
        models[trial.number] = model
        return found

    best: list[tuple[float, nn.Module]] = []
    samplers = {
        "random": optuna.samplers.RandomSampler(0),
        "tpe": optuna.samplers.TPESampler(seed=0),
    }
    for name, sampler in list(samplers.items())[-1 if chosen.quick else 0 :]:
        models: dict[int, nn.Module] = {}
        study = optuna.create_study(direction="maximize", study_name=name, sampler=sampler)
        study.optimize(objective, n_trials=2 if chosen.quick else 10)
        winner = study.best_trial
        size = winner.user_attrs["parameters"]
        print(f"{name}: accuracy {winner.value:.4f}, {size:,} parameters, {winner.params}")
        best.append((study.best_value, models[winner.number]))

    _, model = max(best, key=lambda each: each[0])
    mg = MaseGraph(model, hf_input_names=INPUTS)
    prune = {"weight": {"sparsity": 0.3, "method": "l1-norm", "scope": "local"}}
    mg, _ = CompressionPipeline()(
        mg, pass_args={"quantize_transform_pass": EIGHT_BITS, "prune_transform_pass": prune}
    )
    print(f"the best, in 8 bits and pruned: accuracy {accuracy(mg.model, rows):.4f}")
    print("saved to", mg.export(chosen.output / "tutorial5"))


if __name__ == "__main__":
    main()
