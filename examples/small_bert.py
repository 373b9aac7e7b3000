"""What the tutorials share: a small BERT with random weights, and sentences to train it on.

The original's tutorials fetch a trained BERT and film reviews from a hub. These run offline: the
sentences are those of the data set `agreement`, and what a pretrained network would know is
learned first, in less than a minute (--quick: hardly at all).
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from chop.tools import get_tokenized_dataset, get_trainer
from chop.tools.logger import set_logging_verbosity
from chop.tools.tokenized import TokenizedRows

INPUTS = ["input_ids", "attention_mask", "labels"]
QUICK_ROWS = 64


def options(description: str | None) -> argparse.Namespace:
    """The options that every tutorial has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rows and steps, as a check")
    parser.add_argument("--output", type=Path, default=Path("mase_output"), help="for files")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    set_logging_verbosity("warning")
    torch.manual_seed(0)
    return chosen


def sentences(quick: bool) -> tuple[dict[str, TokenizedRows], Any]:
    """The tokenised rows of each split, and their tokeniser."""
    rows, tokenizer = get_tokenized_dataset("agreement", return_tokenizer=True)
    if quick:
        rows = {
            split: TokenizedRows(part.tokens[:QUICK_ROWS], part.labels[:QUICK_ROWS], part.pad)
            for split, part in rows.items()
        }
    return rows, tokenizer


def small_bert(tokenizer: Any, **changes: Any) -> BertForSequenceClassification:
    """A BERT of two layers of width 32; `changes` are other settings of its configuration."""
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.2,  # with 0.02 so small a network learns late
    }
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        max_position_embeddings=tokenizer.model_max_length,
        pad_token_id=tokenizer.pad_token_id,
        **{**sizes, **changes},
    )
    return BertForSequenceClassification(config)


def trained(model: nn.Module, rows: dict[str, TokenizedRows], quick: bool, epochs: int = 2) -> Any:
    """The trainer of a model that it has trained."""
    trainer = get_trainer(
        model, rows, num_train_epochs=1 if quick else epochs, learning_rate=1e-3, batch_size=32
    )
    trainer.train()
    return trainer


def accuracy(model: nn.Module, rows: dict[str, TokenizedRows]) -> float:
    """The accuracy on the test rows."""
    return get_trainer(model, rows).evaluate()["eval_accuracy"]
