"""Tutorial 2: fine-tune a BERT by low-rank adapters (LoRA), then fold them into its weights.

python examples/tutorial2.py            trains a network first: a few minutes
python examples/tutorial2.py --quick    one short epoch each, as a check
"""

import torch
from small_bert import INPUTS, accuracy, options, sentences, small_bert, trained

from chop import MaseGraph, passes
from chop.passes.module import report_trainable_parameters_analysis_pass
from chop.tools import get_trainer


def main() -> None:
    chosen = options(__doc__)
    rows, tokenizer = sentences(chosen.quick)
    mg = MaseGraph(small_bert(tokenizer), hf_input_names=INPUTS)
    trained(mg.model, rows, chosen.quick, epochs=1)  # what a pretrained network would know
    print(f"before: accuracy {accuracy(mg.model, rows):.4f}")
    report_trainable_parameters_analysis_pass(mg.model)

    mg, found = passes.insert_lora_adapter_transform_pass(
        mg, pass_args={"rank": 4, "alpha": 8.0, "dropout": 0.1, "train": ["classifier"]}
    )
    print(f"{len(found['adapters'])} adapters: {found['trainable']:,} parameters learn")
    report_trainable_parameters_analysis_pass(mg.model)
    trainer = get_trainer(
        model=mg.model,
        tokenized_dataset=rows,
        tokenizer=tokenizer,
        evaluate_metric="accuracy",
        num_train_epochs=1 if chosen.quick else 2,
        learning_rate=1e-3,
    )
    trainer.train()
    print(f"with adapters: accuracy {trainer.evaluate()['eval_accuracy']:.4f}")

    batch = rows["test"][:32]
    mg.model.eval()
    with torch.no_grad():
        before = mg.model(**batch)["logits"]
    mg, found = passes.fuse_lora_weights_transform_pass(mg)
    with torch.no_grad():
        after = mg.model(**batch)["logits"]
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    difference, right = (after - before).abs().max(), accuracy(mg.model, rows)
    print(f"{len(found['fused'])} adapters folded: largest difference {difference:.1e}, ", end="")
    print(f"accuracy {right:.4f}")
    print("saved to", mg.export(chosen.output / "tutorial2"))


if __name__ == "__main__":
    main()
