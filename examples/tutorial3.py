"""Tutorial 3: quantise a BERT with its attention, and train it on with rounding in place.

python examples/tutorial3.py            trains a network first: a few minutes
python examples/tutorial3.py --quick    one short epoch each, as a check
"""

from small_bert import INPUTS, accuracy, options, sentences, small_bert, trained

from chop import MaseGraph, passes
from chop.tools import get_trainer

NARROW = {
    "name": "integer",
    "data_in_width": 6,
    "data_in_frac_width": 3,
    "weight_width": 4,
    "weight_frac_width": 3,
    "bias_width": 6,
    "bias_frac_width": 3,
}
SCORES = {"scores_width": 6, "scores_frac_width": 5}
QUANTISE = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {"config": NARROW},
    "scaled_dot_product_attention": {
        "config": {name: NARROW[name] for name in ("name", "data_in_width", "data_in_frac_width")}
        | SCORES
    },
}


def main() -> None:
    chosen = options(__doc__)
    rows, tokenizer = sentences(chosen.quick)
    mg = MaseGraph(small_bert(tokenizer), hf_input_names=INPUTS)
    trained(mg.model, rows, chosen.quick)
    print(f"in floating point: accuracy {accuracy(mg.model, rows):.4f}")

    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    mg, found = passes.quantize_transform_pass(mg, QUANTISE)
    kinds = sorted(set(found["quantized"].values()))
    print(f"{len(found['quantized'])} operations quantised: {', '.join(kinds)}")
    print(f"quantised: accuracy {accuracy(mg.model, rows):.4f}")

    trainer = get_trainer(
        model=mg.model,
        tokenized_dataset=rows,
        tokenizer=tokenizer,
        evaluate_metric="accuracy",
        num_train_epochs=1 if chosen.quick else 2,
        learning_rate=1e-3,
    )
    trainer.train()
    print(f"trained on: accuracy {trainer.evaluate()['eval_accuracy']:.4f}")
    print("saved to", mg.export(chosen.output / "tutorial3"))


if __name__ == "__main__":
    main()
