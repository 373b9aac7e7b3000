"""Tutorial 4: quantise and prune a BERT in one pipeline, and train what is left.

python examples/tutorial4.py            trains a network first: a few minutes
python examples/tutorial4.py --quick    one short epoch each, as a check
"""

from copy import deepcopy

from small_bert import INPUTS, accuracy, options, sentences, small_bert, trained

from chop import MaseGraph
from chop.pipelines import CompressionPipeline
from chop.tools import get_trainer

EIGHT_BITS = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {
        "config": {
            "name": "integer",
            "data_in_width": 8,
            "data_in_frac_width": 4,
            "weight_width": 8,
            "weight_frac_width": 6,
            "bias_width": 8,
            "bias_frac_width": 5,
        }
    },
}


def main() -> None:
    chosen = options(__doc__)
    rows, tokenizer = sentences(chosen.quick)
    mg = MaseGraph(small_bert(tokenizer), hf_input_names=INPUTS)
    trained(mg.model, rows, chosen.quick)
    print(f"in floating point: accuracy {accuracy(mg.model, rows):.4f}")

    pipe = CompressionPipeline()
    for sparsity in (0.5,) if chosen.quick else (0.1, 0.5, 0.9):
        prune = {
            "weight": {"sparsity": sparsity, "method": "l1-norm", "scope": "local"},
            "activation": {"sparsity": 0.1, "method": "l1-norm", "scope": "local"},
            "input_generator": [rows["train"][:64]],
        }
        pruned, found = pipe(
            deepcopy(mg),
            pass_args={"quantize_transform_pass": EIGHT_BITS, "prune_transform_pass": prune},
        )
        weights = found["prune_transform_pass"]["weight"]["nodes"]
        print(f"sparsity {sparsity}: {len(weights)} weights pruned, ", end="")
        print(f"accuracy {accuracy(pruned.model, rows):.4f}", end="")
        trainer = get_trainer(pruned.model, rows, tokenizer, learning_rate=1e-3)
        trainer.train()
        print(f", trained on {trainer.evaluate()['eval_accuracy']:.4f}")
    print("saved to", pruned.export(chosen.output / "tutorial4"))


if __name__ == "__main__":
    main()
