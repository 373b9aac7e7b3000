"""The names that the original's tutorials use, with their meaning, and life without the extras."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from chop import MaseGraph
from chop.errors import ChopError, ConfigError
from chop.loading.tokenized import TokenizedRows
from chop.models import get_model, get_tokenizer
from chop.models.info import DataShape
from chop.passes import quantize_transform_pass
from chop.pipelines import AutoPipeline, CompressionPipeline
from chop.tools import deepgetattr, deepsetattr, get_tokenized_dataset, get_trainer

PATHS = {
    "chop.tools": "get_tokenized_dataset get_trainer deepsetattr deepgetattr",
    "chop.passes.graph.utils": "deepsetattr deepgetattr",
    "chop.pipelines": "AutoPipeline CompressionPipeline",
    "chop.passes": "insert_lora_adapter_transform_pass fuse_lora_weights_transform_pass",
    "chop.passes.module": "report_trainable_parameters_analysis_pass",
    "chop.passes.module.analysis": "report_trainable_parameters_analysis_pass",
    "chop.nn.quantized.modules.linear": "LinearInteger LinearBlockFP",
}
INTEGER = {
    "name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8,
    "weight_frac_width": 6,
}  # fmt: skip
QUANTISE = {"by": "type", "default": {"config": {"name": None}}, "linear": {"config": INTEGER}}


@pytest.mark.parametrize("path", PATHS)
def test_import_paths(path: str) -> None:
    module = import_module(path)
    assert [name for name in PATHS[path].split() if not hasattr(module, name)] == []


def few(rows: dict[str, TokenizedRows], count: int = 40) -> dict[str, TokenizedRows]:
    return {s: TokenizedRows(p.tokens[:count], p.labels[:count], p.pad) for s, p in rows.items()}


def test_rows_are_dictionaries() -> None:
    rows, tokenizer = get_tokenized_dataset("agreement", return_tokenizer=True)
    first = rows["train"][0]
    words = tokenizer.decode(first["input_ids"])
    assert tokenizer.encode(words) == first["input_ids"][first["attention_mask"] == 1].tolist()
    assert set(rows) == {"train", "validation", "test"}
    with pytest.raises(ConfigError, match="is not text"):
        get_tokenized_dataset("jsc-sim")
    with pytest.raises(ConfigError, match="checkpoint= names its tokeniser"):
        get_tokenized_dataset("imdb")


@pytest.mark.parametrize("task", ["cls", "lm"])
def test_a_trainer_trains_and_evaluates(task: str, tmp_path: Path) -> None:
    name = {"cls": "agreement", "lm": "agreement-lm"}[task]
    rows = few(get_tokenized_dataset(name))
    length, classes = rows["train"].tokens.shape[1], {"cls": 2, "lm": 50}[task]
    shape = DataShape(length, classes, vocab_size=50)
    model = get_model({"cls": "encoder-tiny", "lm": "decoder-tiny"}[task], task, shape)
    metric: Any = {"cls": "accuracy", "lm": "perplexity"}[task]
    trainer = get_trainer(
        model, rows, None, metric, tmp_path / "out", num_train_epochs=2, learning_rate=1e-2
    )
    before = trainer.evaluate()
    done = trainer.train()
    after = trainer.evaluate()
    assert done.global_step == 4
    assert after["eval_loss"] != before["eval_loss"]
    assert (tmp_path / "out" / "best.ckpt").is_file()
    assert f"eval_{metric}" in after


def test_what_a_trainer_refuses() -> None:
    rows = few(get_tokenized_dataset("agreement"))
    model = get_model("encoder-tiny", "cls", DataShape(16, 2, vocab_size=50))
    for given in (
        {"tokenized_dataset": []},
        {"tokenized_dataset": {"train": rows["train"]}},
        {"tokenized_dataset": rows, "evaluate_metric": "perplexity"},
        {"tokenized_dataset": rows, "report_to": "wandb"},
        {"tokenized_dataset": rows, "learning_rat": 1},
    ):
        with pytest.raises(ConfigError):
            get_trainer(model, **given)  # type: ignore[arg-type]


def test_a_pipeline_runs_what_has_arguments() -> None:
    model = get_model("encoder-tiny", "cls", DataShape(16, 2, vocab_size=50)).eval()
    prune = {"weight": {"sparsity": 0.5, "method": "l1-norm"}}
    given = {"quantize": QUANTISE, "prune_transform_pass": prune}
    _, found = CompressionPipeline()(MaseGraph(model), given)
    assert list(found) == [
        "init_metadata_analysis_pass", "add_common_metadata_analysis_pass",
        "quantize_transform_pass", "prune_transform_pass",
    ]  # fmt: skip
    assert len(found["quantize_transform_pass"]["quantized"]) == 13
    _, found = CompressionPipeline()(MaseGraph(model), given, [quantize_transform_pass])
    assert "quantize_transform_pass" not in found
    for wrong in ({"quantise": {}}, {"quantize": {"by": "self/prune"}}):
        with pytest.raises(ConfigError):
            CompressionPipeline()(MaseGraph(model), wrong)
    with pytest.raises(ConfigError):
        AutoPipeline([])


def test_attributes_by_path() -> None:
    model = get_model("encoder-tiny", "cls", DataShape(16, 2, vocab_size=50))
    deepsetattr(model, "blocks.1.gelu", torch.nn.ReLU())
    assert isinstance(deepgetattr(model, "blocks.1.gelu"), torch.nn.ReLU)
    assert deepgetattr(model, "blocks.7.gelu") is None


def tokenizer_folder(folder: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3, "film": 4}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]"
    )
    fast.save_pretrained(folder)
    return folder


def test_texts_of_a_file_with_the_tokeniser_of_a_folder(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "tokens")
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("text,label\ngood film,1\nbad bad film,0\n")
    rows, tokenizer = get_tokenized_dataset(tmp_path, folder, return_tokenizer=True)
    assert rows["train"].tokens.tolist() == [[2, 4, 0], [3, 3, 4]]
    assert rows["test"][0]["attention_mask"].tolist() == [1, 1, 0]
    assert rows["test"].labels.tolist() == [1, 0]
    assert get_tokenizer("encoder-tiny", folder).pad_token_id == tokenizer.pad_token_id == 0
    (tmp_path / "train.csv").write_text("text,label\ngood film,yes\n")
    for wrong in (lambda: get_tokenized_dataset(tmp_path, folder),
                  lambda: get_tokenized_dataset(tmp_path, tmp_path),
                  lambda: get_tokenizer("encoder-tiny")):  # fmt: skip
        with pytest.raises(ChopError):
            wrong()


def test_inputs_by_name(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        vocab_size=30,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    with pytest.raises(ConfigError, match="unknown input 'inputs'"):
        MaseGraph(model, hf_input_names=["inputs"])
    with pytest.raises(ChopError, match="not a model of transformers"):
        MaseGraph(torch.nn.Linear(2, 2), hf_input_names=["input_ids"])
    graph = MaseGraph(model, hf_input_names=["input_ids", "attention_mask", "labels"])
    rows = {
        "input_ids": torch.randint(1, 30, (5, 11)), "attention_mask": torch.ones(5, 11).long(),
        "labels": torch.tensor([0, 1, 0, 1, 1]),
    }  # fmt: skip
    rows["attention_mask"][2, 6:] = 0
    wanted, found = model(**rows), graph.model(**rows)
    torch.testing.assert_close(found["loss"], wanted.loss)
    torch.testing.assert_close(found["logits"], wanted.logits)


WITHOUT = """
import sys
for name in ("transformers", "timm", "torchvision", "datasets", "tokenizers"):
    sys.modules[name] = None
import chop, chop.cli, chop.pipelines, chop.search.runners, chop.training.trainer
from chop.dataset import MaseDataModule
from chop.errors import ConfigError
from chop.models import MODELS, get_model
from chop.tools import get_tokenized_dataset, get_trainer
rows = get_tokenized_dataset("agreement")
info = MaseDataModule("agreement", 1).dataset_info
few = {split: type(part)(part.tokens[:32], part.labels[:32]) for split, part in rows.items()}
trainer = get_trainer(get_model("encoder-tiny", "cls", info), few)
assert 0 <= trainer.evaluate()["eval_accuracy"] <= 1
try:
    get_model("hf:bert", "cls", info)
except ConfigError as error:
    assert "pip install transformers" in str(error), error
else:
    raise SystemExit("hf:bert was made without transformers")
"""


def test_without_the_extras_all_else_works() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]
